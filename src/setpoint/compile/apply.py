"""torch.compile of a model or its layers, in place: names of parameters stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any, SupportsIndex

import torch
from torch import nn

from setpoint.compile.checks import flatten
from setpoint.compile.config import Compile
from setpoint.compile.internals import inductor_options
from setpoint.compile.split_backward import SPLIT, splitting
from setpoint.config import SetpointError
from setpoint.shapes.logged import keep_out_of_graphs

# How models call a layer's own number: it differs in each, and few read it.
NUMBERS = frozenset({"layer_idx", "layer_index", "layer_id", "layer_number", "layer", "index"})


class Compiled:
    """What was to be compiled, and what of it ran eagerly all the same."""

    def __init__(self, names: Mapping[Any, str]) -> None:
        self.names = names
        self.as_written: set[Any] = set()

    def take(self) -> list[str]:
        """Tell which modules ran as they are written, and forget it."""
        names = [name for part, name in self.names.items() if part in self.as_written]
        self.as_written.clear()
        return names


def compile_model(
    config: Compile,
    *,
    model: nn.Module,
    layers: Sequence[tuple[str, nn.Module]],
    splits_backward: bool = False,
) -> Compiled:
    """Have the forward pass of a model, or of its layers, compiled when it is first called.

    Hooks stay outside of what is compiled, so that those of a sharding engine, which gather
    weights, end no graph. Layers of one kind share their code, which is compiled once.

    Arguments:
        model: with activation checkpointing, if it has any; it may be sharded before or after.
        splits_backward: whether gradients of inputs are computed apart from those of weights.

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
    shared: dict[Hashable, type[nn.Module]] = {}
    for _, module in parts:
        if "forward" in vars(module):  # of this module alone
            enter = _entrance(compiled.as_written, _unbound(module.forward))
            compiled_forward = _compile(config, enter, splits_backward=splits_backward)
            module.forward = partial(compiled_forward, module)
            continue
        kind = signature_of(module)
        if kind not in shared:
            shared[kind] = _compiled_class(
                config, type(module), compiled.as_written, splits_backward
            )
        module.__class__ = shared[kind]
    return compiled


def compile_step(config: Compile, objective: Any) -> Compiled:
    """Have the step of an objective compiled as one graph when it is first called.

    The graph holds what its method `share` computes, the model and its loss, with the backward pass
    from there: a part that no graph can hold is an error. What evaluations call, `sums` and
    `evaluate`, is compiled as well, and a graph may end there.

    Raises:
        SetpointError: the backend does not take an option.
    """
    compiled, kind = Compiled({objective: "the step"}), type(objective)
    for name, whole in (("share", True), ("sums", False), ("evaluate", False)):
        enter = _entrance(compiled.as_written, getattr(kind, name))
        setattr(objective, name, partial(_compile(config, enter, whole), objective))
    return compiled


def _compiled_class(
    config: Compile, kind: type[nn.Module], as_written: set[Any], splits_backward: bool
) -> type[nn.Module]:
    """A class whose forward pass is compiled; copies of its modules are of the class before."""

    def reduce(module: nn.Module, protocol: SupportsIndex) -> Any:
        make, given, *state = kind.__reduce_ex__(module, protocol)
        return _call, (make, *(kind if each is made else each for each in given)), *state

    enter = _entrance(as_written, kind.forward)
    compiled = _compile(config, enter, splits_backward=splits_backward)
    names: dict[str, Any] = {
        name: getattr(kind, name) for name in ("__qualname__", "__module__", "__doc__")
    }
    names |= {"forward": compiled, "__reduce_ex__": reduce}
    made = type(kind.__name__, (kind,), names)
    return made


def _unbound(forward: Callable[..., Any]) -> Callable[..., Any]:
    def call(_: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    return call


def _call(make: Callable[..., Any], *given: Any) -> Any:
    """Stands before `copyreg.__newobj__`, of which pickle expects an object's own class."""
    return make(*given)


def _entrance(as_written: set[Any], forward: Callable[..., Any]) -> Callable[..., Any]:
    """Make the function that is compiled: it calls a module, and notes if Python itself runs it."""

    def enter(module: Any, *args: Any, **kwargs: Any) -> Any:
        # Compiled code has left this out, whatever the reason why it does not run.
        if not torch.compiler.is_compiling():
            as_written.add(module)
        return forward(module, *args, **kwargs)

    # PyTorch keeps what it compiles, and counts it, by the code object: each kind gets its own.
    made = FunctionType(
        enter.__code__.replace(), enter.__globals__, "enter", None, enter.__closure__
    )
    return made


def _compile(
    config: Compile,
    function: Callable[..., Any],
    whole: bool | None = None,
    splits_backward: bool = False,
) -> Callable[..., Any]:
    """Compile a function; `whole` in place of compile.fullgraph."""
    options = None
    if config.options.dump():
        known = inductor_options() if config.backend == "inductor" else ()
        options = flatten(config.options, known)
    keep_out_of_graphs()
    try:
        fullgraph = config.fullgraph if whole is None else whole
        if splits_backward and config.backend in SPLIT:
            backend = splitting(config.backend, config.mode, options, config.dynamic)
            return torch.compile(
                function, backend=backend, fullgraph=fullgraph, dynamic=config.dynamic
            )
        return torch.compile(
            function,
            backend=config.backend,
            fullgraph=fullgraph,
            dynamic=config.dynamic,
            mode=config.mode,
            options=options,
        )
    except RuntimeError as error:  # a value of the wrong type, which torch.compile looks at first
        raise SetpointError(f"compile.options: {error}") from error


def signature_of(layer: nn.Module) -> Hashable:
    """Describe a layer by what compiled code is specialized on.

    Layers that differ here would each compile code of their own under one name, and would use up
    the recompilation limit of that name together.

    Returns:
        the classes of its modules, their plain settings, and the shapes of their parameters; equal
        for layers of one kind.
    """
    return tuple(
        # A forward pass of its own is what activation checkpointing gives a layer.
        (name, type(module), "forward" in vars(module), _settings(module), _shapes(module))
        for name, module in layer.named_modules()
    )


def _settings(module: nn.Module) -> Hashable:
    return tuple(
        (name, value)
        for name, value in sorted(vars(module).items())
        if name not in NUMBERS and isinstance(value, bool | int | float | str | None)
    )


def _shapes(module: nn.Module) -> Hashable:
    return tuple(
        (name, tuple(parameter.shape), parameter.requires_grad)
        for name, parameter in module.named_parameters(recurse=False)
    )
