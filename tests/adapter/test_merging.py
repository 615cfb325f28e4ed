"""ReLoRA: the function after a merge, the state of the optimizer, and runs that resume."""

from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.adapter.targets import CHILD
from setpoint.checkpoint.folder import list_checkpoints
from setpoint.checkpoint.loading import load_directory
from setpoint.resilience.signals import StopRequest
from setpoint.shapes.placed import as_placed
from setpoint.train.build.adapter import merge_adapters
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.loop import Loop
from setpoint.train.position import Position
from setpoint.train.run import train

from ..train.small import small_job

FLAGS = ("evaluation=null", "schedule=constant", "model.moe.experts=2", "model.dropout=0")
ADAPTER = "adapter={{type: {}, rank: 2, targets: [layers, embedding], train: [norm], {}}}"


def job_of(folder: Path, variant: str, *flags: str, keeps: str = "drop") -> Job:
    merge = f"merge: {{every: 3 steps, optimizer_state: {keeps}, rewarmup: 2 steps}}"
    return small_job(folder, *FLAGS, ADAPTER.format(variant, merge), *flags)


@pytest.mark.parametrize("variant", ["relora", "dora"])
def test_a_merge_changes_weights_and_no_function(tmp_path: Path, variant: str) -> None:
    job = job_of(tmp_path, variant, "duration=2 steps")
    components = build_components(job)
    Loop(job, components, [], StopRequest(), Position()).run()
    model, tokens = components.model.eval(), torch.arange(14)[None]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        expected = model(tokens)
        merge_adapters(components.model, components.weights, components.optimizer, 7, 3)
        torch.testing.assert_close(model(tokens), expected, rtol=1e-5, atol=1e-5)
    for name, weight in model.named_parameters():
        if name.endswith((f"{CHILD}.b", ".gate.b")) and "embedding" not in name:
            assert not weight.any(), name
        elif name.endswith((".a", "query.weight", "up.weight")) and "embedding" not in name:
            assert not torch.equal(weight, before[name]), name


@pytest.mark.parametrize("keeps", ["drop", "keep"])
def test_the_state_of_the_adapter_goes_or_stays(tmp_path: Path, keeps: str) -> None:
    job = job_of(tmp_path, "relora", "duration=2 steps", keeps=keeps)
    components = build_components(job)
    Loop(job, components, [], StopRequest(), Position()).run()
    held = dict(components.weights.named_parameters())
    trained = {name for name, each in held.items() if each.requires_grad}
    assert {name for name in trained if held[name] in components.optimizer.state} == trained
    assert job.adapter is not None and job.adapter.merge is not None
    merge_adapters(
        components.model,
        components.weights,
        components.optimizer,
        7,
        3,
        job.adapter.merge.optimizer_state,
    )
    left = {name for name in trained if held[name] in components.optimizer.state}
    own = {name for name in trained if f".{CHILD}." in name}
    # What else is trained keeps its state in any case.
    assert left == (trained if keeps == "keep" else trained - own) and trained - own


def test_merges_come_at_multiples_of_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merges: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        "setpoint.train.build.adapter.merge_adapters", lambda *given: merges.append(given[-2:])
    )
    job = job_of(tmp_path, "relora", "duration=7 steps")
    Loop(job, build_components(job), [], StopRequest(), Position()).run()
    assert merges == [(3, "drop"), (6, "drop")]


def test_a_run_resumes_bit_for_bit_around_a_merge(tmp_path: Path) -> None:
    def weights(run: Path) -> dict[str, bytes]:
        last = list(list_checkpoints(run / "checkpoints").values())[-1]
        held = load_directory(last).tensors["model"]
        return {
            name: as_placed(each, torch.empty(0)).numpy().tobytes() for name, each in held.items()
        }

    adapter = ("adapter.b_std=0.1", "adapter.dropout=0.1")
    train(job_of(tmp_path, "dora", "duration=7 steps", *adapter), directory=tmp_path / "whole")
    for steps in (3, 7):
        job = job_of(tmp_path, "dora", f"duration={steps} steps", *adapter)
        train(job, directory=tmp_path / "cut")
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
