"""Conflicting settings: a table of conditions with their messages.

Conditions and messages read the job through `NullSafe`; the documentation shows the source of the
conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from setpoint.config import Config, Problem, fields_of, is_mapping, rule
from setpoint.memory.config import SAVE
from setpoint.precision.config import FP16_ON_CPU, ON_A_GPU
from setpoint.profile.config import SNAPSHOT_ON_CPU
from setpoint.track.config import NORMS


class NullSafe:
    """A null-safe view of a config, in which fields of null sections and other variants are null.

    Null counts as false. `type` is the tag of a variant, and `job["a.b"]` is `job.a.b`.
    """

    __slots__ = ("_section",)

    def __init__(self, section: Any) -> None:
        self._section = section

    def __getattr__(self, name: str) -> Any:
        section = self._section
        if section is None:
            return NULL
        if name == "type":
            return type(section).__setpoint__.tag
        # A failed getattr of a config searches for similar names, which takes time.
        if name not in fields_of(section) and not hasattr(type(section), name):
            return NULL
        value = getattr(section, name)
        if value is None:
            return NULL
        return NullSafe(value) if isinstance(value, Config) else value

    def __getitem__(self, path: str) -> Any:
        value: Any = self
        for name in path.split("."):
            value = getattr(value, name)
        return value

    def __bool__(self) -> bool:
        return self._section is not None

    def __iter__(self) -> Iterator[Any]:
        return iter(())  # the list is null


NULL = NullSafe(None)


class Conflict(NamedTuple):
    """A setting that is refused in combination with others.

    Arguments:
        applies: condition on a `NullSafe` job.
        path: the refused field.
        message: reason; `{section.field}` is replaced with the value, `{device}` with the reason
            why the device is a CPU.
        valid: accepted values, with the same placeholders.
        also: other fields involved; `parallel` stands for the axes that divide a copy of the model.
        on_cpu: whether it is refused only on a CPU: with `device = cpu`, or with `auto` if PyTorch
            sees no GPU.
    """

    applies: Callable[[Any], Any]
    path: str
    message: str
    valid: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    hint: str = ""
    on_cpu: bool = False

    @property
    def is_about_ranks(self) -> bool:
        """True if all fields involved belong to `[parallel]`."""
        return bool(self.also) and all(path.startswith("parallel") for path in self.also)

    def problem(self, job: NullSafe, device: str) -> Problem:
        """Build the problem; `device` replaces `{device}`."""
        message = self.message.replace("{device}", device).format_map(job)
        also = [*self.also, "parallel.device"] if self.on_cpu else self.also
        return Problem(
            _axes(job, self.path)[0],
            message,
            valid=[text.format_map(job) for text in self.valid],
            also=[field for path in also for field in _axes(job, path)],
            hint=self.hint,
        )


def _axes(job: NullSafe, path: str) -> list[str]:
    """Expand `parallel` to the axes that divide a copy of the model; other paths stand alone."""
    parallel = job.parallel
    experts = [name for name in ("expert", "expert_tensor") if getattr(parallel, name) > 1]
    if path == "parallel":
        axes = [axis for axis, n in parallel.degrees.items() if n > 1 and axis != "replicate"]
        return [f"parallel.{axis}" for axis in (*axes, *experts)]
    alone = path == "parallel.expert" and experts == ["expert_tensor"]
    return ["parallel.expert_tensor" if alone else path]


@rule
def conflicts(job: Any) -> Iterator[Problem]:
    """Conflicting settings: see the list above.

    Of several conflicts of one field with parallel axes that have the same valid values, only the
    first is reported.
    """
    safe, on_cpu, reported = NullSafe(job), job.parallel.device == "cpu", set[Any]()
    for row in CONFLICTS:
        if (on_cpu or not row.on_cpu) and row.applies(safe):
            if row.is_about_ranks:
                if (row.path, row.valid) in reported:
                    continue
                reported.add((row.path, row.valid))
            yield row.problem(safe, "the device is cpu")


def may_need_gpu(job: Any) -> bool:
    """True if a GPU must be looked for: device is auto, and a conflict applies only on a CPU."""
    safe = NullSafe(job)
    return job.parallel.device == "auto" and any(r.on_cpu and r.applies(safe) for r in CONFLICTS)


@rule(needs="torch", when=may_need_gpu)
def conflicts_without_gpu(job: Any) -> Iterator[Problem]:
    """Settings that need a GPU, on a machine without one."""
    safe = NullSafe(job)
    if not sees_gpu():
        for row in CONFLICTS:
            if row.on_cpu and row.applies(safe):
                yield row.problem(safe, "PyTorch sees no GPU on this machine")


def sees_gpu() -> bool:
    """True if PyTorch sees a GPU on this machine."""
    from torch import cuda

    return cuda.is_available()


def saves(job: NullSafe, name: str) -> bool:
    """True if activation checkpointing saves this operator, but not all of them."""
    names = job.memory.activation_checkpointing.save
    return name in names and set(names) != set(SAVE)


def switched_on(options: Any, before: str = "") -> Iterator[str]:
    """Dotted names of the inductor options that are on."""
    for key, value in options.items():
        if is_mapping(value):
            yield from switched_on(value, f"{before}{key}.")
        elif value:
            yield before + key


CHECKPOINTING = "memory.activation_checkpointing"
OFFLOAD = "memory.activation_offload"
ASYNC = "parallel.async_tensor_parallel"
SCHEDULE = "parallel.pipelining.schedule"
CONTEXT_PATHS = ("parallel.ring", "parallel.ulysses")
TENSOR = ("parallel.tensor", "parallel.sequence_parallel")

ON_HOST = "has no effect: the model runs on the CPU and is already in host memory"
FASTEST = "selects kernels by their measured time, which varies from run to run"
OTHER_MASK = (
    "eager gives wrong gradients with activation checkpointing and dropout: recomputation drops "
    "other activations than the forward pass did"
)  # measured: off by 50 to 100 % of their size, without an error
TIMING_OPTIONS = (
    "max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning",
    "triton.autotune_pointwise", "triton.autotune_cublasLt", "triton.multi_kernel",
)  # fmt: skip
"""Inductor options that time kernels and select the fastest."""
# Sections and fields that must be null or empty with parallel.engine = deepspeed.
DEEPSPEED = {
    "batch.ramp": "is initialized with one number of micro-batches per step",
    "optimizer.clip_value": "clips gradients by norm only: optimizer.clip_norm",
    "optimizer.frozen_spans": "updates all weights together and cannot freeze some of them for "
    "part of a run",
    "precision.float8": "shards weights that are stored in fp32",
    "compile": "hooks into modules, which breaks compiled graphs",
    "model.moe": "needs a gradient of every weight on every rank, which experts without tokens "
    "lack",
    "resilience.spike": "clips and updates in one call, before the loss of all ranks is known",
    OFFLOAD: "frees weights that saved activations refer to",
    "adapter": "shards all weights alike, but an adapter freezes most of them",
}

CONFLICTS = (
    # The model and its loss.
    Conflict(lambda job: job.batch.sequence_length > job.model.max_sequence_length,
        "batch.sequence_length", "{batch.sequence_length} tokens exceed the model's maximum of "
        "{model.max_sequence_length}", ("{model.max_sequence_length}",),
        ("model.max_sequence_length",), "Or raise model.max_sequence_length, which rotary "
        "positions allow also with pretrained weights."),
    Conflict(lambda job: job.model.type == "import" and job.loss.from_hidden,
        "loss", "type = {loss.type} needs hidden states, but a model of type = {model.type} "
        "returns only logits", ("cross_entropy",), ("model",)),
    Conflict(lambda job: job.parallel.divides_matrices and job.loss.from_hidden
        and not job.loss.takes_columns,
        "loss", "type = {loss.type} needs the whole output matrix, but tensor parallelism leaves "
        "each rank only a part of it", ("chunked_cross_entropy", "cross_entropy"),
        ("parallel.tensor",)),
    Conflict(lambda job: job.model.attention_backend == "flex_attention",
        "model.attention_backend", "has no backward pass on the CPU, and {device}",
        ("auto", "eager"), on_cpu=True),
    Conflict(lambda job: job.model.type == "huggingface"
        and job.model.attention_backend == "flash_attention_2",
        "model.attention_backend", "runs on GPUs only, and {device}", ("auto", "eager"),
        on_cpu=True),
    Conflict(lambda job: job.data.packing.isolate and job.model.attention_backend == "sdpa_flash"
        and job.parallel.device != "cpu",
        "data.packing.isolate", "needs an attention mask, which sdpa_flash does not support on "
        "GPUs", ("false",), ("model.attention_backend", "parallel.device"), "Or set "
        "model.attention_backend to auto, flex, varlen or flash_attention_2."),
    *(Conflict(
        lambda job, path=path: job.model.attention_backend == "sdpa_flash"
        and job.parallel.device != "cpu" and job[path]
        and job[path] < job.batch.sequence_length,
        "model.attention_backend", f"does not support masks on GPUs, but {path} = {{{path}}} needs "
        "one for sequences of {batch.sequence_length} tokens",
        ("auto", "flex", "varlen", "flash_attention_2"),
        (path, "parallel.device"))
      for path in ("model.sliding_window", "model.attention_chunk")),
    # The adapter.
    Conflict(lambda job: job.adapter.quantize and job.precision.float8,
        "adapter.quantize", "cannot be combined with float8: quantized weights are dequantized to "
        "bf16 for matrix products", ("null",), ("precision.float8",), "Or set precision.float8 to "
        "null."),
    *(Conflict(
        lambda job, path=path: job.adapter.quantize.noise and job[path] in (True, "graph"),
        path, "cannot trace quantization noise: its RNG is outside the graph", (valid,),
        ("adapter.quantize.noise",), "Or set adapter.quantize.noise to null.")
        for path, valid in (("compile.fullgraph", "false"), ("compile.scope", "block"))),
    Conflict(lambda job: job.model.embedding_noise and job["compile.scope"] == "graph",
        "compile.scope", "graph cannot trace embedding noise: its RNG is outside the graph",
        ("block", "model"), ("model.embedding_noise",), "Or set model.embedding_noise to 0."),
    Conflict(lambda job: job.adapter.dropout and job.parallel.divides_matrices
        and not job.parallel.sequence_parallel,
        "adapter.dropout", "would drop the same inputs on all tensor-parallel ranks, whose random "
        "numbers are equal without sequence parallelism", ("0",), TENSOR, "Or set "
        "parallel.sequence_parallel to true."),
    Conflict(lambda job: job.adapter.merge and not job.checkpoint.save_frozen,
        "checkpoint.save_frozen", "false omits the base weights from checkpoints, but "
        "adapter.merge changes them: merged updates would be lost", ("true",), ("adapter.merge",)),
    Conflict(lambda job: job.adapter.merge and job.optimizer.type == "schedule_free_adamw",
        "adapter.merge", "replaces weights during the run, but optimizer.type = {optimizer.type} "
        "averages them over the whole run", (), ("optimizer",), "Choose optimizer.type = adamw, "
        "or adapter.type = lora."),
    # Frozen parameters.
    Conflict(lambda job: not job.checkpoint.save_frozen and not job.optimizer.frozen
        and not job.adapter,
        "checkpoint.save_frozen", "false has no effect: no parameter is frozen for the whole run",
        ("true",), ("optimizer.frozen", "adapter")),
    Conflict(lambda job: not job.checkpoint.save_frozen and job.adapter.quantize
        and job.model.type != "transformer",
        "checkpoint.save_frozen", "false quantizes the frozen parameters of model.pretrained "
        "again on resume, which a model of type = {model.type} does not support", ("true",),
        ("adapter.quantize", "model"), "Quantized weights take a quarter to a half of the bytes "
        "of bf16."),
    Conflict(lambda job: not job.checkpoint.save_frozen and not job.model.pretrained,
        "checkpoint.save_frozen", "false omits frozen parameters, which a resume would read from "
        "model.pretrained, but that is null", ("true",), ("model.pretrained",)),
    # Number formats and the optimizer.
    Conflict(lambda job: job.precision.compute == "fp16" and job.parallel.device != "cuda",
        "precision.compute", FP16_ON_CPU, ("bf16", "fp32"), ("parallel.device",), ON_A_GPU),
    Conflict(lambda job: job.precision.tf32,
        "precision.tf32", "has no effect: only GPUs have TF32, and {device}", ("null", "false"),
        on_cpu=True),
    Conflict(lambda job: job.precision.tf32 and job.deterministic,
        "precision.tf32", "true makes the rounding of matrix products depend on how the kernel "
        "splits their sums", ("null", "false"), ("deterministic",)),
    Conflict(lambda job: job.precision.float8 and not job.precision.float8.emulate
        and job.parallel.device != "cuda",
        "precision.float8", "recipe = {precision.float8.recipe} runs on GPUs only", ("null",),
        ("parallel.device",), f"{ON_A_GPU} Or set precision.float8.emulate to true."),
    Conflict(lambda job: job.precision.float8.experts and job.model.type == "huggingface",
        "precision.float8.experts", "applies to the packed experts of model.moe, but transformers "
        "computes the experts of a model of type = huggingface", ("false",), ("model",)),
    Conflict(lambda job: job.precision.float8.experts and job.model.moe.packed
        and job.model.moe.implementation == "loop",
        "model.moe.implementation", "computes expert by expert in bf16, but "
        "precision.float8.experts needs grouped products", ("auto", "grouped"),
        ("precision.float8.experts",)),
    Conflict(lambda job: job.precision.optimizer_state and job.optimizer.type == "import",
        "precision.optimizer_state", "does not apply to {optimizer.target}, which chooses the "
        "dtype of its state itself", ("null",), ("optimizer",)),
    Conflict(lambda job: job.precision.optimizer_state and not job.optimizer.keeps_state,
        "precision.optimizer_state", "has no effect: {optimizer.type} keeps no state between "
        "steps", ("null",), ("optimizer",)),
    Conflict(lambda job: job.precision.optimizer_state and job.optimizer.keeps_state
        and job.optimizer.type != "import" and not job.optimizer.state_formats
        and job.precision.optimizer_state != job.precision.updated,
        "precision.optimizer_state", "optimizer.type = {optimizer.type} keeps its state in the "
        "dtype of the weights it updates, {precision.updated}", ("null",),
        ("optimizer", "precision.params", "precision.master"), "anyprecision_adamw, lion and muon "
        "support other dtypes."),
    Conflict(lambda job: job.optimizer.type == "sgd" and job.optimizer.implementation == "fused"
        and job.precision.params == job.precision.updated == "bf16",
        "optimizer.implementation", "PyTorch's fused SGD does not update bf16 weights on a CPU",
        ("auto", "foreach", "loop"), ("precision.params",), on_cpu=True),
    Conflict(lambda job: job.optimizer.type == "sgd" and job.optimizer.implementation == "fused"
        and (job.parallel.uses_fsdp or job.parallel.divides_matrices),
        "optimizer.implementation", "PyTorch's fused SGD does not support sharded weights",
        ("auto", "foreach", "loop"), ("parallel",)),
    # DeepSpeed.
    Conflict(lambda job: job.parallel.uses_deepspeed and (job.parallel.divides_experts
        or job.parallel.degrees["replicate"] < job.parallel.world_size),
        "parallel.engine", "shards the state of replicas (ZeRO) and does not support other axes "
        "that divide weights or sequences", ("torch",), ("parallel",), "Or make all ranks "
        "replicas: ZeRO shards among them by its stage."),
    Conflict(lambda job: job.parallel.uses_deepspeed
        and job.optimizer.type not in ("adamw", "lion", "sgd"),
        "parallel.engine", "shards weights at arbitrary elements, but optimizer.type = "
        "{optimizer.type} is not elementwise", ("torch",), ("optimizer",), "Or choose "
        "optimizer.type = adamw, lion or sgd."),
    Conflict(lambda job: job.parallel.uses_deepspeed and job.precision.params != "fp32",
        "parallel.engine", "keeps its own fp32 master weights and needs fp32 parameters",
        ("torch",), ("precision.params",), "Or set precision.params to fp32; precision.compute "
        "may be bf16."),
    Conflict(lambda job: job.parallel.uses_deepspeed and job.precision.compute == "fp16",
        "parallel.engine", "uses its own loss scale and ignores precision.loss_scale", ("torch",),
        ("precision.compute",), "Or set precision.compute to bf16."),
    *(Conflict(
        lambda job, path=path: job.parallel.uses_deepspeed and job[path],
        "parallel.engine", why, ("torch",), (path,), f"Or remove {path}.")
        for path, why in DEEPSPEED.items()),
    Conflict(lambda job: job.parallel.uses_deepspeed and job.precision.reduce == "bf16",
        "parallel.engine", "reduces gradients in the dtype of the weights", ("torch",),
        ("precision.reduce",), "Or remove precision.reduce."),
    Conflict(lambda job: job.parallel.uses_deepspeed and job.precision.optimizer_state == "bf16",
        "parallel.engine", "keeps the optimizer state in fp32", ("torch",),
        ("precision.optimizer_state",), "Or remove precision.optimizer_state."),
    *(Conflict(
        lambda job, path=f"tracking.metrics.{name}": job.parallel.uses_deepspeed and job[path],
        f"tracking.metrics.{name}", "cannot be measured: DeepSpeed keeps gradients and weights in "
        "flat buffers", ("[]",), ("parallel.engine",)) for name in NORMS),
    Conflict(lambda job: job.parallel.uses_deepspeed and job.parallel.engine.offload != "none",
        "parallel.engine.offload", ON_HOST, ("none",), on_cpu=True),
    # Replica groups (torchft).
    Conflict(lambda job: job.parallel.torchft and job.parallel.divides_layers,
        "parallel.pipeline", "is not supported with replica groups: their ranks exchange the "
        "state one by one, but pipeline stages gather theirs together", ("1",),
        ("parallel.torchft",)),
    Conflict(lambda job: job.parallel.torchft and job.parallel.uses_deepspeed,
        "parallel.engine", "type = deepspeed reduces and stores gradients itself and cannot leave "
        "this to replica groups", ("torch",), ("parallel.torchft",)),
    Conflict(lambda job: job.parallel.torchft and type(job.seed) is not int,
        "seed", "must be set: each replica group would draw a different seed",
        ("a number, the same in all groups",), ("parallel.torchft",)),
    Conflict(lambda job: job.parallel.torchft.process_group == "nccl"
        and job.parallel.device == "cpu",
        "parallel.torchft.process_group",
        "nccl runs only on GPUs, but the device is cpu", ("gloo",),
        ("parallel.device",)),
    # Sharding.
    Conflict(lambda job: job.parallel.load_weights == "broadcast"
        and not job.model.pretrained,
        "parallel.load_weights", "has no effect: model.pretrained is null, so no weights are read "
        "from files", ("every_rank",), ("model.pretrained",)),
    Conflict(lambda job: job.parallel.backend == "nccl" and job.parallel.sharding.offload,
        "parallel.backend", "cannot reduce gradients that are in host memory",
        ("null", "cpu:gloo,cuda:nccl"), ("parallel.sharding.offload",)),
    Conflict(lambda job: job.parallel.sharding.replicated and job.parallel.sharding.offload,
        "parallel.sharding.replicated", "selects parameters that would stay in host memory: only "
        "sharded weights are copied to the device", ("[]",), ("parallel.sharding.offload",)),
    Conflict(lambda job: job.parallel.sharding.replicated and job.optimizer.type == "import",
        "parallel.sharding.replicated", "mixes whole and sharded parameters, which PyTorch's "
        "optimizers (optimizer.type = import) do not support", ("[]",), ("optimizer",)),
    # Tensor parallelism.
    Conflict(lambda job: job.parallel.loss_parallel and not job.loss.takes_columns
        and not job.loss.from_hidden,
        "parallel.loss_parallel", "loss.type = {loss.type} needs the logits of the whole "
        "vocabulary", ("null", "false"), ("loss",)),
    Conflict(lambda job: job.parallel.loss_parallel and job.model.type == "import",
        "parallel.loss_parallel", "a model of type = {model.type} returns the logits of the whole "
        "vocabulary", ("null",), ("model",)),
    Conflict(lambda job: job.parallel.sequence_parallel
        and job.model.type in ("import", "huggingface"),
        "parallel.sequence_parallel", "is not supported by a model of type = {model.type}, which "
        "does not declare where its sequences can be split", ("false",), ("model",)),
    Conflict(lambda job: job.parallel.sequence_parallel and job.parallel.divides_layers,
        "parallel.sequence_parallel", "is not supported with a pipeline, whose stages send whole "
        "sequences", ("false",), ("parallel.pipeline",)),
    Conflict(lambda job: job.parallel.async_tensor_parallel and job.parallel.divides_matrices
        and not job.compile,
        ASYNC, "has no effect: only compiled code fuses communication with matrix products, and "
        "compile is null", ("false",), ("compile",), "Or set compile to {}."),
    Conflict(lambda job: job.parallel.async_tensor_parallel and job.parallel.divides_matrices
        and job.compile and job.compile.backend != "inductor",
        ASYNC, "has no effect: only backend = inductor fuses communication with matrix products, "
        "not {compile.backend}", ("false",), ("compile.backend",)),
    Conflict(lambda job: job.parallel.async_tensor_parallel and job.parallel.divides_matrices
        and not job.parallel.sequence_parallel,
        ASYNC, "has no effect: it fuses matrix products with the all-gathers and reduce-scatters "
        "of sequence parallelism, which is off", ("false",), ("parallel.sequence_parallel",),
        "Or set parallel.sequence_parallel to true."),
    Conflict(lambda job: job.parallel.async_tensor_parallel and job.parallel.divides_matrices,
        ASYNC, "needs GPUs with peer-to-peer memory access, and {device}", ("false",),
        on_cpu=True),
    Conflict(lambda job: job.model.attention_dropout and job.parallel.divides_matrices
        and not job.parallel.sequence_parallel,
        "model.attention_dropout", "would drop the same attention weights on all tensor-parallel "
        "ranks, whose random numbers are equal without sequence parallelism", ("0",), TENSOR,
        "Or set parallel.sequence_parallel to true."),
    # Context parallelism.
    Conflict(lambda job: job.model.moe.capacity_factor and job.parallel.divides_sequences,
        "model.moe.capacity_factor", "drops the last choices of whole sequences, but each rank "
        "has only a part of each sequence", ("null",), CONTEXT_PATHS),
    Conflict(lambda job: job.model.attention_dropout and job.parallel.degrees["ring"] > 1,
        "model.attention_dropout", "is not supported by ring attention, whose backward pass "
        "cannot redraw the dropped weights", ("0",), ("parallel.ring",), "Or divide sequences by "
        "parallel.ulysses."),
    Conflict(lambda job: job.model.attention_sinks and job.parallel.degrees["ring"] > 1,
        "parallel.ring", "merges blocks of attention by their log-sum-exp and does not support "
        "attention sinks", ("1",), ("model.attention_sinks",), "Or divide sequences by "
        "parallel.ulysses."),
    Conflict(lambda job: job.model.attention_backend == "flex" and job.parallel.degrees["ring"] > 1,
        "model.attention_backend", "{model.attention_backend} does not return the log-sum-exp "
        "that ring attention needs to merge blocks", ("auto", "sdpa", "varlen"),
        ("parallel.ring",), "Or divide sequences by parallel.ulysses."),
    Conflict(lambda job: job.model.attention_backend in ("flash_attention_2", "flash_attention_3")
        and job.model.attention_soft_cap and job.parallel.degrees["ring"] > 1,
        "model.attention_backend", "does not support an attention soft cap in ring attention",
        ("auto", "eager"), ("parallel.ring", "model.attention_soft_cap"), "Or divide sequences by "
        "parallel.ulysses."),
    Conflict(lambda job: job.compile.scope == "model" and job.parallel.divides_sequences,
        "compile.scope", "does not support context parallelism, which communicates in the middle "
        "of the graph", ("block",), CONTEXT_PATHS),
    Conflict(lambda job: job.compile.fullgraph and job.parallel.divides_sequences,
        "compile.fullgraph", "would fail: communication between ranks breaks the graph",
        ("false",), CONTEXT_PATHS),
    # Experts.
    Conflict(lambda job: job.parallel.divides_experts and job.model.type == "transformer"
        and not job.model.moe,
        "parallel.expert", "has no effect: the model has no experts", ("1",), ("model.moe",),
        "Or set model.moe."),
    Conflict(lambda job: job.parallel.divides_experts and job.model.moe.packed is False,
        "parallel.expert", "supports packed experts only", ("1",), ("model.moe.packed",), "Or "
        "store experts as one tensor: model.moe.packed = true."),
    Conflict(lambda job: job.model.moe.bias and job.parallel.expert_tensor > 1,
        "parallel.expert_tensor", "supports experts without biases only", ("1",),
        ("model.moe.bias",)),
    Conflict(lambda job: job.parallel.divides_experts and type(job.parallel.reshard) is int,
        "parallel.reshard", "a number of ranks ({parallel.reshard}) is not supported with experts "
        "that ranks divide, which are sharded along axes of their own", ("true", "false", "null"),
        ("parallel.expert",)),
    Conflict(lambda job: job.compile.fullgraph and job.parallel.divides_experts,
        "compile.fullgraph", "would fail: the number of tokens that arrive from other ranks is "
        "known only at run time", ("false",), ("parallel.expert",)),
    Conflict(lambda job: job.parallel.dispatch.type == "deepep",
        "parallel.dispatch", "needs GPUs, and {device}", ("all_to_all",), on_cpu=True),
    Conflict(lambda job: job.parallel.dispatch.type == "deepep" and job.model.type == "huggingface",
        "parallel.dispatch", "supports experts of model.moe only, not those of a model of type = "
        "huggingface", ("all_to_all",), ("model",)),
    Conflict(lambda job: job.parallel.dispatch.type == "deepep" and job.precision.compute != "bf16",
        "parallel.dispatch", "sends bf16 only, but the model computes in {precision.compute}",
        ("all_to_all",), ("precision.compute",), "Or set precision.compute to bf16."),
    Conflict(lambda job: job.parallel.dispatch.type == "deepep" and job.model.moe.gradient_scale,
        "parallel.dispatch", "sends each token once per rank, so that the gradients of its "
        "experts there cannot be scaled separately", ("all_to_all",),
        ("model.moe.gradient_scale",)),
    # Pipeline parallelism.
    Conflict(lambda job: job.parallel.divides_layers and job.parallel.pipelining.transfer == "fp32"
        and job.precision.params == "bf16",
        "parallel.pipelining.transfer", "has no effect: the residual stream is in bf16",
        ("null", "bf16"), ("precision.params",)),
    Conflict(lambda job: job.compile.scope in ("model", "graph") and job.parallel.divides_layers,
        "compile.scope", "compiles a whole model, but each pipeline rank has only its stages",
        ("block",), ("parallel.pipeline",)),
    Conflict(lambda job: job.memory.activation_checkpointing.type == "operators"
        and job.parallel.splits_backward and not job.compile,
        CHECKPOINTING, "type = operators saves results for one backward pass, but schedule = "
        "{parallel.pipelining.schedule} runs two: one for the gradients of inputs, one for those "
        "of weights", ("full", "parts", "null"), (SCHEDULE, "compile"), "Or set compile to '{}': "
        "compiled layers support both passes."),
    Conflict(lambda job: job.memory.activation_checkpointing.reentrant
        and job.parallel.splits_backward,
        f"{CHECKPOINTING}.reentrant", "does not support schedule = "
        "{parallel.pipelining.schedule}, which computes gradients of inputs and of weights "
        "separately", ("false",), (SCHEDULE,)),
    Conflict(lambda job: job.memory.activation_offload and job.parallel.divides_layers,
        OFFLOAD, "offloads the activations of one forward pass, but a pipeline stage has several "
        "micro-batches in flight", ("null",), ("parallel.pipeline",)),
    Conflict(lambda job: job.model.tie_embeddings and job.parallel.divides_layers
        and job.parallel.pipelining.known.is_v and (job.parallel.uses_fsdp
        or job.parallel.divides_matrices),
        "model.tie_embeddings", "would shard one matrix twice: schedule = "
        "{parallel.pipelining.schedule} puts the first and the last stage on the same rank",
        ("false",), (SCHEDULE, "parallel"), "Or choose a schedule with these stages on different "
        "ranks."),
    # Memory.
    *(Conflict(lambda job, path=path: job[path], path, ON_HOST, (valid,), on_cpu=True)
        for path, valid in ((OFFLOAD, "null"), ("parallel.sharding.offload", "false"))),
    Conflict(lambda job: job.memory.empty_cache.unit != "never",
        "memory.empty_cache", "has no effect: the model runs on the CPU, where PyTorch caches no "
        "memory", ("never",), on_cpu=True),
    Conflict(lambda job: job.memory.activation_checkpointing.reentrant and job.compile,
        f"{CHECKPOINTING}.reentrant", "torch.compile cannot trace reentrant checkpointing and "
        "would skip the recomputation", ("false",), ("compile.scope",)),
    Conflict(lambda job: job.memory.activation_offload
        and job.memory.activation_checkpointing.type == "operators",
        OFFLOAD, "cannot move the results that type = operators saves, so its memory limit would "
        "be exceeded", ("null",), (CHECKPOINTING,), "Or recompute whole layers or parts of them: "
        "type = full or parts."),
    Conflict(lambda job: job.memory.activation_offload and job.compile.scope in ("model", "graph"),
        OFFLOAD, "works between compiled layers, not inside one compiled model", ("null",),
        ("compile.scope",), "Or set compile.scope to block."),
    Conflict(lambda job: saves(job, "attention") and job.model.attention_dropout,
        f"{CHECKPOINTING}.save", "attention cannot be saved with dropout, which needs its random "
        "numbers again", ("[matmul]",), ("model.attention_dropout",)),
    Conflict(lambda job: saves(job, "attention") and not job.model.attention_dropout
        and job.model.attention_backend in ("eager", "sdpa_math"),
        f"{CHECKPOINTING}.save", "attention is not an operator that can be saved: "
        "{model.attention_backend} composes it of matrix products", ("[matmul]",),
        ("model.attention_backend",)),
    Conflict(lambda job: saves(job, "attention") and not job.model.attention_dropout
        and job.model.attention_backend == "flash_attention_4",
        f"{CHECKPOINTING}.save", "attention is not an operator that can be saved: flash-attn-4 is "
        "not registered with PyTorch", ("[matmul]",), ("model.attention_backend",)),
    Conflict(lambda job: saves(job, "exchange") and job.parallel.expert == 1,
        f"{CHECKPOINTING}.save", "exchange has no effect: with parallel.expert = 1 each rank has "
        "all experts", ("[matmul]", "[matmul, attention]"), ("parallel.expert",)),
    # Compiled code.
    Conflict(lambda job: job.compile.mode == "reduce-overhead",
        "compile.mode", "has no effect: reduce-overhead records CUDA graphs, and {device}",
        ("null", "default"), on_cpu=True),
    Conflict(lambda job: job.compile.scope == "graph"
        and job.loss.type == "chunked_cross_entropy",
        "compile.scope", "scope = graph does not support loss.type = {loss.type}, which computes "
        "its gradients in the forward pass", ("block", "model"), ("loss",), "Or set loss.type to "
        "cross_entropy."),
    Conflict(lambda job: job.compile.scope == "graph" and job.model.moe.packed is False,
        "compile.scope", "scope = graph does not support experts that are not packed: their "
        "shapes depend on the data", ("block", "model"), ("model.moe.packed",), "Or set "
        "model.moe.packed to true."),
    Conflict(lambda job: job.compile.scope == "graph" and job.model.moe.capacity_factor,
        "compile.scope", "scope = graph does not support a capacity of experts, which depends on "
        "the data", ("block", "model"), ("model.moe.capacity_factor",), "Or set "
        "model.moe.capacity_factor to null."),
    Conflict(lambda job: job.compile.scope == "graph" and (job.parallel.uses_fsdp
        or job.parallel.divides_layers or job.parallel.divides_sequences
        or job.parallel.divides_experts),
        "compile.scope", "scope = graph does not support FSDP2, pipelines, context parallelism or "
        "expert parallelism", ("block",), ("parallel",), "It supports only replicas, or "
        "only parallel.tensor."),
    Conflict(lambda job: job.compile.backend == "eager" and job.memory.activation_checkpointing
        and (job.model.dropout or job.model.attention_dropout),
        "compile.backend", OTHER_MASK, ("inductor", "aot_eager"), (CHECKPOINTING,
        "model.dropout", "model.attention_dropout")),
    Conflict(lambda job: job.deterministic
        and job.compile.mode in ("max-autotune", "max-autotune-no-cudagraphs"),
        "compile.mode", FASTEST, ("null", "default", "reduce-overhead"), ("deterministic",)),
    *(Conflict(
        lambda job, name=name: job.deterministic and job.compile
        and name in switched_on(job.compile.options.dump()),
        f"compile.options.{name}", FASTEST, ("false",), ("deterministic",))
        for name in TIMING_OPTIONS),
    # The run.
    Conflict(lambda job: job.resilience.gpu_health,
        "resilience.gpu_health", "monitors GPUs, and {device}", ("null",), on_cpu=True),
    Conflict(lambda job: job.tracking.metrics.step_time == "device",
        "tracking.metrics.step_time", "measures with CUDA events, and {device}", ("host", "none"),
        on_cpu=True),
    Conflict(lambda job: job.checkpoint.mode == "async_pinned",
        "checkpoint.mode", "pins memory for copies from a GPU, and {device}", ("sync", "async"),
        on_cpu=True),
    Conflict(lambda job: job.profiling.snapshot,
        "profiling.snapshot", SNAPSHOT_ON_CPU, ("false",), on_cpu=True),
    Conflict(lambda job: job.schedule.monitor and not job.evaluation,
        "schedule.monitor", "is never computed: evaluation is null", (), ("evaluation",), "Add an "
        "evaluation, or choose a schedule without a metric."),
    Conflict(lambda job: job.schedule.monitor
        and job.evaluation.every.unit in ("last_step", "never"),
        "evaluation.every", "the schedule reads a metric during the run, but no evaluation takes "
        "place before the last step", ("100 steps",), ("schedule.monitor",)),
    Conflict(lambda job: job.evaluation and job.data.held_out == 0 and not job.data.validation,
        "data.held_out", "0 leaves no text to evaluate on", hint="Add data.validation, or set "
        "evaluation to null."),
)  # fmt: skip
