"""How PyTorch computes an optimizer's step: in one kernel, over all tensors, or one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor

from setpoint.config import SetpointError

if TYPE_CHECKING:
    from setpoint.optim.config import Implementation

# The devices with a fused kernel that torch ships (2.11 to 2.13); others are plug-ins.
FUSED_DEVICES = frozenset({"cpu", "cuda", "mps", "xpu"})


def can_fuse(tensors: Iterable[Tensor]) -> bool:
    """Say whether torch has a fused kernel for parameters."""
    return all(t.device.type in FUSED_DEVICES and t.is_floating_point() for t in tensors)


def implementation_flags(
    implementation: Implementation, tensors: Iterable[Tensor]
) -> tuple[bool | None, bool | None]:
    """Translate the field `implementation` into arguments of PyTorch's optimizers.

    Returns:
        `fused` and `foreach`.

    Raises:
        SetpointError: `fused` is demanded where torch has no such kernel.
    """
    held = list(tensors)
    fused = can_fuse(held)
    if implementation == "fused" and not fused:
        devices = ", ".join(sorted({tensor.device.type for tensor in held}))
        raise SetpointError(
            f"optimizer.implementation = fused: PyTorch has no fused kernel for all of these "
            f"parameters (devices: {devices}; it has one for floating-point numbers on "
            f"{', '.join(sorted(FUSED_DEVICES))})\nValid: auto, foreach or loop"
        )
    if implementation in ("foreach", "loop"):
        return False, implementation == "foreach"
    # None leaves the choice among the other implementations to torch, which itself would only
    # refuse `fused` at the first step.
    return fused or None, None
