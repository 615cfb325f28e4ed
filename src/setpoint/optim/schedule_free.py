"""Schedule-free AdamW: averaged weights in place of a decaying learning rate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from setpoint.optim.optimizer import GroupedOptimizer, flag_of, foreach_groups, local_shard, unless

# Its operations on lists are not exported.
_torch: Any = torch

COUNTERS = {"updates": 0, "lr_max": 0.0, "weight_sum": 0.0}
"""Counters of a group or parameter, before the first step."""


class ScheduleFreeAdamW(GroupedOptimizer):
    """Schedule-free AdamW (Defazio et al., 2024, https://arxiv.org/abs/2405.15682).

    Three points: z takes the steps, x is their weighted average, and gradients are taken at y = b1
    x + (1 - b1) z, which the parameters contain. With d = g / (sqrt(v / (1 - b2^k)) + eps) + decay
    y: z = z - lr d, and x = (1 - c) x + c z, where c is the share of the step's weight k^step_power
    lr_max^lr_power in the sum of all weights so far. x is not stored. Equal to AdamWScheduleFree of
    the package schedulefree 1.4.1 without its warm-up, since the group's lr already includes the
    schedule's warm-up. As in that package, a step overwrites the gradients.

    Steps and weights are counted per group, and separately for a parameter without gradients in
    some steps, as after freezing: its v and x depend only on its own steps.

    Arguments:
        parameters: groups or parameters, as for torch optimizers.
        lr_power: exponent of the largest rate so far in the weight of a step.
    """

    _step_supports_amp_scaling = True

    def __init__(
        self,
        parameters: Any,
        lr: float = 2.5e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        lr_power: float = 2.0,
        step_power: float = 0.0,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        powers = {"lr_power": lr_power, "step_power": step_power}
        super().__init__(parameters, {**options, **powers, **COUNTERS})

    def update(self, group: dict[str, Any]) -> None:
        params: list[Tensor] = []
        for p in group["params"]:
            state = self.state.get(p, {})
            if p.grad is not None:
                params.append(p)
                if not state:
                    state = self.state[p]
                    state["z"] = p.detach().clone()
                    state["exp_avg_sq"] = torch.zeros_like(p)
                    if group["updates"]:
                        state.update(COUNTERS)
            elif state and "updates" not in state:
                state.update({name: group[name] for name in COUNTERS})
        of_group = _advance(group, group)
        alike: dict[tuple[int, float], list[Tensor]] = {}
        for p in params:
            state = self.state[p]
            counted = _advance(state, group) if "updates" in state else of_group
            alike.setdefault(counted, []).append(p)
        for (number, share), those in alike.items():
            for some in foreach_groups(those):
                self._update(some, group, number, share)

    def _update(
        self, params: list[Tensor], group: dict[str, Any], number: int, share: float
    ) -> None:
        """Move y, z and the mean square of parameters for which this is the `number`-th step."""
        lr, (beta1, beta2) = group["lr"], group["betas"]
        y = [local_shard(p, p) for p in params]
        gradients = [local_shard(p.grad, p) for p in params if p.grad is not None]
        z = [local_shard(self.state[p]["z"], p) for p in params]
        squares = [local_shard(self.state[p]["exp_avg_sq"], p) for p in params]
        with unless(flag_of(self), *y, *z, *squares):
            _torch._foreach_mul_(squares, beta2)
            _torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
            roots = _torch._foreach_div(squares, 1 - beta2**number)
            _torch._foreach_sqrt_(roots)
            _torch._foreach_add_(roots, group["eps"])
            # The gradients are no longer needed, and memory is saved.
            steps = gradients
            _torch._foreach_div_(steps, roots)
            if group["weight_decay"]:
                _torch._foreach_add_(steps, y, alpha=group["weight_decay"])
            # y moves to b1 x + (1 - b1) z of the new x and z, without x.
            _torch._foreach_lerp_(y, z, share)
            _torch._foreach_add_(y, steps, alpha=lr * (beta1 * (1 - share) - 1))
            _torch._foreach_sub_(z, steps, alpha=lr)

    @contextmanager
    def averaged(self) -> Iterator[dict[Tensor, Tensor]]:
        """Put the average x into the parameters, and restore y exactly afterwards.

        Returns:
            a context; its value maps each parameter that has moved to y.
        """
        kept: dict[Tensor, Tensor] = {}
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if "z" in self.state.get(p, ()):
                        kept[p] = p.detach().clone()
                        z = local_shard(self.state[p]["z"], p)
                        local_shard(p, p).lerp_(z, 1 - 1 / group["betas"][0])
        try:
            yield kept
        finally:
            with torch.no_grad():
                for p, y in kept.items():
                    p.copy_(y)


def _advance(counters: dict[str, Any], group: dict[str, Any]) -> tuple[int, float]:
    """Count a step in place; return its number and its weight in the average."""
    number = counters["updates"] = counters["updates"] + 1
    counters["lr_max"] = max(group["lr"], counters["lr_max"])
    weight = number ** group["step_power"] * counters["lr_max"] ** group["lr_power"]
    counters["weight_sum"] += weight
    # All weights are zero until the first rate above 0.
    return number, weight / counters["weight_sum"] if counters["weight_sum"] else 0.0
