"""What a step of fake tensors allocates, computes and sends: seen operator by operator."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, distributed
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

from setpoint.plan.traffic import Traffic

_NAMES = {
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
    "broadcast_": "broadcast",
    "broadcast": "broadcast",
    "send": "send",
    "recv_": "recv",
}
"""Operators of `c10d` and `_c10d_functional`, whose names begin so, by what they do."""
_MOVES_NOTHING = {"wait_tensor", "barrier", "monitored_barrier_", "recv"}


class Peak(NamedTuple):
    """Bytes of tensors at the moment when there were most.

    Arguments:
        rest: activations, whole weights that were gathered, and what operators need for a moment.
    """

    weights: int
    masters: int
    optimizer: int
    gradients: int
    buffers: int
    rest: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


@dataclass(slots=True)
class Window:
    """A part of a step, such as the forward pass of a layer.

    Arguments:
        label: what is done in it, and the number of the layer; -1 where it is of none.
        peak: bytes at the moment when there were most.
        gradients: bytes of gradients among them.
    """

    label: tuple[str, int]
    peak: int = 0
    gradients: int = -1


@dataclass(slots=True)
class Meter:
    """Counts storages from their first use to their end.

    Arguments:
        name_of: from a process group to the axes of its ranks, and their number.
    """

    name_of: Callable[[Any], tuple[str, int]]
    now: int = 0
    """Bytes of all storages that are alive."""
    flops: int = 0
    windows: list[Window] = field(default_factory=list)
    """Of the step, one after another."""
    gradients: Callable[[], int] = lambda: 0
    """Bytes of gradients, asked at a peak."""
    _sizes: dict[int, int] = field(default_factory=dict)
    _expected: list[int] = field(default_factory=list)
    """Peaks of the step before, below which nobody asks what they are made of."""
    _found: dict[tuple[str, str, int], list[int]] = field(
        default_factory=lambda: defaultdict(lambda: [0, 0])
    )

    def traffic(self) -> list[Traffic]:
        """What was sent since `begin`, most bytes first."""
        return sorted_rows(Traffic(*key, *found) for key, found in self._found.items())

    def begin(self) -> None:
        """Measure from here."""
        self._expected = [window.peak for window in self.windows]
        self.windows, self.flops = [], 0
        self._found.clear()
        self.enter("begin")

    def end(self) -> None:
        """Measure the step to here."""
        if self.windows and self.windows[-1].gradients < 0:
            self.windows[-1].gradients = self.gradients()

    def enter(self, what: str, layer: int = -1) -> None:
        """Begin a window of the step."""
        self.end()
        self.windows.append(Window((what, layer)))
        self._grew()

    def hold(self, tensor: Tensor) -> None:
        """Count the storage of a tensor that was made, unless it is on the meta device."""
        if tensor.device.type == "meta":
            return
        if is_traceable_wrapper_subclass(tensor) and not isinstance(tensor, DTensor):
            inner: Any = tensor  # a float8 tensor has no memory but that of its data and scale
            for name in inner.__tensor_flatten__()[0]:
                self.hold(getattr(inner, name))
            return
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._sizes:
            return
        size = storage.nbytes()
        self._sizes[key] = size
        weakref.finalize(storage, self._drop, key)
        self.now += size
        self._grew()

    def resize(self, storage: torch.UntypedStorage, size: int) -> None:
        """Count a storage that has become larger or smaller."""
        key = id(storage)
        if key not in self._sizes:
            weakref.finalize(storage, self._drop, key)
        self.now += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self._grew()

    def _drop(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)

    def _grew(self) -> None:
        if not self.windows or self.now <= self.windows[-1].peak:
            return
        window, place = self.windows[-1], len(self.windows) - 1
        window.peak = self.now
        # To ask at each operator would take longer than the step.
        if place >= len(self._expected) or self.now >= self._expected[place]:
            window.gradients = self.gradients()

    def count(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Count what an operator has computed or sent."""
        packet = func._overloadpacket
        if func.namespace in ("c10d", "_c10d_functional", "_c10d_functional_autograd"):
            self._send(packet.__name__, args, kwargs, out)
        elif (formula := _FLOPS.get(packet)) is not None:
            self.flops += formula(*args, **kwargs, out_val=out)
        elif (times := _GROUPED.get(packet._qualified_op_name)) is not None:
            # Rows of groups times their matrices, or rows of groups times others of theirs.
            self.flops += 2 * times * args[0].numel() * args[1].shape[-1]

    def _send(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if name in _MOVES_NOTHING:
            return
        kind = _NAMES.get(name, name)
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        made = [each for each in tree_leaves(out) if isinstance(each, Tensor)]
        sizes = [each.numel() * each.element_size() for each in (*given, *made)]
        if kind == "recv":
            size = 0
        elif kind in ("all_gather", "reduce_scatter"):  # the whole is the largest
            size = max(sizes, default=0)
        else:
            size = max((each.numel() * each.element_size() for each in given), default=0)
        axes, ranks = self.name_of(_group_of(args, kwargs))
        found = self._found[kind, axes, ranks]
        found[0] += 1
        found[1] += size


def sorted_rows(rows: Iterable[Traffic]) -> list[Traffic]:
    """Rows of traffic, those first of which this rank sends most."""
    return sorted(rows, key=lambda row: -row.sent)


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors on this rank, each storage once."""
    seen: dict[int, int] = {}
    for tensor in tensors:
        # `to_local` would record a view, which takes as long as a step.
        local: Tensor = cast("Any", tensor)._local_tensor if isinstance(tensor, DTensor) else tensor
        storage = local.untyped_storage()
        seen[id(storage)] = storage.nbytes()
    return sum(seen.values())


def _group_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The process group, or its name, that an operator is called with."""
    names = [each for each in (*args, *kwargs.values()) if isinstance(each, str)]
    for each in (*args, *kwargs.values()):
        if isinstance(each, torch.ScriptObject) and "ProcessGroup" in str(each._type()):
            return distributed.ProcessGroup.unbox(each)
    # The last text is the name of the group; a reduction stands before it.
    resolve: Any = vars(distributed.distributed_c10d)["_resolve_process_group"]
    return resolve(names[-1]) if names else None


def _heads_alike(query: Tensor, *others: Tensor) -> Iterator[tuple[int, ...]]:
    """Shapes with as many heads as the query has: torch 2.11 counts no shared keys and values."""
    for each in (query, *others):
        yield (each.shape[0], query.shape[1], *each.shape[2:])


def _attention(*args: Any, out_val: Any = None, **_: Any) -> int:
    return sdpa_flop(*_heads_alike(*args[:3]))


def _attention_backward(*args: Any, out_val: Any = None, **_: Any) -> int:
    gradient, *rest = args[:4]
    return sdpa_backward_flop(gradient.shape, *_heads_alike(*rest))


_FLOPS: dict[Any, Callable[..., int]] = {**flop_registry}
for _kernel in (
    "flash_attention",
    "efficient_attention",
    "cudnn_attention",
    "flash_attention_for_cpu",
):
    _name = f"_scaled_dot_product_{_kernel}"
    _FLOPS[getattr(torch.ops.aten, _name)] = _attention
    _FLOPS[getattr(torch.ops.aten, f"{_name}_backward")] = _attention_backward


_GROUPED = {
    "aten::_grouped_mm": 1,
    "aten::_scaled_grouped_mm": 1,
    "aten::_scaled_grouped_mm_v2": 1,
    "setpoint::looped_product": 1,
    "setpoint::looped_gradient": 1,
    "transformers::grouped_mm_fallback": 1,
    "transformers::grouped_mm_fallback_backward": 2,
}
"""Products of the experts of a layer, and how many an operator computes."""


class _Seeing(TorchDispatchMode):
    """Shows a meter all operators, those that DTensors are made of in place of theirs."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self.meter = meter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented
        given: dict[str, Any] = kwargs or {}
        try:
            out = func(*args, **given)
        except DataDependentOutputException:
            # A number that is not there; 1 lets a step be taken, and a vote of stages pass.
            return 1.0 if args[0].is_floating_point() else 1
        self.meter.count(func, args, given, out)
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.meter.hold(leaf)
        return out


@contextmanager
def metering(meter: Meter) -> Iterator[None]:
    """Let a meter see what is done in the block, among fake tensors."""
    kind = cast("Any", torch.UntypedStorage)
    before = kind.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> Any:
        found = before(storage, size)
        meter.resize(storage, size)
        return found

    # FSDP2 frees gathered weights by it, which is no operator.
    kind.resize_ = resize
    try:
        with _Seeing(meter):
            yield
    finally:
        kind.resize_ = before


def axes_of(degrees: dict[str, int], ranks: Sequence[int]) -> str:
    """Name the axes along which ranks of a job differ.

    Arguments:
        degrees: of each axis, the first one the outermost.
    """
    sizes, differs = list(degrees.values()), []
    for number, axis in enumerate(degrees):
        step = prod(sizes[number + 1 :])
        if len({rank // step % sizes[number] for rank in ranks}) > 1:
            differs.append(axis)
    return "+".join(differs) or "none"
