"""Inference on several ranks: each has a part, and results are those of one process."""

import pytest
import torch

from setpoint.config import ConfigError
from setpoint.config.composition import compose
from setpoint.infer.config import OF_TRAINING, Inference
from setpoint.infer.distributed import ModelRunner
from setpoint.parallel.hangs import HangWatch

from ..support.forks import forked
from ..support.snapshots import refused
from .small import small_model

GIVEN = {
    "parallel.engine": "deepspeed", "parallel.bucket_size": "9", "parallel.torchft": "{}",
    "parallel.init_device": "cpu", "parallel.async_tensor_parallel": "true",
    "parallel.pipelining.schedule": "gpipe", "parallel.pipelining.stages_per_rank": "2",
    "parallel.sharding.accumulation": "unsharded", "parallel.sharding.backward_prefetch": "2",
}  # fmt: skip


def test_two_ranks() -> None:
    forked("tests.infer.inference_ranks", "2")


@pytest.mark.slow
def test_four_ranks() -> None:
    forked("tests.infer.inference_ranks", "4")


def composed(*flags: str) -> Inference:
    return compose(
        Inference, flags=["weights.path=none", "parallel.world_size=4", *flags]
    ).resolve()


def test_fields_of_parallel_that_apply_only_to_training_are_refused() -> None:
    assert set(GIVEN) == set(OF_TRAINING)
    prompts = ('generation.prompts=["a"]', "parallel.tensor=2")
    for flags in (
        *(("evaluation.sequences=1", f"{path}={value}") for path, value in GIVEN.items()),
        (*prompts, "parallel.sequence_parallel=true"),
        (*prompts, "parallel.ring=2"),
        ("export.path=hf", "parallel.step_timeout=9"),
    ):
        with refused(ConfigError):
            composed(*flags)


def test_how_long_ranks_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in training, where a pass stands for a step; the first one may compile."""
    waits: list[float] = []
    watch = HangWatch(0, 50.0, 3.0)
    monkeypatch.setattr(watch, "expect", waits.append)
    monkeypatch.setattr("setpoint.parallel.hangs._active", watch)
    runner = ModelRunner(small_model())
    for _ in range(2):
        runner(torch.zeros(1, 2, dtype=torch.int64))
    assert waits == [50.0, 50.0, 3.0, 50.0]


def test_the_batch_of_all_ranks() -> None:
    task = "evaluation.sequences=1"
    for flag, sizes in (("parallel.tensor=2", (16, 8)), ("batch.global_size=12", (12, 3))):
        batch = composed(task, flag).batch
        assert (batch.global_size, batch.micro_size) == sizes
    for flags in (("batch.global_size=6",), ("batch.global_size=8", "batch.micro_size=4")):
        with refused(ConfigError):
            composed(task, *flags)
