"""Settings that do not go together: one table, which `check` uses and the documentation prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from setpoint.config import Problem, is_mapping
from setpoint.loss.config import LigerCrossEntropy
from setpoint.memory.config import SAVE, Full, Operators, Parts
from setpoint.model.config import HuggingFaceModel, ImportedModel, Transformer
from setpoint.optim.config import SGD, ImportedOptimizer
from setpoint.precision.config import FP16_ON_CPU, ON_A_GPU
from setpoint.profile.config import SNAPSHOT_ON_CPU

if TYPE_CHECKING:
    from setpoint.train.config import Job

CHECKPOINTING = "memory.activation_checkpointing"
COMPOSED = ("eager", "sdpa_math")
"""Backends whose attention is several operators: products of matrices, and what lies between."""
MEASURES = (
    "max_autotune",
    "max_autotune_gemm",
    "max_autotune_pointwise",
    "coordinate_descent_tuning",
    "triton.autotune_pointwise",
    "triton.autotune_cublasLt",
    "triton.multi_kernel",
)
"""Options of inductor that time kernels and take the fastest."""


class Conflict(NamedTuple):
    """A setting that is refused beside others.

    Arguments:
        setting: the field that the problem is about, and its values: `path = words`.
        others: what it conflicts with; the fields of those with a ` = ` are shown with the problem.
        applies: whether a job has the setting and the others, apart from its device if `on_cpu`.
        why, valid: what the problem says; `{section.field}` is a value of the job,
            `{section.type}` a variant, and `{device}` says why the model is computed on a CPU.
        on_cpu: whether it conflicts with a CPU: `device = cpu`, or `auto` where there is no GPU.
    """

    setting: str
    others: tuple[str, ...]
    applies: Callable[[Job], bool]
    why: str
    valid: tuple[str, ...] = ()
    hint: str = ""
    on_cpu: bool = False

    def problem(self, job: Job, device: str) -> Problem:
        """The finding; `device` stands for `{device}` in the message."""
        return Problem(
            self.setting.partition(" = ")[0],
            self.why.format_map(_Values(job, device)),
            valid=[each.format_map(_Values(job, device)) for each in self.valid],
            also=[other.partition(" = ")[0] for other in self.others if " = " in other],
            hint=self.hint,
        )


CPU = "parallel.device = cpu"
NOT_A_GPU = "parallel.device = cpu or auto"
CONFLICTS = (
    Conflict(
        "batch.sequence_length = more tokens",
        ("model.max_sequence_length = fewer tokens",),
        lambda job: job.batch.sequence_length > job.model.max_sequence_length,
        "{batch.sequence_length} tokens do not fit a model that takes {model.max_sequence_length}",
        valid=("{model.max_sequence_length}",),
    ),
    Conflict(
        "loss = chunked_cross_entropy, linear_cross_entropy or liger_cross_entropy",
        ("model = huggingface or import",),
        lambda job: (
            type(job.loss).from_hidden and isinstance(job.model, ImportedModel | HuggingFaceModel)
        ),
        "type = {loss.type} needs hidden states, and a model of type = {model.type} gives logits "
        "only",
        valid=("cross_entropy",),
    ),
    Conflict(
        "loss = linear_cross_entropy",
        ("model.logit_soft_cap = a number",),
        lambda job: (
            not type(job.loss).soft_caps and getattr(job.model, "logit_soft_cap", None) is not None
        ),
        "type = {loss.type} cannot cap logits, and the model caps them at {model.logit_soft_cap:g}",
        valid=("chunked_cross_entropy", "cross_entropy"),
    ),
    Conflict(
        "loss = liger_cross_entropy",
        (CPU,),
        lambda job: isinstance(job.loss, LigerCrossEntropy) and job.parallel.device == "cpu",
        "type = liger_cross_entropy needs a GPU: its kernels are written in Triton",
        valid=("chunked_cross_entropy",),
    ),
    Conflict(
        "precision.compute = fp16",
        (NOT_A_GPU,),
        lambda job: job.precision.compute == "fp16" and job.parallel.device != "cuda",
        FP16_ON_CPU,
        valid=("bf16", "fp32"),
        hint=ON_A_GPU,
    ),
    Conflict(
        "precision.float8 = a section",
        (NOT_A_GPU,),
        lambda job: job.precision.float8 is not None and job.parallel.device != "cuda",
        "needs a GPU of Ada's or Hopper's age or newer",
        valid=("null",),
        hint=ON_A_GPU,
    ),
    Conflict(
        "precision.optimizer_state = a dtype",
        ("optimizer = import",),
        lambda job: (
            job.precision.optimizer_state is not None
            and isinstance(job.optimizer, ImportedOptimizer)
        ),
        "cannot be asked of {optimizer.target}, which keeps its state in what it likes",
        valid=("null",),
    ),
    Conflict(
        "precision.optimizer_state = a dtype",
        ("optimizer = sgd, without momentum",),
        lambda job: job.precision.optimizer_state is not None and not job.optimizer.keeps_state,
        "has no effect: {optimizer.type} keeps nothing from update to update",
        valid=("null",),
    ),
    Conflict(
        "optimizer.implementation = fused",
        ("precision.params = bf16", CPU),
        lambda job: (
            isinstance(job.optimizer, SGD)
            and job.optimizer.implementation == "fused"
            and job.precision.updated == "bf16"
        ),
        "PyTorch's fused SGD does not update bf16 weights on a CPU",
        valid=("auto", "foreach", "loop"),
        on_cpu=True,
    ),
    *(
        Conflict(
            f"memory.{name} = a section",
            (CPU,),
            lambda job, name=name: getattr(job.memory, name) is not None,
            "has no effect: the model is computed on the CPU, whose memory is the host's already",
            valid=("null",),
            on_cpu=True,
        )
        for name in ("activation_offload", "optimizer_offload")
    ),
    Conflict(
        "memory.empty_cache = a period",
        (CPU,),
        lambda job: job.memory.empty_cache.unit != "never",
        "has no effect: the model is computed on the CPU, whose memory PyTorch does not keep",
        valid=("never",),
        on_cpu=True,
    ),
    Conflict(
        f"{CHECKPOINTING}.reentrant = true",
        ("compile.scope = block or model",),
        lambda job: (
            isinstance(job.memory.activation_checkpointing, Full | Parts)
            and job.memory.activation_checkpointing.reentrant
            and job.compile is not None
        ),
        "torch.compile cannot look into the older implementation, and would leave out what is "
        "computed again",
        valid=("false",),
    ),
    Conflict(
        "memory.activation_offload = a section",
        (f"{CHECKPOINTING} = operators",),
        lambda job: (
            job.memory.activation_offload is not None
            and isinstance(job.memory.activation_checkpointing, Operators)
        ),
        "cannot move what type = operators keeps, and its limit would not hold",
        valid=("null",),
        hint="Or compute whole layers or parts of them again: type = full or parts.",
    ),
    Conflict(
        "memory.activation_offload = a section",
        ("compile.scope = model",),
        lambda job: (
            job.memory.activation_offload is not None
            and job.compile is not None
            and job.compile.scope == "model"
        ),
        "works between compiled layers, and not within one compiled model",
        valid=("null",),
        hint="Or set compile.scope to block.",
    ),
    Conflict(
        f"{CHECKPOINTING}.save = attention",
        ("model.attention_dropout = a number",),
        lambda job: _saves_attention(job) and bool(_transformer(job).attention_dropout),
        "keeps no attention with dropout, which must draw its random numbers again",
        valid=("[matmul]",),
    ),
    Conflict(
        f"{CHECKPOINTING}.save = attention",
        (f"model.attention_backend = {' or '.join(COMPOSED)}",),
        lambda job: (
            _saves_attention(job)
            and not _transformer(job).attention_dropout
            and _transformer(job).attention_backend in COMPOSED
        ),
        "finds no attention: {model.attention_backend} composes it of matrix products",
        valid=("[matmul]",),
    ),
    *(
        Conflict(
            "memory.optimizer_offload = a section",
            (other,),
            lambda job, is_sgd=is_sgd: (
                job.memory.optimizer_offload is not None
                and not job.optimizer.keeps_state
                and isinstance(job.optimizer, SGD) == is_sgd
            ),
            "has no effect: {optimizer.type} keeps nothing from update to update",
            valid=("null",),
        )
        for other, is_sgd in (("optimizer.momentum = 0", True), ("optimizer = no state", False))
    ),
    Conflict(
        "memory.optimizer_offload = a section",
        ("optimizer = schedule_free_adamw or import",),
        lambda job: (
            job.memory.optimizer_offload is not None
            and job.optimizer.keeps_state
            and not job.optimizer.by_parameter
        ),
        "updates some parameters at a time, and {optimizer.type} may look at all of them at once",
        valid=("null",),
    ),
    Conflict(
        "compile.mode = reduce-overhead",
        (CPU,),
        lambda job: job.compile is not None and job.compile.mode == "reduce-overhead",
        "has no effect: reduce-overhead records graphs of a GPU, and {device}",
        valid=("null", "default"),
        on_cpu=True,
    ),
    *(
        # Measured: gradients off by half to all of their size, and no error.
        Conflict(
            "compile.backend = eager",
            (f"{CHECKPOINTING} = any", f"model.{name} = a number"),
            lambda job, name=name: (
                job.compile is not None
                and job.compile.backend == "eager"
                and job.memory.activation_checkpointing is not None
                and name == next(_dropped(job), None)
            ),
            "eager gives wrong gradients with activation checkpointing and dropout: what is "
            "recomputed drops other activations than the forward pass did",
            valid=("inductor", "aot_eager"),
        )
        for name in ("dropout", "attention_dropout")
    ),
    Conflict(
        "compile.mode = max-autotune or max-autotune-no-cudagraphs",
        ("deterministic = true",),
        lambda job: (
            job.deterministic
            and job.compile is not None
            and (job.compile.mode or "").startswith("max-autotune")
        ),
        "takes the kernel that was fastest, which is another one in another run",
        valid=("null", "default", "reduce-overhead"),
    ),
    *(
        Conflict(
            f"compile.options.{name} = true",
            ("deterministic = true",),
            lambda job, name=name: (
                job.deterministic
                and job.compile is not None
                and name in _switched_on(job.compile.options.dump())
            ),
            "takes the kernel that was fastest, which is another one in another run",
            valid=("false",),
        )
        for name in MEASURES
    ),
    Conflict(
        "profiling.snapshot = true",
        (CPU,),
        lambda job: job.profiling is not None and job.profiling.snapshot,
        SNAPSHOT_ON_CPU,
        valid=("false",),
        on_cpu=True,
    ),
    Conflict(
        "checkpoint.keep_best = false",
        ("evaluation = null",),
        lambda job: job.evaluation is None and not job.checkpoint.keep_best,
        "has no effect: without an evaluation no checkpoint is the best",
        hint="Remove it.",
    ),
    Conflict(
        "data.held_out = 0",
        ("evaluation, without data.validation",),
        lambda job: (
            job.evaluation is not None and not job.data.held_out and not job.data.validation
        ),
        "holds out no text, and there is an evaluation",
        hint="Give data.validation sources of text to evaluate on, or set evaluation = null.",
    ),
)


def conflicts(job: Job) -> Iterator[Problem]:
    """Find settings that do not go together, whatever the machine is."""
    on_cpu = job.parallel.device == "cpu"
    for each in CONFLICTS:
        if (on_cpu or not each.on_cpu) and each.applies(job):
            yield each.problem(job, "the device is cpu")


def wants_gpu(job: Job) -> bool:
    """Say whether `device = auto` must find a GPU."""
    return job.parallel.device == "auto" and any(e.on_cpu and e.applies(job) for e in CONFLICTS)


def conflicts_without_gpu(job: Job) -> Iterator[Problem]:
    """Find what has no effect or fails on this machine, as it has no GPU."""
    from torch import cuda

    if not cuda.is_available():
        for each in CONFLICTS:
            if each.on_cpu and each.applies(job):
                yield each.problem(job, "PyTorch sees no GPU on this machine")


class _Values(dict[str, Any]):
    """What the fields of a message stand for."""

    def __init__(self, job: Job, device: str) -> None:
        super().__init__(device=device)
        self.job = job

    def __missing__(self, section: str) -> _Section:
        return _Section(getattr(self.job, section))


class _Section:
    def __init__(self, section: Any) -> None:
        self.section = section

    def __getattr__(self, name: str) -> Any:
        cls = type(self.section)
        return cls.__setpoint__.tag if name == "type" else getattr(self.section, name)


def _transformer(job: Job) -> Transformer:
    assert isinstance(job.model, Transformer)
    return job.model


def _saves_attention(job: Job) -> bool:
    section = job.memory.activation_checkpointing
    chosen = isinstance(section, Operators) and section.save != SAVE and "attention" in section.save
    return chosen and isinstance(job.model, Transformer)


def _dropped(job: Job) -> Iterator[str]:
    names = ("dropout", "attention_dropout")
    return (name for name in names if getattr(job.model, name, 0))


def _switched_on(options: Any, before: str = "") -> Iterator[str]:
    """The options that are not false, by dotted names."""
    for key, value in options.items():
        if is_mapping(value):
            yield from _switched_on(value, f"{before}{key}.")
        elif value:
            yield before + key
