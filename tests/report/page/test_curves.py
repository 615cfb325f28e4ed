"""Curves keep their extremes; panels show every metric once."""

from __future__ import annotations

import json
import math
import random
from array import array
from pathlib import Path

from setpoint.report.page.content import document
from setpoint.report.page.html import html_of
from setpoint.report.page.panels import panels, thinned
from setpoint.report.page.run_data import Column, read_run

from .records import train_row, write_run


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
