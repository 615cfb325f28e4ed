"""torchtune's YAML files for full, LoRA and QLoRA fine-tuning, with `_component_` and `${...}`.

Formulas of torchtune's recipes: a step has batch_size * gradient_accumulation_steps rows per data
rank, padded to the longest of a batch; the loss is a mean over the tokens of the step. With a
scheduler the rate of step s, from 0, is s / W of the peak in a warm-up of W steps, then half a
cosine to 0 at the end of all epochs. dtype applies to weights, gradients and optimizer state.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, cast

from setpoint.interop.dialect import (
    REQUIRED,
    Conversion,
    Dialect,
    Key,
    alike,
    keys_of,
    share_in,
)
from setpoint.interop.torchtune_models import FAMILIES, component, convert_model

PRINTED = "affects logging only"
OTHER_JOB = "{} is not supported"
ATTENTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "output_proj": "output"}
TURN = {"input": "prompt", "output": "completion"}
"""Columns of a question and its answer, as rows of conversations name them."""
STYLES = {"openai": "messages", "sharegpt": "conversations"}
CONVERSATIONS: dict[str, tuple[str | None, dict[str, str]]] = {
    "alpaca_dataset": ("tatsu-lab/alpaca", {}),
    "alpaca_cleaned_dataset": ("yahma/alpaca-cleaned", {}),
    "slimorca_dataset": ("Open-Orca/SlimOrca-Dedup", {}),
    "chat_dataset": (None, {}),
    "instruct_dataset": (None, {"input": "input", "output": "output"}),
    "grammar_dataset": ("liweili/c4_200m", {"input": "input", "output": "output"}),
    "samsum_dataset": ("Samsung/samsum", {"input": "dialogue", "output": "summary"}),
}
"""Data sets of conversations: where they are, and the columns of a question and its answer."""
TEXTS = {
    "text_completion_dataset": (None, None, "text"),
    "wikitext_dataset": ("EleutherAI/wikitext_document_level", "wikitext-103-v1", "page"),
    "cnn_dailymail_articles_dataset": ("ccdv/cnn_dailymail", "3.0.0", "article"),
}
"""Data sets of texts: where they lie, their subset and the column of the text."""
FORMATS = ("json", "csv", "parquet", "arrow", "text")

KEYS = {
    "output_dir": Key(REQUIRED, "workspace"),
    # Model and adapter; sizes are those of builders that take them.
    **keys_of("model.", _component_=REQUIRED, vocab_size=None, num_layers=None, num_heads=None,
        num_kv_heads=None, head_dim=None, embed_dim=None, intermediate_dim=None, max_seq_len=None,
        attn_dropout=0.0, norm_eps=None, rope_base=None, scale_factor=None,
        tie_word_embeddings=None, lora_attn_modules=[], apply_lora_to_mlp=False,
        apply_lora_to_output=False, lora_rank=8, lora_alpha=16.0, lora_dropout=0.0, use_dora=False,
        quantize_base=False),
    "quantizer": Key(None, essential=True,
        refused="quantization during or after training is not supported"),
    **keys_of("tokenizer.", _component_=None, path=None, max_seq_len=None, merges_file=None,
        merges_path=None, vocab_path=None, special_tokens=None, special_tokens_path=None,
        truncation_type="right"),
    "tokenizer.prompt_template": Key(None,
        decision="set data.sources.0.template to a Jinja form of this prompt template"),
    **keys_of("checkpointer.", _component_="torchtune.training.FullModelHFCheckpointer",
        checkpoint_dir=REQUIRED, checkpoint_files=None, adapter_checkpoint=None,
        recipe_checkpoint=None, output_dir=None, model_type=None, safe_serialization=True,
        keep_last_n_checkpoints=None),
    "resume_from_checkpoint": Key(False,
        decision="torchtune's checkpoints are not resumed; a run of Setpoint is, with its "
                 "directory as SOURCE"),
    "save_adapter_weights_only": Key(False),
    "enable_async_checkpointing": Key(False, "checkpoint.mode", {False: "sync", True: "async"}),
    "save_every_n_steps": Key(None),
    # Data and batch.
    **keys_of("", dataset=REQUIRED, dataset_val=None, run_val_every_n_steps=None,
        batch_size_val=None),
    "shuffle": Key(True, "data.shuffle"),
    "seed": Key(None, "seed"),
    "collate_fn": Key("torchtune.data.padded_collate_sft"),
    "batch_size": Key(REQUIRED, "batch.micro_size"),
    "gradient_accumulation_steps": Key(1, "batch.accumulation"),
    **keys_of("", epochs=REQUIRED, max_steps_per_epoch=None),
    # Optimizer, schedule and loss.
    **keys_of("optimizer.", _component_=REQUIRED, lr=None, weight_decay=None, betas=None, eps=None,
        momentum=None, dampening=None, nesterov=None, amsgrad=False, fused=None, foreach=None),
    "optimizer_in_bwd": Key(False,
        refused="updates always follow the backward pass, with the same results and more memory"),
    **keys_of("lr_scheduler.", _component_=None, num_warmup_steps=None, num_cycles=0.5),
    "clip_grad_norm": Key(None),
    "loss._component_": Key("torchtune.modules.loss.CEWithChunkedOutputLoss"),
    "loss.num_output_chunks": Key(8, idle="the number of chunks affects only memory"),
    "loss.ignore_index": Key(-100),
    "loss.mask_ignored_tokens": Key(True, idle="it affects only memory"),
    # Ranks, memory and precision.
    "device": Key("cuda", "parallel.device", {"cuda": "cuda", "cpu": "cpu"}),
    **keys_of("", dtype="bf16", compile=None, enable_activation_checkpointing=False),
    "enable_activation_offloading": Key(False, "memory.activation_offload", {True: {}},
        optional=True),
    "activation_offloading_use_streams": Key(True, idle="it affects only the order of copies"),
    **keys_of("", ac_mode=None, ac_option=None),
    "custom_sharded_layers": Key([], idle="embedding and output are always separate units"),
    "memory_efficient_fsdp_wrap": Key(False, idle="each layer is always a unit"),
    "fsdp_cpu_offload": Key(False),
    "fsdp.cpu_offload": Key(False),
    "fsdp_reshard_after_forward": Key(True),
    "low_cpu_ram": Key(False, idle="weights are quantized one by one"),
    "tensor_parallel_dim": Key(1, "parallel.tensor"),
    "tensor_parallel_plan._component_": Key(None),
    "context_parallel_dim": Key(1, "parallel.ring"),
    "data_parallel_shard_dim": Key(-1, "parallel.shard"),
    "data_parallel_replicate_dim": Key(1, "parallel.replicate"),
    "mixed_precision._component_": Key(None, idle="it needs another key that enables it"),
    "mixed_precision.enabled": Key(False, refused="int8 training is not supported"),
    **keys_of("", enable_fp8_training=False, fp8_recipe_name=None, cudnn_deterministic_mode=None),
    # Records.
    "metric_logger": Key({}),
    "log_every_n_steps": Key(1, "tracking.every", unit="{} steps"),
    "log_peak_memory_stats": Key(False, "tracking.metrics.memory"),
    "log_level": Key("INFO", idle=PRINTED),
    **keys_of("profiler.", _component_=None, enabled=False, output_dir="profiler_output", cpu=True,
        cuda=True, xpu=True, profile_memory=False, with_stack=False, record_shapes=True,
        with_flops=False, wait_steps=5, warmup_steps=3, active_steps=2, num_cycles=1),
    # Benchmarks and generation.
    **alike("", "tasks limit include_path max_seq_length max_new_tokens prompt temperature top_k"),
    "enable_kv_cache": Key(True),
    **alike("", "instruct_template chat_format", Key(None,
        decision="set chat.template to a Jinja form of this prompt template")),
}  # fmt: skip
"""All keys that recipes and components read, with their defaults."""


def _complete(c: Conversion) -> None:
    """Convert the keys that depend on each other."""
    if c.given("tasks") or c.given("max_new_tokens"):
        _inference(c)
        return
    if c.value("quantizer") and not c.given("epochs"):
        return  # a file of the quantization recipe, which is refused
    if convert_model(c):
        _adapter(c)
    _weights(c)
    _data(c)
    _loop(c)
    _optimizer(c)
    _schedule(c)
    _memory(c)
    _records(c)


def _interpolate(c: Conversion) -> None:
    """Replace `${key}` in strings with the value of that key, which may be user-defined."""
    own: set[str] = set()

    def resolved(value: Any, names: tuple[str, ...], place: str) -> Any:
        if isinstance(value, dict):
            return {k: resolved(v, names, place) for k, v in cast("dict[str, Any]", value).items()}
        if isinstance(value, list):
            return [resolved(item, names, place) for item in cast("list[Any]", value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        for text, name in re.findall(r"(\$\{\s*([\w.]+)\s*\})", value):
            if name not in c.values or name in names:
                c.wrong(place, f"a text whose ${{...}} names a key of the file, but {value!r}")
                return value
            own.update({name} - KEYS.keys())
            other = resolved(c.values[name], (*names, name), place)
            value = other if value == text else value.replace(text, str(other))
        if "${" in str(value):
            c.wrong(place, f"a text whose ${{...}} names a key of the file, but {value!r}")
        return value

    for key in [*c.values]:
        if key in KEYS:
            c.values[key] = resolved(c.values[key], (key,), key)
    for name in own:
        del c.values[name]
    if c.values.get("log_every_n_steps", 1) is None:
        del c.values["log_every_n_steps"]


def _adapter(c: Conversion) -> None:
    """LoRA on the named projections; QLoRA if the base is in NF4."""
    _, name = component(c, "model")
    if not name.startswith(("lora_", "qlora_")):
        return
    key = "model._component_"
    is_quantized = name.startswith("qlora_") or bool(c.value("model.quantize_base"))
    is_dora = bool(c.value("model.use_dora"))
    kind = "dora" if is_dora else "qlora" if is_quantized else "lora"
    c.set("adapter.type", kind, "model.use_dora" if is_dora else key)
    if is_quantized:
        c.set("adapter.quantize.type", "nf4", "model.quantize_base", key)
    c.set("adapter.rank", c.number("model.lora_rank"), "model.lora_rank")
    c.set("adapter.alpha", float(c.number("model.lora_alpha")), "model.lora_alpha")
    c.set("adapter.dropout", c.number("model.lora_dropout"), "model.lora_dropout")
    modules = c.names("model.lora_attn_modules")
    if unknown := [module for module in modules if module not in ATTENTION]:
        c.wrong("model.lora_attn_modules", f"of {', '.join(ATTENTION)}, but {unknown[0]!r}")
    targets = [rf"attention\.{ATTENTION[m]}$" for m in modules if m in ATTENTION]
    if c.value("model.apply_lora_to_mlp"):
        targets.append(r"feed_forward\.(gate|up|down)$")
    if c.value("model.apply_lora_to_output"):
        targets.append("^output$")
        c.set("adapter.exclude", [], "model.apply_lora_to_output")
    c.set("adapter.targets", targets, "model.lora_attn_modules", "model.apply_lora_to_mlp")
    if c.value("save_adapter_weights_only"):
        c.set("checkpoint.save_frozen", False, "save_adapter_weights_only")


def _weights(c: Conversion) -> None:
    """Weights and tokenizer, from the directory of a Hugging Face model."""
    folder, (_, reader) = c.value("checkpointer.checkpoint_dir"), component(c, "checkpointer")
    key = "checkpointer.checkpoint_dir"
    if not isinstance(folder, str):
        c.wrong(key, "the folder of a model")
        return
    for name in ("checkpoint_files", "output_dir", "model_type"):
        c.value(f"checkpointer.{name}")  # given by the folder and the model
    folder = folder.rstrip("/")
    if reader != "FullModelHFCheckpointer":
        folder = folder.removesuffix("/original")
        text = f"weights in Hugging Face's format are needed: set model.pretrained (here {folder})"
        c.report("needs a decision", "checkpointer._component_", text)
    c.set("model.pretrained", folder, key)
    c.set("tokenizer.type", "huggingface", "tokenizer._component_")
    names = ("path", "merges_file", "merges_path", "vocab_path", "special_tokens",
             "special_tokens_path")  # fmt: skip
    c.set("tokenizer.path", folder, key, *(f"tokenizer.{name}" for name in names))


def _data(c: Conversion) -> None:
    """Data sources; a row is a whole document unless packed."""
    entries = c.sections("dataset")
    longest = c.number("tokenizer.max_seq_len")
    limits = [entry["max_seq_len"] for entry in entries if entry.get("max_seq_len")]
    longest = longest or max((n for n in limits if isinstance(n, int)), default=None)
    length = longest or c.data.get("model", {}).get("max_sequence_length")
    if isinstance(length, int):
        c.set("batch.sequence_length", length, "tokenizer.max_seq_len")
    validation, period = c.sections("dataset_val"), c.number("run_val_every_n_steps")
    share = _share_held_out(entries, validation) if period else 0.0
    c.set("data.held_out", share, "dataset_val")
    if share:
        c.report(
            "differs",
            "dataset",
            "held-out rows are chosen by a hash; in torchtune, they are the last ones",
        )
        entries, validation = [{**entries[0], "split": "train"}], []
    sources = [_source(c, entry, "dataset") for entry in entries]
    known = [source for source in sources if source is not None]
    if known:
        c.set_sources("data.sources", known, "dataset")
    for entry in entries:
        if not isinstance(packed := entry.get("packed", False), bool):
            c.wrong("dataset", f"a data set with packed = true or false, but {packed!r}")
    is_packed = any(entry.get("packed") is True for entry in entries)
    is_text = bool(known) and all(source["type"] != "conversations" for source in known)
    if not is_packed:
        c.set("data.packing.method", "none", "dataset")
        c.set("data.packing.pad_to_multiple_of", 1, "dataset")
        c.set("data.packing.too_long", "truncate", "tokenizer.max_seq_len")
    elif is_text and all(entry.get("split_across_pack", True) for entry in entries):
        c.set("data.packing.method", "concatenate", "dataset")
        c.set("data.packing.isolate", True, "dataset")
    else:
        c.set("data.packing.method", "next_fit", "dataset")
        c.set("data.packing.too_long", "truncate", "tokenizer.max_seq_len")
    if c.value("collate_fn") not in (None, KEYS["collate_fn"].default):
        c.wrong("collate_fn", f"{KEYS['collate_fn'].default}: rows are always padded on the right")
    if not period or not (share or validation):
        c.value("batch_size_val")  # no batch is evaluated
        c.set("evaluation", None, "dataset_val")
        return
    evaluation = [_source(c, entry, "dataset_val") for entry in validation]
    if known := [source for source in evaluation if source is not None]:
        c.set_items("data.validation", known, "dataset_val")
    elif not share:
        c.set("evaluation", None, "dataset_val")
        return
    c.set("evaluation.every", f"{period} steps", "run_val_every_n_steps")
    c.set("evaluation.sequences", None, "dataset_val")
    if (c.value("batch_size_val") or c.value("batch_size")) != 1:
        here = "every sequence is evaluated, in micro-batches of batch.micro_size"
        c.differs("batch_size_val", here, "an incomplete last batch is left out")


def _share_held_out(training: list[dict[str, Any]], validation: list[dict[str, Any]]) -> float:
    """Fraction held out at the end of a split, as in `train[:95%]` and `train[95%:]`; else 0."""
    if len(training) != 1 or len(validation) != 1:
        return 0.0
    kept = re.fullmatch(r"train\[:(\d+)%\]", str(training[0].get("split")))
    others = [{k: v for k, v in entry.items() if k not in ("split", "packed")}
              for entry in (training[0], validation[0])]  # fmt: skip
    is_rest = kept and validation[0].get("split") == f"train[{kept[1]}%:]"
    return (100 - int(kept[1])) / 100 if kept and is_rest and others[0] == others[1] else 0.0


def _source(c: Conversion, entry: dict[str, Any], key: str) -> dict[str, object] | None:
    """The source for a data set builder; None if a decision is needed."""
    name = str(entry.get("_component_", "")).rpartition(".")[2]
    split, files = entry.get("split", "train"), entry.get("data_files")
    flag = "data.sources" if key == "dataset" else "data.validation"
    names = "_component_ packed source split data_files max_seq_len"
    decision = (
        f"{name or 'a data set without _component_'} is defined in torchtune's code: set {flag}"
    )
    if name in TEXTS:
        c.report_rest(key, entry, f"{names} name column add_eos split_across_pack")
        place, subset, column = TEXTS[name]
        path, column = entry.get("source", place), entry.get("column", column)
        if path in FORMATS and files:
            listed = cast("object", files if isinstance(files, list) else [files])
            return {"type": "text", "paths": listed, "field": None if path == "text" else column,
                    "format": "jsonl" if path == "json" else path}  # fmt: skip
        return {"type": "huggingface", "path": path, "subset": entry.get("name", subset),
                "split": split, "field": column,
                "data_files": [files] if isinstance(files, str) else files}  # fmt: skip
    part = str(split).removeprefix("train")
    taken = ("filter_fn", "new_system_prompt")
    columns = _columns(entry, name)
    if name not in CONVERSATIONS or columns is None or any(map(entry.get, taken)) or (
            part and part[0] != "["):  # fmt: skip
        c.report("needs a decision", key, decision)
        return None
    path = entry.get("source", CONVERSATIONS[name][0])
    share = share_in(part)
    limits = c.share_of_rows(key, path, share) if share else {}
    if part and not share:
        text = f"all rows of train are read, not {part}: set {flag}.0.filter"
        c.report("needs a decision", key, text)
    fields = "train_on_input conversation_column conversation_style column_map"
    c.report_rest(key, entry, f"{names} {fields}")
    paths = [f"hf://datasets/{path}/**"]
    if path in FORMATS and files:
        paths = cast("list[str]", files if isinstance(files, list) else [files])
    is_alpaca = name.startswith("alpaca")
    on_input = entry.get("train_on_input", is_alpaca)
    if is_alpaca:
        c.differs(
            key,
            "rows hold Alpaca's prompt alone",
            "they hold it within the control tokens of a chat",
        )
    return {"type": "conversations", "paths": paths, "template": "alpaca" if is_alpaca else None,
            "columns": columns or None, "loss_on": "all" if on_input else "answers",
            "filter": limits or None}  # fmt: skip


def _columns(entry: dict[str, Any], name: str) -> dict[str, str] | None:
    """Columns of a data set by the fields of conversations; None if they are not known."""
    columns: Any = entry.get("column_map") or CONVERSATIONS.get(name, (None, {}))[1]
    if name == "chat_dataset":
        style = STYLES.get(str(entry.get("conversation_style")), "")
        columns = {style: entry.get("conversation_column")} if style else None
    is_known = isinstance(columns, dict) and all(
        isinstance(text, str) for pair in cast("dict[Any, Any]", columns).items() for text in pair
    )
    if not is_known:
        return None
    fields = {} if name.startswith("alpaca") else TURN
    known = cast("dict[str, str]", columns)
    named = {fields.get(field, field): column for field, column in known.items()}
    return {field: column for field, column in named.items() if field != column}


def _loop(c: Conversion) -> None:
    """The duration, in epochs of a maximum number of steps, and the loss."""
    epochs, steps = c.number("epochs"), c.number("max_steps_per_epoch")
    if isinstance(epochs, int) and isinstance(steps, int):
        keys = ("max_steps_per_epoch", "epochs")
        c.set("duration", [f"{epochs} epochs", f"{epochs * steps} steps"], *keys)
        if epochs > 1:
            here = "training continues within the epoch after these steps"
            c.differs("max_steps_per_epoch", here, "a newly shuffled epoch begins")
    elif isinstance(epochs, int):
        c.set("duration", f"{epochs} epochs", "epochs")
    else:
        c.wrong("epochs", "an int")
    losses = {"CEWithChunkedOutputLoss": "chunked_cross_entropy",
              "CrossEntropyLoss": "cross_entropy",
              "LinearCrossEntropyLoss": "chunked_cross_entropy"}  # fmt: skip
    package, name = component(c, "loss")
    if "rlhf" in package:
        c.wrong("loss._component_", "a supervised loss; preference losses are not supported")
        return
    if name not in losses:
        c.wrong("loss._component_", "one of " + ", ".join(losses))
        return
    c.set("loss.type", losses[name], "loss._component_")


def _optimizer(c: Conversion) -> None:
    """AdamW and SGD from torch; other optimizers by import path, with their arguments."""
    package, name = component(c, "optimizer")
    key, rate = "optimizer._component_", c.number("optimizer.lr")
    given = {other: value for other in ("weight_decay", "betas", "eps", "momentum", "dampening",
                                        "nesterov", "amsgrad")
             if (value := c.value(f"optimizer.{other}")) is not None
             and c.given(f"optimizer.{other}")}  # fmt: skip
    if rate is None:
        c.wrong("optimizer.lr", "a number")
        return
    for switch in ("fused", "foreach"):
        if c.value(f"optimizer.{switch}") and name in ("AdamW", "SGD"):
            c.set("optimizer.implementation", switch, f"optimizer.{switch}")
    if not package:
        c.wrong(key, "the import path of an optimizer")
        return
    kinds = {"torch": {"AdamW": "adamw", "SGD": "sgd"},
             "bitsandbytes": dict.fromkeys(("PagedAdamW", "PagedAdamW8bit", "AdamW8bit"), "adamw"),
             "torchao": dict.fromkeys(("AdamW8bit", "AdamW4bit", "AdamWFp8"), "adamw")}  # fmt: skip
    library = package.partition(".")[0]
    kind = kinds.get(library, {}).get(name)
    if kind is not None and library != "torch":
        # Its moments are in fp32 with weights in bf16.
        kind = "anyprecision_adamw" if c.value("dtype") == "bf16" else "adamw"
        text = "optimizer state is on the device; in torchtune, also in host memory (paged)"
        if name != "PagedAdamW":
            target = f"--optimizer.type import --optimizer.target {package}.{name}"
            text = (
                f"optimizer state is in fp32, not in 8 bits; for 8 bits use {target} --import "
                f"{library}"
            )
        c.report("differs", key, text)
    c.set("optimizer.type", kind or "import", key)
    if kind is None:
        c.set("optimizer.target", f"{package}.{name}", key)
    c.set("optimizer.lr", rate, "optimizer.lr")
    c.set("optimizer.no_decay", [])
    if kind == "anyprecision_adamw":
        c.set("precision.optimizer_state", "fp32", key)
    adamw: dict[str, object] = {"weight_decay": 0.01, "betas": [0.9, 0.999], "eps": 1e-8}
    defaults: dict[str, object] = {
        "adamw": adamw,
        "anyprecision_adamw": {**adamw, "rounding": "nearest"},
        "sgd": {"weight_decay": 0.0, "momentum": 0.0},
    }.get(kind or "", {"weight_decay": 0.01} if "Adam" in name and name.endswith("W") else {})
    for field, value in {**defaults, **given}.items():
        c.set(f"optimizer.{field}", value, f"optimizer.{field}")
    clip = c.value("clip_grad_norm")
    if clip is not None and str(clip).lower() not in ("inf", ".inf"):
        clip = c.number("clip_grad_norm")
    is_limit = isinstance(clip, int | float) and clip < math.inf
    c.set("optimizer.clip_norm", clip if is_limit else None, "clip_grad_norm")


def _schedule(c: Conversion) -> None:
    """A constant rate, or a warm-up and a cosine decay to 0."""
    package, name = component(c, "lr_scheduler")
    if not package:
        c.set("schedule.type", "none", "lr_scheduler._component_")
        return
    if name != "get_cosine_schedule_with_warmup" or c.number("lr_scheduler.num_cycles") != 0.5:
        text = f"the schedule {name} is not known: set [schedule]"
        c.report("needs a decision", "lr_scheduler._component_", text)
        return
    key, warmup = "lr_scheduler.num_warmup_steps", c.number("lr_scheduler.num_warmup_steps") or 0
    c.set("schedule.type", "cosine", "lr_scheduler._component_")
    c.warm_up(f"{warmup} steps", key)
    c.set("schedule.floor", 0.0, "lr_scheduler._component_")


def _memory(c: Conversion) -> None:
    """Dtypes, recomputation, offload, float8 and compilation."""
    if c.choice("dtype", "bf16", "fp32") == "bf16":
        c.set("precision.params", "bf16", "dtype")
        c.set("precision.compute", "bf16", "dtype")
    path, mode = "memory.activation_checkpointing", c.value("ac_mode")
    if mode == "selective":
        c.recompute_some("ac_option")
    elif mode is not None and mode not in ("full", "none"):
        c.wrong("ac_mode", "selective, full or none")
    elif c.value("enable_activation_checkpointing") or mode == "full":
        c.set(f"{path}.type", "full", "enable_activation_checkpointing", "ac_mode")
    if not c.value("fsdp_reshard_after_forward"):
        c.set("parallel.reshard", False, "fsdp_reshard_after_forward")
    if c.value("fsdp_cpu_offload") or c.value("fsdp.cpu_offload"):
        c.set("parallel.sharding.offload", True, "fsdp_cpu_offload", "fsdp.cpu_offload")
    compiled = c.value("compile")
    if isinstance(compiled, dict):
        compiled = cast("dict[str, Any]", compiled).get("model", True)
    if compiled is True:
        c.set("compile", {}, "compile")
    elif compiled not in (None, False):
        c.wrong("compile", "true or false, or a mapping of parts to these")
    if c.value("enable_fp8_training"):
        recipe = c.value("fp8_recipe_name") or "tensorwise"
        c.set("precision.float8.recipe", recipe, "fp8_recipe_name", "enable_fp8_training")
    if c.value("cudnn_deterministic_mode") not in (None, 0, "default"):
        c.set("deterministic", True, "cudnn_deterministic_mode")


def _logger(c: Conversion) -> dict[str, object] | None:
    """The tracker for a metric logger; None for disk and stdout."""
    entry = cast("dict[str, Any]", c.value("metric_logger"))
    name = str(entry.get("_component_", "DiskLogger")).rpartition(".")[2]
    wandb = {"project": "project", "entity": "entity", "group": "group", "name": "name",
             "dir": "directory", "tags": "tags"}  # fmt: skip
    mlflow = {"tracking_uri": "uri", "experiment_name": "experiment", "run_id": "run_id",
              "run_name": "name"}  # fmt: skip
    comet = {"project": "project", "workspace": "workspace", "experiment_name": "name",
             "experiment_key": "run_id", "tags": "tags"}  # fmt: skip
    kinds: Mapping[str, tuple[str, Mapping[str, str]]] = {
        "WandBLogger": ("wandb", wandb), "MLFlowLogger": ("mlflow", mlflow),
        "CometLogger": ("comet", comet),
        "TensorBoardLogger": ("tensorboard", {"log_dir": "directory"}),
    }  # fmt: skip
    if name in ("DiskLogger", "StdoutLogger"):
        return None
    if name not in kinds:
        c.wrong("metric_logger", "a table with one of " + ", ".join(("DiskLogger", *kinds)))
        return None
    kind, fields = kinds[name]
    c.report_rest("metric_logger", entry, " ".join(("_component_", "log_dir", *fields)))
    defaults = {"project": "torchtune"} if kind == "wandb" else {}
    values = {field: entry[key] for key, field in fields.items() if key in entry}
    return {"type": kind, **defaults, **values}


def _records(c: Conversion) -> None:
    """Checkpoints, trackers and profiling."""
    steps = c.number("save_every_n_steps")
    c.set("checkpoint.every", f"{steps} steps" if steps else "1 epoch", "save_every_n_steps")
    keep = "checkpointer.keep_last_n_checkpoints"
    c.set("checkpoint.keep", c.value(keep), keep)
    tracker = _logger(c)
    trackers: list[dict[str, object]] = [{"type": "jsonl"}, *([tracker] if tracker else [])]
    c.set_items("tracking.trackers", trackers, "metric_logger")
    c.value("tensor_parallel_plan._component_")  # derived from the model
    if not c.value("profiler.enabled"):
        for key in c.values:
            if key.startswith("profiler."):
                c.value(key)  # the profiler is off there, too
        return
    counts = {"wait": "wait_steps", "warmup": "warmup_steps", "active": "active_steps",
              "repeat": "num_cycles", "shapes": "record_shapes", "memory": "profile_memory",
              "stacks": "with_stack", "flops": "with_flops", "directory": "output_dir"}  # fmt: skip
    for name in ("_component_", "cpu", "cuda", "xpu"):
        c.value(f"profiler.{name}")  # all activities of the machine
    c.copy({f"profiling.{field}": f"profiler.{name}" for field, name in counts.items()})


def _inference(c: Conversion) -> None:
    """An inference job: benchmark tasks, or a prompt to continue."""
    if c.given("epochs") or c.given("dataset"):
        c.wrong("tasks" if c.given("tasks") else "max_new_tokens", "set in a file that trains")
        return
    package, _ = component(c, "model")
    family = package.removeprefix("torchtune.models.").partition(".")[0]
    if family not in FAMILIES:
        c.wrong("model._component_", "a builder of a text model of " + ", ".join(FAMILIES))
    _weights(c)
    folder = c.data["model"]["pretrained"] if "model" in c.data else ""
    c.data.clear()
    c.places.clear()
    c.set("weights.path", folder, "checkpointer.checkpoint_dir")
    if c.choice("dtype", "bf16", "fp32") == "bf16":
        c.set("weights.dtype", "bf16", "dtype")
        c.set("precision.compute", "bf16", "dtype")
    c.set("parallel.device", c.value("device"), "device")
    c.copy_given({"seed": "seed"})
    if component(c, "tensor_parallel_plan")[0]:
        text = (
            "set parallel.tensor to the number of ranks, which all divide each matrix in torchtune"
        )
        c.report("needs a decision", "tensor_parallel_plan._component_", text)
    if tasks := c.names("tasks"):
        c.set("harness.tasks", tasks, "tasks")
        c.copy_given({"batch.micro_size": "batch_size"})
        c.copy_given({"harness.limit": "limit", "harness.tasks_path": "include_path"})
        if c.number("max_seq_length"):
            c.report("differs", "max_seq_length", "the model's maximum length is used")
        return
    templated = family.startswith(("llama3", "qwen", "phi", "gemma"))
    prompt: Any = c.value("prompt")
    prompt = {"user": prompt} if isinstance(prompt, str) else c.mapping("prompt")
    user: Any = prompt.get("user")
    user = user.get("text") if isinstance(user, dict) else user
    if not isinstance(user, str):
        c.wrong("prompt", f"given with the text of a user, but {user!r}")
        return
    c.set("generation.prompts", [user], "prompt")
    if system := prompt.get("system"):
        c.set("chat.system", system, "prompt")
    elif templated:
        c.set("chat", {}, "tokenizer._component_")
    if system and not templated:
        c.differs("prompt", "prompts are formatted by the chat template of the weights", "one text")
    c.set("generation.max_tokens", c.number("max_new_tokens"), "max_new_tokens")
    c.copy_given({f"generation.{key}": key for key in ("temperature", "top_k")})
    if not c.value("enable_kv_cache"):
        c.set("generation.cache", False, "enable_kv_cache")


DIALECT = Dialect(
    name="torchtune",
    release="0.6",
    keys=KEYS,
    signature=("model._component_", "tokenizer._component_", "optimizer._component_"),
    complete=_complete,
    prepare=_interpolate,
    refused={
        **dict.fromkeys(("teacher_model._component_", "kd_ratio", "kd_loss._component_"),
                        OTHER_JOB.format("distillation")),
        **dict.fromkeys(("model.image_size", "model.decoder_trainable", "model.encoder_trainable"),
                        "images are not supported"),
        **dict.fromkeys(("reward_and_value_model._component_", "policy_model._component_",
                         "ref_checkpointer._component_", "loss.beta",
                         "forward_batch_size", "grpo_samples", "num_generations"),
                        OTHER_JOB.format("preference or reinforcement learning")),
    },
)  # fmt: skip
