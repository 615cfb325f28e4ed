"""Common parts of optimizers: construction from sections, steps by group, skipped steps.

PyTorch excludes its optimizers from compilation with wrappers that first import the compiler, which
takes as long as importing torch itself. Unless the compiler has been imported, the wrapped
functions are called directly.

A step may be skipped before the host knows that gradients are not finite, as PyTorch's fused
optimizers do under `torch.amp.GradScaler`: an optimizer with `_step_supports_amp_scaling` finds an
fp32 scalar in its attribute `found_inf`, and changes neither weights nor state if that is 1. Its
host-side counters are restored later.
"""

from __future__ import annotations

import functools
import inspect
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeGuard, TypeVar, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from setpoint.config import SetpointError, call_component, error_in_words, fields_of
from setpoint.config.component_sections import parameters_of, takes_parameter
from setpoint.config.draft.config import owner_of
from setpoint.optim.config import ImportedOptimizer, OptimizerConfig

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from setpoint.optim.grouping import Groups

Undo = Callable[[], None]


def takes_flag(optimizer: Optimizer) -> bool:
    """True if an optimizer can skip a step by a flag on the device."""
    return getattr(optimizer, "_step_supports_amp_scaling", False)


def step_unless(flag: Tensor | None, optimizer: Any) -> None:
    """Run an optimizer's step unless a flag is set.

    Arguments:
        flag: an fp32 scalar; 1 skips the step. None: always step. Other values need an optimizer
            for which `takes_flag` is true.
    """
    if flag is None:
        optimizer.step()
        return
    optimizer.grad_scale, optimizer.found_inf = None, flag
    try:
        optimizer.step()
    finally:
        del optimizer.grad_scale, optimizer.found_inf


def flag_of(optimizer: Optimizer) -> Tensor | None:
    """Skip flag of an optimizer's current step; None if the step is never skipped."""
    return getattr(optimizer, "found_inf", None)


@contextmanager
def without_flag(optimizer: Any) -> Iterator[None]:
    """Hide the skip flag from code that does not support it."""
    flag = flag_of(optimizer)
    if flag is None:
        yield
        return
    optimizer.found_inf = None
    try:
        yield
    finally:
        optimizer.found_inf = flag


def is_left_out(flag: Tensor | None) -> bool:
    """True if a step is known to be skipped, without device synchronization."""
    return flag is not None and is_on_host(flag) and bool(flag)


def is_on_host(number: Tensor) -> bool:
    """True if a number can be read without device synchronization."""
    return number.device.type == "cpu"


def number_of(scalar: Tensor) -> float | Tensor:
    """A host number if available, else an fp64 scalar on the device."""
    return float(scalar) if is_on_host(scalar) else scalar.double()


@contextmanager
def unless(flag: Tensor | None, *tensors: Tensor) -> Iterator[None]:
    """Restore the values of tensors after the block if a flag is 1.

    On a CPU, where nothing waits for the flag, `is_left_out` is checked first.
    """
    if flag is None or is_on_host(flag):
        yield
        return
    before = [tensor.detach().clone() for tensor in tensors]
    yield
    for tensor, old in zip(tensors, before, strict=True):
        tensor.copy_(old.where(flag.to(tensor.device) > 0, tensor))


def counts_of(optimizer: Optimizer, flag: Tensor) -> Undo:
    """Record host-side counters; the result restores them if the device skips the next step."""
    if is_on_host(flag) or not getattr(optimizer, "counts_on_host", False):
        return lambda: None
    kept = [
        (owner, _numbers(owner)) for owner in (*optimizer.param_groups, *optimizer.state.values())
    ]

    def undo() -> None:
        for owner, numbers in kept:
            owner.update(numbers)

    return undo


def _numbers(owner: MutableMapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in owner.items()
        if isinstance(value, int | float)
        or (isinstance(value, Tensor) and not value.ndim and value.device.type == "cpu")
    }


