"""What a training job answers to names of other systems whose values do not mean the same here.

Names whose value means the same stand at their field, as `also_called`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import cast

from setpoint.config import Converter, Given, Ours, for_shell, preset_named
from setpoint.data.tokenizers.config import GPT2, tokenizer_value
from setpoint.units import Duration

PEAK = ("lr", "learning_rate", "base_lr", "max_lr", "peak_lr")
EPOCHS = ("num_train_epochs", "num_epochs", "max_epochs", "epochs", "n_epochs")
PER_DEVICE = ("per_device_train_batch_size", "per_device_batch_size", "micro_batch_size",
              "train_micro_batch_size_per_gpu", "device_batch_size")  # fmt: skip
ACCUMULATION = ("gradient_accumulation_steps", "gradient_accumulation_iters",
                "grad_accumulation_steps", "grad_accum_steps", "accumulate_grad_batches",
                "grad_accum", "accumulation_steps", "gradient_accumulation")  # fmt: skip
TRACKERS = {name: name for name in ("wandb", "tensorboard", "mlflow", "comet", "aim", "trackio")}
TRACKERS |= {"comet_ml": "comet"}
OTHER_TRACKERS = ("neptune", "clearml", "swanlab")
STEPS = ("max_steps", "train_steps", "total_steps", "num_steps", "max_iters", "train_iters")


def _whole(number: float) -> str:
    return f"{number:.10g}"


def _lasting(unit: str) -> Converter:
    """A duration in a unit; 0 and less leave it open in other systems."""

    def convert(given: Given) -> Ours | str | None:
        if given.number is None:
            return None
        if given.number <= 0:
            return f"Here duration says when training ends, as in 3 {unit}; leave {given.name} out."
        return Ours({"duration": f"{_whole(given.number)} {unit}"})

    return convert


def _time(given: Given) -> Ours | str | None:
    """`max_time`, as in `00:12:00:00` for days, hours, minutes and seconds, or a composer time."""
    parts = given.text.split(":")
    if len(parts) > 1 and all(part.isdecimal() for part in parts) and len(parts) <= 4:
        days, hours, minutes, seconds = (int(part) for part in ["0"] * (4 - len(parts)) + parts)
        total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        return Ours({"duration": f"{total} s" if total % 60 else f"{total // 60} min"})
    for ending, unit in {"ep": "epochs", "ba": "steps", "tok": "tokens"}.items():
        count = given.text.removesuffix(ending)
        if count != given.text and count.isdecimal():
            return Ours({"duration": f"{count} {unit}"})
    if given.number is not None:
        return (
            f"Setpoint calls it duration, which takes a unit: {_whole(given.number)} min, "
            f"{_whole(given.number)} steps or {_whole(given.number)} epochs."
        )
    return None


def _peak(given: Given) -> float | None:
    """The peak learning rate that is meant: given beside under another name, or the job's."""
    other = given.beside(*PEAK)
    peak = given.of("optimizer.lr") if other is None else other.number
    return peak if isinstance(peak, int | float) and peak > 0 else None


def _share_of_peak(path: str) -> Converter:
    """A learning rate as a share of the peak."""

    def convert(given: Given) -> Ours | str | None:
        peak = _peak(given)
        note = "a fraction of optimizer.lr, not a learning rate"
        if given.number is None or peak is None:
            return f"Setpoint calls it {path}, {note}."
        return Ours({path: given.number / peak}, f"{note} ({given.number:g} / {peak:g})")

    return convert


def _divisor_of_logits(given: Given) -> Ours | str | None:
    """What Granite divides its logits by."""
    if not given.number:
        return None
    note = "a factor of the logits, not a divisor"
    return Ours({"model.logit_scale": 1 / given.number}, f"{note} (1 / {given.number:g})")


def _balance(given: Given) -> Ours | str | None:
    """The weight of the one loss that transformers takes over the choices in all layers."""
    path, note = "model.moe.balance_loss", "top_k / layers times that of transformers"
    top_k, layers = given.of("model.moe.top_k"), given.of("model.layers")
    if given.number is None or not isinstance(top_k, int) or not isinstance(layers, int):
        return f"Setpoint calls it {path}, {note}."
    return Ours({path: given.number * top_k / layers}, note)


