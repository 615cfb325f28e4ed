"""torch.compile of a model or its layers, in place: settings of the process, modules, artifacts."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, SupportsIndex

import torch
from torch import nn

from setpoint.compile.config import Compile
from setpoint.compile.internals import (
    dynamo_config,
    forget_compiled,
    inductor_config,
    inductor_options,
    more_records,
    random_states_in_place,
)
from setpoint.compile.requirements import flatten, make_folder
from setpoint.compile.split_backward import SPLIT, kept_for_two_passes, splitting
from setpoint.config import SetpointError
from setpoint.shapes.logged import keep_out_of_graphs

# Names of a layer's index in models, which differ; few models read it.
NUMBERS = frozenset({"layer_idx", "layer_index", "layer_id", "layer_number", "layer", "index"})
CACHE = "TORCHINDUCTOR_CACHE_DIR"
KERNELS = "TRITON_CACHE_DIR"
LOGGERS = (
    "torch._dynamo.convert_frame",
    "torch._dynamo.variables.tensor",
    "torch._higher_order_ops.wrap",
)
BEGINNINGS = ("torch._dynamo hit config.", "Graph break")
"""Of the limit of recompilation and of what ends a graph, both of which `Watch` finds."""
KEPT = "Detected that context_fn is passed to torch.utils.checkpoint under torch.compile"
"""Compilers write operations in place as others, which a policy that names those in place would not
see. Ours names products and attention (`memory/checkpointing.py`), and gradients are right."""
DIGEST = 32
"""Bytes at the beginning of a file: SHA-256 of the rest, which PyTorch itself does not check."""


class Compiled:
    """Compiled modules, and those that nevertheless ran eagerly."""

    def __init__(self, names: Mapping[Any, str]) -> None:
        self.names = names
        self.ran_eagerly: set[Any] = set()

    def take(self) -> list[str]:
        """Return the modules that ran eagerly, and clear the list."""
        names = [name for part, name in self.names.items() if part in self.ran_eagerly]
        self.ran_eagerly.clear()
        return names


def compile_model(
    config: Compile,
    *,
    model: nn.Module,
    layers: Sequence[tuple[str, nn.Module]],
    splits_backward: bool = False,
) -> Compiled:
    """Compile the forward pass of a model, or of its layers, at the first call.

    Hooks are not compiled, so the hooks of a sharding engine, which gather weights, break no graph.
    Layers of one kind share their code, which is compiled once.

    Arguments:
        model: with activation checkpointing, if any; it may be sharded before or after.
        splits_backward: whether gradients of inputs and of weights are computed separately.

    Raises:
        SetpointError: there are no layers to compile, or the backend does not support an option.
    """
    if config.scope == "block" and not layers:
        raise SetpointError(
            f"compile.scope = block: the model ({type(model).__name__}) has no repeated layers\n"
            f"Valid: compile.scope = model"
        )
    parts = [("model", model)] if config.scope == "model" else layers
    compiled = Compiled({module: name for name, module in parts})
    shared: dict[Hashable, type[nn.Module]] = {}
    for _, module in parts:
        if "forward" in vars(module):  # replaced on this module only
            enter = _entrance(compiled.ran_eagerly, _unbound(module.forward))
            compiled_forward = _compile(config, enter, splits_backward=splits_backward)
            module.forward = partial(compiled_forward, module)
            continue
        kind = signature_of(module)
        if kind not in shared:
            shared[kind] = _compiled_class(
                config, type(module), compiled.ran_eagerly, splits_backward
            )
        module.__class__ = shared[kind]
    return compiled


def compile_step(config: Compile, objective: Any) -> Compiled:
    """Compile forward, loss and backward of an objective as one graph at the first call.

    The graph contains the method `share`, which computes the model and its loss, and its backward
    pass; a part that cannot be in a graph is an error. The methods for evaluation, `sums` and
    `evaluate`, are also compiled, but may break graphs.

    Raises:
        SetpointError: the backend does not support an option.
    """
    compiled, kind = Compiled({objective: "the step"}), type(objective)
    for name, fullgraph in (("share", True), ("sums", False), ("evaluate", False)):
        enter = _entrance(compiled.ran_eagerly, getattr(kind, name))
        setattr(objective, name, partial(_compile(config, enter, fullgraph), objective))
    return compiled


def _compiled_class(
    config: Compile, kind: type[nn.Module], ran_eagerly: set[Any], splits_backward: bool
) -> type[nn.Module]:
    """Create a class with a compiled forward pass; module copies keep the original class."""

    def reduce(module: nn.Module, protocol: SupportsIndex) -> Any:
        make, given, *state = kind.__reduce_ex__(module, protocol)
        return (
            _call,
            (make, *(kind if argument is subclass else argument for argument in given)),
            *state,
        )

    enter = _entrance(ran_eagerly, kind.forward)
    compiled = _compile(config, enter, splits_backward=splits_backward)
    names: dict[str, Any] = {
        name: getattr(kind, name) for name in ("__qualname__", "__module__", "__doc__")
    }
    names |= {"forward": compiled, "__reduce_ex__": reduce}
    subclass = type(kind.__name__, (kind,), names)
    return subclass


def _unbound(forward: Callable[..., Any]) -> Callable[..., Any]:
    def call(_: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    return call


def _call(make: Callable[..., Any], *given: Any) -> Any:
    """Stand-in for `copyreg.__newobj__`, for which pickle expects an object's own class."""
    return make(*given)


