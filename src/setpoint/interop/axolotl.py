"""Axolotl's YAML files for supervised fine-tuning and pretraining, one flat mapping.

Axolotl trains with the Trainer of transformers; its schedules, optimizers and sharding are in
`transformers_trainer`. Axolotl's own formulas: a step has micro_batch_size *
gradient_accumulation_steps rows per rank; if no length is set, the warm-up is 3 % of all steps, at
most 100; weights are loaded in bf16 if bf16 is on; documents longer than sequence_len are dropped,
and with sample_packing the others are packed into rows with isolated documents.
"""

from __future__ import annotations

import math
import re
from typing import Any, cast

from setpoint.interop.axolotl_data import convert_data
from setpoint.interop.dialect import REQUIRED, Conversion, Dialect, Key, keys_of, listed_keys
from setpoint.interop.transformers_trainer import (
    LINEAR,
    NEFTUNE,
    convert_compilation,
    convert_optimizer,
    convert_peft,
    convert_recomputation,
    convert_schedule,
    convert_shards,
    period,
)

SWITCHES = ("xformers_attention", "flex_attention", "flash_attention", "sdp_attention",
            "eager_attention")  # fmt: skip
"""Switches of a kernel of attention, of which the first counts."""

KEYS = {
    "base_model": Key(REQUIRED),
    "val_set_size": Key(0.0),
    "dataset_prepared_path": Key(None, "data.prepare.folder"),
    "shuffle_merged_datasets": Key(True, "data.shuffle"),
    "train_on_inputs": Key(False),
    "sequence_len": Key(512, "batch.sequence_length"),
    **keys_of("", excess_length_strategy="drop", sample_packing_group_size=100_000,
        pad_to_multiple_of=None, pretrain_multipack_attn=True),
    "overrides_of_model_config": Key(None, "model.overrides", optional=True),
    **keys_of("", micro_batch_size=1, gradient_accumulation_steps=1, num_epochs=1.0),
    "seed": Key(42, "seed"),
    **keys_of("", learning_rate=REQUIRED, optimizer="adamw_torch_fused", weight_decay=0.0,
        lr_scheduler="cosine"),
    **keys_of("", quantize_moe_experts=False, load_in_8bit=False, load_in_4bit=False,
        lora_dropout=0.0, load_best_model_at_end=False),
    "output_dir": Key("./model-out", "workspace"),
    "save_only_model": Key(False, "checkpoint.last", {True: "weights"}, optional=True),
    "peft_use_rslora": Key(None, "adapter.rank_stabilized", optional=True),
    "liger_fused_linear_cross_entropy": Key(None, "loss.type", {True: "chunked_cross_entropy"},
        optional=True),
    "torch_empty_cache_steps": Key(None, "memory.empty_cache", unit="{} steps", optional=True),
    "auto_resume_from_checkpoints": Key(None, "checkpoint.resume", {True: "auto"}, optional=True),
    "ddp_timeout": Key(None, "parallel.timeout", optional=True),
    "ddp_bucket_cap_mb": Key(None, "parallel.bucket_size", optional=True),
    "neftune_noise_alpha": NEFTUNE,
    "save_first_step": Key(None, "checkpoint.at", {True: [1]}, optional=True),
    **listed_keys("axolotl"),
}  # fmt: skip
"""Keys of the schemas of releases 0.10 to 0.19."""


def _prepare(c: Conversion) -> None:
    """Drop empty keys, and switches without an equivalent that are off."""
    for key, value in [*c.values.items()]:
        known = c.dialect.keys.get(key)
        is_off = value is False and known is not None and bool(known.refused or known.idle)
        if value in (None, "") or is_off:
            del c.values[key]
        elif isinstance(value, str) and value.replace("_", "").isdecimal():  # 500_000 in YAML 1.1
            c.values[key] = int(value)