def _warmup_share(given: Given) -> Ours | str | None:
    """A warm-up as a share of the run."""
    if given.number is None or not 0 <= given.number <= 1:
        return None
    return Ours({"schedule.warmup": f"{_whole(100 * given.number)} %"}, "a share of the horizon")


def _warmup(given: Given) -> Ours | str | None:
    if given.number is None:
        return None
    if 0 < given.number < 1:
        return _warmup_share(given)
    return Ours({"schedule.warmup": f"{_whole(given.number)} steps"})


def _mixed(given: Given) -> Ours | str | None:
    """Mixed precision by a switch or by name: `amp = true`, `precision = "bf16-mixed"`."""
    word, _, kind = given.text.lower().partition("-")
    ours = {"16": "fp16", "32": "fp32", "no": "fp32"}.get(word, word)
    if given.truth is not None:
        ours = "bf16" if given.truth else "fp32"
    if kind == "true" and ours == "bf16":  # the weights, too
        return Ours({"precision.params": ours, "precision.compute": ours})
    return _computed_in(ours)


def _computed_in(ours: str) -> Ours | None:
    """A format to compute in; fp16 is for GPUs, which are named for it."""
    if ours not in ("bf16", "fp16", "fp32"):
        return None
    if ours == "fp16":
        return Ours({"precision.compute": ours, "parallel.device": "cuda"}, "on a GPU")
    return Ours({"precision.compute": ours})


def _format(given: Given) -> Ours | str | None:
    """A format by its name in torch."""
    word = given.text.lower().removeprefix("torch.")
    names = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float32": "fp32"}
    return _computed_in(names.get(word, word))


def _float8(given: Given) -> Ours | str | None:
    if given.truth:
        return Ours({"precision.float8": {}, "parallel.device": "cuda"}, "on a GPU")
    return Ours({"precision.float8": None}) if given.truth is False else None


def _half(given: Given) -> Ours | str | None:
    """`fp16` and `bf16`: switches, of which one at most is on."""
    if given.truth is None:
        return None
    if given.truth:
        return _computed_in(given.name)
    other = given.beside("bf16" if given.name == "fp16" else "fp16")
    if other is not None and other.truth:
        return f"Leave {given.name} out: precision.compute is one format, and {other.name} is on."
    return Ours({"precision.compute": "fp32"})


def _accumulation(given: Given) -> Ours | str | None:
    """Passes per update at the micro-batch of today, as other systems count them."""
    path, number = "batch.accumulation", given.number
    size, ranks = given.of("batch.global_size"), given.of("parallel.world_size")
    beside = given.beside(*PER_DEVICE)
    micro: object = given.of("batch.micro_size") if beside is None else beside.number
    whole = number is not None and number >= 1 and number == int(number)
    known = isinstance(size, int) and isinstance(ranks, int) and isinstance(micro, int | float)
    if number is None or not whole or not known or not isinstance(micro, int | float):
        return f"Setpoint calls it {path}: it divides batch.global_size, and micro_size shrinks."
    count, wanted = int(number), int(number * micro) * ranks
    if wanted == size:
        return Ours({path: count})
    note = (
        f"which divides batch.global_size = {size}; alone it shrinks micro_size, and to keep "
        f"micro_size = {int(micro)} give both"
    )
    return Ours({path: count, "batch.global_size": wanted}, note)


def _micro(given: Given) -> Ours | str | None:
    """The micro-batch; with a global size that it divides where that of today is none."""
    path, number = "batch.micro_size", given.number
    size, ranks = given.of("batch.global_size"), given.of("parallel.world_size")
    if not isinstance(size, int) or not isinstance(ranks, int):
        return f"Setpoint calls it {path}."
    if number is None or number < 1 or number != int(number):
        return f"Setpoint calls it {path}, a number of sequences."
    each = int(number) * ranks
    accumulation = given.beside(*ACCUMULATION)
    passes = None if accumulation is None else accumulation.number
    if size % each == 0 or (passes is not None and passes >= 1):
        return Ours({path: int(number)})
    wanted = each * max(1, round(size / each))
    note = f"which divides batch.global_size, and does not divide {size}"
    return Ours({path: int(number), "batch.global_size": wanted}, note)


