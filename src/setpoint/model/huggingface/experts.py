"""Packed experts of transformers' models on several ranks, by Setpoint's exchange of tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from setpoint.config import SetpointError
from setpoint.model.moe.dispatch import TensorParallelDispatcher
from setpoint.model.moe.experts import (
    Assignments,
    assign,
    gather,
    grouped_product,
    looped_product,
    spread,
    sum_choices,
    why_not_grouped,
)
from setpoint.shapes.placed import part_here
from setpoint.shapes.protocols import ExpertPart
from setpoint.shapes.stored import CHILD

if TYPE_CHECKING:
    from setpoint.model.moe.dispatch import TokenDispatcher
    from setpoint.shapes.peers import Peers

BLOCKS = ("Llama4TextMoe",)
"""Blocks whose experts take all tokens, weighted, and whose forward pass is replaced."""


def use_experts(model: nn.Module, dispatcher: TokenDispatcher) -> list[ExpertPart]:
    """See `setpoint.shapes.protocols.HasExperts`.

    Raises:
        SetpointError: the model has no packed experts, or ranks cannot divide their width.
    """
    over = None
    if isinstance(dispatcher, TensorParallelDispatcher) and dispatcher.divides:
        over = dispatcher.peers
    parts: list[ExpertPart] = []
    for path, experts, block in experts_of(model):
        if block is not None:
            _change(block, _Block, {})
            block.dispatcher = dispatcher
        parts.append(_part(path, experts, _Weighted if block is None else _Scaled, over))
        experts.dispatcher = dispatcher
    if not parts:
        raise SetpointError(
            f"parallel.expert: {type(model).__name__} of transformers has no experts in one tensor "
            f"for each projection\nValid: 1"
        )
    return parts


def experts_of(model: nn.Module) -> list[tuple[str, Any, Any]]:
    """Find packed experts: path, module, and the block around them where it is one of `BLOCKS`."""
    found: list[tuple[str, Any, Any]] = []
    for path, module in model.named_modules():
        if type(module).__name__ in BLOCKS:
            found.append((f"{path}.experts", module.experts, module))
        elif isinstance(getattr(module, "_is_expert_parallel", None), bool):
            found.append((path, module, None))
    return found


class _Layout(NamedTuple):
    """Where the inner width of experts lies.

    Arguments:
        widths: by parameter, the dimension that ranks divide.
        halves: by parameter, the dimension with all gates before all values of the other
            projection; ranks have all of it, and compute with their part of each half.
    """

    widths: dict[str, int]
    halves: dict[str, int]


def _layout(experts: Any) -> _Layout:
    names = experts._parameters.keys()
    transposed = getattr(experts, "is_transposed", True)
    into, out = (2, 1) if transposed else (1, 2)
    dims = {name: into for name in names if name in ("gate_up_proj", "up_proj")}
    dims |= {name: 1 for name in names if name in ("gate_up_proj_bias", "up_proj_bias")}
    widths = {"down_proj": out}
    halves: dict[str, int] = {}
    for name, dim in dims.items():
        has_halves = name.startswith("gate") and getattr(experts, "is_concatenated", True)
        (halves if has_halves else widths)[name] = dim
    return _Layout(widths, halves)


def why_no_width(path: str, experts: Any, size: int) -> str | None:
    """Why ranks cannot divide the inner width of experts; None: they can."""
    layout = _layout(experts)
    unknown = experts._parameters.keys() - {*layout.widths, *layout.halves, "down_proj_bias"}
    if unknown:
        return f"it is not known how {', '.join(sorted(unknown))} of {path} are divided"
    if any(True for part in experts.children() for _ in part.parameters()):
        return f"the experts of {path} have adapters, of which ranks cannot divide the inner width"
    width = experts.down_proj.shape[layout.widths["down_proj"]]
    return f"{size} ranks cannot divide experts of {width}, as in {path}" if width % size else None


def _part(path: str, experts: Any, behaves: type[_Experts], over: Peers | None) -> ExpertPart:
    layout = _layout(experts)
    why = None if over is None else why_no_width(path, experts, over.size)
    if over is not None and why is not None:
        raise SetpointError(f"parallel.expert_tensor = {over.size}: {why}\nValid: 1")
    own = dict(experts._parameters)
    readers = {name: _reader(name, layout.halves.get(name), over) for name in own}
    experts._first = next(iter(own))
    _change(experts, behaves, readers)
    whole = tuple(name for name in own if name not in layout.widths)
    experts._summed = whole if over is not None else ()
    return ExpertPart(experts, layout.widths)


def _change(module: nn.Module, behaves: type, readers: dict[str, property]) -> None:
    module.__class__ = _class_of(type(module), behaves, tuple(readers.items()))


@cache
def _class_of(cls: type, behaves: type, readers: tuple[tuple[str, property], ...]) -> type:
    # What adapts experts stands before what divides them: it changes what they compute with.
    *adapts, own = cls.__bases__ if len(cls.__bases__) > 1 else (cls,)
    bases = (*adapts, behaves, own)
    return type(cls.__name__, bases, {**dict(readers), "__module__": cls.__module__})


@cache
def _reader(name: str, halves: int | None, over: Peers | None) -> property:
    """A parameter as this rank computes with it."""

    def read(experts: Any) -> Tensor:
        if name in experts.__dict__:
            return experts.__dict__[name]  # with what an adapter adds
        weight = experts._parameters[name]
        mesh = getattr(weight, "device_mesh", None)
        if mesh is not None and mesh.ndim > (1 if over is None else 2):
            # FSDP2 shards it now, and looks for the parameter that it has put there.
            return weight
        part = part_here(weight)
        if over is not None and halves is not None:
            both = part.unflatten(halves, (2, -1))
            return over.part(both, halves + 1).flatten(halves, halves + 1)
        if over is not None and name == "down_proj_bias" and over.rank:
            return part * 0.0  # what each rank adds would be added as often as there are ranks
        return part

    return property(read)


def _total(experts: Any) -> int:
    """The number of experts on all ranks."""
    first = experts._parameters[experts._first]
    return experts._modules[CHILD][experts._first].whole[0] if first is None else first.shape[0]


class _Experts:
    """Experts of which this rank has some, called with rows as `PackedExperts` are.

    What subclasses add stands before the module's own class.
    """

    _first: str
    dispatcher: Any
    rows: Any
    """Computes weighted results of rows, those of an expert after those of the one before."""

    @property
    def num_experts(self) -> int:
        """The number of experts on this rank."""
        return getattr(self, self._first).shape[0]

    @num_experts.setter
    def num_experts(self, count: int) -> None:
        del count

    def compute(
        self, x: Tensor, weights: Tensor, assigned: Assignments, factors: Tensor | None = None
    ) -> Tensor:
        """See `PackedExperts.forward`; gradients are not scaled by `factors`."""
        assert factors is None
        slots, ends = assigned.slots, assigned.ends
        rows = gather(x, slots, weights.shape[1])
        own = weights.flatten().index_select(0, slots).unsqueeze(1)
        if len(rows):
            results = self.rows(rows, own, ends)
        else:
            # One row of nothing, so that gradients go the same way on all ranks.
            results = self.rows(
                rows.sum(0, keepdim=True), own.sum(0, keepdim=True), ends.clamp(min=1)
            )[:0]
        choices = spread(results, slots, weights.numel()).unflatten(0, weights.shape)
        return sum_choices(choices)


class _Weighted(_Experts):
    """Experts whose results are weighted."""

    def forward(self, hidden_states: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        module: Any = self
        assigned, _ = assign(index, _total(module))
        return self.dispatcher(self.compute, hidden_states, weights, assigned)()

    def rows(self, rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
        places = torch.arange(len(rows), device=rows.device)
        index = torch.searchsorted(ends.to(places.dtype), places, right=True)
        above: Any = super()
        return above.forward(rows, index.unsqueeze(1), weights).to(rows.dtype)


class _Scaled(_Experts):
    """Experts whose input is weighted (Llama 4)."""

    gate_up_proj: Tensor
    down_proj: Tensor
    act_fn: Callable[[Tensor], Tensor]

    def forward(self, x: Tensor, weights: Tensor, index: Tensor, dispatcher: Any) -> Tensor:
        module: Any = self
        assigned, _ = assign(index, _total(module))
        return dispatcher(self.compute, x, weights, assigned)()

    def rows(self, rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
        product = looped_product
        if why_not_grouped(self.gate_up_proj) is None and why_not_grouped(self.down_proj) is None:
            product, ends = grouped_product, ends.to(torch.int32)
        gate, up = product(rows * weights, self.gate_up_proj, ends).chunk(2, dim=-1)
        return product(up * self.act_fn(gate), self.down_proj, ends)


class _Block:
    """A block of Llama 4 whose experts get the tokens that chose them, and not all."""

    router: nn.Module
    shared_expert: nn.Module
    experts: nn.Module
    dispatcher: Any
    hidden_dim: int
    top_k: int

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        tokens = hidden_states.reshape(-1, self.hidden_dim)
        scores, logits = self.router(tokens)
        index = logits.topk(self.top_k, dim=1).indices
        routed = self.experts(tokens, scores.gather(1, index), index, self.dispatcher)
        return self.shared_expert(tokens) + routed, logits