def _complete(c: Conversion) -> None:
    """Convert the keys that depend on each other."""
    flags = "sample_packing eval_sample_packing liger_fused_linear_cross_entropy relora"
    c.require_flags(" ".join((flags, "peft_use_dora", *SWITCHES)))
    c.require_flags("gradient_checkpointing", "offload", "offload_disk", "unsloth")
    c.require_flags("torch_compile", "auto")
    total = c.number("max_steps") or None
    epochs = f"{c.number('num_epochs'):g} epochs"
    c.set("duration", f"{total} steps" if total else epochs, "max_steps", "num_epochs")
    _model(c)
    _batch(c)
    convert_data(c)
    _schedule(c, total)
    _optimizer(c)
    _adapter(c)
    _precision(c)
    _ranks(c)
    _records(c, total)


def _model(c: Conversion) -> None:
    """A transformers model, by directory or hub id."""
    if (model := c.at_revision(c.text("base_model"), "revision_of_model")) is None:
        c.wrong("base_model", "a directory or hub id of a model")
        return
    config, tokenizer = c.text("base_model_config"), c.text("tokenizer_config")
    c.set("model.type", "huggingface")
    c.set("model.pretrained", model, "base_model")
    if config and config != model:
        c.set("model.config", config, "base_model_config")
    if c.value("reinit_weights"):
        c.data["model"].pop("pretrained")
        c.set("model.config", config or model, "reinit_weights")
    options = c.mapping("model_quantization_config_kwargs")
    if c.value("model_quantization_config") and not options.get("dequantize"):
        c.wrong("model_quantization_config", "a format that is dequantized when it is read")
    kernels = {"xformers": "sdpa", "sdp": "sdpa", "flex": "flex_attention", "flash": "setpoint",
               "eager": "eager"}  # fmt: skip
    key = next((k for k in ("attn_implementation", *SWITCHES) if c.value(k)), "attn_implementation")
    if name := key if key in SWITCHES else c.text(key):
        kernel = next((kernels[word] for word in kernels if word in name), None)
        if kernel is not None:
            c.set("model.attention_backend", kernel, key)
        elif name in ("sage", "fp8") or "/" in name:
            c.report("refused", key, "attention in 8 bits is not supported; sdpa is used")
        else:
            c.wrong(key, "a kernel with one of the words " + ", ".join(kernels))
    c.tokenizer(tokenizer or config or model, "tokenizer_config", "base_model")
    for key in ("type_of_model", "tokenizer_type"):
        if (name := c.text(key)) and not name.endswith(
            ("ForCausalLM", "Tokenizer", "TokenizerFast")
        ):
            text = f"{name} is ignored: config.json and tokenizer.json determine the class"
            c.report("differs", key, text)
    if scaling := c.mapping("rope_scaling"):
        c.set("model.overrides.rope_scaling", scaling, "rope_scaling")
    special, entries = {**c.mapping("special_tokens")}, c.value("tokens")
    added = special.pop("additional_special_tokens", None)
    if isinstance(entries, dict):  # special tokens by name
        special |= cast("dict[str, Any]", entries)
    names = [] if isinstance(entries, dict) else c.names("tokens")
    if tokens := [*names, *(added if isinstance(added, list) else [])]:
        c.set("tokenizer.added", tokens, "tokens", "special_tokens")
    if "pad_token" in special:
        text = "pad_token: padding needs no token, as it is excluded from the loss"
        c.report("without effect", "special_tokens", text)
    if extra_names := [name for name in special if name != "pad_token"]:
        text = (
            f"the tokenizer's files define {', '.join(extra_names)}: change them there, or set "
            f"tokenizer.separator"
        )
        c.report("needs a decision", "special_tokens", text)
    if patterns := c.names("unfrozen_parameters"):
        c.set("optimizer.frozen", [f"^(?!.*(?:{'|'.join(patterns)}))"], "unfrozen_parameters")


def _batch(c: Conversion) -> None:
    """Micro-batch size and accumulation, of which batch_size is the product."""
    micro, passes = c.number("micro_batch_size"), c.number("gradient_accumulation_steps")
    if (total := c.number("batch_size")) and micro:
        passes = total // micro
    keys = ("micro_batch_size", "gradient_accumulation_steps", "batch_size")
    c.set("batch.micro_size", micro, *keys)
    c.set("batch.accumulation", passes, *keys[1:])