def _biases(given: Given) -> Ours | str | None:
    """Biases of all linear layers."""
    if given.truth is None:
        return None
    paths = ("model.qkv_bias", "model.attention_output_bias", "model.ffn_bias")
    return Ours(dict.fromkeys(paths, given.truth), "for the linear layers")


def _load_optimizer(given: Given) -> Ours | str | None:
    """Whether the state of the optimizer is loaded with all else."""
    if given.truth is None:
        return None
    if given.truth:
        return "Leave it out: checkpoint.load takes the state of the optimizer with all else."
    return Ours({"checkpoint.exclude": ["optimizer"]}, "beside checkpoint.load")


def _pretrained(given: Given) -> Ours | str | None:
    """Weights to start from, whose configuration is written first."""
    name = given.text
    if name in ("scratch", "random", "none", "null", ""):
        return f"Leave {given.name} out: weights are random unless model.pretrained names some."
    if name == "resume":
        return "The same command again resumes its run; leave it out."
    source = f"openai-community/{name}" if name in GPT2 and not os.path.exists(name) else name
    text = (
        f"`setpoint import {for_shell(source)} --output model.toml` writes the configuration of "
        f"these weights, and `setpoint train model.toml` starts from them"
    )
    if preset_named(name):
        text += f"; the same model with random weights is --model {for_shell('@' + name)}"
    return text


def _every(path: str) -> Converter:
    """A period: a count of steps, a share of the run, a strategy by name."""
    section = path.partition(".")[0]
    partners = {
        "evaluation": ("eval_steps", "eval_interval"),
        "checkpoint": ("save_steps", "save_interval"),
        "tracking": ("logging_steps", "log_interval"),
    }[section]

    def convert(given: Given) -> Ours | str | None:
        number, word = given.number, given.text.lower()
        if word in ("no", "none", "never", "false") or (number is not None and number <= 0):
            off: object = None if section == "evaluation" else "never"
            return Ours({section if section == "evaluation" else path: off})
        if word in ("epoch", "epochs"):
            return Ours({path: "1 epochs"})
        if word in ("steps", "step", "iter"):
            partner = given.beside(*partners)
            count = "" if partner is None or partner.number is None else _whole(partner.number)
            return (
                Ours({path: f"{count} steps"})
                if count
                else (f"Setpoint calls it {path}, a count with a unit such as 100 steps.")
            )
        if number is None:
            return None
        if given.name == "val_check_interval" and isinstance(given.value, float):
            return Ours({path: f"{_whole(number)} epochs"}, "where a share is one of an epoch")
        if given.name == "saves_per_epoch":
            return Ours({path: f"{_whole(1 / number)} epochs"})
        if number < 1:
            horizon = given.of("schedule.horizon")
            updates = horizon.in_unit("steps") if isinstance(horizon, Duration) else None
            if updates is None:
                return f"Setpoint calls it {path}, a count with a unit such as 100 steps."
            note = f"a count with a unit ({number:g} of {updates} steps)"
            return Ours({path: f"{max(1, round(number * updates))} steps"}, note)
        return Ours({path: f"{_whole(number)} steps"})

    return convert


def _batches(given: Given) -> Ours | str | None:
    """Batches of an evaluation, as the number of their sequences."""
    size, number = given.of("batch.micro_size"), given.number
    note = "a number of sequences, not of batches"
    if number is None or number < 1 or number != int(number) or not isinstance(size, int):
        return f"Setpoint calls it evaluation.sequences, {note}."
    return Ours({"evaluation.sequences": int(number) * size}, f"{note} ({number:g} * {size})")


def _beta(index: int) -> Converter:
    """One of Adam's betas; the other from beside, or as it is."""

    def convert(given: Given) -> Ours | str | None:
        betas = given.of("optimizer.betas")
        pair: list[float] = [0.9, 0.95]
        if isinstance(betas, tuple):
            pair = [*cast(tuple[float, float], betas)]
        for at, names in enumerate((("adam_beta1", "beta1"), ("adam_beta2", "beta2"))):
            other = given.beside(*names)
            if other is not None and other.number is not None:
                pair[at] = other.number
        if given.number is None:
            return None
        pair[index] = given.number
        return Ours({"optimizer.betas": pair}, "a pair")

    return convert


def _truth(path: str, true: object, false: object) -> Converter:
    """A switch that has other values here."""

    def convert(given: Given) -> Ours | str | None:
        if given.truth is None:
            return None
        return Ours({path: true if given.truth else false})

    return convert


