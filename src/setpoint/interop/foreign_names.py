"""Names and values that other systems use for the fields of a job, and their conversion.

A key that a dialect converts on its own to one field is a name of that field. `names.toml` contains
names for systems without a dialect, and for keys that are converted together with others. A
conversion returns an exact value or none; in the latter case the hint names only the field.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from setpoint.config.draft.hints import OtherName
from setpoint.config.layers.presets import preset_named
from setpoint.config.other_names import ForeignKey, Replacement
from setpoint.config.words.names import folded
from setpoint.config.words.text import for_shell
from setpoint.interop.dialect import DIALECTS, dialect_named
from setpoint.units import Duration

TRACKERS = ("wandb", "tensorboard", "mlflow", "comet", "aim", "trackio")
OTHER_TRACKERS = ("neptune", "clearml", "swanlab")
DTYPES = {"16": "fp16", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "32": "fp32",
          "no": "fp32", "float32": "fp32", "float": "fp32", "full": "fp32"}  # fmt: skip
GPT2 = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
"""Ids of the hub from before it had owners."""
FAMILIES = ("llama", "mistral", "mixtral", "qwen", "gemma", "gpt", "olmo", "phi", "deepseek", "glm",
            "granite", "smollm")  # fmt: skip
SOURCE_TYPES = {
    "text": ("file", "files", "json", "jsonl", "csv", "tsv", "parquet", "arrow"),
    "conversations": ("chat", "chats", "messages", "sharegpt", "alpaca", "instruct", "sft"),
    "huggingface": ("hf", "hub", "datasets", "hf_dataset"),
    "tokens": ("bin", "npy", "numpy", "memmap", "token_ids"),
}
"""Other names of the types of data sources."""

Answer = Replacement | str | None
Conversion = Callable[[ForeignKey, str], Answer]


def _other_key(key: ForeignKey, path: str) -> ForeignKey | None:
    """Another key given for a field, under any of its names."""
    return key.other_key(*NAMES[path])


def _plain(number: float) -> str:
    return f"{number:.10g}"


def _count(number: float, template: str = "{} steps") -> str:
    text = template.format(_plain(number))
    return text.removesuffix("s") if number == 1 else text


# Numbers.


def _with_unit(template: str, key: ForeignKey, path: str) -> Answer:
    """A number with its unit."""
    if key.number is None:
        return None
    return Replacement({path: _count(key.number, template)})


def _milliseconds(key: ForeignKey, path: str) -> Answer:
    return None if key.number is None else Replacement({path: key.number / 1000}, "in seconds")


def _switch(true: str, false: str, key: ForeignKey, path: str) -> Answer:
    """One of two field values, for true and false."""
    value = true if key.truth else false
    words = {"true": True, "false": False, "null": None}
    return None if key.truth is None else Replacement({path: words.get(value, value)})


def _time(key: ForeignKey, path: str) -> Answer:
    """`max_time`, as in `00:12:00:00` for days, hours, minutes and seconds."""
    parts = key.text.split(":")
    if 1 < len(parts) <= 4 and all(part.isdecimal() for part in parts):
        days, hours, minutes, seconds = (int(part) for part in ["0"] * (4 - len(parts)) + parts)
        total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        return Replacement({path: f"{total} s" if total % 60 else f"{total // 60} min"})
    if key.number is None:
        return None
    number = _plain(key.number)
    return f"Setpoint calls it {path}, with a unit: {number} min, {number} steps, {number} epochs."


def _of_peak(key: ForeignKey, path: str) -> Answer:
    """A learning rate as a fraction of the peak, which the other keys or the job determine."""
    other = _other_key(key, "optimizer.lr")
    peak = key.of("optimizer.lr") if other is None else other.number
    note = "a fraction of the peak, not a learning rate"
    if key.number is None or not isinstance(peak, int | float) or peak <= 0:
        return f"Setpoint calls it {path}, {note}."
    return Replacement({path: key.number / peak}, f"{note} ({key.number:g} / {peak:g})")


def _warmup(key: ForeignKey, path: str) -> Answer:
    """A number of steps, or a fraction of the horizon."""
    if key.number is None:
        return None
    if 0 < key.number < 1 or key.name.endswith(("ratio", "fraction")):
        return Replacement({path: f"{_plain(100 * key.number)} %"}, "a share of the horizon")
    return Replacement({path: _count(key.number)})


def _every(key: ForeignKey, path: str) -> Answer:
    """A period: a count of steps, a fraction of the run, or a strategy by name."""
    number, word = key.number, key.text.lower()
    if word in ("no", "none", "never", "false") or (number is not None and number <= 0):
        is_evaluation = path == "evaluation.every"
        return Replacement({"evaluation": None} if is_evaluation else {path: "never"})
    if word in ("epoch", "epochs"):
        return Replacement({path: "1 epoch"})
    if number is None:
        return None
    if key.name == "val_check_interval" and isinstance(key.value, float):
        return Replacement({path: _count(number, "{} epochs")}, "where a share is one of an epoch")
    if key.name == "saves_per_epoch":
        return Replacement({path: _count(1 / number, "{} epochs")})
    if number >= 1:
        return Replacement({path: _count(number)})
    horizon = key.of("schedule.horizon")
    updates = horizon.in_unit("steps") if isinstance(horizon, Duration) else None
    if updates is None:
        return None
    note = f"a count with a unit ({number:g} of {updates} steps)"
    return Replacement({path: _count(max(1, round(number * updates)))}, note)


def _batches(key: ForeignKey, path: str) -> Answer:
    """Evaluation batches, converted to the number of their sequences."""
    size, number = key.of("batch.micro_size"), key.number
    note = "a number of sequences, not of batches"
    if number is None or number < 1 or number != int(number) or not isinstance(size, int):
        return f"Setpoint calls it {path}, {note}."
    return Replacement({path: int(number) * size}, f"{note} ({number:g} * {size})")


def _beta(index: int, key: ForeignKey, path: str) -> Answer:
    """One of Adam's betas; the other comes from its own key, or is unchanged."""
    betas = key.of(path)
    pair = [*cast(Sequence[float], betas)] if isinstance(betas, tuple) else [0.9, 0.95]
    for position, names in enumerate((("adam_beta1", "beta1"), ("adam_beta2", "beta2"))):
        other = key.other_key(*names)
        if other is not None and other.number is not None:
            pair[position] = other.number
    if key.number is None:
        return None
    pair[index] = key.number
    return Replacement({path: pair}, "a pair")


