"""Curves keep their extremes, panels show every metric once, and the importance of fields."""

import json
import math
import random
from array import array
from pathlib import Path

import pytest

from setpoint.report.page.content import document
from setpoint.report.page.html import html_of
from setpoint.report.page.panels import RunObjective, importance, panels, ranked, thinned
from setpoint.report.page.run_data import Column, read_run

from .records import setting, train_row, write_run


def test_thinning_loses_no_extreme() -> None:
    draw = random.Random(0)
    values = [draw.gauss(0, 1) for _ in range(20_011)]
    values[12_345], values[77], values[15_000] = 1e9, -1e9, math.nan
    column = Column(array("I", range(0, 2 * len(values), 2)), array("d", values))
    curve = thinned(column, 100)
    assert len(curve["at"]) <= 303 and curve["count"] == len(values) and curve["not_finite"] == 1
    kept = dict(zip(curve["at"], curve["y"], strict=True))
    assert kept[24_690] == 1e9 and kept[154] == -1e9 and kept[30_000] == "NaN"
    assert kept[0] == values[0] and kept[2 * len(values) - 2] == values[-1]
    for part in range(100):  # of each part the smallest and the largest value
        places = range(part * len(values) // 100, (part + 1) * len(values) // 100)
        known = [values[place] for place in places if math.isfinite(values[place])]
        assert {min(known), max(known)} <= {kept.get(2 * place) for place in places}
        assert math.isclose(curve["mean"][part], math.fsum(known) / len(known))


def test_a_long_run_makes_a_report_of_bounded_size(tmp_path: Path) -> None:
    rows = [train_row(step, 1 / step) for step in range(1, 8_001)]
    rows[3_999]["loss"] = 50.0
    run = read_run(write_run(tmp_path, rows), "long")
    content = document([run], "long")
    curve = content["runs"][0]["curves"]["train.loss"]
    place = curve["at"][curve["y"].index(50)]
    assert content["runs"][0]["x"]["step"][place] == 4_000
    assert content["runs"][0]["x"]["time"][place] == 2_000
    assert len(html_of(content)) < 1_200_000


def test_each_metric_has_one_panel(tmp_path: Path) -> None:
    more = {"sequences_a": 1, "sequences_b": 2, "own/metric": 3.0, "lr_head": 0.1}
    evaluation = {"kind": "evaluation", "step": 1, "web_loss": 1}
    run = read_run(write_run(tmp_path, [train_row(1, 2.0, **more), evaluation]), "r")
    found = panels([run])
    columns = [name for panel in found for name in panel["columns"]]
    assert sorted(columns) == sorted(
        name for name in run.columns if name.partition(".")[2] not in ("step", "tokens", "seconds")
    )
    assert found[0] == {
        "title": "Loss", "columns": ["train.mean_loss", "evaluation.web_loss"], "main": True
    }  # fmt: skip
    assert ["train.lr", "train.lr_head"] in [panel["columns"] for panel in found]
    assert ["train.sequences_a", "train.sequences_b"] in [panel["columns"] for panel in found]
    json.dumps(document([run], "r"), allow_nan=False)


def test_ranks_share_ties_and_put_what_is_not_finite_last() -> None:
    assert ranked([2.0, 1.0, 2.0, math.nan]) == [2.5, 1.0, 2.5, 4.0]
    assert ranked([2.0, 1.0, 3.0], minimize=False) == [2.0, 3.0, 1.0]


def test_importance_is_the_effect_size_of_kruskal_and_wallis() -> None:
    groups = {"a": [1, 2, 5], "b": [3, 4, 6], "c": [7, 8, 9]}
    values = [name for name, ranks in groups.items() for _ in ranks]
    ranks = [float(rank) for each in groups.values() for rank in each]
    n, k = 9, 3
    # As the statistic is written for ranks without ties: 12 / n(n+1) sum R^2 / n_i - 3 (n+1).
    h = 12 / (n * (n + 1)) * sum(sum(r) ** 2 / 3 for r in groups.values()) - 3 * (n + 1)
    assert importance(values, ranks) == pytest.approx((h - k + 1) / (n - k))


def test_importance_of_chance_is_near_0_however_many_values_there_are() -> None:
    draw = random.Random(1)
    ranks = [float(rank) for rank in draw.sample(range(200), 200)]
    for values in ([draw.randrange(40) for _ in ranks], [draw.random() for _ in ranks]):
        assert (importance(values, ranks) or 0.0) < 0.1
    assert (importance(ranks, ranks) or 0.0) > 0.9  # numbers of which each is another one
    assert importance([str(rank) for rank in ranks], ranks) is None
    assert importance(["x"] * 200, ranks) is None


def test_runs_of_a_sweep_are_compared_by_what_differs(tmp_path: Path) -> None:
    runs = []
    for place, lr in enumerate((1e-4, 1e-3, 1e-2, 1e-4, 1e-3, 1e-2)):
        settings = {
            "name": setting(f"r{place}"),
            "optimizer.lr": setting(lr),
            "schedule.warmup": setting(lr, "derived from optimizer.lr", "derived"),
            "seed": setting(place % 2),
        }
        loss = math.nan if lr == 1e-2 else 1 / lr + place
        rows = [train_row(1, 9.0), train_row(2, loss)]
        runs.append(read_run(write_run(tmp_path / str(place), rows, settings), str(place)))
    sweep = document(runs, "sweep")["sweep"]
    assert sweep["objective"] == "train.mean_loss"
    assert [knob["path"] for knob in sweep["knobs"]] == ["optimizer.lr", "seed"]
    assert sweep["knobs"][0]["importance"] > 0.8 > 0.1 > sweep["knobs"][1]["importance"]
    assert sweep["values"][2] is None and sweep["not_finite"][2]
    best = document(runs, "sweep", RunObjective("train.loss", "max", minimize=False))["sweep"]
    assert best["objective"] == "train.loss.max" and not best["minimize"]
    assert document(runs[:2], "few")["sweep"] is None
