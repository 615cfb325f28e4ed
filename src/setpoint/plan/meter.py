"""Counts of a step with fake tensors, operator by operator, extrapolated from few layers to all.

The memory, traffic and FLOPs of a layer do not depend on the number of layers. A step is split into
windows, such as the backward pass of a layer. Within a window the number of live weights, gradients
and activations of layers is constant, so its peak is an affine function of the number of layers;
between layers in the middle it changes in equal steps and is highest at the ends. Two steps that
differ by one period of layers determine each function, and the peak is the highest of them. Traffic
and FLOPs are affine, too. All micro-batches between the first and the last are equal.
"""

from __future__ import annotations

import re
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import lcm, prod
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, distributed
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

from setpoint.config import draft_of, resolve
from setpoint.model.config import TransformerConfig
from setpoint.optim.config import MuonConfig
from setpoint.optim.grouping import gather
from setpoint.plan.traffic import Traffic
from setpoint.train.build.job_parameters import adapted, trained
from setpoint.train.config import Job

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
"""Collectives by the names of operators of `c10d` and `_c10d_functional`."""
_MOVES_NOTHING = {"wait_tensor", "barrier", "monitored_barrier_", "recv"}


class PeakMemory(NamedTuple):
    """Bytes of tensors at the peak.

    Arguments:
        rest: activations, gathered weights, and temporaries of operators.
    """

    weights: int
    masters: int
    optimizer: int
    gradients: int
    buffers: int
    rest: int

    @property
    def total(self) -> int:
        """Total bytes."""
        return sum(self)


@dataclass(slots=True)
class Window:
    """Window of a step, such as the forward pass of a layer.

    Arguments:
        label: kind of the window, and the index of the layer, or -1 without a layer.
        peak: bytes at the peak.
        gradients: bytes of gradients at the peak.
    """

    label: tuple[str, int]
    peak: int = 0
    gradients: int = -1


