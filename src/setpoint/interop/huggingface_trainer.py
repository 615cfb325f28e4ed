"""`TrainingArguments` of transformers as JSON, with the arguments of the script run_clm.py.

The model is `model_name_or_path`, or the one described by a config.json in the folder of the file.
A step has per_device_train_batch_size * gradient_accumulation_steps sequences per rank, and its
loss is the mean over all their tokens; schedules, optimizers and shards are in
`transformers_trainer`.
"""

from __future__ import annotations

import math
import os
import re
from typing import Any, cast

from setpoint.interop import huggingface_sft as sft
from setpoint.interop.dialect import Conversion, Dialect, Key, keys_of, listed_keys
from setpoint.interop.transformers_trainer import (
    HUB,
    IDLE,
    NEFTUNE,
    convert_compilation,
    convert_optimizer,
    convert_recomputation,
    convert_schedule,
    convert_shards,
    options_of,
    period,
    read_json_file,
)

TRACKERS = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "aim": "aim",
            "comet_ml": "comet", "trackio": "trackio"}  # fmt: skip
KEYS = {
    "output_dir": Key(None, "workspace", optional=True),
    "seed": Key(42, "seed"),
    "full_determinism": Key(False, "deterministic"),
    # Batch and length.
    "per_device_train_batch_size": Key(8, "batch.micro_size"),
    "gradient_accumulation_steps": Key(1, "batch.accumulation"),
    **keys_of("", num_train_epochs=3.0, max_steps=-1),
    "average_tokens_across_devices": Key(True,
        differs="the loss is a mean over the tokens of all ranks; in transformers, the mean of "
                "each rank's mean"),
    "auto_find_batch_size": Key(False, refused="the batch size is fixed, not searched"),
    # Optimizer, schedule and loss.
    **keys_of("", optim="adamw_torch_fused"),
    "optim_target_modules": Key(None, refused="optimizers that project gradients (GaLore, "
                                              "APOLLO) are not supported"),
    "learning_rate": Key(5e-5, "optimizer.lr"),
    **keys_of("", weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8,
        max_grad_norm=1.0, lr_scheduler_type="linear", warmup_steps=0.0),
    "label_smoothing_factor": Key(0.0, "loss.label_smoothing", optional=True),
    "neftune_noise_alpha": NEFTUNE,
    # Precision, memory and compilation.
    **keys_of("", bf16=False, fp16=False),
    "bf16_full_eval": Key(False, refused="evaluation uses the precision of training"),
    "fp16_full_eval": Key(False, refused="evaluation uses the precision of training"),
    **keys_of("", torch_compile=False),
    "torch_empty_cache_steps": Key(None, "memory.empty_cache", unit="{} steps", optional=True),
    "use_liger_kernel": Key(False, "loss.type", {True: "chunked_cross_entropy"}, optional=True),
    # Ranks.
    "use_cpu": Key(False, "parallel.device", {True: "cpu"}, optional=True),
    "ddp_timeout": Key(1800, "parallel.timeout"),
    "ddp_find_unused_parameters": Key(None, refused="each parameter must get a gradient in each "
                                                    "step"),
    "accelerator_config": Key(None, refused="Setpoint does not use accelerate"),
    # Evaluation, logs and checkpoints.
    **keys_of("", eval_strategy="no", eval_on_start=False, per_device_eval_batch_size=8),
    "eval_delay": Key(0, refused="the first evaluation cannot be delayed"),
    **keys_of("", logging_strategy="steps", logging_steps=500.0, logging_first_step=False,
        project="huggingface", save_strategy="steps", save_steps=500.0),
    "save_total_limit": Key(None, "checkpoint.keep"),
    "save_only_model": Key(False, "checkpoint.last", {True: "weights"}, optional=True,
        differs="only the last checkpoint omits the training state"),
    "load_best_model_at_end": Key(False, "checkpoint.keep_best"),
    "sharded_ddp": Key(None, refused="use parallel.shard (sharded_ddp was replaced by fsdp)"),
    "ignore_data_skip": Key(False, refused="a resumed run always continues at its data position"),
    # Loader.
    "dataloader_num_workers": Key(0, "data.loader.workers"),
    "dataloader_pin_memory": Key(True, "data.loader.pin_memory"),
    "dataloader_drop_last": Key(False,
        refused="training batches are always full, since they continue in the next epoch"),
    **keys_of("", train_sampling_strategy="random", group_by_length=False),
    # The model and data of run_clm.py.
    **keys_of("", model_revision="main", validation_split_percentage=5, streaming=False),
}  # fmt: skip
"""Keys of `TrainingArguments` of transformers 5.23 and of run_clm.py, with their defaults."""
KEYS |= {
    name: Key(default, idle=IDLE) for name, default in {
        "log_level": "passive", "log_level_replica": "warning", "log_on_each_node": True,
        "skip_memory_metrics": True, "include_num_input_tokens_seen": "no",
        "remove_unused_columns": True, "length_column_name": "length", "keep_linebreaks": True,
        "eval_do_concat_batches": True, "dataloader_in_order": True, "logging_nan_inf_filter": True,
        "local_rank": -1, "use_fast_tokenizer": True,
    }.items()
}  # fmt: skip
KEYS |= listed_keys("huggingface_trainer") | sft.KEYS
KEYS["hub_strategy"] = Key("every_save", refused=HUB)
KEYS["adafactor"] = Key(False, decision="set optim to adafactor")
KEYS["trust_remote_code"] = Key(False, refused="remote code of models and data sets is never run")


