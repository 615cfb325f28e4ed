"""Attention where each rank has a part of the sequence: keys and values go around a ring of ranks.

Ring attention (Liu et al., 2023): each rank attends to its own keys, then to those of the rank
before it, and so on, while the next are on their way. With two runs of places a rank, one near the
beginning and one near the end, all ranks have as much to do under a causal mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable

from setpoint.config import SetpointError
from setpoint.model.attention.backend import PLAIN, Backend, Scores, usual_scale
from setpoint.model.attention.blocks import BlockScores, attend_block, block_gradients
from setpoint.model.attention.layout import Layout, visible
from setpoint.model.autocast import cast_once
from setpoint.shapes.sequence_parts import SequenceParts

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work


class Block(NamedTuple):
    """Some queries of this rank and some keys of one rank of the ring.

    Arguments:
        queries, keys: places among those that the ranks have.
        causal: query n sees the keys 0 .. n.
        mask: (1 or B, 1, queries, keys) bool; None: nothing else is hidden.
    """

    queries: slice
    keys: slice
    causal: bool = False
    mask: Tensor | None = None


Plan = Sequence[Sequence[Block]]
"""The blocks with the keys of each rank of the ring; what is seen by no query is left out."""


class Ring(Backend):
    """A backend of attention whose sequences are divided among ranks.

    Arguments:
        kernel: the name of the backend that computes blocks, as `Scores.kernel`.
    """

    def __init__(self, kernel: str, parts: SequenceParts, group: ProcessGroup) -> None:
        self.kernel, self.parts, self.group = kernel, parts, group

    def prepare_mask(self, layout: Layout, window: int | None) -> Plan:
        """Find what is to be computed with the keys of each rank.

        Arguments:
            layout: of whole sequences.
            window: positions that one sees, itself included; None: all before it.

        Raises:
            SetpointError: the kernel takes no mask.
        """
        if layout.is_open(window):
            return causal_plan(self.parts, layout.keys)
        if self.kernel == "sdpa_flash" and layout.device.type == "cuda":
            raise SetpointError(
                "model.attention_backend = sdpa_flash takes no mask on a GPU, which windows, "
                "documents and padding need; use sdpa or sdpa_efficient"
            )
        return masked_plan(self.parts, layout, window)

    # A compiler would end its graph at each message all the same.
    @torch.compiler.disable
    def attend(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator is untyped
        self, query: Tensor, key: Tensor, value: Tensor, mask: Plan, scores: Scores = PLAIN
    ) -> Tensor:
        """Mix the values that each query of this rank sees, wherever they are."""
        assert scores.dropout == 0.0, "the configuration is refused otherwise"
        scale = usual_scale(query) if scores.scale is None else scores.scale
        how = BlockScores(scale, scores.soft_cap, self.kernel)
        # As autocast casts what PyTorch's own attention gets.
        heads = (cast_once(each).transpose(1, 2).contiguous() for each in (query, key, value))
        mixed: Any = _RingAttention.apply(*heads, mask, how, self.group)
        return mixed.transpose(1, 2)


def causal_plan(parts: SequenceParts, length: int) -> Plan:
    """Which blocks lie under a causal mask alone: known without a look at any position."""
    own = length // parts.ring
    whole, first, last = slice(0, own), slice(0, own // 2), slice(own // 2, own)
    plan: list[list[Block]] = []
    for source in range(parts.ring):
        if source == parts.ring_rank:
            plan.append([Block(whole, whole, causal=True)])
        elif parts.runs == 1:
            plan.append([Block(whole, whole)] if source < parts.ring_rank else [])
        elif source < parts.ring_rank:
            plan.append([Block(whole, first)])
        else:
            plan.append([Block(last, whole)])
    return plan


def masked_plan(parts: SequenceParts, layout: Layout, window: int | None) -> Plan:
    """The blocks of each two runs of places between which anything is seen."""
    run = layout.keys // (parts.ring * parts.runs)
    places = [slice(n * run, (n + 1) * run) for n in range(parts.runs)]
    own = parts.ring_part(layout.keys, parts.ring_rank)
    found: list[tuple[int, Block, Tensor]] = []
    for source in range(parts.ring):
        # A run and itself first: there each query sees itself, so that no lse stays infinite.
        pairs = [
            (queries, keys, at, other)
            for queries, at in zip(own, places, strict=True)
            for keys, other in zip(parts.ring_part(layout.keys, source), places, strict=True)
        ]
        for queries, keys, at, other in sorted(pairs, key=lambda pair: pair[0] != pair[1]):
            far = queries.start - keys.stop + 1
            if far <= 0 and queries != keys:
                continue
            if window is not None and layout.positions is None and far >= window:
                continue
            mask = visible(layout, window, queries, keys)
            extent = torch.stack((mask.any(), mask.all()))
            found.append((source, Block(at, other, mask=mask), extent))
    plan: list[list[Block]] = [[] for _ in range(parts.ring)]
    # One transfer, as each waits for the device.
    extents = torch.stack([extent for *_, extent in found]).tolist()
    for (source, block, _), (some, every) in zip(found, extents, strict=True):
        if some:
            plan[source].append(block._replace(mask=None) if every else block)
    return plan


class _RingAttention(torch.autograd.Function):
    """Attention of (B, H, S, D) queries of this rank to the keys and values of all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        plan: Plan,
        scores: BlockScores,
        group: ProcessGroup,
    ) -> Tensor:
        wide = torch.promote_types(query.dtype, torch.float32)
        mixed = query.new_zeros((*query.shape[:-1], value.shape[-1]), dtype=wide)
        total = query.new_full(query.shape[:-1], -torch.inf, dtype=wide)
        held = torch.cat((key.flatten(), value.flatten()))
        with torch.autocast(query.device.type, enabled=False):
            for step, source in enumerate(_sources(group)):
                coming = None if step + 1 == group.size() else _Passed(held, group)
                keys, values = _unpacked(held, key, value)
                for block in plan[source]:
                    rows, columns = block.queries, block.keys
                    out, lse = attend_block(
                        query[:, :, rows],
                        keys[:, :, columns],
                        values[:, :, columns],
                        scores,
                        block.causal,
                        block.mask,
                    )
                    _merge(mixed[:, :, rows], total[:, :, rows], out, lse)
                if coming is not None:
                    held = coming.wait()
        mixed = mixed.to(query.dtype)
        ctx.save_for_backward(query, key, value, mixed, total)
        ctx.plan, ctx.scores, ctx.group = plan, scores, group
        return mixed

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator is untyped
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        query, key, value, mixed, total = ctx.saved_tensors
        grad, group = grad.contiguous(), ctx.group
        of_query = torch.zeros_like(query, dtype=total.dtype)
        held = torch.cat((key.flatten(), value.flatten()))
        # The gradients of keys and values follow these, and are home after a whole turn.
        following: _Passed | None = None
        with torch.autocast(query.device.type, enabled=False):
            for step, source in enumerate(_sources(group)):
                coming = None if step + 1 == group.size() else _Passed(held, group)
                keys, values = _unpacked(held, key, value)
                own = torch.zeros_like(held, dtype=total.dtype)
                of_keys, of_values = _unpacked(own, key, value)
                for block in ctx.plan[source]:
                    rows, columns = block.queries, block.keys
                    found = block_gradients(
                        grad[:, :, rows],
                        query[:, :, rows],
                        keys[:, :, columns],
                        values[:, :, columns],
                        mixed[:, :, rows],
                        total[:, :, rows],
                        ctx.scores,
                        block.causal,
                        block.mask,
                    )
                    of_query[:, :, rows] += found.query
                    of_keys[:, :, columns] += found.key
                    of_values[:, :, columns] += found.value
                if following is not None:
                    own += following.wait()
                following = _Passed(own, group, tag=1)
                if coming is not None:
                    held = coming.wait()
            assert following is not None
            of_key, of_value = _unpacked(following.wait(), key, value)
        return of_query.to(query.dtype), of_key.to(key.dtype), of_value.to(value.dtype), *NONE