def _optimizer(given: Given) -> Ours | str | None:
    word = given.text.lower()
    if "8bit" in word or "4bit" in word or "paged" in word:
        return (
            "There is no optimizer with state in 8 bits; optimizer.type = import takes one of "
            'another package: --optimizer.type import --optimizer.target "bitsandbytes.optim.'
            'AdamW8bit"'
        )
    if word.startswith("adamw"):
        return Ours({"optimizer": "adamw"})
    if word in ("adam", "torch_adam"):
        return Ours({"optimizer": "adamw", "optimizer.weight_decay": 0}, "Adam is AdamW without it")
    return None


def _tokenizer(given: Given) -> Ours | str | None:
    if given.text.lower() in ("bytes", "byte", "bytelevel", "byt5"):
        return Ours({"tokenizer": "bytes"})
    if given.name == "tokenizer_type" and given.text.isidentifier():
        return Ours({"tokenizer": "huggingface"}, "with tokenizer.path")
    return Ours({"tokenizer": "huggingface", "tokenizer.path": given.text})


def _text_files(field: str) -> Converter:
    """Files as a list of one source."""

    def convert(given: Given) -> Ours | str | None:
        if isinstance(given.value, list | tuple):
            paths = [str(path) for path in cast(Sequence[object], given.value)]
        else:
            paths = [given.text]
        if not paths or not all(paths):
            return None
        if given.name in HUB and len(paths) == 1 and _may_be_hub_id(paths[0]):
            hub = {"type": "huggingface", "path": paths[0]}
            return Ours({field: [hub]}, "a list of sources")
        return Ours({field: [{"type": "text", "paths": paths}]}, "a list of sources")

    return convert


HUB = ("dataset", "dataset_name", "train_dataset", "eval_dataset", "validation_dataset")


def _may_be_hub_id(path: str) -> bool:
    """Whether a name is rather that of a data set of the hub than of a file."""
    owner, _, name = path.partition("/")
    is_word = all(part.replace("-", "").replace("_", "").isalnum() for part in (owner, name or "a"))
    return is_word and not os.path.exists(path)


def _text_value(field: str) -> Converter:
    """A file, or the name of a kind of sources, in the place of sources."""
    files = _text_files(field)

    def convert(given: Given) -> Ours | str | None:
        several = isinstance(given.value, list | tuple)
        names = cast(Sequence[object], given.value) if several else [given.value]
        texts = [str(name) for name in names]
        if texts in (["stdlib"], ["random"]):
            return Ours({field: texts[0]}, "a list of sources")
        if texts and all("." in each or "*" in each or os.path.exists(each) for each in texts):
            return files(given)
        if given.name.isdecimal() or preset_named(given.text):
            return None  # the name of a kind of sources
        return f"Text is given as files: --{field} '[{{type: text, paths: [FILE]}}]'"

    return convert


def _chosen(section: str) -> Converter:
    """The name of a variant under a key such as `optimizer.name`."""

    def convert(given: Given) -> Ours | str | None:
        word = given.text.lower().replace("-", "_")
        word = "adamw" if section == "optimizer" and word in ("torch_adamw", "adam_w") else word
        if section == "optimizer" and word == "adam":
            values = {"optimizer.type": "adamw", "optimizer.weight_decay": 0}
            return Ours(values, "Adam is AdamW without it")
        return Ours({f"{section}.type": word})

    return convert


def _schedule_of_transformers(given: Given) -> Ours | str | None:
    """Curves that end at 0 in transformers; the names of others mean the same."""
    word = given.text.lower()
    if word not in ("linear", "cosine", "polynomial"):
        return None
    values: dict[str, object] = {"schedule.type": word, "schedule.floor": 0}
    if word == "polynomial":
        values["schedule.power"] = 1
    return Ours(values, "which ends at 0 in transformers")


def _model_value(given: Given) -> Ours | str | None:
    return _pretrained(given) if "/" in given.text or os.path.exists(given.text) else None


def _tracker(given: Given) -> Ours | str | None:
    word = given.text.lower()
    return _how_to_track(word) if word in TRACKERS or word in OTHER_TRACKERS else None


