"""Metrics by path."""

import math

import pytest

from setpoint.sweep.run_metrics import MetricPath, RunMetrics

from ..support.snapshots import refused

ROWS = [
    {"kind": "train", "step": 1, "loss": 3.0, "lr": 0.1, "mfu": None},
    {"kind": "train", "step": 2, "loss": 1.0, "lr": 0.2, "mfu": None},
    {"kind": "evaluation", "step": 2, "held_out_loss": 2.5, "done": True},
    {"kind": "train", "step": 3, "loss": 2.0, "lr": 0.3, "mfu": None},
]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("train.loss", 2.0), ("train.loss.min", 1.0), ("train.loss.mean", 2.0), ("loss", 2.0),
        ("step", 3), ("train.mfu", None), ("evaluation.done", None), ("val.loss", 2.5),
        ("validation.held_out_loss.min", 2.5),
    ],
)  # fmt: skip
def test_values_are_found_by_path(path: str, value: float | None) -> None:
    assert RunMetrics(ROWS).value(MetricPath.parse(path)) == value


def test_numbers_that_are_none() -> None:
    metrics = RunMetrics([{"kind": "train", "step": n, "loss": x} for n, x in enumerate(NUMBERS)])
    assert metrics.value(MetricPath.parse("loss.min")) == -math.inf
    assert metrics.value(MetricPath.parse("loss.max")) == 1.0
    assert math.isnan(metrics.value(MetricPath.parse("loss")) or 0)
    only = RunMetrics([{"kind": "train", "step": 1, "loss": math.nan}])
    assert math.isnan(only.value(MetricPath.parse("loss.min")) or 0)


NUMBERS = [1.0, -math.inf, math.nan]


@pytest.mark.parametrize("path", ["", "a..b", "a.b.c", "a.b.c.min", ".min"])
def test_unknown_paths_are_refused(path: str) -> None:
    with refused():
        MetricPath.parse(path)


def test_curves_columns_and_last_values() -> None:
    metrics = RunMetrics(ROWS)
    assert metrics.curve(MetricPath.parse("train.loss")) == [(1, 3.0), (2, 1.0), (3, 2.0)]
    assert metrics.columns() == ["train.loss", "train.lr", "evaluation.held_out_loss"]
    assert metrics.last()["step"] == 3 and metrics.last()["train.lr"] == 0.3
