"""torchtitan's TOML files, tables of its JobConfig up to release 0.2, and names since release 0.3.

A name such as `llama3_8b` is one of `torchtitan_registry`, alone or as `--config` of a script, with
overriding arguments. Defaults are those of 0.2.2 and 0.3.0, which agree.

Formulas of torchtitan: ranks = replicate * shard * context * tensor * pipeline, and experts are
divided over shards and context. A step has global_batch_size rows, or local_batch_size per data
rank. The rate rises over W steps, is the peak, and falls over the last D = round(T * decay_ratio)
steps, or from the end of the warm-up; the factor of step s, from 0, is (s + 1) / W, then the curve
of (s - (T - D)) / D. Decay applies to all weights.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any, cast

from setpoint.config import FileDocument
from setpoint.config.files.file_document import names_file
from setpoint.config.files.read import read_file
from setpoint.interop.dialect import SAVE_MODES, Conversion, Dialect, Key, alike, keys_of
from setpoint.interop.shell_script import read_arguments
from setpoint.interop.torchtitan_registry import FLAVORS, PRESETS

PRINTED = "it changes what is printed only"
WORKERS = "workers live as long as the run"
DEBUGGED = "it finds faults and changes no number"
IMAGES = "images reach no model of Setpoint: batches hold tokens"
NO_DROPOUT = "its models draw no random numbers in a forward pass"
BALANCED = "stages are balanced by their operations unless parallel.pipelining.split names them"
KERNEL = re.compile("_(flex|varlen)(_attn)?$")
"""The kernel of attention in the name of a flavor, whose mask isolates documents."""
OTHERS = {
    "rl_": "reinforcement learning is not supported",
    "flux_|kimi_|muse_glimmer_.*mm": IMAGES,
    "sft_|transformers_modeling_backend_sft": "its conversations are made by Python code",
}
"""Named configurations that are not converted, by patterns of their names, with the reason."""
DATASETS = {
    "c4": {"type": "huggingface", "path": "allenai/c4", "subset": "en", "streaming": True},
    "c4_validation": {"type": "huggingface", "path": "allenai/c4", "subset": "en",
                      "split": "validation"},
}  # fmt: skip

KEYS = {
    "job.dump_folder": Key("./outputs", "workspace"),
    "job.description": Key("default job", "description"),
    "job.config_file": Key(None, idle="the file is given as the SOURCE"),
    "job.use_for_integration_test": Key(False, idle="its own tests read it"),
    **alike("job.", "print_args print_config", Key(False, idle=PRINTED)),
    "job.save_config_file": Key(None, idle="a run keeps its configuration"),
    "job.custom_config_module": Key("", refused="a section of yours is added by --import"),
    # Model and data.
    **keys_of("model.", name="llama3", flavor="debugmodel", tokenizer_path=None,
        hf_assets_path=None, converters=None, attn_mask_type=None),
    "model.print_after_conversion": Key(False, idle=PRINTED),
    "model.norm_type": Key("rmsnorm", values={"rmsnorm": "rms_norm", "fused_rmsnorm": "rms_norm",
        "compiled_rmsnorm": "rms_norm", "layernorm": "layer_norm", "np_layernorm": "layer_norm"}),
    **keys_of("training.", dataset="c4_test", dataset_path=None, fp8_linear=""),
    # Batch and loop.
    **keys_of("training.", local_batch_size=8, global_batch_size=-1),
    "training.seq_len": Key(2048, "batch.sequence_length"),
    "training.max_norm": Key(1.0, "optimizer.clip_norm"),
    "training.steps": Key(10_000, "duration", unit="{} steps"),
    "training.dtype": Key("float32", "precision.params", {"float32": "fp32", "bfloat16": "bf16"}),
    **keys_of("training.", mixed_precision_param="bfloat16", mixed_precision_reduce="float32",
        compile=False),
    "training.dataloader.num_workers": Key(0, "data.loader.workers"),
    "training.dataloader.pin_memory": Key(False, "data.loader.pin_memory"),
    "training.dataloader.prefetch_factor": Key(None, "data.loader.prefetch", optional=True),
    "training.dataloader.persistent_workers": Key(False, idle=WORKERS),
    "training.dataloader.infinite": Key(True, refused="documents repeat until the duration ends"),
    "training.disable_cuda_graphs": Key(False, idle="graphs of kernels change no number"),
    "training.debug_moe_force_load_balance": Key(False,
        refused="experts are chosen by the router"),
    "training.enable_cpu_offload": Key(False, "parallel.sharding.offload", optional=True),
    "training.gc_freq": Key(50, "resilience.gc.every", unit="{} steps"),
    "training.gc_debug": Key(False, refused="collections are not debugged"),
    "training.seed": Key(None, "seed"),
    "training.deterministic": Key(False, "deterministic"),
    **alike("debug.", "spmd_typechecking detect_anomaly enable_structured_logging",
        Key(None, idle=DEBUGGED)),
    "debug.batch_invariant": Key(False,
        refused="kernels are chosen by the sizes of a batch, as PyTorch does"),
    "override.imports": Key([], refused="kernels of torchtitan's are not imported"),
    "debug.deterministic_warn_only": Key(False,
        refused="operators without a deterministic kernel are errors"),
    **keys_of("compile.", enable=False, components=["model", "loss"], backend="inductor"),
    # Ranks.
    "parallelism.data_parallel_replicate_degree": Key(1, "parallel.replicate"),
    "parallelism.data_parallel_shard_degree": Key(-1, "parallel.shard"),
    "parallelism.fsdp_reshard_after_forward": Key("default"),
    "parallelism.tensor_parallel_degree": Key(1, "parallel.tensor"),
    **keys_of("parallelism.", disable_loss_parallel=False, enable_async_tensor_parallel=False,
        enable_compiled_autograd=False, enable_sequence_parallel=True),
    **alike("parallelism.", "enable_fsdp_symm_mem spmd_backend",
        Key(None, idle="messages of the same sums")),
    "parallelism.pipeline_parallel_degree": Key(1, "parallel.pipeline"),
    **keys_of("parallelism.", pipeline_parallel_schedule="1F1B", pipeline_parallel_schedule_csv=""),
    **alike("parallelism.", "pipeline_parallel_split_points module_fqns_per_model_part"),
    **alike("parallelism.pipeline_parallel_", "first_stage_less_layers last_stage_less_layers",
        Key(1, refused=BALANCED)),
    "parallelism.pipeline_parallel_layers_per_stage": Key(None, refused=BALANCED),
    "parallelism.pipeline_parallel_microbatch_size": Key(1),
    "parallelism.pipeline_parallel_microbatches": Key(None),
    "parallelism.context_parallel_degree": Key(1, "parallel.ring"),
    "parallelism.context_parallel_rotate_method": Key("allgather",
        refused="keys and values are passed round; the sums are the same"),
    "parallelism.context_parallel_load_balancer": Key("headtail"),
    "parallelism.context_parallel_ptrr_mask_key": Key(None,
        refused="ranks have parts of a sequence, not blocks of its mask"),
    "parallelism.expert_parallel_degree": Key(1, "parallel.expert"),
    "parallelism.expert_parallel_comm_backend": Key("standard"),
    "parallelism.pipeline_parallel_expert_parallel_overlap": Key(True,
        refused="exchanges of experts overlap as the pipeline schedule has them"),
    "parallelism.expert_tensor_parallel_degree": Key(1),
    "comm.init_timeout_seconds": Key(300, "parallel.timeout"),
    "comm.train_timeout_seconds": Key(100, "parallel.step_timeout"),
    "comm.trace_buf_size": Key(20_000, refused="a rank that hangs is named from its own records"),
    "comm.save_traces_folder": Key("comm_traces"),
    "comm.save_traces_file_prefix": Key("rank_", refused="traces have names by their rank"),
    "comm.mode": Key("default", refused="`setpoint check --dry-run` has a fake process group",
        essential=True),
    # Optimizer and schedule.
    "optimizer.name": Key("AdamW"),
    "optimizer.lr": Key(8e-4, "optimizer.lr"),
    **keys_of("optimizer.", beta1=0.9, beta2=0.95, eps=1e-8),
    "optimizer.weight_decay": Key(0.1, "optimizer.weight_decay"),
    "optimizer.implementation": Key("fused", "optimizer.implementation", {"fused": "fused",
        "foreach": "foreach", "for-loop": "loop"}),
    "optimizer.early_step_in_backward": Key(False,
        refused="updates within the backward pass know no norm of all gradients"),
    **keys_of("lr_scheduler.", warmup_steps=200, total_steps=None, decay_ratio=None,
        decay_type="linear", min_lr_factor=0.0),
    # Memory and float8.
    **keys_of("activation_checkpoint.", mode="selective", selective_ac_option="2",
        per_op_sac_force_recompute_mm_shapes_by_fqns=None, memory_budget=0.5),
    **{f"activation_checkpoint.{name}": Key(default, idle=NO_DROPOUT) for name, default in
        {"preserve_rng_state": None, "determinism_check": "default", "early_stop": False}.items()},
    **alike("activation_checkpoint.", "debug visualize_memory_budget_pareto",
        Key(False, idle=PRINTED)),
    "float8.enable_fsdp_float8_all_gather": Key(False),
    "float8.precompute_float8_dynamic_scale_for_fsdp": Key(False,
        refused="scales are computed when weights are gathered, to the same bits"),
    **keys_of("float8.", recipe_name=None, filter_fqns=None, emulate=False,
        enable_float8_linear=False),
    "float8.force_recompute_fp8_weight_in_bwd": Key(False,
        refused="whole layers or operations are recomputed, by their kind"),
    "float8.moe_fqns_prototype": Key(None),
    **keys_of("mx.", recipe_name="mxfp8_cublas", filter_fqns=None, moe_fqns_prototype=None),
    **alike("", "mx.mxfp8_dim1_cast_kernel_choice mx.use_fp8_dim1_cast_triton_kernel "
        "quantize.grouped_mm.mx.recipe_name", Key(None, refused="the kernel is torchao's choice")),
    "memory_estimation.enabled": Key(False),
    "memory_estimation.disable_fake_mode": Key(False, refused="`setpoint check --plan` computes"),
    # Records.
    "checkpoint.enable_checkpoint": Key(False),
    "checkpoint.folder": Key("checkpoint", idle="within a run always checkpoints/"),
    **keys_of("checkpoint.", interval=500, initial_load_path=None),
    "checkpoint.initial_load_model_only": Key(True,
        refused="weights of Hugging Face's format come without a state of training"),
    "checkpoint.initial_load_in_hf": Key(False),
    "checkpoint.initial_load_dequantize": Key(False,
        refused="weights of Hugging Face's format are read in the dtype of their files"),
    "checkpoint.enable_ft_dataloader_checkpoints": Key(True, idle="fault_tolerance is off"),
    **keys_of("checkpoint.", load_only=False, interval_type="steps", last_save_model_only=True,
        last_save_in_hf=False, export_dtype="float32", async_mode="disabled", keep_latest_k=10,
        load_step=-1, exclude_from_loading=None, enable_first_step_checkpoint=False),
    "checkpoint.create_seed_checkpoint": Key(False,
        refused="initial weights depend on no layout of the ranks here"),
    "metrics.log_freq": Key(10, "tracking.every", unit="{} steps"),
    **keys_of("metrics.", enable_tensorboard=False, save_tb_folder="tb", enable_wandb=False),
    **alike("metrics.", "disable_color_printing enable_color_printing",
        Key(False, idle=PRINTED)),
    "metrics.save_for_all_ranks": Key(False, refused="the main rank tracks sums over all ranks"),
    "metrics.rank_0_only": Key(True, refused="the main rank tracks sums over all ranks"),
    **keys_of("profiling.", enable_profiling=False, save_traces_folder="profile_traces",
        profile_freq=10, profiler_active=1, profiler_warmup=3, enable_memory_snapshot=False,
        save_memory_snapshot_folder="memory_snapshot", profiler_repeat=None,
        profiler_skip_first=None),
    **alike("profiling.", "profiler_skip_first_wait memory_snapshot_freq trace_post_processor "
        "memory_snapshot_max_entries", Key(None, refused="[profiling] has no such option")),
    **keys_of("validation.", enabled=False, dataset="c4_validation", dataset_path=None,
        local_batch_size=8, seq_len=2048, freq=10, steps=-1),
    **alike("validation.dataloader.", "num_workers persistent_workers pin_memory prefetch_factor "
        "infinite",
        Key(None, refused="evaluation has the loader of training")),
    "fault_tolerance.enable": Key(False,
        refused="replica groups are parallel.engine = torch with resilience", essential=True),
    **alike("fault_tolerance.", """
        process_group process_group_timeout_ms replica_id group_size min_replica_size
        semi_sync_method sync_steps should_quantize fragment_sync_delay fragment_update_alpha
    """),
    "experimental.custom_import": Key("", refused="a module of yours is named by --import"),
    "experimental.custom_args_module": Key("", refused="a section of yours is added by --import"),
    "liger_kernel.enable_fused_linear_cross_entropy": Key(False),
}  # fmt: skip
"""All keys, with the defaults of the configuration classes of 0.2.2 and 0.3.0."""


def _complete(c: Conversion) -> None:
    """Convert the keys that depend on one another."""
    c.set("parallel.device", "cuda")
    _model(c)
    _batch(c)
    _ranks(c)
    _optimizer(c)
    _schedule(c)
    _memory(c)
    _data(c)
    _records(c)


def _model(c: Conversion) -> None:
    """The architecture, by name and flavor."""
    name, flavor = str(c.value("model.name")), KERNEL.sub("", str(c.value("model.flavor")))
    if name not in FLAVORS:
        c.wrong("model.name", f"one of {', '.join(FLAVORS)}, which have a [model] here")
        return
    if flavor not in FLAVORS[name]:
        c.wrong("model.flavor", f"one of {', '.join(FLAVORS[name])} of {name}")
        return
    c.set("model.type", "transformer", "model.name")
    for field, value in FLAVORS[name][flavor].items():
        c.set(f"model.{field}", value, "model.flavor")
    if flavor == "debugmodel" and name == "llama3" and _is_old(c):
        c.set("model.layers", 8, "model.flavor")  # up to release 0.0.2
    _vocabulary(c, name, flavor)
    length = c.number("training.seq_len")
    c.set("model.max_sequence_length", length, "training.seq_len")
    c.set("model.init_std", 0.02)
    norm = KEYS["model.norm_type"].values or {}
    if (kind := c.choice("model.norm_type", *map(str, norm))) and kind != "rmsnorm":
        c.set("model.norm.type", norm[kind], "model.norm_type")
        if kind == "np_layernorm":
            c.report("differs", "model.norm_type", "norms have weights and biases; none there")
    if "moe" in FLAVORS[name][flavor]:
        moe = FLAVORS[name][flavor]["moe"]
        if moe["router"]["type"] == "softmax_top_k":
            text = "experts are balanced by no bias, which goes with a sigmoid; there by one"
            c.report("differs", "model.name", text)
        if not moe.get("first_dense") and moe.get("every", 1) == 1:  # all layers have experts
            c.data["model"].pop("ffn_dim", None)
    if "attention_chunk" in FLAVORS[name][flavor]:
        text = "chunks begin with each document where documents are isolated; there with the row"
        c.report("differs", "model.flavor", text)
    if name in ("llama3", "llama4") and c.given("model.tokenizer_path"):
        c.data["model"].pop("rope_scaling", None)  # of 0.1, which scales no positions
    # In 0.3, which has named configurations, positions are scaled for rows of any length.
    is_named = c.paths.get("model.name") == ("config",)
    if name == "deepseek_v3" and (length > 4096 or is_named):
        part = 1.0 if flavor in ("236B", "671B") else 0.70
        scale = 0.1 * part * math.log(40) + 1.0
        c.set("model.rope_scaling", {"type": "yarn", "factor": 40.0, "original_length": 4096,
                                     "attention_factor": 1.0}, "training.seq_len")  # fmt: skip
        c.set("model.attention_scale", scale**2 / math.sqrt(192), "training.seq_len")
    spread = "0.02" if name == "gpt_oss" else "1"
    text = (
        f"initial spreads: embeddings of {spread} and an output of 1 / sqrt(dim) there, 0.02 here; "
        f"projections to the residual stream by the depth of their layer there, of the model here"
    )
    c.report("differs", "model.flavor", text)


def _is_old(c: Conversion) -> bool:
    """True for a file of release 0.0.2 or earlier, which had the warm-up in [training]."""
    return c.paths.get("lr_scheduler.warmup_steps", ("",))[0] == "training"


def _vocabulary(c: Conversion, name: str, flavor: str) -> None:
    """The vocabulary of the flavor since release 0.2, and of the tokenizer before."""
    key, size = "model.flavor", c.data["model"].get("vocab_size")
    if c.given("model.tokenizer_path"):
        key, path = "model.tokenizer_path", str(c.value("model.tokenizer_path"))
        is_llama3 = name == "llama3" and any(
            part in path for part in ("Llama-3", "/tokenizer.model")
        )
        size = 2256 if path.endswith("test_tiktoken.model") else 128_256 if is_llama3 else size
    elif name == "llama3":
        size = 2048 if flavor == "debugmodel" else 128_256
    if size is not None:
        c.set("model.vocab_size", size, key)


def _batch(c: Conversion) -> None:
    """Batch size per data rank, split into micro-batches in a pipeline."""
    local, total = c.number("training.local_batch_size"), c.number("training.global_batch_size")
    micro = local
    if c.number("parallelism.pipeline_parallel_degree") > 1:
        micro = c.number("parallelism.pipeline_parallel_microbatch_size")
        if _is_old(c):  # of releases that divided by a number, that of the stages by default
            parts = c.number("parallelism.pipeline_parallel_microbatches")
            micro = local // (parts or c.number("parallelism.pipeline_parallel_degree"))
    keys = ("training.local_batch_size", "parallelism.pipeline_parallel_microbatch_size")
    c.set("batch.micro_size", micro, *keys)
    if total > 0:
        c.set("batch.global_size", total, "training.global_batch_size")
    elif micro > 0:
        c.set("batch.accumulation", max(1, local // micro), *keys)


def _ranks(c: Conversion) -> None:
    """Loss parallelism with tensor parallelism, and the pipeline schedule."""
    if c.number("parallelism.tensor_parallel_degree") > 1:
        loss = not c.value("parallelism.disable_loss_parallel")
        c.set("parallel.loss_parallel", loss, "parallelism.disable_loss_parallel")
        if not c.value(key := "parallelism.enable_sequence_parallel"):
            c.set("parallel.sequence_parallel", False, key)
    if c.number("parallelism.pipeline_parallel_degree") > 1:
        c.pipeline("parallelism.pipeline_parallel_schedule")
        _stages(c)
    else:
        for key in ("split_points", "schedule", "microbatch_size", "microbatches"):
            c.value(f"parallelism.pipeline_parallel_{key}")  # without stages
        c.value("parallelism.module_fqns_per_model_part")
    key = "parallelism.fsdp_reshard_after_forward"
    if (name := c.choice(key, "default", "always", "never")) and name != "default":
        c.set("parallel.reshard", name == "always", key)
    key = "parallelism.enable_async_tensor_parallel"
    if c.number("parallelism.tensor_parallel_degree") > 1 and c.value(key):
        c.set("parallel.async_tensor_parallel", True, key)
    key = "parallelism.context_parallel_load_balancer"
    if c.number("parallelism.context_parallel_degree") > 1:
        if (balancer := c.value(key)) in ("headtail", None):
            c.set("parallel.ring_split", "zigzag" if balancer else "contiguous", key)
        else:
            c.report("refused", key, "ranks have parts of a sequence, not blocks of its mask")
    key = "parallelism.expert_parallel_comm_backend"
    if c.number("parallelism.expert_parallel_degree") > 1 and (
        c.choice(key, "standard", "deepep") == "deepep"
    ):
        c.set("parallel.dispatch.type", "deepep", key)
    if (degree := c.number("parallelism.expert_tensor_parallel_degree")) > 1:
        c.set("parallel.expert_tensor", degree, "parallelism.expert_tensor_parallel_degree")


def _stages(c: Conversion) -> None:
    """Parts of the model in each pipeline stage, by first layers or by names of modules."""
    names = {"tok_embeddings": "embedding", "norm": "output"}
    key = "parallelism.module_fqns_per_model_part"
    if isinstance(parts := c.value(key), list):
        split = [
            list(dict.fromkeys(names.get(part, part) for part in cast("list[str]", stage)))
            for stage in cast("list[object]", parts)
            if isinstance(stage, list)
        ]
    else:
        key = "parallelism.pipeline_parallel_split_points"
        given: Any = c.value(key) or []
        points = given.replace(" ", "").split(",") if isinstance(given, str) else [*given]
        layers = int(c.data["model"].get("layers", 0))
        modules = ["embedding", *(f"layers.{index}" for index in range(layers)), "output"]
        if any(point not in modules for point in points):
            c.wrong(key, f"layers such as layers.{layers // 2}, of {layers}")
            return
        places = [0, *sorted(map(modules.index, points)), len(modules)]
        split = [modules[start:end] for start, end in pairwise(places)]
    if len(split) > 1:
        c.set("parallel.pipelining.split", split, key)


def _optimizer(c: Conversion) -> None:
    """AdamW, or Adam with L2 regularization."""
    name = c.choice("optimizer.name", "AdamW", "Adam")
    c.set("optimizer.type", "adamw", "optimizer.name")
    if name == "Adam" and c.number("optimizer.weight_decay"):
        c.set("optimizer.type", "import", "optimizer.name")
        c.set("optimizer.target", "torch.optim.Adam", "optimizer.name")
        kernel = c.data["optimizer"].pop("implementation", None)
        if kernel in ("fused", "foreach"):
            c.set(f"optimizer.{kernel}", True, "optimizer.implementation")
    betas = [c.number("optimizer.beta1"), c.number("optimizer.beta2")]
    c.set("optimizer.betas", betas, "optimizer.beta1", "optimizer.beta2")
    c.set("optimizer.eps", c.number("optimizer.eps"), "optimizer.eps")
    c.set("optimizer.no_decay", [])


def _schedule(c: Conversion) -> None:
    """Warm-up, a plateau if there is a decay ratio, and decay."""
    horizon, warmup = c.number("lr_scheduler.total_steps"), c.number("lr_scheduler.warmup_steps")
    total = c.number("training.steps") if horizon is None else horizon
    ratio, key = c.number("lr_scheduler.decay_ratio"), "lr_scheduler.decay_ratio"
    kind = c.choice("lr_scheduler.decay_type", "linear", "sqrt", "cosine")
    if kind is None:
        return
    warmup = min(warmup, total)
    decay = total - warmup
    if ratio is not None:
        decay = min(decay, round(total * ratio))
    if decay <= 0:
        c.set("schedule.type", "constant", "lr_scheduler.warmup_steps", "training.steps")
    elif kind == "sqrt" or decay < total - warmup:
        c.set("schedule.type", "wsd", key, "lr_scheduler.decay_type")
        c.set("schedule.decay_length", f"{decay} steps", key, "training.steps")
        name = "one_minus_sqrt" if kind == "sqrt" else kind
        c.set("schedule.decay", name, "lr_scheduler.decay_type")
    else:
        c.set("schedule.type", kind, "lr_scheduler.decay_type")
    c.set("schedule.warmup", f"{warmup} steps", "lr_scheduler.warmup_steps")
    if decay > 0:
        factor = "lr_scheduler.min_lr_factor"
        c.set("schedule.floor", c.number(factor), factor)
        if horizon is not None:
            c.set("schedule.horizon", f"{horizon} steps", "lr_scheduler.total_steps")


def _memory(c: Conversion) -> None:
    """Recomputation, dtypes, float8 and compilation."""
    path, key = "memory.activation_checkpointing", "activation_checkpoint.mode"
    mode = c.choice(key, "none", "selective", "full", "memory_budget")
    if mode == "full":
        c.set(f"{path}.type", "full", key)
    elif mode == "memory_budget":
        text = "the compiler's choice by a budget: set memory.activation_checkpointing"
        c.report("needs a decision", key, text)
        c.value("activation_checkpoint.memory_budget")
    elif mode == "selective":
        option = str(c.value("activation_checkpoint.selective_ac_option"))
        every = "activation_checkpoint.selective_ac_option"
        if option == "op":
            c.set(f"{path}.type", "operators", every)
            c.set(f"{path}.matmul_every", 2, every)
        elif option.isdecimal() and int(option) > 0:
            c.set(f"{path}.type", "full", every)
            c.set(f"{path}.every", int(option), every)
        else:
            c.wrong(every, "op or a positive int")
    c.value("activation_checkpoint.selective_ac_option")  # of selective alone
    if c.choice("training.mixed_precision_param", "bfloat16", "float32") == "bfloat16":
        c.set("precision.compute", "bf16", "training.mixed_precision_param")
        reduce = c.choice("training.mixed_precision_reduce", "float32", "bfloat16")
        if reduce == "bfloat16":
            c.set("precision.reduce", "bf16", "training.mixed_precision_reduce")
    _quantization(c)
    parts = c.names("compile.components")
    if c.value("training.compile") or (c.value("compile.enable") and "model" in parts):
        c.set("compile.backend", c.value("compile.backend"), "compile.enable", "training.compile")
    elif c.value("compile.enable"):
        c.report("differs", "compile.components", "the loss is compiled with the model alone")
    if c.value("liger_kernel.enable_fused_linear_cross_entropy"):
        key = "liger_kernel.enable_fused_linear_cross_entropy"
        c.set("loss.type", "chunked_cross_entropy", key)


def _quantization(c: Conversion) -> None:
    """Products in float8 or MXFP8, by the converters of the model."""
    converters, path = str(c.value("model.converters")), "precision.float8"
    switches = ("float8.enable_float8_linear", "training.fp8_linear")
    if "float8" in converters or any(map(c.value, switches)):
        table, recipe = "float8", c.value("float8.recipe_name") or "tensorwise"
    elif "mx" in converters:
        table, recipe = "mx", "mxfp8"
        c.value("mx.recipe_name")
    else:
        return
    c.set(f"{path}.recipe", recipe, f"{table}.recipe_name", "model.converters")
    if c.value(gather := "float8.enable_fsdp_float8_all_gather") and table == "float8":
        c.set(f"{path}.gather", True, gather)
    if skip := c.names(f"{table}.filter_fqns"):
        parts = [part for name in skip for part in name.split(",") if part]
        names = [part for part in parts if part not in ("router.gate", "auto_filter_small_kn")]
        c.set(f"{path}.skip", names, f"{table}.filter_fqns")
        if "auto_filter_small_kn" in parts:
            c.set(f"{path}.skip_small", True, f"{table}.filter_fqns")
    if c.value(experts := f"{table}.moe_fqns_prototype"):
        c.set(f"{path}.experts", True, experts)
        if "grouped_mm" in converters and "linear" not in converters:
            text = "experts alone are quantized there: name other modules in precision.float8.skip"
            c.report("differs", "model.converters", text)
    if c.value("float8.emulate"):
        c.set(f"{path}.emulate", True, "float8.emulate")


def _source(c: Conversion, table: str) -> dict[str, Any] | None:
    """The source of a data set by its name; None where it needs a decision."""
    name, path = c.value(f"{table}.dataset"), c.value(f"{table}.dataset_path")
    if path:
        return {"type": "huggingface", "path": path}
    if name not in DATASETS:
        field = "data.sources" if table == "training" else "data.validation"
        text = f"{name} is a data set in torchtitan's own files: set {field}"
        c.report("needs a decision", f"{table}.dataset", text)
        return None
    return dict(DATASETS[name])


def _data(c: Conversion) -> None:
    """Documents concatenated into rows, isolated by a mask of packed documents."""
    source = _source(c, "training")
    if source is not None:
        c.set_items("data.sources", [source], "training.dataset_path", "training.dataset")
    name, flavor = str(c.value("model.name")), str(c.value("model.flavor"))
    large = name == "deepseek_v3" and not flavor.startswith("debugmodel")
    isolates = large or flavor.endswith("_irope")
    mask = c.value("model.attn_mask_type") or ("block_causal" if isolates else "causal")
    isolate = mask == "block_causal" or KERNEL.search(flavor) is not None
    c.set("data.packing.isolate", isolate, "model.flavor")
    c.set("data.held_out", 0)
    tokenizer = c.value("model.hf_assets_path") or c.value("model.tokenizer_path")
    keys = ("model.hf_assets_path", "model.tokenizer_path")
    if tokenizer is None or str(tokenizer).endswith(".model"):
        text = "a folder with tokenizer.json is needed: set tokenizer.path"
        c.report("needs a decision", "model.tokenizer_path", text)
    else:
        c.tokenizer(str(tokenizer), *keys)
    evaluation = _source(c, "validation") if c.value("validation.enabled") else None
    if evaluation is None:
        c.set("evaluation", None, "validation.enabled")
        return
    c.set("evaluation.every", f"{c.number('validation.freq')} steps", "validation.freq")
    if (length := c.number("validation.seq_len")) != c.number("training.seq_len"):
        c.report("differs", "validation.seq_len", f"rows as in training; there of {length} tokens")
    batches = c.number("validation.steps")
    count = batches * c.number("validation.local_batch_size") if batches > 0 else None
    c.set_items("data.validation", [evaluation], "validation.dataset")
    c.set("evaluation.sequences", count, "validation.steps")
    if count:
        c.report("differs", "validation.steps", f"{count} sequences in all; there of each rank")


def _records(c: Conversion) -> None:
    """Checkpoints, trackers and profiles."""
    if not c.value("checkpoint.enable_checkpoint") or c.value("checkpoint.load_only"):
        keys = ("checkpoint.load_only", "checkpoint.enable_checkpoint")
        c.set("checkpoint.save", False, *keys)
    else:
        if unit := c.choice("checkpoint.interval_type", "steps", "seconds"):
            every = f"{c.number('checkpoint.interval')} {unit}"
            c.set("checkpoint.every", every, "checkpoint.interval", "checkpoint.interval_type")
        keep = c.number("checkpoint.keep_latest_k")
        c.set("checkpoint.keep", keep or None, "checkpoint.keep_latest_k")
        c.pick("checkpoint.mode", "checkpoint.async_mode", SAVE_MODES)
        if c.value("checkpoint.last_save_model_only"):
            c.set("checkpoint.last", "weights", "checkpoint.last_save_model_only")
            dtypes = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
            key = "checkpoint.export_dtype"
            if (dtype := c.choice(key, *dtypes)) and dtype != "float32":
                c.set("checkpoint.last_dtype", dtypes[dtype], key)
        if c.value("checkpoint.enable_first_step_checkpoint"):
            c.set("checkpoint.at", [1], "checkpoint.enable_first_step_checkpoint")
        if c.value("checkpoint.last_save_in_hf"):
            c.set("checkpoint.export", {}, "checkpoint.last_save_in_hf")
    if load := c.value("checkpoint.initial_load_path"):
        if c.value("checkpoint.initial_load_in_hf"):
            c.set("model.pretrained", load, "checkpoint.initial_load_path")
        else:
            text = "a checkpoint of torchtitan: convert it to Hugging Face's format first"
            c.report("needs a decision", "checkpoint.initial_load_path", text)
    c.track(("tensorboard", "metrics.enable_tensorboard", {"directory": "metrics.save_tb_folder"}),
            ("wandb", "metrics.enable_wandb", {}))  # fmt: skip
    if c.value("profiling.enable_profiling"):
        period = "profiling.profile_freq"
        warmup, active = (c.number(f"profiling.profiler_{name}") for name in ("warmup", "active"))
        c.set("profiling.wait", max(0, c.number(period) - warmup - active), period)
        c.copy({"profiling.warmup": "profiling.profiler_warmup",
                "profiling.active": "profiling.profiler_active"})  # fmt: skip
        c.set("profiling.repeat", c.number("profiling.profiler_repeat") or None, period)
        c.copy_given({"profiling.skip": "profiling.profiler_skip_first"})
        folder = "profiling.save_traces_folder"
        c.set("profiling.directory", c.value(folder), folder)
        if c.value("profiling.enable_memory_snapshot"):
            c.set("profiling.snapshot", True, "profiling.enable_memory_snapshot")


def _read(path: str) -> FileDocument:
    """A TOML file, or a script or a list of arguments."""
    return read_file(path) if names_file(path) else read_arguments(path, (), (), separator="_")


def _prepare(c: Conversion) -> None:
    """Fill in the values of a named configuration that are not given."""
    if isinstance(model := c.values.get("model.name"), str):
        # Experiments with other ways to parallelize have the models of torchtitan.
        own = re.sub(r"^\w+\.|_(simple_fsdp|auto_parallel|ft)$", "", model)
        c.values["model.name"] = {"llama": "llama2"}.get(own, own)
    name = c.values.pop("config", None)
    for other in ("module", "program"):
        c.values.pop(other, None)
    if name is None:
        return
    name = str(name)
    if name not in PRESETS:
        reason = next((why for part, why in OTHERS.items() if re.match(part, name)), None)
        known = f"of a known configuration, but {name}: {', '.join(PRESETS)}"
        expected = f"of a training that Setpoint has: {reason}" if reason else known
        c.wrong("model.name", expected)
        return
    for key, value in PRESETS[name].items():
        if value is not None and key not in c.values:
            c.values[key], c.paths[key] = value, ("config",)
    for key, value in [*c.values.items()]:  # lists from a command line
        default = c.dialect.keys[key].default if key in c.dialect.keys else None
        if isinstance(default, list) and isinstance(value, str):
            c.values[key] = cast("list[object]", value.split(","))


DIALECT = Dialect(
    name="torchtitan",
    release="0.3",
    keys=KEYS,
    signature=("model.flavor", "module",
              "parallelism.data_parallel_shard_degree", "job.dump_folder"),
    complete=_complete,
    refused=dict.fromkeys(
        ("encoder.t5_encoder", "encoder.autoencoder_path", "training.img_size", "data.patch_size",
         "training.classifier_free_guidance_prob", "validation.denoising_steps"), IMAGES),
    presets=PRESETS,
    prepare=_prepare,
    read=_read,
    prefixes={"training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
              "training.sequence_parallel_degree": "parallelism.tensor_parallel_degree",
              **{f"{table}.{axis}": f"parallelism.{axis}"
                 for table in ("training", "experimental")
                 for axis in ("data_parallel_", "tensor_parallel_", "pipeline_parallel_",
                              "context_parallel_", "enable_async_tensor_parallel",
                              "enable_compiled_autograd")},
              "training.warmup_steps": "lr_scheduler.warmup_steps",
              "training.checkpoint_interval_type": "checkpoint.interval_type",
              "training.checkpoint_interval": "checkpoint.interval",
              "training.checkpoint_folder": "checkpoint.folder",
              "profiling.run_profiler": "profiling.enable_profiling",
              "profiling.profile_every_x_iter": "profiling.profile_freq",
              "checkpoint.last_save_model_weights_only": "checkpoint.last_save_model_only",
              "checkpoint.initial_load_model_weights_only": "checkpoint.initial_load_model_only",
              "quantize.moe.float8.fqns": "float8.moe_fqns_prototype",
              "float8.moe_fqns": "float8.moe_fqns_prototype",
              "training.enable_float8_linear": "float8.enable_float8_linear",
              "training.enable_fp8_linear": "float8.enable_float8_linear",
              "training.batch_size": "training.local_batch_size",
              "model.model_weights_only": "checkpoint.last_save_model_only",
              "checkpoint.model_weights_only": "checkpoint.last_save_model_only",
              "lr_scheduler.lr_min": "lr_scheduler.min_lr_factor",
              "quantize.grouped_mm.float8.fqns": "float8.moe_fqns_prototype",
              "quantize.grouped_mm.mx.fqns": "mx.moe_fqns_prototype",
              **{f"quantize.{part}.{name}.": "mx." if name == "mx" else "float8."
                 for part in ("linear", "dense") for name in ("float8", "fp8", "mx")},
              "checkpoint.initial_load_in_hf_quantized": "checkpoint.initial_load_dequantize",
              "memory_estimation.enable": "memory_estimation.enabled",
              "debug.moe_force_load_balance": "training.debug_moe_force_load_balance",
              "checkpoint.enable": "checkpoint.enable_checkpoint",
              "hf_assets_path": "model.hf_assets_path", "dump_folder": "job.dump_folder",
              "dataloader.dataset": "training.dataset",
              "dataloader.dataset_path": "training.dataset_path",
              "dataloader.": "training.dataloader.",
              "validator.enable": "validation.enabled",
              "validator.dataloader.dataset": "validation.dataset",
              "validator.dataloader.dataset_path": "validation.dataset_path",
              "validator.": "validation.", "profiler.": "profiling.",
              "compile.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
              "activation_checkpoint.force_recompute_mm_shapes_by_fqns":
              "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
              "debug.print_config": "job.print_config",
              "debug.save_config_file": "job.save_config_file",
              "debug.seed": "training.seed", "debug.deterministic": "training.deterministic",
              "validation.enable": "validation.enabled"},
    switches={"profiling.": "profiling.enable_profiling", "validation.": "validation.enabled",
              "checkpoint.": "checkpoint.enable_checkpoint",
              "float8.": "model.converters float8.enable_float8_linear",
              "mx.": "model.converters", "fault_tolerance.": "fault_tolerance.enable",
              "metrics.save_tb_folder": "metrics.enable_tensorboard"},
)  # fmt: skip