def _how_to_track(name: str) -> str:
    if name in TRACKERS:
        return (
            f"Trackers are a list: --tracking.trackers.append {TRACKERS[name]}, with its options "
            f'in a table of it ({{type = "{TRACKERS[name]}", ...}}); `setpoint list fields '
            f"tracking.trackers` shows them."
        )
    return (
        f"There is no {name} tracker. Those there are: "
        f"{', '.join(dict.fromkeys(TRACKERS.values()))}; one of your own is a class with a "
        f"nested Config(TrackerConfig, type = ...) in a module that --import names."
    )


def _for_tracker(path: str) -> Converter:
    """A name that a tracker was given."""

    def convert(given: Given) -> Ours | str | None:
        return Ours({path: given.value}, "a part of the run directory, and what trackers show")

    return convert


def _checkpointing(given: Given) -> Ours | str | None:
    word = given.text.lower()
    kinds = {"full": "full", "selective": "parts"}  # Megatron-LM's is of attention, as ours
    if given.truth or word in kinds:
        return Ours({"memory.activation_checkpointing": kinds.get(word, "full")})
    return Ours({"memory.activation_checkpointing": None}) if given.truth is False else None


def _resume(given: Given) -> Ours | str | None:
    if given.truth is not None:
        return Ours({"checkpoint.resume": "must" if given.truth else "never"})
    return (
        f"A run is resumed by giving its directory in place of the source: setpoint train "
        f"{given.text}"
    )


def _attention(given: Given) -> Ours | str | None:
    word = given.text.lower()
    packages = (f"flash_attention_{version}" for version in (2, 3, 4))
    known = {"flash_attn": "sdpa_flash", "flash_attention": "sdpa_flash", "math": "eager",
             "flex_attention": "flex", **{name: name for name in packages}}  # fmt: skip
    if given.truth is not None:
        return Ours({"model.attention_backend": "sdpa_flash" if given.truth else "eager"})
    return Ours({"model.attention_backend": known[word]}) if word in known else None


def _trackers(given: Given) -> Ours | str | None:
    word = given.text.lower()
    if word in ("none", "[]", "null", ""):
        return Ours({"tracking.trackers": []})
    if word in TRACKERS:
        return Ours({"tracking.trackers": ["jsonl", TRACKERS[word]]})
    return _how_to_track(word) if word in OTHER_TRACKERS else None


def _metric(given: Given) -> Ours | str | None:
    word = given.text.lower().removeprefix("eval_").removeprefix("val_")
    known = {"accuracy", "loss", "perplexity", "bits_per_byte"}
    return Ours({"evaluation.best.metric": word}) if word in known else None


def _share_held_out(given: Given) -> Ours | str | None:
    if given.number is not None and 0 < given.number < 1:
        return Ours({"data.held_out": given.value})
    number = given.number or 0.0
    if given.name.endswith("size") and number >= 1 and number.is_integer():
        return Ours({"data.held_out": given.value})
    return (
        "Setpoint calls it data.held_out, a fraction of the documents such as 0.05, or from 1 on "
        "their number."
    )


NO_REMOTE_CODE = (
    "There is no trust_remote_code: code that comes with a data set or a model is never run. Leave "
    "it out; data sets that are files (Parquet, JSON Lines, CSV) and models that transformers has "
    "need none."
)
ADAPTER = "Setpoint calls it adapter: --adapter lora --adapter.rank 8; or dora, qlora, relora."
QUANTIZATION = (
    "A frozen base is quantized beneath an adapter: --adapter qlora --adapter.quantize nf4; "
    "precision.params and precision.float8 are the formats of weights that are trained."
)
PERSISTENT = "Workers of data.loader live as long as the training session; leave it out."
NONE_DROPPED = (
    "No sequence is dropped: a batch may cross from one epoch into the next; leave it out."
)
LAUNCHED = (
    "The launcher says how many ranks there are: setpoint train SOURCE --nproc N, torchrun, or "
    "setpoint launch; leave it out."
)
REPLICATED = (
    "Ranks keep replicas of the weights (DDP) unless another axis of parallel takes them: start "
    "them with --nproc N, and leave it out."
)
SHARDED = (
    "PyTorch's FSDP2 does what ZeRO does: --parallel.shard -1 divides weights, gradients and "
    "optimizer state among the ranks (ZeRO 3); with --parallel.reshard false the weights stay "
    "gathered until backward (ZeRO 2). DeepSpeed itself is --parallel.engine deepspeed, with "
    "--parallel.engine.stage 1, 2 or 3; its JSON follows from the other sections."
)
STACK = (
    "The fields of parallel choose it: replicas alone are DDP, --parallel.shard -1 is FSDP2, and "
    "the other axes stand beside these; --compile.scope graph captures a whole step. ZeRO by "
    "DeepSpeed is --parallel.engine deepspeed."
)

