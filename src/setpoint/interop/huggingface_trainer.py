"""`TrainingArguments` of transformers as JSON, with the arguments of its script run_clm.py.

The model is `model_name_or_path`, or that of a config.json in the folder of the file. Axolotl
trains with the same Trainer and shares its schedules, optimizers and sharding.

Formulas of transformers 5: a step has per_device_train_batch_size * gradient_accumulation_steps
sequences per rank, and its loss is the mean over all their tokens. The rate of step s, from 0, is s
/ W of the peak in a warm-up of W steps, then a curve of (s - W) / (T - W). Decay applies to all
weights except those of norms and biases.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any, cast

from setpoint.config import SetpointError
from setpoint.config.files.read import read_file
from setpoint.interop import huggingface_sft as sft
from setpoint.interop.dialect import Conversion, Dialect, Key, keys_of

PRINTED = "it changes what is printed only"
LABELS = "rows are made of tokens and their labels alone"
HUB = "nothing is pushed to the hub while a run trains; `setpoint export` writes the model"
TRACKERS = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "aim": "aim",
            "comet_ml": "comet", "trackio": "trackio"}  # fmt: skip
OPTIMIZERS = {
    "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw",
    "adamw_torch_xla": "adamw", "adamw_torch_npu_fused": "adamw", "adamw_apex_fused": "adamw",
    "paged_adamw_32bit": "adamw", "paged_adamw": "adamw", "optimi_adamw": "adamw",
    "adamw_anyprecision": "anyprecision_adamw", "sgd": "sgd", "lion_32bit": "lion",
    "lion_pytorch": "lion", "paged_lion_32bit": "lion", "muon": "muon", "adafactor": "adafactor",
    "schedule_free_adamw": "schedule_free_adamw", "rmsprop": "import", "adagrad": "import",
}  # fmt: skip
"""Variants of [optimizer] by the names of transformers and of Axolotl."""
QUANTIZED = {
    "adamw_bnb_8bit": "adamw", "adamw_8bit": "adamw", "paged_adamw_8bit": "adamw",
    "adamw_torch_8bit": "adamw", "adamw_torch_4bit": "adamw", "ao_adamw_8bit": "adamw",
    "ao_adamw_4bit": "adamw", "ao_adamw_fp8": "adamw", "lion_8bit": "lion",
    "paged_lion_8bit": "lion",
}  # fmt: skip
"""Optimizers whose state is in 8 or 4 bits, by the variant with the same arithmetic."""

KEYS = {
    **keys_of("", run_name=None),
    "output_dir": Key(None, "workspace", optional=True),
    "seed": Key(42, "seed"),
    "data_seed": Key(None),
    "full_determinism": Key(False, "deterministic"),
    # Batch and length.
    "per_device_train_batch_size": Key(8, "batch.micro_size"),
    "gradient_accumulation_steps": Key(1, "batch.accumulation"),
    **keys_of("", num_train_epochs=3.0, max_steps=-1),
    "average_tokens_across_devices": Key(True,
        differs="the loss is a mean over the tokens of all ranks; there one of each rank's mean"),
    "auto_find_batch_size": Key(False, refused="the batch size is fixed, not searched"),
    # Optimizer, schedule and loss.
    **keys_of("", optim="adamw_torch_fused", optim_args=None),
    "optim_target_modules": Key(None, refused="no optimizer projects gradients (GaLore, APOLLO)"),
    "learning_rate": Key(5e-5, "optimizer.lr"),
    **keys_of("", weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8,
        max_grad_norm=1.0, lr_scheduler_type="linear", lr_scheduler_kwargs=None, warmup_steps=0.0,
        warmup_ratio=None),
    "label_smoothing_factor": Key(0.0, "loss.label_smoothing", optional=True),
    "neftune_noise_alpha": Key(None, refused="no noise is added to embeddings (NEFTune)"),
    # Precision, memory and compilation.
    **keys_of("", bf16=False, fp16=False),
    "bf16_full_eval": Key(False, refused="evaluation computes as training does"),
    "fp16_full_eval": Key(False, refused="evaluation computes as training does"),
    **keys_of("", tf32=None, activation_checkpointing=None, activation_checkpointing_kwargs=None,
        gradient_checkpointing=None, gradient_checkpointing_kwargs=None, torch_compile=False,
        torch_compile_backend=None, torch_compile_mode=None, liger_kernel_config=None),
    "torch_empty_cache_steps": Key(None, "memory.empty_cache", unit="{} steps", optional=True),
    "use_liger_kernel": Key(False, "loss.type", {True: "chunked_cross_entropy"}, optional=True),
    # Ranks.
    **keys_of("", ddp_backend=None),
    "use_cpu": Key(False, "parallel.device", {True: "cpu"}, optional=True),
    "ddp_timeout": Key(1800, "parallel.timeout"),
    "ddp_bucket_cap_mb": Key(None),
    "ddp_find_unused_parameters": Key(None, refused="every parameter takes part in each step"),
    **keys_of("", fsdp=None, fsdp_config=None, deepspeed=None, parallelism_config=None),
    "accelerator_config": Key(None, refused="accelerate has no part in a run"),
    # Evaluation, logs and checkpoints.
    **keys_of("", eval_strategy="no", eval_steps=None, eval_on_start=False),
    "eval_delay": Key(0, refused="evaluation begins with training"),
    "per_device_eval_batch_size": Key(8, refused="evaluation has batches of batch.micro_size"),
    **keys_of("", logging_strategy="steps", logging_steps=500.0, logging_first_step=False,
        disable_tqdm=None, report_to=None, project="huggingface", save_strategy="steps",
        save_steps=500.0),
    "save_total_limit": Key(None, "checkpoint.keep"),
    "save_only_model": Key(False, "checkpoint.last", {True: "weights"}, optional=True,
        differs="of the last checkpoint only; others can be resumed"),
    "load_best_model_at_end": Key(False, "checkpoint.keep_best"),
    **keys_of("", metric_for_best_model=None, greater_is_better=None, resume_from_checkpoint=None),
    "sharded_ddp": Key(None, refused="a former name of fsdp: set parallel.shard"),
    "ignore_data_skip": Key(False, refused="a resumed run goes on with the data where it was"),
    # Loader.
    "dataloader_num_workers": Key(0, "data.loader.workers"),
    "dataloader_pin_memory": Key(True, "data.loader.pin_memory"),
    "dataloader_prefetch_factor": Key(None),
    "dataloader_drop_last": Key(False,
        refused="the stream of rows crosses epochs: no batch of training is smaller"),
    **keys_of("", train_sampling_strategy="random", group_by_length=False),
    # The model and data of run_clm.py.
    **keys_of("", model_revision="main", model_name_or_path=None, config_name=None,
        config_overrides=None, tokenizer_name=None, dtype=None, attn_implementation=None,
        dataset_name=None, dataset_config_name=None, train_file=None, validation_file=None,
        validation_split_percentage=5, max_train_samples=None, max_eval_samples=None,
        block_size=None, streaming=False, preprocessing_num_workers=None),
}  # fmt: skip
"""Keys of `TrainingArguments` of transformers 5.23 and of run_clm.py, with their defaults."""

KEYS |= {
    name: Key(default, idle=reason)
    for reason, defaults in {
        PRINTED: {"log_level": "passive", "log_level_replica": "warning", "log_on_each_node": True,
                  "skip_memory_metrics": True, "debug": "", "logging_dir": None,
                  "include_num_input_tokens_seen": "no", "include_tokens_per_second": None},
        LABELS: {"remove_unused_columns": True, "label_names": None, "length_column_name": "length",
                 "keep_linebreaks": True, "overwrite_cache": False, "cache_dir": None},
        "the loss is the only metric": {
            "include_for_metrics": [], "batch_eval_metrics": False, "prediction_loss_only": False,
            "eval_do_concat_batches": True, "eval_use_gather_object": False,
            "eval_accumulation_steps": None, "include_inputs_for_metrics": None},
        "it does not change the arithmetic": {
            "ddp_broadcast_buffers": None, "ddp_static_graph": None, "dataloader_in_order": True,
            "dataloader_persistent_workers": False, "dataloader_multiprocessing_context": None,
            "logging_nan_inf_filter": True, "save_on_each_node": False, "save_safetensors": None,
            "overwrite_output_dir": None, "past_index": None, "local_rank": -1,
            "half_precision_backend": None, "xpu_backend": None,
            "enable_jit_checkpoint": False, "use_fast_tokenizer": True, "low_cpu_mem_usage": False,
            "restore_callback_states_from_checkpoint": False, "token": None, "no_cuda": None,
            "fp16_backend": None, "fp16_opt_level": None, "_n_gpu": None, "mp_parameters": None,
            "ray_scope": None, "use_legacy_prediction_loop": None, "use_mps_device": None,
            "jit_mode_eval": None, "use_ipex": None, "tpu_num_cores": None, "torchdynamo": None,
            "tpu_metrics_debug": None, "per_gpu_eval_batch_size": None, "dispatch_batches": None,
            "split_batches": None, "fsdp_min_num_params": None, "tp_size": None,
            "fsdp_transformer_layer_cls_to_wrap": None, "use_cache": False},
        "the command says what is done: `setpoint train`": {
            "do_train": False, "do_eval": False, "do_predict": False},
    }.items()
    for name, default in defaults.items()
}  # fmt: skip
KEYS |= {
    name: Key(default, refused=HUB)
    for name, default in {
        "push_to_hub": False, "hub_token": None, "hub_private_repo": None, "hub_model_id": None,
        "hub_strategy": "every_save", "hub_always_push": False, "hub_revision": None,
        "push_to_hub_model_id": None, "push_to_hub_organization": None, "push_to_hub_token": None,
        "trackio_space_id": None, "trackio_bucket_id": None, "trackio_static_space_id": None,
    }.items()
}  # fmt: skip
KEYS |= sft.KEYS
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
    if sft.is_sft(c):
        sft.prepare_sft(c)


def _complete(c: Conversion) -> None:
    """Convert the keys that depend on one another."""
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
    """Number of updates of the run; None if its length is in epochs."""
    total = c.number("max_steps")
    return total if total and total > 0 else None


def _length_of_warmup(c: Conversion, warmup: float | None, total: int | None) -> None:
    """Steps of warm-up, or below 1 a share of all steps, rounded up."""
    keys = ("warmup_steps", "warmup_ratio")
    keys = keys if c.given("warmup_steps") else keys[::-1]
    if not warmup or warmup >= 1:
        c.set("schedule.warmup", f"{int(warmup or 0)} steps", *keys)
    elif total:
        c.set("schedule.warmup", f"{math.ceil(total * warmup)} steps", *keys)
    else:
        c.set("schedule.warmup", f"{100 * warmup:.10g} %", *keys)


def convert_schedule(c: Conversion, key: str, total: int | None) -> None:
    """Set the learning-rate curve after a warm-up that is already set."""
    names = {"linear": "linear", "cosine": "cosine", "cosine_with_min_lr": "cosine",
             "cosine_warmup_with_min_lr": "cosine",
             "cosine_with_restarts": "cosine", "polynomial": "polynomial", "constant": "none",
             "constant_with_warmup": "constant", "inverse_sqrt": "inverse_sqrt",
             "reduce_lr_on_plateau": "plateau", "warmup_stable_decay": "wsd"}  # fmt: skip
    if (name := c.choice(key, *names)) is None:
        return
    options, kwargs = c.mapping("lr_scheduler_kwargs"), ("lr_scheduler_kwargs", key)
    numbers = {name: value for name, value in options.items() if not name.endswith("_type")}
    if not all(type(value) in (int, float) for value in numbers.values()):
        c.wrong("lr_scheduler_kwargs", "a mapping of numbers and of types by name")
        options = {}
    peak = c.number("learning_rate") or 1
    warmup = c.data["schedule"].pop("warmup")
    c.set("schedule.type", names[name], key)
    if name == "constant":
        return
    c.warm_up(warmup, "warmup_steps", "warmup_ratio")
    least = options.get("min_lr_rate", options.get("min_lr", 0) / peak)
    floor = {"polynomial": options.get("lr_end", 1e-7) / peak,
             "cosine_with_min_lr": least, "cosine_warmup_with_min_lr": least,
             "warmup_stable_decay": options.get("min_lr_ratio", 0.0)}.get(name, 0.0)  # fmt: skip
    if name not in ("constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau"):
        c.set("schedule.floor", float(floor), *kwargs)
    known = {"lr_end", "min_lr", "min_lr_rate", "min_lr_ratio"}
    if name == "polynomial":
        known.add("power")
        c.set("schedule.power", float(options.get("power", 1.0)), *kwargs)
    if name == "cosine_warmup_with_min_lr":
        known.add("warmup_lr_rate")
        _ahead(c, key, warmup, total, options.get("warmup_lr_rate"))
    if name == "inverse_sqrt":
        known.add("timescale")
        steps = options.get("timescale") or (warmup if warmup[0] != "0" else "10000 steps")
        c.set("schedule.timescale", f"{steps} steps" if isinstance(steps, int) else steps, *kwargs)
    if name == "reduce_lr_on_plateau":
        known |= {"factor", "patience", "threshold", "cooldown"}
        defaults = {"factor": 0.1, "patience": 10, "threshold": 1e-4, "cooldown": 0}
        for option, default in defaults.items():
            c.set(f"schedule.{option}", options.get(option, default), *kwargs)
    if name == "warmup_stable_decay":
        known |= {"num_decay_steps", "num_stable_steps", "decay_type"}
        if options.get("warmup_type") == "linear":
            known.add("warmup_type")
        curves = {"linear": "linear", "cosine": "cosine", "1-sqrt": "one_minus_sqrt"}
        curve = curves.get(str(options.get("decay_type", "cosine")))
        decay, stable = options.get("num_decay_steps"), options.get("num_stable_steps")
        if curve is None or type(decay) is not int:
            expected = "with num_decay_steps and a decay_type of " + ", ".join(curves)
            c.wrong("lr_scheduler_kwargs", expected)
            return
        c.set("schedule.decay", curve, *kwargs)
        c.set("schedule.decay_length", f"{decay} steps", *kwargs)
        if type(stable) is int and warmup.endswith(" steps"):
            end = int(warmup.partition(" ")[0]) + stable + decay
            c.set("schedule.horizon", f"{end} steps", *kwargs)
        if floor:
            c.set("schedule.warmup_from", float(floor), *kwargs)
    if name == "cosine_with_restarts":
        cycles = options.get("num_cycles", 1)
        rise = int(warmup.partition(" ")[0]) if total and warmup.endswith("steps") else 0
        is_whole = bool(total) and type(cycles) is int and (total - rise) % max(1, cycles) == 0
        known.update(["num_cycles"] if cycles == 1 or is_whole else [])
        if cycles > 1 and total and is_whole:
            _restarts(c, key, rise, (total - rise) // cycles, cycles)
    if unknown := [option for option in options if option not in known]:
        text = f"{', '.join(unknown)}: no curve has it; schedule.type = piecewise takes any phases"
        c.report("needs a decision", "lr_scheduler_kwargs", text)


def _ahead(c: Conversion, key: str, warmup: str, total: int | None, start: float | None) -> None:
    """Set a cosine whose every step has the factor of its end, by a curve one step shorter."""
    count, _, unit = warmup.partition(" ")
    if not total or unit != "steps" or int(count) < 1:
        c.report("differs", key, "the curve is one step behind that of transformers")
        return
    del c.data["schedule"]["warmup"]
    c.data["schedule"].pop("warmup_at", None)
    c.warm_up(f"{int(count) - 1} steps", "warmup_steps", "warmup_ratio")
    c.set("schedule.horizon", f"{total - 1} steps", "max_steps")
    if int(count) > 1:
        c.set("schedule.warmup_from", 1 / int(count) if start is None else float(start), key)


def _restarts(c: Conversion, key: str, rise: int, length: int, cycles: int) -> None:
    """Set a cosine that starts again after each cycle, as phases."""
    warmup = [(1, 0.0, "linear"), (rise - 1, 1 - 1 / rise, "linear")] if rise else []
    cycle = [(0, 1.0, "linear"), (length, 0.0, "cosine")]
    phases = [
        {"length": f"{count} steps", "target": target, "curve": curve}
        for count, target, curve in [*warmup, *cycle * cycles]
    ]
    c.data["schedule"].clear()
    c.set("schedule.type", "piecewise", key)
    c.set_items("schedule.phases", phases, "lr_scheduler_kwargs", key)


def convert_optimizer(c: Conversion, key: str) -> None:
    """Set the optimizer by its name, with decay of all weights but those of norms and biases."""
    if (name := c.choice(key, *OPTIMIZERS, *QUANTIZED)) is None:
        return
    kind = OPTIMIZERS.get(name) or QUANTIZED[name]
    c.set("optimizer.type", kind, key)
    if name in QUANTIZED:
        text = "optimizer state is in the dtype of the weights, there in few bits: a class of "
        c.report("differs", key, text + "bitsandbytes is optimizer.type = import, by --import")
    elif kind == "adafactor":
        text = "the rate is absolute there (scale_parameter and relative_step off), relative here"
        c.report("differs", key, text)
    decay = c.number("weight_decay") or 0.0
    c.set("optimizer.weight_decay", float(decay), "weight_decay")
    if decay:
        c.set("optimizer.no_decay", ["norm", "bias"])
    clip = c.number("max_grad_norm")
    c.set("optimizer.clip_norm", float(clip) if clip else None, "max_grad_norm")
    if kind not in ("sgd", "adafactor", "import"):
        betas = [c.number("adam_beta1") or 0.9, c.number("adam_beta2") or 0.999]
        c.set("optimizer.betas", betas, "adam_beta1", "adam_beta2")
    if kind not in ("sgd", "adafactor", "import", "lion"):
        c.set("optimizer.eps", float(c.number("adam_epsilon") or 1e-8), "adam_epsilon")
    if name in ("adamw_torch", "adamw_torch_fused"):
        fused = "fused" if name.endswith("fused") else "foreach"
        c.set("optimizer.implementation", fused, key)
    arguments = _arguments(c, c.value("optim_args"))
    if kind == "import":
        target = {"rmsprop": "torch.optim.RMSprop"}.get(name, "torch.optim.Adagrad")
        c.set("optimizer.target", target, key)
        for option in [*arguments]:
            c.set(f"optimizer.{option}", arguments.pop(option), "optim_args")
    if kind == "sgd":
        c.set("optimizer.momentum", arguments.pop("momentum", 0.0), "optim_args", key)
        c.set("optimizer.nesterov", arguments.pop("nesterov", False), "optim_args", key)
    if arguments:
        text = f"{', '.join(arguments)}: set [optimizer] where a field has it"
        c.report("needs a decision", "optim_args", text)


def _arguments(c: Conversion, value: object) -> dict[str, Any]:
    """Options given as a mapping or as `name=value,name=value`."""
    if isinstance(value, dict):
        return dict(cast("dict[str, Any]", value))
    pairs = [part.partition("=") for part in value.split(",")] if isinstance(value, str) else []
    return {name.strip(): plain(text) for name, equals, text in pairs if equals}


def plain(text: str) -> Any:
    """A scalar of a command line: a bool, a number, or the text."""
    words: dict[str, object] = {"true": True, "false": False, "none": None, "null": None}
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip()


def _model(c: Conversion) -> None:
    """A model by its name, by that of its configuration, or by the config.json beside the file."""
    weights = c.at_revision(c.text("model_name_or_path"), "model_revision")
    config = c.at_revision(c.text("config_name"), "model_revision")
    folder = os.path.dirname(c.document.name) or "."
    local_folder = folder if os.path.isfile(os.path.join(folder, "config.json")) else None
    source = config or weights or local_folder
    if source is None:
        text = "the script takes the model in Python: set [model] and [tokenizer]"
        c.report("needs a decision", "model_name_or_path", text)
        return
    keys = ("config_name", "model_name_or_path")
    c.set("model.type", "huggingface")
    if weights:
        c.set("model.pretrained", weights, "model_name_or_path")
    if source != weights:
        c.set("model.config", source, *keys)
    if overrides := _arguments(c, c.value("config_overrides")):
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
    """Dtype of the weights: transformers 5 takes that of the checkpoint unless it is given."""
    dtype, path = c.value("dtype"), os.path.join(source, "config.json")
    if dtype in ("bfloat16", "float32"):
        c.set("precision.params", {"bfloat16": "bf16"}.get(dtype, "fp32"), "dtype")
        return
    if dtype in (None, "auto") and os.path.isfile(path):
        config = _json(c, "model_name_or_path", path)
        dtype = config.get("dtype", config.get("torch_dtype", "float32"))
    if dtype != "float32":
        shown = "that of the checkpoint" if dtype in (None, "auto") else dtype
        text = f"weights are in fp32, not in {shown}; precision.params = bf16 keeps them in bf16"
        c.report("differs", "dtype", text)


def _data(c: Conversion) -> None:
    """Texts of a data set or a file, concatenated into rows without isolation."""
    name, file = c.text("dataset_name"), c.text("train_file")
    if not name and not file:
        text = "the script takes the data in Python: set [data] and batch.sequence_length"
        c.report("needs a decision", "dataset_name", text)
    else:
        c.set("data.held_out", 0)
        _sources(c, name, file)
    if isinstance(length := c.number("block_size"), int):
        c.set("batch.sequence_length", length, "block_size")
    elif name or file:
        text = "as long as the tokenizer allows, up to 1024 there: set batch.sequence_length"
        c.report("needs a decision", "block_size", text)
    _order(c)


def _order(c: Conversion) -> None:
    """Order of rows, and the loader."""
    strategy = c.choice("train_sampling_strategy", "random", "sequential", "group_by_length")
    if strategy == "group_by_length" or c.value("group_by_length"):
        key = "group_by_length" if c.value("group_by_length") else "train_sampling_strategy"
        if c.data.get("data", {}).get("packing", {}).get("method") == "none":
            c.set("data.packing.length_buckets", True, key)
        else:
            c.report("without effect", key, "the rows of run_clm are all as long as block_size")
    elif strategy == "sequential":
        c.set("data.shuffle", False, "train_sampling_strategy")
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
            text = f"the split `validation`; there the first {share} % of train if there is none"
            c.report("differs", "validation_split_percentage", text)
    else:
        train = {"type": "text", "paths": [file]}
        if count:
            c.report("needs a decision", "max_train_samples", "cut the file of texts yourself")
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
        c.wrong("fp16", "given beside bf16: at most one of them is true")
    elif c.value("bf16"):
        c.set("precision.compute", "bf16", "bf16")
    elif c.value("fp16"):
        c.set("precision.compute", "fp16", "fp16")
        c.set("precision.loss_scale", {}, "fp16")
        if not c.value("use_cpu"):
            c.set("parallel.device", "cuda", "fp16")  # there is no fp16 on a CPU there, too
    if isinstance(c.value("tf32"), bool):
        c.set("precision.tf32", c.value("tf32"), "tf32")
    convert_recomputation(c, "gradient_checkpointing")
    if c.value("activation_checkpointing"):
        convert_recomputation(c, "activation_checkpointing")
    convert_compilation(c)


def convert_recomputation(c: Conversion, key: str) -> None:
    """Recompute whole layers where a key is true."""
    if not c.value(key):
        return
    path, kwargs = "memory.activation_checkpointing", f"{key}_kwargs"
    c.set(f"{path}.type", "full", key)
    if c.mapping(kwargs).get("use_reentrant"):
        c.set(f"{path}.reentrant", True, kwargs)


def convert_compilation(c: Conversion) -> None:
    """Compile the whole model, as a backend or mode beside the switch says."""
    keys = ("torch_compile", "torch_compile_backend", "torch_compile_mode")
    if not any(c.value(key) for key in keys):
        return
    c.set("compile.scope", "model", *keys)
    for key, field in (("torch_compile_backend", "backend"), ("torch_compile_mode", "mode")):
        if text := c.text(key):
            c.set(f"compile.{field}", text, key)


def convert_shards(c: Conversion) -> None:
    """FSDP and DeepSpeed, by the words and sections that accelerate takes."""
    if c.value("deepspeed"):
        _deepspeed(c)
        return
    value, given = c.value("fsdp"), c.value("fsdp_config")
    section = _json(c, "fsdp_config", given) if isinstance(given, str) else c.mapping("fsdp_config")
    options = {name.removeprefix("fsdp_"): option for name, option in section.items()}
    if not value and not (options and c.dialect.name == "Axolotl"):
        return
    words = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    reshard = options.get("reshard_after_forward", "shard_grad_op" not in words)
    c.set("parallel.shard", -1, "fsdp", "fsdp_config")
    strategy = str(options.get("sharding_strategy", words)).lower()
    if str(reshard).lower() in ("false", "shard_grad_op") or strategy in ("2", "shard_grad_op"):
        c.set("parallel.reshard", False, "fsdp_config", "fsdp")
    if "hybrid" in strategy:
        text = "weights are whole on each node there: set parallel.shard to its number of GPUs"
        c.report("needs a decision", "fsdp", text)
    if "no_shard" in strategy:
        c.set("parallel.shard", 1, "fsdp_config", "fsdp")
    offload = options.get("cpu_offload", options.get("offload_params"))
    if "offload" in words.split() or str(offload).lower() == "true":
        c.set("parallel.sharding.offload", True, "fsdp_config", "fsdp")
    if str(options.get("activation_checkpointing")).lower() == "true":
        c.set("memory.activation_checkpointing.type", "full", "fsdp_config")
    if str(options.get("cpu_ram_efficient_loading")).lower() == "true":
        c.set("parallel.load_weights", "broadcast", "fsdp_config")
    if (precision := c.data.get("precision", {})).get("compute") == "bf16":  # accelerate's policy
        c.set("precision.reduce", "bf16", "fsdp", "fsdp_config")
        if precision.get("params") == "bf16":  # what is trained is copied to fp32
            is_whole = "adapter" not in c.data
            c.set(f"precision.{'params' if is_whole else 'master'}", "fp32", "fsdp", "fsdp_config")
    if "mixed_precision_policy" in options and str(options["mixed_precision_policy"]) == "bf16":
        c.set("precision.gather", "bf16", "fsdp_config")
    known = {"version", "min_num_params", "transformer_layer_cls_to_wrap", "auto_wrap_policy",
             "state_dict_type", "use_orig_params", "sync_module_states", "forward_prefetch",
             "backward_prefetch", "backward_prefetch_policy", "limit_all_gathers", "xla",
             "reshard_after_forward", "sharding_strategy", "cpu_offload", "offload_params",
             "activation_checkpointing", "cpu_ram_efficient_loading", "final_state_dict_type",
             "mixed_precision_policy"}  # fmt: skip
    if unknown := [name for name in options if name not in known]:
        c.wrong("fsdp_config", f"with options that FSDP has, but {', '.join(unknown)}")


def _deepspeed(c: Conversion) -> None:
    """The stage of ZeRO and what is offloaded, of a section, a file or the name of a usual file."""
    value = c.value("deepspeed")
    if isinstance(value, str):
        value = _json(c, "deepspeed", value)
    settings: Any = value if isinstance(value, dict) else {}
    if not isinstance(zero := settings.get("zero_optimization"), dict):
        text = "the file is not here: set parallel.engine.stage and offload as it has them"
        c.report("needs a decision", "deepspeed", text)
        c.set("parallel.engine.type", "deepspeed", "deepspeed")
        return
    options = cast("dict[str, Any]", zero)
    stage = options.get("stage", 0)
    if not stage:
        return
    if stage not in (1, 2, 3):
        c.wrong("deepspeed", f"with a zero_optimization.stage of 0 to 3, but {stage!r}")
        return
    c.set("parallel.engine.type", "deepspeed", "deepspeed")
    c.set("parallel.engine.stage", stage, "deepspeed")
    if "params" in c.data.get("precision", {}) and "adapter" not in c.data:
        c.set("precision.params", "fp32", "deepspeed")  # that of its masters
    devices = {part: option.get("device") for part in ("optimizer", "param")
               if isinstance(option := options.get(f"offload_{part}"), dict)}  # fmt: skip
    if devices.get("optimizer") in ("cpu", "nvme"):
        offload = "all" if devices.get("param") in ("cpu", "nvme") else "optimizer"
        c.set("parallel.engine.offload", offload, "deepspeed")
    if isinstance(overlap := options.get("overlap_comm"), bool):
        c.set("parallel.engine.overlap", overlap, "deepspeed")


def _json(c: Conversion, key: str, path: str) -> Mapping[str, Any]:
    """A JSON file named by a key; if it is missing, settings implied by DeepSpeed's file names."""
    folder = os.path.dirname(c.document.name)
    for place in (path, os.path.join(folder, path)):
        if os.path.isfile(place) and place.endswith(".json"):
            try:
                return cast("Mapping[str, Any]", read_file(place).data)
            except SetpointError as error:
                c.wrong(key, f"a file that can be read: {error}")
                return {}
    name = os.path.basename(path).removesuffix(".json")
    if key == "deepspeed" and name.startswith(("zero1", "zero2", "zero3")):
        offload = {"offload_optimizer": {"device": "cpu"}} if "cpuoffload" in name else {}
        if offload and "all" in name:
            offload["offload_param"] = {"device": "cpu"}
        return {"zero_optimization": {"stage": int(name[4]), **offload}}
    return {}


