"""A step of Adafactor (Shazeer and Stern, 2018) for weights on GPUs, or that ranks divide.

As torch.optim.Adafactor, whose operations in place DTensor has not, and which waits for a GPU twice
for each weight. The means over rows and columns
are those of whole weights, the same on all ranks and a small part of them, so that each holds both.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from setpoint.optim.base import is_dtensor, local_shard
from setpoint.optim.unless import number_of, unless
from setpoint.shapes.placed import whole_of

MEANS = {"row_var": -1, "col_var": -2}
"""The means of squares, and over which dimension of a weight they are."""
Number = float | Tensor
"""A number of a weight; on a GPU a scalar tensor, for which the host does not wait."""


def divided_step(
    p: Tensor, state: dict[str, Any], group: dict[str, Any], flag: Tensor | None = None
) -> None:
    """Update one parameter.

    Arguments:
        p: with its gradient; what no rank shares may stand beside what is divided.
        state: as torch.optim.Adafactor keeps it; empty before the first step.
        flag: an fp32 scalar; where it is 1 nothing on the device changes.
    """
    gradient = p.grad
    assert gradient is not None
    if not state:
        _begin(state, gradient)
    eps1, eps2 = group["eps"]
    eps1 = torch.finfo(p.dtype).eps if eps1 is None else eps1
    state["step"] += 1
    step, lr = float(state["step"]), group["lr"]
    weight = step ** group["beta2_decay"]
    alpha = _at_least(eps2, _norm(p) / sqrt(p.numel())) * min(lr, 1 / sqrt(step))
    mine, own = local_shard(p, p), local_shard(gradient, p)
    # What is loaded of a single row or column has the shape of the weight, and is divided.
    state |= {name: whole_of(state[name]) for name in MEANS if name in state}
    means = [local_shard(held, p) for name, held in state.items() if name != "step"]
    with unless(flag, mine, *means):
        if group["weight_decay"]:
            mine.mul_(1 - lr * group["weight_decay"])
        if gradient.ndim > 1:
            estimate = _estimate(gradient, state, weight, eps1)
        else:
            (mean,) = means
            mean.lerp_(own * own, weight)
            estimate = mean.clone()
        update = estimate.clamp_(min=eps1 * eps1).rsqrt_().mul_(own)
        clipped = _at_least(1.0, _norm(_spread(update, p)) / (sqrt(p.numel()) * group["d"]))
        rate = -alpha / clipped
        if isinstance(rate, Tensor):
            mine.add_(update.mul_(rate))
        else:
            mine.add_(update, alpha=rate)


def _begin(state: dict[str, Any], gradient: Tensor) -> None:
    state["step"] = torch.tensor(0.0)
    if gradient.ndim == 1:
        state["variance"] = torch.zeros_like(gradient)
        return
    *others, rows, columns = gradient.shape
    here = local_shard(gradient, gradient)
    state["row_var"] = here.new_zeros(*others, rows, 1)
    state["col_var"] = here.new_zeros(*others, 1, columns)


def _estimate(gradient: Tensor, state: dict[str, Any], weight: float, eps1: float) -> Tensor:
    """Move the means on, and estimate the squares of this rank's part of the gradient."""
    wide = torch.promote_types(gradient.dtype, torch.float32)
    squares = gradient.to(wide).square()
    for name, dim in MEANS.items():
        summed = whole_of(squares.sum(dim, keepdim=True))
        state[name].lerp_(summed.div_(gradient.size(dim)).to(state[name].dtype), weight)
    rows, columns = state["row_var"], state["col_var"]
    least = rows.mean(dim=-2, keepdim=True).clamp_(min=eps1)
    last, before = gradient.ndim - 1, gradient.ndim - 2
    estimate = _part(rows, gradient, last) @ _part(columns, gradient, before)
    return estimate.div_(_part(least, gradient, last, before))


def _norm(tensor: Tensor) -> Number:
    return number_of(whole_of(torch.linalg.vector_norm(tensor)))


def _at_least(least: float, number: Number) -> Number:
    return number.clamp(min=least) if isinstance(number, Tensor) else max(least, number)


def _spread(part: Tensor, like: Tensor) -> Tensor:
    """This rank's part, as a tensor of all ranks."""
    if not is_dtensor(like):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def _part(means: Tensor, like: Tensor, *over: int) -> Tensor:
    """What of means over some dimensions belongs to this rank's part of a weight."""
    if not is_dtensor(like):
        return means
    from torch.distributed.tensor import Replicate, distribute_tensor

    placements = [
        Replicate() if getattr(placement, "dim", None) in over else placement
        for placement in like.placements
    ]
    return distribute_tensor(means, like.device_mesh, placements, src_data_rank=None).to_local()
