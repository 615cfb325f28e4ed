"""Gradient sums over ranks in buckets: many tensors in one collective."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import proxy

import torch
from torch import Tensor, distributed, nn

from setpoint.config import SetpointError
from setpoint.shapes.placed import local_part

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

T = TypeVar("T", bound=Tensor)
AllReduce = Callable[[Tensor], "Work | None"]
"""All-reduces a tensor in place; the caller waits for the work that it returns."""

BUCKET = 25 * 2**20
"""Bytes of a bucket, unless `parallel.bucket_size` applies."""


def buckets_of(tensors: Iterable[T], size: int, nbytes: Callable[[T], int]) -> list[list[T]]:
    """Fill buckets of at most `size` bytes in order; a larger tensor gets its own bucket."""
    buckets: list[list[T]] = []
    room = 0
    for tensor in tensors:
        if nbytes(tensor) > room or not buckets:
            buckets.append([])
            room = size
        room -= nbytes(tensor)
        buckets[-1].append(tensor)
    return buckets


@torch.no_grad()
def sum_in_buckets(
    tensors: Iterable[Tensor],
    all_reduce: AllReduce,
    device: torch.device | None = None,
    least: torch.dtype | None = None,
) -> None:
    """Replace tensors, or this rank's parts of DTensors, with their sums, in place.

    Arguments:
        tensors: tensors of one dtype, or with a common dtype for their sum.
        all_reduce, device, least: see `start_sum`.
    """
    for bucket in buckets_of(map(local_part, tensors), BUCKET, lambda tensor: tensor.nbytes):
        start_sum(bucket, all_reduce, device, least)()


@torch.no_grad()
def start_sum(
    bucket: Sequence[Tensor],
    all_reduce: AllReduce,
    device: torch.device | None = None,
    least: torch.dtype | None = None,
) -> Callable[[], None]:
    """Start the all-reduce of one bucket of tensors.

    Arguments:
        all_reduce: sums a flat tensor over the ranks, in place, or starts to.
        device: device of the sums, since FSDP2 may have moved gradients to the host; None: the
            device of the tensors.
        least: sum in this dtype or the tensors' own, whichever is wider; None: in the tensors'
            dtype.

    Returns:
        a function that waits for the sums and copies them into the tensors.
    """
    first = bucket[0]
    dtype = first.dtype if least is None else torch.promote_types(first.dtype, least)
    in_place = (
        len(bucket) == 1
        and first.is_contiguous()
        and (dtype, device or first.device) == (first.dtype, first.device)
    )
    if in_place:  # avoids copying a tensor that fills a bucket
        flat = first.view(-1)
    else:
        flat = torch.cat([part.to(device or part.device, dtype).reshape(-1) for part in bucket])
    work = all_reduce(flat)

    def finish() -> None:
        if work is not None:
            work.wait()
        parts = flat.split([tensor.numel() for tensor in bucket])
        for tensor, part in () if in_place else zip(bucket, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    return finish


class GradientSums:
    """Gradient sums in buckets, each started as soon as its last gradient is ready, as in DDP.

    DDP itself supports gradients only in the dtype of their weights.

    Arguments:
        weights: trained weights in the order of the model; buckets are filled in reverse, the
            order in which a backward pass reaches them.
        size: bytes of a bucket.
        group: the ranks; None: all.
        overlaps: whether buckets are sent during the backward pass; otherwise after it.
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
        self._pending: list[Callable[[], None]] = []
        # A reference would be a cycle, which keeps the memory of the weights.
        weak = proxy(self)
        for weight in weights if overlaps else ():
            weight.register_post_accumulate_grad_hook(lambda weight: weak._count_gradient(weight))

    @contextmanager
    def summing(self) -> Iterator[None]:
        """Sum the gradients of a backward pass within the block; a collective."""
        self._missing = [len(bucket) for bucket in self.buckets]
        try:
            yield
            while len(self._pending) < len(self.buckets):  # experts without tokens
                self._send()
            for finish in self._pending:
                finish()
        finally:
            self._missing, self._pending = [], []

    @torch.no_grad()
    def _count_gradient(self, weight: Tensor) -> None:
        if not self._missing:
            return  # not the last micro-batch
        number = self._bucket[weight]  # pyright: ignore[reportArgumentType]
        self._missing[number] -= 1
        if self._missing[number] < 0:
            raise SetpointError(
                "precision.reduce: a weight received several gradients in one backward pass, but "
                "only the first was reduced over the ranks\nValid: null, or "
                "memory.activation_checkpointing.reentrant = false"
            )
        # In the same order on all ranks, regardless of which arrives first.
        while len(self._pending) < len(self.buckets) and not self._missing[len(self._pending)]:
            self._send()

    @torch.no_grad()
    def _send(self) -> None:
        bucket = self.buckets[len(self._pending)]
        for weight in bucket:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight, dtype=weight.grad_dtype)
        gradients = [local_part(weight.grad) for weight in bucket if weight.grad is not None]
        all_reduce = partial(distributed.all_reduce, group=self.group, async_op=True)
        self._pending.append(start_sum(gradients, all_reduce))
