"""A `deep_ep` for CPUs: what DeepEP's documentation says of `Buffer`, by gloo and without speed."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Config:
    """How much memory an exchange needs."""

    def get_nvl_buffer_size_hint(self, width: int, ranks: int) -> int:
        return width * ranks

    def get_rdma_buffer_size_hint(self, width: int, ranks: int) -> int:
        return 0


class Event:
    """What an asynchronous call gives; counts how often it is waited for."""

    waited = 0

    def current_stream_wait(self) -> None:
        Event.waited += 1


class Buffer:
    """`deep_ep.Buffer`, for high throughput."""

    sms = 0

    def __init__(self, group: dist.ProcessGroup, near: int, far: int) -> None:
        self.group, self.size, self.far = group, near, far

    @staticmethod
    def set_num_sms(count: int) -> None:
        Buffer.sms = count

    @staticmethod
    def get_dispatch_config(ranks: int) -> Config:
        return Config()

    get_combine_config = get_dispatch_config

    def get_dispatch_layout(self, chosen: Tensor, experts: int) -> tuple[Any, ...]:
        size = experts // self.group.size()
        of_rank = torch.where(chosen >= 0, chosen // size, -1)
        is_in = torch.stack([(of_rank == r).any(1) for r in range(self.group.size())], 1)
        of_expert = torch.stack([(chosen == e).sum() for e in range(experts)])
        return is_in.sum(0), None, of_expert, is_in, Event()

    def dispatch(
        self,
        x: Tensor,
        handle: Any = None,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: None = None,
        is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None,
    ) -> tuple[Any, ...]:
        if handle is not None:
            places, sent, received, _ = handle
            return self._sent(x[places], sent, received), None, None, None, None, Event()
        assert topk_idx is not None and topk_weights is not None and is_token_in_rank is not None
        assert num_tokens_per_expert is not None and topk_weights.dtype == torch.float32
        size = len(num_tokens_per_expert) // self.group.size()
        places = torch.cat([each.nonzero().flatten() for each in is_token_in_rank.T])
        sent = is_token_in_rank.sum(0)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        to = torch.arange(self.group.size()).repeat_interleave(sent).unsqueeze(1)
        chosen = topk_idx[places] - to * size
        elsewhere = (chosen < 0) | (chosen >= size) | (topk_idx[places] < 0)
        weights = topk_weights[places].masked_fill(elsewhere, 0.0)
        chosen = self._sent(chosen.masked_fill(elsewhere, -1), sent, received)
        rows = [int((chosen == e).sum()) for e in range(size)]
        x_here, own = (self._sent(each, sent, received) for each in (x[places], weights))
        return x_here, chosen, own, rows, (places, sent, received, len(x)), Event()

    def combine(
        self, x: Tensor, handle: Any, topk_weights: Tensor | None = None, async_finish: bool = False
    ) -> tuple[Tensor, Tensor | None, Event]:
        places, sent, received, count = handle
        back = self._sent(x, received, sent)
        y = back.new_zeros(count, back.shape[1]).index_add_(0, places, back)
        weights = None
        if topk_weights is not None:
            own = self._sent(topk_weights, received, sent)
            weights = own.new_zeros(count, own.shape[1]).index_add_(0, places, own)
        return y, weights, Event()

    def _sent(self, rows: Tensor, sent: Tensor, received: Tensor) -> Tensor:
        arrived = rows.new_empty(int(received.sum()), *rows.shape[1:])
        dist.all_to_all_single(
            arrived, rows.contiguous(), received.tolist(), sent.tolist(), group=self.group
        )
        return arrived