def _schedule(c: Conversion, total: int | None) -> None:
    """The schedule; the default warm-up is 3 % of all steps, at most 100."""
    steps, ratio = c.number("warmup_steps"), c.number("warmup_ratio")
    name, share = c.value("lr_scheduler"), c.number("cosine_constant_lr_ratio")
    keys = ("warmup_steps", "warmup_ratio")
    share = share if name == "cosine" and share and share < 1 else 1
    if steps is not None and 0 < steps < 1:  # as in transformers, a share of all steps
        steps, ratio = math.ceil(steps * total) if total else None, steps
    elif steps is None and total:
        steps = min(int(0.03 * total), 100) if ratio is None else int(ratio * total)
    if steps is not None:
        c.set("schedule.warmup", f"{2 if steps == 1 else int(steps)} steps", *keys)
    else:
        percent = 100 * (0.03 if ratio is None else ratio) / share
        c.set("schedule.warmup", f"{percent:.10g} %", *keys)
        if ratio is None:
            c.report("differs", "warmup_steps", "3 % of all steps; in Axolotl, at most 100")
        elif ratio:
            here = f"{100 * ratio:.10g} % of all steps, not rounded"
            c.differs(next(filter(c.given, keys)), here, "rounded to steps")
    if name == "one_cycle":
        c.report("needs a decision", "lr_scheduler", "set [schedule]; piecewise takes any phases")
        return
    if name == "rex":
        c.set("schedule.type", "rex", "lr_scheduler")
        c.set("schedule.floor", c.number("cosine_min_lr_ratio") or 0.0, "cosine_min_lr_ratio")
        c.differs("lr_scheduler", "z / (0.5 + 0.5 z) of the remaining share z", "z / (0.1 + 0.9 z)")
        return
    convert_schedule(c, "lr_scheduler", total)
    if (floor := c.number("cosine_min_lr_ratio")) is not None and name == "cosine":
        c.set("schedule.floor", floor, "cosine_min_lr_ratio")
        if share < 1:
            c.set("schedule.horizon_share", share, "cosine_constant_lr_ratio")


def _optimizer(c: Conversion) -> None:
    """The optimizer of transformers, and parameter groups with their own learning rates."""
    rate = c.value("learning_rate")
    try:
        peak = float(rate)
    except (TypeError, ValueError, OverflowError):
        c.wrong("learning_rate", "a number")
        return
    c.set("optimizer.lr", peak, "learning_rate")
    if c.number("max_grad_norm") is None:
        c.default("max_grad_norm", 1.0)  # that of transformers
    convert_optimizer(c, "optimizer")
    if c.data["optimizer"].get("type") == "muon":
        _muon(c, peak)
    groups: list[dict[str, object]] = []
    for group in c.sections("lr_groups"):
        modules, lr = group.get("modules"), group.get("lr")
        if not isinstance(modules, list) or not isinstance(lr, int | float) or not peak:
            c.wrong("lr_groups", "a list of groups with modules and a lr each")
            break
        pattern = "|".join(map(str, cast("list[object]", modules)))
        groups.append({"pattern": pattern, "lr_multiplier": lr / peak})
    lr, scale = c.number("embedding_lr"), c.number("embedding_lr_scale")
    if scale or (lr and peak):
        factor = scale or lr / peak
        groups.append({"pattern": "embed_tokens|lm_head", "lr_multiplier": float(factor)})
    if ratio := c.number("loraplus_lr_ratio"):
        groups.append({"pattern": r"\.b$", "lr_multiplier": float(ratio)})  # the matrices B
    if groups:
        c.set_items("optimizer.groups", groups, "lr_groups", "embedding_lr", "loraplus_lr_ratio")


def _muon(c: Conversion, peak: float) -> None:
    """Muon from axolotl-contribs-mit: one for weights divided among ranks, one for whole ones."""
    is_divided = bool(c.value("fsdp") or c.value("fsdp_config"))
    c.set("optimizer.adamw_lr", peak, "learning_rate")
    if is_divided:
        here = "sqrt(max(1, A / B)) times the rate of a matrix with A outputs"
        c.differs("optimizer", here, "sqrt(A / B)")
        c.set("optimizer.nesterov", False, "optimizer")
    else:
        c.set("optimizer.adjust_lr", "match_rms_adamw", "optimizer")
    if not c.given("adam_beta1") or not c.given("adam_beta2"):
        c.set("optimizer.betas", [0.9 if is_divided else 0.95, 0.95], "optimizer")


