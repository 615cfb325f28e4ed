"""torchtitan's TOML files, tables of its JobConfig up to release 0.2, and names since release 0.3.

A name such as `llama3_8b` refers to `torchtitan_registry`, alone or as `--config` of a script, with
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
from setpoint.interop.dialect import SAVE_MODES, Conversion, Dialect
from setpoint.interop.shell_script import read_arguments
from setpoint.interop.torchtitan_keys import IMAGES, KEYS, RENAMED
from setpoint.interop.torchtitan_registry import FLAVORS, PRESETS

KERNEL = re.compile("_(flex|varlen)(_attn)?$")
"""The kernel of attention in the name of a flavor, whose mask isolates documents."""
SPLIT_BACKWARD = ("interleaved_zero_bubble", "zbv_zero_bubble", "dual_pipe_v")
"""Pipeline schedules that compute gradients of inputs and of weights separately."""
OTHERS = {
    "rl_": "reinforcement learning is not supported",
    "flux_|kimi_|qwen35_|.*muse_glimmer_.*mm": IMAGES,
    "sft_|transformers_modeling_backend_sft|qwen3_8b_first": "its conversations come from Python",
    ".*muse_glimmer_": "attention with an output gate is not supported",
    ".*_mtp": "multi-token prediction is not supported",
    ".*_torchft_": "DiLoCo is not supported",
}
"""Named configurations that are not converted, by patterns of their names, with the reason."""
DATASETS = {
    "c4": {"type": "huggingface", "path": "allenai/c4", "subset": "en", "streaming": True},
    "c4_validation": {"type": "huggingface", "path": "allenai/c4", "subset": "en",
                      "split": "validation"},
}  # fmt: skip


def _complete(c: Conversion) -> None:
    """Convert the keys that depend on each other."""
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
            c.differs("model.norm_type", "norms have weights and biases", "neither")
    if "moe" in FLAVORS[name][flavor]:
        moe = FLAVORS[name][flavor]["moe"]
        if moe["router"]["type"] == "softmax_top_k":
            here = "no bias balances the experts, as it needs sigmoid scores"
            c.differs("model.name", here, "they are")
        if not moe.get("first_dense") and moe.get("every", 1) == 1:  # all layers have experts
            c.data["model"].pop("ffn_dim", None)
    if "attention_chunk" in FLAVORS[name][flavor]:
        here = "attention chunks start with each document if documents are isolated"
        c.differs("model.flavor", here, "they start with the row")
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
    # A tied matrix is drawn as the embedding, and again as the output.
    output, tied = c.data["model"]["dim"] ** -0.5, c.data["model"].get("tie_embeddings", False)
    c.set("model.tie_embeddings", tied)
    embedding = output if tied else 0.02 if name == "gpt_oss" else 1.0
    c.set("model.init_std_embedding", embedding)
    if not tied:
        c.set("model.init_std_output", output)
    c.set("model.residual_init", "layer_scaled")
    text = (
        "initial up projections have a standard deviation of 0.02; in torchtitan, that of down "
        "projections, and the output matrix is truncated at 3 standard deviations"
    )
    c.report("differs", "model.flavor", text)


def _is_old(c: Conversion) -> bool:
    """True for a file for release 0.0.2 or earlier, which had the warm-up in [training]."""
    return c.paths.get("lr_scheduler.warmup_steps", ("",))[0] == "training"


def _vocabulary(c: Conversion, name: str, flavor: str) -> None:
    """The vocabulary: since release 0.2 that of the flavor, and before that of the tokenizer."""
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
    # Replica groups divide the micro-batches of a step.
    groups = _replica_groups(c) if c.value("fault_tolerance.enable") else 1
    if total > 0:
        c.set("batch.global_size", total, "training.global_batch_size")
    elif micro > 0:
        c.set("batch.accumulation", groups * max(1, local // micro), *keys)


def _replica_groups(c: Conversion) -> int:
    """Set the replica groups of torchft; return their number."""
    timeout, size = "fault_tolerance.process_group_timeout_ms", "fault_tolerance.group_size"
    if (groups := c.number(size)) < 1:
        c.wrong(size, "at least 1")
    if c.value(method := "fault_tolerance.semi_sync_method") is not None:
        c.wrong(
            method, "null: DiLoCo is not supported, replica groups average gradients in each step"
        )
    c.set("parallel.torchft.timeout", c.number(timeout) / 1000, timeout)
    c.set("parallel.torchft.group_size", max(1, groups), size)
    if c.value("training.seed") is None:
        c.report(
            "needs a decision", "training.seed", "all replica groups need the same seed: set seed"
        )
    return max(1, groups)


def _ranks(c: Conversion) -> None:
    """Loss parallelism with tensor parallelism, and the pipeline schedule."""
    divides_sequences = c.value(key := "parallelism.enable_sequence_parallel")
    if c.number("parallelism.tensor_parallel_degree") > 1:
        loss = not c.value("parallelism.disable_loss_parallel")
        c.set("parallel.loss_parallel", loss, "parallelism.disable_loss_parallel")
        if not divides_sequences:
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
            c.report(
                "refused",
                key,
                "sequences are divided into parts of equal size, not by blocks of the mask",
            )
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
            list(dict.fromkeys(names.get(str(part), str(part)) for part in stage))
            for stage in cast("list[list[object]]", parts)
            if isinstance(stage, list)
        ]
    else:
        key = "parallelism.pipeline_parallel_split_points"
        points = ",".join(c.names(key)).replace(" ", "").split(",") if c.value(key) else []
        layers = int(c.data.get("model", {}).get("layers", 0))
        modules = ["embedding", *(f"layers.{index}" for index in range(layers)), "output"]
        if any(point not in modules for point in points):
            c.wrong(key, f"layers such as layers.{layers // 2}, of {layers}")
            return
        places = [0, *sorted(map(modules.index, points)), len(modules)]
        split = [modules[start:end] for start, end in pairwise(places)]
    if len(split) > 1:
        c.set("parallel.pipelining.split", split, key)


def _optimizer(c: Conversion) -> None:
    """AdamW, Adam with L2 regularization, or Muon."""
    name = c.choice("optimizer.name", "AdamW", "Adam", "DistMuon")
    c.set("optimizer.type", "adamw", "optimizer.name")
    is_l2 = name == "Adam" and c.number("optimizer.weight_decay")
    if c.value("optimizer.implementation") == "fused_opt_states_bf16" and is_l2:
        text = "optimizer state has the dtype of the weights; in torchtitan, bf16"
        c.report("differs", "optimizer.implementation", text)
    elif c.value("optimizer.implementation") == "fused_opt_states_bf16":
        c.set("precision.optimizer_state", "bf16", "optimizer.implementation")
        if name == "AdamW":
            c.set("optimizer.type", "anyprecision_adamw", "optimizer.implementation")
            c.set("optimizer.rounding", "nearest", "optimizer.implementation")
            c.data["optimizer"].pop("implementation", None)
    if name == "DistMuon":
        c.set("optimizer.type", "muon", "optimizer.name")
        c.set("optimizer.adjust_lr", "match_rms_adamw", "optimizer.name")
        c.data["optimizer"].pop("implementation", None)
        here = "projections are orthogonalized as a whole, and routers use AdamW"
        c.differs(
            "optimizer.name", here, "each head is orthogonalized separately, and routers use Muon"
        )
    if is_l2:
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
        text = (
            "memory budgets of the compiler are not supported: set memory.activation_checkpointing"
        )
        c.report("needs a decision", key, text)
        c.value("activation_checkpoint.memory_budget")
    elif mode == "selective":
        c.recompute_some("activation_checkpoint.selective_ac_option")
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
        c.report("differs", "compile.components", "the loss is compiled only with the model")
    recomputes = c.data.get("memory", {}).get("activation_checkpointing", {}).get("type")
    schedule = c.data["parallel"].get("pipelining", {}).get("schedule")
    if recomputes == "operators" and schedule in SPLIT_BACKWARD and "compile" not in c.data:
        every = "activation_checkpoint.selective_ac_option"
        c.set(path, {"type": "full"}, every)
        text = f"whole layers are recomputed, as {schedule} has two backward passes per layer"
        c.report("differs", every, text)
    if c.value("liger_kernel.enable_fused_linear_cross_entropy"):
        key = "liger_kernel.enable_fused_linear_cross_entropy"
        c.set("loss.type", "chunked_cross_entropy", key)


def _quantization(c: Conversion) -> None:
    """Products in float8, MXFP8 or NVFP4, by the converters of the model."""
    converters, path = str(c.value("model.converters")), "precision.float8"
    switches = ("float8.enable_float8_linear", "training.fp8_linear")
    if "float8" in converters or any(map(c.value, switches)):
        table, recipe = "float8", c.value("float8.recipe_name") or "tensorwise"
    elif "mx" in converters:
        table, recipe = "mx", "mxfp8"
        c.value("mx.recipe_name")
    elif "nvfp4" in converters:
        c.set(f"{path}.recipe", "nvfp4", "model.converters")
        if "tail" in converters:  # the last 15 % of all layers stay in bf16
            layers = c.data["model"]["layers"]
            kept = range(layers - math.ceil(0.15 * layers), layers)
            skip = [] if c.data["model"].get("tie_embeddings") else ["^output$"]
            skip += [rf"^layers\.{index}\." for index in kept]
            c.set(f"{path}.skip", skip, "model.converters")
        return
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
            text = "torchtitan quantizes only experts: list other modules in precision.float8.skip"
            c.report("differs", "model.converters", text)
    if c.value("float8.emulate"):
        c.set(f"{path}.emulate", True, "float8.emulate")


def _source(c: Conversion, table: str) -> dict[str, Any] | None:
    """The source for a data set name; None if a decision is needed."""
    name, path = c.value(f"{table}.dataset"), c.value(f"{table}.dataset_path")
    if path:
        return {"type": "huggingface", "path": path}
    if name not in DATASETS:
        field = "data.sources" if table == "training" else "data.validation"
        text = f"{name} is a data set of torchtitan's repository: set {field}"
        c.report("needs a decision", f"{table}.dataset", text)
        return None
    return dict(DATASETS[name])


def _data(c: Conversion) -> None:
    """Documents concatenated into rows, isolated by a packing mask."""
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
        c.differs("validation.seq_len", "rows as in training", f"of {length} tokens")
    batches = c.number("validation.steps")
    count = batches * c.number("validation.local_batch_size") if batches > 0 else None
    c.set_items("data.validation", [evaluation], "validation.dataset")
    c.set("evaluation.sequences", count, "validation.steps")
    if count:
        c.differs("validation.steps", f"{count} sequences are evaluated in all", "per rank")


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
    """A TOML file, a script, or a list of arguments."""
    return read_file(path) if names_file(path) else read_arguments(path, (), (), separator="_")


def _prepare(c: Conversion) -> None:
    """Fill in values of a named configuration that are not given."""
    if isinstance(model := c.values.get("model.name"), str):
        # Experiments with other ways to parallelize have the models of torchtitan.
        own = re.sub(r"^\w+\.|_(simple_fsdp|auto_parallel|ft)$", "", model)
        c.values["model.name"] = {"llama": "llama2"}.get(own, own)
    config = c.values.get("config")
    if config is not None and str(config) not in PRESETS:
        why = next((why for part, why in OTHERS.items() if re.match(part, str(config))), "")
        c.refuse("config", why or "is not a known configuration", () if why else [*PRESETS])
        return
    for key in ("config", "module", "program"):
        c.values.pop(key, None)
    if config is None:
        return
    for key, value in PRESETS[str(config)].items():
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
    prefixes=RENAMED,
    switches={"profiling.": "profiling.enable_profiling", "validation.": "validation.enabled",
              "checkpoint.": "checkpoint.enable_checkpoint",
              "float8.": "model.converters float8.enable_float8_linear",
              "mx.": "model.converters", "fault_tolerance.": "fault_tolerance.enable",
              "metrics.save_tb_folder": "metrics.enable_tensorboard"},
)  # fmt: skip
