"""Sums of gradients over ranks in buckets: many tensors in one collective."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import proxy

import torch
from torch import Tensor, distributed, nn

from setpoint.config import SetpointError
from setpoint.shapes.placed import part_here

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T", bound=Tensor)

BUCKET = 25 * 2**20
"""Bytes of a bucket, unless `parallel.bucket_size` applies."""


def buckets_of(tensors: Iterable[T], size: int, nbytes: Callable[[T], int]) -> list[list[T]]:
    """Fill buckets of at most `size` bytes in order; a larger tensor has one by itself."""
    buckets: list[list[T]] = []
    room = 0
    for tensor in tensors:
        if nbytes(tensor) > room or not buckets:
            buckets.append([])
            room = size
        room -= nbytes(tensor)
        buckets[-1].append(tensor)
    return buckets


def flattened(tensors: Sequence[Tensor]) -> Tensor:
    """One flat copy of tensors of one dtype."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def copy_back(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Undo `flattened`: copy the elements into the tensors."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


@torch.no_grad()
def sum_in_buckets(
    tensors: Iterable[Tensor],
    all_reduce: Callable[[Tensor], object],
    device: torch.device | None = None,
    least: torch.dtype | None = None,
) -> None:
    """Replace tensors, or this rank's parts of DTensors, by their sums, in place.

    Arguments:
        tensors: of one dtype, or summed in a common one; see `least`.
        all_reduce: sums a flat tensor over the ranks, in place.
        device: of the sums, as FSDP2 may have moved gradients to the host; None: their own.
        least: sum in this dtype, or a wider one of the gradients; None: in their own.
    """
    for bucket in buckets_of(map(part_here, tensors), BUCKET, lambda tensor: tensor.nbytes):
        dtype = bucket[0].dtype if least is None else torch.promote_types(bucket[0].dtype, least)
        first, target = bucket[0], device or bucket[0].device
        if (
            len(bucket) == 1
            and first.is_contiguous()
            and (dtype, target) == (first.dtype, first.device)
        ):
            all_reduce(first.view(-1))  # without a copy of a tensor that fills a bucket
            continue
        flat = flattened([tensor.to(device or tensor.device, dtype) for tensor in bucket])
        all_reduce(flat)
        copy_back(flat, bucket)


class GradientSums:
    """Sums gradients in buckets, each as soon as all of it is there, as DDP does.

    DDP takes gradients in the dtype of their weights only.

    Arguments:
        weights: those that are trained, in the order of the model; buckets are filled from the last
            one on, in whose order a backward pass reaches them.
        size: bytes of a bucket.
        group: the ranks; None: all.
        overlaps: whether buckets are sent within the backward pass; else when it has ended.
    """

    def __init__(
        self,
        weights: Sequence[nn.Parameter],
        size: int,
        group: ProcessGroup | None = None,
        overlaps: bool = True,
    ) -> None:
        self.group = group
        self.buckets = buckets_of(
            reversed(weights), size, lambda w: w.numel() * (w.grad_dtype or w.dtype).itemsize
        )
        self._bucket = {
            weight: number for number, bucket in enumerate(self.buckets) for weight in bucket
        }
        self._missing: list[int] = []
        self._under_way: list[tuple[Tensor, Any]] = []
        # A reference would be a cycle, which keeps the memory of the weights.
        this = proxy(self)
        for weight in weights if overlaps else ():
            weight.register_post_accumulate_grad_hook(lambda weight: this._arrived(weight))

    @contextmanager
    def summing(self) -> Iterator[None]:
        """Sum the gradients that a backward pass in the block completes; all ranks take part."""
        self._missing = [len(bucket) for bucket in self.buckets]
        try:
            yield
            while len(self._under_way) < len(self.buckets):  # experts that no token has met
                self._send()
            for bucket, (flat, work) in zip(self.buckets, self._under_way, strict=True):
                work.wait()
                copy_back(flat, _gradients(bucket))
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
        flat = flattened(_gradients(bucket))
        self._under_way.append(
            (flat, distributed.all_reduce(flat, group=self.group, async_op=True))
        )


def _gradients(weights: Sequence[nn.Parameter]) -> list[Tensor]:
    return [part_here(weight.grad) for weight in weights if weight.grad is not None]
