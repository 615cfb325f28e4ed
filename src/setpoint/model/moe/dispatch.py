"""Expert parallelism: tokens are sent to the ranks of their experts, and results are sent back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable

from setpoint.config import SetpointError
from setpoint.model.block_modules import cast_once
from setpoint.model.config import TransformerConfig
from setpoint.model.moe.experts import Assignments, gather, row_groups, spread, sum_choices
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
        """Send tokens to their experts, and start sending the results back.

        Arguments:
            experts: experts of this rank, called like `PackedExperts`.
            x, weights, assigned: see `PackedExperts.forward`; for all experts.

        Returns:
            a function that waits for the results and returns the (T, dim) sums; work done before
            calling it overlaps with communication.
        """
        ...


def run_locally(
    experts: nn.Module, x: Tensor, weights: Tensor, assigned: Assignments
) -> Callable[[], Tensor]:
    """Compute with all experts on this rank, as a `TokenDispatcher` that sends nothing."""
    y = experts(x, weights, assigned)
    return lambda: y


class AllToAllDispatcher:
    """Sends one row per choice to the rank of its expert, by all-to-all with uneven parts.

    The experts of rank 0 of the group come first, then those of rank 1, and so on, equally many on
    each. The weight of a choice is sent with its row, so that results, and rounding of gradients,
    are the same as with all experts on one rank. The host waits for the device once per forward
    pass, to read the numbers of rows.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.group, self.ranks = group, group.size()

    def __call__(
        self, experts: nn.Module, x: Tensor, weights: Tensor, assigned: Assignments
    ) -> Callable[[], Tensor]:
        slots, _, factors = assigned
        arriving, sent, received = saved_result() or self.exchange_counts(assigned)

        rows = gather(cast_once(x), slots, weights.shape[1])
        scales = weights.flatten().index_select(0, slots).unsqueeze(1)
        if factors is not None:
            scales = torch.cat((scales, factors.unsqueeze(1).to(scales.dtype)), dim=1)
        rows, scales = _ExchangeRows.apply(received, sent, self.group, rows, scales)
        # Rows are sorted by rank, then by expert, and each expert takes all of its rows at once.
        numbers = torch.arange(arriving.shape[1], device=x.device).repeat(self.ranks)
        row_experts = numbers.repeat_interleave(arriving.flatten(), output_size=len(rows))
        order = row_experts.argsort(stable=True)
        if factors is not None:
            factors = scales[:, 1].detach().index_select(0, order).to(rows.dtype)
        local = Assignments(order, arriving.sum(0).cumsum(0), factors)
        with only_sent():
            results = experts(rows, scales[:, :1], local)
        pending: list[Work] = []
        returned = _SendBack.apply(sent, received, self.group, pending, results)
        return lambda: _SumReturned.apply(returned, slots, weights.shape, pending)

    def exchange_counts(self, assigned: Assignments) -> tuple[Tensor, list[int], list[int]]:
        """Tell each rank the numbers of rows for its experts.

        Returns:
            (ranks, experts per rank) numbers of arriving rows; numbers of rows to each rank, and
            from each rank.
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
        """Numbers of rows to each rank, and from each rank.

        Arguments:
            leaving, arriving: (ranks, experts per rank) rows for each expert.
            rows: total number of leaving rows, for the dry run, whose tensors have no data.
        """
        sent, received = torch.stack((leaving.sum(1), arriving.sum(1))).tolist()
        return sent, received


class TensorParallelDispatcher:
    """Dispatches tokens that several ranks share, as in tensor parallelism.

    Arguments:
        inner: dispatches among ranks with different tokens.
        peers: the ranks with the same tokens.
        divides: whether each peer computes a part of the width of all experts, for all tokens;
            otherwise each processes an equal share of the tokens with whole experts.
    """

    def __init__(self, inner: TokenDispatcher, peers: Peers, divides: bool) -> None:
        self.inner, self.peers, self.divides = inner, peers, divides

    def __call__(
        self, experts: nn.Module, x: Tensor, weights: Tensor, assigned: Assignments
    ) -> Callable[[], Tensor]:
        """See `TokenDispatcher`; the result is equal on all these ranks."""
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
    """Build the dispatcher shared by all layers of a model."""
    dispatcher: TokenDispatcher = run_locally
    if group is not None and isinstance(dispatch, DeepEP):
        assert isinstance(model, TransformerConfig) and model.moe is not None
        dispatcher = DeepEPDispatcher(group, model.moe.experts, dispatch)
    elif group is not None:
        dispatcher = AllToAllDispatcher(group)
    if same_tokens is not None:
        dispatcher = TensorParallelDispatcher(dispatcher, same_tokens, divides)
    if is_compiled:
        # The number of rows is data: compiled code ends before, and resumes after.
        dispatcher = cast("TokenDispatcher", torch.compiler.disable(dispatcher))
    return dispatcher


class _ExchangeRows(torch.autograd.Function):
    """All-to-all of rows; gradients go the same way back."""

    @staticmethod
    def forward(
        ctx: Any, received: list[int], sent: list[int], group: ProcessGroup, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.received, ctx.sent, ctx.group = received, sent, group
        saved = saved_result()
        if saved is not None:
            return saved
        arrived, works = _exchange(tensors, received, sent, group)
        save_result(*arrived)
        _wait(works)
        return arrived

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        returned, works = _exchange(gradients, ctx.sent, ctx.received, ctx.group)
        _wait(works)
        return None, None, None, *returned


class _SendBack(torch.autograd.Function):
    """Starts sending results of experts back; `_SumReturned` waits for them."""

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
        (returned,), works = _exchange((results,), received, sent, group)
        pending += works
        return returned

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, None, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (returned,), works = _exchange((gradient,), ctx.sent, ctx.received, ctx.group)
        _wait(works)
        return None, None, None, None, returned


class _SumReturned(torch.autograd.Function):
    """Sums returned rows over the choices of each token; saves the sums, not the rows."""

    @staticmethod
    def forward(
        ctx: Any, returned: Tensor, slots: Tensor, shape: torch.Size, pending: list[Work]
    ) -> Tensor:
        ctx.save_for_backward(slots)
        ctx.top_k = shape[1]
        saved = saved_result()
        if saved is not None:
            return saved[0]
        _wait(pending)
        y = sum_choices(spread(returned, slots, shape.numel()).unflatten(0, shape))
        save_result(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (slots,) = ctx.saved_tensors
        rows = gradient.index_select(0, slots.div(ctx.top_k, rounding_mode="floor"))
        return rows, None, None, None


def _exchange(
    tensors: Sequence[Tensor], received: list[int], sent: list[int], group: ProcessGroup
) -> tuple[tuple[Tensor, ...], list[Work]]:
    """Start exchanging the rows of tensors; return the results and the work to wait for."""
    arrived = tuple(t.new_empty(sum(received), *t.shape[1:]) for t in tensors)
    works: list[Work] = []
    for target, rows in zip(arrived, tensors, strict=True):
        work = distributed.all_to_all_single(
            target, rows.contiguous(), received, sent, group=group, async_op=True
        )
        assert work is not None
        works.append(work)
    return arrived, works


def _wait(works: Sequence[Work]) -> None:
    for work in works:
        work.wait()


class DeepEPDispatcher:
    """A `TokenDispatcher` that uses DeepEP (https://github.com/deepseek-ai/DeepEP).

    Kernels send a token once to each rank with an expert that it chose. Follows the use of `Buffer`
    in DeepEP's documentation of training; so far run only with a stand-in for that class, not on
    GPUs. The buffer is allocated when the first tokens arrive, since their width determines its
    size.

    Raises:
        SetpointError: DeepEP is not installed, or cannot be loaded.
    """

    def __init__(self, group: ProcessGroup, experts: int, config: DeepEP) -> None:
        try:
            from deep_ep import Buffer  # pyright: ignore[reportMissingImports]  # optional
        except (ImportError, OSError) as error:
            raise SetpointError(
                f"parallel.dispatch = deepep: the package deep_ep cannot be loaded: {error}\n"
                f"Valid: all_to_all, or install DeepEP"
            ) from error
        self.make: Any = Buffer
        self.make.set_num_sms(config.sms)
        self.group, self.experts = group, experts
        self.buffer_size, self.async_combine = config.buffer_size, config.async_combine
        self._buffer: Any = None

    def __call__(
        self, experts: nn.Module, x: Tensor, weights: Tensor, assigned: Assignments
    ) -> Callable[[], Tensor]:
        """See `TokenDispatcher`; gradient factors are not supported."""
        assert assigned.factors is None, "refused by the table of what does not go together"
        x = cast_once(x)
        if x.dtype != torch.bfloat16:
            raise SetpointError(
                f"parallel.dispatch = deepep sends bf16, but the model computes in {x.dtype}\n"
                f"Valid: precision.compute = bf16, or all_to_all"
            )
        sent = _DispatchedRows(self._buffer_for(x), _chosen(assigned, weights.shape), self.experts)
        rows, chosen, row_weights = _DispatchTokens.apply(x, weights.float(), sent)
        ends = torch.tensor(sent.rows, device=x.device).cumsum(0)
        # Choices of experts on other ranks, -1, are sorted to the front, and are not rows here.
        order = chosen.flatten().argsort(stable=True)
        slots = order[chosen.numel() - sum(sent.rows) :]
        with only_sent():
            results = experts(rows, row_weights, Assignments(slots, ends))
        pending: list[Any] = []
        y = _CombineResults.apply(results, sent, pending if self.async_combine else None)

        def finish() -> Tensor:
            for event in pending:
                event.current_stream_wait()
            return y

        return finish

    def _buffer_for(self, x: Tensor) -> Any:
        """Make the buffer once; its size must be equal on all ranks."""
        if self._buffer is None:
            ranks, width = self.group.size(), x.shape[1] * x.element_size()
            configs = (self.make.get_dispatch_config(ranks), self.make.get_combine_config(ranks))
            near = max(config.get_nvl_buffer_size_hint(width, ranks) for config in configs)
            far = max(config.get_rdma_buffer_size_hint(width, ranks) for config in configs)
            if self.buffer_size < near:
                raise SetpointError(
                    f"parallel.dispatch.buffer_size: DeepEP needs {near:,} bytes for {ranks} ranks "
                    f"and rows of {width:,} bytes, but it is {self.buffer_size:,}\n"
                    f"Valid: {-(-near // 2**20)} MiB or more"
                )
            self._buffer = self.make(self.group, self.buffer_size, far)
        return self._buffer


class _DispatchedRows:
    """State of one dispatch, needed to return the results."""

    def __init__(self, buffer: Any, chosen: Tensor, experts: int) -> None:
        self.buffer, self.chosen, self.experts = buffer, chosen, experts
        # Set by the dispatch: DeepEP's handle for the way back, and the rows of each expert.
        self.handle: Any = None
        self.rows: list[int] = []


def _chosen(assigned: Assignments, shape: torch.Size) -> Tensor:
    """(T, k) experts that accept the choices of each token; -1: dropped."""
    slots, ends, _ = assigned
    experts = row_groups(len(slots), ends)
    empty = torch.full((shape.numel(),), -1, dtype=torch.int64, device=slots.device)
    return empty.index_copy_(0, slots, experts).view(shape)


class _DispatchTokens(torch.autograd.Function):
    """Sends each token once to each rank with an expert that it chose."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Tensor, sent: _DispatchedRows
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.sent = sent
        saved = saved_result()
        if saved is not None:
            rows, chosen, row_weights, sent.rows, sent.handle = saved
            ctx.mark_non_differentiable(chosen)
            return rows, chosen, row_weights
        buffer = sent.buffer
        layout = buffer.get_dispatch_layout(sent.chosen, sent.experts)
        per_rank, per_rdma_rank, per_expert, is_in_rank, _ = layout
        rows, chosen, row_weights, sent.rows, sent.handle, _ = buffer.dispatch(
            x.contiguous(),
            topk_idx=sent.chosen,
            topk_weights=weights.contiguous(),
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_rdma_rank,
            is_token_in_rank=is_in_rank,
            num_tokens_per_expert=per_expert,
        )
        save_result(rows, chosen, row_weights, sent.rows, sent.handle)
        ctx.mark_non_differentiable(chosen)
        return rows, chosen, row_weights

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor, _: Tensor, grad_row_weights: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        # Sums over the ranks that received the token.
        grad_x, grad_weights, _ = ctx.sent.buffer.combine(
            grad.contiguous(), ctx.sent.handle, topk_weights=grad_row_weights.float().contiguous()
        )
        return grad_x, grad_weights, None


class _CombineResults(torch.autograd.Function):
    """Sends the results of each token back, and sums them."""

    @staticmethod
    def forward(
        ctx: Any, results: Tensor, sent: _DispatchedRows, pending: list[Any] | None
    ) -> Tensor:
        ctx.sent = sent
        saved = saved_result()
        if saved is not None:
            return saved[0]
        y, _, event = sent.buffer.combine(
            results.contiguous(), sent.handle, async_finish=pending is not None
        )
        if pending is not None:
            pending.append(event)
        save_result(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        result = ctx.sent.buffer.dispatch(grad.contiguous(), handle=ctx.sent.handle)
        return result[0], None, None
