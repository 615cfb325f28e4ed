"""Expert parallelism: tokens are sent to the ranks of their experts, and results back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable

from setpoint.model.block_modules import cast_once
from setpoint.model.config import TransformerConfig
from setpoint.model.moe.experts import Assignments, gather, spread, sum_choices
from setpoint.parallel.config import DeepEP
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

    from setpoint.model.config import ModelConfig
    from setpoint.parallel.config import Dispatch


class TokenDispatcher(Protocol):
    """Computes the weighted sum over each token's experts, on the ranks that have them."""

    def __call__(
        self, experts: nn.Module, x: Tensor, weights: Tensor, assigned: Assignments
    ) -> Callable[[], Tensor]:
        """Send tokens to their experts, and start to send the results back.

        Arguments:
            experts: those of this rank, called as `PackedExperts` are.
            x, weights, assigned: see `PackedExperts.forward`; of all experts.

        Returns:
            a function that waits for the results and returns the (T, dim) sums; what is computed
            before it is called does not wait for the network.
        """
        ...


def run_locally(
    experts: nn.Module, x: Tensor, weights: Tensor, assigned: Assignments
) -> Callable[[], Tensor]:
    """Compute with all experts on this rank, as a `TokenDispatcher` that sends nothing."""
    y = experts(x, weights, assigned)
    return lambda: y


class AllToAllDispatcher:
    """Sends one row for each choice to the rank of its expert, by all-to-all of uneven parts.

    The experts of rank 0 of the group come first, then those of rank 1, and so on, as many on each.
    The weight of a choice is sent with its row, so that experts are computed, and gradients
    rounded, as where all lie on one rank. The host waits for the device once in a forward pass, to
    read the numbers of rows.

    Arguments:
        group: the ranks that divide the experts.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.group, self.ranks = group, group.size()

    def __call__(
        self, experts: nn.Module, x: Tensor, weights: Tensor, assigned: Assignments
    ) -> Callable[[], Tensor]:
        slots, _, factors = assigned
        arriving, sent, received = saved_result() or self.announce(assigned)

        rows = gather(cast_once(x), slots, weights.shape[1])
        scales = weights.flatten().index_select(0, slots).unsqueeze(1)
        if factors is not None:
            scales = torch.cat((scales, factors.unsqueeze(1).to(scales.dtype)), dim=1)
        rows, scales = _ExchangeRows.apply(received, sent, self.group, rows, scales)
        # Rows come sorted by rank, then by expert, and each expert takes all of its rows at once.
        numbers = torch.arange(arriving.shape[1], device=x.device).repeat(self.ranks)
        of_row = numbers.repeat_interleave(arriving.flatten(), output_size=len(rows))
        order = of_row.argsort(stable=True)
        if factors is not None:
            factors = scales[:, 1].detach().index_select(0, order).to(rows.dtype)
        local = Assignments(order, arriving.sum(0).cumsum(0), factors)
        with only_sent():
            results = experts(rows, scales[:, :1], local)
        pending: list[Work] = []
        back = _SendBack.apply(sent, received, self.group, pending, results)
        return lambda: _SumReturned.apply(back, slots, weights.shape, pending)

    def announce(self, assigned: Assignments) -> tuple[Tensor, list[int], list[int]]:
        """Send each rank the numbers of rows for its experts.

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
        """Numbers of rows to each rank, and from each.

        Arguments:
            leaving, arriving: (ranks, experts of a rank) rows for each expert.
            rows: total that leaves.
        """
        del rows  # for the dry run, whose tensors have no data
        sent, received = torch.stack((leaving.sum(1), arriving.sum(1))).tolist()
        return sent, received


class TensorParallelDispatcher:
    """Dispatches tokens that several ranks share, as under tensor parallelism.

    Arguments:
        inner: dispatches among ranks with different tokens.
        peers: the ranks with the same tokens.
        divides: whether each of them computes a part of the width of all experts, for all
            tokens; else each takes an equal share of the tokens through whole experts.
    """

    def __init__(self, inner: TokenDispatcher, peers: Peers, divides: bool) -> None:
        self.inner, self.peers, self.divides = inner, peers, divides

    def __call__(
        self, experts: nn.Module, x: Tensor, weights: Tensor, assigned: Assignments
    ) -> Callable[[], Tensor]:
        """See `TokenDispatcher`; the result is the same on all these ranks."""
        x, weights = sum_gradients(x, self.peers), sum_gradients(weights, self.peers)
        if not self.divides:
            assigned = self.share(len(x), weights.shape[1], assigned)
        finish = self.inner(experts, x, weights, assigned)
        return lambda: sum_parts(finish(), self.peers)

    def share(self, tokens: int, top_k: int, assigned: Assignments) -> Assignments:
        """Keep the rows of this rank's share of the tokens."""
        rank, ranks = self.peers.rank, self.peers.size
        first, last = tokens * rank // ranks * top_k, tokens * (rank + 1) // ranks * top_k
        slots, ends, factors = assigned
        local = (slots >= first) & (slots < last)
        ends = torch.cat((ends.new_zeros(1), local.cumsum(0))).index_select(0, ends)
        return Assignments(slots[local], ends, None if factors is None else factors[local])


def build_dispatcher(
    dispatch: Dispatch,
    model: ModelConfig,
    group: ProcessGroup | None,
    same_tokens: Peers | None,
    divides: bool,
    is_compiled: bool = False,
) -> TokenDispatcher:
    """Build the dispatcher that all layers of a model share.

    Arguments:
        group, same_tokens, divides: see `setpoint.parallel.expert_ranks.ExpertRanks`.

    Raises:
        SetpointError: DeepEP is asked for and not installed.
    """
    dispatcher: TokenDispatcher = run_locally
    if group is not None and isinstance(dispatch, DeepEP):
        assert isinstance(model, TransformerConfig) and model.moe is not None
        from setpoint.model.moe.deepep import DeepEPDispatcher

        dispatcher = DeepEPDispatcher(group, model.moe.experts, dispatch)
    elif group is not None:
        dispatcher = AllToAllDispatcher(group)
    if same_tokens is not None:
        dispatcher = TensorParallelDispatcher(dispatcher, same_tokens, divides)
    if is_compiled:
        # The number of rows is data: compiled code ends before, and goes on after.
        dispatcher = cast("TokenDispatcher", torch.compiler.disable(dispatcher))
    return dispatcher


class _ExchangeRows(torch.autograd.Function):
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
        saved = saved_result()
        if saved is not None:
            return saved
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


class _SendBack(torch.autograd.Function):
    """Start to send results of experts back; `_SumReturned` waits for them."""

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


class _SumReturned(torch.autograd.Function):
    """Sum returned rows over the choices of each token; the sums are saved, not the rows."""

    @staticmethod
    def forward(
        ctx: Any, back: Tensor, slots: Tensor, shape: torch.Size, pending: list[Work]
    ) -> Tensor:
        ctx.save_for_backward(slots)
        ctx.top_k = shape[1]
        saved = saved_result()
        if saved is not None:
            return saved[0]
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
    """Start to exchange the rows of tensors; return the results and the work to wait for."""
    arrived = tuple(t.new_empty(sum(received), *t.shape[1:]) for t in tensors)
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
