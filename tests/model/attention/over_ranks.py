"""Run by test_over_ranks.py in a process of its own: attention of several ranks, against one.

Its arguments are the number of ranks, the degrees of the ring and of Ulysses, and how sequences
are split.
"""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from setpoint.model.attention import blocks
from setpoint.model.attention.attention import over_ranks
from setpoint.model.attention.backends import RowLayout, Scores, repeat_heads, visible
from setpoint.model.attention.choose_backend import make_backend
from setpoint.shapes.batch import ContextGroups, Lengths, SequenceParts

from ...support.ranks import fork_group

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


def compare(rank: int, ring: int, ulysses: int, split: Any) -> None:
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
    if rank == 0:
        print("equal:", ", ".join(HEADS), "with", ", ".join(layouts()))


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


def one_rank(rank: int, store: str) -> None:
    blocks.SEQUENCES = blocks._Kernel(sequences_forward, sequences_backward, repeats=False)
    for arguments in zip(*(iter(sys.argv[2:]),) * 3, strict=True):
        compare(rank, int(arguments[0]), int(arguments[1]), arguments[2])


if __name__ == "__main__":
    sys.exit(fork_group(one_rank, int(sys.argv[1])))
