"""Communication among ranks that compute one forward pass together, and with the reading rank.

Collectives identify their group by name, like torch's functional collectives, which compilers can
trace. Tensors are made contiguous before sending, because gloo silently sends wrong values for
non-contiguous ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, distributed

from setpoint.config import RunError, SetpointError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Sum = Literal["sum", "max", "min"]

# The ops of `torch.distributed._functional_collectives`: no public ones can be traced.
_ops: Any = torch.ops._c10d_functional


class Peers(NamedTuple):
    """Ranks with parts of the same tensors, identified by the name of their process group."""

    group: str
    rank: int
    size: int

    def reduce(self, x: Tensor, how: Sum = "sum") -> Tensor:
        """All-reduce a tensor; not differentiable."""
        return _wait(_ops.all_reduce(x.contiguous(), how, self.group))

    def gather(self, x: Tensor, dim: int) -> Tensor:
        """All-gather parts along a dimension, in rank order; not differentiable."""
        dim %= x.dim()
        parts = _wait(_ops.all_gather_into_tensor(x.contiguous(), self.size, self.group))
        return parts if dim == 0 else torch.cat(parts.chunk(self.size), dim=dim)

    def scatter(self, x: Tensor, dim: int) -> Tensor:
        """Reduce-scatter a tensor along a dimension; not differentiable."""
        if dim % x.dim():
            x = torch.cat(x.chunk(self.size, dim=dim))
        return _wait(_ops.reduce_scatter_tensor(x.contiguous(), "sum", self.size, self.group))

    def part(self, x: Tensor, dim: int) -> Tensor:
        """This rank's part of a tensor that is the same on all ranks."""
        length = x.shape[dim] // self.size
        return x.narrow(dim, self.rank * length, length)


def _wait(x: Tensor) -> Tensor:
    return _ops.wait_tensor(x)


def sum_gradients(x: Tensor, peers: Peers) -> Tensor:
    """Identity; its gradient is summed over ranks. Input of column-parallel layers."""
    return _SumGradients.apply(x, peers)


def sum_parts(x: Tensor, peers: Peers) -> Tensor:
    """All-reduce sum; the gradient passes through unchanged. Output of row-parallel layers."""
    return _SumParts.apply(x, peers)


def gather_parts(x: Tensor, dim: int, peers: Peers, *, sums: bool) -> Tensor:
    """All-gather along a dimension.

    Arguments:
        sums: whether gradients are summed over ranks; otherwise they are equal on all ranks.
    """
    return _GatherParts.apply(x, dim, peers, sums)


def scatter_sum(x: Tensor, dim: int, peers: Peers) -> Tensor:
    """Reduce-scatter along a dimension; the gradient is all-gathered."""
    return _ScatterSum.apply(x, dim, peers)


def keep_part(x: Tensor, dim: int, peers: Peers) -> Tensor:
    """This rank's part of a tensor that is the same on all ranks; the gradient is all-gathered."""
    return _KeepPart.apply(x, dim, peers)


class _SumGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, peers: Peers) -> Tensor:
        ctx.peers = peers
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.peers.reduce(grad), None


class _SumParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, peers: Peers) -> Tensor:
        return peers.reduce(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad, None


class _GatherParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, peers: Peers, sums: bool) -> Tensor:
        ctx.dim, ctx.peers, ctx.sums = dim, peers, sums
        return peers.gather(x, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        peers = ctx.peers
        part = peers.scatter(grad, ctx.dim) if ctx.sums else peers.part(grad, ctx.dim)
        return part, None, None, None


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, peers: Peers) -> Tensor:
        ctx.dim, ctx.peers = dim, peers
        return peers.scatter(x, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.peers.gather(grad, ctx.dim), None, None


class _KeepPart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, peers: Peers) -> Tensor:
        ctx.dim, ctx.peers = dim, peers
        return peers.part(x, dim).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.peers.gather(grad, ctx.dim), None, None


class Messages:
    """Results received in the first pass through a layer, in order, for its recomputation."""

    def __init__(self) -> None:
        self.results: deque[tuple[Any, ...]] = deque()
        self.is_second = False
        self.is_sent = False
        """True if the result of the running module is only sent, and only in the first pass."""
        self.is_unread = False
        """True while nothing but that result is computed."""


saved: ContextVar[Messages | None] = ContextVar("saved", default=None)
"""Messages of the running pass; None: it saves none."""


def save_result(*result: Any) -> None:
    """Save the result of an exchange if this pass records results."""
    messages = saved.get()
    if messages is not None and not messages.is_second:
        # Views without gradients: the pass that reads them makes its own graph.
        kept = (item.detach() if isinstance(item, Tensor) else item for item in result)
        messages.results.append(tuple(kept))


def is_second_pass() -> bool:
    """True in a recomputation with saved results, which sends nothing."""
    messages = saved.get()
    return messages is not None and messages.is_second


def saved_result() -> tuple[Any, ...] | None:
    """The next result of the first pass; None in the first pass, or if no results are saved."""
    messages = saved.get() if is_second_pass() else None
    return None if messages is None else messages.results.popleft()


@contextmanager
def only_sent() -> Iterator[None]:
    """Mark a result computed within the block as only sent."""
    messages = saved.get()
    if messages is None:
        yield
        return
    messages.is_sent = True
    try:
        yield
    finally:
        messages.is_sent = False


def compute_sent(compute: Callable[[], Tensor], shape: Tensor) -> Tensor:
    """Compute the result of a module; if it is only sent, neither save nor recompute it.

    Arguments:
        shape: a tensor with the shape and dtype of the result.
    """
    messages = saved.get()
    if messages is None or not messages.is_sent:
        return compute()
    if messages.is_second:
        return shape.new_empty_strided(shape.shape, (0,) * shape.dim())  # no memory, and no view
    messages.is_unread = True
    try:
        return compute()
    finally:
        messages.is_unread = False


@dataclass(frozen=True, slots=True)
class BroadcastReader:
    """Reader for a group: its first rank reads and sends to the others.

    All ranks call the same methods in the same order. Tensors are sent on `device`.
    """

    group: ProcessGroup
    device: torch.device

    @property
    def source(self) -> int:
        """Global rank of the reader."""
        return distributed.get_global_rank(self.group, 0)

    @property
    def is_source(self) -> bool:
        """True on the reader."""
        return distributed.get_rank() == self.source

    def read(self, act: Callable[[], None]) -> None:
        """Run a function on the reader only.

        Raises:
            SetpointError: raised by the function; other ranks raise a `RunError` with the same
                text.
        """
        message: list[str | None] = [None]
        failure: SetpointError | None = None
        if self.is_source:
            try:
                act()
            except SetpointError as error:
                failure, message[0] = error, str(error)
        distributed.broadcast_object_list(
            message, src=self.source, group=self.group, device=self.device
        )
        if failure is not None:
            raise failure
        if message[0] is not None:
            raise RunError(f"rank {self.source} could not read: {message[0]}")

    def tensor(
        self, read: Callable[[], Tensor], shape: Sequence[int], dtype: torch.dtype
    ) -> Tensor:
        """Read a tensor of known shape and dtype to `device` on all ranks."""
        tensors: list[Tensor] = []
        self.read(lambda: tensors.append(read()))
        sent = (tensors[0] if tensors else torch.empty(shape, dtype=dtype)).to(self.device)
        distributed.broadcast(sent, src=self.source, group=self.group)
        return sent

    @torch.no_grad()
    def send(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors with the reader's values."""
        for tensor in tensors:
            tensor.copy_(self.tensor(lambda tensor=tensor: tensor, tensor.shape, tensor.dtype))
