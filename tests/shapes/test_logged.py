"""Metrics of the user's code: reduced exactly, whatever the order and the ranks."""

import json
import math
import statistics
from random import Random
from typing import Any, cast

import numpy as np
import pytest
import torch

from setpoint.config import RunError
from setpoint.shapes.logged import REDUCTIONS, MetricLog, Reduce, log

from ..support.snapshots import refused

ORACLES: dict[Reduce, Any] = {
    "mean": statistics.mean,
    "sum": math.fsum,
    "min": min,
    "max": max,
    "last": lambda values: values[-1],
}


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_what_ranks_have_logged_is_one_number_however_it_is_divided(reduce: Reduce) -> None:
    random = Random(7)
    values = [random.choice([1e16, 1.0, -1e16, 1e-8]) * random.random() for _ in range(40)]
    alone = MetricLog()
    ranks = [MetricLog() for _ in range(4)]
    for step, value in enumerate(values, start=1):
        alone.begin(step)
        alone.add(reduce, {"x": value})
        rank = ranks[random.randrange(4)]
        rank.begin(step)
        rank.add(reduce, {"x": torch.tensor(value, dtype=torch.float64, requires_grad=True)})
        if step == 23:  # a checkpoint: the first rank takes all, and a resumed run reads it
            merge(ranks)
            saved = json.loads(json.dumps(ranks[0].state_dict()))
            ranks[0] = MetricLog()
            ranks[0].load_state_dict(saved)
    alone.settle()
    merge(ranks)
    expected = alone.take()["x"]
    assert ranks[0].take() == {"x": expected}
    assert expected == pytest.approx(ORACLES[reduce](values), rel=1e-15)
    assert not ranks[0].state_dict() and not ranks[1]


def merge(ranks: list[MetricLog]) -> None:
    for rank in ranks:
        rank.settle()
    totals = [(number, rank.totals) for number, rank in enumerate(ranks)]
    ranks[0].merge(totals)
    for rank in ranks[1:]:
        rank.take()


def test_ranks_that_compute_the_same_count_once() -> None:
    ranks = [MetricLog() for _ in range(4)]
    for rank in ranks[1:]:
        rank.add("sum", {"hits": cast("Any", np.int64(5))})
        rank.settle()
    main = ranks[0]
    main.merge([(number // 2, rank.totals) for number, rank in enumerate(ranks)])
    assert main.take() == {"hits": 10}
    ranks[1].add("sum", {"x": 1})
    ranks[2].add("max", {"x": 1})
    for rank in ranks:
        rank.settle()
    with refused(RunError):
        main.merge([(number, rank.totals) for number, rank in enumerate(ranks)])


def test_numbers_that_are_not_finite_are_not_hidden() -> None:
    metrics = MetricLog()
    for value in (1.0, math.nan, 2.0):
        for reduce in ("mean", "sum", "min", "max"):
            metrics.add(reduce, {reduce + "imum": value})
    metrics.add("mean", {"high": math.inf})
    metrics.add("sum", {"huge": 10**400})
    metrics.settle()
    found = metrics.take()
    assert found.pop("high") == math.inf and found.pop("huge") == 10**400
    assert len(found) == 4 and all(map(math.isnan, found.values()))


@pytest.mark.parametrize(
    ("name", "value", "reduce"),
    [
        ("mean_loss", 1.0, "mean"),
        ("grad_norm_x", 1.0, "mean"),
        ("a/b", 1.0, "mean"),
        ("x", 1.0, "median"),
        ("x", "one", "mean"),
        ("x", torch.ones(3), "mean"),
        ("x", 1j, "mean"),
    ],
)
def test_what_is_no_metric_is_refused_with_its_line(name: str, value: Any, reduce: Any) -> None:
    with refused(RunError):
        MetricLog().add(reduce, {name: value})


def test_nothing_is_logged_outside_of_a_step() -> None:
    log(x=1.0)
    metrics = MetricLog()
    with metrics:
        log(x=1.0)
    log(x=5.0)
    metrics.begin(2)
    with metrics:
        log(x=9.0)
    metrics.drop()  # the step is taken again
    metrics.settle()
    assert metrics.take() == {"x": 1.0}
