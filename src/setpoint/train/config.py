"""The root of a training job: its named sections, `[batch]`, and what is derived across them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from setpoint.adapter.config import AdapterConfig
from setpoint.checkpoint.config import Checkpoint
from setpoint.compile.config import Compile
from setpoint.config import (
    BUDGET,
    RUNTIME,
    Component,
    Config,
    Free,
    Invalid,
    Problem,
    component,
    dead,
    derive,
    derived,
    field,
    is_set,
    rule,
)
from setpoint.data.config import Bytes, Data, TokenizerConfig
from setpoint.loss.config import CrossEntropy, LossConfig
from setpoint.memory.config import Memory
from setpoint.model.config import HuggingFaceConfig, ModelConfig, TransformerConfig
from setpoint.optim.config import AdamWConfig, OptimizerConfig
from setpoint.optim.schedule import Cosine, Plateau, ScheduleConfig, Spanning
from setpoint.parallel.config import Parallel
from setpoint.precision.config import Precision
from setpoint.profile.config import Profiling
from setpoint.resilience.config import TrainingResilience
from setpoint.track.config import Tracking
from setpoint.train.batch_ramp import BatchRamp, BatchStage, stages_of
from setpoint.train.evaluation.config import Evaluation
from setpoint.units import Duration, Length

if TYPE_CHECKING:
    from torch.optim import Optimizer

DEFAULT_GLOBAL_SIZE = 8


class BatchConfig(Config):
    """Batch size, gradient accumulation and sequence length.

    Give any two of the three sizes, or fewer: what is not given is derived.
    """

    global_size: int = derived(ge=1)
    """Global batch size: sequences per optimizer step over all ranks; 8 if no size is given."""

    micro_size: int = derived(ge=1, role=RUNTIME)
    """Micro-batch size: sequences in one forward and backward pass on one rank."""

    accumulation: int = derived(ge=1, role=RUNTIME)
    """Gradient accumulation: forward and backward passes per optimizer step on each rank; 1 unless
    it follows from the sizes."""

    sequence_length: int = field(default=256, ge=1)
    """Sequence length (context length) in tokens."""

    ramp: BatchRamp | None = None
    """Batch size ramp: smaller batches in the first steps; null: the same size in every step."""

    def sizes_match(self, ranks: int) -> bool:
        """True if the global size is the product of the others."""
        return self.micro_size * self.accumulation * ranks == self.global_size

    @property
    def stages(self) -> tuple[BatchStage, ...]:
        """The global batch sizes of the run; a single one without a ramp."""
        ramp = self.ramp
        if ramp is None:
            return (BatchStage(0, 0, self.global_size),)
        row_tokens = self.sequence_length if ramp.over.unit == "tokens" else None
        over = int(ramp.over.count)
        return stages_of(ramp.start, ramp.increment, over, row_tokens, self.global_size)

    def size_at(self, step: int) -> int:
        """Sequences in a step, counted from 0."""
        return self._stage_of(step).size

    def accumulation_at(self, step: int) -> int:
        """Micro-batches of each rank in a step, counted from 0."""
        return self.accumulation * self.size_at(step) // self.global_size

    def sequences_before(self, step: int) -> int:
        """Sequences in the first `step` steps."""
        stage = self._stage_of(step)
        return stage.sequences + (step - stage.step) * stage.size

    def steps_for(self, sequences: float) -> float:
        """Number of steps, with a fraction, that read a number of sequences."""
        stages = self.stages
        first = stages[bisect_right(stages, sequences, key=lambda stage: stage.sequences) - 1]
        return first.step + (sequences - first.sequences) / first.size

    def _stage_of(self, step: int) -> BatchStage:
        stages = self.stages
        return stages[bisect_right(stages, step, key=lambda stage: stage.step) - 1]


def solve_batch(
    global_size: int | None,
    micro_size: int | None,
    accumulation: int | None,
    ranks: int,
    groups: int = 1,
    ramp: BatchRamp | None = None,
) -> tuple[int, int, int]:
    """Complete the three sizes.

    Arguments:
        groups: replica groups, which divide the micro-batches of a step.
        ramp: its sizes are multiples of the micro-batches of all ranks, too.

    Sizes that do not divide evenly are rounded down; `Job` then reports the mismatch.
    """
    if global_size is None:
        if micro_size is None and accumulation is None:
            global_size = DEFAULT_GLOBAL_SIZE
        else:
            micro_size, accumulation = micro_size or 1, accumulation or groups
            global_size = micro_size * accumulation * ranks
    if micro_size is None:
        least = global_size
        if ramp is not None and accumulation is None:
            least = math.gcd(ramp.start, ramp.increment)
        micro_size = max(1, least // ((accumulation or groups) * ranks))
    if accumulation is None:
        accumulation = max(1, global_size // (micro_size * ranks))
    return global_size, micro_size, accumulation


def batch_equation(global_size: int, micro_size: int, accumulation: int, ranks: int) -> str:
    """The sizes as a readable equation.

    Returns:
        for example `64 = 8 (micro) * 4 (accumulation) * 2 (ranks)`.
    """
    return f"{global_size} = {micro_size} (micro) * {accumulation} (accumulation) * {ranks} (ranks)"


def limits_of(duration: Duration, batch: BatchConfig) -> dict[str, float]:
    """The limits of a duration, with tokens converted to the steps that reach them."""
    limits = {limit.unit: limit.count for limit in duration.limits}
    tokens = limits.pop("tokens", None)
    if tokens is not None:
        steps = math.ceil(batch.steps_for(-(-int(tokens) // batch.sequence_length)))
        limits["steps"] = min(steps, limits.get("steps", steps))
    return limits


def steps_before(start: Length, batch: BatchConfig) -> int:
    """Number of steps in a length given in steps or tokens, counting tokens as full batches."""
    if start.unit == "steps":
        return int(start.count)
    return math.ceil(batch.steps_for(-(-int(start.count) // batch.sequence_length)))


NAME = r"[A-Za-z0-9][A-Za-z0-9_.\-]*"


class Job(
    Config,
    schema=1,
    presets="setpoint.presets",
    other_names="setpoint.interop.foreign_names",
    rules=(
        *(
            f"setpoint.train.rules.{topic}"
            for topic in (
                "cautions",
                "conflicts",
                "parallel_rules",
                "model_rules",
                "data_rules",
                "run_rules",
            )
        ),
        "setpoint.plan.this_machine",
    ),
):
    """Training job: one configuration that fully determines the run."""

    name: str = field(default="run", pattern=NAME, role=RUNTIME)
    """Name of the run; its directory is workspace/experiment/name-fingerprint."""

    description: str | None = field(default=None, role=RUNTIME)
    """Run description: free text sent to every tracker; null: none."""

    experiment: str | None = field(default=None, pattern=NAME, role=RUNTIME)
    """Experiment (project): folder of related runs inside the workspace; null: none."""

    workspace: Path = field(default=Path("runs"), role=RUNTIME)
    """Output directory (workspace): contains all run directories."""

    seed: int | None = field(default=1234, ge=0, lt=2**63)
    """Random seed for everything; null: drawn at the start and recorded."""

    duration: Duration = field(default=Duration("300 steps"), role=BUDGET)
    """Training duration (max steps, epochs, tokens or time); with several, the first one reached
    ends the run. May be raised on resume."""

    deterministic: bool = False
    """Deterministic algorithms only (torch.use_deterministic_algorithms); an operation without one
    is an error."""

    model: ModelConfig = field(factory=TransformerConfig)
    """Model architecture."""

    adapter: AdapterConfig | None = None
    """Low-rank adapter (LoRA) of the frozen model; null: none, the model itself is trained."""

    tokenizer: TokenizerConfig = field(factory=Bytes)
    """Tokenizer, which turns text into token ids."""

    data: Data = field(factory=Data)
    """Training and validation data."""

    batch: BatchConfig = field(factory=BatchConfig)
    """Batch size, gradient accumulation and sequence length."""

    optimizer: Component[OptimizerConfig, Optimizer] = component(factory=AdamWConfig)
    """Optimizer."""

    schedule: ScheduleConfig = field(factory=Cosine)
    """Learning rate schedule."""

    loss: LossConfig = field(factory=CrossEntropy)
    """Loss function."""

    precision: Precision = field(factory=Precision)
    """Mixed precision: dtypes of parameters, compute, gradient reduction and optimizer state."""

    memory: Memory = field(factory=Memory, role=RUNTIME)
    """Activation checkpointing, CPU offload and allocator settings."""

    compile: Compile | None = field(default=None, role=RUNTIME)
    """torch.compile of the model; null: eager."""

    parallel: Parallel = field(factory=Parallel, role=RUNTIME)
    """Parallelism: degrees of each axis, sharding, device and ranks."""

    checkpoint: Checkpoint = field(factory=Checkpoint)
    """Checkpointing: save interval, retention and resume."""

    evaluation: Evaluation | None = field(factory=Evaluation, role=RUNTIME)
    """Evaluation during training; null: none."""

    tracking: Tracking = field(factory=Tracking, role=RUNTIME)
    """Logging, progress and trackers."""

    profiling: Profiling | None = field(default=None, role=RUNTIME)
    """torch.profiler; null: none."""

    resilience: TrainingResilience = field(factory=TrainingResilience, role=RUNTIME)
    """Bad steps, time limits, liveness, health and garbage collection."""

    silence: tuple[str, ...] = field(default=(), role=RUNTIME)
    """Caution codes to hide: cautions (warnings) that are neither shown nor recorded."""

    user: Free = field(factory=Free)
    """Free keys of your own; recorded, and part of the fingerprint."""

    @dead("data.loader.evaluation")
    def _evaluation_loader_is_dead(self) -> str | None:
        return "nothing is evaluated" if self.evaluation is None else None

    @derive("model.max_sequence_length")
    def _derive_max_sequence_length(self) -> int:
        return self.batch.sequence_length

    @derive("model.moe.load_sequences")
    def _derive_load_sequences(self) -> int | None:
        model = self.model
        loads = (
            isinstance(model, TransformerConfig) and model.moe is not None and model.moe.counts_load
        )
        return self.batch.micro_size if loads else None

    @derive("tokenizer.count")
    def _derive_count_of_ids(self) -> int:
        model = self.model
        size = model.vocab_size if isinstance(model, TransformerConfig) else None
        if isinstance(model, HuggingFaceConfig):
            size = model.overrides.dump().get("vocab_size")
        if not isinstance(size, int):
            raise Invalid("must be set, or model.vocab_size must be: it is the number of token ids")
        return size

    @derive("data.packing.method")
    def _derive_packing(self) -> str:
        if not self.data.has_answers:
            return "concatenate"
        return "next_fit" if self.model.takes_documents else "none"

    @derive("data.packing.isolate")
    def _derive_isolation(self) -> bool:
        method = self.data.packing.method
        # Documents in separate rows require nothing of the model.
        return method != "concatenate" and (method != "none" or self.model.takes_documents)

    @derive("parallel.sequence_parallel")
    def _derive_sequence_parallel(self) -> bool:
        parallel, packing = self.parallel, self.data.packing
        tensor = parallel.degrees["tensor"]
        if tensor == 1 or parallel.divides_layers:
            return False
        parts = tensor * parallel.sequence_multiple
        lengths = (self.batch.sequence_length, packing.pad_to_multiple_of or parts)
        return isinstance(self.model, TransformerConfig) and not any(
            length % parts for length in lengths
        )

    @derive("batch.global_size")
    def _derive_global_size(self) -> int:
        return self._batch_sizes()[0]

    @derive("batch.micro_size")
    def _derive_micro_size(self) -> int:
        return self._batch_sizes()[1]

    @derive("batch.accumulation")
    def _derive_accumulation(self) -> int:
        return self._batch_sizes()[2]

    def _batch_sizes(self) -> tuple[int, int, int]:
        # Only given values may be read here: the others are being computed.
        batch = self.batch
        return solve_batch(
            batch.global_size if is_set(batch, "global_size") else None,
            batch.micro_size if is_set(batch, "micro_size") else None,
            batch.accumulation if is_set(batch, "accumulation") else None,
            self.parallel.data_ranks,
            1 if self.parallel.torchft is None else self.parallel.torchft.group_size,
            batch.ramp,
        )

    def total_steps(self) -> int | None:
        """The number of steps of the whole run, if the duration determines it.

        Returns:
            the number; None if only epochs or time end the run.
        """
        steps = limits_of(self.duration, self.batch).get("steps")
        return None if steps is None else int(steps)

    def horizon(self) -> Duration:
        """The horizon of curves other than the learning rate's."""
        return self.schedule.runs_over or self.duration

    @derive("schedule.horizon")
    def _derive_horizon(self) -> Duration | None:
        section = self.schedule
        if not isinstance(section, Spanning) or not section.needs_horizon:
            return None
        # Read only if given: the origin of the horizon names the values it is derived from.
        share = section.horizon_share if is_set(section, "horizon_share") else None
        return self.duration if share is None else self.duration.part(share)

    @rule
    def _check_horizon_share(self) -> Iterator[Problem]:
        section = self.schedule
        share = section.horizon_share if isinstance(section, Spanning) else None
        if share is None or section.runs_over in (None, self.duration.part(share)):
            return
        yield Problem(
            "schedule.horizon_share",
            f"{share:g} of {self.duration} is {self.duration.part(share)}, and the horizon is "
            f"{section.runs_over}",
            valid=("null",),
            also=("schedule.horizon", "duration"),
        )

    @derive("schedule.evaluated_on")
    def plateau_basis(self) -> str | None:
        """The evaluation settings on which the metric of a plateau schedule depends."""
        schedule, section = self.schedule, self.evaluation
        if not isinstance(schedule, Plateau) or section is None:
            return None
        return section.basis_of(schedule.monitor.rpartition(".")[0])
