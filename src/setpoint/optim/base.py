"""Common parts of the optimizers: built from sections, steps by group, steps left out on a device.

PyTorch keeps the compiler out of its optimizers by wrappers that import it first, which takes as
long as importing torch itself. Where nothing has imported it, nothing is compiled, and what they
wrap is called.

A step may be left out before the host knows that the numbers are bad, as PyTorch has it for its
fused optimizers and `torch.amp.GradScaler`: an optimizer whose `_step_supports_amp_scaling` is true
finds in its attribute `found_inf` an fp32 scalar, and changes neither weights nor state where that
is 1. What it counts on the host is taken back later.
"""

from __future__ import annotations

import functools
import inspect
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeGuard, TypeVar, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from setpoint.config import fields_of

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from setpoint.optim.config import OptimizerConfig

Undo = Callable[[], None]


def takes_flag(optimizer: Optimizer) -> bool:
    """True if an optimizer skips its step by a flag on the device."""
    return getattr(optimizer, "_step_supports_amp_scaling", False)


def step_unless(flag: Tensor | None, optimizer: Any) -> None:
    """Let an optimizer take its step.

    Arguments:
        flag: an fp32 scalar; where it is 1 nothing is to change. None: the step is taken. Others
            than None are for optimizers that `takes_flag` names.
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
    """The flag of the step that an optimizer takes; None: it is taken in any case."""
    return getattr(optimizer, "found_inf", None)


@contextmanager
def without_flag(optimizer: Any) -> Iterator[None]:
    """Hide the flag of a step that is taken from code which does not know it."""
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
    """True if a step is skipped, as far as it is known without waiting for a device."""
    return flag is not None and is_on_host(flag) and bool(flag)


def is_on_host(number: Tensor) -> bool:
    """True if a number can be read without waiting for a device."""
    return number.device.type == "cpu"


def number_of(scalar: Tensor) -> float | Tensor:
    """A number of the host where it is there, else an fp64 scalar that nothing waits for."""
    return float(scalar) if is_on_host(scalar) else scalar.double()


@contextmanager
def unless(flag: Tensor | None, *tensors: Tensor) -> Iterator[None]:
    """Change tensors in the block, and give them back what they held where a flag is 1.

    On a CPU, where nothing waits for the flag, `is_left_out` is asked before.
    """
    if flag is None or is_on_host(flag):
        yield
        return
    before = [tensor.detach().clone() for tensor in tensors]
    yield
    for tensor, was in zip(tensors, before, strict=True):
        tensor.copy_(was.where(flag.to(tensor.device) > 0, tensor))


def counts_of(optimizer: Optimizer, flag: Tensor) -> Undo:
    """Note what an optimizer counts on the host in its groups and states.

    Arguments:
        flag: of the step that comes.

    Returns:
        takes back what a step has counted since that a device has left out.
    """
    if is_on_host(flag) or not getattr(optimizer, "counts_on_host", False):
        return lambda: None
    kept = [(held, _numbers(held)) for held in (*optimizer.param_groups, *optimizer.state.values())]

    def undo() -> None:
        for held, numbers in kept:
            held.update(numbers)

    return undo


def _numbers(held: MutableMapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in held.items()
        if isinstance(value, int | float)
        or (isinstance(value, Tensor) and not value.ndim and value.device.type == "cpu")
    }


_F = TypeVar("_F", bound=Callable[..., Any])
COMPILER = "torch._dynamo"
AT_ONCE = 1 << 26
"""Numbers of parameters that go through the operations of a step together on a GPU."""

Given: TypeAlias = Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
"""Groups of PyTorch's form, or (qualified name, parameter) pairs, which make one group."""


