"""Experts divided among ranks: tokens travel to the ranks of their experts, and results back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable

from setpoint.model.autocast import cast_once
from setpoint.model.moe.assign import Assignments
from setpoint.model.moe.rows import gather, spread, sum_choices
from setpoint.shapes.peers import (
    Peers,
    is_second_pass,
    only_sent,
    save_result,
    saved_result,
    sum_gradients,
    sum_parts,
)

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work


class Exchange(Protocol):
    """Computes the sum over the choices of each token, wherever the experts lie."""

    def __call__(
        self,
        experts: nn.Module,
        x: Tensor,
        weights: Tensor,
        assigned: Assignments,
        factors: Tensor | None = None,
    ) -> Callable[[], Tensor]:
        """Send tokens to their experts, and start to bring the results back.

        Arguments:
            experts: those of this rank, called as `PackedExperts` are.
            x, weights, assigned, factors: see `PackedExperts.forward`; of all experts.

        Returns:
            waits for the results and gives their sum; what is computed before it is called does not
            wait for the network.
        """
        ...


def here(
    experts: nn.Module,
    x: Tensor,
    weights: Tensor,
    assigned: Assignments,
    factors: Tensor | None = None,
) -> Callable[[], Tensor]:
    """All experts are on this rank, and nothing travels, as an `Exchange`."""
    y = experts(x, weights, assigned, factors)
    return lambda: y


class AllToAll:
    """One row for each choice goes to the rank of its expert, by all-to-all of uneven parts.

    The experts of rank 0 of the group come first, then those of rank 1, and so on, as many on each.
    The weight of a choice travels with its row, so that experts are computed, and gradients
    rounded, as where all lie on one rank. How many rows travel is known on the host only
    after it has waited for the device: once in a forward pass.

    Arguments:
        group: the ranks that divide the experts.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.group, self.ranks = group, group.size()

    def __call__(
        self,
        experts: nn.Module,
        x: Tensor,
        weights: Tensor,
        assigned: Assignments,
        factors: Tensor | None = None,
    ) -> Callable[[], Tensor]:
        """See `Exchange`."""
        slots, top_k = assigned.slots, weights.shape[1]
        arriving, sent, received = saved_result() or self.announce(assigned)

        rows = gather(cast_once(x), slots, top_k)
        own = weights.flatten().index_select(0, slots).unsqueeze(1)
        if factors is not None:
            own = torch.cat((own, factors.unsqueeze(1).to(own.dtype)), dim=1)
        rows, own = self.exchange(received, sent, rows, own)
        # Rows come sorted by rank, then by expert, and experts take all of theirs at once.
        numbers = torch.arange(arriving.shape[1], device=x.device).repeat(self.ranks)
        of_row = numbers.repeat_interleave(arriving.flatten(), output_size=len(rows))
        order = of_row.argsort(stable=True)
        ends = arriving.sum(0).cumsum(0)
        here = Assignments(order, ends, ends, ends)
        if factors is not None:
            factors = own[:, 1].detach().index_select(0, order).to(rows.dtype)
        with only_sent():
            results = experts(rows, own[:, :1], here, factors)
        pending: list[Work] = []
        back = _Return.apply(sent, received, self.group, pending, results)
        return lambda: _Combine.apply(back, slots, weights.shape, pending)

    def announce(self, assigned: Assignments) -> tuple[Tensor, list[int], list[int]]:
        """Tell each rank how many rows its experts get.

        Returns:
            (ranks, experts of a rank) rows that arrive; rows to each rank, and from each.
        """
        leaving = assigned.ends.diff(prepend=assigned.ends.new_zeros(1))
        arriving = torch.empty_like(leaving)
        distributed.all_to_all_single(arriving, leaving, group=self.group)
        leaving, arriving = leaving.view(self.ranks, -1), arriving.view(self.ranks, -1)
        sent, received = self.rows_by_rank(leaving, arriving, len(assigned.slots))
        save_result(arriving, sent, received)
        return arriving, sent, received

    def rows_by_rank(
        self, leaving: Tensor, arriving: Tensor, rows: int
    ) -> tuple[list[int], list[int]]:
        """How many rows go to each rank, and come from each.

        Arguments:
            leaving, arriving: (ranks, experts of a rank) rows for each expert.
            rows: that leave, of all.
        """
        del rows  # a dry run, which has no numbers, tells the others from it
        sent, received = torch.stack((leaving.sum(1), arriving.sum(1))).tolist()
        return sent, received

    def exchange(
        self,
        received: list[int],
        sent: list[int],
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        """Send parts of rows to the ranks in order, and get theirs, with gradients.

        Arguments:
            received, sent: the number of rows from and to each rank.
            tensors: of as many rows each; they are under way at the same time.
        """
        return _Exchange.apply(received, sent, self.group, *tensors)


class OverTensor:
    """An exchange among ranks of which several hold the same tokens, as tensor parallelism has it.

    Arguments:
        inner: among ranks with different tokens.
        peers: the ranks with the same tokens.
        divides: whether each of them computes a part of the width of all experts, for all
            tokens; else each takes an equal share of the tokens through whole experts.
    """

    def __init__(self, inner: Exchange, peers: Peers, divides: bool) -> None:
        self.inner, self.peers, self.divides = inner, peers, divides

    def __call__(
        self,
        experts: nn.Module,
        x: Tensor,
        weights: Tensor,
        assigned: Assignments,
        factors: Tensor | None = None,
    ) -> Callable[[], Tensor]:
        """See `Exchange`; the result is the same on all these ranks."""
        x, weights = sum_gradients(x, self.peers), sum_gradients(weights, self.peers)
        if not self.divides:
            assigned, factors = self.share(len(x), weights.shape[1], assigned, factors)
        finish = self.inner(experts, x, weights, assigned, factors)
        return lambda: sum_parts(finish(), self.peers)

    def share(
        self, tokens: int, top_k: int, assigned: Assignments, factors: Tensor | None
    ) -> tuple[Assignments, Tensor | None]:
        """Leave the rows of this rank's share of the tokens."""
        rank, ranks = self.peers.rank, self.peers.size
        first, last = tokens * rank // ranks * top_k, tokens * (rank + 1) // ranks * top_k
        slots, ends = assigned.slots, assigned.ends
        mine = (slots >= first) & (slots < last)
        count = torch.cat((ends.new_zeros(1), mine.cumsum(0))).index_select(0, ends)
        held = assigned._replace(slots=slots[mine], ends=count, parts=None)
        return held, None if factors is None else factors[mine]


class _Exchange(torch.autograd.Function):
    """All-to-all of rows; gradients go the same way back."""

    @staticmethod
    def forward(
        ctx: Any,
        received: list[int],
        sent: list[int],
        group: ProcessGroup,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.received, ctx.sent, ctx.group = received, sent, group
        before = saved_result()
        if before is not None:
            return before
        arrived, works = _exchanged(tensors, received, sent, group)
        save_result(*arrived)
        _wait(works)
        return arrived

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator is untyped
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, ...]:
        back, works = _exchanged(gradients, ctx.sent, ctx.received, ctx.group)
        _wait(works)
        return None, None, None, *back


class _Return(torch.autograd.Function):
    """Start to send results of experts back; `_Combine` waits for them."""

    @staticmethod
    def forward(
        ctx: Any,
        received: list[int],
        sent: list[int],
        group: ProcessGroup,
        pending: list[Work],
        results: Tensor,
    ) -> Tensor:
        ctx.received, ctx.sent, ctx.group = received, sent, group
        if is_second_pass():  # sums are saved, and nothing reads the rows
            return results.new_empty(1).expand(sum(received), results.shape[1])
        (back,), works = _exchanged((results,), received, sent, group)
        pending += works
        return back

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator is untyped
        ctx: Any, gradient: Tensor
    ) -> tuple[None, None, None, None, Tensor]:
        (back,), works = _exchanged((gradient,), ctx.sent, ctx.received, ctx.group)
        _wait(works)
        return None, None, None, None, back


