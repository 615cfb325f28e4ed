"""Updates that a device leaves out by itself, before the host knows that the numbers are bad.

As PyTorch has it for its fused optimizers and `torch.amp.GradScaler`: an optimizer whose
`_step_supports_amp_scaling` is true finds in its attribute `found_inf` an fp32 scalar, and changes
neither weights nor state where that is 1. What it counts on the host is taken back later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

Undo = Callable[[], None]


def takes_flag(optimizer: Optimizer) -> bool:
    """Whether an optimizer leaves its step out by a flag on the device."""
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
    """Whether a step is left out, as far as it is known without waiting for a device."""
    return flag is not None and is_on_host(flag) and bool(flag)


def is_on_host(number: Tensor) -> bool:
    """Whether a number is read without waiting for a device."""
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
