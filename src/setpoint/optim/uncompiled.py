"""PyTorch's optimizers without its compiler, unless something is compiled.

PyTorch keeps the compiler out of its optimizers by wrappers that import it first, which takes as
long as importing torch itself. Where nothing has imported it, nothing is compiled, and what they
wrap is called.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

_F = TypeVar("_F", bound=Callable[..., Any])
COMPILER = "torch._dynamo"


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


class Uncompiled(torch.optim.Optimizer):
    """What optimizers of all kinds share."""

    add_param_group = uncompiled(torch.optim.Optimizer.add_param_group)
    zero_grad = uncompiled(torch.optim.Optimizer.zero_grad)
    state_dict = uncompiled(torch.optim.Optimizer.state_dict)
    load_state_dict = uncompiled(torch.optim.Optimizer.load_state_dict)


class AdamW(Uncompiled, torch.optim.AdamW):
    """torch.optim.AdamW."""

    step = uncompiled(torch.optim.AdamW.step, no_grad=True)


class SGD(Uncompiled, torch.optim.SGD):
    """torch.optim.SGD."""

    step = uncompiled(torch.optim.SGD.step, no_grad=True)


class Adafactor(Uncompiled, torch.optim.Adafactor):
    """torch.optim.Adafactor."""

    step = uncompiled(torch.optim.Adafactor.step, no_grad=True)
