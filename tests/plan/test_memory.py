"""The memory of a rank by arithmetic: exact for what a run holds, and near a dry run's peak."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from setpoint.config import resolve
from setpoint.config.values.user_code import allow_imports
from setpoint.memory.usage import measure
from setpoint.optim.config import ImportedOptimizer, OptimizerConfig
from setpoint.plan.memory import RankMemory, kept_for_backward, rank_memory, update_memory
from setpoint.plan.topology import Topology
from setpoint.plan.workload import Workload
from setpoint.resilience.signals import StopRequest
from setpoint.train.build.components import Components, build_components
from setpoint.train.config import Job
from setpoint.train.evaluation.scores import evaluation_point
from setpoint.train.loop import Loop
from setpoint.train.position import Position

from ..support.variants import forget
from ..train.small import small_job

allow_imports(__name__)
BF16 = ("precision.params=bf16", "precision.compute=bf16")


class Sign(torch.optim.SGD):
    """An optimizer of a user's own."""

    class Config(OptimizerConfig, type="sign_of_a_test"):
        """Its section."""


forget(OptimizerConfig, __name__)

CASES: dict[str, tuple[str, ...]] = {
    "adamw": (),
    "amsgrad": ("optimizer.amsgrad=true",),
    "sgd": ("optimizer=sgd",),
    "sgd without momentum": ("optimizer=sgd", "optimizer.momentum=0"),
    "lion": ("optimizer=lion",),
    "lion in bf16": ("optimizer=lion", "precision.optimizer_state=bf16"),
    "muon": ("optimizer=muon",),
    "muon, some by adamw": ("optimizer=muon", "optimizer.adamw_patterns=[attention]"),
    "muon in bf16": ("optimizer=muon", "precision.optimizer_state=bf16"),
    "schedule free": ("optimizer=schedule_free_adamw", "schedule=constant"),
    "schedule free with masters": (
        "optimizer=schedule_free_adamw", "schedule=constant", *BF16, "precision.master=fp32"
    ),
    "any precision": ("optimizer=anyprecision_adamw", "precision.optimizer_state=bf16"),
    "adafactor": ("optimizer=adafactor",),
    "pure bf16": BF16,
    "masters": (*BF16, "precision.master=fp32"),
    "gradients in fp32": (*BF16, "precision.reduce=fp32"),
    "experts": ("model.moe.experts=4", "model.moe.router=sigmoid_top_k", "optimizer=adafactor"),
    "packed and unpacked": ("model.moe={experts=4, packed=false}", "optimizer=muon"),
    "layer norm": ("model.norm=layer_norm", "model.tie_embeddings=true", "model.qkv_bias=true"),
    "of transformers": (
        "model=huggingface", "model.config=gpt2", "model.overrides.n_layer=1",
        "model.overrides.n_embd=16", "model.overrides.n_head=2",
    ),
    "partly frozen": (
        "model=import", f"model.target={__name__}.PartlyFrozen", *BF16, "precision.master=fp32"
    ),
}  # fmt: skip
NO_LAYERS_OF_OURS = ("of transformers", "partly frozen")
NOT_MEASURED = (*NO_LAYERS_OF_OURS, "packed and unpacked")


class PartlyFrozen(nn.Module):
    """A table that stays what it is, and a layer above it that is trained."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, 8).requires_grad_(False)
        self.output = nn.Linear(8, vocab_size)

    def forward(self, tokens):
        return self.output(self.table(tokens))


@pytest.mark.parametrize("name", CASES)
def test_parts_are_what_they_are_in_a_run(name: str, tmp_path: Path) -> None:
    flags = CASES[name]
    if name == "of transformers":
        pytest.importorskip("transformers")
    without = ("dim", "layers", "heads", "dropout") if name in NO_LAYERS_OF_OURS else ()
    job = small_job(tmp_path, *flags, "evaluation=null", without=without)
    components = build_components(job)
    Loop(job, components, [], StopRequest(), Position()).step()
    held = dict(components.weights.named_parameters())
    found = measure(components.model, held, components.optimizer, torch.device("cpu"))
    workload = Workload.of(job, 257)
    plan = update_memory(workload, Topology.of(job))
    assert plan.weights == found.parameters
    assert plan.masters == found.masters
    assert plan.gradients == found.gradients
    assert plan.optimizer == found.optimizer_state
    assert bool(plan.unknown) == (name in NOT_MEASURED)
    assert workload.trained * workload.averaged == copied(components) <= plan.gradients


def copied(components: Components) -> int:
    """The bytes of the weights that are held a second time while the model is judged."""
    with evaluation_point(components) as kept:
        return sum(each.nbytes for each in kept.values())


def test_every_optimizer_is_compared(tmp_path: Path) -> None:
    """A new one would count as an optimizer without state."""
    compared = {type(small_job(tmp_path, *flags).optimizer) for flags in CASES.values()}
    assert {*OptimizerConfig.__setpoint__.variants.values()} - compared == {ImportedOptimizer}


def test_what_only_the_optimizer_knows(tmp_path: Path) -> None:
    job = small_job(tmp_path, "optimizer={type=import, target=torch.optim.Adam}")
    assert Workload.of(job, 257).unknown_state == "torch.optim.Adam"
    draft = job.evolve()
    draft.optimizer = Sign.Config()
    assert Workload.of(resolve(draft), 257).unknown_state == "sign_of_a_test"


def planned(job: Job) -> RankMemory:
    return rank_memory(Workload.of(job, 257), Topology.of(job))


def test_weights_on_the_host_are_not_on_the_device(tmp_path: Path) -> None:
    job = small_job(tmp_path)
    plain = planned(job)
    workload = Workload.of(job, 257)._replace(weights_on_host=True)
    offloaded = rank_memory(workload, Topology.of(job))
    assert offloaded.on_host == plain.weights + plain.masters + plain.optimizer
    assert plain.total - offloaded.total == offloaded.on_host


def test_embedding_noise_is_a_buffer_of_the_first_stage(tmp_path: Path) -> None:
    job = small_job(tmp_path, "model.embedding_noise=5", "evaluation=null")
    components = build_components(job)
    Loop(job, components, [], StopRequest(), Position()).step()
    assert components.embedding_noise is not None
    assert components.embedding_noise.values is not None
    assert planned(job).buffers == components.embedding_noise.values.nbytes
    workload, pipeline = Workload.of(job, 257), Topology(pipeline=2, micro_size=2)
    first, last = (rank_memory(workload, pipeline, rank) for rank in (0, 1))
    assert first.buffers > last.buffers == 0


def test_ranks_that_divide_matrices_hold_a_share_of_the_rows_of_experts(tmp_path: Path) -> None:
    job = small_job(tmp_path, "model.dim=64", "model.moe={experts: 4, top_k: 4, expert_dim: 256}")
    workload = Workload.of(job, 257)
    whole, share = (
        kept_for_backward(workload, Topology(tensor=2, expert=expert)) for expert in (1, 2)
    )
    assert share < 0.7 * whole


def test_no_torch_is_needed() -> None:
    code = (
        "import sys\n"
        "from setpoint.cli.main import main\n"
        "main(['check', 'tiny', '--world-size', '8', '--parallel.tensor', '2', '--plan'])\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "rank 0 of 8" in done.stdout
