"""Gradients in another dtype than their weights', summed over ranks while they are computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn

from setpoint.config import SetpointError


class GradientSums:
    """Sums gradients in buckets, each as soon as all of it is there, as DDP does.

    Arguments:
        weights: those that are trained, in the order of the model; buckets are filled from the last
            one on, in whose order a backward pass reaches them.
        size: bytes of a bucket; a larger gradient is one by itself.
        overlaps: whether buckets are sent within the backward pass; else when it has ended.
    """

    def __init__(self, weights: Sequence[nn.Parameter], size: int, overlaps: bool = True) -> None:
        self.buckets: list[list[nn.Parameter]] = [[]]
        room = size
        for weight in reversed(weights):
            needed = weight.numel() * (weight.grad_dtype or weight.dtype).itemsize
            if needed > room and self.buckets[-1]:
                self.buckets.append([])
                room = size
            room -= needed
            self.buckets[-1].append(weight)
        self._bucket = {
            weight: number for number, bucket in enumerate(self.buckets) for weight in bucket
        }
        self._missing: list[int] = []
        self._under_way: list[tuple[Tensor, Any]] = []
        for weight in weights if overlaps else ():
            weight.register_post_accumulate_grad_hook(self._arrived)

    @contextmanager
    def summing(self) -> Iterator[None]:
        """Sum what a backward pass in the block completes; all ranks take part."""
        self._missing = [len(bucket) for bucket in self.buckets]
        try:
            yield
            while len(self._under_way) < len(self.buckets):  # experts that no token has met
                self._send()
            for bucket, (together, work) in zip(self.buckets, self._under_way, strict=True):
                work.wait()
                parts = together.split([weight.numel() for weight in bucket])
                for weight, part in zip(bucket, parts, strict=True):
                    assert weight.grad is not None
                    weight.grad.copy_(part.view_as(weight.grad))
        finally:
            self._missing, self._under_way = [], []

    @torch.no_grad()
    def _arrived(self, weight: Tensor) -> None:
        if not self._missing:
            return  # a micro-batch that others follow
        number = self._bucket[weight]  # pyright: ignore[reportArgumentType]
        self._missing[number] -= 1
        if self._missing[number] < 0:
            raise SetpointError(
                "precision.reduce: a weight gets its gradient several times in one backward pass, "
                "and was summed over the ranks after the first\nValid: null, or "
                "memory.activation_checkpointing.reentrant = false"
            )
        # In one order on all ranks, whatever arrives first.
        while len(self._under_way) < len(self.buckets) and not self._missing[len(self._under_way)]:
            self._send()

    @torch.no_grad()
    def _send(self) -> None:
        bucket = self.buckets[len(self._under_way)]
        for weight in bucket:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight, dtype=weight.grad_dtype)
        together = torch.cat([w.grad.reshape(-1) for w in bucket if w.grad is not None])
        work = distributed.all_reduce(together, async_op=True)
        self._under_way.append((together, work))
