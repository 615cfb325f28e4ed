"""Axolotl's data sets: texts, and conversations with their templates and masks."""

from __future__ import annotations

import os
from typing import Any, cast

from setpoint.interop.dialect import Conversion, share_in

TEXTS = ("completion", "pretrain")
"""Types of data sets that hold text."""
TEMPLATES = {"alpaca": "alpaca", "chatml": "chatml", "llama3": "llama3", "tokenizer_default": None}
ENTRY = """
    path name type split field text_column data_files ds_type revision shards shards_idx
    preprocess_shards conversation chat_template chat_template_jinja field_messages
    message_field_role message_field_content message_property_mappings roles roles_to_train
    train_on_eos train_on_eot message_field_training
"""
"""Keys of a data set that are converted, or that files of it do not need."""
SUFFIXES = (".json", ".jsonl", ".parquet", ".csv", ".arrow", ".txt")
USUAL: dict[str, Any] = {
    "roles": {"user": {"human", "user"}, "assistant": {"gpt", "assistant", "model"},
              "system": {"system"}, "tool": {"tool"}},
    "roles_to_train": {"assistant", "gpt"}, "train_on_eos": "turn", "train_on_eot": "turn",
    "message_field_training": {"weight", "train", "training"},
}  # fmt: skip
"""Masks of a conversation that loss_on = answers has."""


def convert_data(c: Conversion) -> None:
    """Data sources, packed into rows or padded to the longest row of a micro-batch."""
    streamed = c.sections("pretraining_dataset")
    entries = streamed or c.sections("datasets")
    if not entries:
        c.wrong("datasets", "a list of data sets, nor is pretraining_dataset")
        return
    key = "pretraining_dataset" if streamed else "datasets"
    if any("<" in str(entry.get("path")) for entry in entries):
        c.report("needs a decision", key, "a placeholder: set data.sources")
    else:
        c.set_sources("data.sources", [_source(c, entry, key) for entry in entries], key)
    if tests := c.sections("test_datasets"):
        key = "test_datasets"
        c.set_sources("data.validation", [_source(c, entry, key) for entry in tests], key)
    else:
        c.set("data.held_out", c.number("val_set_size") or 0, "val_set_size")
    packed, grouped = c.value("sample_packing"), c.value("group_by_length")
    pad = c.value("pad_to_sequence_len")
    text_alone = all(entry.get("type") in TEXTS for entry in entries)
    if streamed and not packed:
        c.set("data.packing.isolate", False, "pretraining_dataset")
    elif packed:
        method = "next_fit" if c.value("sample_packing_sequentially") else "first_fit_decreasing"
        c.set("data.packing.method", method, "sample_packing_sequentially", "sample_packing")
        if method == "first_fit_decreasing":
            size = "sample_packing_group_size"
            c.set("data.packing.group_size", c.number(size), size)
            text = "documents of a group are packed longest first; in Axolotl, in their order"
            c.report("differs", "sample_packing", text)
        isolate = bool(c.value("pretrain_multipack_attn") or not streamed)
        c.set("data.packing.isolate", isolate, "sample_packing")
    else:
        c.set("data.packing.method", "none", "sample_packing")
        if pad is None:
            multiple = c.number("pad_to_multiple_of") or 64
            c.set("data.packing.pad_to_multiple_of", multiple, "pad_to_multiple_of")
        if grouped:
            c.set("data.packing.length_buckets", True, "group_by_length")
            grouped = None
    if grouped:
        c.report("without effect", "group_by_length", "in Axolotl, too: rows are packed")
    if not text_alone:
        kinds = {"drop": "drop", "truncate": "truncate", "raise": "error"}
        c.pick("data.packing.too_long", "excess_length_strategy", kinds)
    c.value("hf_use_auth_token")  # the token of `hf auth login` is used in any case
    if (text_alone or streamed) and c.value("train_on_inputs"):
        c.report("without effect", "train_on_inputs", "in Axolotl, too: a text has no answers")
    if c.value("curriculum_sampling"):
        c.set("data.shuffle", False, "curriculum_sampling")
    c.copy_given({"data.prepare.workers": "dataset_processes",
                  "data.loader.workers": "dataloader_num_workers",
                  "data.loader.prefetch": "dataloader_prefetch_factor",
                  "data.loader.pin_memory": "dataloader_pin_memory"})  # fmt: skip


