"""Compiled backward passes split into input gradients and weight gradients.

Zero-bubble schedules compute input gradients first, for which the previous stage waits, and weight
gradients later. A compiled block is one autograd node whose graph computes both at once; run
separately for each, it would compute everything twice. Its graph is therefore divided at
compilation: the first part returns the input gradients, and the intermediate values that the second
part needs for the weight gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import fx

from setpoint.compile.internals import internal

Pass = Literal["full", "input", "weight"]
SPLIT = ("inductor", "aot_eager")
"""Backends whose backward graphs are divided; others compute both gradients in either pass."""
KEPT = "_setpoint_kept"
_now: Pass = "full"


@contextmanager
def backward_pass(kind: Pass) -> Iterator[None]:
    """Select the gradients computed by backward passes within the block, in all threads."""
    global _now  # autograd runs compiled code in a thread of the device
    before, _now = _now, kind
    try:
        yield
    finally:
        _now = before


@contextmanager
def kept_for_two_passes() -> Iterator[None]:
    """Let compiled backward passes run twice, by disabling the donation of their inputs.

    Returns:
        a context for all compilation and execution.
    """
    # The cache of full graphs does not support the parts.
    settings = internal("torch._functorch", "config")
    with settings.patch(donated_buffer=False, enable_autograd_cache=False):
        yield


def splitting(backend: str, mode: str | None, options: dict[str, Any] | None, dynamic: Any) -> Any:
    """Build a backend that splits backward graphs.

    Arguments:
        backend: one of `SPLIT`.
        mode, options, dynamic: arguments of `torch.compile`.
    """
    if backend == "aot_eager":
        nothing = internal("torch._dynamo.backends.debugging", "boxed_nop")
        aot = internal("torch._dynamo.backends.common", "aot_autograd")

        def eager(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
            weights = list(map(_is_weight, inputs))

            def backward(part: fx.GraphModule, given: Sequence[Any]) -> Any:
                return _divided(part, given, weights, nothing)

            return aot(fw_compiler=nothing, bw_compiler=backward)(graph, inputs)

        return eager
    wrapper = internal("torch", "_TorchCompileInductorWrapper")(mode, options, dynamic)
    compile_fx = internal("torch._inductor.compile_fx", "compile_fx")
    compile_inner = internal("torch._inductor.compile_fx", "compile_fx_inner")

    def inductor(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        weights = list(map(_is_weight, inputs))

        def inner(part: fx.GraphModule, given: Sequence[Any], **settings: Any) -> Any:
            if not settings.get("is_backward"):
                return compile_inner(part, given, **settings)
            settings["static_input_idxs"] = ()

            def compiled(half: fx.GraphModule, values: Sequence[Any]) -> Any:
                return compile_inner(half, values, **settings)

            return _divided(part, given, weights, compiled)

        return compile_fx(graph, inputs, inner_compile=inner, config_patches=wrapper.config)

    return inductor


def _is_weight(value: Any) -> bool:
    return isinstance(value, torch.nn.Parameter) and value.requires_grad


class _Divided:
    """Split backward pass with the calling convention of compilers: one list, which is emptied.

    Arguments:
        weights: which results are gradients of weights.
        used: arguments of the second part, before the values that the first one keeps for it.
        shapes: tensors with the shapes of the gradients of weights.
    """

    def __init__(
        self,
        first: Callable[[list[Any]], Sequence[Any]],
        second: Callable[[list[Any]], Sequence[Any]],
        weights: Sequence[bool],
        used: Sequence[int],
        shapes: Sequence[Any],
    ) -> None:
        self.first, self.second = first, second
        self.weights, self.used, self.shapes = weights, used, shapes
        self.inputs = len(weights) - sum(weights)
        self._boxed_call = True

    def __call__(self, args: list[Any]) -> list[Any]:
        kind = _now
        node: Any = None if kind == "full" else _current_node()
        saved = [args[index] for index in self.used] if kind != "input" else []
        if kind == "weight":
            kept, grads = getattr(node, KEPT), [None] * self.inputs
            delattr(node, KEPT)
        else:
            outputs = list(self.first(list(args)))
            grads, kept = outputs[: self.inputs], outputs[self.inputs :]
        args.clear()
        if kind == "input":
            setattr(node, KEPT, kept)
            # Unused placeholders: the wrapper of the results expects tensors of these shapes.
            weight_grads = [
                None if like is None else torch.zeros((), dtype=like.dtype, device=like.device)
                .expand(like.shape) for like in self.shapes
            ]  # fmt: skip
        else:
            weight_grads = self.second([*saved, *kept])
        of_inputs, of_weights = iter(grads), iter(weight_grads)
        return [next(of_weights if is_weight else of_inputs) for is_weight in self.weights]


def _current_node() -> Any:
    return torch._C._current_autograd_node()


def _divided(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    weights: Sequence[bool],
    compiled: Callable[[fx.GraphModule, Sequence[Any]], Any],
) -> Any:
    """Compile a backward graph in two parts, or whole if results and inputs do not match."""
    nodes = list(graph.graph.nodes)
    results = list(nodes[-1].args[0])
    of_weights = [r for r, is_weight in zip(results, weights, strict=False) if is_weight]
    if len(results) != len(weights) or not any(isinstance(r, fx.Node) for r in of_weights):
        return compiled(graph, inputs)
    of_inputs = [r for r, is_weight in zip(results, weights, strict=True) if not is_weight]
    places = [node for node in nodes if node.op == "placeholder"]
    first = _needed(of_inputs)
    second = {node for node in _needed(of_weights) - first if node.op != "placeholder"}
    read = {source for node in second for source in node.all_input_nodes} | {
        node for node in of_weights if isinstance(node, fx.Node)
    }
    shared = [n for n in nodes if n in read and n not in second and n.op != "get_attr"]
    used = [index for index, node in enumerate(places) if node in shared]
    kept = [node for node in shared if node.op != "placeholder"]
    one = _part(graph, places, first, [*of_inputs, *kept])
    two = _part(graph, [*(places[index] for index in used), *kept], second, of_weights)
    values = [*(inputs[index] for index in used), *(node.meta["val"] for node in kept)]
    shapes = [node.meta["val"] if isinstance(node, fx.Node) else None for node in of_weights]
    return _Divided(compiled(one, inputs), compiled(two, values), weights, used, shapes)


def _needed(results: Sequence[Any]) -> set[fx.Node]:
    """Find all nodes on which results depend, including themselves."""
    nodes: set[fx.Node] = set()
    left = [node for node in results if isinstance(node, fx.Node)]
    while left:
        node = left.pop()
        if node not in nodes:
            nodes.add(node)
            left += node.all_input_nodes
    return nodes


def _part(
    module: fx.GraphModule, places: Sequence[fx.Node], nodes: set[fx.Node], results: Sequence[Any]
) -> fx.GraphModule:
    """Extract a graph of some nodes from another graph, with other nodes as arguments."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for place in places:
        copies[place] = graph.placeholder(place.name)
        copies[place].meta = dict(place.meta)
    for node in module.graph.nodes:
        is_constant = node.op == "get_attr" and any(user in nodes for user in node.users)
        if (node in nodes or is_constant) and node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    outputs = tuple(copies[result] if isinstance(result, fx.Node) else result for result in results)
    graph.output(outputs).meta = dict(list(module.graph.nodes)[-1].meta)
    return fx.GraphModule(module, graph)
