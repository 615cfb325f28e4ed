"""Dry run: a step of a job on one of its ranks, without allocating memory or using devices.

The trainer's own code builds and divides the model over a process group that sends nothing (torch's
`fake`), and takes steps with fake tensors, which have shapes but no memory. Allocations, FLOPs and
messages are counted operator by operator. Kernels are those of a CPU. Allocator rounding and
caches, device contexts and NCCL buffers are not included.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

from setpoint.config import SetpointError, draft_of, plural, resolve
from setpoint.model.attention.backends import (
    SDPA,
    SHARE_NO_HEADS,
    Eager,
    Scores,
    add_sinks,
)
from setpoint.model.attention.selection import LIMITS
from setpoint.model.block_modules import FUSED
from setpoint.model.build import layers_of, materialize, skeleton
from setpoint.model.config import HuggingFaceConfig, TransformerConfig
from setpoint.model.huggingface.builder import check_weights
from setpoint.model.moe.dispatch import AllToAllDispatcher, TensorParallelDispatcher
from setpoint.model.parameters import stage_sizes
from setpoint.optim.grouping import is_frozen
from setpoint.parallel.config import DeepEP
from setpoint.parallel.pipeline import part_of, split_of
from setpoint.parallel.pipelining import ranks_of_stages
from setpoint.parallel.world import World, world_of
from setpoint.plan.meter import (
    MICRO_BATCHES,
    Counts,
    Marked,
    Measured,
    Meter,
    PeakMemory,
    axes_of,
    extended,
    few_layers,
    metering,
    size_of,
)
from setpoint.plan.traffic import Traffic
from setpoint.plan.workload import vocabulary_of
from setpoint.shapes.batch import Batch, Count, Lengths, StepBatch, total_count
from setpoint.train.build.components import Components, build_trained
from setpoint.train.build.job_parameters import add_adapter
from setpoint.train.config import Job
from setpoint.train.engine import Rates
from setpoint.train.loop import build_engine
from setpoint.train.rules.model_rules import dense_on_gpu

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from setpoint.model.moe.experts import Assignments
    from setpoint.shapes.peers import Peers


def even_loads(model: nn.Module) -> None:
    """Distribute each layer's rows evenly over the ranks of experts, with the rest on the first."""
    # Layers share one exchange.
    used = (getattr(module, "dispatcher", None) for module in model.modules())
    for exchange in {exchange_used for exchange_used in used if exchange_used is not None}:
        inner = exchange
        if isinstance(exchange, TensorParallelDispatcher):
            inner = exchange.inner
            cast("Any", exchange).share = _share_of(exchange.peers)
        if isinstance(inner, AllToAllDispatcher):
            cast("Any", inner).rows_by_rank = rows_by_rank(inner.group.rank(), inner.ranks)


@contextmanager
def plain_products() -> Iterator[None]:
    """Make transformers' experts use a matrix product with a shape function for any dtype."""
    moe: Any = sys.modules.get("transformers.integrations.moe")
    if moe is None:
        yield
        return
    before = moe._can_use_grouped_mm
    moe._can_use_grouped_mm = lambda *_, **__: False
    try:
        yield
    finally:
        moe._can_use_grouped_mm = before