class _Combine(torch.autograd.Function):
    """Sums over the choices of each token, of rows that come back: saved in place of these."""

    @staticmethod
    def forward(
        ctx: Any, back: Tensor, slots: Tensor, shape: torch.Size, pending: list[Work]
    ) -> Tensor:
        ctx.save_for_backward(slots)
        ctx.top_k = shape[1]
        before = saved_result()
        if before is not None:
            return before[0]
        _wait(pending)
        y = sum_choices(spread(back, slots, shape.numel()).unflatten(0, shape))
        save_result(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator is untyped
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor, None, None, None]:
        (slots,) = ctx.saved_tensors
        rows = gradient.index_select(0, slots.div(ctx.top_k, rounding_mode="floor"))
        return rows, None, None, None


def _exchanged(
    tensors: Sequence[Tensor], received: list[int], sent: list[int], group: ProcessGroup
) -> tuple[tuple[Tensor, ...], list[Work]]:
    """Start to exchange the rows of tensors, and return what is to be waited for."""
    arrived = tuple(each.new_empty(sum(received), *each.shape[1:]) for each in tensors)
    works: list[Work] = []
    for into, rows in zip(arrived, tensors, strict=True):
        work = distributed.all_to_all_single(
            into, rows.contiguous(), received, sent, group=group, async_op=True
        )
        assert work is not None
        works.append(work)
    return arrived, works


def _wait(works: Sequence[Work]) -> None:
    for work in works:
        work.wait()