def _held_out(key: ForeignKey, path: str) -> Answer:
    """A fraction of the documents, or, if at least 1, their number."""
    number = key.number or 0.0
    if 0 < number < 1 or (key.name.endswith("size") and number >= 1 and number.is_integer()):
        return Replacement({path: key.value})
    return f"Setpoint calls it {path}, a fraction of the documents, or from 1 on their number."


def _accumulation(key: ForeignKey, path: str) -> Answer:
    """Forward passes per update at the current micro-batch size, as counted by other systems."""
    number, size, ranks = key.number, key.of("batch.global_size"), key.of("parallel.world_size")
    other = _other_key(key, "batch.micro_size")
    micro: object = key.of("batch.micro_size") if other is None else other.number
    is_count = number is not None and number >= 1 and number == int(number)
    is_known = isinstance(size, int) and isinstance(ranks, int)
    if number is None or not is_count or not is_known or not isinstance(micro, int | float):
        return f"Setpoint calls it {path}: it divides the global batch, so the micro-batch shrinks."
    count, total = int(number), int(number * micro) * ranks
    if total == size:
        return Replacement({path: count})
    note = f"which at a micro-batch of {int(micro)} makes a global batch of {total}, not {size}"
    return Replacement({path: count, "batch.global_size": total}, note)


