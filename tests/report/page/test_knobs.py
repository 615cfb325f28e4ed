"""Importance of fields: by hand, and where there is nothing to find."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from setpoint.report.page.content import document
from setpoint.report.page.panels import RunObjective, importance, ranked
from setpoint.report.page.run_data import read_run

from .records import setting, train_row, write_run


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
