"""Settings that do not go together: one table, which `check` evaluates and the docs print."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from setpoint.config import Problem, is_mapping
from setpoint.memory.config import SAVE
from setpoint.model.config import HuggingFaceModel
from setpoint.optim.config import SGD, ImportedOptimizer
from setpoint.precision.config import FP16_ON_CPU, ON_A_GPU
from setpoint.profile.config import SNAPSHOT_ON_CPU
from setpoint.track.config import NORMS
from setpoint.train.rules.conflict import NO_GPU, Conflict

OPTIONS = (
    "max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning",
    "triton.autotune_pointwise", "triton.autotune_cublasLt", "triton.multi_kernel",
)  # fmt: skip
"""Options of inductor that time kernels and take the fastest."""


def conflicts(job: Any) -> Iterator[Problem]:
    """Find settings that do not go together, whatever the machine is.

    Where a setting does not go with several axes of the ranks, and one value would put that right,
    it is about the first of them in the table.
    """
    on_cpu, said = job.parallel.device == "cpu", set[tuple[str, tuple[str, ...]]]()
    for each in CONFLICTS:
        if (on_cpu or not each.on_cpu) and each.applies(job):
            if each.is_about_ranks:
                if (each.path, each.valid) in said:
                    continue
                said.add((each.path, each.valid))
            yield each.problem(job, "the device is cpu")


def wants_gpu(job: Any) -> bool:
    """Say whether `device = auto` must find a GPU."""
    return job.parallel.device == "auto" and any(e.on_cpu and e.applies(job) for e in CONFLICTS)


def conflicts_without_gpu(job: Any) -> Iterator[Problem]:
    """Find what has no effect or fails on this machine, as it has no GPU."""
    from torch import cuda

    if not cuda.is_available():
        for each in CONFLICTS:
            if each.on_cpu and each.applies(job):
                yield each.problem(job, "PyTorch sees no GPU on this machine")


def _times_kernels(job: Any, option: str) -> bool:
    return job.compile is not None and option in _switched_on(job.compile.options.dump())


def _switched_on(options: Any, before: str = "") -> Iterator[str]:
    """The options that are not false, by dotted names."""
    for key, value in options.items():
        if is_mapping(value):
            yield from _switched_on(value, f"{before}{key}.")
        elif value:
            yield before + key


CHECKPOINTING = "memory.activation_checkpointing"
OFFLOAD = "memory.activation_offload = set"
ATTENTION = f"{CHECKPOINTING}.save = attention"
IDLE = "has no effect: {optimizer.type} keeps no state between steps"
FASTEST = "takes the kernel that was fastest, which is another one in another run"
OTHER_MASK = (
    "eager gives wrong gradients with activation checkpointing and dropout: what is recomputed "
    "drops other activations than the forward pass did"
)  # measured: off by half to all of their size, and no error


def _has_own_save(job: Any) -> bool:
    return set(getattr(job.memory.activation_checkpointing, "save", SAVE)) != set(SAVE)


GRAPH = "compile.scope = graph"
SHARDED = "parallel.shard that divides weights"


def _is_sharded(job: Any) -> bool:
    return job.parallel.uses_fsdp


IN_CONTEXT = "parallel.ring that divides sequences, or parallel.ulysses"
BOTH = ("parallel.ring", "parallel.ulysses")


def _divides_sequences(job: Any) -> bool:
    return job.parallel.context > 1


def _has_ring(job: Any) -> bool:
    return job.parallel.degrees["ring"] > 1


def _divides_experts(job: Any) -> bool:
    return job.parallel.divides_experts


DIVIDED = "parallel that divides weights"
TENSOR = "parallel.tensor that divides matrices"


ASYNC = "parallel.async_tensor_parallel = true"


def _is_divided(job: Any) -> bool:
    return _is_sharded(job) or _has_tensor(job)


def _divides_more_than_matrices(job: Any) -> bool:
    parallel = job.parallel
    divides_layers = parallel.degrees["pipeline"] > 1 or parallel.uses_fsdp
    return divides_layers or parallel.divides_experts or parallel.context > 1


def _has_tensor(job: Any) -> bool:
    return job.parallel.degrees["tensor"] > 1


PIPELINE = "parallel.pipeline that is more than 1"
SPLIT = "parallel.pipelining.schedule = interleaved_zero_bubble or zbv_zero_bubble or dual_pipe_v"
V_SHAPED = "parallel.pipelining.schedule = zbv_zero_bubble or dual_pipe_v"


def _is_cut(job: Any) -> bool:
    return job.parallel.degrees["pipeline"] > 1


ZERO = "parallel.engine = deepspeed"
BY_ELEMENT = ("adamw", "lion", "sgd")
"""Optimizers that update each element by itself, and keep no more than that of it."""


def _uses_deepspeed(job: Any) -> bool:
    return job.parallel.uses_deepspeed


def _divides_by_axes(job: Any) -> bool:
    parallel = job.parallel
    by_axes = any(n > 1 for axis, n in parallel.degrees.items() if axis != "replicate")
    return _uses_deepspeed(job) and (by_axes or parallel.divides_experts)


def _has_other_optimizer(job: Any) -> bool:
    return _uses_deepspeed(job) and type(job.optimizer).__setpoint__.tag not in BY_ELEMENT


def _has_other_weights(job: Any) -> bool:
    return _uses_deepspeed(job) and job.precision.params != "fp32"


def _has_offload(job: Any) -> bool:
    return _uses_deepspeed(job) and job.parallel.engine.offload != "none"


def _has_no_choice(job: Any) -> bool:
    optimizer = job.optimizer
    if isinstance(optimizer, ImportedOptimizer) or not optimizer.keeps_state:
        return False
    return not optimizer.state_formats and job.precision.optimizer_state != job.precision.updated


CONFLICTS = (
    Conflict(
        "batch.sequence_length that is longer", ("model.max_sequence_length that is shorter",),
        "{batch.sequence_length} tokens do not fit a model that takes {model.max_sequence_length}",
        ("{model.max_sequence_length}",),
        where=lambda job: job.batch.sequence_length > job.model.max_sequence_length),
    Conflict(
        "loss that takes hidden states", ("model = import",),
        "type = {loss.type} needs hidden states, and a model of type = {model.type} gives logits "
        "only", ("cross_entropy",),
        where=lambda job: type(job.loss).from_hidden),
    Conflict(
        "loss that cannot cap logits", ("model.logit_soft_cap = set",),
        "type = {loss.type} cannot cap logits, and the model caps them at {model.logit_soft_cap:g}",
        ("chunked_cross_entropy", "cross_entropy"),
        where=lambda job: not type(job.loss).soft_caps),
    Conflict(
        "loss = liger_cross_entropy", ("parallel.device = cpu",),
        "type = liger_cross_entropy needs a GPU: its kernels are written in Triton",
        ("chunked_cross_entropy",)),
    Conflict(
        "loss = liger_cross_entropy", (SPLIT,),
        "gives its gradients once, and schedule = {parallel.pipelining.schedule} asks for those of "
        "inputs and of weights apart", ("chunked_cross_entropy", "cross_entropy"), where=_is_cut),
    Conflict(
        "precision.compute = fp16", ("parallel.device = cpu or auto",),
        FP16_ON_CPU, ("bf16", "fp32"), hint=ON_A_GPU),
    Conflict(
        "precision.tf32 = true", (NO_GPU,), "has no effect: TF32 is for GPUs, and {device}",
        ("null", "false")),
    Conflict(
        "precision.tf32 = true", ("deterministic = true",),
        "rounds products, whose sums depend on how a kernel divides them", ("null", "false")),
    Conflict(
        "precision.float8 = set", ("parallel.device = cpu or auto",),
        "has kernels for GPUs alone: recipe = {precision.float8.recipe}", ("null",),
        where=lambda job: not job.precision.float8.emulate,
        hint=f"{ON_A_GPU} Or set precision.float8.emulate to true."),
    Conflict(
        "precision.optimizer_state = set", ("optimizer = import",),
        "cannot be given for {optimizer.target}, which chooses the dtype of its state", ("null",)),
    Conflict(
        "precision.optimizer_state = set", ("optimizer that keeps no state",), IDLE, ("null",),
        where=lambda job: not job.optimizer.keeps_state),
    Conflict(
        "precision.optimizer_state = set",
        ("optimizer that has no dtype for its state", "precision.params that is another dtype",
         "precision.master that is another dtype"),
        "{optimizer.type} keeps its state in the format of the weights that it updates, "
        "{precision.updated}", ("null",),
        where=_has_no_choice, hint="Another format is for anyprecision_adamw, lion and muon."),
    Conflict(
        "optimizer.implementation = fused", ("precision.params = bf16", NO_GPU),
        "PyTorch's fused SGD does not update bf16 weights on a CPU", ("auto", "foreach", "loop"),
        where=lambda job: isinstance(job.optimizer, SGD) and job.precision.updated == "bf16"),
    Conflict(
        "optimizer.implementation = fused", (DIVIDED,),
        "PyTorch's fused SGD does not update divided weights", ("auto", "foreach", "loop"),
        where=lambda job: isinstance(job.optimizer, SGD) and _is_divided(job)),
    Conflict(
        "parallel.sharding.offload = true", (NO_GPU,),
        "has no effect: the model is computed on the CPU, whose memory is the host's already",
        ("false",)),
    Conflict(
        ZERO, ("parallel that divides weights",),
        "divides what replicas would each hold, and other axes divide weights and sequences, too",
        ("torch",), where=_divides_by_axes,
        hint="Or let all ranks be replicas: ZeRO divides among them by its stage."),
    Conflict(
        ZERO, ("optimizer that needs whole weights",),
        "gives the optimizer runs of elements that are cut anywhere, and type = {optimizer.type} "
        "is not one of those that update each element by itself", ("torch",),
        where=_has_other_optimizer, hint="Or choose optimizer.type = adamw, lion or sgd."),
    Conflict(
        ZERO, ("optimizer.clip_value = set",),
        "clips gradients by their norm", ("torch",), where=_uses_deepspeed,
        hint="Or set optimizer.clip_norm."),
    Conflict(
        ZERO, ("precision.params = bf16 or fp16",),
        "updates fp32 weights of its own, and precision.master says whether there are any",
        ("torch",), where=_has_other_weights,
        hint="Or set precision.params to fp32; precision.compute may be bf16."),
    Conflict(
        ZERO, ("precision.compute = fp16",),
        "has a loss scale of its own, and precision.loss_scale has no part in it", ("torch",),
        where=_uses_deepspeed, hint="Or set precision.compute to bf16."),
    Conflict(
        ZERO, ("precision.reduce = set",),
        "sums gradients in the dtype of the weights", ("torch",), where=_uses_deepspeed,
        hint="Or set precision.reduce to null."),
    Conflict(
        ZERO, ("precision.float8 = set",),
        "divides weights that are stored in fp32", ("torch",), where=_uses_deepspeed),
    Conflict(
        ZERO, ("precision.optimizer_state = set",),
        "keeps the optimizer state in fp32", ("torch",), where=_uses_deepspeed,
        hint="Or set precision.optimizer_state to null."),
    Conflict(
        ZERO, ("compile = set",),
        "works between modules, where compiled graphs would end", ("torch",),
        where=_uses_deepspeed, hint="Or set compile to null."),
    Conflict(
        ZERO, ("model.moe = set",),
        "expects a gradient of each weight on each rank, and experts without tokens have none",
        ("torch",), where=_uses_deepspeed),
    Conflict(
        ZERO, ("resilience.spike = set",),
        "clips and updates in one call, before the loss of all ranks is known", ("torch",),
        where=_uses_deepspeed, hint="Or set resilience.spike to null."),
    Conflict(
        ZERO, (OFFLOAD,),
        "frees weights that saved activations refer to", ("torch",), where=_uses_deepspeed,
        hint="Or set memory.activation_offload to null."),
    Conflict(
        ZERO, ("memory.optimizer_offload = set",),
        "moves the optimizer state itself: parallel.engine.offload", ("torch",),
        where=_uses_deepspeed, hint="Or set memory.optimizer_offload to null."),
    *(Conflict(
        f"tracking.metrics.{name} = set", (ZERO,),
        "cannot be measured: DeepSpeed holds gradients and weights in a form of its own", ("[]",))
        for name in NORMS),
    Conflict(
        "tracking.metrics.step_time = device", (NO_GPU,),
        "measures with CUDA events, and {device}", ("host", "none")),
    Conflict(
        ZERO, ("optimizer.frozen_spans = set",),
        "updates all weights together, and cannot leave some out for a while", ("torch",),
        where=_uses_deepspeed),
    Conflict(
        ZERO, ("adapter = set",),
        "divides all weights of the model alike, and an adapter freezes most", ("torch",),
        where=_uses_deepspeed),
    Conflict(
        "parallel.engine.offload = optimizer or all", (NO_GPU,),
        "has no effect: the model is computed on the CPU, whose memory is the host's already",
        ("none",), where=_has_offload),
    Conflict(
        "parallel.init_device = cpu", (NO_GPU,),
        "has no effect: the model is computed on the CPU, where weights begin", ("device",)),
    Conflict(
        "parallel.read_weights = rank_0_broadcasts", ("model.pretrained = null",),
        "has no effect: no weights are read from files", ("every_rank",)),
    Conflict(
        "parallel.backend = nccl", ("parallel.sharding.offload = true",),
        "cannot sum what lies in the host's memory", ("null", "cpu:gloo,cuda:nccl")),
    Conflict(
        "parallel.sharding.replicated = set", ("parallel.sharding.offload = true",),
        "stay beside the sharded weights, in the host's memory, and are not copied to the device",
        ("[]",)),
    Conflict(
        "parallel.sharding.replicated = set", ("optimizer = import",),
        "leave PyTorch's optimizers whole parameters beside sharded ones, which they do not take",
        ("[]",)),
    Conflict(
        "memory.optimizer_offload = set", ("parallel.sharding.offload = true",),
        "has no effect: the optimizer state lies in the host's memory beside the weights",
        ("null",)),
    Conflict(
        "loss that needs the whole output matrix", (TENSOR,),
        "type = {loss.type} multiplies with the whole output matrix, of which each rank holds a "
        "part", ("chunked_cross_entropy", "cross_entropy"),
        where=lambda job: _has_tensor(job) and type(job.loss).from_hidden
        and not type(job.loss).takes_columns),
    Conflict(
        "parallel.loss_parallel = true", ("loss that needs all logits",),
        "a loss of type = {loss.type} needs the logits of the whole vocabulary", ("null", "false"),
        where=lambda job: not type(job.loss).takes_columns and not type(job.loss).from_hidden),
    Conflict(
        "parallel.loss_parallel = true", ("model = import",),
        "a model of type = {model.type} gives the logits of the whole vocabulary", ("null",)),
    Conflict(
        "parallel.sequence_parallel = true", ("model = import or huggingface",),
        "a model of type = {model.type} does not say where its sequences can be divided",
        ("false",)),
    Conflict(
        "parallel.sequence_parallel = true", ("parallel.pipeline that divides layers",),
        "is not there between the stages of a pipeline, which hand on whole sequences", ("false",),
        where=lambda job: job.parallel.degrees["pipeline"] > 1),
    Conflict(
        ASYNC, ("compile = null",),
        "has no effect: compiled code fuses messages with products, and nothing is compiled",
        ("false",), where=_has_tensor, hint="Or set compile to {}."),
    Conflict(
        ASYNC, ("compile.backend that is not inductor",),
        "has no effect: inductor fuses messages with products, and the backend is "
        "{compile.backend}", ("false",),
        where=lambda job: _has_tensor(job) and job.compile is not None
        and job.compile.backend != "inductor"),
    Conflict(
        ASYNC, ("parallel.sequence_parallel = false",),
        "has no effect: it fuses the gathers and scatters of sequence parallelism with products",
        ("false",), where=_has_tensor, hint="Or set parallel.sequence_parallel to true."),
    Conflict(
        ASYNC, (NO_GPU,), "needs GPUs that read each other's memory, and {device}", ("false",),
        where=_has_tensor),
    Conflict(
        "model.attention_dropout = set", (TENSOR, "parallel.sequence_parallel = false"),
        "would drop the same weights in the heads of all ranks, which draw the same random numbers "
        "without sequence parallelism", ("0",),
        where=_has_tensor, hint="Or set parallel.sequence_parallel to true."),
    Conflict(
        "model.attention_backend = flex_attention", (NO_GPU,),
        "computes no gradients on a CPU, and {device}", ("auto", "eager")),
    Conflict(
        "model.attention_backend = flash_attention_2", (NO_GPU,),
        "has kernels for GPUs alone, and {device}", ("auto", "eager"),
        where=lambda job: isinstance(job.model, HuggingFaceModel)),
    Conflict(
        "model.moe.capacity_factor = set", (IN_CONTEXT,),
        "drops the last choices of whole sequences, of which each rank has a part", ("null",),
        where=_divides_sequences, also=BOTH),
    Conflict(
        "model.attention_dropout = set", ("parallel.ring that divides sequences",),
        "cannot be drawn again for the keys and values that come round the ring", ("0",),
        where=_has_ring, hint="Or divide sequences by parallel.ulysses."),
    Conflict(
        "model.attention_backend = flex", ("parallel.ring that divides sequences",),
        "{model.attention_backend} does not give what the blocks of a ring are added up by",
        ("auto", "sdpa", "varlen"), where=_has_ring,
        hint="Or divide sequences by parallel.ulysses."),
    Conflict(
        "model.attention_backend = flash_attention_2 or flash_attention_3",
        ("parallel.ring that divides sequences", "model.attention_soft_cap = set"),
        "caps no scores of the blocks of a ring", ("auto", "eager"), where=_has_ring,
        hint="Or divide sequences by parallel.ulysses."),
    Conflict(
        "compile.scope = model", (IN_CONTEXT,),
        "finds the messages between ranks in the middle of its graph", ("block",),
        where=_divides_sequences, also=BOTH),
    Conflict(
        "compile.fullgraph = true", (IN_CONTEXT,),
        "would fail: graphs end at the messages between ranks", ("false",),
        where=_divides_sequences, also=BOTH),
    Conflict(
        "parallel.expert that divides experts", ("model.moe = null",),
        "has nothing to divide: the model has no experts", ("1",),
        where=_divides_experts, hint="Or set model.moe."),
    Conflict(
        "parallel.expert that divides experts", ("model.moe.packed = false",),
        "divides packed experts only", ("1",), where=_divides_experts,
        hint="Or store experts as one tensor: model.moe.packed = true."),
    Conflict(
        "parallel.reshard that is a number", ("parallel.expert that divides experts",),
        "{parallel.reshard} ranks keep weights of layers; experts have ranks of their own",
        ("true", "false", "null"),
        where=lambda job: _divides_experts(job) and type(job.parallel.reshard) is int),
    Conflict(
        "compile.fullgraph = true", ("parallel.expert that divides experts",),
        "compiles no layer whole: how many tokens come from other ranks is known when they come",
        ("false",), where=_divides_experts),
    Conflict(
        "parallel.dispatch = deepep", (NO_GPU,), "needs GPUs, and {device}", ("all_to_all",)),
    Conflict(
        "resilience.gpu_health = set", (NO_GPU,), "looks at GPUs, and {device}", ("null",)),
    Conflict(
        "parallel.dispatch = deepep", ("model = huggingface",),
        "sends the rows of experts of model.moe", ("all_to_all",)),
    Conflict(
        "parallel.dispatch = deepep", ("precision.compute = fp32 or fp16",),
        "sends bf16, and the model computes in {precision.compute}", ("all_to_all",),
        hint="Or set precision.compute to bf16."),
    Conflict(
        "parallel.dispatch = deepep", ("model.moe.gradient_scale = true",),
        "sends each token once to a rank, where gradients of its experts cannot be told apart",
        ("all_to_all",)),
    Conflict(
        "adapter.quantize = set", ("precision.float8 = set",),
        "keeps weights in another form, which products make dense in bf16", ("null",),
        hint="Or set precision.float8 to null."),
    *(Conflict(
        setting, ("adapter.quantize.noise = set",),
        "has no place for the noise of quantized weights, whose generator is outside of graphs",
        (valid,), hint="Or set adapter.quantize.noise to null.")
        for setting, valid in (("compile.fullgraph = true", "false"), (GRAPH, "block"))),
    Conflict(
        "adapter.dropout = set", (TENSOR, "parallel.sequence_parallel = false"),
        "would drop the same inputs in the parts of all ranks, which draw the same random numbers "
        "without sequence parallelism", ("0",),
        where=_has_tensor, hint="Or set parallel.sequence_parallel to true."),
    Conflict(
        "checkpoint.frozen = false", ("adapter.merge = set",),
        "leaves out the base, and merges change it: what was merged would be lost", ("true",)),
    Conflict(
        "adapter.merge = set", ("optimizer = schedule_free_adamw",),
        "replaces weights that type = {optimizer.type} averages over the whole run", ("null",),
        hint="Or choose optimizer.type = adamw."),
    Conflict(
        "parallel.pipelining.transfer = fp32", ("precision.params = bf16",),
        "has no effect: the residual stream is in bf16", ("null", "bf16"), where=_is_cut),
    Conflict(
        "compile.scope = model or graph", (PIPELINE,),
        "compiles a whole model, and each rank has stages of one", ("block",), where=_is_cut),
    Conflict(
        f"{CHECKPOINTING} = operators", (SPLIT, "compile = null"),
        "keeps results for one backward pass, and schedule = {parallel.pipelining.schedule} runs "
        "one for gradients of inputs and one for those of weights", ("full", "parts", "null"),
        where=_is_cut, hint="Or set compile to '{}', which divides it as it compiles layers."),
    Conflict(
        f"{CHECKPOINTING}.reentrant = true", (SPLIT,),
        "cannot compute gradients of inputs apart from those of weights", ("false",),
        where=_is_cut),
    Conflict(
        OFFLOAD, (PIPELINE,),
        "moves what one forward pass keeps, and a stage has several on their way", ("null",),
        where=_is_cut),
    Conflict(
        "model.tie_embeddings = true", (V_SHAPED, DIVIDED),
        "puts one matrix into two stages of a rank, and each would divide it anew",
        ("false",), where=lambda job: _is_cut(job) and _is_divided(job),
        hint="Or choose a schedule whose first and last stages are on different ranks."),
    Conflict(
        OFFLOAD, (NO_GPU,),
        "has no effect: the model is computed on the CPU, whose memory is the host's already",
        ("null",)),
    Conflict(
        "memory.optimizer_offload = set", (NO_GPU,),
        "has no effect: the model is computed on the CPU, whose memory is the host's already",
        ("null",)),
    Conflict(
        "memory.empty_cache that is not never", (NO_GPU,),
        "has no effect: the model is computed on the CPU, whose memory PyTorch does not keep",
        ("never",),
        where=lambda job: job.memory.empty_cache.unit != "never"),
    Conflict(
        f"{CHECKPOINTING}.reentrant = true", ("compile.scope = block or model or graph",),
        "torch.compile cannot look into the older implementation, and would leave out what is "
        "recomputed", ("false",)),
    Conflict(
        OFFLOAD, (f"{CHECKPOINTING} = operators",),
        "cannot move what type = operators keeps, and its limit would not hold", ("null",),
        hint="Or recompute whole layers or parts of them: type = full or parts."),
    Conflict(
        OFFLOAD, ("compile.scope = model or graph",),
        "works between compiled layers, and not within one compiled model", ("null",),
        hint="Or set compile.scope to block."),
    Conflict(
        ATTENTION, ("model.attention_dropout = set",),
        "keeps no attention with dropout, which must draw its random numbers again", ("[matmul]",),
        where=_has_own_save),
    Conflict(
        ATTENTION, ("model.attention_backend = eager or sdpa_math",),
        "finds no attention: {model.attention_backend} composes it of matrix products",
        ("[matmul]",),
        where=lambda job: _has_own_save(job) and not getattr(job.model, "attention_dropout", 0)),
    Conflict(
        ATTENTION, ("model.attention_backend = flash_attention_4",),
        "finds no attention: that of flash-attn-4 is no operator of PyTorch's", ("[matmul]",),
        where=lambda job: _has_own_save(job) and not getattr(job.model, "attention_dropout", 0)),
    Conflict(
        f"{CHECKPOINTING}.save = exchange", ("parallel.expert that divides no experts",),
        "finds no exchange: all experts are on each rank", ("[matmul]", "[matmul, attention]"),
        where=lambda job: _has_own_save(job) and job.parallel.expert == 1),
    Conflict(
        "memory.optimizer_offload = set", ("optimizer.momentum = 0",), IDLE, ("null",),
        where=lambda job: not job.optimizer.keeps_state),
    Conflict(
        "memory.optimizer_offload = set", ("optimizer that keeps no state",), IDLE, ("null",),
        where=lambda job: not (job.optimizer.keeps_state or isinstance(job.optimizer, SGD))),
    Conflict(
        "memory.optimizer_offload = set", ("optimizer that updates parameters together",),
        "updates some parameters at a time, and {optimizer.type} may look at all of them at once",
        ("null",),
        where=lambda job: job.optimizer.keeps_state and not job.optimizer.by_parameter),
    Conflict(
        "compile.mode = reduce-overhead", (NO_GPU,),
        "has no effect: reduce-overhead records graphs of a GPU, and {device}",
        ("null", "default")),
    Conflict(
        GRAPH, ("loss = chunked_cross_entropy or liger_cross_entropy",),
        "a graph cannot hold {loss.type}, which takes its gradients in the forward pass",
        ("block", "model"), hint="Or choose loss.type = linear_cross_entropy or cross_entropy."),
    Conflict(
        GRAPH, ("model.moe.packed = false",),
        "a graph cannot hold experts that are not packed, whose sizes are those of the data",
        ("block", "model"), hint="Or set model.moe.packed to true."),
    Conflict(
        GRAPH, ("model.moe.capacity_factor = set",),
        "a graph cannot hold experts of limited capacity, which looks at the data",
        ("block", "model"), hint="Or set model.moe.capacity_factor to null."),
    Conflict(
        GRAPH, ("parallel that divides more than matrices",),
        "a graph cannot hold what gathers weights, cuts sequences, or divides layers and experts "
        "among ranks", ("block",), where=_divides_more_than_matrices,
        hint="A graph goes together with replicas alone, and with parallel.tensor alone."),
    Conflict(
        "compile.backend = eager", (f"{CHECKPOINTING} = set", "model.dropout = set"),
        OTHER_MASK, ("inductor", "aot_eager")),
    Conflict(
        "compile.backend = eager", (f"{CHECKPOINTING} = set", "model.attention_dropout = set"),
        OTHER_MASK, ("inductor", "aot_eager"),
        where=lambda job: not getattr(job.model, "dropout", 0)),
    Conflict(
        "compile.mode = max-autotune or max-autotune-no-cudagraphs", ("deterministic = true",),
        FASTEST, ("null", "default", "reduce-overhead")),
    *(Conflict(
        f"compile.options.{name} that is true", ("deterministic = true",), FASTEST, ("false",),
        where=lambda job, name=name: _times_kernels(job, name)) for name in OPTIONS),
    Conflict(
        "checkpoint.mode = async_pinned", (NO_GPU,),
        "locks memory for copies from a GPU, and {device}", ("sync", "async")),
    Conflict(
        "profiling.snapshot = true", (NO_GPU,), SNAPSHOT_ON_CPU, ("false",)),
    Conflict(
        "checkpoint.keep_best = false", ("evaluation = null",),
        "has no effect: without an evaluation no checkpoint is the best", hint="Remove it."),
    Conflict(
        "schedule.monitor = set", ("evaluation = null",),
        "is never computed: nothing is evaluated",
        hint="Add an evaluation, or choose a schedule that needs none."),
    Conflict(
        "evaluation.every = last_step or never", ("schedule.monitor = set",),
        "leaves the schedule nothing to act on: there is one evaluation, after the last step",
        ("100 steps",)),
    Conflict(
        "data.packing.isolate = true",
        ("model.attention_backend = sdpa_flash", "parallel.device = cuda or auto"),
        "needs a mask, and sdpa_flash takes none on a GPU", ("false",),
        hint="Or set model.attention_backend to auto, flex, varlen or flash_attention_2."),
    Conflict(
        "model.attention_backend = sdpa_flash",
        ("model.sliding_window = set", "parallel.device = cuda or auto"),
        "takes no mask on a GPU, which a window narrower than the rows needs",
        ("auto", "flex", "varlen", "flash_attention_2"),
        where=lambda job: job.model.sliding_window < job.batch.sequence_length),
    Conflict(
        "data.held_out = 0", ("evaluation = set", "data.validation that is empty"),
        "holds out no text, and there is an evaluation", also=(),
        where=lambda job: not job.data.validation,
        hint="Give data.validation sources of text to evaluate on, or set evaluation = null."),
)  # fmt: skip