def _micro(key: ForeignKey, path: str) -> Answer:
    """The micro-batch, plus a divisible global size if the current one is not."""
    number, size, ranks = key.number, key.of("batch.global_size"), key.of("parallel.world_size")
    is_count = number is not None and number >= 1 and number == int(number)
    if number is None or not is_count or not isinstance(size, int) or not isinstance(ranks, int):
        return None
    sequences = int(number) * ranks
    passes = _other_key(key, "batch.accumulation")
    if size % sequences == 0 or (passes is not None and (passes.number or 0) >= 1):
        return Replacement({path: int(number)})
    total = sequences * max(1, round(size / sequences))
    note = f"which divides the global batch, and does not divide {size}"
    return Replacement({path: int(number), "batch.global_size": total}, note)


# Formats, kinds and places.


def _dtype(key: ForeignKey, path: str) -> Answer:
    """Mixed precision, by a switch or by name: `amp = true`, `precision = "bf16-mixed"`."""
    word, _, kind = key.text.lower().removeprefix("torch.").partition("-")
    dtype = DTYPES.get(word, word)
    if key.truth is not None:
        dtype = "bf16" if key.truth else "fp32"
    if kind == "true" and dtype == "bf16":  # of the weights, too
        return Replacement({"precision.params": dtype, "precision.compute": dtype})
    return _computed_in(dtype)


def _half(key: ForeignKey, path: str) -> Answer:
    """The switches `fp16` and `bf16`, of which at most one is on."""
    if key.truth is None or key.truth:
        return None if key.truth is None else _computed_in(key.name)
    other = key.other_key("bf16" if key.name == "fp16" else "fp16")
    if other is not None and other.truth:
        return f"Leave {key.name} out: precision.compute is one format, and {other.name} is on."
    return _computed_in("fp32")


def _computed_in(dtype: str) -> Replacement | None:
    note = "on a GPU" if dtype == "fp16" else ""
    is_known = dtype in ("bf16", "fp16", "fp32")
    return Replacement({"precision.compute": dtype}, note) if is_known else None


def _optimizer(key: ForeignKey, path: str) -> Answer:
    word = key.text.lower().replace("-", "_")
    if "8bit" in word or "4bit" in word or "paged" in word:
        return (
            "Setpoint has no optimizer with 8-bit state; optimizer.type = import can use one from "
            'another package: --optimizer.type import --optimizer.target "bitsandbytes.optim.'
            'AdamW8bit"'
        )
    if word in ("adam", "torch_adam"):
        values = {path: "adamw", "optimizer.weight_decay": 0}
        return Replacement(values, "Adam is AdamW without it")
    is_adamw = word.startswith("adamw") and word.isidentifier()
    is_adamw = is_adamw or word in ("torch_adamw", "adam_w")
    return Replacement({path: "adamw" if is_adamw else word})


def _optimizer_value(key: ForeignKey, path: str) -> Answer:
    """Another system's name of an optimizer, converted to Setpoint's section."""
    answer = _optimizer(key, path)
    if isinstance(answer, Replacement):
        is_known = answer.values == {path: "adamw"}
        return "Setpoint calls it adamw." if is_known else None
    return answer


def _schedule(key: ForeignKey, path: str) -> Answer:
    """Curves that end at 0, as in transformers; other systems use the same names."""
    word = key.text.lower()
    if word not in ("linear", "cosine", "polynomial"):
        kinds: Mapping[str, Sequence[str]] = VALUES[path]
        name = next((kind for kind, words in kinds.items() if word in words), word)
        return Replacement({path: name})
    values: dict[str, object] = {path: word, "schedule.floor": 0}
    if word == "polynomial":
        values["schedule.power"] = 1
    return Replacement(values, "which ends at 0 in transformers")


def _resume_value(key: ForeignKey, path: str) -> Answer:
    """A path given in place of the resume mode."""
    return _resume(key, path) if "/" in key.text or os.path.exists(key.text) else None


def _resume(key: ForeignKey, path: str) -> Answer:
    if key.truth is not None:
        return Replacement({path: "must" if key.truth else "never"})
    word = key.text.lower()
    if word in ("auto", "latest", "last", "never", "must", "restart"):
        return Replacement({path: "auto" if word in ("latest", "last") else word})
    return (
        f"A run is resumed by giving its directory in place of the source: setpoint train "
        f"{key.text}"
    )


