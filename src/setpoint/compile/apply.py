"""torch.compile of a model or its layers, in place: names of parameters stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn

from setpoint.compile.alike import signature_of
from setpoint.compile.config import Compile
from setpoint.compile.options import flatten, inductor_options
from setpoint.config import SetpointError


class Compiled:
    """What was to be compiled, and what of it ran as it is written all the same."""

    def __init__(self, names: dict[nn.Module, str]) -> None:
        self.names = names
        self.as_written: set[nn.Module] = set()

    def take(self) -> list[str]:
        """Tell which modules ran as they are written, and forget it."""
        names = [name for module, name in self.names.items() if module in self.as_written]
        self.as_written.clear()
        return names


def compile_model(
    config: Compile, *, model: nn.Module, layers: Sequence[tuple[str, nn.Module]]
) -> Compiled:
    """Have a model compiled when it is first called.

    Nothing is wrapped: a module compiles its own call, hooks included, as `nn.Module.compile`
    does. Layers of one kind share their code, so that one is compiled for all of them.

    Raises:
        SetpointError: there are no layers to compile, or the backend does not take an option.
    """
    if config.scope == "block" and not layers:
        raise SetpointError(
            f"compile.scope = block: the model, a {type(model).__name__}, has no layers that "
            f"repeat\nValid: compile.scope = model"
        )
    parts = [("model", model)] if config.scope == "model" else layers
    compiled = Compiled({module: name for name, module in parts})
    shared: dict[Hashable, Callable[..., Any]] = {}
    for _, module in parts:
        kind = signature_of(module)
        if kind not in shared:
            shared[kind] = _compile(config, _entrance(compiled.as_written))
        # Where nn.Module.compile() puts it; it is neither pickled nor copied.
        module._compiled_call_impl = partial(shared[kind], module)
    return compiled


def _entrance(as_written: set[nn.Module]) -> Callable[..., Any]:
    """Make the function that is compiled: it calls a module, and notes if Python itself runs it."""

    def enter(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # Compiled code has left this out, whatever the reason why it does not run.
        if not torch.compiler.is_compiling():
            as_written.add(module)
        return module._call_impl(*args, **kwargs)

    # PyTorch keeps what it compiles, and counts it, by the code object: each kind gets its own.
    made = FunctionType(
        enter.__code__.replace(), enter.__globals__, "enter", None, enter.__closure__
    )
    return made


def _compile(config: Compile, function: Callable[..., Any]) -> Callable[..., Any]:
    options = None
    if config.options.dump():
        known = inductor_options() if config.backend == "inductor" else ()
        options = flatten(config.options, known)
    try:
        return torch.compile(
            function,
            backend=config.backend,
            fullgraph=config.fullgraph,
            dynamic=config.dynamic,
            mode=config.mode,
            options=options,
        )
    except RuntimeError as error:  # a value of the wrong type, which torch.compile looks at first
        raise SetpointError(f"compile.options: {error}") from error
