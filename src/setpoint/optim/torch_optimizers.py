"""PyTorch's own optimizers, fused where possible.

Adafactor (Shazeer and Stern, 2018) has a second implementation for weights on GPUs and for sharded
weights: torch's synchronizes with the GPU twice per weight, and uses operations that DTensor lacks.
The means over rows and columns are those of whole weights; they are small and replicated on all
ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from math import sqrt
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from setpoint.config import SetpointError
from setpoint.optim.optimizer import (
    BuiltOptimizer,
    decay_where_aligned,
    flag_of,
    given_tensors,
    is_dtensor,
    is_left_out,
    is_on_host,
    local_shard,
    loss_of,
    number_of,
    uncompiled,
    unless,
    without_flag,
)
from setpoint.shapes.placed import spread_like, whole_of

if TYPE_CHECKING:
    from setpoint.optim import config as sections

MEANS = {"row_var": -1, "col_var": -2}
"""The means of squares, and over which dimension of a weight they are."""
Number = float | Tensor
"""A number of a weight; on a GPU a scalar tensor, for which the host does not wait."""


def divided_step(
    p: Tensor, state: dict[str, Any], group: dict[str, Any], flag: Tensor | None = None
) -> None:
    """Update one parameter.

    Arguments:
        p: parameter with its gradient; may be replicated along some mesh dimensions and divided
            along others.
        state: state of torch.optim.Adafactor; empty before the first step.
        flag: an fp32 scalar; 1 skips the step on the device.
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
    shard, local_gradient = local_shard(p, p), local_shard(gradient, p)
    # Loaded state of a single row or column has the shape of the weight, and is divided.
    state |= {name: whole_of(state[name]) for name in MEANS if name in state}
    means = [local_shard(value, p) for name, value in state.items() if name != "step"]
    with unless(flag, shard, *means):
        if group["weight_decay"]:
            shard.mul_(1 - lr * group["weight_decay"])
        if gradient.ndim > 1:
            estimate = _estimate(gradient, state, weight, eps1)
        else:
            (mean,) = means
            mean.lerp_(local_gradient * local_gradient, weight)
            estimate = mean.clone()
        update = estimate.clamp_(min=eps1 * eps1).rsqrt_().mul_(local_gradient)
        clipped = _at_least(1.0, _norm(spread_like(update, p)) / (sqrt(p.numel()) * group["d"]))
        rate = -alpha / clipped
        if isinstance(rate, Tensor):
            shard.add_(update.mul_(rate))
        else:
            shard.add_(update, alpha=rate)


def _begin(state: dict[str, Any], gradient: Tensor) -> None:
    state["step"] = torch.tensor(0.0)
    if gradient.ndim < 2:
        state["variance"] = torch.zeros_like(gradient)
        return
    *leading, rows, columns = gradient.shape
    local_gradient = local_shard(gradient, gradient)
    state["row_var"] = local_gradient.new_zeros(*leading, rows, 1)
    state["col_var"] = local_gradient.new_zeros(*leading, 1, columns)


def _estimate(gradient: Tensor, state: dict[str, Any], weight: float, eps1: float) -> Tensor:
    """Update the means, and estimate the squared local gradient from them."""
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


def _part(means: Tensor, like: Tensor, *dims: int) -> Tensor:
    """Local part of means over some dimensions of a weight."""
    if not is_dtensor(like):
        return means
    from torch.distributed.tensor import Replicate, distribute_tensor

    placements = [
        Replicate() if getattr(placement, "dim", None) in dims else placement
        for placement in like.placements
    ]
    return distribute_tensor(means, like.device_mesh, placements, src_data_rank=None).to_local()


# Devices with a fused kernel in torch (2.11 to 2.13); others are plug-ins.
FUSED_DEVICES = frozenset({"cpu", "cuda", "mps", "xpu"})


def can_fuse(tensors: Iterable[Tensor]) -> bool:
    """True if torch has a fused kernel for the parameters."""
    return all(t.device.type in FUSED_DEVICES and t.is_floating_point() for t in tensors)


def implementation_flags(
    implementation: sections.Implementation, tensors: Iterable[Tensor]
) -> tuple[bool | None, bool | None]:
    """Convert the field `implementation` to the arguments `fused` and `foreach` of PyTorch.

    Raises:
        SetpointError: `fused` is requested, but torch has no such kernel.
    """
    params = list(tensors)
    fused = can_fuse(params)
    if implementation == "fused" and not fused:
        devices = ", ".join(sorted({tensor.device.type for tensor in params}))
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


def _apart(step: Callable[..., Any]) -> Callable[..., Any]:
    """Step separately for sharded and for whole parameters, which torch cannot mix."""

    @wraps(step)
    def run(self: BuiltOptimizer, closure: Callable[[], float] | None = None) -> Any:
        groups = self.param_groups
        param_lists = [group["params"] for group in groups]
        if len({is_dtensor(p) for parameters in param_lists for p in parameters}) < 2:
            return step(self, closure)
        loss = loss_of(closure)
        try:
            for divided in (True, False):
                for group, parameters in zip(groups, param_lists, strict=True):
                    group["params"] = [p for p in parameters if is_dtensor(p) is divided]
                step(self)
        finally:
            for group, parameters in zip(groups, param_lists, strict=True):
                group["params"] = parameters
        return loss

    return run