def rows_by_rank(rank: int, ranks: int) -> Any:
    """Make a replacement for `AllToAllDispatcher.rows_by_rank` with equal loads for all experts."""

    def told(leaving: Any, arriving: Any, rows: int) -> tuple[list[int], list[int]]:
        del leaving, arriving
        sent = [rows // ranks + (to < rows % ranks) for to in range(ranks)]
        return sent, [sent[rank]] * ranks

    return told


def _share_of(peers: Peers) -> Any:
    def share(tokens: int, top_k: int, assigned: Assignments) -> Assignments:
        # The number of rows is known, but not which; no choice was dropped.
        first, last = (tokens * rank // peers.size * top_k for rank in (peers.rank, peers.rank + 1))
        factors = assigned.factors
        return assigned._replace(
            slots=assigned.slots[first:last].clone(),
            factors=None if factors is None else factors[first:last].clone(),
        )

    return share


WARM = 2
"""Steps before the measured one: the first creates the optimizer state, the second leaves gathered
weights where later steps have them."""


class DryRun(NamedTuple):
    """Memory, FLOPs and traffic of one rank in a step.

    Arguments:
        degrees: degree of each axis.
        at: coordinates of the rank.
        held: bytes between steps.
        peak: bytes at the peak of the step.
        flops: FLOPs of matrix products and attention, including the backward pass and
            recomputation.
        seconds: duration of the dry run.
        layers: numbers of layers in the two smaller models from which the result is extrapolated;
            None if all layers were run.
        even_loads: whether experts are divided, and equal numbers of rows per rank assumed.
    """

    rank: int
    world_size: int
    degrees: dict[str, int]
    at: dict[str, int]
    held: int
    peak: PeakMemory
    flops: int
    traffic: list[Traffic]
    seconds: float
    layers: tuple[int, int] | None = None
    even_loads: bool = False

    def to_json(self) -> dict[str, Any]:
        """The dry run as JSON."""
        traffic = [{**row._asdict(), "sent": row.sent} for row in self.traffic]
        peak = {**self.peak._asdict(), "total": self.peak.total}
        return {**self._asdict(), "peak": peak, "traffic": traffic}


def dry_run(job: Job, rank: int = 0, *, all_layers: bool = False) -> DryRun:
    """Run a step of a job as one of `parallel.world_size` ranks.

    Nothing is read, written or sent, and no other rank is started.

    Arguments:
        all_layers: whether to run all layers and micro-batches, even if they are equal.

    Raises:
        SetpointError: the rank does not exist, this process already has a process group, or the job
            uses a feature that a dry run does not support: DeepSpeed, torchft, nvfp4, DeepEP, or
            experts that are unpacked or have a capacity.
    """
    size = job.parallel.world_size
    if not 0 <= rank < size:
        raise SetpointError(
            f"rank {rank} does not exist: the job has {plural(size, 'rank')}\n"
            f"Valid: 0 to {size - 1}"
        )
    _refuse(job)
    began, device = time.perf_counter(), job.parallel.device
    has_sinks = isinstance(job.model, TransformerConfig) and job.model.attention_sinks
    kernels = sinks_in_a_kernel() if has_sinks and _hides_in_kernels(job) else nullcontext()
    job, vocabulary = _on_cpu(job), vocabulary_of(job)
    with _kernels_of(device), kernels, _ranks(job, vocabulary, rank, size):
        world = world_of(job.parallel)
        few = None if all_layers else few_layers(job, vocabulary)
        measured: Measured | None = None
        if few is not None:
            steps = [_planned(few_job, vocabulary, world) for few_job in few.jobs]
            measured = extended(few, steps[0], steps[1])
        layers = None if few is None or measured is None else few.layers
        if measured is None:
            measured = _planned(job, vocabulary, world, all_layers)
    run = _run_of(world, measured, time.perf_counter() - began, layers)
    return run._replace(even_loads=job.parallel.divides_experts)


def _planned(job: Job, vocabulary: int, world: World, all_layers: bool = False) -> Measured:
    """Build a model and take its steps with fake tensors."""
    with ExitStack() as stack:
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        converter = cast("Any", fake.fake_tensor_converter.meta_converter)
        memo, converter.tensor_memo = converter.tensor_memo, _Once()
        meter = Meter(_naming(world))

        def empty(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
            # Dividing a model takes forty times as long under fake tensors.
            stack.enter_context(fake)
            stack.enter_context(metering(meter))
            materialize(model, device, dtype)

        components = build_trained(job, Components(world), vocabulary, empty=empty)
        even_loads(components.model)
        stack.enter_context(plain_products())
        converter.tensor_memo = memo
        buckets = _buckets(components)
        if not meter.now:
            raise SetpointError(
                f"model: a {type(components.model).__name__} is built with its weights, so a dry "
                "run cannot replace them by fake tensors\nValid: a model of type = transformer"
            )
        measured = _measured(job, world, components, meter, is_fake=True, all_layers=all_layers)
        del buckets
    return measured


def _run_of(
    world: World, measured: Measured, seconds: float, layers: tuple[int, int] | None = None
) -> DryRun:
    highest = max(measured.windows, key=lambda window: window.peak)
    known = {**measured.fixed, "gradients": highest.gradients}
    peak = PeakMemory(**known, rest=highest.peak - sum(known.values()))
    degrees, coordinates = dict(world.degrees), dict(world.coordinates)
    return DryRun(
        world.rank,
        world.size,
        degrees,
        coordinates,
        measured.held,
        peak,
        measured.flops,
        measured.traffic,
        seconds,
        layers,
    )


def _measured(
    job: Job, world: World, components: Components, meter: Meter, is_fake: bool, all_layers: bool
) -> Measured:
    count = job.batch.accumulation
    if components.pipeline is None and not all_layers:
        count = min(count, MICRO_BATCHES)
    if is_fake:
        _mark_layers(meter, components.model)
    marks: list[Counts] = []
    batches = _batches(job)  # all of them are present
    counts = [
        Count(batch.tokens, batch.target_tokens, float(batch.tokens)) for batch in batches[:count]
    ]
    given = Marked(batches[:count], lambda: marks.append(Counts.of(meter.flops, meter.traffic())))
    step = StepBatch(given, counts, total_count(counts))
    take = _stepping(job, world, components, step, meter, is_fake)
    _mark_gradients(meter, components)
    for _ in range(WARM):
        meter.begin()
        take()
    bytes_held = meter.now
    fixed = _fixed(components)
    meter.begin()
    marks.clear()
    take()
    meter.end()
    flops, traffic = meter.flops, meter.traffic()
    if job.batch.accumulation > count:
        more = job.batch.accumulation - count
        flops, traffic = Counts.of(flops, traffic).repeated(marks[1], marks[2], more)
    return Measured(bytes_held, fixed, meter.windows, flops, traffic)


def _mark_layers(meter: Meter, model: nn.Module) -> None:
    """Start a window of the meter at each layer, forward and backward."""

    def mark(layer: nn.Module, number: int) -> None:
        def before(_: nn.Module, given: Any) -> None:
            meter.enter("forward", number)

        def after(_: nn.Module, given: Any, out: Any) -> None:
            meter.enter("after", number)
            for tensor in tree_leaves(out):
                if isinstance(tensor, Tensor) and tensor.requires_grad:
                    tensor.register_hook(lambda _: meter.enter("backward", number))

        layer.register_forward_pre_hook(before)
        layer.register_forward_hook(after)

    for number, (_, layer) in enumerate(layers_of(model)):
        mark(layer, number)


def _buckets(components: Components) -> list[Tensor]:
    """Buckets of DDP gradients, which exist for the whole run.

    DDP reads the values of weights, so it cannot be built with fake tensors.
    """
    if not components.replicas.sums_by_hand:
        return []
    trained = [param for param in components.model.parameters() if param.requires_grad]
    if any(param.grad_dtype != param.dtype for param in trained):  # nor does a run use DDP
        return []
    return [torch.empty_like(param) for param in trained]


class _Once(dict[Any, Any]):
    """Sequence that returns each entry once and keeps no weak references.

    A weak reference would prevent a fake parameter from changing its dtype.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        return self.pop(key, default)


def _refuse(job: Job) -> None:
    moe = job.model.moe if isinstance(job.model, TransformerConfig) else None
    float8 = job.precision.float8
    parts = {
        "precision.float8.recipe = nvfp4": float8 is not None and float8.recipe == "nvfp4",
        "parallel.engine": job.parallel.uses_deepspeed,
        "parallel.torchft": job.parallel.torchft is not None,
        # Fake tensors represent one memory, the host's.
        "memory.activation_offload": job.memory.activation_offload is not None,
        "parallel.sharding.offload": job.parallel.sharding.offload,
        "parallel.dispatch = deepep": isinstance(job.parallel.dispatch, DeepEP),
        # These need the number of rows from the router, not only their owners.
        "model.moe.capacity_factor": moe is not None and moe.capacity_factor is not None,
        "model.moe.packed = false": moe is not None and not moe.packed,
    }
    for name, given in parts.items():
        if given:
            raise SetpointError(f"a dry run does not support {name}")
    if isinstance(job.model, HuggingFaceConfig) and job.model.pretrained is not None:
        for problem in check_weights(job.model):
            name = job.model.pretrained
            raise SetpointError(f"model.pretrained = {name}: {problem.message}")
    if distributed.is_initialized():
        raise SetpointError("a dry run needs a single process, but this one is in a process group")


def _on_cpu(job: Job) -> Job:
    """The job on a CPU, with whose kernels fake tensors run; compiled code is not traced."""
    draft: Any = draft_of(job)
    draft.parallel.device, draft.parallel.backend, draft.compile = "cpu", None, None
    if draft.precision.float8 is not None:
        draft.precision.float8.emulate = True  # a CPU has no other products
    if isinstance(job.model, TransformerConfig) and job.parallel.device != "cpu":
        # Plain causal attention represents GPU kernels that mask and cap without a stored mask, and
        # those that apply dropout without storing the weights.
        dense = dense_on_gpu(job)
        if dense is None:
            draft.data.packing.isolate, draft.model.attention_soft_cap = False, None
            if job.model.sliding_window is not None:
                draft.model.sliding_window = job.batch.sequence_length
            if job.model.attention_chunk is not None:
                draft.model.attention_chunk = job.batch.sequence_length
        if dense is None or not dense.scores:
            draft.model.attention_dropout = 0.0
        name = job.model.attention_backend
        if name != "auto" and LIMITS[name].masks in ("blocks", "lengths"):
            draft.model.attention_backend = "auto"
    return resolve(draft)


def _hides_in_kernels(job: Job) -> bool:
    """True if attention on a GPU never materializes S x S scores."""
    dense = dense_on_gpu(job)
    return job.parallel.device != "cpu" and (dense is None or not dense.scores)


@contextmanager
def sinks_in_a_kernel() -> Iterator[None]:
    """Make plain causal attention with sinks store the same tensors as a GPU kernel.

    The CPU backend for sinks, `eager`, stores the scores of all pairs of positions.
    """
    before = Eager.prepare_mask, Eager.attend
    kernel, changed = SDPA("sdpa"), cast("Any", Eager)

    def attend(_: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scores: Scores) -> Tensor:
        assert scores.sinks is not None
        mixed = kernel.attend(q, k, v, mask, scores._replace(sinks=None))
        normalizer = q.new_zeros(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32)
        return add_sinks(mixed.transpose(1, 2), normalizer, scores.sinks).transpose(1, 2)

    changed.prepare_mask = lambda _, layout, window: kernel.prepare_mask(layout, window)
    changed.attend = attend
    try:
        yield
    finally:
        changed.prepare_mask, changed.attend = before


@contextmanager
def _kernels_of(device: str) -> Iterator[None]:
    """Use a device's norms and attention for fake tensors, since these determine what is saved."""
    fp32, gpu_dtypes = (torch.float32,), (torch.float32, torch.bfloat16, torch.float16)
    FUSED[FakeTensor] = fp32 if device == "cpu" else gpu_dtypes
    if device != "cpu":
        SHARE_NO_HEADS.add("cpu")
    try:
        yield
    finally:
        del FUSED[FakeTensor]
        SHARE_NO_HEADS.discard("cpu")


@contextmanager
def _ranks(job: Job, vocabulary: int, rank: int, size: int) -> Iterator[None]:
    """Initialize a fake process group."""
    if size == 1:
        yield
        return
    # PyTorch's own tests use it; there is no public equivalent for absent ranks.
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    known, item = distributed.all_gather_object, cast("Any", distributed)

    def gather(gathered: list[Any], value: Any, group: ProcessGroup | None = None) -> None:
        gathered[:] = (
            _names_of_stages(job, vocabulary)
            if isinstance(value, dict)
            else [value] * len(gathered)
        )

    item.all_gather_object = gather
    try:
        yield
    finally:
        item.all_gather_object = known
        distributed.destroy_process_group()


def _names_of_stages(job: Job, vocabulary: int) -> list[dict[str, bool]]:
    """Parameter names on each pipeline rank, with True for trained ones."""
    model = skeleton(job.model, vocabulary)
    add_adapter(job, model)
    config, ranks = job.parallel.pipelining, job.parallel.degrees["pipeline"]
    sizes = stage_sizes(job.model, vocabulary, job.batch.sequence_length)
    split = split_of(config, model, ranks, sizes)
    places = ranks_of_stages(ranks, len(split), config.known.is_v)
    trained = {
        name
        for name, param in model.named_parameters()
        if param.requires_grad and not is_frozen(job.optimizer, name)
    }
    stage_names: list[dict[str, bool]] = []
    for rank in range(ranks):
        names = [
            part for stage, parts in enumerate(split) if places[stage] == rank for part in parts
        ]
        stage_names.append({name: name in trained for name in part_of(model, names).state_dict()})
    return stage_names


def _naming(world: World) -> Callable[[ProcessGroup | None], tuple[str, int]]:
    """Function that names the axes of a process group."""
    known: dict[Any, tuple[str, int]] = {}

    def name_of(group: ProcessGroup | None) -> tuple[str, int]:
        if group not in known:
            ranks = distributed.get_process_group_ranks(group)
            known[group] = axes_of(dict(world.degrees), ranks), len(ranks)
        return known[group]

    return name_of


def _fixed(components: Components) -> dict[str, int]:
    """Bytes that exist between steps, by part."""
    model = components.model
    params = list(model.parameters())
    weights = size_of(params)
    # Parameters of the optimizer without masters share the memory of the model's.
    masters = size_of([*params, *components.weights.parameters()]) - weights
    of_optimizer = components.optimizer.state.values()
    states = [
        value for state in of_optimizer for value in state.values() if isinstance(value, Tensor)
    ]
    return {
        "weights": weights,
        "masters": masters,
        "optimizer": size_of(states),
        "buffers": size_of(model.buffers()),
    }


def _mark_gradients(meter: Meter, components: Components) -> None:
    """Tell the meter which storages are gradients, so that it counts them separately."""
    params = {
        id(param): param
        for param in (*components.model.parameters(), *components.weights.parameters())
    }
    trained = [param for param in params.values() if param.requires_grad]
    meter.gradients = lambda: size_of(param.grad for param in trained if param.grad is not None)


def _stepping(
    job: Job, world: World, components: Components, step: StepBatch, meter: Meter, is_fake: bool
) -> Callable[[], None]:
    """Make a function that takes a step with the job's engine, with its phases as windows."""
    components.train_data, components.spikes = cast("Any", SimpleNamespace(sources=("data",))), None
    engine: Any = build_engine(job, components)
    if is_fake:  # there are no numbers: zeros are finite, and signal no overflow and no stop
        engine.to_host = lambda numbers: lambda: [0.0] * len(numbers)
        components.embedding_noise = None  # which is drawn for the tokens of each row
    total = total_count(step.counts)

    def window(name: str) -> AbstractContextManager[Any]:
        meter.enter(name)
        return nullcontext()

    engine.span = window

    def take() -> None:
        sums = engine.forward_backward(step, total)
        meter.enter("update")
        engine.update(sums, Rates(job.optimizer.lr, 0.5))

    return take


def _batches(job: Job) -> list[Batch]:
    rows, length = job.batch.micro_size, job.batch.sequence_length
    tokens = rows * length
    batches: list[Batch] = []
    for _ in range(job.batch.accumulation):
        inputs = torch.zeros(rows, length, dtype=torch.int64)
        batch = Batch(inputs, torch.zeros_like(inputs), tokens, tokens, tokens)
        if job.data.packing.isolate:
            lengths = Lengths.of(np.arange(rows + 1) * length)
            batch = replace(batch, documents=torch.zeros_like(inputs), lengths=lengths)
        batches.append(batch)
    return batches