@dataclass(slots=True)
class Meter:
    """Counts storages from first use to release.

    Arguments:
        name_of: maps a process group to its axes and number of ranks.
    """

    name_of: Callable[[Any], tuple[str, int]]
    now: int = 0
    """Bytes of all live storages."""
    flops: int = 0
    windows: list[Window] = field(default_factory=list)
    """Windows of the step, in order."""
    gradients: Callable[[], int] = lambda: 0
    """Returns the bytes of gradients, called at a peak."""
    _sizes: dict[int, int] = field(default_factory=dict)
    _expected: list[int] = field(default_factory=list)
    """Peaks of the previous step, below which gradients are not measured."""
    _found: dict[tuple[str, str, int], list[int]] = field(
        default_factory=lambda: defaultdict(lambda: [0, 0])
    )

    def traffic(self) -> list[Traffic]:
        """Messages since `begin`, most bytes first."""
        return sorted_rows(Traffic(*key, *sums) for key, sums in self._found.items())

    def begin(self) -> None:
        """Start a measurement."""
        self._expected = [window.peak for window in self.windows]
        self.windows, self.flops = [], 0
        self._found.clear()
        self.enter("begin")

    def end(self) -> None:
        """End the measurement."""
        if self.windows and self.windows[-1].gradients < 0:
            self.windows[-1].gradients = self.gradients()

    def enter(self, label: str, layer: int = -1) -> None:
        """Start a window of the step."""
        self.end()
        self.windows.append(Window((label, layer)))
        self._grew()

    def hold(self, tensor: Tensor) -> None:
        """Count the storage of a new tensor, unless it is on the meta device."""
        if tensor.device.type == "meta":
            return
        if is_traceable_wrapper_subclass(tensor) and not isinstance(tensor, DTensor):
            inner: Any = tensor  # a float8 tensor has only the memory of its data and scale
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
        """Count a storage that was resized."""
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
        # Asking at each operator would take longer than the step.
        if place >= len(self._expected) or self.now >= self._expected[place]:
            window.gradients = self.gradients()

    def count(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Count the FLOPs or traffic of an operator."""
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
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        sizes = [tensor.numel() * tensor.element_size() for tensor in (*given, *outputs)]
        if kind == "recv":
            size = 0
        elif kind in ("all_gather", "reduce_scatter"):  # the whole is the largest
            size = max(sizes, default=0)
        else:
            size = max((tensor.numel() * tensor.element_size() for tensor in given), default=0)
        axes, ranks = self.name_of(_group_of(args, kwargs))
        row = self._found[kind, axes, ranks]
        row[0] += 1
        row[1] += size


def sorted_rows(rows: Iterable[Traffic]) -> list[Traffic]:
    """Traffic rows, most sent bytes first."""
    return sorted(rows, key=lambda row: -row.sent)


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors on this rank, counting each storage once."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        # `to_local` would record a view, which takes as long as a step.
        local: Tensor = cast("Any", tensor)._local_tensor if isinstance(tensor, DTensor) else tensor
        storage = local.untyped_storage()
        sizes[id(storage)] = storage.nbytes()
    return sum(sizes.values())


def _group_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Process group of an operator, or its name."""
    names = [value for value in (*args, *kwargs.values()) if isinstance(value, str)]
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
            return distributed.ProcessGroup.unbox(value)
    # The last text is the name of the group; a reduction precedes it.
    resolve: Any = vars(distributed.distributed_c10d)["_resolve_process_group"]
    return resolve(names[-1]) if names else None


def _heads_alike(query: Tensor, *keys: Tensor) -> Iterator[tuple[int, ...]]:
    """Shapes with as many heads as the query; torch 2.11 does not count shared keys and values."""
    for tensor in (query, *keys):
        yield (tensor.shape[0], query.shape[1], *tensor.shape[2:])


def _attention(*args: Any, out_val: Any = None, **_: Any) -> int:
    return sdpa_flop(*_heads_alike(*args[:3]))


def _attention_backward(*args: Any, out_val: Any = None, **_: Any) -> int:
    gradient, *tensors = args[:4]
    return sdpa_backward_flop(gradient.shape, *_heads_alike(*tensors))


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
"""Grouped products of experts, with the number of products of an operator."""


class _Seeing(TorchDispatchMode):
    """Mode that shows a meter all operators; DTensor operators as those on their local tensors."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self.meter = meter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        given: dict[str, Any] = kwargs or {}
        try:
            out = func(*args, **given)
        except DataDependentOutputException:
            # A missing number; 1 lets a step be taken, and a vote of stages pass.
            return 1.0 if args[0].is_floating_point() else 1
        self.meter.count(func, args, given, out)
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.meter.hold(leaf)
        return out


@contextmanager
def metering(meter: Meter) -> Iterator[None]:
    """Meter all operators in the block, on fake tensors."""
    kind = cast("Any", torch.UntypedStorage)
    before = kind.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> Any:
        resized = before(storage, size)
        meter.resize(storage, size)
        return resized

    # FSDP2 frees gathered weights by this call, which is not an operator.
    kind.resize_ = resize
    try:
        with _Seeing(meter):
            yield
    finally:
        kind.resize_ = before


def axes_of(degrees: dict[str, int], ranks: Sequence[int]) -> str:
    """Name the axes along which ranks differ.

    Arguments:
        degrees: degree of each axis, outermost first.
    """
    sizes, differs = list(degrees.values()), []
    for number, axis in enumerate(degrees):
        step = prod(sizes[number + 1 :])
        if len({rank // step % sizes[number] for rank in ranks}) > 1:
            differs.append(axis)
    return "+".join(differs) or "none"


MICRO_BATCHES = 3
"""Micro-batches of a metered step: one creates gradients, one accumulates, one sends them."""
_LAYER = re.compile(r"(?:.*\.)?layers\.(\d+)\.(.*)")
_WORTH = 0.75
"""Extrapolate if two steps of few layers have less than this share of all layers."""


class Measured(NamedTuple):
    """Measurements of a step, for extrapolation.

    Arguments:
        fixed: bytes between steps, by part.
    """

    held: int
    fixed: dict[str, int]
    windows: list[Window]
    flops: int
    traffic: list[Traffic]


class Few(NamedTuple):
    """Two jobs that differ from the original only in their number of layers.

    Arguments:
        jobs: the one with fewer layers first.
        layers: number of layers of each.
        ends: number of layers at the start and at the end that have windows of their own.
        times: number of differences between the two that lead from the first to the full job.
    """

    jobs: tuple[Job, Job]
    layers: tuple[int, int]
    ends: tuple[int, int]
    times: int


def few_layers(job: Job, vocabulary: int) -> Few | None:
    """Find jobs with few layers from which a job can be extrapolated; None if there are none.

    This excludes jobs whose stages, gradient buckets or FSDP2 units do not repeat by layer, jobs
    with Muon on several ranks, which distributes the matrices of all layers, and jobs with too few
    equal layers.
    """
    model, parallel = job.model, job.parallel
    if not isinstance(model, TransformerConfig) or not model.parameters_known:
        return None
    degrees = parallel.degrees
    sums_in_buckets = parallel.copies > 1 and not parallel.uses_fsdp
    sharding = parallel.sharding
    ahead = max(sharding.forward_prefetch or 1, sharding.backward_prefetch or 1)
    if degrees["pipeline"] > 1 or sums_in_buckets or sharding.units or ahead > 1:
        return None
    if isinstance(job.optimizer, MuonConfig) and parallel.world_size > 1:
        return None
    policy = job.memory.activation_checkpointing
    period = lcm(
        len(model.attention_pattern) if len(set(model.attention_pattern)) > 1 else 1,
        1 if model.moe is None else model.moe.every,
        1 if policy is None else policy.every,
        sharding.layers_per_unit,
    )
    dense = 0 if model.moe is None else model.moe.first_dense
    end = max(2, period)
    first = -(-dense // period) * period + end
    fewer = first + end + (model.layers - first - end) % period
    more = fewer + period
    if model.layers < more or fewer + more > _WORTH * model.layers:
        return None
    if not _are_alike(job, vocabulary, first - end, period):
        return None
    ends = first, fewer - first
    jobs = _with_layers(job, fewer), _with_layers(job, more)
    return Few(jobs, (fewer, more), ends, (model.layers - fewer) // period)


def _with_layers(job: Job, layers: int) -> Job:
    draft: Any = draft_of(job)
    draft.model.layers = layers
    return resolve(draft)


def _are_alike(job: Job, vocabulary: int, first: int, period: int) -> bool:
    """True if, judging by name patterns, all layers from one on are trained in the same way."""
    layers: dict[int, set[Any]] = defaultdict(set)
    for group in gather(job.optimizer, trained(job, vocabulary)):
        for param in group.parameters:
            if match := _LAYER.fullmatch(param.name):
                layers[int(match[1])].add((match[2], param.shape, group.name))
    described = adapted(job, vocabulary)
    for name, size in ({} if described is None else described.quantized).items():
        if match := _LAYER.fullmatch(name):
            layers[int(match[1])].add((match[2], size))
    assert isinstance(job.model, TransformerConfig)
    count = job.model.layers
    return all(layers[one] == layers[one + period] for one in range(first, count - period))


def extended(few: Few, fewer: Measured, more: Measured) -> Measured | None:
    """Extrapolate to all layers; None if two steps differ in more than their layers."""
    windows = [
        _told_apart(step.windows, few.ends, layers)
        for step, layers in zip((fewer, more), few.layers, strict=True)
    ]
    if [label for label, _ in windows[0]] != [label for label, _ in windows[1]]:
        return None
    rows = [{row[:3]: row for row in step.traffic} for step in (fewer, more)]
    highest = max(window.peak for _, window in windows[1])
    if rows[0].keys() != rows[1].keys() or any(w.peak > highest for w in more.windows):
        return None

    def line(a: int, b: int) -> int:
        return a + few.times * (b - a)

    traffic = (
        Traffic(*key, line(row.calls, rows[1][key].calls), line(row.bytes, rows[1][key].bytes))
        for key, row in rows[0].items()
    )
    return Measured(
        line(fewer.held, more.held),
        {name: line(size, more.fixed[name]) for name, size in fewer.fixed.items()},
        [
            Window(one.label, line(one.peak, two.peak), line(one.gradients, two.gradients))
            for (_, one), (_, two) in zip(*windows, strict=True)
        ],
        line(fewer.flops, more.flops),
        sorted_rows(traffic),
    )


def _told_apart(
    windows: Sequence[Window], ends: tuple[int, int], layers: int
) -> list[tuple[tuple[str, int], Window]]:
    """Windows of the first layers, of the last layers (from the end), and without a layer."""
    labelled: list[tuple[tuple[str, int], Window]] = []
    for window in windows:
        label, layer = window.label
        if layer >= layers - ends[1]:
            labelled.append(((f"{label}, from the end", layers - layer), window))
        elif layer < ends[0]:
            labelled.append((window.label, window))
    return labelled


class Marked(list[Any]):
    """Micro-batches that report when they start."""

    def __init__(self, given: Sequence[Any], begins: Callable[[], None]) -> None:
        super().__init__(given)
        self._begins = begins

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self._begins()
            yield item


class Counts(NamedTuple):
    """FLOPs and messages up to some moment of a step."""

    flops: int
    rows: dict[tuple[str, str, int], tuple[int, int]]

    @classmethod
    def of(cls, flops: int, traffic: Sequence[Traffic]) -> Counts:
        """FLOPs, and traffic by kind, axes and ranks."""
        return cls(flops, {row[:3]: (row.calls, row.bytes) for row in traffic})

    def repeated(self, first: Counts, second: Counts, times: int) -> tuple[int, list[Traffic]]:
        """These counts plus a multiple of the difference of two others."""
        none = (0, 0)
        rows: list[Traffic] = []
        for key, (calls, size) in self.rows.items():
            after, before = second.rows.get(key, none), first.rows.get(key, none)
            more = [times * (b - a) for a, b in zip(before, after, strict=True)]
            rows.append(Traffic(*key, calls + more[0], size + more[1]))
        return self.flops + times * (second.flops - first.flops), sorted_rows(rows)
