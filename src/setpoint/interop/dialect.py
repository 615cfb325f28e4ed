"""Conversion of other systems' configuration files: the mechanism shared by all dialects.

A dialect declares every key of its system: its default in that system, and either the Setpoint
field with the conversion of the value, or the reason why the key is refused or has no effect in
that system either. Settings that depend on several keys, such as the batch, are converted by a
function of the dialect. A conversion also writes the system's defaults, so that a file keeps its
meaning.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Literal, cast

from setpoint.config import FileDocument, Problem, SetpointError, did_you_mean, for_error
from setpoint.config.files.file_document import FileError, FilePosition, names_file
from setpoint.config.files.read import parse_bytes, read_file
from setpoint.config.words.names import dotted
from setpoint.config.words.plain_data import PlainScalar, guess

if TYPE_CHECKING:
    from setpoint.config.words.names import Path

DIALECTS = {
    "danling": "DanLing",
    "kempnerforge": "KempnerForge",
    "xorl": "xorl",
    "d9d": "d9d",
    "torchtitan": "torchtitan",
    "torchtune": "torchtune",
    "huggingface_trainer": "TrainingArguments",
    "axolotl": "Axolotl",
    "megatron": "Megatron-LM",
}
"""Names of the systems, by the module of their dialect."""
SUFFIXES = {"megatron": (".sh", ".slurm", ".sbatch", ".args", ".txt"),
            "torchtitan": (".sh", ".slurm", ".sbatch", ".args")}  # fmt: skip
"""File suffixes of a dialect in addition to those of TOML, YAML and JSON."""
Kind = Literal["refused", "without effect", "differs", "needs a decision", "not converted"]
REQUIRED = object()
PIPELINES = {
    "1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved_1f1b",
    "LoopedBFS": "looped_bfs", "InterleavedZeroBubble": "interleaved_zero_bubble",
    "ZBVZeroBubble": "zbv_zero_bubble", "DualPipeV": "dual_pipe_v",
}  # fmt: skip
"""Schedules of torch.distributed.pipelining."""
SAVE_MODES = {"disabled": "sync", "async": "async", "async_with_pinned_mem": "async_pinned"}
"""Modes of asynchronous checkpoints of torch.distributed.checkpoint."""
SAVED = ("every", "at_start", "at", "also_every", "last", "last_dtype", "keep", "keep_every",
         "save_frozen", "mode", "wait_timeout", "export")  # fmt: skip
"""Fields of [checkpoint] that mean nothing where none is saved."""
NEAR = 0.0005
"""Maximum deviation of a piecewise schedule from its curve, as a fraction of the peak."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of another system.

    Arguments:
        default: the system's default; `REQUIRED` if there is none.
        path: the Setpoint field with the same meaning; empty if a function of the dialect converts
            the key together with others.
        values: field values by key values, for named choices.
        unit: `{} steps` and the like, for fields whose values have a unit.
        optional: whether null, false, zero and empty values leave the field at its default.
        refused: reason why Setpoint has no equivalent; a value other than the default is reported.
        decision: the decision required by a value other than the default, which is reported.
        differs: the difference in Setpoint for a value other than the default, which is reported.
        essential: whether the file has no meaning without the refused key, which makes it an error.
        idle: reason why the key has no effect in the other system either.
    """

    default: object = REQUIRED
    path: str = ""
    values: Mapping[object, object] | None = None
    unit: str = ""
    optional: bool = False
    refused: str = ""
    decision: str = ""
    differs: str = ""
    essential: bool = False
    idle: str = ""


def keys_of(prefix: str, /, **defaults: object) -> dict[str, Key]:
    """Keys under a prefix that functions of the dialect convert, with their defaults."""
    return {f"{prefix}{name}": Key(default) for name, default in defaults.items()}


def alike(prefix: str, names: str, key: Key | None = None) -> dict[str, Key]:
    """Keys under a prefix with equal declarations, given as names separated by spaces."""
    return {f"{prefix}{name}": key or Key(None) for name in names.split()}


def listed_keys(system: str) -> dict[str, Key]:
    """Keys of a system that `keys.toml` lists by their default or by a reason."""
    text = (FilePath(__file__).parent / "keys.toml").read_text(encoding="utf-8")
    lists = tomllib.loads(text)[system]
    keys = alike("", lists["null"]) | alike("", lists.get("false", ""), Key(False))
    for reason, names in lists["idle"].items():
        keys |= alike("", names, Key(None, idle=reason))
    for kind in ("refused", "essential"):
        for reason, names in lists.get(kind, {}).items():
            keys |= alike("", names, Key(None, refused=reason, essential=kind == "essential"))
    return keys


ORGANIZATIONS = {
    **dict.fromkeys(("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "openai-gpt"),
                    "openai-community"),
    "distilgpt2": "distilbert",
}  # fmt: skip
"""Organizations of models that the Hub also knows by a name without one."""


@dataclass(frozen=True, slots=True)
class Report:
    """A key without an exact equivalent, with its position and the reason."""

    kind: Kind
    key: str
    place: str
    text: str

    @property
    def is_exact(self) -> bool:
        """True if the conversion is exact: the key has no effect on the result."""
        return self.kind == "without effect"

    def __str__(self) -> str:
        return f"{self.place}: {self.key}: {self.kind}: {self.text}"


@dataclass(frozen=True, slots=True)
class Dialect:
    """The configuration files of one system.

    Arguments:
        release: the release whose defaults are written out.
        signature: keys of which every file has at least one, and files of other systems have none.
        spell: spells the name of a key as in `keys`.
        prefixes: other names of keys, or their prefixes if they end in a dot or underscore, with
            their replacements.
        refused: files that are not training jobs, recognized by a key that only they have, with the
            reason.
        complete: converts settings that depend on several keys.
        prepare: changes the values of the file before they are converted.
        switches: keys, separated by spaces, one of which must be on for keys with the given
            prefixes to have an effect; `name=one|two` is on for these values.
        families: further keys by their prefix, all refused or idle for the same reason.
        own_keys: the Setpoint section for unknown keys, if a file may have user-defined keys.
        read: reads a file that is not TOML, YAML or JSON.
        presets: named configurations by name, usable in place of a file.
    """

    name: str
    release: str
    keys: Mapping[str, Key]
    signature: Sequence[str]
    complete: Callable[[Conversion], None]
    spell: Callable[[str], str] = str
    prefixes: Mapping[str, str] = field(default_factory=dict[str, str])
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    prepare: Callable[[Conversion], None] | None = None
    own_keys: str = ""
    switches: Mapping[str, str] = field(default_factory=dict[str, str])
    families: Mapping[str, Key] = field(default_factory=dict[str, Key])
    read: Callable[[str], FileDocument] = read_file
    presets: Mapping[str, Mapping[str, object]] = field(
        default_factory=dict[str, Mapping[str, object]]
    )

    def key_of(self, name: str) -> str:
        """The key for a name in a file, which may be an alias."""
        name = self.spell(name)
        for prefix, replacement in self.prefixes.items():
            if name == prefix or (prefix.endswith((".", "_")) and name.startswith(prefix)):
                return replacement + name.removeprefix(prefix)
        return name

    def family_of(self, key: str) -> Key | None:
        """The declaration shared by all keys with the prefix of a key that is not in `keys`."""
        return next((f for prefix, f in self.families.items() if key.startswith(prefix)), None)


class ConvertedDocument(FileDocument):
    """A file of another system as Setpoint data, with the positions of the original keys.

    Arguments:
        places: `file:line:column` of each value, or the default it comes from, by path.
        reports: keys without an exact equivalent.
        problems: unknown keys, and values without an equivalent.
    """

    __slots__ = ("dialect", "notes", "places", "problems", "reports")
    data: dict[str, Any]

    def __init__(self, name: str, dialect: Dialect, conversion: Conversion) -> None:
        super().__init__(name, "json", conversion.data, "", lambda: FilePosition(0))
        self.dialect = dialect
        self.places = conversion.places
        self.reports = conversion.reports
        self.notes = [*map(str, conversion.reports)]
        self.problems = conversion.problems

    def where(self, path: Path) -> str:
        """The position of the key from which a value was converted."""
        for length in range(len(path), 0, -1):
            if place := self.places.get(tuple(path[:length])):
                return place
        return self.name


class Conversion:
    """The conversion of one file, from its values and defaults to Setpoint fields."""

    def __init__(self, dialect: Dialect, document: FileDocument) -> None:
        self.dialect = dialect
        self.document = document
        self.data: dict[str, Any] = {}
        self.places: dict[Path, str] = {}
        self.reports: list[Report] = []
        self.problems: list[Problem] = []
        self.is_refused = False
        leaves = _leaves(cast("dict[str, object]", _typed(document.data)), dialect)
        names = {".".join(map(str, path)) for _, path, _ in leaves}
        # Written-out files may have a former name as null next to its current name.
        leaves = [(key, path, value) for key, path, value in leaves
                  if value is not None or key == ".".join(map(str, path)) or key not in names
                  ]  # fmt: skip
        self.values: dict[str, object] = {}
        self.paths: dict[str, Path] = {}
        for key, path, value in leaves:
            if key in self.values and self.values[key] != value:
                other = f"{dotted(self.paths[key])} = {for_error(self.values[key])}"
                message = f"contradicts {other}, another name of the same key"
                origin = self.document.where(path)
                self.problems.append(
                    Problem(dotted(path), message, value=for_error(value), origin=origin)
                )
            self.values[key], self.paths[key] = value, path
        self._read: set[str] = set()
        self._defaults: dict[str, object] = {}
        self._typed: set[str] = set()

    def override(self, words: Sequence[str]) -> None:
        """Set keys to values on the command line: `--a.b value`, `--a.b=value` or `a.b=value`.

        A flag without a value is true, and `~a.b` removes a key.

        Raises:
            SetpointError: a word has none of these forms.
        """
        queue = [*words]
        while queue:
            word = queue.pop(0)
            name, equals, text = word.removeprefix("--").partition("=")
            if word.startswith("~") and not equals:
                self.values.pop(self.dialect.key_of(word[1:]), None)
                continue
            if not name or not (equals or word.startswith("--")):
                raise SetpointError(
                    f"{word!r} after -- is not an override of {self.dialect.name}: give "
                    f"--KEY VALUE, --KEY=VALUE or KEY=VALUE"
                )
            value: object = PlainScalar(text)
            if not equals:
                following, _, _ = queue[0].partition("=") if queue else ("--", "", "")
                has_value = not following.startswith("--") and following not in self.dialect.keys
                value = PlainScalar(queue.pop(0)) if has_value else True
            if isinstance(value, str) and value[:1] in ("[", "{"):
                value = parse_bytes(f"x: {value}".encode(), "yaml", word).data["x"]
            self._put(self.dialect.key_of(name), _typed(value))

    def _put(self, key: str, value: object) -> None:
        """Set a key, or an entry in a mapping that is the value of a key."""
        parts = key.split(".")
        for end in range(len(parts) - 1, 0, -1):
            outer = ".".join(parts[:end])
            if key not in self.dialect.keys and outer in self.dialect.keys:
                mapping: Any = self.values.get(outer)
                mapping = dict(cast("dict[str, Any]", mapping)) if isinstance(mapping, dict) else {}
                inner = mapping
                for part in parts[end:-1]:
                    nested = inner.get(part)
                    inner[part] = {**nested} if isinstance(nested, dict) else {}
                    inner = inner[part]
                inner[parts[-1]] = value
                key, value = outer, mapping
                break
        self.values[key] = value
        self._typed.add(key)

    def given(self, key: str) -> bool:
        """True if a key is set in the file or on the command line."""
        return key in self.values

    def value(self, key: str) -> Any:
        """The value of a key in the file, or the system's default."""
        self._read.add(key)
        if key in self.values:
            return self.values[key]
        default = self._defaults.get(key, self.dialect.keys[key].default)
        return None if default is REQUIRED else default

    def default(self, key: str, value: object) -> None:
        """Replace the default of a key, for files of another program of the system."""
        self._defaults[key] = value

    def number(self, key: str) -> Any:
        """The value of a numeric key; after a problem, its default."""
        value = self.value(key)
        if value is None or (_fits(value, 0.0) and math.isfinite(value)):
            return value
        self.wrong(key, "a number")
        del self.values[key]
        return self.value(key)

    def choice(self, key: str, *options: str) -> str | None:
        """The value of a key that accepts one of several words; None after a problem."""
        value = self.value(key)
        if isinstance(value, str) and value in options:
            return value
        self.wrong(key, "one of " + ", ".join(options))
        return None

    def sections(self, key: str) -> list[dict[str, Any]]:
        """The mappings in the value of a key that accepts a list of mappings."""
        value = self.value(key) or []
        items = cast("list[object]", value) if isinstance(value, list) else [value]
        mappings = [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]
        if len(mappings) < len(items):
            self.wrong(key, "a list of mappings")
        return mappings

    def names(self, key: str) -> list[str]:
        """The strings in the value of a key that accepts a list of strings or null."""
        value = self.value(key)
        items = cast("list[object]", value) if isinstance(value, list) else [value] * bool(value)
        names = [item for item in items if isinstance(item, str)]
        if len(names) < len(items):
            self.wrong(key, "a list of names")
        return names

    def require_flags(self, keys: str, *words: str) -> None:
        """Report values of keys other than true, false, null and the given words."""
        for key in keys.split():
            value = self.value(key)
            if not (value is None or isinstance(value, bool) or value in words):
                expected = ", ".join(("true or false", *words))
                self.wrong(key, expected)
                del self.values[key]

    def text(self, key: str) -> str | None:
        """The value of a key that accepts a str or null; None after a problem."""
        value = self.value(key)
        if value is None or isinstance(value, str):
            return value
        self.wrong(key, "a text")
        return None

    def mapping(self, key: str) -> dict[str, Any]:
        """The value of a key that accepts a mapping; empty if null or after a problem."""
        value = self.value(key) or {}
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
        self.wrong(key, "a mapping")
        return {}

    def place(self, *keys: str) -> str:
        """The position of the first key that is set; otherwise a note that it is a default."""
        for key in keys:
            if key in self._typed:
                return f"{self.document.name} -- {key}"
            if self.given(key):
                return self.document.where(self.paths[key])
        known = self.dialect.keys
        if keys and keys[0] in known and known[keys[0]].default is REQUIRED:
            return self.document.name
        name = f"{self.document.name} ({self.dialect.name}"
        return f"{name}'s default of {keys[0]})" if keys else f"{name})"

    def set(self, path: str, value: object, *keys: str) -> None:
        """Set a field to a value converted from the given keys."""
        *sections, last = path.split(".")
        target = self.data
        for section in sections:
            target = target.setdefault(section, {})
        target[last] = value
        self._read.update(keys)
        self.places[tuple(path.split("."))] = self.place(*keys)

    def set_items(self, path: str, items: Sequence[Mapping[str, object]], *keys: str) -> None:
        """Set a field to a list of sections, without their null values."""
        self.set(path, [{k: v for k, v in item.items() if v is not None} for item in items], *keys)

    def set_sources(self, path: str, sources: Sequence[Mapping[str, object]], *keys: str) -> None:
        """Set a field to a list of data sources, which have names if there are several."""
        names = [{"name": f"source-{n}"} if len(sources) > 1 else {} for n in range(len(sources))]
        items = [{**name, **source} for name, source in zip(names, sources, strict=True)]
        self.set_items(path, items, *keys)

    def share_of_rows(self, key: str, name: object, share: float) -> dict[str, object]:
        """The filter of a source of which the first rows are read; report how it differs."""
        parts = 1 / share
        if abs(parts - round(parts)) < 1e-6:
            text = (
                f"{100 * share:g} % of the rows of {name}, chosen by a hash; in "
                f"{self.dialect.name}, the first of them"
            )
            self.report("differs", key, text)
            return {"shards": round(parts)}
        text = f"all rows of {name} are read, not {share:g} of them: set data.sources.N.filter"
        self.report("needs a decision", key, text)
        return {}

    def copy(self, fields: Mapping[str, str]) -> None:
        """Set fields to the values of keys, by path."""
        for path, key in fields.items():
            self.set(path, self.value(key), key)

    def copy_given(self, fields: Mapping[str, str]) -> None:
        """Set fields to the values of keys that are not null, by path."""
        self.copy({path: key for path, key in fields.items() if self.value(key) is not None})

    def at_revision(self, name: str | None, key: str) -> str | None:
        """A hub name with its organization and the revision given by a key; else the name."""
        name = name and full_hub_id(name)
        revision = self.text(key)
        is_on_hub = name is not None and not os.path.exists(name) and "@" not in name
        is_set = revision not in (None, "", self.dialect.keys[key].default)
        return f"{name}@{revision}" if is_on_hub and is_set else name

    def tokenizer(self, path: object, *keys: str) -> None:
        """Set a Hugging Face tokenizer by its directory or id."""
        if isinstance(path, str):
            path = spell_path(path) if path.endswith(".json") else full_hub_id(path)
        self.set("tokenizer.type", "huggingface", *keys)
        self.set("tokenizer.path", path, *keys)

    def pipeline(self, key: str) -> None:
        """Set the schedule by its name in torch.distributed.pipelining, ignoring case."""
        known = {name.lower(): schedule for name, schedule in PIPELINES.items()}
        name = str(self.value(key)).lower().replace("_", "").removeprefix("schedule")
        if name in known:
            self.set("parallel.pipelining.schedule", known[name], key)
        else:
            self.wrong(key, "one of " + ", ".join(PIPELINES))

    def warm_up(self, length: str, *keys: str) -> None:
        """Set a warm-up whose first step uses its start factor."""
        self.set("schedule.warmup", length, *keys)
        if float(length.partition(" ")[0]):
            self.set("schedule.warmup_at", "start", *keys)

    def trace(self, start: str, end: str, warmup: int | None = None) -> None:
        """Set the profiler to the steps between two keys, after warm-up steps."""
        first = self.number(start)
        self.set("profiling.wait", max(0, first - 1), start)
        if warmup is not None:
            self.set("profiling.warmup", warmup, start)
        self.set("profiling.active", max(1, self.number(end) - first), end, start)

    def recompute_some(self, key: str) -> None:
        """Recompute by operation, with the option `op`, or every n-th layer."""
        option, path = str(self.value(key)), "memory.activation_checkpointing"
        if option == "op":
            self.set(f"{path}.type", "operators", key)
            self.set(f"{path}.matmul_every", 2, key)
        elif option.isdecimal() and int(option):
            self.set(f"{path}.type", "full", key)
            self.set(f"{path}.every", int(option), key)
        else:
            self.wrong(key, "op or a positive int")

    def pick(self, path: str, key: str, values: Mapping[str, object]) -> str | None:
        """Set a field from the word of a key; return the word, or None after a problem."""
        if (word := self.choice(key, *values)) is not None:
            self.set(path, values[word], key)
        return word

    def track(self, *trackers: tuple[str, str, Mapping[str, str]]) -> None:
        """Set the trackers, given as type, the keys that enable it, and the keys of its fields.

        If several keys are given, separated by spaces, the first one that is neither null nor empty
        applies.
        """
        items: list[dict[str, object]] = [{"type": "jsonl"}]
        for kind, switches, fields in trackers:
            if any(map(self.value, switches.split())):
                values = {
                    field: next(
                        (v for v in map(self.value, key.split()) if v not in (None, "")), None
                    )
                    for field, key in fields.items()
                }
                items.append({"type": kind, **values})
        keys = [key for _, switches, _ in trackers for key in switches.split()]
        self.set_items("tracking.trackers", items, *keys)

    def report(self, kind: Kind, key: str, text: str) -> None:
        """Report a key without an exact equivalent."""
        self.reports.append(Report(kind, key, self.place(key), text))

    def differs(self, key: str, here: str, there: str) -> None:
        """Report what a key means in Setpoint, and in the other system."""
        self.report("differs", key, f"{here}; in {self.dialect.name}, {there}")

    def report_rest(self, key: str, entry: Mapping[str, object], known: str) -> None:
        """Report the entries of a mapping other than the known names, unless they are null."""
        if unused := [
            name for name in entry if name not in known.split() and entry[name] is not None
        ]:
            self.report(
                "not converted", key, f"no field corresponds to {', '.join(map(str, unused))}"
            )

    def wrong(self, key: str, expected: str) -> None:
        """Report a value that is invalid in the other system or has no equivalent."""
        is_missing = not self.given(key) and self.dialect.keys[key].default is REQUIRED
        message = f"is {'missing' if is_missing else 'not'}{':' * is_missing} {expected}"
        value = None if is_missing else for_error(self.value(key))
        self.problems.append(Problem(key, message, value=value, origin=self.place(key)))

    def refuse(self, key: str, reason: str, valid: Sequence[str] = ()) -> None:
        """Refuse the whole file for the value of a key, with one problem and no reports."""
        self.is_refused = True
        value = for_error(self.values[key])
        origin = self.place(key)
        self.problems = [Problem(key, reason, valid=valid, value=value, origin=origin)]
        self.reports.clear()

    def convert(self) -> None:
        """Convert each key by its declaration, then the keys that depend on each other."""
        known = self.dialect.keys
        if other := next((key for key in self.values if key in self.dialect.refused), None):
            self.refuse(other, self.dialect.refused[other])
        elif self.dialect.prepare is not None:
            self.dialect.prepare(self)
        if self.is_refused:
            return
        for key, value in [*self.values.items()]:
            words = known[key].values if key in known else None
            is_word = any(type(word) is type(value) and word == value for word in words or ())
            is_unread = key in known and bool(known[key].idle)
            if key in known and not (
                is_word or is_unread or _fits(value, known[key].default)
            ):  # fmt: skip
                self.wrong(key, _kind(known[key].default))
                del self.values[key]
            if key not in known and (family := self.dialect.family_of(key)):
                if value:
                    self._report_unconverted(key, family)
            elif key not in known:
                hint = did_you_mean(key, list(known), " ")
                if self.dialect.own_keys and not hint:
                    self.set(f"{self.dialect.own_keys}.{key}", value, key)
                    self.report(
                        "needs a decision",
                        key,
                        "a key of your own: your code must read it from [user]",
                    )
                    continue
                message = f"unknown key of {self.dialect.name}"
                self.problems.append(
                    Problem(key, message, hint=hint.strip(), origin=self.place(key))
                )
        for name, key in known.items():
            is_changed = name in self.values and self.values[name] != key.default
            if (key.idle or key.refused) and not key.default:
                is_changed = bool(self.values.get(name))
            if key.refused or key.idle:
                if is_changed:
                    self._report_unconverted(name, key)
            elif self._switch_that_is_off(name) is not None:
                continue
            else:
                is_changed = is_changed and (bool(self.values[name]) or not key.optional)
                if is_changed and (text := key.decision or key.differs):
                    self.report("needs a decision" if key.decision else "differs", name, text)
                    self._read.add(name)
                value = self.value(name) if key.path else None
                is_set = value is not None or key.default is None
                if key.path and (value or (is_set and not key.optional)):
                    self._set_plain(name, key, value)
        self.dialect.complete(self)
        loader = self.data.get("data", {}).get("loader", {})
        if loader.get("workers") == 0:  # batches are loaded on demand in both
            for name in ("prefetch", "pin_memory"):
                loader.pop(name, None)
        data = self.data.get("data", {})
        for source in (*data.get("sources", ()), *data.get("validation", ())):
            if isinstance(paths := source.get("paths"), list):
                source["paths"] = [*map(spell_path, cast("list[object]", paths))]
        saving = self.data.get("checkpoint", {})
        if saving.get("save") is False:  # without saves, these have no effect there either
            for name in saving.keys() & set(SAVED):
                del saving[name]
        for name, value in self.values.items():
            key = known.get(name)
            if key is None or key.refused or key.idle or name in self._read or value == key.default:
                continue
            if (switch := self._switch_that_is_off(name)) is not None:
                text = f"in {self.dialect.name}, too: {switch}"
                self.report("without effect", name, text)
                continue
            text = "no field corresponds to it, given the other values of the file"
            self.report("not converted", name, text)

    def _report_unconverted(self, name: str, key: Key) -> None:
        """Report a key that is refused, or that has no effect in the other system either."""
        if key.essential:
            self.problems.append(Problem(name, key.refused, origin=self.place(name)))
        elif key.refused:
            self.report("refused", name, key.refused)
        else:
            self.report("without effect", name, f"in {self.dialect.name}, too: {key.idle}")

    def _switch_that_is_off(self, name: str) -> str | None:
        """The state of the switch of a key if it is off; None if it is on or there is none."""
        for start, switch in self.dialect.switches.items():
            keys = [key.partition("=") for key in switch.split()]
            if name.startswith(start) and all(name != key for key, _, _ in keys):
                values = [(self.value(key), words.split("|")) for key, _, words in keys]
                if not any(str(v) in words if words[0] else v for v, words in values):
                    key, is_choice, _ = keys[0]
                    return f"{key} is {self.value(key) if is_choice else 'off'}"
        return None

    def _set_plain(self, name: str, key: Key, value: object) -> None:
        if value is None:
            pass  # null has the same meaning in the field
        elif key.values is not None:
            if not isinstance(value, str | bool | int) or value not in key.values:
                self.wrong(name, "one of " + ", ".join(map(str, key.values)))
                return
            value = key.values[value]
        elif key.unit:
            if (number := self.number(name)) is None:
                return
            value = key.unit.format(number)
        self.set(key.path, value, name)


