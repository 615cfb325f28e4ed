"""Attention whose sequences several ranks divide: the same as that of one, forward and backward."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from setpoint.model.attention import blocks
from setpoint.model.attention.attention import attention_context, over_ranks
from setpoint.model.attention.backends import RowLayout, Scores, repeat_heads, visible
from setpoint.model.attention.choose_backend import make_backend
from setpoint.model.attention.key_value_cache import KeyValueCache
from setpoint.model.attention.over_ranks import causal_plan, masked_plan
from setpoint.shapes.batch import (
    IGNORE_INDEX,
    Batch,
    ContextGroups,
    Count,
    Lengths,
    SequenceParts,
    Split,
)

from ...support.ranks import run_on_ranks
from ...support.snapshots import refused
from ..small import small_config

CPU = torch.device("cpu")
B, S, H = 2, 48, 8
HEADS = {
    "one each": (8, 6, 6),
    "grouped": (2, 6, 6),
    "wide keys": (8, 6, 4),
    "wide values": (8, 4, 6),
}


class Formula:
    """softmax(scale * Q K^T) V, in the dtype of its inputs."""

    prepare_mask = staticmethod(visible)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, how: Scores
    ) -> Tensor:
        key, value = (repeat_heads(each, H // each.shape[2]) for each in (key, value))
        scores = torch.einsum("bshd,blhd->bhsl", query, key) * how.scale
        if how.soft_cap is not None:
            scores = torch.tanh(scores / how.soft_cap) * how.soft_cap
        weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
        return torch.einsum("bhsl,blhd->bshd", weights, value)


def layouts() -> dict[str, tuple[RowLayout, int | None]]:
    """All that restricts what a position sees."""
    plain = RowLayout(queries=S, keys=S, batch=B, device=torch.device("cpu"))
    documents = torch.arange(S).expand(B, S) // torch.tensor([[7], [19]])
    lengths = Lengths.of_places(None, documents)
    restarted = torch.cat((torch.arange(20), torch.arange(S - 20))).expand(B, S)
    anew = torch.arange(S).expand(B, S) % torch.tensor([[7], [19]])
    padded = torch.arange(S).expand(B, S).clone()
    padded[0, 30:] = -1
    padded[1, :5] = -1

    def other(**more: Any) -> RowLayout:
        return RowLayout(queries=S, keys=S, batch=B, device=torch.device("cpu"), **more)

    return {
        "causal": (plain, None),
        "window": (plain, 5),
        "wide window": (plain, 30),
        "documents": (other(documents=documents, lengths=lengths), None),
        "documents in a window": (other(documents=documents, positions=restarted, padded=True), 9),
        "lengths in a window": (other(documents=documents, lengths=lengths), 9),
        "chunks": (plain.chunked(7), None),
        "chunks of documents": (
            other(documents=documents, lengths=lengths, positions=anew).chunked(5),
            None,
        ),
        "padding": (other(positions=padded, padded=True), None),
        "padding in a window": (other(positions=padded, padded=True), 7),
    }


def attend_as_one(rank: int, ring: int, ulysses: int, split: Any) -> None:
    groups: dict[str, Any] = {"ring": None, "ulysses": None}
    for name, size, ranks in (
        ("ring", ring, [[u + ulysses * r for r in range(ring)] for u in range(ulysses)]),
        ("ulysses", ulysses, [[u + ulysses * r for u in range(ulysses)] for r in range(ring)]),
    ):
        for each in ranks:
            made = dist.new_group(each)
            if rank in each and size > 1:
                groups[name] = made
    parts = SequenceParts(ring, ulysses, rank // ulysses, rank % ulysses, split)
    context = ContextGroups(parts, **groups)
    for heads, (kv, size, value_size) in HEADS.items():
        generator = torch.Generator().manual_seed(1)
        sizes = ((H, size), (kv, size), (kv, value_size), (H, value_size))
        whole = [
            torch.randn(B, S, n, d, generator=generator, dtype=torch.float64) for n, d in sizes
        ]
        for name, (layout, window) in layouts().items():
            if heads != "grouped" and "window" in name and dist.get_world_size() == 2:
                continue  # windows do not depend on the sizes of heads
            kernels = [("sdpa", None), ("eager", None), ("eager", 1.5)]
            if layout.lengths is not None and ring > 1:
                kernels = [("sdpa", None), ("varlen", None)]
            # All kernels with one kind of heads.
            kernels = kernels if heads == "grouped" else kernels[:1]
            for kernel, cap in kernels:
                options = Scores(0.4, cap)
                expected = gradients(Formula(), whole, layout, window, options)
                own = [parts.take(each) for each in whole]
                # A ring computes blocks itself; the kernel of sequences is for GPUs.
                inner = make_backend("sdpa" if kernel == "varlen" else kernel)
                inner.name = kernel  # of which a ring takes the kernels
                found = gradients(over_ranks(inner, context), own, layout, window, options)
                for what, one, other in zip("oqkv", found, expected, strict=True):
                    torch.testing.assert_close(
                        one, parts.take(other), rtol=1e-9, atol=1e-10,
                        msg=lambda m, at=(heads, name, kernel, cap, what): f"{at}: {m}",
                    )  # fmt: skip


def gradients(
    backend: Any, tensors: list[Tensor], layout: RowLayout, window: int | None, options: Scores
) -> tuple[Tensor, ...]:
    *inputs, grad = (each.clone() for each in tensors)
    for each in inputs:
        each.requires_grad_()
    out = backend.attend(*inputs, backend.prepare_mask(layout, window), options)
    return (out.detach(), *torch.autograd.grad(out, inputs, grad))


EAGER = blocks.BlockScores(0.4, None, "eager")


def sequences_forward(x: blocks.Inputs) -> tuple[Tensor, Tensor]:
    """The flash kernels by their arguments, in plain mathematics."""
    mask = sequences_mask(x.query, x.key, x.mask)
    return blocks.attend_block(*x[:3], EAGER, blocks.BlockMask(visible=mask))


def sequences_backward(x: blocks.Inputs, grad: Tensor, out: Tensor, lse: Tensor) -> blocks.Grads:
    mask = sequences_mask(x.query, x.key, x.mask)
    return blocks.block_gradients(grad, *x[:3], out, lse, EAGER, blocks.BlockMask(visible=mask))


def sequences_mask(query: Tensor, key: Tensor, mask: blocks.BlockMask) -> Tensor:
    """As flash-attn aligns them: the last query of a sequence stands at its last key."""
    rows, queries, keys = query.shape[0], query.shape[2], key.shape[2]
    back = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    back = back.to(query.device)
    seen = torch.ones(rows, queries, keys, dtype=torch.bool, device=query.device)
    if mask.causal:
        seen = seen & (back >= 0)
    if mask.left >= 0:
        seen = seen & (back <= mask.left)
    if mask.starts is not None:
        assert queries == keys and mask.starts[-1] == rows * keys
        assert mask.starts.diff().max() <= mask.longest
        numbers = torch.arange(len(mask.starts) - 1, device=query.device)
        sequence = numbers.repeat_interleave(mask.starts.diff()).view(rows, keys)
        seen = seen & (sequence[:, :, None] == sequence[:, None])
    return seen.unsqueeze(1)


def attend_in(*shapes: tuple[int, int, Split]) -> None:
    """Compare each division: degrees of the ring and of Ulysses, and how sequences are split."""
    blocks.SEQUENCES = blocks._Kernel(sequences_forward, sequences_backward, repeats=False)
    for ring, ulysses, division in shapes:
        attend_as_one(dist.get_rank(), ring, ulysses, division)


def two_ranks(_: Path) -> None:
    attend_in((2, 1, "zigzag"), (2, 1, "contiguous"), (1, 2, "zigzag"))


def four_ranks(_: Path) -> None:
    attend_in((4, 1, "zigzag"), (4, 1, "contiguous"), (1, 4, "zigzag"))
    attend_in((2, 2, "zigzag"), (2, 2, "contiguous"))


def test_two_ranks_attend_as_one_does_in_fp64() -> None:
    run_on_ranks(2, two_ranks)


@pytest.mark.slow
def test_four_ranks_attend_as_one_does_in_fp64() -> None:
    run_on_ranks(4, four_ranks)


@pytest.mark.parametrize("split", ["zigzag", "contiguous"])
def test_the_parts_of_all_ranks_are_the_sequence(split: Split) -> None:
    places = torch.arange(24)[None]
    for ring, ulysses in ((2, 1), (3, 2), (1, 4)):
        ranks = [(r, u) for r in range(ring) for u in range(ulysses)]
        parts = [SequenceParts(ring, ulysses, *rank, split).take(places) for rank in ranks]
        assert sorted(torch.cat(parts, 1)[0].tolist()) == list(range(24))
        assert {part.shape for part in parts} == {(1, 24 // (ring * ulysses))}


def test_a_zigzag_gives_all_ranks_as_much_to_do() -> None:
    def work(split: Split) -> list[int]:
        return [
            sum(
                (block.queries.stop - block.queries.start)
                * (block.keys.stop - block.keys.start)
                // (1 + block.mask.causal)
                for blocks in causal_plan(SequenceParts(4, 1, rank, 0, split), 64)
                for block in blocks
            )
            for rank in range(4)
        ]

    assert len(set(work("zigzag"))) == 1
    assert work("contiguous")[0] < work("contiguous")[3]


def test_what_no_query_sees_is_not_computed() -> None:
    parts = SequenceParts(4, 1, 3, 0, "contiguous")

    def sources(window: int | None, **more: Any) -> list[int]:
        layout = RowLayout(queries=32, keys=32, batch=1, device=CPU, **more)
        plan = masked_plan(parts, layout, window)
        return [source for source in range(4) if plan[source]]

    assert sources(9) == [2, 3]
    assert sources(10) == [1, 2, 3]
    assert sources(None, documents=torch.arange(32)[None] // 16) == [2, 3]
    # What is seen whole needs no mask.
    layout = RowLayout(queries=32, keys=32, batch=1, device=CPU, documents=torch.zeros(1, 32))
    assert [block.mask.visible for block in masked_plan(parts, layout, None)[0]] == [None]


def test_rows_that_do_not_divide_are_padded() -> None:
    tokens = torch.arange(2 * 10).view(2, 10)
    batch = Batch(tokens, tokens + 1, 20, 20, 20, documents=torch.zeros(2, 10, dtype=torch.int64))
    parts = [SequenceParts(2, 1, rank, 0, "zigzag") for rank in range(2)]
    first, second = (each.cut(batch) for each in parts)
    assert first.inputs.tolist() == [[0, 1, 2, 9, 0, 0], [10, 11, 12, 19, 0, 0]]
    assert second.targets.tolist()[0] == [4, 5, 6, 7, 8, 9]
    assert first.targets.tolist()[0] == [1, 2, 3, 10, IGNORE_INDEX, IGNORE_INDEX]
    assert first.positions is not None and first.documents is not None
    assert first.positions[0].tolist() == [*range(10), -1, -1]
    assert second.positions is not None and second.positions.equal(first.positions)
    assert first.documents[0].tolist() == [0] * 10 + [-1] * 2
    valid = torch.ones(2, 10, dtype=torch.bool)
    part = parts[0].take_valid(Count(20, 20, 20.0, valid))
    assert part is not None and part.tolist() == [[True] * 4 + [False] * 2] * 2


def test_a_part_of_a_sequence_takes_no_cache() -> None:
    config = small_config()
    groups = ContextGroups(SequenceParts(2))
    with refused(ValueError):
        attention_context(config, torch.zeros(1, 4), cache=KeyValueCache(), groups=groups)


def test_kernels_of_gpus_take_what_they_are_given() -> None:
    """Their operators, called on tensors without data: no GPU is needed for that."""

    def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    query, key = meta(2, 4, 40, 16), meta(2, 4, 24, 16)
    lse = meta(2, 4, 40, dtype=torch.float32)
    masked = blocks.BlockMask(visible=meta(2, 1, 40, 24, dtype=torch.bool))
    left = blocks.BlockMask(left=3)
    for kernel, mask in (
        (blocks._FLASH, blocks.UNMASKED),
        (blocks._EFFICIENT, masked),
        (blocks._CUDNN, masked),
        (blocks.SEQUENCES, left),
    ):
        out, found = kernel.forward(blocks.Inputs(query, key, key, mask, 0.5))
        assert out.shape == query.shape and found.shape[:2] == lse.shape[:2]
        assert found.shape[2] >= lse.shape[2]
        grads = kernel.backward(blocks.Inputs(query, key, key, mask, 0.5), query, out, lse)
        assert [each.shape for each in grads] == [query.shape, key.shape, key.shape]
    starts = blocks.BlockMask(True, None, 3, meta(5, dtype=torch.int32), 32)
    inputs = blocks.Inputs(query, query, query, starts, 0.5)
    out, found = blocks.SEQUENCES.forward(inputs)
    assert (out.shape, found.shape) == (query.shape, lse.shape)
    grads = blocks.SEQUENCES.backward(inputs, query, out, lse)
    assert [each.shape for each in grads] == [query.shape] * 3


CUDA = pytest.mark.cuda
STARTS = torch.tensor([0, 20, 40, 72, 80], dtype=torch.int32)


@pytest.mark.parametrize(
    ("kernel", "device", "mask"),
    [
        ("sdpa", "cpu", blocks.CAUSAL),
        pytest.param("sdpa", "cuda", blocks.CAUSAL, marks=CUDA),
        pytest.param("sdpa_cudnn", "cuda", blocks.CAUSAL, marks=CUDA),
        pytest.param("sdpa_cudnn", "cuda", blocks.UNMASKED, marks=CUDA),
        pytest.param("sdpa_efficient", "cuda", blocks.CAUSAL, marks=CUDA),
        pytest.param("varlen", "cuda", blocks.CAUSAL, marks=CUDA),
        pytest.param("varlen", "cuda", blocks.BlockMask(left=3), marks=CUDA),
        pytest.param("varlen", "cuda", blocks.BlockMask(True, None, 3, STARTS, 32), marks=CUDA),
    ],
)
def test_a_block_by_each_kernel(kernel: Any, device: str, mask: blocks.BlockMask) -> None:
    """Output, lse and gradients in bf16 against plain operations in fp32."""
    torch.manual_seed(0)
    half = torch.bfloat16 if device == "cuda" else torch.float32
    if mask.starts is not None:
        mask = mask._replace(starts=mask.starts.to(device))
    query, grad = (torch.randn(2, 4, 40, 16, device=device, dtype=half) for _ in range(2))
    key, value = (torch.randn(2, 2, 40, 16, device=device, dtype=half) for _ in range(2))
    plain = blocks.BlockMask(visible=sequences_mask(query, key, mask))
    results: list[list[torch.Tensor]] = []
    for name, hidden in ((kernel, mask), ("eager", plain)):
        scores = blocks.BlockScores(0.25, None, name)
        out, lse = blocks.attend_block(query, key, value, scores, hidden)
        given = (grad, query, key, value, out.to(half), lse.float())
        results.append([out, lse, *blocks.block_gradients(*given, scores, hidden)])
    tolerance = 3e-2 if device == "cuda" else 1e-4
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours.float(), reference.float(), rtol=tolerance, atol=tolerance)
