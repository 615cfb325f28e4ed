"""Arguments of TRL's SFT script, and of the recipes of alignment-handbook and open-r1.

A file belongs to TRL if it has a key in `MARKS`; TRL's own defaults then apply. Formulas of TRL:
the loss covers whole texts and conversations, or completions where rows have prompts; prompts and
completions that are strings have no template, and texts end with the separator; without packing,
rows are padded to the longest of a batch, and longer ones are truncated.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, cast

from setpoint.interop.dialect import Conversion, Key, alike, keys_of
from setpoint.interop.transformers_trainer import IDLE, convert_peft

MARKS = ("max_length", "packing", "packing_strategy", "dataset_mixer", "dataset_mixture",
         "dataset_text_field", "dataset_train_split", "dataset_splits", "use_peft",
         "assistant_only_loss", "completion_only_loss")  # fmt: skip
"""Keys that TRL adds to those of transformers."""
DEFAULTS = {"learning_rate": 2e-5, "logging_steps": 10.0, "gradient_checkpointing": True,
            "dtype": "float32"}  # fmt: skip
"""TRL's defaults that differ from those of transformers, apart from bf16 without fp16."""
KEYS = {
    **keys_of("", use_peft=False, lora_r=16, lora_alpha=32, lora_dropout=0.05, use_dora=False,
        use_bnb_nested_quant=False, load_in_8bit=False, load_in_4bit=False,
        dataset_train_split="train", dataset_test_split="test", dataset_text_field="text",
        max_length=1024, packing=False, packing_strategy="bfd", assistant_only_loss=False,
        loss_type="nll"),
    "use_flash_attention_2": Key(False, "model.attention_backend", {True: "flash_attention_2"},
        optional=True),
    "use_rslora": Key(False, "adapter.rank_stabilized", optional=True),
    "activation_offloading": Key(False, "memory.activation_offload", {True: {}}, optional=True),
    "bnb_4bit_quant_type": Key("nf4", differs="only NF4 is supported"),
    "bnb_4bit_quant_storage": Key(None, idle="affects only how the quantized weights are stored"),
    "lora_task_type": Key("CAUSAL_LM", idle="the task is always causal language modeling"),
    "dataset_kwargs": Key(None, decision="set data.sources.N.template or tokenizer.separator"),
    "eos_token": Key(None, decision="the tokenizer's files define it: set tokenizer.separator to "
                                    "change it"),
    "router_aux_loss_coef": Key(None, decision="set model.overrides.router_aux_loss_coef"),
    "model_init_kwargs": Key(None, decision="set model.overrides"),
    "truncation_mode": Key("keep_start", refused="rows are truncated at their end"),
    "shuffle_dataset": Key(False, idle="the sampler always shuffles"),
    # Of open-r1.
    "system_prompt": Key(None, decision="put it into the conversations or the template"),
    **alike("", "callbacks benchmarks", Key(None,
        refused="evaluation jobs for other machines are not started during training")),
    **alike("", "wandb_run_group num_processes num_completions_to_print",
        Key(None, idle=IDLE)),
    **alike("", "padding_free eval_packing pad_to_multiple_of pad_token tokenizer_name_or_path",
        Key(None, idle=IDLE)),
}  # fmt: skip
SPLITS = {"train": "train|training", "validation": "validation|valid|dev|val",
          "test": "test|testing|eval|evaluation"}  # fmt: skip
"""Words in names of files by which the package datasets recognizes splits."""
RECORDS = (".json", ".jsonl", ".parquet", ".csv", ".arrow")
PREFERENCES = "training on preferences and reinforcement learning are not supported"
REFUSED: dict[str, str] = dict.fromkeys(
    ("beta", "max_prompt_length", "num_generations", "reward_model_path", "reward_funcs",
     "desirable_weight", "center_rewards_coefficient", "ref_model_init_kwargs"), PREFERENCES,
)  # fmt: skip
"""Keys of TRL's other trainers."""


def is_sft(c: Conversion) -> bool:
    """True for a file of TRL's SFT script."""
    return any(c.given(key) for key in MARKS)


def prepare_sft(c: Conversion) -> None:
    """Set TRL's defaults."""
    for key, value in {**DEFAULTS, "bf16": not c.value("fp16")}.items():
        c.default(key, value)


