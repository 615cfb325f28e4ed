"""Settings that do not go together: a table of conditions, each with its message.

Conditions and messages read the job through `NullSafe`; the docs print the conditions' source.
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
    """A config in which a field of a null section, or of another variant, is null and false.

    `type` is the tag of a variant, and `job["a.b"]` is `job.a.b`.
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
        # A failed getattr of a config looks for similar names, which takes time.
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
        return iter(())  # of a list that is null


NULL = NullSafe(None)


class Conflict(NamedTuple):
    """A setting that is refused beside others.

    Arguments:
        applies: the condition, of a `NullSafe` job.
        path: the field that is refused.
        message: why; `{section.field}` stands for a value, `{device}` for why the device is a CPU.
        valid: values that would do, with the same placeholders.
        also: the other fields that take part; `parallel`: the axes that divide a copy of the model.
        on_cpu: True if it is refused only on a CPU: with `device = cpu`, and with `auto` where
            PyTorch sees no GPU.
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
        """True if it conflicts only with how ranks divide the work."""
        return bool(self.also) and all(path.startswith("parallel") for path in self.also)

    def problem(self, job: NullSafe, device: str) -> Problem:
        """The finding; `device` stands for `{device}`."""
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
    """The fields that a path is about: of `parallel`, those that divide a copy of the model."""
    parallel = job.parallel
    experts = [name for name in ("expert", "expert_tensor") if getattr(parallel, name) > 1]
    if path == "parallel":
        axes = [axis for axis, n in parallel.degrees.items() if n > 1 and axis != "replicate"]
        return [f"parallel.{axis}" for axis in (*axes, *experts)]
    alone = path == "parallel.expert" and experts == ["expert_tensor"]
    return ["parallel.expert_tensor" if alone else path]


@rule
def conflicts(job: Any) -> Iterator[Problem]:
    """Settings that do not go together: the list above.

    Where a setting does not go with several axes of the ranks, and one value would put that right,
    only the first is reported.
    """
    safe, on_cpu, seen = NullSafe(job), job.parallel.device == "cpu", set[Any]()
    for row in CONFLICTS:
        if (on_cpu or not row.on_cpu) and row.applies(safe):
            if row.is_about_ranks:
                if (row.path, row.valid) in seen:
                    continue
                seen.add((row.path, row.valid))
            yield row.problem(safe, "the device is cpu")


def may_need_gpu(job: Any) -> bool:
    """True if `device = auto` must find a GPU."""
    safe = NullSafe(job)
    return job.parallel.device == "auto" and any(r.on_cpu and r.applies(safe) for r in CONFLICTS)


@rule(needs="torch", when=may_need_gpu)
def conflicts_without_gpu(job: Any) -> Iterator[Problem]:
    """Settings that need a GPU, where there is none."""
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
    """True if activation checkpointing names results to save, and this is one of them."""
    names = job.memory.activation_checkpointing.save
    return name in names and set(names) != set(SAVE)


def switched_on(options: Any, before: str = "") -> Iterator[str]:
    """The options of inductor that are not false, by dotted names."""
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

ON_HOST = "has no effect: the model is computed on the CPU, whose memory is the host's already"
FASTEST = "takes the kernel that was fastest, which is another one in another run"
OTHER_MASK = (
    "eager gives wrong gradients with activation checkpointing and dropout: what is recomputed "
    "drops other activations than the forward pass did"
)  # measured: off by half to all of their size, and no error
TIMING_OPTIONS = (
    "max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning",
    "triton.autotune_pointwise", "triton.autotune_cublasLt", "triton.multi_kernel",
)  # fmt: skip
"""Options of inductor that time kernels and take the fastest."""
# Sections and fields that must be null or empty beside parallel.engine = deepspeed.
DEEPSPEED = {
    "optimizer.clip_value": "clips gradients by their norm: optimizer.clip_norm",
    "optimizer.frozen_spans": "updates all weights together, and cannot leave some out for a while",
    "precision.float8": "divides weights that are stored in fp32",
    "compile": "hooks into modules, which breaks compiled graphs",
    "model.moe": "expects a gradient of each weight on each rank, and experts without tokens have "
    "none",
    "resilience.spike": "clips and updates in one call, before the loss of all ranks is known",
    OFFLOAD: "frees weights that saved activations refer to",
    "adapter": "divides all weights of the model alike, and an adapter freezes most",
}

CONFLICTS = (
    # The model and its loss.
    Conflict(lambda job: job.batch.sequence_length > job.model.max_sequence_length,
        "batch.sequence_length", "{batch.sequence_length} tokens do not fit a model that takes "
        "{model.max_sequence_length}", ("{model.max_sequence_length}",),
        ("model.max_sequence_length",)),
    Conflict(lambda job: job.model.type == "import" and job.loss.from_hidden,
        "loss", "type = {loss.type} needs hidden states, and a model of type = {model.type} gives "
        "logits only", ("cross_entropy",), ("model",)),
    Conflict(lambda job: job.model.logit_soft_cap and not job.loss.soft_caps,
        "loss", "type = {loss.type} cannot cap logits, and the model caps them at "
        "{model.logit_soft_cap:g}", ("chunked_cross_entropy", "cross_entropy"),
        ("model.logit_soft_cap",)),
    Conflict(lambda job: job.parallel.divides_matrices and job.loss.from_hidden
        and not job.loss.takes_columns,
        "loss", "type = {loss.type} multiplies with the whole output matrix, of which each rank "
        "holds a part", ("chunked_cross_entropy", "cross_entropy"), ("parallel.tensor",)),
    Conflict(lambda job: job.model.attention_backend == "flex_attention",
        "model.attention_backend", "computes no gradients on a CPU, and {device}",
        ("auto", "eager"), on_cpu=True),
    Conflict(lambda job: job.model.type == "huggingface"
        and job.model.attention_backend == "flash_attention_2",
        "model.attention_backend", "has kernels for GPUs alone, and {device}", ("auto", "eager"),
        on_cpu=True),
    Conflict(lambda job: job.data.packing.isolate and job.model.attention_backend == "sdpa_flash"
        and job.parallel.device != "cpu",
        "data.packing.isolate", "needs a mask, and sdpa_flash takes none on a GPU", ("false",),
        ("model.attention_backend", "parallel.device"), "Or set model.attention_backend to auto, "
        "flex, varlen or flash_attention_2."),
    Conflict(lambda job: job.model.attention_backend == "sdpa_flash"
        and job.parallel.device != "cpu" and job.model.sliding_window
        and job.model.sliding_window < job.batch.sequence_length,
        "model.attention_backend", "takes no mask on a GPU, which a window narrower than the rows "
        "needs", ("auto", "flex", "varlen", "flash_attention_2"),
        ("model.sliding_window", "parallel.device")),
    # The adapter.
    Conflict(lambda job: job.adapter.quantize and job.precision.float8,
        "adapter.quantize", "stores weights in its own format and dequantizes them to bf16",
        ("null",), ("precision.float8",), "Or set precision.float8 to null."),
    *(Conflict(
        lambda job, path=path: job.adapter.quantize.noise and job[path] in (True, "graph"),
        path, "cannot trace quantization noise: its RNG is outside the graph",
        (valid,), ("adapter.quantize.noise",), "Or set adapter.quantize.noise to null.")
        for path, valid in (("compile.fullgraph", "false"), ("compile.scope", "block"))),
    Conflict(lambda job: job.adapter.dropout and job.parallel.divides_matrices
        and not job.parallel.sequence_parallel,
        "adapter.dropout", "would drop the same inputs in the parts of all ranks, which draw the "
        "same random numbers without sequence parallelism", ("0",), TENSOR, "Or set "
        "parallel.sequence_parallel to true."),
    Conflict(lambda job: job.adapter.merge and not job.checkpoint.save_frozen,
        "checkpoint.save_frozen", "leaves out the base, and merges change it: what was merged "
        "would be lost", ("true",), ("adapter.merge",)),
    Conflict(lambda job: job.adapter.merge and job.optimizer.type == "schedule_free_adamw",
        "adapter.merge", "replaces weights that type = {optimizer.type} averages over the whole "
        "run", (), ("optimizer",), "Choose optimizer.type = adamw, or adapter.type = lora."),
    # Frozen parameters.
    Conflict(lambda job: not job.checkpoint.save_frozen and not job.optimizer.frozen
        and not job.adapter,
        "checkpoint.save_frozen", "false has no effect: no parameter is frozen for the whole run",
        ("true",), ("optimizer.frozen", "adapter")),
    Conflict(lambda job: not job.checkpoint.save_frozen and job.adapter.quantize
        and job.model.type != "transformer",
        "checkpoint.save_frozen", "false quantizes frozen parameters again, from tensors whose "
        "names are known, and a model of type = {model.type} has names of its own", ("true",),
        ("adapter.quantize", "model"),
        "Quantized weights take a quarter of the bytes of bf16, or half of them."),
    Conflict(lambda job: not job.checkpoint.save_frozen and not job.model.pretrained,
        "checkpoint.save_frozen", "false leaves out frozen parameters, which are taken again from "
        "model.pretrained, and that is null", ("true",), ("model.pretrained",)),
    # Number formats and the optimizer.
    Conflict(lambda job: job.precision.compute == "fp16" and job.parallel.device != "cuda",
        "precision.compute", FP16_ON_CPU, ("bf16", "fp32"), ("parallel.device",), ON_A_GPU),
    Conflict(lambda job: job.precision.tf32,
        "precision.tf32", "has no effect: TF32 is for GPUs, and {device}", ("null", "false"),
        on_cpu=True),
    Conflict(lambda job: job.precision.tf32 and job.deterministic,
        "precision.tf32", "rounds products, whose sums depend on how a kernel divides them",
        ("null", "false"), ("deterministic",)),
    Conflict(lambda job: job.precision.float8 and not job.precision.float8.emulate
        and job.parallel.device != "cuda",
        "precision.float8", "has kernels for GPUs alone: recipe = {precision.float8.recipe}",
        ("null",), ("parallel.device",), f"{ON_A_GPU} Or set precision.float8.emulate to true."),
    Conflict(lambda job: job.precision.float8.experts and job.model.type == "huggingface",
        "precision.float8.experts", "multiplies packed experts of model.moe, and transformers "
        "computes those of its models", ("false",), ("model",)),
    Conflict(lambda job: job.precision.float8.experts and job.model.moe.packed
        and job.model.moe.implementation == "loop",
        "model.moe.implementation", "computes expert by expert in bf16, and "
        "precision.float8.experts asks for grouped products", ("auto", "grouped"),
        ("precision.float8.experts",)),
    Conflict(lambda job: job.precision.optimizer_state and job.optimizer.type == "import",
        "precision.optimizer_state", "cannot be given for {optimizer.target}, which chooses the "
        "dtype of its state", ("null",), ("optimizer",)),
    Conflict(lambda job: job.precision.optimizer_state and not job.optimizer.keeps_state,
        "precision.optimizer_state",
        "has no effect: {optimizer.type} keeps no state between steps", ("null",), ("optimizer",)),
    Conflict(lambda job: job.precision.optimizer_state and job.optimizer.keeps_state
        and job.optimizer.type != "import" and not job.optimizer.state_formats
        and job.precision.optimizer_state != job.precision.updated,
        "precision.optimizer_state", "{optimizer.type} keeps its state in the format of the "
        "weights that it updates, {precision.updated}", ("null",),
        ("optimizer", "precision.params", "precision.master"), "Another format is for "
        "anyprecision_adamw, lion and muon."),
    Conflict(lambda job: job.optimizer.type == "sgd" and job.optimizer.implementation == "fused"
        and job.precision.params == job.precision.updated == "bf16",
        "optimizer.implementation", "PyTorch's fused SGD does not update bf16 weights on a CPU",
        ("auto", "foreach", "loop"), ("precision.params",), on_cpu=True),
    Conflict(lambda job: job.optimizer.type == "sgd" and job.optimizer.implementation == "fused"
        and (job.parallel.uses_fsdp or job.parallel.divides_matrices),
        "optimizer.implementation", "PyTorch's fused SGD does not update divided weights",
        ("auto", "foreach", "loop"), ("parallel",)),
    # DeepSpeed.
    Conflict(lambda job: job.parallel.uses_deepspeed and (job.parallel.divides_experts
        or job.parallel.degrees["replicate"] < job.parallel.world_size),
        "parallel.engine", "divides the state of replicas, and goes with no axis that divides "
        "weights or sequences", ("torch",), ("parallel",), "Or let all ranks be replicas: ZeRO "
        "divides among them by its stage."),
    Conflict(lambda job: job.parallel.uses_deepspeed
        and job.optimizer.type not in ("adamw", "lion", "sgd"),
        "parallel.engine", "shards weights at arbitrary elements, and type = "
        "{optimizer.type} is no elementwise optimizer", ("torch",),
        ("optimizer",), "Or choose optimizer.type = adamw, lion or sgd."),
    Conflict(lambda job: job.parallel.uses_deepspeed and job.precision.params != "fp32",
        "parallel.engine", "updates fp32 weights of its own, and precision.master says whether "
        "there are any", ("torch",), ("precision.params",), "Or set precision.params to fp32; "
        "precision.compute may be bf16."),
    Conflict(lambda job: job.parallel.uses_deepspeed and job.precision.compute == "fp16",
        "parallel.engine", "uses its own loss scale and ignores precision.loss_scale",
        ("torch",), ("precision.compute",), "Or set precision.compute to bf16."),
    *(Conflict(
        lambda job, path=path: job.parallel.uses_deepspeed and job[path],
        "parallel.engine", why, ("torch",), (path,), f"Or leave out {path}.")
        for path, why in DEEPSPEED.items()),
    Conflict(lambda job: job.parallel.uses_deepspeed and job.precision.reduce == "bf16",
        "parallel.engine", "sums gradients in the dtype of the weights", ("torch",),
        ("precision.reduce",), "Or leave out precision.reduce."),
    Conflict(lambda job: job.parallel.uses_deepspeed and job.precision.optimizer_state == "bf16",
        "parallel.engine", "keeps the optimizer state in fp32", ("torch",),
        ("precision.optimizer_state",), "Or leave out precision.optimizer_state."),
    *(Conflict(
        lambda job, path=f"tracking.metrics.{name}": job.parallel.uses_deepspeed and job[path],
        f"tracking.metrics.{name}", "cannot be measured: DeepSpeed holds gradients and weights in "
        "a form of its own", ("[]",), ("parallel.engine",)) for name in NORMS),
    Conflict(lambda job: job.parallel.uses_deepspeed and job.parallel.engine.offload != "none",
        "parallel.engine.offload", ON_HOST, ("none",), on_cpu=True),
    # Replica groups (torchft).
    Conflict(lambda job: job.parallel.torchft and job.parallel.divides_layers,
        "parallel.pipeline", "the ranks of a replica group give each other their state, and stages "
        "gather theirs", ("1",), ("parallel.torchft",)),
    Conflict(lambda job: job.parallel.torchft and job.parallel.uses_deepspeed,
        "parallel.engine", "DeepSpeed sums and holds gradients by itself, beside those of replica "
        "groups", ("torch",), ("parallel.torchft",)),
    Conflict(lambda job: job.parallel.torchft and type(job.seed) is not int,
        "seed", "each replica group would draw another one",
        ("a number, the same in all groups",), ("parallel.torchft",)),
    Conflict(lambda job: job.parallel.torchft.process_group == "nccl"
        and job.parallel.device == "cpu",
        "parallel.torchft.process_group", "nccl runs on GPUs, and the device is cpu", ("gloo",),
        ("parallel.device",)),
    # Sharding.
    Conflict(lambda job: job.parallel.load_weights == "broadcast"
        and not job.model.pretrained,
        "parallel.load_weights", "has no effect: no weights are read from files", ("every_rank",),
        ("model.pretrained",)),
    Conflict(lambda job: job.parallel.backend == "nccl" and job.parallel.sharding.offload,
        "parallel.backend", "cannot sum what lies in the host's memory",
        ("null", "cpu:gloo,cuda:nccl"), ("parallel.sharding.offload",)),
    Conflict(lambda job: job.parallel.sharding.replicated and job.parallel.sharding.offload,
        "parallel.sharding.replicated", "stay beside the sharded weights, in the host's memory, "
        "and are not copied to the device", ("[]",), ("parallel.sharding.offload",)),
    Conflict(lambda job: job.parallel.sharding.replicated and job.optimizer.type == "import",
        "parallel.sharding.replicated", "leave PyTorch's optimizers whole parameters beside "
        "sharded ones, which they do not take", ("[]",), ("optimizer",)),
    # Tensor parallelism.
    Conflict(lambda job: job.parallel.loss_parallel and not job.loss.takes_columns
        and not job.loss.from_hidden,
        "parallel.loss_parallel", "a loss of type = {loss.type} needs the logits of the whole "
        "vocabulary", ("null", "false"), ("loss",)),
    Conflict(lambda job: job.parallel.loss_parallel and job.model.type == "import",
        "parallel.loss_parallel", "a model of type = {model.type} gives the logits of the whole "
        "vocabulary", ("null",), ("model",)),
    Conflict(lambda job: job.parallel.sequence_parallel
        and job.model.type in ("import", "huggingface"),
        "parallel.sequence_parallel", "a model of type = {model.type} does not say where its "
        "sequences can be divided", ("false",), ("model",)),
    Conflict(lambda job: job.parallel.sequence_parallel and job.parallel.divides_layers,
        "parallel.sequence_parallel", "is not supported between the stages of a pipeline, which "
        "send whole sequences", ("false",), ("parallel.pipeline",)),
    Conflict(lambda job: job.parallel.async_tensor_parallel and job.parallel.divides_matrices
        and not job.compile,
        ASYNC, "has no effect: compiled code fuses messages with products, and nothing is compiled",
        ("false",), ("compile",), "Or set compile to {}."),
    Conflict(lambda job: job.parallel.async_tensor_parallel and job.parallel.divides_matrices
        and job.compile and job.compile.backend != "inductor",
        ASYNC, "has no effect: inductor fuses messages with products, and the backend is "
        "{compile.backend}", ("false",), ("compile.backend",)),
    Conflict(lambda job: job.parallel.async_tensor_parallel and job.parallel.divides_matrices
        and not job.parallel.sequence_parallel,
        ASYNC, "has no effect: it fuses the gathers and scatters of sequence parallelism with "
        "products", ("false",), ("parallel.sequence_parallel",), "Or set "
        "parallel.sequence_parallel to true."),
    Conflict(lambda job: job.parallel.async_tensor_parallel and job.parallel.divides_matrices,
        ASYNC, "needs GPUs that read each other's memory, and {device}", ("false",), on_cpu=True),
    Conflict(lambda job: job.model.attention_dropout and job.parallel.divides_matrices
        and not job.parallel.sequence_parallel,
        "model.attention_dropout", "would drop the same weights in the heads of all ranks, which "
        "draw the same random numbers without sequence parallelism", ("0",), TENSOR,
        "Or set parallel.sequence_parallel to true."),
    # Parts of sequences.
    Conflict(lambda job: job.model.moe.capacity_factor and job.parallel.divides_sequences,
        "model.moe.capacity_factor", "drops the last choices of whole sequences, of which each "
        "rank has a part", ("null",), CONTEXT_PATHS),
    Conflict(lambda job: job.model.attention_dropout and job.parallel.degrees["ring"] > 1,
        "model.attention_dropout", "cannot be drawn again for the keys and values that come round "
        "the ring", ("0",), ("parallel.ring",), "Or divide sequences by parallel.ulysses."),
    Conflict(lambda job: job.model.attention_sinks and job.parallel.degrees["ring"] > 1,
        "parallel.ring", "adds up blocks of attention, and attention sinks are in none of them",
        ("1",), ("model.attention_sinks",), "Or divide sequences by parallel.ulysses."),
    Conflict(lambda job: job.model.attention_backend == "flex" and job.parallel.degrees["ring"] > 1,
        "model.attention_backend", "{model.attention_backend} does not return the log-sum-exp by "
        "which ring attention adds up blocks", ("auto", "sdpa", "varlen"), ("parallel.ring",),
        "Or divide sequences by parallel.ulysses."),
    Conflict(lambda job: job.model.attention_backend in ("flash_attention_2", "flash_attention_3")
        and job.model.attention_soft_cap and job.parallel.degrees["ring"] > 1,
        "model.attention_backend", "does not cap the scores of the blocks of ring attention",
        ("auto", "eager"), ("parallel.ring", "model.attention_soft_cap"),
        "Or divide sequences by parallel.ulysses."),
    Conflict(lambda job: job.compile.scope == "model" and job.parallel.divides_sequences,
        "compile.scope", "finds the messages between ranks in the middle of its graph", ("block",),
        CONTEXT_PATHS),
    Conflict(lambda job: job.compile.fullgraph and job.parallel.divides_sequences,
        "compile.fullgraph", "would fail: graphs end at the messages between ranks", ("false",),
        CONTEXT_PATHS),
    # Experts.
    Conflict(lambda job: job.parallel.divides_experts and job.model.type == "transformer"
        and not job.model.moe,
        "parallel.expert", "has nothing to divide: the model has no experts", ("1",),
        ("model.moe",), "Or set model.moe."),
    Conflict(lambda job: job.parallel.divides_experts and job.model.moe.packed is False,
        "parallel.expert", "divides packed experts only", ("1",), ("model.moe.packed",),
        "Or store experts as one tensor: model.moe.packed = true."),
    Conflict(lambda job: job.model.moe.bias and job.parallel.expert_tensor > 1,
        "parallel.expert_tensor", "divides experts without biases only", ("1",),
        ("model.moe.bias",)),
    Conflict(lambda job: job.parallel.divides_experts and type(job.parallel.reshard) is int,
        "parallel.reshard", "{parallel.reshard} ranks keep weights of layers; experts have ranks "
        "of their own", ("true", "false", "null"), ("parallel.expert",)),
    Conflict(lambda job: job.compile.fullgraph and job.parallel.divides_experts,
        "compile.fullgraph", "compiles no layer whole: how many tokens come from other ranks is "
        "known when they come", ("false",), ("parallel.expert",)),
    Conflict(lambda job: job.parallel.dispatch.type == "deepep",
        "parallel.dispatch", "needs GPUs, and {device}", ("all_to_all",), on_cpu=True),
    Conflict(lambda job: job.parallel.dispatch.type == "deepep" and job.model.type == "huggingface",
        "parallel.dispatch", "sends the rows of experts of model.moe", ("all_to_all",), ("model",)),
    Conflict(lambda job: job.parallel.dispatch.type == "deepep" and job.precision.compute != "bf16",
        "parallel.dispatch", "sends bf16, and the model computes in {precision.compute}",
        ("all_to_all",), ("precision.compute",), "Or set precision.compute to bf16."),
    Conflict(lambda job: job.parallel.dispatch.type == "deepep" and job.model.moe.gradient_scale,
        "parallel.dispatch", "sends each token once to a rank, where gradients of its experts "
        "cannot be told apart", ("all_to_all",), ("model.moe.gradient_scale",)),
    # Stages of a pipeline.
    Conflict(lambda job: job.parallel.divides_layers and job.parallel.pipelining.transfer == "fp32"
        and job.precision.params == "bf16",
        "parallel.pipelining.transfer", "has no effect: the residual stream is in bf16",
        ("null", "bf16"), ("precision.params",)),
    Conflict(lambda job: job.compile.scope in ("model", "graph") and job.parallel.divides_layers,
        "compile.scope", "compiles a whole model, and each rank has stages of one", ("block",),
        ("parallel.pipeline",)),
    Conflict(lambda job: job.memory.activation_checkpointing.type == "operators"
        and job.parallel.splits_backward and not job.compile,
        CHECKPOINTING, "keeps results for one backward pass, and schedule = "
        "{parallel.pipelining.schedule} runs one for gradients of inputs and one for those of "
        "weights", ("full", "parts", "null"), (SCHEDULE, "compile"), "Or set compile to '{}', "
        "which divides it as it compiles layers."),
    Conflict(lambda job: job.memory.activation_checkpointing.reentrant
        and job.parallel.splits_backward,
        f"{CHECKPOINTING}.reentrant", "cannot compute gradients of inputs apart from those of "
        "weights", ("false",), (SCHEDULE,)),
    Conflict(lambda job: job.memory.activation_offload and job.parallel.divides_layers,
        OFFLOAD, "offloads the activations of one forward pass, and a stage of a pipeline has "
        "several in flight", ("null",), ("parallel.pipeline",)),
    Conflict(lambda job: job.model.tie_embeddings and job.parallel.divides_layers
        and job.parallel.pipelining.known.is_v and (job.parallel.uses_fsdp
        or job.parallel.divides_matrices),
        "model.tie_embeddings", "puts one matrix into two stages of a rank, and each would divide "
        "it anew", ("false",), (SCHEDULE, "parallel"), "Or choose a schedule whose first and last "
        "stages are on different ranks."),
    # Memory.
    *(Conflict(lambda job, path=path: job[path], path, ON_HOST, (valid,), on_cpu=True)
        for path, valid in ((OFFLOAD, "null"), ("parallel.sharding.offload", "false"))),
    Conflict(lambda job: job.memory.empty_cache.unit != "never",
        "memory.empty_cache", "has no effect: the model is computed on the CPU, whose memory "
        "PyTorch does not keep", ("never",), on_cpu=True),
    Conflict(lambda job: job.memory.activation_checkpointing.reentrant and job.compile,
        f"{CHECKPOINTING}.reentrant", "torch.compile cannot look into the older implementation, "
        "and would leave out what is recomputed", ("false",), ("compile.scope",)),
    Conflict(lambda job: job.memory.activation_offload
        and job.memory.activation_checkpointing.type == "operators",
        OFFLOAD, "cannot move what type = operators keeps, and its limit would not hold", ("null",),
        (CHECKPOINTING,), "Or recompute whole layers or parts of them: type = full or parts."),
    Conflict(lambda job: job.memory.activation_offload and job.compile.scope in ("model", "graph"),
        OFFLOAD, "works between compiled layers, and not within one compiled model", ("null",),
        ("compile.scope",), "Or set compile.scope to block."),
    Conflict(lambda job: saves(job, "attention") and job.model.attention_dropout,
        f"{CHECKPOINTING}.save", "keeps no attention with dropout, which must draw its random "
        "numbers again", ("[matmul]",), ("model.attention_dropout",)),
    Conflict(lambda job: saves(job, "attention") and not job.model.attention_dropout
        and job.model.attention_backend in ("eager", "sdpa_math"),
        f"{CHECKPOINTING}.save", "finds no attention: {model.attention_backend} composes it of "
        "matrix products", ("[matmul]",), ("model.attention_backend",)),
    Conflict(lambda job: saves(job, "attention") and not job.model.attention_dropout
        and job.model.attention_backend == "flash_attention_4",
        f"{CHECKPOINTING}.save", "finds no attention: that of flash-attn-4 is no operator of "
        "PyTorch's", ("[matmul]",), ("model.attention_backend",)),
    Conflict(lambda job: saves(job, "exchange") and job.parallel.expert == 1,
        f"{CHECKPOINTING}.save", "finds no exchange: all experts are on each rank",
        ("[matmul]", "[matmul, attention]"), ("parallel.expert",)),
    # Compiled code.
    Conflict(lambda job: job.compile.mode == "reduce-overhead",
        "compile.mode", "has no effect: reduce-overhead records graphs of a GPU, and {device}",
        ("null", "default"), on_cpu=True),
    Conflict(lambda job: job.compile.scope == "graph"
        and job.loss.type == "chunked_cross_entropy",
        "compile.scope", "a graph cannot hold {loss.type}, which takes its gradients in the "
        "forward pass", ("block", "model"), ("loss",), "Or choose loss.type = linear_cross_entropy "
        "or cross_entropy."),
    Conflict(lambda job: job.compile.scope == "graph" and job.model.moe.packed is False,
        "compile.scope", "a graph cannot hold experts that are not packed, whose sizes are those "
        "of the data", ("block", "model"), ("model.moe.packed",),
        "Or set model.moe.packed to true."),
    Conflict(lambda job: job.compile.scope == "graph" and job.model.moe.capacity_factor,
        "compile.scope", "a graph cannot hold experts of limited capacity, which looks at the data",
        ("block", "model"), ("model.moe.capacity_factor",), "Or set model.moe.capacity_factor to "
        "null."),
    Conflict(lambda job: job.compile.scope == "graph" and (job.parallel.uses_fsdp
        or job.parallel.divides_layers or job.parallel.divides_sequences
        or job.parallel.divides_experts),
        "compile.scope", "a graph cannot hold what gathers weights, cuts sequences, or divides "
        "layers and experts among ranks", ("block",), ("parallel",), "A graph goes together with "
        "replicas alone, and with parallel.tensor alone."),
    Conflict(lambda job: job.compile.backend == "eager" and job.memory.activation_checkpointing
        and (job.model.dropout or job.model.attention_dropout),
        "compile.backend", OTHER_MASK, ("inductor", "aot_eager"),
        (CHECKPOINTING, "model.dropout", "model.attention_dropout")),
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
        "resilience.gpu_health", "looks at GPUs, and {device}", ("null",), on_cpu=True),
    Conflict(lambda job: job.tracking.metrics.step_time == "device",
        "tracking.metrics.step_time", "measures with CUDA events, and {device}", ("host", "none"),
        on_cpu=True),
    Conflict(lambda job: job.checkpoint.mode == "async_pinned",
        "checkpoint.mode", "locks memory for copies from a GPU, and {device}", ("sync", "async"),
        on_cpu=True),
    Conflict(lambda job: job.profiling.snapshot,
        "profiling.snapshot", SNAPSHOT_ON_CPU, ("false",), on_cpu=True),
    Conflict(lambda job: job.schedule.monitor and not job.evaluation,
        "schedule.monitor", "is never computed: nothing is evaluated", (), ("evaluation",),
        "Add an evaluation, or choose a schedule that needs none."),
    Conflict(lambda job: job.schedule.monitor
        and job.evaluation.every.unit in ("last_step", "never"),
        "evaluation.every", "leaves the schedule nothing to act on: there is one evaluation, after "
        "the last step", ("100 steps",), ("schedule.monitor",)),
    Conflict(lambda job: job.evaluation and job.data.held_out == 0 and not job.data.validation,
        "data.held_out", "leaves no held-out text to evaluate on",
        hint="Give data.validation sources of text to evaluate on, or set evaluation = null."),
)  # fmt: skip