def given_groups(parameters: Given) -> list[dict[str, Any]]:
    """Bring what an optimizer is given into the form of groups.

    Arguments:
        parameters: groups, as from `parameter_groups`, or pairs, as from
            `module.named_parameters()`.

    Returns:
        groups of their own, whose `params` are lists; names stay with them.
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
    """Go through the parameters of groups."""
    for group in groups:
        for item in group["params"]:
            yield item[1] if isinstance(item, tuple) else item


def uncompiled(wrapper: _F, no_grad: bool = False) -> _F:
    """The function in a wrapper of PyTorch, called as long as the compiler is not loaded.

    Arguments:
        no_grad: whether gradients are off in it, as the wrapper of `step` has them.
    """
    if getattr(wrapper, "hooked", False):  # by the first of PyTorch's own that was made
        wrapper = wrapper.__wrapped__  # type: ignore[attr-defined]
    function = inspect.unwrap(wrapper)
    plain = torch.no_grad()(function) if no_grad else function

    @functools.wraps(function)
    def run(*given: Any, **named: Any) -> Any:
        return (wrapper if COMPILER in sys.modules else plain)(*given, **named)

    return run  # type: ignore[return-value]


class BuiltOptimizer(torch.optim.Optimizer):
    """An optimizer that is built from its section, and runs without the compiler."""

    @classmethod
    def from_config(cls, config: OptimizerConfig, parameters: Given, **runtime: Any) -> Self:
        """Build the optimizer of a section.

        Arguments:
            parameters: groups, as from `parameter_groups`, or (qualified name, parameter) pairs,
                all of which decay.
            runtime: arguments that no field gives: `state_dtype`, `seed`.

        Raises:
            SetpointError: the section asks for what these parameters cannot have.
        """
        groups = given_groups(parameters)
        return cls(groups, **cls.arguments(config, groups), **runtime)

    @classmethod
    def arguments(cls, config: Any, groups: list[dict[str, Any]]) -> dict[str, Any]:
        """The arguments that fields of the section give: those of the same name."""
        del groups
        taken = inspect.signature(cls).parameters
        return {name: getattr(config, name) for name in fields_of(config) if name in taken}

    add_param_group = uncompiled(torch.optim.Optimizer.add_param_group)
    zero_grad = uncompiled(torch.optim.Optimizer.zero_grad)
    state_dict = uncompiled(torch.optim.Optimizer.state_dict)
    load_state_dict = uncompiled(torch.optim.Optimizer.load_state_dict)


class GroupedOptimizer(BuiltOptimizer):
    """An optimizer whose step updates one group of parameters after the other.

    It may be left out on the device; see `unless`.
    """

    _step_supports_amp_scaling = True
    counts_on_host = True

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update the parameters that have gradients.

        Arguments:
            closure: computes the loss again, before the update.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not is_left_out(flag_of(self)):
            for group in self.param_groups:
                self.update(group)
        return loss

    @abstractmethod
    def update(self, group: dict[str, Any]) -> None:
        """Update the parameters of a group.

        Arguments:
            group: one of `param_groups`; parameters without gradients stay as they are.
        """
        ...


def decay_where_aligned(parameter: Tensor, update: Tensor, lr: float, weight_decay: float) -> None:
    """Decay the weights that an update moves towards 0 or not at all, in place.

    Cautious weight decay (Chen et al., 2025, https://arxiv.org/abs/2510.12402): with the update u,
    which is subtracted, x = x - lr decay x where u x >= 0. To be called before the update.

    Arguments:
        parameter, update: this rank's parts; of the update its signs count.
    """
    # Signs, as the product of two small numbers may be 0.
    aligned = update.sign().mul_(parameter.sign()) >= 0
    parameter.mul_(1 - aligned.to(parameter.dtype).mul_(lr * weight_decay))


def foreach_groups(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Split parameters into lists for the foreach operations of a step.

    Returns:
        on a GPU as many as bound what copies of them take, which saves it launches; those on a CPU
        one by one, so that what an operation has written is still in the cache for the next.
    """
    yield from ([p] for p in parameters if p.device.type == "cpu")
    some: list[Tensor] = []
    for p in parameters:
        if p.device.type == "cpu":
            continue
        if some and sum(local_shard(each, each).numel() for each in (*some, p)) > AT_ONCE:
            yield some
            some = []
        some.append(p)
    if some:
        yield some


def is_dtensor(tensor: Tensor) -> TypeGuard[DTensor]:
    """True if a tensor is a DTensor.

    Returns:
        whether it is a DTensor, without importing that class, which takes a good part of a second.
    """
    return hasattr(tensor, "to_local")


def local_shard(tensor: Tensor, like: Tensor) -> Tensor:
    """Take this rank's part of a tensor.

    Returns:
        the tensor itself where it is not spread, else its part here, in the same memory unless
        it was spread in another way.
    """
    if not is_dtensor(tensor):
        return tensor
    assert is_dtensor(like)
    if tensor.placements != like.placements:
        tensor = tensor.redistribute(placements=like.placements)
    return tensor.to_local()