_F = TypeVar("_F", bound=Callable[..., Any])
COMPILER = "torch._dynamo"

Given: TypeAlias = Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
"""Groups of PyTorch's form, or (qualified name, parameter) pairs, which make one group."""


def given_groups(parameters: Given) -> list[dict[str, Any]]:
    """Convert an optimizer's arguments to new groups whose `params` are lists, with names.

    Arguments:
        parameters: groups, as from `parameter_groups`, or pairs, as from
            `module.named_parameters()`.
    """
    groups: list[dict[str, Any]] = []
    pairs: list[tuple[str, Tensor]] = []
    for item in parameters:
        if isinstance(item, dict):
            groups.append({**item, "params": list(item["params"])})
        else:
            pairs.append(item)
    return [*groups, {"params": pairs}] if pairs else groups


def given_tensors(groups: Iterable[dict[str, Any]]) -> Iterator[Tensor]:
    """The parameters of groups, in order."""
    for group in groups:
        for item in group["params"]:
            yield item[1] if isinstance(item, tuple) else item


def uncompiled(wrapper: _F, no_grad: bool = False) -> _F:
    """The function inside a PyTorch wrapper, called directly unless the compiler is loaded."""
    if getattr(wrapper, "hooked", False):  # by the first of PyTorch's own that was made
        wrapper = wrapper.__wrapped__  # type: ignore[attr-defined]
    function = inspect.unwrap(wrapper)
    plain = torch.no_grad()(function) if no_grad else function

    @functools.wraps(function)
    def run(*given: Any, **named: Any) -> Any:
        return (wrapper if COMPILER in sys.modules else plain)(*given, **named)

    return run  # type: ignore[return-value]


def loss_of(closure: Callable[[], float] | None) -> float | None:
    """The loss that the closure of a step recomputes, if there is one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class BuiltOptimizer(torch.optim.Optimizer):
    """An optimizer that is built from its section and runs without the compiler."""

    @classmethod
    def from_config(cls, config: OptimizerConfig, parameters: Given, **runtime: Any) -> Self:
        """Build the optimizer from its section.

        Arguments:
            parameters: groups, as from `parameter_groups`, or (qualified name, parameter) pairs,
                which all decay.
            runtime: arguments that are not fields: `state_dtype`, `seed`.
        """
        groups = given_groups(parameters)
        return cls(groups, **cls.arguments(config, groups), **runtime)

    @classmethod
    def arguments(cls, config: Any, groups: list[dict[str, Any]]) -> dict[str, Any]:
        """Arguments named like fields of the section."""
        taken = inspect.signature(cls).parameters
        return {name: getattr(config, name) for name in fields_of(config) if name in taken}

    add_param_group = uncompiled(torch.optim.Optimizer.add_param_group)
    zero_grad = uncompiled(torch.optim.Optimizer.zero_grad)
    state_dict = uncompiled(torch.optim.Optimizer.state_dict)
    load_state_dict = uncompiled(torch.optim.Optimizer.load_state_dict)


class GroupedOptimizer(BuiltOptimizer):
    """An optimizer whose step updates parameters group by group.

    The host waits for the verdict on each step, unless a subclass sets
    `_step_supports_amp_scaling`: its `update` then restores what it changes if the device skips the
    step; see `unless`.
    """

    _step_supports_amp_scaling = False
    counts_on_host = True

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update the parameters that have gradients."""
        loss = loss_of(closure)
        if not is_left_out(flag_of(self)):
            for group in self.param_groups:
                self.update(group)
        return loss

    @abstractmethod
    def update(self, group: dict[str, Any]) -> None:
        """Update the parameters of a group."""
        ...


def decay_where_aligned(parameter: Tensor, update: Tensor, lr: float, weight_decay: float) -> None:
    """Decay in place the weights that an update moves towards 0 or leaves unchanged.

    Cautious weight decay (Chen et al., 2025, https://arxiv.org/abs/2510.12402): with the update u,
    which is subtracted, x = x - lr decay x where u x >= 0. Call it before the update.

    Arguments:
        parameter, update: local shards; only the signs of the update count.
    """
    # Signs, as the product of two small numbers may be 0.
    aligned = update.sign().mul_(parameter.sign()) >= 0
    parameter.mul_(1 - aligned.to(parameter.dtype).mul_(lr * weight_decay))


