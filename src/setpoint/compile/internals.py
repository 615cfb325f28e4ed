"""Private names of PyTorch's compiler, used by no other module of Setpoint.

PyTorch's public API, `torch.compiler` and the options of `torch.compile`, does not give the number
of compiled graphs, the reasons for recompilations, or the positions of graph breaks. Its logs
(TORCH_LOGS) are text that must be requested before torch is imported. This module therefore reads
the underlying records. A release of PyTorch without one of these names is refused with its version
and the name.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import torch

from setpoint.config import SetpointError

UTILS = "torch._dynamo.utils"
RECORDS = 1024
"""Number of records that PyTorch keeps; a step may compile more than the default of 64."""


def internal(module: str, name: str) -> Any:
    """Import a private name.

    Raises:
        SetpointError: this version of PyTorch has no such name.
    """
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SetpointError(
            f"compile: PyTorch {torch.__version__} has no {module}.{name}, which Setpoint needs to "
            f"follow its compiler; PyTorch 2.11 to 2.13 have it\nValid: compile = null"
        ) from error


def compilations() -> Sequence[Any]:
    """Compilations so far, each with its graph, seconds, and reason or failure."""
    return list(internal(UTILS, "get_compilation_metrics")())


def graph_breaks() -> Sequence[Any]:
    """Graph breaks so far, each with `reason` and `user_stack`."""
    return list(internal(UTILS, "graph_break_reasons"))


@contextmanager
def more_records() -> Iterator[None]:
    """Raise the number of compilations that are remembered."""
    limit = internal(UTILS, "set_compilation_metrics_limit")
    limit(RECORDS)
    try:
        yield
    finally:
        limit(internal(UTILS, "DEFAULT_COMPILATION_METRICS_LIMIT"))


def dynamo_config() -> Any:
    """Settings of Dynamo."""
    return internal("torch._dynamo", "config")


def inductor_config() -> Any:
    """Settings of inductor; those that begin with _ are not options of `torch.compile`."""
    return internal("torch._inductor", "config")


def inductor_options() -> dict[str, Any]:
    """The options of inductor with their current values."""
    return internal("torch._inductor.config", "get_config_copy")()


@contextmanager
def random_states_in_place() -> Iterator[None]:
    """Let graphs with recomputed random operators also hold the device meshes of DTensor.

    AOTAutograd expects saved tensors, opaque objects and symbolic sizes in this order, and PyTorch
    2.13 puts the states of random generators that it saves, on a CPU, after the opaque objects.
    """
    partitioners: Any = importlib.import_module("torch._functorch.partitioners")
    is_opaque = getattr(partitioners, "is_opaque_node", None)
    if is_opaque is None:  # a PyTorch whose graphs hold no such objects
        yield
        return
    functionalize = partitioners.functionalize_rng_ops

    def saved_in(backward: Any) -> list[Any]:
        given = backward.graph.find_nodes(op="placeholder")
        return list(takewhile(lambda node: "tangent" not in node.name, given))

    def in_place(joint: Any, forward: Any, backward: Any, sizes: int) -> tuple[Any, Any]:
        # The user's outputs and the tangents may hold opaque objects, too.
        saved = saved_in(backward)
        opaque = list(takewhile(is_opaque, reversed(saved)))
        forward, backward = functionalize(joint, forward, backward, sizes + len(opaque))
        if opaque:
            for state in saved_in(backward)[len(saved) :]:
                opaque[-1].prepend(state)
            backward.recompile()
        return forward, backward

    partitioners.functionalize_rng_ops = in_place
    try:
        yield
    finally:
        partitioners.functionalize_rng_ops = functionalize


def forget_compiled() -> None:
    """Clear the in-memory caches of inductor."""
    internal("torch._inductor.utils", "clear_caches")()


def backend_function(name: str) -> Any:
    """The function of a backend; its parameters show whether it accepts options."""
    return internal("torch._dynamo", "lookup_backend")(name)