def _pretrained(key: ForeignKey, path: str) -> Answer:
    """Weights to start from, with their configuration first; or weights of an inference job."""
    name = key.text
    if "weights" in type(key.editor.root).__setpoint__.fields:
        return Replacement({"weights.path": name})
    if name in ("scratch", "random", "none", "null", ""):
        return f"Leave {key.name} out: weights are random unless model.pretrained names some."
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


def _model(key: ForeignKey, path: str) -> Answer:
    if "/" in key.text or os.path.exists(key.text):
        return _pretrained(key, path)
    if preset_named(key.text) or not key.text.lower().startswith(FAMILIES):
        return None
    return (
        "type = transformer covers Llama, Qwen, Gemma and other families: start from a preset "
        "(`setpoint list presets`), or from weights (`setpoint import`)."
    )


def _tokenizer(key: ForeignKey, path: str) -> Answer:
    """A tokenizer by its kind, its files or its id."""
    name = key.text
    if name.lower() in ("bytes", "byte", "bytelevel", "byt5"):
        return Replacement({path: "bytes"})
    if name.lower() in ("bpe", "byte_level_bpe"):
        return (
            "Train one with `setpoint tokenizer train SOURCE --vocab-size N -o DIR`, then "
            "tokenizer.type = huggingface with tokenizer.path = DIR."
        )
    is_place = "/" in name or name in GPT2 or os.path.exists(name)
    if key.name in ("tokenizer", "tokenizer_type") and not is_place:
        return None
    name = f"openai-community/{name}" if name in GPT2 else name
    return Replacement({path: "huggingface", "tokenizer.path": name})


def _files(key: ForeignKey, path: str) -> Answer:
    """Files as a list of one source; the name of a kind of sources."""
    several = isinstance(key.value, list | tuple)
    texts = [str(p) for p in cast(Sequence[object], key.value)] if several else [key.text]
    if texts in (["stdlib"], ["random"]):
        return Replacement({path: texts[0]}, "a list of sources")
    if texts and all("." in text or "*" in text or os.path.exists(text) for text in texts):
        return Replacement({path: [{"type": "text", "paths": texts}]}, "a list of sources")
    return None


def _sources(key: ForeignKey, path: str) -> Answer:
    """A file, or the name of a kind of source, in place of sources."""
    if answer := _files(key, path):
        return answer
    if key.name.isdecimal() or preset_named(key.text):
        word = key.text.lower()
        name = next((name for name, words in SOURCE_TYPES.items() if word in words), None)
        return f"Setpoint calls it {name}." if name else None
    return f"Text is given as files: --{path} '[{{type: text, paths: [FILE]}}]'"


def _trackers(key: ForeignKey, path: str) -> Answer:
    word = key.text.lower()
    if word in ("none", "[]", "null", ""):
        return Replacement({path: []})
    return Replacement({path: ["jsonl", word]}) if word in TRACKERS else _tracker(key, path)


def _tracker(key: ForeignKey, path: str) -> Answer:
    word = key.text.lower()
    return _tracker_hint(word) if word in (*TRACKERS, *OTHER_TRACKERS) else None


def _tracker_hint(name: str) -> str:
    if name in OTHER_TRACKERS:
        return (
            f"There is no {name} tracker. Available: {', '.join(TRACKERS)}; your own tracker is a "
            f"class with a nested Config(TrackerConfig, type = ...) in a module that --import "
            f"names."
        )
    return (
        f"Trackers are a list: --tracking.trackers.append {name}, with its options in a table of "
        f'it ({{type = "{name}", ...}}); `setpoint list fields tracking.trackers` shows them.'
    )


CONVERSIONS: Mapping[str, Conversion] = {
    "name": lambda key, path: None,
    "beta1": partial(_beta, 0),
    "beta2": partial(_beta, 1),
    **{function.__name__.strip("_"): function for function in (
        _accumulation, _batches, _dtype, _every, _files, _half, _held_out, _micro, _milliseconds,
        _of_peak, _optimizer, _pretrained, _resume, _schedule, _time, _tokenizer, _trackers,
        _warmup,
    )},
}  # fmt: skip


