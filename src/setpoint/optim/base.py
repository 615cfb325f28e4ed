"""What the optimizers share: from a section to an optimizer, a step group by group, local shards.

PyTorch keeps the compiler out of its optimizers by wrappers that import it first, which takes as
long as importing torch itself. Where nothing has imported it, nothing is compiled, and what they
wrap is called.
"""

from __future__ import annotations

import functools
import inspect
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeGuard, TypeVar, overload

import torch
from torch import Tensor

from setpoint.config import fields_of
from setpoint.optim.unless import flag_of, is_left_out

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from setpoint.optim.section import OptimizerConfig

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
    """What a wrapper of PyTorch wraps, for as long as the compiler is not loaded.

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

    It may be left out on the device; see `setpoint.optim.unless`.
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


def together(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Split parameters into those that are taken through the operations of a step together.

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
    """Say whether a tensor is spread over ranks.

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
