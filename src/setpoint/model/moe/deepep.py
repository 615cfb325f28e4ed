"""Dispatch by DeepEP's kernels, which send a token once to each rank with an expert it chose.

Written for the `Buffer` that DeepEP's documentation describes for training, with its
high-throughput kernels. It has been run with a stand-in for that class only, not on GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from setpoint.config import SetpointError
from setpoint.model.block_modules import cast_once
from setpoint.model.moe.experts import Assignments, row_groups
from setpoint.shapes.peers import only_sent, save_result, saved_result

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from setpoint.parallel.config import DeepEP


class DeepEPDispatcher:
    """A `TokenDispatcher` by DeepEP (https://github.com/deepseek-ai/DeepEP).

    Its buffer is made for the first tokens, whose width decides its size.

    Arguments:
        group: the ranks that divide the experts.
        experts: number on all ranks.

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
        """See `TokenDispatcher`; without gradient factors."""
        assert assigned.factors is None, "refused by the table of what does not go together"
        x = cast_once(x)
        if x.dtype != torch.bfloat16:
            raise SetpointError(
                f"parallel.dispatch = deepep sends bf16, and the model computes in {x.dtype}\n"
                f"Valid: precision.compute = bf16, or all_to_all"
            )
        sent = _DispatchedRows(self._buffer_for(x), _chosen(assigned, weights.shape), self.experts)
        rows, chosen, own = _DispatchTokens.apply(x, weights.float(), sent)
        ends = torch.tensor(sent.rows, device=x.device).cumsum(0)
        # Choices of experts on other ranks, -1, are sorted to the front, and are no rows here.
        order = chosen.flatten().argsort(stable=True)
        slots = order[chosen.numel() - sum(sent.rows) :]
        with only_sent():
            results = experts(rows, own, Assignments(slots, ends))
        pending: list[Any] = []
        y = _CombineResults.apply(results, sent, pending if self.async_combine else None)

        def finish() -> Tensor:
            for event in pending:
                event.current_stream_wait()
            return y

        return finish

    def _buffer_for(self, x: Tensor) -> Any:
        """Make the buffer once: its size must be the same on all ranks."""
        if self._buffer is None:
            ranks, width = self.group.size(), x.shape[1] * x.element_size()
            configs = (self.make.get_dispatch_config(ranks), self.make.get_combine_config(ranks))
            near = max(config.get_nvl_buffer_size_hint(width, ranks) for config in configs)
            far = max(config.get_rdma_buffer_size_hint(width, ranks) for config in configs)
            if self.buffer_size < near:
                raise SetpointError(
                    f"parallel.dispatch.buffer_size: DeepEP needs {near:,} bytes for {ranks} ranks "
                    f"and rows of {width:,} bytes, and it is {self.buffer_size:,}\n"
                    f"Valid: {-(-near // 2**20)} MiB or more"
                )
            self._buffer = self.make(self.group, self.buffer_size, far)
        return self._buffer


class _DispatchedRows:
    """State of one dispatch, which its way back needs."""

    def __init__(self, buffer: Any, chosen: Tensor, experts: int) -> None:
        self.buffer, self.chosen, self.experts = buffer, chosen, experts
        # Set by the dispatch: DeepEP's handle for the way back, and the rows of each expert.
        self.handle: Any = None
        self.rows: list[int] = []


def _chosen(assigned: Assignments, shape: torch.Size) -> Tensor:
    """(T, k) the experts that take the choices of each token; -1: dropped."""
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
            rows, chosen, own, sent.rows, sent.handle = saved
            ctx.mark_non_differentiable(chosen)
            return rows, chosen, own
        buffer = sent.buffer
        layout = buffer.get_dispatch_layout(sent.chosen, sent.experts)
        of_rank, of_rdma_rank, of_expert, is_in_rank, _ = layout
        rows, chosen, own, sent.rows, sent.handle, _ = buffer.dispatch(
            x.contiguous(),
            topk_idx=sent.chosen,
            topk_weights=weights.contiguous(),
            num_tokens_per_rank=of_rank,
            num_tokens_per_rdma_rank=of_rdma_rank,
            is_token_in_rank=is_in_rank,
            num_tokens_per_expert=of_expert,
        )
        save_result(rows, chosen, own, sent.rows, sent.handle)
        ctx.mark_non_differentiable(chosen)
        return rows, chosen, own

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator is untyped
        ctx: Any, grad: Tensor, _: Tensor, grad_own: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        # Sums over the ranks that a token went to.
        grad_x, grad_weights, _ = ctx.sent.buffer.combine(
            grad.contiguous(), ctx.sent.handle, topk_weights=grad_own.float().contiguous()
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
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator is untyped
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor, None, None]:
        result = ctx.sent.buffer.dispatch(grad.contiguous(), handle=ctx.sent.handle)
        return result[0], None, None
