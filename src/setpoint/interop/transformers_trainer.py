"""The Trainer of transformers, which TrainingArguments, TRL and Axolotl use.

Formulas of transformers 5: the rate of step s, from 0, is s / W of the peak in a warm-up of W
steps, then a curve of (s - W) / (T - W). Decay applies to all weights except those of norms and
biases. FSDP and DeepSpeed train copies of the weights in fp32.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any, cast

from setpoint.config import SetpointError
from setpoint.config.files.read import read_file
from setpoint.hub.fetch import fetch_files, split_hub_id
from setpoint.interop.dialect import Conversion, Key

HUB = "models are not pushed to the hub during training; use `setpoint export` afterwards"
IDLE = "does not affect training results"
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


NEFTUNE = Key(None, "model.embedding_noise", optional=True,
    differs="noise is scaled by the number of tokens in a row; in transformers, by the padded "
            "length",
)  # fmt: skip
CONFIG_JSON = "config.json"
PACKED = r"(.*\.)?experts\.\w+$"
"""Pattern of the names of packed experts."""
NOT_PACKED = rf"(?!{PACKED})"
"""Pattern before names of modules other than packed experts."""
FEED_FORWARD = ("gate_proj", "up_proj", "down_proj", "w1", "w2", "w3", "all-linear")
"""Names that PEFT 0.20 reads as packed experts in families such as Qwen3 MoE and Mixtral."""
MIXTURES = re.compile(r"(?i)moe|mixtral|\dx\d+b|-a\d+(\.\d+)?b|minimax|qwen3-next|glm-4\.[5-9]")
"""Pattern in names of models with experts."""
OUTER = r"\w*embed(s|dings?)?|embed_(in|out|tokens|positions)\w*|wte|wpe|lm_head"
"""Names of embeddings and outputs in models of transformers."""
LINEAR = rf"^{NOT_PACKED}(?!(.*\.)?({OUTER})$)"
"""Pattern of the modules that are adapted by `all-linear`."""


def convert_schedule(c: Conversion, key: str, total: int | None) -> None:
    """Set the learning-rate curve after a warm-up that is set already."""
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
            expected = "a mapping with num_decay_steps, and a decay_type of " + ", ".join(curves)
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
        text = f"no schedule has {', '.join(unknown)}: set schedule.type = piecewise with phases"
        c.report("needs a decision", "lr_scheduler_kwargs", text)


def _ahead(c: Conversion, key: str, warmup: str, total: int | None, start: float | None) -> None:
    """Set a cosine in which every step has the factor of its end, with a curve one step shorter."""
    count, _, unit = warmup.partition(" ")
    if not total or unit != "steps" or int(count) < 1:
        c.report("differs", key, "the learning rate lags that of transformers by one step")
        return
    del c.data["schedule"]["warmup"]
    c.data["schedule"].pop("warmup_at", None)
    c.warm_up(f"{int(count) - 1} steps", "warmup_steps", "warmup_ratio")
    c.set("schedule.horizon", f"{total - 1} steps", "max_steps")
    if int(count) > 1:
        c.set("schedule.warmup_from", 1 / int(count) if start is None else float(start), key)


def _restarts(c: Conversion, key: str, rise: int, length: int, cycles: int) -> None:
    """Set a cosine that restarts after each cycle, as phases."""
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
    """Set the optimizer by name, with decay of all weights except those of norms and biases."""
    if (name := c.choice(key, *OPTIMIZERS, *QUANTIZED)) is None:
        return
    kind = OPTIMIZERS.get(name) or QUANTIZED[name]
    c.set("optimizer.type", kind, key)
    if name in QUANTIZED:
        text = "optimizer state is in the dtype of the weights, not in 4 or 8 bits: "
        text += "for these, use a class of bitsandbytes by optimizer.type = import and --import"
        c.report("differs", key, text)
    elif kind == "adafactor":
        text = (
            "the learning rate is relative; in transformers, absolute (scale_parameter off), as "
            "with "
            "optimizer.target = transformers.optimization.Adafactor and --import transformers"
        )
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
    arguments = options_of(c, c.value("optim_args"))
    if kind == "import":
        target = {"rmsprop": "torch.optim.RMSprop"}.get(name, "torch.optim.Adagrad")
        c.set("optimizer.target", target, key)
        for option in [*arguments]:
            c.set(f"optimizer.{option}", arguments.pop(option), "optim_args")
    if kind == "sgd":
        c.set("optimizer.momentum", arguments.pop("momentum", 0.0), "optim_args", key)
        c.set("optimizer.nesterov", arguments.pop("nesterov", False), "optim_args", key)
    if arguments:
        text = f"set the fields of [optimizer] for {', '.join(arguments)}"
        c.report("needs a decision", "optim_args", text)


def options_of(c: Conversion, value: object) -> dict[str, Any]:
    """Options given as a mapping or as `name=value,name=value`."""
    if isinstance(value, dict):
        return dict(cast("dict[str, Any]", value))
    pairs = [part.partition("=") for part in value.split(",")] if isinstance(value, str) else []
    return {name.strip(): plain(text) for name, equals, text in pairs if equals}


def plain(text: str) -> Any:
    """A scalar from a command line: a bool, a number, or the text."""
    words: dict[str, object] = {"true": True, "false": False, "none": None, "null": None}
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip()


def convert_peft(
    c: Conversion, targets: list[str], layers: str = "", quantizes_experts: bool = False
) -> None:
    """Set rank, scale and modules of an adapter by the names of PEFT.

    Arguments:
        targets: names of modules, of which `all-linear` means all linear layers but the output.
            Packed experts have adapters if the file names these parameters.
        layers: numbers of the layers that have the modules, as alternatives of a pattern.
        quantizes_experts: whether packed experts are quantized like linear layers.
    """
    rank = c.number("lora_r") or 8
    c.set("adapter.rank", rank, "lora_r")
    c.set("adapter.alpha", float(c.number("lora_alpha") or rank), "lora_alpha")
    c.set("adapter.dropout", c.number("lora_dropout") or 0.0, "lora_dropout")
    within = rf"layers\.({layers})\." if layers else ""  # restricts modules, not parameters
    named = [name for name in targets if name != "all-linear"]
    parameters = c.names("lora_target_parameters")
    patterns = [within + NOT_PACKED if layers else LINEAR] if (
        len(named) < len(targets) or not (named or parameters)) else []  # fmt: skip
    # One pattern for all names, since PEFT ignores those that the model does not have.
    unpacked = NOT_PACKED if any(name.endswith("down_proj") for name in named) else ""
    start = within or "^" * bool(unpacked)
    if named:
        names = "|".join(named)
        patterns.append(rf"{start}{unpacked}(.*\.)?({names})$" if start else _any_of(named))
    patterns += [_any_of(parameters)] * bool(parameters)
    has_experts = _has_experts(str(c.data.get("model", {}).get("pretrained")))
    if {*FEED_FORWARD} & {name.rpartition(".")[2] for name in targets} and (
            not parameters and has_experts):  # fmt: skip
        text = "in some families PEFT adapts packed experts by these names: set adapter.targets"
        c.report("needs a decision", "lora_target_modules", text)
    keys = ("lora_target_modules", "lora_target_parameters")
    c.set("adapter.targets", patterns, *keys)
    if routers := [name for name in named if re.search(r"(router|gate)$", name)]:
        text = f"{', '.join(routers)}: routers and gates of experts have no adapter"
        c.report("differs", "lora_target_modules", text)
    # bitsandbytes quantizes linear layers alone.
    if "quantize" in c.data["adapter"] and has_experts and not quantizes_experts:
        c.set("adapter.quantize.exclude", [PACKED], "load_in_4bit", "load_in_8bit")
    if "lm_head" in targets:
        c.set("adapter.exclude", [], "lora_target_modules")
    if saved := c.names("lora_modules_to_save"):
        c.set("adapter.train", saved, "lora_modules_to_save")


def _has_experts(model: str) -> bool:
    """True if a model has experts, by its config.json here or in the cache, or else its name."""
    folder = model
    try:
        if not os.path.isdir(model) and split_hub_id(model) is not None:
            folder = fetch_files(model, [CONFIG_JSON], instead="", cached=True)
        keys: Any = read_file(os.path.join(folder, CONFIG_JSON)).data
    except SetpointError:
        return bool(MIXTURES.search(model))
    return "experts" in repr(keys)


def _any_of(names: list[str]) -> str:
    """Pattern of paths that end with one of these names or patterns."""
    return rf"(^|\.)({'|'.join(names)})$"


def convert_recomputation(c: Conversion, *names: str) -> None:
    """Recompute whole layers if a key is true.

    Arguments:
        names: names of the key, each with its own key `NAME_kwargs`; the first that is given
            counts, for either key.
    """
    key, *_ = [name for name in names if c.value(name) is not None] or names
    given = [f"{name}_kwargs" for name in names if c.value(f"{name}_kwargs") is not None]
    path = "memory.activation_checkpointing"
    if c.value(key):
        c.set(f"{path}.type", "full", key)
    elif given:
        text = f"in {c.dialect.name}, too: activations are not recomputed"
        c.report("without effect", given[0], text)
        return
    if not given:
        return
    options = c.mapping(given[0])
    c.report_rest(given[0], options, "use_reentrant every_n_layers offload")
    if options.get("use_reentrant"):
        c.set(f"{path}.reentrant", True, given[0])
    if isinstance(every := options.get("every_n_layers"), int):
        c.set(f"{path}.every", every, given[0])
    if options.get("offload"):
        c.set("memory.activation_offload", {}, given[0])


def convert_compilation(c: Conversion) -> None:
    """Compile the whole model, with the backend or mode given next to the switch."""
    keys = ("torch_compile", "torch_compile_backend", "torch_compile_mode")
    if not any(c.value(key) for key in keys):
        return
    c.set("compile.scope", "model", *keys)
    for key, field in (("torch_compile_backend", "backend"), ("torch_compile_mode", "mode")):
        if text := c.text(key):
            c.set(f"compile.{field}", text, key)


def convert_shards(c: Conversion) -> None:
    """FSDP and DeepSpeed, from the words and sections that accelerate accepts."""
    if c.value("deepspeed"):
        _deepspeed(c)
        return
    value, key = c.value("fsdp"), "fsdp_config"
    given = c.value(key)
    section = read_json_file(c, key, given) if isinstance(given, str) else c.mapping(key)
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
        text = "weights are sharded within a node: set parallel.shard to its number of GPUs"
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
        c.wrong("fsdp_config", f"a mapping of FSDP's options: unknown {', '.join(unknown)}")


def _deepspeed(c: Conversion) -> None:
    """The ZeRO stage and offloading, from a section, a file, or the name of a usual file."""
    value = c.value("deepspeed")
    if isinstance(value, str):
        value = read_json_file(c, "deepspeed", value)
    settings: Any = value if isinstance(value, dict) else {}
    if not isinstance(zero := settings.get("zero_optimization"), dict):
        text = "the file does not exist here: set parallel.engine.stage and parallel.engine.offload"
        c.report("needs a decision", "deepspeed", text)
        c.set("parallel.engine.type", "deepspeed", "deepspeed")
        return
    options = cast("dict[str, Any]", zero)
    stage = options.get("stage", 0)
    if not stage:
        return
    if stage not in (1, 2, 3):
        c.wrong(
            "deepspeed", f"a configuration with zero_optimization.stage from 0 to 3, but {stage!r}"
        )
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


def read_json_file(c: Conversion, key: str, path: str) -> Mapping[str, Any]:
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
    """Set a period by strategy: never, each epoch, or steps; below 1, a fraction of all steps."""
    kind, steps = c.value(strategy), c.number(key)
    if kind == "epoch":
        c.set(path, "1 epoch", strategy)
    elif kind == "no":
        c.set(path, "never", strategy)
    elif not steps or steps < 0:
        c.wrong(key, "a positive number of steps")
    elif steps >= 1:
        c.set(path, f"{int(steps)} steps", key, strategy)
    elif total:
        c.set(path, f"{math.ceil(total * steps)} steps", key, strategy)
    else:
        text = f"a share of all steps, but their number is unknown with epochs: set {path}"
        c.report("needs a decision", key, text)
