"""Attention where each rank has a part of the sequence for all heads, or all of it for some heads.

DeepSpeed-Ulysses (Jacobs et al., 2023): each rank sends its part of the sequence and receives all
positions of its heads; after attention that is reversed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable

from setpoint.model.attention.backend import PLAIN, Backend, Scores, repeat_heads
from setpoint.model.attention.layout import Layout

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Ulysses(Backend):
    """A backend of attention whose sequences are divided among ranks.

    Arguments:
        inner: what computes attention of some heads.
    """

    def __init__(self, inner: Backend, group: ProcessGroup) -> None:
        self.inner, self.group = inner, group

    def prepare_mask(self, layout: Layout, window: int | None) -> Any:
        """Prepare that of the inner backend, for whole sequences."""
        return self.inner.prepare_mask(layout, window)

    # A compiler would end its graph at each collective all the same.
    @torch.compiler.disable
    def attend(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator is untyped
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any, scores: Scores = PLAIN
    ) -> Tensor:
        """Mix the values that each query of this rank sees, wherever they are."""
        # Each rank gets as many key-value heads as the others, and the queries that they serve.
        times = self.group.size() // math.gcd(self.group.size(), key.shape[2])
        key, value = repeat_heads(key, times), repeat_heads(value, times)
        query, key, value = self._heads_of(query, key, value)
        if scores.sinks is not None:
            own = scores.sinks.unflatten(0, (self.group.size(), -1))[self.group.rank()]
            scores = scores._replace(sinks=own)
        return self._places_of(self.inner.attend(query, key, value, mask, scores))

    def _heads_of(self, *tensors: Tensor) -> list[Tensor]:
        """From (B, S / ranks, heads, D) to (B, S, heads / ranks, D), in one collective."""
        ranks = self.group.size()
        sent = [each.unflatten(2, (ranks, -1)).permute(2, 0, 1, 3, 4) for each in tensors]
        got = _exchanged(torch.cat([each.flatten(1) for each in sent], dim=1), self.group)
        parts = got.split([each[0].numel() for each in sent], dim=1)
        return [
            part.view(each.shape).transpose(0, 1).flatten(1, 2)
            for part, each in zip(parts, sent, strict=True)
        ]

    def _places_of(self, mixed: Tensor) -> Tensor:
        """From (B, S, heads / ranks, D) to (B, S / ranks, heads, D)."""
        ranks = self.group.size()
        sent = mixed.unflatten(1, (ranks, -1)).transpose(0, 1)
        got = _exchanged(sent.flatten(1), self.group).view(sent.shape)
        return got.permute(1, 2, 0, 3, 4).flatten(2, 3)


class _Exchange(torch.autograd.Function):
    """Row n of (ranks, N) goes to rank n, and its gradient comes back the same way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        got = torch.empty_like(rows)
        distributed.all_to_all_single(got, rows, group=group)
        return got

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator is untyped
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor, None]:
        got = torch.empty_like(grad, memory_format=torch.contiguous_format)
        distributed.all_to_all_single(got, grad.contiguous(), group=ctx.group)
        return got, None


def _exchanged(rows: Tensor, group: ProcessGroup) -> Tensor:
    got: Any = _Exchange.apply(rows.contiguous(), group)
    return got