def _fits(value: object, default: object) -> bool:
    """True if a value has the type of a default; an int is also a float, a bool is no number."""
    if default is None or default is REQUIRED:
        return True
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, int | float)
    return isinstance(value, list | tuple if isinstance(default, tuple) else type(default))


def _kind(default: object) -> str:
    """The type of a default, as shown in errors."""
    kinds = {bool: "true or false", int: "an int", float: "a number", str: "a text",
             dict: "a mapping"}  # fmt: skip
    return kinds.get(type(default), "a list")


SWITCHES = {"yes": True, "on": True, "no": False, "off": False}
"""Booleans of YAML 1.1, which PyYAML implements, besides true and false."""


def _typed(value: object) -> object:
    """A value from a file, with plain YAML scalars resolved to bools and numbers."""
    if isinstance(value, PlainScalar):
        switch = SWITCHES.get(value.lower())
        return guess(value) if switch is None else switch
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [_typed(item) for item in cast("list[object]", value)]
    return value


def _leaves(
    data: Mapping[str, object], dialect: Dialect, path: Path = ()
) -> list[tuple[str, Path, object]]:
    """Keys with their paths in the file and their values; the value of a key may be a table.

    A section that is null or, in YAML, empty has no keys.
    """
    leaves: list[tuple[str, Path, object]] = []
    for name, value in data.items():
        place = (*path, name)
        key = dialect.key_of(".".join(map(str, place)))
        has_keys = any(known.startswith(f"{key}.") for known in dialect.keys)
        if isinstance(value, Mapping) and (has_keys or key not in dialect.keys):
            leaves += _leaves(cast("Mapping[str, object]", value), dialect, place)
        elif value is not None or not has_keys:
            leaves.append((key, place, value))
    return leaves


