"""Training on quantized bases: what is learned, held and resumed, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from setpoint.adapter.config import FP8, NF4, AdapterConfig, QLoRA
from setpoint.adapter.targets import adapter_problems
from setpoint.checkpoint.folder import list_checkpoints
from setpoint.checkpoint.loading import load_directory
from setpoint.config import resolve, verify
from setpoint.infer.inference import infer
from setpoint.infer.loaded_model import add_adapter
from setpoint.infer.tasks import ExportTask
from setpoint.model.pretrained.load import load_model, load_pretrained
from setpoint.model.pretrained.locate import Place
from setpoint.plan.memory import update_memory
from setpoint.plan.topology import Topology
from setpoint.plan.workload import Workload
from setpoint.resilience.signals import StopRequest
from setpoint.shapes.parameter import Parameter
from setpoint.train.build.adapter import merge_adapters
from setpoint.train.build.components import Components, build_components
from setpoint.train.loop import Loop
from setpoint.train.position import Position
from setpoint.train.run import train
from tests.support.tensors import read

from ..infer.small import inference
from ..support.snapshots import refused
from ..train.small import assert_same_run, small_job

FLAGS = ("evaluation=null", "schedule=constant", "model.dropout=0", "model.layers=2")
LORA = "adapter={type: lora, rank: 4}"
QUANTIZED = "adapter={{type: qlora, rank: 4, quantize: {{type: {}, group_size: {}}}}}"


def stepped(folder: Path, *flags: str) -> tuple[Components, float]:
    """The parts of a job after its steps, and the loss of the last one."""
    job = small_job(folder, *FLAGS, *flags)
    components = build_components(job)
    loop = Loop(job, components, [], StopRequest(), Position())
    loss = 0.0
    while loop.position.step < job.duration.limits[0].count:
        loss = loop.step().loss
    return components, loss


def test_a_quantized_base_learns_what_a_dense_one_does(tmp_path: Path) -> None:
    _, dense = stepped(tmp_path, LORA, "duration=12 steps")
    _, found = stepped(tmp_path, QUANTIZED.format("nf4", 16), "duration=12 steps")
    assert found == pytest.approx(dense, rel=0.02)
    assert dense < 4.5  # from 5.7


@pytest.mark.parametrize("experts", [0, 4])
def test_bytes_are_those_that_the_report_says(tmp_path: Path, experts: int) -> None:
    flags = (QUANTIZED.format("nf4", 16), *([f"model.moe.experts={experts}"] * bool(experts)))
    components, _ = stepped(tmp_path, *flags, "duration=2 steps")
    report = components.adapter
    assert report is not None
    weights = list(components.model.parameters())
    frozen = [each for each in weights if not each.requires_grad]
    trained = [each for each in weights if each.requires_grad]
    assert sum(each.nbytes for each in frozen) == report.frozen_bytes
    assert sum(each.nbytes for each in trained) == report.trained_bytes == 4 * report.adapter
    assert all(each.grad is None for each in frozen)
    job = small_job(tmp_path, *FLAGS, *flags)
    planned = update_memory(Workload.of(job, 257), Topology.of(job))
    assert planned.weights == report.frozen_bytes + report.trained_bytes
    assert planned.gradients == report.trained_bytes
    state = [v for of in components.optimizer.state.values() for v in of.values() if v.ndim]
    assert sum(each.nbytes for each in state) == 2 * report.trained_bytes
    # Codes of half a byte, scales of one for 16 weights, and two in fp32 for each matrix.
    matrices = 2 * (4 + 3 * max(1, experts))
    assert report.quantized_bytes == report.quantized * 9 // 16 + matrices * 8


def test_a_run_resumes_bit_for_bit_with_noise_and_merges(tmp_path: Path) -> None:
    adapter = QUANTIZED.format("nvfp4", 16)
    noise = "adapter.quantize.noise={final_alpha: 0.5, decay_steps: 4}"
    saving = ("checkpoint.every=2 steps", "checkpoint.keep=1")
    flags = (*FLAGS, adapter, noise, "adapter.merge.every=3 steps", *saving)
    whole = train(small_job(tmp_path / "whole", *flags, "duration=5 steps")).directory
    train(small_job(tmp_path / "parts", *flags, "duration=2 steps"))
    again = train(small_job(tmp_path / "parts", *flags, "duration=5 steps")).directory
    assert_same_run(again, whole)

    # What generates and exports reads the parts as they were saved, and noise is for training.
    (saved,) = list_checkpoints(whole / "checkpoints").values()
    job = small_job(tmp_path / "whole", *flags, "duration=5 steps")

    def prepare(model: nn.Module) -> None:
        assert job.adapter is not None
        add_adapter(job.adapter, job.model, model)

    model = load_model(
        Place("", saved, True), job.model, 257, device="cpu", dtype=torch.float32, prepare=prepare
    )
    held, expected = model.state_dict(), read(load_directory(saved).tensors["model"])
    assert held.keys() == expected.keys()
    assert all(torch.equal(held[name], each) for name, each in expected.items())


def test_a_merge_quantizes_the_base_again(tmp_path: Path) -> None:
    components, _ = stepped(tmp_path, QUANTIZED.format("nvfp4", 16), "duration=4 steps")
    module: Any = components.model.get_submodule("layers.0.attention.query")
    merged, codes = module.adapted_weight().detach(), module.quantized.codes.clone()
    scale = module.quantized.scale.item()
    merge_adapters(components.model, components.weights, components.optimizer, 7, 3)
    assert not module.adapter.b.any() and not torch.equal(module.quantized.codes, codes)
    assert (module.weight - merged).norm() < 0.12 * merged.norm()
    new = merged.abs().max().item() / (6 * 448)
    assert module.quantized.scale.item() == pytest.approx(0.9 * scale + 0.1 * new)


@pytest.mark.parametrize(
    ("config", "path", "said"),
    [
        (
            QLoRA(train=("query",), targets=("key",)),
            "train.0",
            "a quantized weight has no gradient",
        ),
        (QLoRA(quantize=NF4(group_size=48)), "quantize.group_size", "do not divide the 64 x 64"),
        (QLoRA(quantize=FP8()), "quantize.group_size", "blocks of 128 x 128 do not divide"),
        (QLoRA(quantize=NF4(exclude=("nothing",))), "quantize.exclude.0", "matches none of the 2"),
        (QLoRA(quantize=NF4(exclude=("layers",))), "quantize.exclude", "leaves no linear layer"),
        (
            QLoRA(quantize=NF4(backend="bitsandbytes", group_size=16)),
            "quantize.group_size",
            "bitsandbytes has no blocks of 16",
        ),
    ],
)
def test_refused(config: AdapterConfig, path: str, said: str) -> None:
    parameters = [
        Parameter("layers.0.query.weight", (64, 64), "matrix"),
        Parameter("layers.0.key.weight", (32, 64), "matrix"),
        Parameter("output.weight", (99, 64), "output"),
    ]
    found = {problem.path: problem for problem in adapter_problems(resolve(config), parameters)}
    assert said in found[path].message
    if path == "quantize.group_size":
        assert found[path].valid


@pytest.mark.parametrize("adapter", [LORA, QUANTIZED.format("nf4", 16)], ids=["lora", "qlora"])
def test_a_run_with_an_adapter_is_no_start_before_it_is_merged(
    tmp_path: Path, adapter: str
) -> None:
    run = train(small_job(tmp_path, *FLAGS, adapter, "duration=1 steps")).directory
    (problem,) = verify(small_job(tmp_path, *FLAGS, f"model.pretrained={run}"), ("files",)).problems
    assert problem.path == "model.pretrained" and "has an adapter of type" in problem.message
    with refused():
        load_pretrained(run)
    infer(inference(run, export=ExportTask(path=tmp_path / "merged")))
    job = small_job(tmp_path, *FLAGS, adapter, f"model.pretrained={tmp_path / 'merged'}")
    assert build_components(job).pretrained is not None
