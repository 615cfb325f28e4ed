"""A job that this machine's memory cannot hold is refused before the kernel would kill it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from setpoint.config import ConfigError
from setpoint.config.resolving.checks import verify
from setpoint.memory import host_memory
from setpoint.plan.this_machine import memory_problems
from setpoint.train.config import Job
from setpoint.train.run import train

from ..support.snapshots import compare_problems, refused
from ..train.small import small_job

MODEL = ("model.dim=2048", "model.layers=12", "model.heads=16")
ROWS = ("model.dim=64", "batch.micro_size=2048", "batch.sequence_length=1024")


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "machine_memory", lambda: 4 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def found(job: Job) -> list[str]:
    return [problem.path for problem in verify(job, ("files", "torch")).problems]


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_model_or_a_micro_batch_beyond_the_machine(tmp_path: Path, device: str) -> None:
    on = f"parallel.device={device}"
    assert found(small_job(tmp_path, *MODEL, on)) == ["model"]
    # SGD without momentum keeps no state, and bf16 halves the rest.
    sparing = ("optimizer=sgd", "optimizer.momentum=0", "precision={params=bf16, compute=bf16}")
    assert not found(small_job(tmp_path, *MODEL, *sparing, on))
    job = small_job(tmp_path, *ROWS, on)
    assert found(job) == ["batch.micro_size"]
    spared = ("memory.activation_checkpointing=full", "loss=chunked_cross_entropy")
    assert not found(small_job(tmp_path, *ROWS, *spared, on))
    with refused(ConfigError):
        raise ConfigError(verify(job, ("files", "torch")).problems)


def test_training_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with refused(ConfigError):
        train(small_job(tmp_path, *MODEL), directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_gpu_has_a_memory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for memory, paths in ((80, []), (4, ["model"])):
        gpu = SimpleNamespace(total_memory=memory * 2**30)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, gpu=gpu: gpu)
        problems = memory_problems(small_job(tmp_path, *MODEL))
        assert [problem.path for problem in problems] == paths
    assert not list(memory_problems(small_job(tmp_path, *ROWS)))  # its kernels may hold less


def test_ranks_that_divide_a_model_hold_a_part_each(tmp_path: Path) -> None:
    job = small_job(tmp_path, *MODEL, "parallel.world_size=2", "parallel.replicate=2")
    compare_problems(memory_problems(job))
    sharded = small_job(tmp_path, *MODEL, "parallel.world_size=8", "parallel.shard=8")
    assert not list(memory_problems(sharded))