def full_hub_id(name: str) -> str:
    """Complete the id of a model on the Hub that has a name without an organization, too."""
    repository = name.partition("@")[0]
    organization = ORGANIZATIONS.get(repository)
    is_short = organization is not None and not os.path.exists(repository)
    return f"{organization}/{name}" if is_short else name


def spell_path(path: object) -> object:
    """Spell a relative path with `./`, since it starts where the other system is started.

    `check` leaves out such paths if they are missing and the job is for another machine.
    """
    if not isinstance(path, str) or path[:1] in ("", "/", ".", "~", "$") or "://" in path:
        return path
    return f"./{path}"


def share_in(split: object) -> float:
    """The share of rows named in a split such as `train[:10%]`; 0 without one."""
    match = re.search(r"\[:(\d?[1-9]|[1-9]0)%\]$", str(split))
    return int(match[1]) / 100 if match else 0.0


def phases_of(factors: list[float]) -> list[dict[str, object]]:
    """Compute phases of a piecewise schedule that are within `NEAR` of the factor at each step.

    A rising phase reaches the factor of its end at its last step; other phases have the factor of
    their start at their first step.
    """
    phases: list[dict[str, object]] = []
    done, last = 0, factors[0]  # steps covered by the phases, and their last target

    def add(length: int, target: float, curve: str = "linear") -> None:
        nonlocal done, last
        phases.append({"length": f"{length} steps", "target": target, "curve": curve})
        done, last = done + length, target

    for start, end, curve in _pieces(factors, 0, len(factors) - 1):
        if factors[end] > factors[start]:
            if done == start:
                add(1, factors[start])
            add(end - start, factors[end], curve)
        elif done < end:
            if last != factors[done]:
                add(0, factors[done])
            add(end - done, factors[end], curve)
    return phases or [{"length": "1 step", "target": last}]


