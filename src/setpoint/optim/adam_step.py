"""A step of AdamW whose weights, gradients and state may be in different number formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from setpoint.optim.base import decay_where_aligned, local_shard
from setpoint.optim.torch_optimizers import can_fuse
from setpoint.optim.unless import unless

Store = Callable[[Tensor, Tensor], object]
"""Writes a value into a tensor of fewer digits."""


@dataclass(frozen=True, slots=True)
class Adam:
    """One parameter and what AdamW needs for it.

    Arguments:
        exp_avg, exp_avg_sq: running means of the gradient and of its square, updated in place.
        step: steps so far, an fp32 scalar, updated in place.
    """

    parameter: Tensor
    gradient: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    step: Tensor

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The four of the shape of the parameter."""
        return self.parameter, self.gradient, self.exp_avg, self.exp_avg_sq


def adam_of(parameter: Tensor, state: dict[str, Any], dtype: torch.dtype | None) -> Adam:
    """Gather what AdamW needs for a parameter, of what lies on this rank.

    Arguments:
        state: of the optimizer for it; where it is empty, it is made as torch.optim.AdamW makes it.
        dtype: of new running means; None: that of the parameter.
    """
    assert parameter.grad is not None
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["exp_avg"] = torch.zeros_like(parameter, dtype=dtype)
        state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=dtype)
    if can_fuse([parameter]):
        # A fused kernel reads the step where the weights are, others on the CPU. What a checkpoint
        # or the host held comes from the CPU: torch moves it for groups that say `fused` only.
        state["step"] = state["step"].to(parameter.device)
    return Adam(
        local_shard(parameter, parameter),
        local_shard(parameter.grad, parameter),
        local_shard(state["exp_avg"], parameter),
        local_shard(state["exp_avg_sq"], parameter),
        state["step"],
    )


def adam_step(
    held: Sequence[Adam],
    group: dict[str, Any],
    store: Store = Tensor.copy_,
    flag: Tensor | None = None,
) -> None:
    """Take a step of AdamW (Loshchilov and Hutter, 2019) with decoupled decay.

    Where all is in one format of at least 32 bits, it is PyTorch's own step, in the fused kernel
    if there is one. Else each parameter is computed in the widest of its formats, at least fp32,
    and rounded once at the end, as the fused kernel does it to the nearest number by itself.

    Arguments:
        group: `lr`, `betas`, `eps`, `weight_decay` and `cautious_weight_decay`.
        flag: an fp32 scalar; where it is 1 nothing changes.
    """
    nearest = store is Tensor.copy_
    _torchs_step([one for one in held if _is_plain(one, nearest)], group, flag)
    for one in held:
        if _is_plain(one, nearest):
            continue
        wide = torch.float32
        for tensor in one.tensors:
            wide = torch.promote_types(wide, tensor.dtype)
        parameter, gradient, exp_avg, exp_avg_sq = (each.to(wide) for each in one.tensors)
        twin = Adam(parameter, gradient, exp_avg, exp_avg_sq, one.step)
        _torchs_step([twin], group, flag)
        for mine, value in zip(one.tensors, twin.tensors, strict=True):
            if value is not mine and mine is not one.gradient:
                store(mine, value)


def _is_plain(one: Adam, nearest: bool) -> bool:
    """Whether PyTorch's own step is the one that is wanted."""
    formats = {tensor.dtype for tensor in one.tensors}
    exact = one.parameter.dtype.itemsize >= 4 or (nearest and can_fuse([one.parameter]))
    return len(formats) == 1 and exact


def _torchs_step(held: Sequence[Adam], group: dict[str, Any], flag: Tensor | None) -> None:
    if not held:
        return
    (beta1, beta2), weight_decay = group["betas"], group["weight_decay"]
    fused = can_fuse(one.parameter for one in held)
    changed = [(one.parameter, one.exp_avg, one.exp_avg_sq, one.step) for one in held]
    cautious = group.get("cautious_weight_decay") and weight_decay
    # Decay is beside the fused kernel, which alone knows the flag.
    kept = () if fused and not cautious else tuple(tensor for one in changed for tensor in one)
    with unless(flag if kept else None, *kept):
        if cautious:
            for one in held:
                mean = one.exp_avg.lerp(one.gradient, 1 - beta1)
                decay_where_aligned(one.parameter, mean, group["lr"], weight_decay)
            weight_decay = 0.0
        adamw(
            [one.parameter for one in held],
            [one.gradient for one in held],
            [one.exp_avg for one in held],
            [one.exp_avg_sq for one in held],
            [],
            [one.step for one in held],
            fused=fused or None,
            found_inf=flag if fused else None,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=weight_decay,
            eps=group["eps"],
            maximize=False,
        )
