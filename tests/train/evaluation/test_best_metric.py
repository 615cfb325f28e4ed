"""What counts as a gain, and when there has been none for too long."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from transformers import (
    EarlyStoppingCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from setpoint.shapes.scoring import Score
from setpoint.train.build.components import build_components
from setpoint.train.evaluation.scores import (
    BestMetric,
    best_metric_of,
    measure_of,
    value_of,
)

from ..small import small_job

STOP = "evaluation.early_stopping.patience"


def ends_at(values: list[float], patience: int, gain: float, tmp_path: Path, *flags: str) -> int:
    """After how many evaluations a run ends; 0: it does not."""
    flags = (f"{STOP}={patience}", f"evaluation.early_stopping.min_delta={gain}", *flags)
    section, standing = small_job(tmp_path, *flags).evaluation, BestMetric()
    assert section is not None
    for number, value in enumerate(values, 1):
        score = Score(value, value, value, 1, value)
        standing.observe(value_of(section, {"held_out": score}), gain)
        if standing.stop_reason(section):
            return number
    return 0


def defined(values: list[float], patience: int, gain: float) -> int:
    """The definition: the last `patience` values are no gain over the best of those before."""
    for number in range(patience + 1, len(values) + 1):
        best = values[0]
        since = 0
        for value in values[1:number]:
            since = 0 if value < best - gain else since + 1
            best = value if since == 0 else best
        if since >= patience:
            return number
    return 0


def test_an_equal_value_and_the_least_gain_itself_are_no_gain() -> None:
    metric = BestMetric()
    for value, gain in ((1.0, 0.0), (1.0, 0.0), (0.5, 0.5)):
        metric.observe(value, gain)
    assert (metric.best, metric.evals_without_gain) == (1.0, 2)
    metric.observe(0.25, 0.5)
    assert (metric.best, metric.evals_without_gain) == (0.25, 0)


def of_transformers(values: list[float], patience: int, tmp_path: Path, greater: bool) -> int:
    """What EarlyStoppingCallback of transformers does."""
    callback = EarlyStoppingCallback(early_stopping_patience=patience)
    given = TrainingArguments(
        output_dir=str(tmp_path), metric_for_best_model="loss", greater_is_better=greater,
        eval_strategy="steps", eval_steps=1, load_best_model_at_end=True, save_strategy="steps",
        save_steps=1, report_to=[], use_cpu=True,
    )  # fmt: skip
    state, control = TrainerState(), TrainerControl()
    for number, value in enumerate(values, 1):
        callback.on_evaluate(given, state, control, {"eval_loss": value})
        if control.should_training_stop:
            return number
        better = max if greater else min
        known = state.best_metric
        state.best_metric = value if known is None else better(known, value)
    return 0


@pytest.mark.parametrize("patience", [1, 2, 4])
@pytest.mark.parametrize("gain", [0.0, 0.05])
def test_equal_to_the_definition(tmp_path: Path, patience: int, gain: float) -> None:
    for seed in range(12):
        values = (2 + np.random.default_rng(seed).normal(size=25).cumsum() / 20).tolist()
        expected = defined(values, patience, gain)
        assert ends_at(values, patience, gain, tmp_path) == expected
        negated = [-value for value in values]
        flags = ("evaluation.best.direction=max",)
        assert ends_at(negated, patience, gain, tmp_path, *flags) == expected


@pytest.mark.parametrize("greater", [False, True])
def test_equal_to_transformers(tmp_path: Path, greater: bool) -> None:
    flags = ("evaluation.best.metric=accuracy", "evaluation.accuracy=true") if greater else ()
    ends = set[int]()
    for seed in range(12):
        values = np.random.default_rng(seed).normal(size=20).tolist()
        expected = of_transformers(values, 4, tmp_path, greater)
        assert ends_at(values, 4, 0.0, tmp_path, *flags) == expected
        ends.add(expected)
    assert len(ends) > 3


def test_what_is_no_number_is_no_gain(tmp_path: Path) -> None:
    assert ends_at([math.nan, 2.0, math.nan, math.nan], 2, 0.0, tmp_path) == 4
    assert ends_at([math.nan, math.nan], 2, 0.0, tmp_path) == 2
    assert ends_at([math.inf, math.inf, 3.0, 2.0], 2, 0.0, tmp_path) == 0
    standing = BestMetric()
    standing.observe(math.nan)
    section = small_job(tmp_path, f"{STOP}=1").evaluation
    assert str(standing.stop_reason(section)).endswith("for 1 evaluations; it was always NaN")


def test_in_words(tmp_path: Path) -> None:
    flags = ("evaluation.best.metric=bits_per_byte", "evaluation.early_stopping.min_delta=0.01")
    section = small_job(tmp_path, f"{STOP}=3", *flags).evaluation
    assert BestMetric({}, 9, 2.5, 3).stop_reason(section) == (
        "bits per byte on held_out has not improved by more than 0.01 for 3 evaluations; the "
        "best was 2.5"
    )
    assert BestMetric({}, 9, 2.5, 2).stop_reason(section) is None
    assert BestMetric({}, 9, 2.5, 99).stop_reason(small_job(tmp_path).evaluation) is None
    assert BestMetric({}, 9, 2.5, 99).stop_reason(None) is None
    flags = ("evaluation.best.metric=accuracy", "evaluation.accuracy=true", f"{STOP}=1")
    assert BestMetric({}, 9, -0.25, 1).stop_reason(small_job(tmp_path, *flags).evaluation) == (
        "accuracy on held_out has not improved for 1 evaluations; the best was 0.25"
    )


OTHER = "evaluation.datasets=[{name=web, sources=[{type=random, documents=3, seed=SEED}]}]"
WEB = (OTHER.replace("SEED", "3"), "evaluation.best.data=web")
CHANGES = {
    "sequences": ((), ("evaluation.sequences=5",), ["sequences"]),
    "data": (WEB[:1], WEB, ["data", "sequences", "text"]),
    "metric": ((), ("evaluation.best.metric=perplexity",), ["metric"]),
    "direction": ((), ("evaluation.best.direction=max",), ["direction"]),
    "text": (WEB, (OTHER.replace("SEED", "4"), WEB[1]), ["text"]),
    "left out": ((), ("loss.ignore_index=33",), ["left_out"]),
    "weighed, not left out": ((), ("loss.token_weights={33: 2}",), []),
    "weighed with nothing": ((), ("loss.token_weights={33: 0}",), ["left_out"]),
    "left out another way": (("loss.ignore_index=33",), ("loss.token_weights={33: 0}",), []),
    "another set beside it": ((), WEB[:1], []),
    "how often": ((), ("evaluation.every=1 steps", f"{STOP}=2"), []),
}


@pytest.mark.parametrize("name", CHANGES)
def test_when_values_no_longer_compare(tmp_path: Path, name: str) -> None:
    before, after, expected = CHANGES[name]
    job, today = (small_job(tmp_path, *flags) for flags in (before, after))
    standing = BestMetric(measure_of(job, build_components(job)), 8, 2.5, 1)
    state = json.loads(json.dumps(standing.state_dict()))
    found = best_metric_of(today, build_components(today))
    found.load_state_dict(state)
    assert found.changed == expected
    if expected:
        assert (found.step, found.best, found.evals_without_gain) == (8, None, 0)
    else:
        assert found == standing


def test_without_an_evaluation_what_was_known_is_kept(tmp_path: Path) -> None:
    job = small_job(tmp_path)
    standing = BestMetric(measure_of(job, build_components(job)), 8, 2.5, 1)
    without = small_job(tmp_path, "evaluation=null")
    found = best_metric_of(without, build_components(without))
    found.load_state_dict(standing.state_dict())
    assert found == standing


def test_checkpoints_that_say_nothing(tmp_path: Path) -> None:
    job = small_job(tmp_path)
    found = best_metric_of(job, build_components(job))
    found.load_state_dict({})
    assert (found.step, found.best, found.evals_without_gain) == (-1, None, 0)
    assert found.changed == []


def test_the_end_names_the_value_of_the_best_checkpoint(tmp_path: Path) -> None:
    """Though it was better by less than `min_delta`, so that patience went on."""
    flags = ("evaluation.early_stopping.patience=3", "evaluation.early_stopping.min_delta=0.5")
    section = small_job(tmp_path, *flags).evaluation
    metric = BestMetric({"data": "held_out"})
    for value in (2.0, 1.75, 1.625, 1.875):
        metric.observe(value, 0.5)
    resumed = BestMetric({"data": "held_out"})
    resumed.load_state_dict(metric.state_dict())
    assert str(resumed.stop_reason(section)).endswith("for 3 evaluations; the best was 1.625")
