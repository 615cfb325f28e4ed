"""Attention over sequences divided among ranks: ring attention and Ulysses.

Ring attention (Liu et al., 2023): each rank attends to its own keys, then to the keys of the
previous rank, and so on, while the next keys are being sent. With two runs of positions per rank,
one near the beginning and one near the end, the causal mask gives all ranks the same work.

DeepSpeed-Ulysses (Jacobs et al., 2023): each rank sends its part of the sequence and receives all
positions of its heads; after attention, the exchange is reversed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable

from setpoint.config import SetpointError
from setpoint.model.attention.backends import (
    PLAIN,
    Backend,
    RowLayout,
    Scores,
    repeat_heads,
    usual_scale,
    visible,
)
from setpoint.model.attention.blocks import (
    CAUSAL,
    UNMASKED,
    BlockMask,
    BlockScores,
    attend_block,
    block_gradients,
)
from setpoint.model.attention.config import Backend as BackendName
from setpoint.model.attention.selection import LIMITS
from setpoint.model.attention.varlen import round_up
from setpoint.shapes.batch import Lengths, SequenceParts

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work


class BlockPair(NamedTuple):
    """Queries of this rank and keys of another on the ring, by local positions, and their mask."""

    queries: slice
    keys: slice
    mask: BlockMask = UNMASKED
    rows: slice = slice(None)

    @property
    def query_index(self) -> tuple[slice, slice, slice]:
        """Index of the queries in (B, H, S, D) or (B, H, S)."""
        return self.rows, slice(None), self.queries

    @property
    def key_index(self) -> tuple[slice, slice, slice]:
        """Index of the keys."""
        return self.rows, slice(None), self.keys


Plan = Sequence[Sequence[BlockPair]]
"""Blocks with visible keys, by the rank of the ring that has the keys."""


class Ring(Backend):
    """Ring attention."""

    def __init__(self, kernel: BackendName, parts: SequenceParts, group: ProcessGroup) -> None:
        self.name: BackendName = kernel
        self.parts, self.group = parts, group

    def prepare_mask(self, layout: RowLayout, window: int | None) -> Plan:
        """Plan the blocks with the keys of each rank; the layout covers whole sequences.

        Raises:
            SetpointError: the kernel does not support masks.
        """
        if layout.positions is None and layout.documents is None:
            row_lengths = Lengths.of(np.arange(layout.batch + 1) * layout.keys)
            layout = replace(layout, lengths=row_lengths)
        if not layout.is_masked(window):
            return causal_plan(self.parts, layout.keys)
        if LIMITS[self.name].masks == "lengths" and layout.lengths is not None:
            return sequence_plan(self.parts, layout, window)
        if self.name == "sdpa_flash" and layout.device.type == "cuda":
            raise SetpointError(
                "model.attention_backend = sdpa_flash does not support masks on a GPU, which "
                "windows, documents and padding need; use sdpa or sdpa_efficient"
            )
        return masked_plan(self.parts, layout, window)

    # A message would break the graph.
    @torch.compiler.disable
    def attend(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator is untyped
        self, query: Tensor, key: Tensor, value: Tensor, mask: Plan, scores: Scores = PLAIN
    ) -> Tensor:
        """Attend from this rank's queries to the keys of all ranks."""
        assert not scores.dropout and scores.sinks is None, "the configuration is refused otherwise"
        scale = usual_scale(query) if scores.scale is None else scores.scale
        block_scores = BlockScores(scale, scores.soft_cap, self.name)
        heads = (x.transpose(1, 2).contiguous() for x in (query, key, value))
        mixed: Any = _RingAttention.apply(*heads, mask, block_scores, self.group)
        return mixed.transpose(1, 2)