def is_dtensor(tensor: Tensor) -> TypeGuard[DTensor]:
    """True if a tensor is a DTensor; avoids importing the class, which takes almost a second."""
    return hasattr(tensor, "to_local")


def local_shard(tensor: Tensor, like: Tensor) -> Tensor:
    """Local shard of a tensor.

    Returns:
        the tensor itself if it is not distributed, else its shard, in the same memory if possible.
    """
    if not is_dtensor(tensor):
        return tensor
    assert is_dtensor(like)
    if tensor.placements != like.placements:
        tensor = tensor.redistribute(placements=like.placements)
    return tensor.to_local()


def build_optimizer(
    config: OptimizerConfig, groups: Groups, state_dtype: torch.dtype | None = None, seed: int = 0
) -> torch.optim.Optimizer:
    """Build the optimizer of a section.

    Arguments:
        groups: from `parameter_groups`.
        state_dtype: dtype of optimizer state, if supported; None: that of each parameter.
        seed: seed of its random numbers, if it draws any; equal on all ranks.

    Raises:
        SetpointError: a custom optimizer cannot be built, or is not an optimizer.
    """
    given: dict[str, Any] = {"state_dtype": state_dtype} if config.state_formats else {}
    if config.draws:
        given["seed"] = seed
    title = _title(config)
    if title is None:
        return config.build(parameters=groups, **given)
    try:
        optimizer: object = config.build(parameters=groups, **given)
    except SetpointError:
        raise
    except Exception as error:
        raise SetpointError(
            f"{title} cannot be built from PyTorch parameter groups: {error_in_words(error)}"
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SetpointError(
            f"{title} has type {type(optimizer).__name__}; it must be a torch.optim.Optimizer"
        )
    return optimizer


def title_of(config: OptimizerConfig) -> str | None:
    """Name of a custom optimizer for errors; None for built-in ones."""
    if isinstance(config, ImportedOptimizer):
        return f"optimizer.target = {config.target}"
    return _title(config)


def _title(config: OptimizerConfig) -> str | None:
    owner = owner_of(type(config))
    if owner.__module__.partition(".")[0] == "setpoint":
        return None
    tag = type(config).__setpoint__.tag
    return f"optimizer.type = {tag} ({owner.__module__}.{owner.__qualname__})"


def build_imported(config: ImportedOptimizer, parameters: Given) -> torch.optim.Optimizer:
    """Build the optimizer of an `import` section.

    Arguments:
        config: the resolved section; lr and weight_decay are passed with its arguments.
        parameters: groups, as from `parameter_groups`, or (qualified name, parameter) pairs, which
            all decay.

    Raises:
        SetpointError: nothing is trainable, or the loop does not support the target's optimizer.
    """
    groups = given_groups(parameters)
    if not takes_parameter(parameters_of(config.target.load()), "weight_decay"):
        for group in groups:
            group.pop("weight_decay", None)
    optimizer = call_component(config, (groups,), {})
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SetpointError(
            f"optimizer.target = {config.target} makes an object of type "
            f"{type(optimizer).__name__}; it must make a torch.optim.Optimizer from groups of "
            f"named parameters"
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise SetpointError(
            f"optimizer.target = {config.target} computes the loss several times per step (its "
            f"step needs a closure), which the loop does not support"
        )
    if all(callable(getattr(optimizer, mode, None)) for mode in ("train", "eval")):
        raise SetpointError(
            f"optimizer.target = {config.target} needs calls to its train() and eval() around "
            f"evaluation, which the loop does not make\nValid: optimizer.type = "
            f"schedule_free_adamw, which does this itself"
        )
    return optimizer