def _prepare(c: Conversion) -> None:
    """Drop the placeholders that transformers writes for secrets and unset values."""
    defaults = {"even_batches": True, "use_seedable_sampler": True}
    for key, value in [*c.values.items()]:
        options = cast("dict[str, Any]", value) if isinstance(value, dict) else {"": value}
        is_secret = isinstance(value, str) and re.fullmatch("<[A-Z_]+>", value)
        is_usual = key == "accelerator_config" and all(
            not option or defaults.get(name) == option for name, option in options.items()
        )
        if is_secret or is_usual:
            del c.values[key]
        elif key.endswith("_strategy") and value is False:  # a plain `no` in YAML
            c.values[key] = "no"
    if sft.is_sft(c):
        sft.prepare_sft(c)


def _complete(c: Conversion) -> None:
    """Convert the keys that depend on each other."""
    total = _total(c)
    epochs = f"{c.number('num_train_epochs'):g} epochs"
    c.set("duration", f"{total} steps" if total else epochs, "max_steps", "num_train_epochs")
    _model(c)
    if sft.is_sft(c):
        sft.convert_adapter(c)
        sft.convert_data(c)
        _order(c)
    else:
        _data(c)
    warmup = c.number("warmup_ratio") or c.number("warmup_steps")
    _length_of_warmup(c, warmup, total)
    convert_schedule(c, "lr_scheduler_type", total)
    convert_optimizer(c, "optim")
    _memory(c)
    convert_shards(c)
    _records(c, total)


def _total(c: Conversion) -> int | None:
    """Number of updates in the run; None if its length is given in epochs."""
    total = c.number("max_steps")
    return total if total and total > 0 else None


def _length_of_warmup(c: Conversion, warmup: float | None, total: int | None) -> None:
    """Number of warm-up steps; a value below 1 is a fraction of all steps, rounded up."""
    keys = ("warmup_steps", "warmup_ratio")
    keys = keys if c.given("warmup_steps") else keys[::-1]
    if not warmup or warmup >= 1:
        c.set("schedule.warmup", f"{int(warmup or 0)} steps", *keys)
    elif total:
        c.set("schedule.warmup", f"{math.ceil(total * warmup)} steps", *keys)
    else:
        c.set("schedule.warmup", f"{100 * warmup:.10g} %", *keys)
        if c.value("lr_scheduler_type") != "constant":  # which has no warm-up
            here = f"{100 * warmup:.10g} % of all steps, not rounded"
            c.differs(keys[0], here, "rounded up (max_steps instead of epochs makes both equal)")


def _model(c: Conversion) -> None:
    """The model, named directly, by its configuration, or by a config.json next to the file."""
    weights = c.at_revision(c.text("model_name_or_path"), "model_revision")
    config = c.at_revision(c.text("config_name"), "model_revision")
    folder = os.path.dirname(c.document.name) or "."
    local_folder = folder if os.path.isfile(os.path.join(folder, "config.json")) else None
    source = config or weights or local_folder
    if source is None:
        text = "the script defines the model in Python: set [model] and [tokenizer]"
        c.report("needs a decision", "model_name_or_path", text)
        return
    keys = ("config_name", "model_name_or_path")
    c.set("model.type", "huggingface")
    if weights:
        c.set("model.pretrained", weights, "model_name_or_path")
    if source != weights:
        c.set("model.config", source, *keys)
    if overrides := options_of(c, c.value("config_overrides")):
        c.set("model.overrides", overrides, "config_overrides")
    _dtype(c, source)
    backends = {"eager": "eager", "sdpa": "sdpa", "flash_attention_2": "flash_attention_2",
                "flex_attention": "flex_attention"}  # fmt: skip
    key = "attn_implementation"
    if "flash" in str(c.value(key)):  # of any release, or a kernel of the hub
        c.set("model.attention_backend", "flash_attention_2", key)
    elif c.value(key) is not None and (name := c.choice(key, *backends)):
        c.set("model.attention_backend", backends[name], key)
    c.tokenizer(c.text("tokenizer_name") or source, "tokenizer_name", *keys)