def period(c: Conversion, path: str, strategy: str, key: str, total: int | None) -> None:
    """Set a period by its strategy: never, each epoch, or steps, below 1 a share of them all."""
    kind, steps = c.value(strategy), c.number(key)
    if kind == "epoch":
        c.set(path, "1 epochs", strategy)
    elif kind == "no":
        c.set(path, "never", strategy)
    elif not steps or steps < 0:
        c.wrong(key, "a positive number of steps")
    elif steps >= 1:
        c.set(path, f"{int(steps)} steps", key, strategy)
    elif total:
        c.set(path, f"{math.ceil(total * steps)} steps", key, strategy)
    else:
        text = f"a share of all steps, of which epochs say no number: set {path}"
        c.report("needs a decision", key, text)


def _records(c: Conversion, total: int | None) -> None:
    """Evaluation, logs and checkpoints."""
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
            text = "the best has the lowest loss or the highest accuracy"
            c.report("refused", "greater_is_better", text)
        if metric not in ("loss", "accuracy"):
            text = "metrics of a function in Python: the best is that of the lowest loss"
            c.report("differs", "metric_for_best_model", text)
        elif metric != "loss" and c.value("load_best_model_at_end"):
            c.set("evaluation.best.metric", metric, "metric_for_best_model")
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
        text = "a checkpoint of transformers: its weights are model.pretrained"
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
            trackers.append({"type": TRACKERS[word], "name": named})
        elif word not in ("none", "all"):
            c.report("refused", "report_to", f"there is no tracker {word}")
    if c.value("report_to") == "all":
        text = "all that are installed there: set tracking.trackers"
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
              "max_seq_length": "max_length", "dataset_num_proc": "preprocessing_num_workers",
              "dataset_config": "dataset_config_name", "dataset_streaming": "streaming"},
    refused=sft.REFUSED,
    switches={"lora_": "use_peft", "use_dora": "use_peft", "use_rslora": "use_peft",
              "use_bnb_nested_quant": "load_in_4bit"},
)  # fmt: skip