def _adapter(c: Conversion) -> None:
    """LoRA, DoRA, ReLoRA, or QLoRA if the weights are in 4 bits."""
    if (name := c.value("adapter")) is None:
        if c.value("load_in_4bit") or c.value("load_in_8bit"):
            c.wrong("adapter", "given, but load_in_4bit and load_in_8bit need it")
        return
    if (name := c.choice("adapter", "lora", "qlora")) is None:
        return
    steps = c.number("relora_steps") or (
        c.number("jagged_restart_steps") if c.value("relora") else 0
    )
    kind = "relora" if steps else "dora" if c.value("peft_use_dora") else "lora"
    dtype = c.value("peft.weight_dtype")
    four = c.value("load_in_4bit") or name == "qlora" or dtype in ("int4", "nf4")
    eight = c.value("load_in_8bit") or dtype == "int8"
    if dtype not in (None, "int4", "nf4", "int8"):
        c.wrong("peft.weight_dtype", "one of int4, nf4, int8")
    if dtype == "int4":
        c.differs("peft.weight_dtype", "NF4 in blocks", "int4 with a scale per block")
    kind = "qlora" if four and kind == "lora" else kind
    c.set("adapter.type", kind, "adapter", "peft_use_dora", "relora")
    if four:
        c.set("adapter.quantize.type", "nf4", "load_in_4bit", "peft.weight_dtype", "adapter")
    elif eight:
        c.set("adapter.quantize.type", "int8", "load_in_8bit")
        text = "only weights are in 8 bits; in Axolotl, LLM.int8() also computes in 8 bits"
        c.report("differs", "load_in_8bit", text)
    targets, layers = c.names("lora_target_modules"), c.value("peft_layers_to_transform")
    numbers = cast("list[object]", layers) if isinstance(layers, list) else []
    if layers is not None and not isinstance(layers, list):
        c.wrong("peft_layers_to_transform", "a list of ints")
    if c.value("lora_target_linear"):
        targets = ["all-linear", *(name for name in targets if not re.search(LINEAR, name))]
    convert_peft(c, targets, "|".join(map(str, numbers)), bool(c.value("quantize_moe_experts")))
    patterns = {key: c.mapping(f"lora_{key}_pattern") for key in ("rank", "alpha")}
    if names := dict.fromkeys([*patterns["rank"], *patterns["alpha"]]):
        ranks = [{"pattern": rf"(^|\.)({name})$", "rank": patterns["rank"].get(name),
                  "alpha": patterns["alpha"].get(name)} for name in names]  # fmt: skip
        c.set_items("adapter.ranks", ranks, "lora_rank_pattern", "lora_alpha_pattern")
    if path := c.text("lora_model_dir"):
        text = (
            f"continue the adapter {path} with checkpoint.load of its run, or merge it with PEFT "
            f"first"
        )
        c.report("needs a decision", "lora_model_dir", text)
    if steps:
        c.set("adapter.merge.every", f"{steps} steps", "relora_steps", "jagged_restart_steps")
        if warmup := c.number("jagged_restart_warmup_steps"):
            c.set("adapter.merge.rewarmup", f"{warmup} steps", "jagged_restart_warmup_steps")
        text = "optimizer state is reset at a merge; in Axolotl, most of it is pruned"
        c.report("differs", "relora" if c.given("relora") else "relora_steps", text)


