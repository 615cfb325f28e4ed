"""The kernels of the flash-attn package."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from setpoint.model.attention.layout import Layout
from setpoint.model.attention.packed import Packed, attend_packed, pack


class Flash:
    """FlashAttention 2 (Dao, 2023) by its own package, on a GPU in bf16 or fp16.

    Arguments:
        function: `flash_attn.flash_attn_varlen_func`; it can be replaced to be looked at.
    """

    def __init__(self, function: Any = None) -> None:
        if function is None:
            from flash_attn import (  # pyright: ignore[reportMissingImports]
                flash_attn_varlen_func as function,
            )
        self.function = function

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

        def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return self.function(
                query,
                key,
                value,
                mask.query_starts,
                mask.key_starts,
                mask.longest_query,
                mask.longest_key,
                dropout_p=dropout,
                softmax_scale=scale,
                causal=True,
                window_size=mask.window,
                # The package's way to say: no cap.
                softcap=0.0 if soft_cap is None else soft_cap,
                deterministic=torch.are_deterministic_algorithms_enabled(),
            )

        return attend_packed(kernel, query, key, value, mask)