NONE = (None, None, None)


class _Passed:
    """A tensor on its way to the next rank of a ring, and one of the same shape from that before.

    Arguments:
        tag: tells messages between the same ranks apart that are on their way together.
    """

    def __init__(self, tensor: Tensor, group: ProcessGroup, tag: int = 0) -> None:
        self.sent, self.received = tensor, torch.empty_like(tensor)
        rank, size = group.rank(), group.size()
        after, before = (
            distributed.get_global_rank(group, other % size) for other in (rank + 1, rank - 1)
        )
        self.works: list[Work] = distributed.batch_isend_irecv(
            [
                distributed.P2POp(distributed.isend, self.sent, after, group, tag),
                distributed.P2POp(distributed.irecv, self.received, before, group, tag),
            ]
        )

    def wait(self) -> Tensor:
        """Return what has come."""
        for work in self.works:
            work.wait()
        return self.received


def _sources(group: ProcessGroup) -> list[int]:
    """Whose keys and values a rank has, turn by turn."""
    return [(group.rank() - step) % group.size() for step in range(group.size())]


def _unpacked(held: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values, or their gradients, of what is sent as one message."""
    keys, values = held.split((key.numel(), value.numel()))
    return keys.view(key.shape), values.view(value.shape)


def _merge(mixed: Tensor, total: Tensor, out: Tensor, lse: Tensor) -> None:
    """Add a block to those before, in place; see `blocks` for the formula."""
    both = torch.logaddexp(total, lse)
    mixed.mul_((total - both).exp_().unsqueeze(-1))
    mixed.addcmul_(out.to(mixed.dtype), (lse - both).exp_().unsqueeze(-1))
    total.copy_(both)