def _precision(c: Conversion) -> None:
    """Dtypes: bf16 weights with bf16, but fp32 weights with FSDP or DeepSpeed.

    With an adapter, frozen weights are in bf16 and the adapter's matrices in fp32.
    """
    bf16 = c.value("bf16") if c.given("bf16") else "auto"
    half = c.value("fp16") or c.value("float16")
    if bf16 not in (True, False, "auto", "full"):
        c.wrong("bf16", "true, false, auto or full")
    elif c.value("float32"):
        c.set("precision.compute", "fp32", "float32")
    elif half and bf16 in (False, "auto") and not c.given("bf16"):
        c.set("precision.compute", "fp16", "fp16", "float16")
        c.set("precision.loss_scale", {}, "fp16", "float16")
        c.report("differs", "fp16", "weights are in fp32; in Axolotl, in fp16")
    elif bf16 or c.value("bfloat16"):
        c.set("precision.compute", "bf16", "bf16", "bfloat16")
        is_divided = c.value("fsdp") or c.value("fsdp_config") or c.value("deepspeed")
        if c.value("adapter") or not is_divided:
            c.set("precision.params", "bf16", "bf16", "bfloat16")
        if c.value("adapter"):
            c.set("precision.master", "fp32", "adapter")
            c.set("precision.reduce", "fp32", "adapter")
    elif half:
        c.set("precision.compute", "fp16", "fp16", "float16")
        c.set("precision.loss_scale", {}, "fp16", "float16")
    if isinstance(c.value("tf32"), bool):
        c.set("precision.tf32", c.value("tf32"), "tf32")
    if c.value("fp8"):
        c.set("precision.float8.recipe", "tensorwise", "fp8")
        if isinstance(gather := c.value("fp8_enable_fsdp_float8_all_gather"), bool):
            c.set("precision.float8.gather", gather, "fp8_enable_fsdp_float8_all_gather")
    convert_recomputation(c, "gradient_checkpointing")
    kind, keys = c.value("gradient_checkpointing"), ("activation_offloading", "torch_compile")
    if kind == "offload_disk":
        c.report("not converted", "gradient_checkpointing", "offload to disk is not supported")
    if kind in ("offload", "unsloth") or c.value("activation_offloading"):
        c.set("memory.activation_offload", {}, "activation_offloading", "gradient_checkpointing")
    known = ("LigerPlugin", "CutCrossEntropyPlugin", "KernelsPlugin", "ExpertParallelPlugin")
    for plugin in c.names("plugins"):
        if plugin.rpartition(".")[2] not in known:
            c.report("refused", "plugins", f"{plugin}: Axolotl's own code is not run")
    convert_compilation(c)
    if "activation_offload" in c.data.get("memory", {}) and "compile" in c.data:
        # Between compiled layers; within one graph nothing is offloaded.
        c.set("compile.scope", "block", *keys[::-1])


def _ranks(c: Conversion) -> None:
    """Mesh degrees, sharding and timeouts."""
    c.set("parallel.device", "cuda")
    convert_shards(c)
    engine = c.data["parallel"].get("engine")
    axes = ("tensor_parallel_size", "context_parallel_size")
    offloads = "activation_offload" in c.data.get("memory", {})
    if engine and (offloads or "adapter" in c.data or any(map(c.number, axes))):
        del c.data["parallel"]["engine"]
        c.set("parallel.shard", -1, "deepspeed")
        if engine.get("stage") != 3:
            c.set("parallel.reshard", False, "deepspeed")
        if "offload" in engine:
            c.set("parallel.sharding.offload", True, "deepspeed")
        text = (
            "FSDP2 shards the weights, as DeepSpeed cannot be combined with adapters, other "
            "axes or offload"
        )
        c.report("differs", "deepspeed", text)
    for key, field in (("dp_shard_size", "shard"), ("dp_replicate_size", "replicate"),
                       ("tensor_parallel_size", "tensor"), ("expert_parallel_size", "expert"),
                       ("context_parallel_size", "ring")):  # fmt: skip
        if (degree := c.number(key)) and degree > 1:
            # Axes of experts and shards are orthogonal there; here experts divide the shards.
            experts = (c.number("expert_parallel_size") or 1) if field == "shard" else 1
            c.set(f"parallel.{field}", degree * experts, key)
    if (steps := c.number("gc_steps")) and steps > 0:
        c.set("resilience.gc.every", f"{steps} steps", "gc_steps")


def _cadence(c: Conversion, path: str, name: str, total: int | None) -> bool:
    """Set a period from `NAMEs_per_epoch`, `NAME_steps` or `NAME_strategy`; False without any."""
    times, steps = c.number(f"{name}s_per_epoch"), c.number(f"{name}_steps")
    strategy = c.value(f"{name}_strategy")
    if times and times > 0:
        c.set(path, f"{1 / times:.10g} epochs", f"{name}s_per_epoch")
    elif steps:
        c.values.setdefault(f"{name}_strategy", "steps")
        c.paths.setdefault(f"{name}_strategy", (f"{name}_steps",))
        period(c, path, f"{name}_strategy", f"{name}_steps", total)
    elif strategy == "epoch":
        c.set(path, "1 epoch", f"{name}_strategy")
    else:
        return False
    return True