def convert_adapter(c: Conversion) -> None:
    """LoRA or DoRA on the named modules, with weights in NF4 or int8 if they are quantized."""
    if not c.value("use_peft"):
        if c.value("load_in_4bit") or c.value("load_in_8bit"):
            c.wrong("use_peft", "true, as load_in_4bit and load_in_8bit need an adapter")
        return
    is_four, is_eight = bool(c.value("load_in_4bit")), bool(c.value("load_in_8bit"))
    kind = "dora" if c.value("use_dora") else "qlora" if is_four else "lora"
    c.set("adapter.type", kind, "use_peft", "use_dora", "load_in_4bit")
    if is_four or is_eight:
        double = c.value("use_bnb_nested_quant")
        c.set("adapter.quantize", {"type": "nf4", "double": bool(double)} if is_four
              else {"type": "int8"}, "load_in_4bit", "load_in_8bit")  # fmt: skip
    if not (targets := c.names("lora_target_modules")):
        text = "query and value projections are adapted, as PEFT does for most models"
        c.report("differs", "lora_target_modules", text)
        targets = ["q_proj", "v_proj"]
    convert_peft(c, targets)


def convert_data(c: Conversion) -> None:
    """Conversations or texts from the hub, packed or padded, and the loss."""
    if c.choice("loss_type", "nll", "chunked_nll") == "chunked_nll":
        c.set("loss.type", "chunked_cross_entropy", "loss_type")
    c.set("data.held_out", 0)
    training, validation = _mixture(c)
    if not training:
        c.report("needs a decision", "dataset_name", "no data set is named: set data.sources")
    for path, entries in (("data.sources", training), ("data.validation", validation)):
        if entries and not (path == "data.validation" and c.value("eval_strategy") == "no"):
            sources = [_source(c, entry) for entry in entries]
            if path == "data.validation":
                c.data["data"].pop("held_out", None)
            if path == "data.validation" or len(sources) > 1:  # are read whole
                sources = [{**source, "streaming": None} for source in sources]
            if path == "data.sources" and c.value("streaming") and not sources[0].get("streaming"):
                text = "rows are read before training; those of one data set of text are streamed, "
                c.report("differs", "streaming", f"{text}with packing in the strategy wrapped")
            c.set_sources(path, sources, _key(c))
    if c.value("eval_strategy") != "no":
        c.set("evaluation.sequences", None, "eval_strategy")
    if isinstance(length := c.number("max_length"), int):
        c.set("batch.sequence_length", length, "max_length")
    else:
        text = "null allows rows of any length in TRL: set batch.sequence_length"
        c.report("needs a decision", "max_length", text)
    strategy = c.choice("packing_strategy", "bfd", "bfd_split", "ffd", "wrapped")
    if not c.value("packing"):
        c.set("data.packing.method", "none", "packing")
        c.set("data.packing.pad_to_multiple_of", 1, "packing")
    elif strategy == "wrapped":
        c.set("data.packing.method", "concatenate", "packing_strategy")
        c.set("data.packing.isolate", False, "packing_strategy")
        here = "rows overlap by one token, so every position has a target"
        c.differs("packing_strategy", here, "the first token of a row is not a target")
        return
    else:
        c.set("data.packing.method", "first_fit_decreasing", "packing_strategy", "packing")
        c.set("data.packing.isolate", True, "packing")
        if strategy != "ffd":
            c.report(
                "differs",
                "packing_strategy",
                "rows are packed by first-fit decreasing; in TRL, by best fit",
            )
    c.set("data.packing.too_long", "truncate", "max_length")


def _key(c: Conversion) -> str:
    names = ("dataset_mixture", "dataset_mixer", "dataset_name")
    return next((name for name in names if c.given(name)), "dataset_name")


