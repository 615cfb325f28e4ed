"""The root of a training job: every section by its fixed name, and what ties sections together."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.checkpoint.config import Checkpoint
from setpoint.compile.config import Compile
from setpoint.config import (
    BUDGET,
    RUNTIME,
    Component,
    Config,
    Free,
    Problem,
    check,
    component,
    dead,
    derive,
    field,
    is_set,
)
from setpoint.data.config import Bytes, Data, TokenizerConfig
from setpoint.loss.config import CrossEntropy, LossConfig
from setpoint.memory.config import Memory
from setpoint.model.config import ModelConfig, Transformer, names_attention_backend
from setpoint.optim.config import (
    SGD,
    AdamW,
    AnyPrecisionAdamW,
    Cosine,
    OptimizerConfig,
    Plateau,
    ScheduleConfig,
    Spanning,
)
from setpoint.parallel.config import Parallel
from setpoint.precision.config import Precision
from setpoint.profile.config import Profiling
from setpoint.resilience.config import TrainingResilience
from setpoint.track.config import Tracking
from setpoint.train.batch import Batch, batch_sum, expected_steps, nearest_multiples, solve_batch
from setpoint.train.evaluation.config import (
    LONG_EVALUATION,
    LONG_EVALUATION_MEANS,
    Evaluation,
)
from setpoint.train.loss_fit import leaves_out, unfit, unknown_tokens
from setpoint.train.suspicious import CAUTIONS, suspicious
from setpoint.train.vocabulary_fit import UNUSED, UNUSED_MEANS, vocabulary_problems
from setpoint.units import Duration

if TYPE_CHECKING:
    from torch.optim import Optimizer

NAME = r"[A-Za-z0-9][A-Za-z0-9_.\-]*"


class Job(
    Config,
    schema=6,
    migrations="setpoint.train.migrations",
    presets="setpoint.presets",
    other_names="setpoint.train.other_names",
):
    """A training job: one configuration that fully determines the run."""

    name: str = field(
        default="run",
        pattern=NAME,
        role=RUNTIME,
        also_called=("run_name", "exp_name", "wandb_run_name", "wandb_name"),
    )
    """Name of the run; its directory is workspace/experiment/name-fingerprint."""

    experiment: str | None = field(
        default=None,
        pattern=NAME,
        role=RUNTIME,
        also_called=("project", "project_name", "wandb_project", "experiment_name"),
    )
    """Folder between the workspace and the runs, to keep runs together; null: none."""

    workspace: Path = field(
        default=Path("runs"),
        role=RUNTIME,
        also_called=("output_dir", "out_dir", "default_root_dir", "dump_folder", "save_folder"),
    )
    """Folder that all runs lie in."""

    seed: int | None = field(
        default=1234, ge=0, lt=2**63, also_called=("random_seed", "manual_seed")
    )
    """Seed of all random number generators; null draws one, which is recorded."""

    duration: Duration = field(
        default=Duration("300 steps"),
        role=BUDGET,
        also_called=(
            "num_train_epochs",
            "num_epochs",
            "max_epochs",
            "epochs",
            "max_steps",
            "train_steps",
            "total_steps",
            "num_steps",
            "max_iters",
            "train_iters",
            "max_tokens",
            "max_time",
            "max_duration",
        ),
    )
    """When training ends: a count with a unit, or several of which the first to be reached counts.
    May grow when a run is resumed."""

    deterministic: bool = field(
        default=False,
        also_called=("full_determinism", "deterministic_mode", "use_deterministic_algorithms"),
    )
    """Deterministic algorithms only (torch.use_deterministic_algorithms); an operation that has
    none is an error."""

    model: ModelConfig = field(factory=Transformer)
    """The model architecture."""

    tokenizer: TokenizerConfig = field(
        factory=Bytes,
        also_called=("tokenizer_type", "tokenizer_name", "tokenizer_path"),
    )
    """How text becomes tokens."""

    data: Data = field(factory=Data)
    """The training and validation data."""

    batch: Batch = field(factory=Batch)
    """Batch size, gradient accumulation and sequence length."""

    optimizer: Component[OptimizerConfig, Optimizer] = component(
        factory=AdamW, also_called=("optim", "optimizer_type", "optimizer_name")
    )
    """The optimizer."""

    schedule: ScheduleConfig = field(
        factory=Cosine,
        also_called=("lr_scheduler", "lr_scheduler_type", "lr_decay_style", "scheduler"),
        values_also_called={
            "none": ("null",),
            "constant": ("constant_with_warmup", "fixed"),
            "cosine": (
                "cosine_with_min_lr",
                "cosine_warmup_with_min_lr",
                "cosine_with_warmup",
                "cosine_annealing",
                "cosineannealinglr",
            ),
            "linear": ("linear_decay", "linear_with_warmup", "linearlr"),
            "polynomial": ("poly", "polynomial_decay", "polynomiallr"),
            "wsd": ("warmup_stable_decay",),
            "inverse_sqrt": ("inverse_square_root", "noam", "rsqrt"),
            "piecewise": ("step", "steplr", "multistep", "multisteplr", "cosine_with_restarts"),
            "plateau": ("reduce_lr_on_plateau", "reducelronplateau", "reduce_on_plateau"),
        },
    )
    """The learning rate schedule."""

    loss: LossConfig = field(
        factory=CrossEntropy,
        also_called=("loss_fn", "loss_type", "loss_function", "criterion"),
        values_also_called={
            "chunked_cross_entropy": ("chunked", "chunked_ce"),
            "liger_cross_entropy": ("liger", "fused_linear_cross_entropy"),
        },
    )
    """The loss function."""

    precision: Precision = field(factory=Precision)
    """Mixed precision: dtypes of parameters, compute, gradient reduction and optimizer state."""

    memory: Memory = field(factory=Memory, role=RUNTIME)
    """Activation checkpointing, CPU offload and the allocator's cache."""

    compile: Compile | None = field(
        default=None,
        role=RUNTIME,
        also_called=("compile_model", "torch_compile", "enable_compile", "use_compile"),
    )
    """torch.compile of the model; null: eager."""

    parallel: Parallel = field(factory=Parallel, role=RUNTIME)
    """Device and number of ranks."""

    checkpoint: Checkpoint = field(factory=Checkpoint, role=RUNTIME)
    """Checkpointing: when the run is saved, and whether it resumes."""

    evaluation: Evaluation | None = field(factory=Evaluation, role=RUNTIME)
    """Evaluation on the validation set during training; null: none."""

    tracking: Tracking = field(factory=Tracking, role=RUNTIME)
    """Logging, progress and trackers."""

    profiling: Profiling | None = field(
        default=None, role=RUNTIME, also_called=("profile", "enable_profiling", "profiler")
    )
    """torch.profiler: which steps are profiled; null: none."""

    resilience: TrainingResilience = field(factory=TrainingResilience, role=RUNTIME)
    """Garbage collection and shutdown."""

    silence: tuple[str, ...] = field(default=(), role=RUNTIME)
    """Codes of cautions that are known and meant; they are neither shown nor recorded."""

    user: Free = field(factory=Free)
    """Free keys of your own; recorded and part of the fingerprint."""

    @derive("model.max_sequence_length")
    def _derive_max_sequence_length(self) -> int:
        return self.batch.sequence_length

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
        # Only what is given may be read here: the rest is what is being computed.
        batch = self.batch
        return solve_batch(
            batch.global_size if is_set(batch, "global_size") else None,
            batch.micro_size if is_set(batch, "micro_size") else None,
            batch.accumulation if is_set(batch, "accumulation") else None,
            self.parallel.world_size,
        )

    def updates(self) -> int | None:
        """The number of updates of the whole run, as far as the duration decides it.

        Returns:
            the number; None where only epochs or time end the run.
        """
        return expected_steps(self)

    def horizon(self) -> Duration:
        """What curves other than the learning rate's run over."""
        return self.schedule.runs_over or self.duration

    @derive("schedule.horizon")
    def _derive_horizon(self) -> Duration | None:
        section = self.schedule
        return self.duration if isinstance(section, Spanning) and section.needs_horizon else None

    @derive("schedule.judged_on")
    def _derive_judged_on(self) -> str | None:
        from setpoint.train.evaluation.fit import judged_on

        return judged_on(self)

    @check(
        needs="files",
        cautions={LONG_EVALUATION: LONG_EVALUATION_MEANS},
        when=lambda job: job.evaluation is not None and job.evaluation.may_be_long(job.batch),
    )
    def _check_length_of_evaluation(self) -> Iterator[Problem]:
        """Whether an evaluation takes longer than the training between two."""
        from setpoint.train.evaluation.fit import long_evaluation

        yield from long_evaluation(self)

    @check(cautions=CAUTIONS)
    def _check_for_what_is_seldom_meant(self) -> Iterator[Problem]:
        yield from suspicious(self)

    @check
    def _check_batch_sum(self) -> Iterator[Problem]:
        batch, ranks = self.batch, self.parallel.world_size
        portion = batch.micro_size * batch.accumulation * ranks
        if portion == batch.global_size:
            return
        given = [name for name in ("micro_size", "accumulation") if is_set(batch, name)]
        also = (*(f"batch.{name}" for name in given), "parallel.world_size")
        if len(given) == 2:
            total = batch_sum(portion, batch.micro_size, batch.accumulation, ranks)
            yield Problem(
                "batch.global_size",
                f"{batch.global_size} sequences contradict the other sizes: {total}",
                valid=(str(portion),),
                also=also,
                hint="Give two of the three sizes; the third is derived.",
            )
            return
        # What is derived has been rounded; what is given decides which sizes come out even.
        parts = [(getattr(batch, name), name.removesuffix("_size")) for name in given]
        parts.append((ranks, "ranks"))
        step = prod(size for size, _ in parts)
        factors = " * ".join(f"{size} ({name})" for size, name in parts)
        yield Problem(
            "batch.global_size",
            f"{batch.global_size} sequences cannot be divided by {step}"
            + (f" = {factors}" if given else " ranks"),
            valid=[str(size) for size in nearest_multiples(batch.global_size, step)],
            also=also,
        )

    @check
    def _check_best(self) -> Iterator[Problem]:
        if self.evaluation is None and not self.checkpoint.keep_best:
            yield Problem(
                "checkpoint.keep_best",
                "has no effect: without an evaluation no checkpoint is the best",
                also=("evaluation",),
                hint="Remove it.",
            )

    @check
    def _check_held_out(self) -> Iterator[Problem]:
        if self.evaluation is not None and not self.data.held_out and not self.data.validation:
            yield Problem(
                "data.held_out",
                "holds out no text, and there is an evaluation",
                hint="Give data.validation sources of text to evaluate on, or set evaluation = "
                "null.",
            )

    @dead("evaluation.baselines")
    def _baselines_are_dead(self) -> str | None:
        path = leaves_out(self)
        return path and f"{path} leaves tokens out, which n-gram models would count"

    @check
    def _check_loss(self) -> Iterator[Problem]:
        yield from unfit(self)

    @check(cautions={UNUSED: UNUSED_MEANS})
    def _check_vocabulary(self) -> Iterator[Problem]:
        if isinstance(self.tokenizer, Bytes):
            yield from vocabulary_problems(self)
            yield from unknown_tokens(self)

    @check(needs="files", cautions={UNUSED: UNUSED_MEANS})
    def _check_vocabulary_in_files(self) -> Iterator[Problem]:
        """Whether the model's vocabulary holds that of the tokenizer's files."""
        if not isinstance(self.tokenizer, Bytes):
            yield from vocabulary_problems(self)
            yield from unknown_tokens(self)

    @check
    def _check_context(self) -> Iterator[Problem]:
        longest = self.model.max_sequence_length
        if self.batch.sequence_length > longest:
            yield Problem(
                "batch.sequence_length",
                f"{self.batch.sequence_length} tokens do not fit a model that takes {longest}",
                valid=(str(longest),),
                also=("model.max_sequence_length",),
            )

    @check
    def _check_how_it_is_trained(self) -> Iterator[Problem]:
        # Each is imported where it has something to look at: most jobs leave most of this alone.
        if self.precision.depends_on_others:
            from setpoint.train.precision_fit import precision_problems

            yield from precision_problems(self)
        if self.optimizer.has_patterns or isinstance(self.optimizer, SGD):
            from setpoint.train.optimizer_fit import optimizer_problems

            yield from optimizer_problems(self)
        if self.memory != Memory():
            from setpoint.train.memory_fit import memory_problems

            yield from memory_problems(self)
        if self.compile is not None:
            from setpoint.train.compile_fit import compile_problems

            yield from compile_problems(self)
        if self.deterministic:
            from setpoint.train.determinism_fit import determinism_problems

            yield from determinism_problems(self)
        if isinstance(self.schedule, Plateau) or not self.checkpoint.keep_best:
            from setpoint.train.evaluation.fit import evaluation_problems

            yield from evaluation_problems(self)
        if self.profiling is not None:
            from setpoint.train.profile_fit import profile_problems

            yield from profile_problems(self)

    @dead("precision.reduce")
    def _reduction_is_dead(self) -> str | None:
        if self.precision.reduce is None:
            return None
        from setpoint.train.precision_fit import idle_reduction

        return idle_reduction(self)

    @dead("precision.optimizer_state")
    def _state_format_is_dead(self) -> str | None:
        if self.precision.optimizer_state is None:
            return None
        from setpoint.train.precision_fit import idle_state

        return idle_state(self)

    @dead("optimizer.rounding")
    def _rounding_is_dead(self) -> str | None:
        if not isinstance(self.optimizer, AnyPrecisionAdamW):
            return None
        from setpoint.train.precision_fit import idle_rounding

        return idle_rounding(self)

    @check(needs="torch", when=lambda job: job.optimizer.has_patterns and _when().unlisted(job))
    def _check_patterns(self) -> Iterator[Problem]:
        """Whether the optimizer's patterns match parameters of the model."""
        from setpoint.train.optimizer_fit import built_pattern_problems

        yield from built_pattern_problems(self)

    @check(needs="torch", when=lambda job: isinstance(job.optimizer, SGD) and _when().fused(job))
    def _check_fused_device(self) -> Iterator[Problem]:
        """Whether the fused optimizer updates weights in bf16 on the device."""
        from setpoint.train.optimizer_fit import fused_problems

        yield from fused_problems(self)

    @check(needs="torch", when=lambda job: job.memory.spares_device)
    def _check_memory_device(self) -> Iterator[Problem]:
        """Whether there is a device whose memory can be spared."""
        from setpoint.train.memory_fit import device_problems

        yield from device_problems(self)

    @check(needs="torch", when=lambda job: job.precision.float8 is not None)
    def _check_float8_device(self) -> Iterator[Problem]:
        """Whether the device computes in float8."""
        from setpoint.train.precision_fit import float8_device_problems

        yield from float8_device_problems(self)

    @check
    def _check_attention_device(self) -> Iterator[Problem]:
        if isinstance(self.model, Transformer) and self.model.attention_backend != "auto":
            from setpoint.model.attention.support import placement_problems

            device, compute = self.parallel.device, self.precision.compute
            yield from placement_problems(self.model, device, compute, training=True)

    @check(needs="torch", when=lambda job: job.profiling is not None and job.profiling.snapshot)
    def _check_snapshot(self) -> Iterator[Problem]:
        """Whether there is a GPU to take snapshots of."""
        from setpoint.train.profile_fit import snapshot_problems

        yield from snapshot_problems(self)

    @check(needs="torch", when=lambda job: job.compile is not None)
    def _check_compiler(self) -> Iterator[Problem]:
        """Whether what torch.compile needs is installed."""
        from setpoint.train.compile_fit import machine_problems

        yield from machine_problems(self)

    @check(needs="torch", when=lambda job: job.deterministic and job.parallel.device == "auto")
    def _check_workspace(self) -> Iterator[Problem]:
        """Whether matrix products on the GPU can be deterministic."""
        from torch import cuda

        from setpoint.train.determinism_fit import workspace_problems

        if cuda.is_available():
            yield from workspace_problems()

    @check(needs="torch", when=lambda job: names_attention_backend(job.model))
    def _check_attention_backend(self) -> Iterator[Problem]:
        """Whether the attention backend runs on the device."""
        from setpoint.model.attention.probe import device_problems

        device, compute = self.parallel.device, self.precision.compute
        yield from device_problems(self.model, device, compute, training=True)


def _when() -> Any:
    from setpoint.train import when  # most jobs have nothing that it would look at

    return when