def _records(c: Conversion, total: int | None) -> None:
    """Evaluation, checkpoints, logging and trackers."""
    has_data = bool(c.number("val_set_size") or c.value("test_datasets"))
    if not has_data or not _cadence(c, "evaluation.every", "eval", total):
        c.set("evaluation", None, "val_set_size", "eval_steps")
    else:
        c.set("evaluation.sequences", None, "val_set_size")
        c.set("evaluation.before_training", True, "eval_steps", "eval_strategy", "evals_per_epoch")
        if patience := c.number("early_stopping_patience"):
            c.set("evaluation.early_stopping.patience", patience, "early_stopping_patience")
    best = bool(c.value("load_best_model_at_end") or c.number("early_stopping_patience"))
    c.set("checkpoint.keep_best", best and has_data, "load_best_model_at_end")
    if c.value("save_strategy") == "no":
        c.set("checkpoint.every", "last_step", "save_strategy")
    elif not _cadence(c, "checkpoint.every", "save", total):
        c.set("checkpoint.every", "1 epoch", "save_steps")
    c.set("checkpoint.keep", c.number("save_total_limit") or 4, "save_total_limit")
    if isinstance(path := c.value("resume_from_checkpoint"), str):
        text = f"{path} is to start from the weights of this checkpoint, set model.pretrained"
        c.report("needs a decision", "resume_from_checkpoint", text)
    logged = c.number("logging_steps")
    default = max(min(int(0.005 * total), 10), 1) if total else 10
    c.set("tracking.every", f"{logged or default} steps", "logging_steps")
    is_off = c.value("wandb_mode") == "disabled"
    if c.value("wandb_mode") not in ("online", "offline"):
        c.values.pop("wandb_mode", None)
    c.track(
        ("tensorboard", "use_tensorboard", {}),
        ("wandb", "" if is_off else "use_wandb wandb_project", {
            "project": "wandb_project", "entity": "wandb_entity", "name": "wandb_name",
            "run_id": "wandb_run_id", "mode": "wandb_mode"}),
        ("mlflow", "use_mlflow mlflow_tracking_uri mlflow_experiment_name", {
            "uri": "mlflow_tracking_uri", "experiment": "mlflow_experiment_name",
            "name": "mlflow_run_name"}),
        ("comet", "use_comet", {"project": "comet_project_name", "workspace": "comet_workspace",
                                "run_id": "comet_experiment_key"}),
        ("trackio", "use_trackio trackio_project_name",
         {"project": "trackio_project_name", "name": "trackio_run_name"}),
    )  # fmt: skip
    if steps := c.number("profiler_steps"):
        c.set("profiling.active", steps, "profiler_steps")
        c.set("profiling.wait", c.number("profiler_steps_start") or 0, "profiler_steps_start")


DIALECT = Dialect(
    name="Axolotl",
    release="0.19",
    keys=KEYS,
    signature=("base_model",),
    complete=_complete,
    prefixes={"model_config": "overrides_of_model_config", "model_type": "type_of_model",
              "model_revision": "revision_of_model", "evaluation_strategy": "eval_strategy",
              "attention": "attn_implementation",
              "sequence_parallel_degree": "context_parallel_size", "model_kwargs": "device_map",
              "max_packed_sequence_len": "sequence_len",
              "dataset_num_proc": "dataset_processes",
              "relora_warmup_steps": "jagged_restart_warmup_steps",
              "relora_anneal_steps": "jagged_restart_anneal_steps",
              "noisy_embedding_alpha": "neftune_noise_alpha", "load_4bit": "load_in_4bit"},
    refused={"gpu_count": "a cloud file for `axolotl train --cloud`; convert the file of the job"},
    switches={"lora_": "adapter", "peft_": "adapter",
              "gradient_checkpointing_": "gradient_checkpointing",
              "evals_per_epoch": "val_set_size test_datasets"},
    prepare=_prepare,
)  # fmt: skip
