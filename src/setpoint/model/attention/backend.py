"""What a backend of attention offers, and which one computes it on a device."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from setpoint.config import SetpointError
from setpoint.model.attention.config import Backend as BackendName
from setpoint.model.attention.eager import Eager
from setpoint.model.attention.layout import Layout
from setpoint.model.attention.sdpa import SDPA
from setpoint.model.attention.support import GPU_ONLY, chosen

if TYPE_CHECKING:
    from setpoint.model.config import Transformer as TransformerConfig


class Backend(Protocol):
    """One way to compute softmax(scale * Q K^T) V among the positions that are visible."""

    def prepare_mask(self, layout: Layout, window: int | None) -> Any:
        """Prepare what is visible, once for all layers of a kind.

        Arguments:
            window: positions that one sees, itself included; None: all before it.

        Returns:
            what `attend` takes as `mask`.
        """
        ...

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        *,
        scale: float | None = None,
        soft_cap: float | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """Mix the values that each query sees.

        Arguments:
            key: (B, L, K, D); each key-value head serves H / K query heads in a row.
            value: (B, L, K, V); V may differ from D where the backend takes that.
            mask: from `prepare_mask`.
            scale: of the products; None: 1 / sqrt(D).
            soft_cap: scaled products x become soft_cap * tanh(x / soft_cap); None: they stay.
        """
        ...


def choose_backend(config: TransformerConfig, device: torch.device) -> Backend:
    """Find the backend of a model on a device.

    Raises:
        SetpointError: it does not run on that device, or its package is missing.
    """
    name = chosen(config)
    reason = missing(name, device.type)
    if reason is not None:
        raise SetpointError(f"model.attention_backend = {name}: {reason}; use auto, sdpa or eager")
    return _backend(name)


def _backend(name: BackendName) -> Backend:
    match name:
        case "eager":
            return Eager()
        case "flex":
            from setpoint.model.attention.flex import Flex

            return Flex()
        case "varlen":
            from setpoint.model.attention.packed import Varlen

            return Varlen()
        case "flash_attention":
            from setpoint.model.attention.packed import Flash

            return Flash()
        case _:
            return SDPA(name)


def missing(name: BackendName, device: str) -> str | None:
    """Find what a backend lacks on a kind of device.

    Returns:
        what is missing, in words; None if nothing is.
    """
    if name in GPU_ONLY and device != "cuda":
        return f"it needs a GPU, and the device is {device}"
    if name == "flash_attention" and find_spec("flash_attn") is None:
        return "the package flash-attn is not installed (pip install flash-attn)"
    if name == "varlen" and find_spec("torch.nn.attention.varlen") is None:
        return f"PyTorch {torch.__version__} has no varlen_attn, which came with 2.10"
    if name == "flex" and device == "cuda" and find_spec("triton") is None:
        return "its kernels are written in Triton, which is not installed (pip install triton)"
    return None