def _dtype(c: Conversion, source: str) -> None:
    """Dtype of the weights; by default transformers 5 uses that of the checkpoint."""
    dtype, path = c.value("dtype"), os.path.join(source, "config.json")
    if dtype in ("bfloat16", "float32"):
        c.set("precision.params", {"bfloat16": "bf16"}.get(dtype, "fp32"), "dtype")
        return
    if dtype in (None, "auto") and os.path.isfile(path):
        config = read_json_file(c, "model_name_or_path", path)
        dtype = config.get("dtype", config.get("torch_dtype", "float32"))
    if dtype != "float32":
        shown = "the dtype of the checkpoint" if dtype in (None, "auto") else dtype
        text = f"weights are in fp32, not in {shown}; precision.params = bf16 keeps them in bf16"
        c.report("differs", "dtype", text)


def _data(c: Conversion) -> None:
    """Texts from a data set or file, concatenated into rows without isolation."""
    name, file = c.text("dataset_name"), c.text("train_file")
    if not name and not file:
        text = "the script defines the data in Python: set [data] and batch.sequence_length"
        c.report("needs a decision", "dataset_name", text)
    else:
        c.set("data.held_out", 0)
        text = (
            "documents are separated by a token, and every position of a row has a target; in "
            "run_clm, "
            "texts are joined without one, and the first token of a block is not a target"
        )
        c.report("differs", "dataset_name" if name else "train_file", text)
        _sources(c, name, file)
    if isinstance(length := c.number("block_size"), int):
        c.set("batch.sequence_length", length, "block_size")
    elif name or file:
        text = "run_clm uses the tokenizer's maximum, at most 1024: set batch.sequence_length"
        c.report("needs a decision", "block_size", text)
    _order(c)


def _order(c: Conversion) -> None:
    """Order of the rows, and the loader."""
    strategy = c.choice("train_sampling_strategy", "random", "sequential", "group_by_length")
    if strategy == "group_by_length" or c.value("group_by_length"):
        key = "group_by_length" if c.value("group_by_length") else "train_sampling_strategy"
        if c.data.get("data", {}).get("packing", {}).get("method") == "none":
            c.set("data.packing.length_buckets", True, key)
        else:
            c.report("without effect", key, "all rows of run_clm have block_size tokens")
    elif strategy == "sequential":
        c.set("data.shuffle", False, "train_sampling_strategy")
    elif c.value("streaming"):  # the Trainer does not shuffle an iterable dataset
        c.set("data.shuffle", False, "streaming")
    c.copy_given({"data.seed": "data_seed", "data.loader.prefetch": "dataloader_prefetch_factor",
                  "data.prepare.workers": "preprocessing_num_workers"})  # fmt: skip


def _sources(c: Conversion, name: str | None, file: str | None) -> None:
    """The sources of training and evaluation, as run_clm.py reads them."""
    count, evaluated = c.number("max_train_samples"), c.number("max_eval_samples")
    common: dict[str, Any] = {
        "type": "huggingface", "path": name, "subset": c.text("dataset_config_name"),
        "streaming": c.value("streaming") or None,
    }  # fmt: skip
    validation: list[dict[str, Any]] = []
    if name:
        train = {**common, "split": f"train[:{count}]" if count else "train"}
        split = f"validation[:{evaluated}]" if evaluated else "validation"
        validation = [{**common, "streaming": None, "split": split}]
        if c.value("eval_strategy") != "no":
            share = c.number("validation_split_percentage")
            text = (
                f"the split `validation` is evaluated; run_clm takes the first {share} % of "
                f"train if there is none"
            )
            c.report("differs", "validation_split_percentage", text)
    else:
        train = {"type": "text", "paths": [file]}
        if count:
            c.report("needs a decision", "max_train_samples", "write a file with only these texts")
        if other := c.text("validation_file"):
            validation = [{"type": "text", "paths": [other]}]
        elif c.value("eval_strategy") != "no":
            share = c.number("validation_split_percentage") / 100
            c.set("data.held_out", share, "validation_split_percentage")
    c.set_items("data.sources", [train], "dataset_name", "train_file")
    c.set("data.packing.isolate", False)
    if validation and c.value("eval_strategy") != "no":
        c.set_items("data.validation", validation, "validation_file", "dataset_name")
        del c.data["data"]["held_out"]
        c.set("evaluation.sequences", None, "max_eval_samples")


