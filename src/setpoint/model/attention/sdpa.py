"""PyTorch's scaled dot product attention, by the kernel it chooses or by a named one."""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from setpoint.config import SetpointError
from setpoint.model.attention.layout import Layout, visible

KERNELS = {
    "sdpa": None,
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_math": SDPBackend.MATH,
}


class SdpaMask(NamedTuple):
    """What scaled dot product attention takes.

    Arguments:
        is_causal: each position sees itself and all before it, and S = L.
        mask: (1, 1, S, L) or (B, 1, S, L) bool; None: nothing else is hidden.
    """

    is_causal: bool
    mask: Tensor | None = None


class SDPA:
    """`torch.nn.functional.scaled_dot_product_attention`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kernel = KERNELS[name]

    def prepare_mask(self, layout: Layout, window: int | None) -> SdpaMask:
        """Make a mask, where causality alone does not say it.

        Arguments:
            window: positions that one sees, itself included; None: all before it.

        Raises:
            SetpointError: the kernel takes no mask.
        """
        if layout.is_causal(window):
            return SdpaMask(is_causal=True)
        if layout.is_last(window):
            return SdpaMask(is_causal=False)
        if self.name == "sdpa_flash" and layout.device.type == "cuda":
            raise SetpointError(
                "model.attention_backend = sdpa_flash takes no mask on a GPU, which windows, "
                "documents and padding need; use sdpa, flex, varlen or flash_attention"
            )
        return SdpaMask(is_causal=False, mask=visible(layout, window))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: SdpaMask,
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
        if self._needs_equal_heads(query, mask):
            key, value = (repeat_heads(x, query.shape[2] // x.shape[2]) for x in (key, value))
        with self._chosen():
            mixed = F.scaled_dot_product_attention(
                query.transpose(1, 2),
                key.transpose(1, 2),
                value.transpose(1, 2),
                attn_mask=mask.mask,
                dropout_p=dropout,
                is_causal=mask.is_causal,
                scale=scale,
                enable_gqa=query.shape[2] != key.shape[2],
            )
        return mixed.transpose(1, 2)

    def _needs_equal_heads(self, query: Tensor, mask: SdpaMask) -> bool:
        # The memory-efficient kernel, the only one but cuDNN's that takes masks on a GPU, knows
        # no grouped queries; without it PyTorch falls back to holding all the weights.
        return self.name == "sdpa_efficient" or (
            self.name == "sdpa" and mask.mask is not None and query.is_cuda
        )

    def _chosen(self) -> AbstractContextManager[object]:
        return nullcontext() if self.kernel is None else sdpa_kernel(self.kernel)


def repeat_heads(x: Tensor, times: int) -> Tensor:
    """Give each query head a key-value head of its own.

    Returns:
        (B, L, K * times, D), each head `times` in a row.
    """
    return x if times == 1 else torch.repeat_interleave(x, times, dim=2)