def _source(c: Conversion, entry: dict[str, Any], key: str) -> dict[str, Any]:
    """A source for one entry: text from a column, or conversations from rows."""
    path, kind = str(entry.get("path") or entry.get("name")), entry.get("type")
    is_text = kind in TEXTS or key == "pretraining_dataset" or kind is None
    files = entry.get("data_files") or []
    files = [str(file) for file in (files if isinstance(files, list) else [files])]
    is_path = path.startswith((".", "/", "~")) or "://" in path or path == "json"
    local = is_path or os.path.exists(path) or path.endswith(SUFFIXES)
    paths = [path]
    if local and files and (path.endswith(SUFFIXES) or "://" in path):
        c.report("without effect", key, "in Axolotl, too: data_files beside the path of a file")
    elif files:  # in place of a directory, and relative to the current one
        paths = files
    split = entry.get("split") or "train"
    source: dict[str, Any]
    if is_text:
        default = "text" if kind or key[0] == "p" else "input_ids"
        column = entry.get("field") or entry.get("text_column") or default
        if local:
            source = {"type": "text", "paths": paths, "field": column}
        else:
            source = {"type": "huggingface", "path": path, "subset": entry.get("name"),
                      "split": split, "revision": entry.get("revision"), "field": column,
                      "data_files": files or None,
                      "streaming": key == "pretraining_dataset" or None}  # fmt: skip
            if c.value("hf_use_auth_token"):
                source["token"] = "env:HF_TOKEN"
    else:
        share = share_in(split)
        base, (split, bracket, rows) = f"hf://datasets/{path}", str(split).partition("[")
        if share and not entry.get("shards"):
            entry = {**entry, **c.share_of_rows(key, split, share)}
        elif bracket:
            text = f"all rows of {split} are read, not [{rows}: set data.sources.N.filter.shards"
            c.report("needs a decision", key, text)
        hub = [f"{base}/{file}" for file in files] or [
            f"{base}@~parquet/{entry.get('name') or 'default'}/{split}/*.parquet"
        ]
        source = {"type": "conversations", "paths": paths if local else hub}
        source |= _conversation(c, entry, kind, key)
    c.report_rest(key, entry, ENTRY)
    limits = {"shards": entry.get("shards") or c.number("dataset_shard_num"),
              "shard": entry.get("shards_idx") or c.number("dataset_shard_idx"),
              "shortest": c.number("min_sample_len")}  # fmt: skip
    if not is_text:  # without the target after the last token of a row
        kinds = {"drop": None, "truncate": "truncate", "raise": "error"}
        limits |= {"longest": c.number("sequence_len"),
                   "too_long": kinds.get(str(c.value("excess_length_strategy")))}  # fmt: skip
    if limits["shortest"] and is_text:
        c.report("differs", "min_sample_len", "counts bytes of text; in Axolotl, tokens")
    if not is_text or limits["shards"] or limits["shortest"]:
        source["filter"] = {name: value for name, value in limits.items() if value is not None}
    return {name: value for name, value in source.items() if value is not None}


def _conversation(c: Conversion, entry: dict[str, Any], kind: object, key: str) -> dict[str, Any]:
    """The chat template and the loss mask of a conversation data set."""
    name = str(kind).partition(":")[0].partition(".")[0]
    template = entry.get("chat_template") or c.value("chat_template")
    if str(template).startswith("tokenizer_default_fallback_"):
        template = "tokenizer_default"  # the other is for tokenizers without a template
    if name == "sharegpt":
        template = entry.get("conversation") or template
    jinja = entry.get("chat_template_jinja") or c.value("chat_template_jinja")
    result: dict[str, Any] = {}
    if kind in ("alpaca", "alpaca:instruct"):
        result["template"] = "alpaca"
    elif name in ("chat_template", "sharegpt"):
        if jinja and str(jinja).endswith((".jinja", ".jinja2")):
            result["template"] = jinja
        elif isinstance(template, str) and template in TEMPLATES:
            result["template"] = TEMPLATES[cast("str", template)]
        elif template is not None or jinja:
            shown = f"Axolotl's own {template}" if template else "one in the file"
            text = (
                f"the tokenizer's template is used instead of {shown}; to use it, set "
                f"data.sources.N.template to a "
            )
            c.report("needs a decision", "chat_template", f"{text}Jinja file")
        known = {"role": ("role", "from"), "content": ("content", "value")}
        mappings = entry.get("message_property_mappings") or {
            role: entry[field] for role in known if (field := f"message_field_{role}") in entry
        }
        is_usual = isinstance(mappings, dict) and all(
            value in known.get(role, ()) for role, value in cast("dict[str, Any]", mappings).items()
        )
        column = entry.get("field_messages", "messages")
        columns = {} if column in ("messages", "conversations") else {"conversations": column}
        if isinstance(mappings, dict) and not is_usual and mappings.keys() <= known.keys():
            columns |= {role: mappings.get(role, role) for role in known}
            is_usual = True
        if columns:
            result["columns"] = columns
        if not is_usual:
            text = (
                "fields of messages other than role, content, from and value: rename them in "
                "the data"
            )
            c.report("needs a decision", key, text)
        unusual = [option for option in USUAL if not _is_usual(option, entry.get(option))]
        if "roles" in unusual:
            unusual.remove("roles")
            c.report(
                "needs a decision",
                key,
                "roles: rename them in the data to the usual names, such as assistant",
            )
        if "message_field_training" not in entry and not c.value("train_on_inputs"):
            here = "messages with 0 or false in train, training or weight are not trained on"
            c.differs(key, here, "only if message_field_training names that field")
        if unusual:
            text = (
                f"{', '.join(unusual)}: the loss is on each answer of the assistant, with its "
                f"end of turn"
            )
            c.report("differs", key, text)
    elif kind != "input_output":  # whose rows have `segments`
        shown = kind if isinstance(kind, str) else "of prompts of its own"
        text = f"type {shown}: write rows with `messages`, or a template, and set data.sources"
        c.report("needs a decision", key, text)
    if c.value("train_on_inputs"):
        result["loss_on"] = "all"
        if name in ("chat_template", "sharegpt"):
            text = "every token is trained on; in Axolotl, all messages but not their headers"
            c.report("differs", "train_on_inputs", text)
    return result


def _is_usual(option: str, value: Any) -> bool:
    """True if a conversation option has a value supported by Setpoint's masks and roles."""
    usual = USUAL[option]
    if value is None or isinstance(usual, str):
        return value in (None, usual)
    if isinstance(usual, set) and isinstance(value, str):
        return value in usual
    if isinstance(usual, set):
        names = {*map(str, cast("list[Any]", value))} if isinstance(value, list) else set[str]()
        return bool(names) and names <= usual
    return isinstance(value, dict) and all(
        {*map(str, names if isinstance(names, list) else [names])} <= usual.get(role, set())
        for role, names in cast("dict[str, Any]", value).items()
    )
