"""The formula against what autograd saves."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from setpoint.train.build.activations import activations
from setpoint.train.build.components import build_components
from setpoint.train.config import Job

from ...memory.meter import Meter
from ..small import small_job

SIZES = (
    "model.dim=64", "model.layers=3", "model.heads=4", "model.ffn_dim=160", "model.dropout=0",
    "batch.sequence_length=32", "evaluation=null", "parallel.device=cpu",
)  # fmt: skip
MLA = "model.mla={kv_rank=24, query_rank=32, rope_head_dim=8, nope_head_dim=16, value_head_dim=16}"
BF16 = "precision.compute=bf16"
EXPERTS = "model.moe.experts=4"
BELOW = "memory.activation_checkpointing"
# What is set, and by how much the formula may miss.
CASES: dict[str, tuple[tuple[str, ...], float]] = {
    "plain": (("model.kv_heads=2",), 0.01),
    "tied": (("model.tie_embeddings=true",), 0.01),
    "bf16": ((BF16,), 0.01),
    "pure bf16": ((BF16, "precision.params=bf16", "model.norm=layer_norm"), 0.02),
    "dropout": (("model.dropout=0.1",), 0.02),
    "not gated": (("model.activation=gelu", "model.norm=layer_norm"), 0.01),
    "relu": (("model.activation=relu",), 0.01),
    "normed queries": (("model.qk_norm=true", "model.kv_heads=2"), 0.01),
    "norms behind": (("model.norm_placement=post",), 0.05),
    "norms around": (("model.norm_placement=both",), 0.01),
    "eager": (("model.attention_backend=eager",), 0.05),
    "soft caps": (("model.attention_soft_cap=5", "model.logit_soft_cap=5"), 0.05),
    "experts": ((EXPERTS,), 0.03),
    "experts in bf16": ((EXPERTS, BF16), 0.1),
    "unpacked": ((EXPERTS, "model.moe.packed=false"), 0.1),
    "shared": ((EXPERTS, "model.moe.shared_experts=1"), 0.05),
    "latent": ((MLA,), 0.1),
}  # fmt: skip
POLICIES: dict[str, tuple[tuple[str, ...], float]] = {
    "full": ((f"{BELOW}=full",), 0.01),
    "every second": ((f"{BELOW}=full", f"{BELOW}.every=2"), 0.01),
    "full in bf16": ((f"{BELOW}=full", BF16), 0.02),
    "attention": ((f"{BELOW}=parts",), 0.02),
    "both": ((f"{BELOW}=parts", f"{BELOW}.parts=[attention, feed_forward]"), 0.02),
}


def saved(job: Job) -> tuple[int, int]:
    """Bytes of all storages that are saved in a forward pass, and how many tokens there are."""
    parts = build_components(job)
    parts.model.train()
    fixed = {
        t.untyped_storage()._cdata for t in (*parts.model.parameters(), *parts.model.buffers())
    }
    found: dict[int, Any] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in fixed:
            found[storage._cdata] = storage
        return tensor

    batch = parts.feed.take().batches[0].to(parts.device)
    on = job.precision.compute == "bf16"
    with (
        saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=on),
    ):
        outcome = parts.objective(batch)
    assert outcome.result.total.requires_grad
    return sum(storage.nbytes() for storage in found.values()), batch.tokens


@pytest.mark.parametrize("name", CASES | POLICIES)
def test_the_formula_is_near_what_autograd_saves(name: str, tmp_path: Path) -> None:
    flags, bound = (CASES | POLICIES)[name]
    job = small_job(tmp_path, *SIZES, *flags)
    measured, tokens = saved(job)
    assert tokens == job.batch.micro_size * job.batch.sequence_length
    found = activations(job, job.model, 257)  # pyright: ignore[reportArgumentType]
    assert found.kept + found.logits == pytest.approx(measured, rel=bound)


def alive(job: Job) -> int:
    """Bytes that are alive behind a forward pass, with what checkpoints of operators hold."""
    parts = build_components(job)
    parts.model.train()
    batch = parts.feed.take().batches[0].to(parts.device)
    with Meter() as meter:
        outcome = parts.objective(batch)
        kept = meter.alive()
    assert outcome.result.total.requires_grad
    return kept


@pytest.mark.parametrize(
    "flags",
    [(), ("save=[matmul]",), ("save=[attention]",), ("matmul_every=2",), ("every=2",)],
    ids=str,
)
def test_operators_keep_their_results(flags: tuple[str, ...], tmp_path: Path) -> None:
    wanted = (f"{BELOW}=operators", *(f"{BELOW}.{flag}" for flag in flags))
    plain, again = small_job(tmp_path, *SIZES), small_job(tmp_path, *SIZES, *wanted)
    planned = [activations(job, job.model, 257).kept for job in (plain, again)]  # pyright: ignore[reportArgumentType]
    assert planned[0] - planned[1] == pytest.approx(alive(plain) - alive(again), rel=0.05)


def test_what_is_computed_again_is_a_layer_at_a_time(tmp_path: Path) -> None:
    found = {}
    for layers in (2, 4):
        for policy in ("null", "full"):
            flags = (*SIZES, f"model.layers={layers}", f"{BELOW}={policy}")
            job = small_job(tmp_path, *flags)
            found[layers, policy] = activations(job, job.model, 257)  # pyright: ignore[reportArgumentType]
    assert found[2, "null"].again == 0
    assert found[2, "full"].again == found[4, "full"].again > 0
    layer = (found[4, "null"].kept - found[2, "null"].kept) // 2
    entry = (found[4, "full"].kept - found[2, "full"].kept) // 2
    assert found[4, "full"].again == layer - entry


def test_ranks_that_divide_sequences_keep_a_part_each(tmp_path: Path) -> None:
    ring = ("parallel.world_size=2", "parallel.ring=2")
    whole, part = (
        activations(small_job(tmp_path, *SIZES, *flags), small_job(tmp_path, *SIZES).model, 257)  # pyright: ignore[reportArgumentType]
        for flags in ((), ring)
    )
    assert (part.kept, part.logits) == (whole.kept // 2, whole.logits // 2)


def test_chunks_of_logits(tmp_path: Path) -> None:
    sizes = []
    for chunk in (16, 32, 64):
        flags = ("loss=chunked_cross_entropy", f"loss.chunk_size={chunk}")
        job = small_job(tmp_path, *SIZES, *flags)
        sizes.append(activations(job, job.model, 257).logits)  # pyright: ignore[reportArgumentType]
    assert sizes[1] - sizes[0] == 3 * 4 * 16 * 257
    assert sizes[2] - sizes[1] == 3 * 4 * 32 * 257