def _memory(c: Conversion) -> None:
    """Dtypes of products, recomputation and compilation."""
    if c.value("bf16") and c.value("fp16"):
        c.wrong("fp16", "valid together with bf16")
    elif c.value("bf16"):
        c.set("precision.compute", "bf16", "bf16")
    elif c.value("fp16"):
        c.set("precision.compute", "fp16", "fp16")
        c.set("precision.loss_scale", {}, "fp16")
        if not c.value("use_cpu"):
            c.set("parallel.device", "cuda", "fp16")  # there is no fp16 on a CPU there, too
    if isinstance(c.value("tf32"), bool):
        c.set("precision.tf32", c.value("tf32"), "tf32")
    convert_recomputation(c, "activation_checkpointing", "gradient_checkpointing")
    convert_compilation(c)


def _records(c: Conversion, total: int | None) -> None:
    """Evaluation, logs and checkpoints."""
    if c.number(size := "per_device_eval_batch_size") != KEYS[size].default:
        text = "evaluation uses batch.micro_size, which does not change its result"
        c.report("without effect", size, text)
    strategy = c.choice("eval_strategy", "no", "steps", "epoch")
    if strategy == "no":
        c.set("evaluation", None, "eval_strategy")
    elif strategy:
        key = "eval_steps" if c.value("eval_steps") else "logging_steps"
        period(c, "evaluation.every", "eval_strategy", key, total)
        if c.value("eval_on_start"):
            c.set("evaluation.before_training", True, "eval_on_start")
        metric = str(c.value("metric_for_best_model") or "loss").removeprefix("eval_")
        if c.value("greater_is_better") not in (None, metric == "accuracy"):
            text = "the best checkpoint has the lowest loss or the highest accuracy"
            c.report("refused", "greater_is_better", text)
        if metric not in ("loss", "accuracy"):
            text = (
                "metrics computed in Python are not available: the best checkpoint has the "
                "lowest loss"
            )
            c.report("differs", "metric_for_best_model", text)
        elif metric != "loss" and c.value("load_best_model_at_end"):
            c.set("evaluation.best.metric", metric, "metric_for_best_model")
            c.set("evaluation.accuracy", True, "metric_for_best_model")
    if c.choice("logging_strategy", "no", "steps", "epoch"):
        period(c, "tracking.every", "logging_strategy", "logging_steps", total)
    if (kind := c.choice("save_strategy", "no", "steps", "epoch", "best")) == "best":
        period(c, "checkpoint.every", "eval_strategy", "eval_steps", total)
    elif kind == "no":
        c.set("checkpoint.save", False, "save_strategy")
    elif kind:
        period(c, "checkpoint.every", "save_strategy", "save_steps", total)
    resume = c.value("resume_from_checkpoint")
    if isinstance(resume, str):
        text = "to start from the weights of this checkpoint, set model.pretrained"
        c.report("needs a decision", "resume_from_checkpoint", text)
    elif resume is True:
        c.set("checkpoint.resume", "must", "resume_from_checkpoint")
    if isinstance(c.value("disable_tqdm"), bool):
        c.set("tracking.progress", "lines" if c.value("disable_tqdm") else "bar", "disable_tqdm")
    c.copy_given({"parallel.backend": "ddp_backend", "parallel.bucket_size": "ddp_bucket_cap_mb"})
    trackers: list[dict[str, object]] = [{"type": "jsonl"}]
    for word in c.names("report_to"):
        if word in TRACKERS:
            run = c.value("run_name")
            named = run if TRACKERS[word] in ("wandb", "mlflow", "aim", "comet") else None
            tracker: dict[str, object] = {"type": TRACKERS[word], "name": named}
            if word == "wandb":
                tracker |= {part: c.text(f"wandb_{part}") for part in ("project", "entity")}
            trackers.append(tracker)
        elif word not in ("none", "all"):
            c.report("refused", "report_to", f"the tracker {word} is not supported")
    if c.value("report_to") == "all":
        text = "transformers uses all installed trackers: set tracking.trackers"
        c.report("needs a decision", "report_to", text)
    c.set_items("tracking.trackers", trackers, "report_to")
    if isinstance(run := c.value("run_name"), str):
        c.set("description", run, "run_name")


DIALECT = Dialect(
    name="TrainingArguments",
    release="transformers 5.23",
    keys=KEYS,
    signature=("per_device_train_batch_size", "output_dir", "num_train_epochs"),
    complete=_complete,
    prepare=_prepare,
    prefixes={"evaluation_strategy": "eval_strategy", "torch_dtype": "dtype",
              "per_gpu_train_batch_size": "per_device_train_batch_size",
              "max_seq_length": "max_length", "use_liger": "use_liger_kernel",
              "dataset_num_proc": "preprocessing_num_workers",
              "dataset_config": "dataset_config_name", "dataset_streaming": "streaming"},
    refused=sft.REFUSED,
    switches={"lora_": "use_peft", "use_dora": "use_peft", "use_rslora": "use_peft",
              "use_bnb_nested_quant": "load_in_4bit"},
)  # fmt: skip
