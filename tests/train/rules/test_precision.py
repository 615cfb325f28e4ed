"""What number formats cannot do with the rest of a job is told before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from setpoint.config import ConfigError, SetpointError, resolve
from setpoint.config.resolving.checks import verify
from setpoint.parallel.config import Parallel
from setpoint.parallel.device import choose_device
from setpoint.train.build.components import build_components
from setpoint.train.rules.model import (
    float8_device_problems,
    idle_rounding,
    linear_layers,
)

from ...model.families import FAMILIES
from ...model.small import VOCAB, small_config
from ...support.snapshots import compare
from ..small import small_job

SHORT = ("precision.params=bf16", "precision.compute=bf16")
FLOAT8 = ("precision.compute=bf16", "precision.float8={}")
GPU = "parallel.device=cuda"
EXPERTS = ("precision.float8.recipe=rowwise", "precision.float8.experts=true")


def refused(folder: Path, *flags: str) -> str:
    with pytest.raises(ConfigError) as caught:
        small_job(folder, *flags)
    return str(caught.value).replace(str(folder), "FOLDER")


def paths(folder: Path, *flags: str) -> list[str]:
    try:
        small_job(folder, *flags)
    except ConfigError as error:
        return [problem.path for problem in error.problems]
    return []


def test_words(tmp_path: Path) -> None:
    cases = {
        "fp16 where the device is open": ("precision.compute=fp16",),
        "short weights in a long format": ("precision.params=bf16",),
        "a scale of nothing": ("precision.loss_scale.initial=2",),
        "a state that the optimizer cannot have": ("precision.optimizer_state=bf16",),
        "a state of nothing": (
            "optimizer=sgd", "optimizer.momentum=0", "precision.optimizer_state=fp32"),
        "a transfer that is no slip": ("parallel.pipelining.transfer=fp16",),
        "a state of somebody's": (
            "optimizer={type=import, target=torch.optim.SGD}", "precision.optimizer_state=fp32"),
        "rounding of nothing": ("optimizer=anyprecision_adamw", "optimizer.rounding=nearest"),
        "float8 without a GPU": FLOAT8,
        "float8 of fp32": (GPU, "precision.float8={}"),
        "float8 of odd sizes": (
            *FLOAT8, GPU, "model.ffn_dim=40", "batch.sequence_length=11",
            r'precision.float8.skip=["nothing", "^output$", "["]'),
        "float8 of the output": (*FLOAT8, GPU, "precision.float8.skip=[]"),
        "float8 gathered by nobody": (*FLOAT8, GPU, "precision.float8.gather=true"),
        "float8 gathered of fewer ranks": (*FLOAT8, GPU, "parallel.world_size=4",
            "parallel.shard=4", "parallel.reshard=2", "precision.float8.gather=true"),
        "float8 of other scales gathered": (*FLOAT8, GPU, "parallel.world_size=2",
            "parallel.shard=2", "precision.float8.recipe=rowwise", "precision.float8.gather=true"),
        "nvfp4 emulated": (*FLOAT8, "precision.float8={recipe: nvfp4, emulate: true}"),
        "experts without grouped products": (
            *FLOAT8, GPU, "precision.float8.experts=true", "model.moe={experts: 4}"),
        "experts that are none": (*FLOAT8, GPU, *EXPERTS),
        "experts in a loop": (
            *FLOAT8, GPU, *EXPERTS, "model.moe={experts: 4, implementation: loop, expert_dim: 40}"),
        "experts that skip leaves out": (
            *FLOAT8, GPU, *EXPERTS, "model.moe={experts: 4}",
            r'precision.float8.skip=["^output$", "experts"]'),
        "experts of transformers": (
            *FLOAT8, GPU, *EXPERTS, "model={type: huggingface, config: gpt2}"),
        "only small layers": (*FLOAT8, GPU, "precision.float8.skip_small=true"),
    }  # fmt: skip
    told = [f"# {name}\n{refused(tmp_path, *flags)}" for name, flags in cases.items()]
    compare("train/precision", "\n\n".join(told))


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_fp16_needs_a_gpu_that_is_asked_for(device: str, tmp_path: Path) -> None:
    flags = ("precision.compute=fp16", f"parallel.device={device}")
    assert paths(tmp_path, *flags) == ["precision.compute"]
    assert "hundreds of times slower" in refused(tmp_path, *flags)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_fp16_does_not_start_without_a_gpu(tmp_path: Path) -> None:
    job = small_job(tmp_path, "precision.compute=fp16", GPU)
    with pytest.raises(SetpointError, match="parallel.device = cuda: PyTorch sees no GPU"):
        build_components(job)
    with pytest.raises(SetpointError, match="sees no GPU"):
        choose_device(resolve(Parallel(device="cuda")))


def test_what_is_updated(tmp_path: Path) -> None:
    for flags, held in (
        ((), "fp32"), (SHORT, "bf16"), ((*SHORT, "precision.master=fp32"), "fp32"),
    ):  # fmt: skip
        assert small_job(tmp_path, *flags).precision.updated == held


def test_what_has_no_effect(tmp_path: Path) -> None:
    any_precision = "optimizer=anyprecision_adamw"
    assert idle_rounding(small_job(tmp_path, any_precision)) is not None
    for flags in (SHORT, ("precision.optimizer_state=bf16",)):
        assert idle_rounding(small_job(tmp_path, any_precision, *flags)) is None
    ranks = ("parallel.world_size=2", "parallel.shard=2")
    whole = "parallel.sharding.accumulation=unsharded"
    assert paths(tmp_path, whole) == ["parallel.sharding.accumulation"]
    assert paths(tmp_path, *ranks, whole, "batch.accumulation=1") == [whole.partition("=")[0]]
    assert paths(tmp_path, *SHORT, *ranks, "precision.gather=fp32") == ["precision.gather"]
    # A dtype that null stands for may be named.
    for named in (
        ("precision.reduce=fp32",),
        (*SHORT, "precision.reduce=bf16"),
        ("precision.optimizer_state=fp32", "optimizer=lion"),
        (*ranks, "precision.gather=fp32"),
        (*ranks, *SHORT, "precision.gather=bf16"),
    ):
        assert paths(tmp_path, *named) == []
    # Gradients of fp32 weights are rounded even where there is nothing to add.
    assert paths(tmp_path, "precision.reduce=bf16", "batch.accumulation=1") == []


def test_float8_where_all_fits(tmp_path: Path) -> None:
    assert paths(tmp_path, *FLOAT8, GPU) == []
    assert paths(tmp_path, *FLOAT8, GPU, "model.moe={experts=4, packed=false}") == []
    assert paths(tmp_path, *FLOAT8, "precision.float8.emulate=true") == []


@pytest.mark.parametrize("family", FAMILIES)
def test_the_linear_layers_are_those_of_the_model(family: str) -> None:
    changes = FAMILIES[family]
    for packed in (True, False) if changes.get("moe") else (True,):
        config = small_config(**changes)
        if not packed:
            config = small_config(**{**changes, "moe": changes["moe"].evolve(packed=False)})
        model = config.build(vocab_size=VOCAB)
        found = {
            name: (part.out_features, part.in_features)
            for name, part in model.named_modules()
            if isinstance(part, torch.nn.Linear)
        }
        known = linear_layers(config)
        assert {n: size for n, size in known.items() if n != "output"} == {
            n: size for n, size in found.items() if n != "output"
        }
        assert ("output" in known) == ("output" in found)


def test_float8_asks_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = small_job(tmp_path, *FLOAT8, GPU)
    assert list(float8_device_problems(job)) == []  # without a GPU that is what is told
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    pytest.importorskip("torchao")
    (problem,) = float8_device_problems(job)
    assert "compute capability 8.9 (Ada or Hopper) or more, and this NVIDIA A100 has 8.0" in str(
        problem.message
    )
    assert any(p.path == "precision.float8" for p in verify(job, {"torch"}).problems)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert list(float8_device_problems(job)) == []
