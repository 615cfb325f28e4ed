"""The GPUs that the documentation names for each preset, against the plan of a rank."""

import re
from pathlib import Path

import pytest

import setpoint.presets  # noqa: F401 - registers them
from setpoint.config.composition import compose
from setpoint.config.layers.presets import presets
from setpoint.memory.config import CheckpointingConfig
from setpoint.plan.gpus import gpu_named
from setpoint.plan.memory import rank_memory
from setpoint.plan.topology import Topology
from setpoint.plan.workload import Workload
from setpoint.train.config import Job

PAGE = Path(__file__).parents[2] / "docs" / "presets.md"
ROW = re.compile(r"^\| `([\w-]+)` \|.*\| (\d+)(?: with `--([\w.]+) (\w+)`)? \|$", re.MULTILINE)
DOCUMENTED = {
    name: (size, path, value) for name, size, path, value in ROW.findall(PAGE.read_text())
}
SMALL = ("tiny", "answers", "-tiny")


def test_all_are_documented() -> None:
    ours = {n for n, each in presets.items() if each.__module__.startswith("setpoint.presets")}
    assert set(DOCUMENTED) == {name for name in ours if not name.endswith(SMALL)}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_preset_fits_the_gpus_that_are_documented(name: str) -> None:
    size, path, value = DOCUMENTED[name]
    flags = [f"parallel.world_size={size}", "parallel.device=cuda"]
    job = compose(Job, name, flags=[*flags, *([f"{path}={value}"] if path else [])]).resolve()
    memory = rank_memory(Workload.of(job), Topology.of(job))
    assert not memory.unknown
    assert memory.total <= gpu_named("h100")[0].usable
    assert job.loss.from_hidden and job.compile is not None and job.data.loader.workers
    assert isinstance(job.memory.activation_checkpointing, CheckpointingConfig)
