"""Inference on several ranks: each has a part, and results are those of one process."""

import pytest
import torch

from setpoint.config import ConfigError
from setpoint.config.composition import compose
from setpoint.infer.config import OF_TRAINING, Inference
from setpoint.infer.distributed import ModelRunner
from setpoint.parallel.hangs import HangWatch

from ..support.forks import forked
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


def refused(*flags: str) -> str:
    given = ("weights.path=none", "parallel.world_size=4", *flags)
    with pytest.raises(ConfigError) as error:
        compose(Inference, flags=given).resolve()
    return str(error.value)


def test_what_of_the_ranks_of_training_is_refused() -> None:
    assert set(GIVEN) == set(OF_TRAINING)
    for path, value in GIVEN.items():
        text = refused("evaluation.sequences=1", f"{path}={value}")
        assert path in text and "it applies only to training" in text
    prompts = ('generation.prompts=["a"]', "parallel.tensor=2")
    assert "rows may have any length" in refused(*prompts, "parallel.sequence_parallel=true")
    assert "grow token by token" in refused(*prompts, "parallel.ring=2")
    assert "no task runs the model" in refused("export.path=hf", "parallel.step_timeout=9")


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
    flags = ("weights.path=none", "evaluation.sequences=1", "parallel.world_size=4")
    batch = compose(Inference, flags=[*flags, "parallel.tensor=2"]).resolve().batch
    assert (batch.global_size, batch.micro_size) == (16, 8)
    batch = compose(Inference, flags=[*flags, "batch.global_size=12"]).resolve().batch
    assert (batch.global_size, batch.micro_size) == (12, 3)
    text = refused(*flags[1:], "batch.global_size=6")
    assert "cannot be divided into 4 equal parts" in text and "Valid: 4, 8" in text
    text = refused(*flags[1:], "batch.global_size=8", "batch.micro_size=4")
    assert "8 sequences are not 4 (micro) * 4 (copies of the model)" in text