def _entrance(ran_eagerly: set[Any], forward: Callable[..., Any]) -> Callable[..., Any]:
    """Create the function to compile, which calls a module and records eager runs."""

    def enter(module: Any, *args: Any, **kwargs: Any) -> Any:
        # Compiled code lacks this branch, so it records any reason for an eager run.
        if not torch.compiler.is_compiling():
            ran_eagerly.add(module)
        return forward(module, *args, **kwargs)

    # PyTorch caches and counts compiled code by code object: each kind gets its own.
    entrance = FunctionType(
        enter.__code__.replace(), enter.__globals__, "enter", None, enter.__closure__
    )
    return entrance


def _compile(
    config: Compile,
    function: Callable[..., Any],
    whole: bool | None = None,
    splits_backward: bool = False,
) -> Callable[..., Any]:
    """Compile a function; `whole` overrides compile.fullgraph."""
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
    except RuntimeError as error:  # a value of the wrong type, which torch.compile checks first
        raise SetpointError(f"compile.options: {error}") from error


def signature_of(layer: nn.Module) -> Hashable:
    """Key of a layer, made of the properties on which compiled code is specialized.

    Layers with different keys would each compile separate code under one name, and would jointly
    use up its recompilation limit.

    Returns:
        the classes of its modules, their plain settings, and the shapes of their parameters; equal
        for layers of one kind.
    """
    return tuple(
        # Activation checkpointing replaces a layer's forward pass.
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


@contextmanager
def compiling(
    config: Compile,
    splits_backward: bool = False,
    fuses_messages: bool = False,
    rounds_as_eager: bool = False,
) -> Iterator[None]:
    """Apply the compiler settings of a job.

    PyTorch compiles a function on its first call, and its backward pass on the first backward pass,
    so the context must stay open until the job has ended.

    Arguments:
        splits_backward: gradients of inputs and of weights are computed separately.
        fuses_messages: inductor fuses messages of tensor parallelism with products.
        rounds_as_eager: inductor rounds where eager does, which scales per row need
            (pytorch#150859): else backward takes them from values never rounded to bf16.

    Returns:
        a context that restores the previous settings and drops compiled code.

    Raises:
        SetpointError: a folder for compiled code cannot be created or written to.
    """
    if config.cache is not None:
        make_folder(config.cache)
    if config.artifacts is not None:
        make_folder(config.artifacts, "artifacts")
    settings: Any = torch.compiler.config
    with ExitStack() as stack:
        # Code compiled by other jobs of this process would count towards this job's limit.
        torch.compiler.reset()
        stack.callback(torch.compiler.reset)
        stack.enter_context(more_records())
        limit = config.recompile_limit
        together = max(limit, settings.accumulated_recompile_limit)
        patch = settings.patch(recompile_limit=limit, accumulated_recompile_limit=together)
        stack.enter_context(patch)
        stack.enter_context(dynamo_config().patch(optimize_ddp=config.optimize_ddp))
        stack.enter_context(quiet_compiler())
        stack.enter_context(random_states_in_place())
        if fuses_messages:
            stack.enter_context(inductor_config().patch(_micro_pipeline_tp=True))
        if rounds_as_eager:
            stack.enter_context(inductor_config().patch(emulate_precision_casts=True))
        if splits_backward:
            stack.enter_context(kept_for_two_passes())
        if config.cache is not None:
            stack.enter_context(cached_in(config.cache))
        yield


def is_repeated(record: logging.LogRecord) -> bool:
    """True if a line in PyTorch's log is harmless or repeats a report of `Watch`."""
    repeated = record.levelno == logging.WARNING and str(record.msg).startswith(BEGINNINGS)
    return repeated or KEPT in record.getMessage()


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """Hide PyTorch's own long warnings about graphs and limits from the terminal.

    TORCH_LOGS takes precedence.

    Returns:
        a context that restores the loggers.
    """
    if os.environ.get("TORCH_LOGS"):
        yield
        return

    def passes(record: logging.LogRecord) -> bool:
        return not is_repeated(record)

    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(passes)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(passes)


@contextmanager
def cached_in(folder: Path) -> Iterator[None]:
    """Set the compile cache folder after torch has been imported."""
    path = str(folder.absolute())
    before = {name: os.environ.get(name) for name in (CACHE, KERNELS)}
    os.environ.update({CACHE: path, KERNELS: os.path.join(path, "triton")})
    # Entries in memory point to the previous folder.
    forget_compiled()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        forget_compiled()


class Artifacts:
    """File with the compile artifacts of a job on one kind of machine.

    PyTorch looks up each graph by its source, so a file from another configuration is useless but
    harmless.

    Arguments:
        key: key of the job; the file is also named after what compiled code depends on and
            PyTorch's own keys lack, such as the instruction set of a CPU.
    """

    def __init__(self, folder: Path, key: str, device: torch.device) -> None:
        self.path = folder / f"{key}-{machine_key(device)}.bin"

    def load(self) -> int | None:
        """Put the artifacts into inductor's cache.

        Returns:
            the number of artifacts; 0 without a file; None if it is damaged.
        """
        if not self.path.is_file():
            return 0
        content = self.path.read_bytes()
        digest, artifacts = content[:DIGEST], content[DIGEST:]
        if hashlib.sha256(artifacts).digest() != digest:
            return None
        cache = torch.compiler.load_cache_artifacts(artifacts)
        return None if cache is None else sum(len(paths) for paths in cache.artifacts.values())

    def save(self) -> bool:
        """Write the artifacts so far, atomically.

        Returns:
            whether there were any.
        """
        cache = torch.compiler.save_cache_artifacts()
        if cache is None:
            return False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        try:
            temporary.write_bytes(hashlib.sha256(cache[0]).digest() + cache[0])
            temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)
        return True


def machine_key(device: torch.device) -> str:
    """Hash of PyTorch, Python and the device, in twelve digits."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = torch.backends.cpu.get_cpu_capability()
    facts = (torch.__version__, platform.python_version(), platform.machine(), device.type, name)
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]