def _conversion(kind: str) -> Conversion | None:
    """A conversion by name, a template such as `{} steps`, or two values such as `max|min`."""
    if "{}" in kind:
        return partial(_with_unit, kind)
    if "|" in kind:
        return partial(_switch, *kind.split("|"))
    return CONVERSIONS[kind] if kind else None


def _dialect_names() -> dict[str, OtherName]:
    """Keys for a single field, by path, and by last word if all dialects mean that field by it."""
    entries: dict[str, OtherName] = {}
    meanings: dict[str, set[str]] = {}
    for dialect in map(dialect_named, DIALECTS):
        for name, key in dialect.keys.items():
            meanings.setdefault(folded(name.rpartition(".")[2]), set()).add(key.path or name)
            answer = ""
            if key.unit:
                answer = partial(_answer, partial(_with_unit, key.unit), key.path)
            elif key.values is not None:
                answer = partial(_answer, partial(_choice, key.values), key.path)
            if key.path:
                entries[folded(name)] = OtherName((key.path,), answer)
    for name, entry in [*entries.items()]:
        word, field = name.rpartition(".")[2], entry.fields[0].rpartition(".")[2]
        if word != field and meanings[word] == {*entry.fields}:
            entries.setdefault(word, entry)
        elif word == name:
            del entries[name]  # a Setpoint name, or a word with several meanings
    return entries


def _choice(values: Mapping[object, object], key: ForeignKey, path: str) -> Answer:
    """The field value for a choice by name."""
    word = next((value for value in (key.value, key.truth) if value in values), None)
    return None if word is None else Replacement({path: values[word]})


def _entries(fields: Mapping[str, list[str]], notes: list[dict[str, Any]]) -> dict[str, OtherName]:
    """The table by name; a name shared by several fields may mean any of them."""
    entries: dict[str, OtherName] = {}
    for key, names in fields.items():
        path, _, kind = key.partition(" : ")
        convert = _conversion(kind)
        answer = "" if convert is None else partial(_answer, convert, path)
        for name in names:
            paths = entries[name].fields if name in entries else ()
            entries[name] = OtherName((*paths, path), answer)
    for note in notes:
        entries |= dict.fromkeys(note["names"], OtherName(answer=note["text"]))
    for name in (*TRACKERS, *OTHER_TRACKERS):
        entry = OtherName(("tracking.trackers",), _tracker_hint(name))
        entries |= dict.fromkeys(
            (name, f"{name}.*", f"{name}.enabled", f"use_{name}", f"{name}_log"), entry
        )
    return entries


def _answer(convert: Conversion, path: str, key: ForeignKey) -> Answer:
    """Convert a single value or a list; sections of other systems have keys of their own."""
    return None if isinstance(key.value, Mapping) else convert(key, path)


TABLE = tomllib.loads((Path(__file__).parent / "names.toml").read_text(encoding="utf-8"))
OTHER_NAMES = _dialect_names() | _entries(TABLE["fields"], TABLE["notes"])
NAMES = {
    path: [name for name, entry in OTHER_NAMES.items() if entry.fields == (path,)]
    for path in ("optimizer.lr", "batch.micro_size", "batch.accumulation")
}
"""Names of the fields that conversions of other keys need."""
VALUES: Mapping[str, Mapping[str, Sequence[str]]] = TABLE["values"]
OTHER_VALUES: Mapping[str, object] = {
    **VALUES,
    **{f"data.sources{end}": partial(_answer, _sources, "data.sources")
       for end in ("", ".*", ".paths")},
    **{f"data.validation{end}": partial(_answer, _sources, "data.validation")
       for end in ("", ".*", ".paths")},
    "data": partial(_answer, _sources, "data.sources"),
    "checkpoint.resume": partial(_answer, _resume_value, "checkpoint.resume"),
    "optimizer": partial(_answer, _optimizer_value, "optimizer"),
    "tokenizer": partial(_answer, _tokenizer, "tokenizer"),
    "model": partial(_answer, _model, "model"),
    "tracking.trackers.*": partial(_answer, _tracker, "tracking.trackers"),
    "precision": partial(_answer, _dtype, "precision.compute"),
}  # fmt: skip