def _pieces(factors: list[float], start: int, end: int) -> Iterator[tuple[int, int, str]]:
    """Ranges of steps in which the factors are linear or exponential."""
    if start == end:
        return
    source, target, length = factors[start], factors[end], end - start
    shares = [s / length for s in range(1, length, max(1, length // 16))]
    curves: dict[str, Callable[[float], float]] = {
        "linear": lambda share: source + (target - source) * share
    }
    if min(source, target) > 0:
        curves["exponential"] = lambda share: source * (target / source) ** share
    for curve, value in curves.items():
        if all(abs(value(s) - factors[start + round(s * length)]) <= NEAR for s in shares):
            yield start, end, curve
            return
    yield from _pieces(factors, start, (start + end) // 2)
    yield from _pieces(factors, (start + end) // 2, end)


def dialect_named(name: str) -> Dialect:
    """Import a system's dialect by its name on the command line."""
    return cast("Dialect", import_module(f"setpoint.interop.{name}").DIALECT)


def split_dialect(source: str) -> tuple[str, str] | None:
    """The dialect and the file in `DIALECT:FILE`; None for other sources."""
    name, colon, file = source.partition(":")
    name = name.lower()
    if not colon or name not in DIALECTS:
        return None
    is_file = names_file(file) or file.endswith(SUFFIXES.get(name, ()))
    is_preset = file.isidentifier() and bool(dialect_named(name).presets)
    return (name, file) if is_file or is_preset else None


def recognize(path: str) -> str | None:
    """The dialect of a file that has nine of ten keys from it; None for other files."""
    plain = None if path.endswith(SUFFIXES["megatron"]) else read_file(path)
    for name in DIALECTS if plain else SUFFIXES:
        dialect = dialect_named(name)
        document = plain if plain and dialect.read is read_file else dialect.read(path)
        keys = [key for key, _, _ in _leaves(document.data, dialect)]
        command = ("module", "config", "program") if dialect.presets else ()
        known = {*dialect.keys, *dialect.refused, *command}
        unknown = [key for key in keys if not (key in known or dialect.family_of(key))]
        if len(unknown) <= len(keys) / 10 and any(key in keys for key in dialect.signature):
            return name
    return None


def read_foreign(name: str, path: str, typed: Sequence[str] = ()) -> ConvertedDocument:
    """Read and convert a file of another system.

    Arguments:
        typed: overrides in the syntax of the other system, see `Conversion.override`.

    Raises:
        SetpointError: the file cannot be read or belongs to a different system, or an override is
            invalid.
    """
    dialect = dialect_named(name)
    if os.path.exists(path):
        try:
            document = dialect.read(path)
        except FileError as error:
            # The advice is about files of Setpoint.
            raise FileError(error.name, error.line, error.column, error.message) from None
    elif dialect.presets and path.isidentifier():
        document = FileDocument(path, "json", {"config": path}, "", lambda: FilePosition(0))
    else:
        raise SetpointError(f"there is no file {path}")
    conversion = Conversion(dialect, document)
    conversion.override(typed)
    conversion.convert()
    if conversion.problems and os.path.exists(path):
        other = recognize(path)
        if other not in (None, name):
            raise SetpointError(
                f"{path} is a file of {DIALECTS[other]}, not of {dialect.name}: {other}:{path}"
            )
    return ConvertedDocument(path, dialect, conversion)
