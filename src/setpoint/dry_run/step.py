"""One step of a job on one of its ranks, however many, without their memory or their devices.

The model is built and divided by what trains it, over a process group that sends nothing (torch's
`fake`), and its steps are taken with fake tensors, which have shapes but no memory: what they
allocate, compute and send is counted operator by operator. Kernels are those of a CPU. An
allocator's rounding and caches, the contexts of devices, and the buffers of NCCL are not in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, distributed, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from setpoint.config import SetpointError, draft_of, resolve
from setpoint.dry_run.meter import Meter, Peak, axes_of, metering, size_of
from setpoint.model.norm.norms import FUSED
from setpoint.model.skeleton import materialize, skeleton
from setpoint.optim.frozen import is_frozen
from setpoint.parallel.context import sequence_parts
from setpoint.parallel.pipeline import keep_stages
from setpoint.parallel.replicas import Replicas
from setpoint.parallel.world import World, world_of
from setpoint.plan.groups import vocabulary_of
from setpoint.plan.traffic import Traffic
from setpoint.precision.build import build_scaler
from setpoint.shapes.batch import Batch, Count, StepBatch, total_count
from setpoint.train.build.adapter import add_adapter
from setpoint.train.build.model import stage_sizes
from setpoint.train.build.trained import Trained, build_trained
from setpoint.train.config import Job
from setpoint.train.step.engine import Rates
from setpoint.train.step.pipeline import engine_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

WARM = 2
"""Steps before the one that is measured: the first makes the optimizer's state, the second has the
gathered weights where those after it have them."""


class DryRun(NamedTuple):
    """What a step takes of one rank.

    Arguments:
        degrees: of each axis.
        at: coordinates of the rank.
        held: bytes between two steps.
        peak: bytes at the moment of the step when there were most.
        flops: of matrix products and attention, forward, backward and recomputed.
        seconds: that the dry run took.
    """

    rank: int
    world_size: int
    degrees: dict[str, int]
    at: dict[str, int]
    held: int
    peak: Peak
    flops: int
    traffic: list[Traffic]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The dry run for machines."""
        traffic = [{**row._asdict(), "sent": row.sent} for row in self.traffic]
        peak = {**self.peak._asdict(), "total": self.peak.total}
        return {**self._asdict(), "peak": peak, "traffic": traffic}