def causal_plan(parts: SequenceParts, length: int) -> Plan:
    """Plan for a causal mask only."""
    size = length // parts.ring
    full, first, last = slice(0, size), slice(0, size // 2), slice(size // 2, size)
    plan: list[list[BlockPair]] = []
    for source in range(parts.ring):
        if source == parts.ring_rank:
            plan.append([BlockPair(full, full, CAUSAL)])
        elif parts.runs == 1:
            plan.append([BlockPair(full, full)] if source < parts.ring_rank else [])
        elif source < parts.ring_rank:
            plan.append([BlockPair(full, first)])
        else:
            plan.append([BlockPair(last, full)])
    return plan


def masked_plan(parts: SequenceParts, layout: RowLayout, window: int | None) -> Plan:
    """Plan with a dense mask for each pair of runs with visible keys."""
    candidates: list[tuple[int, BlockPair, Any]] = []
    for source, queries, keys, block in _pairs(parts, layout.keys):
        far = queries.start - keys.stop + 1
        if window is not None and layout.positions is None and far >= window:
            continue
        mask = visible(layout, window, queries, keys)
        if layout.lengths is None:
            extent = torch.stack((mask.any(), mask.all()))
        elif queries == keys:
            extent = True, False
        else:
            rectangles = _rectangles(layout.lengths, layout, window, queries, keys)
            full = (queries.stop, keys.start)
            near = window is None or queries.stop - 1 - keys.start < window
            every = near and all(r is not None and r[:2] == full for r in rectangles)
            extent = any(rectangles), every
        candidates.append((source, block._replace(mask=BlockMask(visible=mask)), extent))
    plan: list[list[BlockPair]] = [[] for _ in range(parts.ring)]
    read = [extent for *_, extent in candidates if isinstance(extent, Tensor)]
    # One transfer for all; none if the host knows the lengths.
    known = iter(torch.stack(read).tolist() if read else ())
    for source, block, extent in candidates:
        some, every = next(known) if isinstance(extent, Tensor) else extent
        if some:
            plan[source].append(block._replace(mask=UNMASKED) if every else block)
    return plan


def sequence_plan(parts: SequenceParts, layout: RowLayout, window: int | None) -> Plan:
    """Plan for kernels that accept lengths in place of masks, computed on the host.

    Within a run, documents are sequences. In an earlier run, only the document that continues into
    the queries' run is visible: a rectangle of queries and keys in each row.
    """
    assert layout.lengths is not None
    plan: list[list[BlockPair]] = [[] for _ in range(parts.ring)]
    for source, queries, keys, block in _pairs(parts, layout.keys):
        if queries == keys:
            plan[source].append(block._replace(mask=_sequences(layout, window, queries)))
            continue
        rectangles = _rectangles(layout.lengths, layout, window, queries, keys)
        for row, rectangle in enumerate(rectangles):
            if rectangle is not None:
                last, first_key, left = rectangle
                start, stop = block.queries.start, block.keys.stop
                plan[source].append(
                    BlockPair(
                        slice(start, start + last - queries.start),
                        slice(stop - (keys.stop - first_key), stop),
                        BlockMask(left=left),
                        slice(row, row + 1),
                    )
                )
    return plan


def _pairs(parts: SequenceParts, length: int) -> Iterator[tuple[int, slice, slice, BlockPair]]:
    """Pairs of each contiguous run of this rank with all runs up to it in the sequence.

    Yields:
        the rank of the keys, queries and keys as positions in the whole sequence, and their block
        in local positions.
    """
    run = length // (parts.ring * parts.runs)
    local_runs = [slice(n * run, (n + 1) * run) for n in range(parts.runs)]
    query_runs = parts.ring_part(length, parts.ring_rank)
    for source in range(parts.ring):
        pairs = [
            (queries, keys, BlockPair(local_queries, local_keys))
            for queries, local_queries in zip(query_runs, local_runs, strict=True)
            for keys, local_keys in zip(parts.ring_part(length, source), local_runs, strict=True)
        ]
        # The diagonal first: there each query sees itself, so no lse stays infinite.
        for queries, keys, block in sorted(pairs, key=lambda pair: pair[0] != pair[1]):
            if keys.start <= queries.start:
                yield source, queries, keys, block


def _sequences(layout: RowLayout, window: int | None, run: slice) -> BlockMask:
    """Documents within a run of each row; the run itself starts a document."""
    assert layout.lengths is not None
    starts, size = layout.lengths.starts, run.stop - run.start
    inside: list[Any] = []
    for row in range(layout.batch):
        first = row * layout.keys + run.start
        within = starts[(starts > first) & (starts < first + size)]
        inside += [row * size, *(within - first + row * size)]
    known = Lengths.of(np.array([*inside, layout.batch * size])).to(layout.device)
    left = -1 if window is None else window - 1
    return BlockMask(True, None, left, known.cumulative, round_up(known.longest, size))


def _rectangles(
    lengths: Lengths, layout: RowLayout, window: int | None, queries: slice, keys: slice
) -> list[tuple[int, int, int] | None]:
    """Visible rectangle of each row between queries and an earlier run of keys.

    Returns:
        the end of the queries, the first key, and the window as `BlockMask.left`; None if no key is
        visible.
    """
    rectangles: list[tuple[int, int, int] | None] = []
    for row in range(layout.batch):
        base = row * layout.keys
        number = int(np.searchsorted(lengths.starts, base + keys.stop - 1, "right"))
        begin, end = (int(start) - base for start in lengths.starts[number - 1 : number + 1])
        last, first = min(queries.stop, end), max(keys.start, begin)
        left = -1
        if window is not None:
            last = min(last, keys.stop - 1 + window)
            first = max(first, queries.start - window + 1)
            left = keys.stop - last + window - 1
        is_visible = last > queries.start and first < keys.stop
        rectangles.append((last, first, left) if is_visible else None)
    return rectangles


class _RingAttention(torch.autograd.Function):
    """Attention from this rank's (B, H, S, D) queries to the keys and values of all ranks."""

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
        key_values = torch.cat((key.flatten(), value.flatten()))
        with torch.autocast(query.device.type, enabled=False):
            for step, source in enumerate(_sources(group)):
                incoming = None if step + 1 == group.size() else _RingTransfer(key_values, group)
                keys, values = _unpacked(key_values, key, value)
                for block in plan[source]:
                    q, k = block.query_index, block.key_index
                    out, lse = attend_block(query[q], keys[k], values[k], scores, block.mask)
                    _merge(mixed[q], total[q], out, lse)
                if incoming is not None:
                    key_values = incoming.wait()
        mixed = mixed.to(query.dtype)
        ctx.save_for_backward(query, key, value, mixed, total)
        ctx.plan, ctx.scores, ctx.group = plan, scores, group
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value, mixed, total = ctx.saved_tensors
        grad, group = grad.contiguous(), ctx.group
        dq = torch.zeros_like(query, dtype=total.dtype)
        key_values = torch.cat((key.flatten(), value.flatten()))
        # The gradients of keys and values travel with them, and return after a full turn.
        traveling: _RingTransfer | None = None
        with torch.autocast(query.device.type, enabled=False):
            for step, source in enumerate(_sources(group)):
                incoming = None if step + 1 == group.size() else _RingTransfer(key_values, group)
                keys, values = _unpacked(key_values, key, value)
                key_value_grads = torch.zeros_like(key_values, dtype=total.dtype)
                dk, dv = _unpacked(key_value_grads, key, value)
                for block in ctx.plan[source]:
                    q, k = block.query_index, block.key_index
                    grads = block_gradients(
                        grad[q],
                        query[q],
                        keys[k],
                        values[k],
                        mixed[q],
                        total[q],
                        ctx.scores,
                        block.mask,
                    )
                    dq[q] += grads.query
                    dk[k] += grads.key
                    dv[k] += grads.value
                if traveling is not None:
                    key_value_grads += traveling.wait()
                traveling = _RingTransfer(key_value_grads, group, tag=1)
                if incoming is not None:
                    key_values = incoming.wait()
            assert traveling is not None
            dk, dv = _unpacked(traveling.wait(), key, value)
        return dq.to(query.dtype), dk.to(key.dtype), dv.to(value.dtype), *NONE


NONE = (None, None, None)


class _RingTransfer:
    """Asynchronous send to the next rank of a ring, and receive from the previous one."""

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
        """Wait, and return the received tensor."""
        for work in self.works:
            work.wait()
        return self.received


def _sources(group: ProcessGroup) -> list[int]:
    """Origins of this rank's keys and values, turn by turn."""
    return [(group.rank() - step) % group.size() for step in range(group.size())]


def _unpacked(key_values: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Split a message into keys and values, or their gradients."""
    keys, values = key_values.split((key.numel(), value.numel()))
    return keys.view(key.shape), values.view(value.shape)


def _merge(mixed: Tensor, total: Tensor, out: Tensor, lse: Tensor) -> None:
    """Merge a block in place; see `blocks` for the formula."""
    both = torch.logaddexp(total, lse)
    mixed.mul_((total - both).exp_().unsqueeze(-1))
    mixed.addcmul_(out.to(mixed.dtype), (lse - both).exp_().unsqueeze(-1))
    total.copy_(both)


class Ulysses(Backend):
    """Ulysses around an inner backend, which computes some heads of whole sequences."""

    def __init__(self, inner: Backend, group: ProcessGroup) -> None:
        self.name, self.inner, self.group = inner.name, inner, group

    def prepare_mask(self, layout: RowLayout, window: int | None) -> Any:
        """Prepare the mask of the inner backend, for whole sequences."""
        return self.inner.prepare_mask(layout, window)

    # A collective would break the graph.
    @torch.compiler.disable
    def attend(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator is untyped
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any, scores: Scores = PLAIN
    ) -> Tensor:
        """Attend with this rank's heads at all positions."""
        # Each rank gets the same number of key-value heads, with their query heads.
        times = self.group.size() // math.gcd(self.group.size(), key.shape[2])
        key, value = repeat_heads(key, times), repeat_heads(value, times)
        query, key, value = self._to_heads(query, key, value)
        if scores.sinks is not None:
            sinks = scores.sinks.unflatten(0, (self.group.size(), -1))[self.group.rank()]
            scores = scores._replace(sinks=sinks)
        return self._to_positions(self.inner.attend(query, key, value, mask, scores))

    def _to_heads(self, *tensors: Tensor) -> list[Tensor]:
        """From (B, S / ranks, heads, D) to (B, S, heads / ranks, D), in one collective."""
        ranks = self.group.size()
        sent = [x.unflatten(2, (ranks, -1)).permute(2, 0, 1, 3, 4) for x in tensors]
        received = _all_to_all(torch.cat([x.flatten(1) for x in sent], dim=1), self.group)
        parts = received.split([x[0].numel() for x in sent], dim=1)
        return [
            part.view(x.shape).transpose(0, 1).flatten(1, 2)
            for part, x in zip(parts, sent, strict=True)
        ]

    def _to_positions(self, mixed: Tensor) -> Tensor:
        """From (B, S, heads / ranks, D) to (B, S / ranks, heads, D)."""
        ranks = self.group.size()
        sent = mixed.unflatten(1, (ranks, -1)).transpose(0, 1)
        received = _all_to_all(sent.flatten(1), self.group).view(sent.shape)
        return received.permute(1, 2, 0, 3, 4).flatten(2, 3)


def _all_to_all(rows: Tensor, group: ProcessGroup) -> Tensor:
    """Send row n of (ranks, N) to rank n, differentiably."""
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    return all_to_all_single_autograd(rows.contiguous(), None, None, group)