@contextmanager
def _changed(groups: list[dict[str, Any]], **options: Any) -> Iterator[None]:
    """Change options of some groups during a step."""
    before = [{name: group[name] for name in options} for group in groups]
    for group in groups:
        group.update(options)
    try:
        yield
    finally:
        for group, old in zip(groups, before, strict=True):
            group.update(old)


class AdamW(BuiltOptimizer, torch.optim.AdamW):
    """torch.optim.AdamW (Loshchilov and Hutter, 2019), with optional cautious weight decay."""

    _step = _apart(uncompiled(torch.optim.AdamW.step, no_grad=True))

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update the parameters that have gradients."""
        cautious = [group for group in self.param_groups
                    if group.get("cautious_weight_decay") and group["weight_decay"]]  # fmt: skip
        if not cautious:
            return self._step(closure)
        loss, flag = loss_of(closure), flag_of(self)
        if is_left_out(flag):
            return loss
        for group in cautious:
            self._decay(group, flag)
        with _changed(cautious, weight_decay=0.0):
            self._step()
        return loss

    @torch.no_grad()
    def _decay(self, group: dict[str, Any], flag: Tensor | None) -> None:
        for p in group["params"]:
            if p.grad is None:
                continue
            parameter, gradient = local_shard(p, p), local_shard(p.grad, p)
            mean = self.state[p].get("exp_avg") if p in self.state else None
            update = gradient  # in the first step, as the mean begins at 0
            if mean is not None:
                mean = local_shard(mean, p)
                update = mean.lerp(gradient.to(mean.dtype), 1 - group["betas"][0])
            with unless(flag, parameter):
                decay_where_aligned(parameter, update, group["lr"], group["weight_decay"])

    @classmethod
    def arguments(
        cls, config: sections.AdamWConfig, groups: list[dict[str, Any]]
    ) -> dict[str, Any]:
        for group in groups:  # torch's own step ignores the flag
            group.setdefault("cautious_weight_decay", config.cautious_weight_decay)
        fused, foreach = implementation_flags(config.implementation, given_tensors(groups))
        return {**super().arguments(config, groups), "fused": fused, "foreach": foreach}


class SGD(BuiltOptimizer, torch.optim.SGD):
    """torch.optim.SGD (Sutskever et al., 2013)."""

    _step = _apart(uncompiled(torch.optim.SGD.step, no_grad=True))

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update the parameters that have gradients.

        The fused kernel of torch 2.11 to 2.13 fails if only some parameters have a momentum buffer,
        as happens after unfreezing others.
        """
        mixed = [group for group in self.param_groups if group["fused"] and self._begins(group)]
        if mixed and (flag := flag_of(self)) is not None:  # only the kernel reads it
            if bool(flag):
                return None
            with without_flag(self):
                return self.step(closure)
        with _changed(mixed, fused=False, foreach=True):
            return self._step(closure)

    def _begins(self, group: dict[str, Any]) -> bool:
        """True if some, but not all, parameters of a group get their first gradient."""
        if not group["momentum"]:
            return False
        params = [p for p in group["params"] if p.grad is not None]
        has = [self.state[p].get("momentum_buffer") is not None for p in params if p in self.state]
        return any(has) and (len(has) < len(params) or not all(has))

    @classmethod
    def arguments(cls, config: sections.SGDConfig, groups: list[dict[str, Any]]) -> dict[str, Any]:
        """See `BuiltOptimizer.arguments`.

        Raises:
            SetpointError: the fused kernel is requested, but does not support the parameters.
        """
        tensors = list(given_tensors(groups))
        fused, foreach = implementation_flags(config.implementation, tensors)
        # On a CPU, the kernel of torch 2.11 to 2.13 silently leaves most bf16 elements unchanged.
        if any((t.device.type == "cpu" and t.itemsize < 4) or is_dtensor(t) for t in tensors):
            if config.implementation == "fused":
                raise SetpointError(
                    "optimizer.implementation = fused: PyTorch's fused SGD updates neither bf16 "
                    "weights on a CPU nor sharded weights\nValid: auto, foreach or loop"
                )
            fused = None
        return {**super().arguments(config, groups), "fused": fused, "foreach": foreach}


class Adafactor(BuiltOptimizer, torch.optim.Adafactor):
    """torch.optim.Adafactor (Shazeer and Stern, 2018), with support for sharded weights."""

    _step_supports_amp_scaling = True
    counts_on_host = True
    _step = uncompiled(torch.optim.Adafactor.step, no_grad=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update the parameters that have gradients."""
        params = [(p, group) for group in self.param_groups for p in group["params"]]
        loss, flag = loss_of(closure), flag_of(self)
        if is_left_out(flag):
            return loss
        if all(is_on_host(p) and not is_dtensor(p) for p, _ in params):
            with without_flag(self):
                self._step()
            return loss
        for p, group in params:
            if p.grad is not None:
                divided_step(p, self.state[p], group, flag)
        return loss

    @classmethod
    def arguments(
        cls, config: sections.AdafactorConfig, groups: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """See `BuiltOptimizer.arguments`; group options also get PyTorch's names."""
        for group in groups:
            if "clip_threshold" in group:
                group["d"] = group.pop("clip_threshold")
            if "eps1" in group or "eps2" in group:
                group["eps"] = (group.pop("eps1", config.eps1), group.pop("eps2", config.eps2))
        options = {"eps": (config.eps1, config.eps2), "d": config.clip_threshold}
        return {**super().arguments(config, groups), **options}
