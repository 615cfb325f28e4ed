"""Training under autocast as CUDA has it: steps are taken, and dtypes are what kernels take."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from setpoint.model.attention.attention import AttentionContext
from setpoint.model.build import layers_of
from setpoint.train.build.components import Components, build_components
from setpoint.train.config import Job

from ..support.cuda_autocast import cuda_autocast, operators
from ..support.forks import forked
from .small import Steps, loop_of, small_job

BASE = ("duration=2 steps", "precision.compute=bf16", "evaluation=null", "model.qk_norm=true")
EXPERTS = (*BASE, "model.moe.experts=4", "model.moe.top_k=2")

JOBS: dict[str, tuple[str, ...]] = {
    "query and key norms": BASE,
    "eager attention, soft caps": (*BASE, "model.attention_soft_cap=5", "model.positions=learned"),
    "isolated documents": (*BASE, "data.packing.method=next_fit", "batch.sequence_length=512"),
    "latent attention": (
        "duration=2 steps", "precision.compute=bf16", "evaluation=null",
        "model.mla={kv_rank: 8, query_rank: 10, rope_head_dim: 4, nope_head_dim: 6, "
        "value_head_dim: 8}",
    ),
    "GELU, layer norms, biases": (
        *BASE, "model.activation=gelu_tanh", "model.norm=layer_norm", "model.ffn_bias=true",
        "model.norm_placement=both",
    ),
    "chunked loss": (*BASE, "loss=chunked_cross_entropy", "loss.chunk_size=7"),
    "z-loss, tied embeddings": (*BASE, "loss.z_loss=1e-3", "model.tie_embeddings=true"),
    "recomputed operators": (
        *BASE, "memory.activation_checkpointing={type: operators, save: [attention]}",
    ),
    "bf16 weights": (*BASE, "precision.params=bf16", "precision.master=fp32"),
    "low rank adapters": (*BASE, "adapter={type: lora, rank: 2}"),
    "experts grouped": (*EXPERTS, "model.moe.implementation=grouped"),
    "experts with all losses": (
        *EXPERTS, "model.moe.router=sigmoid_top_k", "model.moe.balance_loss=0.01",
        "model.moe.sequence_balance_loss=0.01", "model.moe.router_z_loss=1e-3",
        "model.moe.gradient_scale=true", "model.moe.capacity_factor=0.6",
    ),
}  # fmt: skip


@contextmanager
def observed(components: Components) -> Iterator[dict[str, set[torch.dtype]]]:
    """Dtypes at attention kernels, and of the inputs of layers, in recomputation too."""
    dtypes: dict[str, set[torch.dtype]] = defaultdict(set)
    attend = AttentionContext.attend

    def attending(self: AttentionContext, kind: str, *given: object) -> Tensor:
        backend = type(self.views[kind].backend)
        real = backend.attend

        def kernel(backend: object, *tensors: Tensor) -> Tensor:
            dtypes["attention"] |= {each.dtype for each in tensors[:3]}
            return real(backend, *tensors)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backend, "attend", kernel)
            return attend(self, kind, *given)

    def before(_: object, given: tuple[Tensor, ...]) -> None:
        dtypes["residual"].add(given[0].dtype)

    for _, layer in layers_of(components.model):
        layer.register_forward_pre_hook(before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AttentionContext, "attend", attending)
        yield dtypes


def trained(job: Job) -> tuple[list[float], dict[str, set[torch.dtype]]]:
    """Losses of a job's steps, and the dtypes seen in them."""
    components = build_components(job)
    seen = Steps()
    with observed(components) as dtypes:
        loop_of(job, seen, components=components).run()
    return [result.loss for result in seen.seen], dtypes


@pytest.mark.parametrize("name", JOBS)
def test_steps_and_dtypes(tmp_path: Path, name: str) -> None:
    job = small_job(tmp_path, *JOBS[name])
    with cuda_autocast():
        losses, dtypes = trained(job)
    assert dtypes["attention"] == {torch.bfloat16}
    residual = torch.bfloat16 if job.precision.params == "bf16" else torch.float32
    assert dtypes["residual"] == {residual}
    # CUDA's lists give more digits to sums and norms, and nothing else.
    plain, _ = trained(job)
    assert losses == pytest.approx(plain, abs=2e-2)


def test_lists_are_those_of_cuda() -> None:
    x = torch.ones(2, 3, dtype=torch.bfloat16)
    wide = operators("AT_FORALL_FP32")
    assert {"exp", "layer_norm", "pow.Tensor_Scalar"} <= set(wide) and "sum" not in wide
    with cuda_autocast(), torch.autocast("cpu", torch.bfloat16):
        # A dtype that is asked for is given, as in CUDA's fp32_set_opt_dtype.
        assert x.sum(1).dtype == x.square().dtype == torch.float32
        assert x.sum(1, dtype=x.dtype).dtype == (x * x).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert x.sum(1).dtype == x.square().dtype == torch.bfloat16


@pytest.mark.process
def test_two_ranks() -> None:
    forked("tests.train.cuda_autocast_ranks")