def dry_run(job: Job, rank: int = 0) -> DryRun:
    """Take a step of a job as one of `parallel.world_size` ranks.

    Nothing is read, written or sent, and no rank is started.

    Raises:
        SetpointError: there is no such rank, this process has ranks already, or the job has a part
            that cannot be planned: DeepSpeed, torchft, float8, experts divided among ranks.
    """
    size = job.parallel.world_size
    if not 0 <= rank < size:
        raise SetpointError(f"there is no rank {rank}: the job has {size}\nValid: 0 to {size - 1}")
    _refuse(job)
    began, device = time.perf_counter(), job.parallel.device
    job = _on_cpu(job)
    with ExitStack() as stack:
        stack.enter_context(_norms_of(device))
        stack.enter_context(_ranks(job, vocabulary_of(job), rank, size))
        world = world_of(job.parallel)
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        converter = cast("Any", fake.fake_tensor_converter.meta_converter)
        memo, converter.tensor_memo = converter.tensor_memo, _Once()
        meter = Meter(_naming(world))

        def empty(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
            # Dividing a model under fake tensors takes forty times as long.
            stack.enter_context(fake)
            stack.enter_context(metering(meter))
            materialize(model, device, dtype)

        parts = build_trained(job, vocabulary_of(job), world, empty=empty)
        converter.tensor_memo = memo
        buckets = _buckets(parts)
        if not meter.now:
            raise SetpointError(
                f"model: a {type(parts.model).__name__} is built with its weights, so that no step "
                f"of it can be planned\nValid: a model of type = transformer"
            )
        found = _measured(job, world, parts, meter, is_fake=True)
        del buckets
    return found._replace(seconds=time.perf_counter() - began)


def measured_run(job: Job, world: World) -> DryRun:
    """Take the same steps in earnest, as this rank of those there are, with random weights."""
    began = time.perf_counter()
    meter = Meter(_naming(world))
    with metering(meter):
        parts = build_trained(job, vocabulary_of(job), world)
        found = _measured(job, world, parts, meter, is_fake=False)
    return found._replace(seconds=time.perf_counter() - began)


def _measured(job: Job, world: World, parts: Trained, meter: Meter, is_fake: bool) -> DryRun:
    take = _stepping(job, world, parts, is_fake)
    for _ in range(WARM):
        take()
    held = meter.now
    _own(meter, parts)
    meter.begin()
    take()
    known = {**meter.fixed, "gradients": meter.gradients_at_peak}
    peak = Peak(**known, rest=meter.peak - sum(known.values()))
    degrees, at = dict(world.degrees), dict(world.at)
    return DryRun(
        world.rank, world.size, degrees, at, held, peak, meter.flops, meter.traffic(), 0.0
    )


def _buckets(parts: Trained) -> list[Tensor]:
    """The memory into which DDP gathers gradients for its sums, for as long as there is a run.

    DDP itself would read values of the weights, and is not built among fake tensors.
    """
    if not isinstance(parts.replicas, Replicas) or not parts.replicas.sums_by_hand:
        return []
    trained = [each for each in parts.model.parameters() if each.requires_grad]
    if any(each.grad_dtype != each.dtype for each in trained):  # no DDP in a run, either
        return []
    return [torch.empty_like(each) for each in trained]


class _Once(dict[Any, Any]):
    """Gives what it has once, and has no weak references.

    With one to it, no parameter among fake tensors can change its format.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        return self.pop(key, default)


def _refuse(job: Job) -> None:
    parts = {
        "parallel.engine": job.parallel.uses_deepspeed,
        "parallel.torchft": job.parallel.torchft is not None,
        "precision.float8": job.precision.float8 is not None,
        # How many tokens reach the experts of a rank is known in a run only.
        "parallel.expert": job.parallel.divides_experts,
    }
    for name, given in parts.items():
        if given:
            raise SetpointError(f"{name} cannot be planned by a dry run\nValid: without it")
    if distributed.is_initialized():
        raise SetpointError("a dry run is a command of one process, and this one is among ranks")


def _on_cpu(job: Job) -> Job:
    """The job on a CPU, whose kernels fake tensors stand for; compiled code is not seen inside."""
    draft = draft_of(job)
    draft.parallel.device, draft.parallel.backend, draft.compile = "cpu", None, None
    return resolve(draft)


@contextmanager
def _norms_of(device: str) -> Iterator[None]:
    """Let fake tensors be normalized as the device does it, which decides what is kept."""
    fp32, others = (torch.float32,), (torch.float32, torch.bfloat16, torch.float16)
    FUSED[FakeTensor] = fp32 if device == "cpu" else others
    try:
        yield
    finally:
        del FUSED[FakeTensor]


@contextmanager
def _ranks(job: Job, vocabulary: int, rank: int, size: int) -> Iterator[None]:
    """Be one of many ranks that hear of nobody and wait for nobody."""
    if size == 1:
        yield
        return
    # torch's own tests use it; nothing public stands for ranks that are not there.
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    known, item = distributed.all_gather_object, cast("Any", distributed)

    def gather(found: list[Any], value: Any, group: ProcessGroup | None = None) -> None:
        found[:] = (
            _names_of_stages(job, vocabulary) if isinstance(value, dict) else [value] * len(found)
        )

    item.all_gather_object = gather
    try:
        yield
    finally:
        item.all_gather_object = known
        distributed.destroy_process_group()


def _names_of_stages(job: Job, vocabulary: int) -> list[dict[str, bool]]:
    """What each rank of a pipeline would say of its parameters: their names, whether trained."""
    found: list[dict[str, bool]] = []
    ranks = job.parallel.degrees["pipeline"]
    for rank in range(ranks):
        model = skeleton(job.model, vocabulary)
        add_adapter(job, model)
        keep_stages(job.parallel.pipelining, model, ranks, rank, stage_sizes(job, model))
        trained = {name for name, each in model.named_parameters() if each.requires_grad}
        found.append(
            {
                name: name in trained and not is_frozen(job.optimizer, name)
                for name in model.state_dict()
            }
        )
    return found


def _naming(world: World) -> Callable[[ProcessGroup | None], tuple[str, int]]:
    """Name the axes of a process group."""
    known: dict[Any, tuple[str, int]] = {}

    def name_of(group: ProcessGroup | None) -> tuple[str, int]:
        if group not in known:
            ranks = distributed.get_process_group_ranks(group)
            known[group] = axes_of(dict(world.degrees), ranks), len(ranks)
        return known[group]

    return name_of


def _own(meter: Meter, parts: Trained) -> None:
    """Say what belongs to which part of the memory."""
    model, weights = parts.model, parts.weights
    held = list(model.parameters())

    own = {id(each) for each in held}
    masters = [each for each in weights.parameters() if id(each) not in own]
    of_optimizer = parts.optimizer.state.values()
    states = [each for of in of_optimizer for each in of.values() if isinstance(each, Tensor)]
    fixed = {"weights": held, "masters": masters, "optimizer": states, "buffers": model.buffers()}
    meter.fixed = {name: size_of(tensors) for name, tensors in fixed.items()}
    trained = [each for each in (*held, *masters) if each.requires_grad]
    meter.gradients = lambda: size_of(each.grad for each in trained if each.grad is not None)


def _stepping(job: Job, world: World, made: Trained, is_fake: bool) -> Callable[[], None]:
    """What takes a step of the job's engine with batches of its shape."""
    parts = SimpleNamespace(
        **made._asdict(),
        world=world,
        device=world.device,
        train=SimpleNamespace(sources=("data",)),
        scaler=build_scaler(job.precision, world.device),
        sequence=sequence_parts(job.parallel, world),
        groups=None,
        spikes=None,
    )
    engine: Any = engine_of(job, cast("Any", parts))
    if is_fake:  # there are no numbers: zeros are finite, and report no overflow and no stop
        engine.to_host = lambda first, *others: [0.0] * (first.numel() + len(others))
    step = _batches(job)
    whole = total_count(step.counts)

    def take() -> None:
        sums = engine.forward_backward(step, whole)
        engine.finish(sums, Rates(job.optimizer.lr, 0.5))

    return take


def _batches(job: Job) -> StepBatch:
    rows, length = job.batch.micro_size, job.batch.sequence_length
    tokens = rows * length
    batches: list[Batch] = []
    for _ in range(job.batch.accumulation):
        inputs = torch.zeros(rows, length, dtype=torch.int64)
        documents = torch.zeros_like(inputs) if job.data.packing.isolate else None
        batches.append(
            Batch(inputs, torch.zeros_like(inputs), tokens, tokens, tokens, documents=documents)
        )
    counts: Sequence[Count] = [Count(tokens, tokens, float(tokens))] * len(batches)
    return StepBatch(batches, counts, total_count(counts))