def _mixture(c: Conversion) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Training and evaluation data sets, each with id, config, split and fraction of its rows."""
    if mixture := c.mapping("dataset_mixture"):
        c.report_rest("dataset_mixture", mixture, "datasets test_split_size seed")
        if c.value("eval_strategy") != "no" and (size := mixture.get("test_split_size")):
            c.set("data.held_out", size, "dataset_mixture")
        entries: Any = mixture.get("datasets")
        if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
            c.wrong("dataset_mixture", "a mapping with a list of datasets")
            return [], []
        return cast("list[dict[str, Any]]", entries), []
    mixer, splits = c.mapping("dataset_mixer"), c.names("dataset_splits") or ["train", "test"]
    configs = c.names("dataset_configs")
    if mixer:
        named = [(name, configs[n] if n < len(configs) else None) for n, name in enumerate(mixer)]
        entries = [
            {"id": name, "config": config, "split": split, "weight": mixer[name]}
            for name, config in named for split in splits
        ]  # fmt: skip
        tests = [entry for entry in entries if "test" in entry["split"]]
        return [entry for entry in entries if "train" in entry["split"]], tests
    if (name := c.text("dataset_name")) is None:
        return [], []
    common = {"id": name, "config": c.text("dataset_config_name") or next(iter(configs), None)}
    splits = [c.text(f"dataset_{part}_split") for part in ("train", "test")]
    training, test = ({**common, "split": split} for split in splits)
    return [training], [test]


def _source(c: Conversion, entry: dict[str, Any]) -> dict[str, Any]:
    key = _key(c)
    c.report_rest(key, entry, "id path config name split columns weight fraction")
    name, config = entry.get("id", entry.get("path")), entry.get("config", entry.get("name"))
    split, share = entry.get("split", "train"), entry.get("weight", entry.get("fraction"))
    field = c.value("dataset_text_field")
    is_stream = c.value("packing") and c.value("packing_strategy") == "wrapped"
    if is_stream and (c.given("dataset_text_field") or entry.get("columns") == ["text"]):
        source = {"type": "huggingface", "path": name, "subset": config, "split": split,
                  "field": field, "streaming": c.value("streaming") or None}  # fmt: skip
    else:
        paths = [f"hf://datasets/{name}@~parquet/{config or 'default'}/{split}/*.parquet"]
        if os.path.exists(str(name)) or str(name).startswith(("/", ".", "~")):
            paths = local_files(c, key, str(name), str(split))
        loss_on = "all" if c.value("completion_only_loss") is False else "completion"
        if c.value("assistant_only_loss"):
            loss_on = "answers"
        columns = {"text": field} if field != "text" else None
        source = {"type": "conversations", "paths": paths, "columns": columns, "loss_on": loss_on,
                  "template": _template(c)}  # fmt: skip
        if isinstance(length := c.number("max_length"), int):
            source["filter"] = {"longest": length, "too_long": "truncate"}
    if isinstance(share, int | float) and 0 < share < 1:
        source["filter"] = {**source.get("filter", {}), **c.share_of_rows(key, name, share)}
    return source


def local_files(c: Conversion, key: str, path: str, split: str) -> list[str]:
    """Files of a split in a local directory, which are recognized by their names or folders.

    If no name has the word of a split, all files belong to train.
    """
    folder = Path(path).expanduser()
    files = sorted(file for file in folder.rglob("*.*") if file.suffix in RECORDS)

    def named(words: str) -> list[Path]:
        pattern = re.compile(rf"(^|[-._ \d/])({words})([-._ \d/]|$)")
        return [file for file in files if pattern.search(file.relative_to(folder).as_posix())]

    if not (chosen := named(SPLITS.get(split, re.escape(split)))):
        others = named("|".join(SPLITS.values()))
        chosen = [file for file in files if file not in others and split == "train"]
        if folder.is_dir() and (split != "train" or others):
            c.report("needs a decision", key, f"no file in {path} has {split} in its name")
    if files and not chosen:  # a glob without a match, which `check` refuses
        return [f"{path}/{split}*"]
    return [*map(str, chosen)] or [path]


def _template(c: Conversion) -> str | None:
    """A Jinja file, the name of a template, or null for the tokenizer's own."""
    for key in ("chat_template_path", "chat_template"):
        text = c.text(key)
        if text and (text.endswith((".jinja", ".jinja2")) or text in ("chatml", "llama3")):
            return text
        decision = (
            "the tokenizer's template is used instead; to use this one, set "
            "data.sources.N.template to a"
        )
        if text and not any(report.key == key for report in c.reports):
            c.report("needs a decision", key, f"{decision} Jinja file")
    return None