_minimum = _share_of_peak("schedule.floor")

OTHER_NAMES: dict[str, Converter | str] = {
    **dict.fromkeys(EPOCHS, _lasting("epochs")),
    **dict.fromkeys(STEPS, _lasting("steps")),
    "steps": _lasting("steps"),
    "iterations": _lasting("steps"),
    "max_tokens": _lasting("tokens"),
    "train_tokens": _lasting("tokens"),
    **dict.fromkeys(("max_time", "max_duration"), _time),
    **dict.fromkeys(("min_lr", "lr_min", "eta_min", "lr_end"), _minimum),
    "lr_start": _share_of_peak("schedule.warmup_from"),
    "logits_scaling": _divisor_of_logits,
    "router_aux_loss_coef": _balance,
    **dict.fromkeys(("warmup_ratio", "warmup_fraction", "lr_warmup_fraction"), _warmup_share),
    "optimizer.decay": lambda given: Ours({"optimizer.weight_decay": given.value}),
    **dict.fromkeys(("warmup", "warmup_steps", "optimizer.warmup_steps"), _warmup),
    "optimizer.r": lambda given: Ours({"optimizer": "schedule_free_adamw",
                                       "optimizer.step_power": given.value}),
    "optimizer.name": _chosen("optimizer"),
    "schedule.name": _chosen("schedule"),
    "lr_scheduler_type": _schedule_of_transformers,
    "trainer.precision": _mixed,
    **dict.fromkeys(("fp16", "bf16"), _half),
    **dict.fromkeys(("dtype", "torch_dtype"), _format),
    "fp8": _float8,
    **dict.fromkeys(ACCUMULATION, _accumulation),
    **dict.fromkeys(PER_DEVICE, _micro),
    **dict.fromkeys(("bias", "use_bias"), _biases),
    **dict.fromkeys(("model_name_or_path", "model_name", "model_path", "init_from", "hf_model",
                     "model_id"), _pretrained),
    **dict.fromkeys(("amp", "use_amp", "mixed_precision", "autocast"), _mixed),
    **dict.fromkeys(("eval_steps", "eval_strategy", "evaluation_strategy", "eval_interval",
                     "val_check_interval", "eval_every", "val_every", "evaluation.interval",
                     "eval.interval"), _every("evaluation.every")),
    **dict.fromkeys(("save_steps", "save_strategy", "save_interval", "saves_per_epoch",
                     "checkpoint_interval", "save_every", "checkpoint.interval",
                     "checkpoint.save_every"), _every("checkpoint.every")),
    **dict.fromkeys(("logging_steps", "logging_strategy", "log_interval", "log_freq", "log_every",
                     "log_every_n_steps", "tracking.interval"), _every("tracking.every")),
    **dict.fromkeys(("eval_iters", "limit_val_batches", "eval_batches", "evaluation.batches"),
                    _batches),
    **dict.fromkeys(("adam_beta1", "beta1"), _beta(0)),
    **dict.fromkeys(("adam_beta2", "beta2"), _beta(1)),
    **dict.fromkeys(("optim", "optimizer_type", "optimizer_name"), _optimizer),
    **dict.fromkeys(("tokenizer_type", "tokenizer_name", "tokenizer_path",
                     "tokenizer_name_or_path", "hf_tokenizer", "tokenizer_file"), _tokenizer),
    **dict.fromkeys(("train_file", "train_files", "data_path", "data_files", "dataset_path",
                     "train_data_dir", "dataset", "dataset_name", "train_dataset", "data_dir",
                     "data.path", "data.paths", "data.file", "data.files", "data.dir"),
                    _text_files("data.sources")),
    **dict.fromkeys(("validation_file", "validation_files", "val_file", "val_files",
                     "val_data_path", "eval_file", "eval_data_path", "eval_dataset",
                     "validation_dataset"), _text_files("data.validation")),
    **dict.fromkeys(("val_set_size", "val_size", "validation_split", "val_split",
                     "val_split_fraction", "test_size", "eval_split_ratio", "data.split",
                     "data.val"), _share_held_out),
    **dict.fromkeys(("gradient_checkpointing", "enable_gradient_checkpointing", "recompute",
                     "recompute_granularity"), _checkpointing),
    "resume_from_checkpoint": _resume,
    **dict.fromkeys(("load_optimizer", "load_optimizer_states"), _load_optimizer),
    **dict.fromkeys(("auto_resume", "auto_resume_from_checkpoints", "autoresume"),
                    _truth("checkpoint.resume", "auto", "never")),
    **dict.fromkeys(("report_to", "loggers", "logger"), _trackers),
    "disable_tqdm": _truth("tracking.progress", "none", "auto"),
    **dict.fromkeys(("enable_progress_bar", "progress_bar"),
                    _truth("tracking.progress", "auto", "none")),
    "greater_is_better": _truth("evaluation.best.direction", "max", "min"),
    "metric_for_best_model": _metric,
    **dict.fromkeys(("use_cpu", "no_cuda"), _truth("parallel.device", "cpu", "auto")),
    "disable_automatic": _truth("resilience.gc.automatic", False, True),
    **dict.fromkeys(("flash_attention", "use_flash_attention", "use_flash_attn", "flash_attn",
                     "attn_implementation", "attn_impl", "attn_backend"), _attention),
    **{f"{name}{end}": _how_to_track(name)
       for name in (*TRACKERS, *OTHER_TRACKERS) for end in ("", ".*")},
    **dict.fromkeys(("use_wandb", "wandb_log"), _how_to_track("wandb")),
    "use_tensorboard": _how_to_track("tensorboard"),
    **dict.fromkeys(("wandb_project", "project"), _for_tracker("experiment")),
    **dict.fromkeys(("wandb_run_name", "wandb_name"), _for_tracker("name")),
    **{f"{name}{end}": ADAPTER for name in ("lora", "qlora", "peft") for end in ("", ".*")},
    **dict.fromkeys(("use_lora", "use_peft"), ADAPTER),
    **dict.fromkeys(("quantization", "load_in_4bit", "load_in_8bit", "quantize", "bnb_config"),
                    QUANTIZATION),
    **dict.fromkeys(("persistent_workers", "dataloader_persistent_workers"), PERSISTENT),
    **dict.fromkeys(("drop_last", "dataloader_drop_last"), NONE_DROPPED),
    **dict.fromkeys(("enabled", "enable"), "A section is on while it is there, and off as null: "
                    "--evaluation null, --compile '{}'."),
    **dict.fromkeys(("gpus", "devices", "num_nodes", "nnodes", "nproc_per_node"), LAUNCHED),
    "ddp": REPLICATED,
    **dict.fromkeys(("fsdp", "fsdp_config", "deepspeed", "deepspeed.*", "zero_stage",
                     "zero_optimization", "zero_optimization.*"), SHARDED),
    **dict.fromkeys(("stack", "engine"), STACK),
    **dict.fromkeys(("trust_remote_code", "allow_remote_code"), NO_REMOTE_CODE),
    "log_dir": "Logs stand in the run directory, workspace/experiment/name-fingerprint: set "
    "workspace, experiment or name.",
    "logging_dir": "Logs stand in the run directory, workspace/experiment/name-fingerprint: set "
    "workspace, experiment or name.",
    "tf32": "There is no field for TF32: precision.compute = bf16 is as fast or faster where TF32 "
    "exists.",
    "local_rank": "The rank is read from the environment, which torchrun sets; leave it out.",
}  # fmt: skip

OTHER_VALUES: dict[str, Converter | str] = {
    "data": _text_value("data.sources"),
    "data.sources.*": _text_value("data.sources"),
    "data.sources.paths": _text_value("data.sources"),
    "data.validation": _text_value("data.validation"),
    "data.validation.*": _text_value("data.validation"),
    "data.validation.paths": _text_value("data.validation"),
    "tokenizer": tokenizer_value,
    "model": _model_value,
    "tracking.trackers.*": _tracker,
    "precision": _mixed,
}
"""Answers to values that a field cannot take; see `setpoint.config.other_names`."""
