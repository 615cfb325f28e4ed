"""PyTorch's own kernel for sequences of different lengths."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from setpoint.model.attention.layout import Layout
from setpoint.model.attention.packed import Packed, attend_packed, pack


class Varlen:
    """`torch.nn.attention.varlen.varlen_attn`, on a GPU in bf16 or fp16.

    Arguments:
        function: that function; it can be replaced to be looked at.
    """

    def __init__(self, function: Any = None) -> None:
        if function is None:
            from torch.nn.attention.varlen import varlen_attn as function
        self.function = function
        # Before PyTorch 2.12 grouped queries were taken without asking.
        self.asks_for_groups = "enable_gqa" in inspect.signature(function).parameters

    def prepare_mask(self, layout: Layout, window: int | None) -> Packed:
        """Find the sequences.

        Arguments:
            window: positions that one sees, itself included; None: all before it.
        """
        return pack(layout, window)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Packed,
        *,
        scale: float | None = None,
        soft_cap: float | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """Mix the values that each query sees.

        Arguments:
            scale: of the products; None: 1 / sqrt(D).
        """
        assert soft_cap is None
        assert dropout == 0.0
        options: dict[str, Any] = {"scale": scale, "window_size": mask.window}
        if self.asks_for_groups:
            options["enable_gqa"] = query.shape[2] != key.shape[2]

        def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            result = self.function(
                query,
                key,
                value,
                mask.query_starts,
                mask.key_starts,
                mask.longest_query,
                mask.longest_key,
                **options,
            )
            assert isinstance(result, torch.Tensor)
            return result

        return attend_packed(kernel, query, key, value, mask)
