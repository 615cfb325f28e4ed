"""Recomputation and offload change no weight: whole runs, to the last bit."""

from pathlib import Path

import pytest
from torch import Tensor

from setpoint.train.config import Job
from setpoint.train.run import train

from ..memory.spared import spared_device
from ..support.tensors import same_tensors
from .small import events, small_job

BASE = (
    "duration=4 steps", "schedule=constant", "model.layers=2", "model.dropout=0.1",
    "model.moe={experts=4, router={type=sigmoid_top_k}}", "precision.compute=bf16",
    "evaluation.every=2 steps", "tracking.every=1 steps",
)  # fmt: skip
BELOW = "memory.activation_checkpointing"
ALL = (f"{BELOW}=full", "memory.activation_offload={limit=4 KiB, smallest=0}")
WAYS: dict[str, tuple[str, ...]] = {
    "reentrant parts": (f"{BELOW}={{type=parts, reentrant=true}}",),
    "all": ALL,
}


def learned(job: Job, path: Path) -> dict[str, Tensor]:
    with spared_device():
        components = train(job, directory=path).components
    return {name: tensor.clone() for name, tensor in components.model.state_dict().items()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    folder = tmp_path_factory.mktemp("plain")
    return learned(small_job(folder, *BASE), folder / "run")


@pytest.mark.parametrize("name", WAYS)
def test_a_run_learns_the_same(name: str, tmp_path: Path, plain: dict[str, Tensor]) -> None:
    assert same_tensors(learned(small_job(tmp_path, *BASE, *WAYS[name]), tmp_path / "run"), plain)


def test_a_run_goes_on_with_other_memory(tmp_path: Path, plain: dict[str, Tensor]) -> None:
    path = tmp_path / "run"
    learned(small_job(tmp_path, *BASE, *ALL, "duration=2 steps"), path)
    assert same_tensors(learned(small_job(tmp_path, *BASE), path), plain)
    assert len(events(path, "resume")) == 1


@pytest.mark.slow
def test_compiled_layers_stay_one_graph(tmp_path: Path) -> None:
    flags = ("model.layers=3", "duration=2 steps", "evaluation=null", "compile.backend=aot_eager")
    compiled = learned(small_job(tmp_path, *flags), tmp_path / "plain")
    path = tmp_path / "run"
    assert same_tensors(learned(small_job(tmp_path, *flags, *ALL), path), compiled)
    (report,) = events(path, "compile")
    assert (report["graphs"], report["recompilations"], report["fallbacks"]) == (1, [], [])
