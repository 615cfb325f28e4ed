"""Lion: the sign of the momentum."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from setpoint.optim.optimizer import (
    GroupedOptimizer,
    decay_where_aligned,
    flag_of,
    foreach_groups,
    local_shard,
    unless,
)

# Its operations on lists are not exported.
_torch: Any = torch


class Lion(GroupedOptimizer):
    """Lion (Chen et al., 2023, https://arxiv.org/abs/2302.06675), algorithm 2.

    With the running mean m and the gradient g: u = sign(b1 m + (1 - b1) g), then p = p (1 - lr
    decay) - lr u, then m = b2 m + (1 - b2) g.

    Arguments:
        parameters: groups or parameters, as for torch optimizers.
        cautious_weight_decay: see `decay_where_aligned`.
        state_dtype: dtype of m; None: dtype of the parameter.
    """

    _step_supports_amp_scaling = True

    def __init__(
        self,
        parameters: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        cautious_weight_decay: bool = False,
        state_dtype: torch.dtype | None = None,
    ) -> None:
        options = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(parameters, {**options, "cautious_weight_decay": cautious_weight_decay})
        self.state_dtype = state_dtype

    def update(self, group: dict[str, Any]) -> None:
        params = [p for p in group["params"] if p.grad is not None]
        for p in params:
            if not self.state[p]:
                self.state[p]["exp_avg"] = torch.zeros_like(p, dtype=self.state_dtype)
        for some in foreach_groups(params):
            parameters = [local_shard(p, p) for p in some]
            gradients = [local_shard(p.grad, p) for p in some if p.grad is not None]
            means = [local_shard(self.state[p]["exp_avg"], p) for p in some]
            with unless(flag_of(self), *parameters, *means):
                _update(parameters, gradients, means, group)


def _update(
    parameters: list[Tensor], gradients: list[Tensor], means: list[Tensor], group: dict[str, Any]
) -> None:
    """Take one step for one group."""
    lr, (beta1, beta2) = group["lr"], group["betas"]
    # A mean with fewer digits is computed in the dtype of its gradient.
    pairs = zip(means, gradients, strict=True)
    exact = [mean.to(torch.promote_types(mean.dtype, g.dtype)) for mean, g in pairs]
    updates = _torch._foreach_mul(exact, beta1)
    _torch._foreach_add_(updates, gradients, alpha=1 - beta1)
    _torch._foreach_sign_(updates)
    if group["cautious_weight_decay"] and group["weight_decay"]:
        for parameter, update in zip(parameters, updates, strict=True):
            decay_where_aligned(parameter, update, lr, group["weight_decay"])
    else:
        _torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
    _torch._foreach_add_(parameters, updates, alpha=-lr)
    _torch._foreach_mul_(exact, beta2)
    _torch._foreach_add_(exact, gradients, alpha=1 - beta2)
    for mean, value in zip(means, exact, strict=True):
        if value is not mean:
            mean.copy_(value)
