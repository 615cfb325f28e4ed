"""Hints for keys and values of other systems: the Setpoint field, with the converted value.

A root names a module with the tables, which is imported when a key is unknown (for Setpoint's own
jobs `setpoint.interop.foreign_names`, with its table in `setpoint/interop/names.toml`):

    class Job(Config, other_names="mine.other_names"): ...

    OTHER_NAMES = {
        "learning_rate": OtherName(("optimizer.lr",)),
        "epochs": OtherName(("duration",), lambda key: Replacement({"duration": key.text + " s"})),
        "wandb.*": OtherName(answer="There is no wandb tracker."),
    }
    OTHER_VALUES = {"parallel.device": {"cuda": ("gpu", "nvidia")}}

`OTHER_VALUES` maps values that a field or section cannot accept, by path with `*` for indices:
Setpoint's value with the words for it, or a function as in `OTHER_NAMES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, cast

from .draft.copying import draft_of
from .draft.hints import OtherName, foreign_table, other_name, other_name_hint, written
from .draft.walk import steps, value_at
from .layers.editor import Editor, Unknown
from .layers.presets import preset_named
from .resolving.resolve import determined
from .schema.class_info import all_fields, classes_at, field_of
from .schema.field import FieldInfo
from .types.base import takes
from .types.compound import OptionalType, SectionType
from .values.node import Node, value_or_missing
from .values.origin import COMMAND_LINE, ENVIRONMENT, Origin
from .words.errors import SetpointError
from .words.names import Path, dotted, folded
from .words.plain_data import MISSING, PlainScalar, guess
from .words.text import for_flag

MAX_CONVERTED = 100
"""Keys of a report that are converted; each is tried on a copy of the draft."""
TRUTH = {"true": True, "yes": True, "on": True, "1": True,
         "false": False, "no": False, "off": False, "0": False, "none": False}  # fmt: skip


class Replacement(NamedTuple):
    """Values to write in place of another system's key, by dotted path and in this order."""

    values: Mapping[str, object]
    note: str = ""


class ForeignKey:
    """A key of another system, with its value.

    Arguments:
        name: the last word of its path, in lower case with underscores.
        editor: has the draft and the other unknown keys.
    """

    def __init__(self, name: str, value: object, editor: Editor) -> None:
        self.name = name
        self.value = _guessed(value)
        self.editor = editor

    @property
    def text(self) -> str:
        """The value as text."""
        return for_flag(self.value)

    @property
    def number(self) -> float | None:
        """The value as a finite number; None for anything else."""
        # Files of other systems quote numbers: "1e-4".
        value = _guessed(PlainScalar(self.value)) if isinstance(self.value, str) else self.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if abs(value) < 1e300 else None

    @property
    def truth(self) -> bool | None:
        """The value as true or false; None for anything else."""
        return self.value if isinstance(self.value, bool) else TRUTH.get(self.text.lower())

    def of(self, path: str) -> Any:
        """The configuration value to which the key was given; None if it has none."""
        if self.editor.determined is None:
            try:
                self.editor.determined = determined(self.editor.root, self.editor.problems)
            except SetpointError:
                return None
        value = reduce(value_at, path.split("."), self.editor.determined)
        return None if value is MISSING else value

    def other_key(self, *names: str) -> ForeignKey | None:
        """Another unknown key of the same configuration, by its last word."""
        for name in names:
            for unknown in reversed(self.editor.unknown):
                if folded(str(unknown.path[-1])) == name:
                    return ForeignKey(name, unknown.value, self.editor)
        return None


def _guessed(value: object) -> object:
    """Parse the text of a flag by its form; a number with too many digits stays a text."""
    try:
        return guess(value) if isinstance(value, PlainScalar) else value
    except SetpointError:
        return str(value)


def explain_foreign_keys(editor: Editor) -> None:
    """Replace the hints for other systems' keys and values, once everything is applied."""
    root = type(editor.root)
    for unknown in editor.unknown[:MAX_CONVERTED]:
        path = [*map(str, unknown.path)]
        owners = [cls for cls in classes_at(root, unknown.path[:-1]) if field_of(cls, path[-1])]
        entry = None if owners else other_name(root, ".".join(path), unknown.value)
        hint = _variant_hint(owners, unknown, editor) if owners else ""
        if entry is not None:
            hint = _key_hint(entry, unknown, editor)
        unknown.problem.hint = hint or unknown.problem.hint
    for refused in editor.wrong_kind[:MAX_CONVERTED]:
        refused.problem.hint = _value_hint(refused, editor) or refused.problem.hint


def _key_hint(entry: OtherName, unknown: Unknown, editor: Editor) -> str:
    key = ForeignKey(folded(str(unknown.path[-1])), unknown.value, editor)
    if callable(entry.answer):
        answer = entry.answer(key)
        if isinstance(answer, Replacement):
            return _sentence([answer.values], answer.note, unknown, editor)
        return answer or other_name_hint(entry)
    infos = {path: info for path, info in all_fields(type(editor.root)) if path in entry.fields}
    values = {path: _converted(infos[path], path, unknown.value, key) for path in entry.fields}
    if entry.answer or MISSING in values.values():
        return other_name_hint(entry)
    return _sentence([{path: value} for path, value in values.items()], "", unknown, editor)


def _variant_hint(owners: Sequence[type[Node]], unknown: Unknown, editor: Editor) -> str:
    """The hint that sets a field of another variant, if only one variant has it."""
    tag = owners[0].__setpoint__.tag
    is_typed = unknown.origin.layer in (COMMAND_LINE, ENVIRONMENT)
    if len(owners) > 1 or tag is None or unknown.value is MISSING or not is_typed:
        return ""
    section = ".".join(map(str, unknown.path[:-1]))
    values = {section: tag, f"{section}.{unknown.path[-1]}": unknown.value}
    if not _fits(editor, values):
        return ""
    return f"It is a field of type = {tag}: {written(values, unknown.origin)}"


def _value_hint(refused: Unknown, editor: Editor) -> str:
    """The hint for a value that a field cannot accept; empty if none is known.

    Each value of a list gets a hint with the replacement for the whole list.
    """
    path = refused.path[:-1] if refused.path[-1] == "type" else refused.path
    value = refused.value
    if value is MISSING or not path:
        return ""
    key = ".".join("*" if str(part).isdecimal() else folded(str(part)) for part in path)
    entry: Any = foreign_table(type(editor.root), "OTHER_VALUES").get(key)
    if word := _our_value(entry, value):
        return f"Setpoint calls it {word}."
    if callable(entry):
        refused_items = [other.value for other in editor.wrong_kind if other.path[:-1] == path[:-1]]
        values = refused_items if str(path[-1]).isdecimal() and len(refused_items) > 1 else value
        answer = entry(ForeignKey(folded(str(path[-1])), values, editor))
        if isinstance(answer, Replacement):
            verb = "It belongs in"
            return _sentence([answer.values], answer.note, refused, editor, verb)
        if answer:
            return str(answer)
    section = {".".join(map(str, path)): f"@{value}"}
    if isinstance(value, str) and preset_named(value) and _fits(editor, section):
        return (
            f"The section of the preset {value} is taken by @: {written(section, refused.origin)}"
        )
    return ""


def _our_value(entry: object, value: object) -> str:
    """Translate a word of another system, or of torch; empty if unknown."""
    word = for_flag(value).lower().removeprefix("torch.")
    if not isinstance(entry, Mapping):
        return ""
    words = cast(Mapping[str, Sequence[str]], entry)
    return next((name for name, synonyms in words.items() if word in synonyms), "")


def _converted(info: FieldInfo, path: str, value: object, key: ForeignKey) -> object:
    """Convert another system's value for a field; MISSING if it is ambiguous."""
    word = _our_value(foreign_table(type(key.editor.root), "OTHER_VALUES").get(path), value)
    if word:
        return word
    if not isinstance(value, Mapping) and takes(info, value):
        return value
    if isinstance(info.type, OptionalType) and key.truth is not None:
        if not key.truth:
            return None
        if isinstance(info.type.parts[0], SectionType):
            return {}
    return MISSING


def _sentence(
    options: Sequence[Mapping[str, object]],
    note: str,
    unknown: Unknown,
    editor: Editor,
    verb: str = "Setpoint calls it",
) -> str:
    """`Setpoint calls it A, NOTE: what to write`; the last part only if it is valid."""
    names = " or ".join(" and ".join(values) for values in options)
    head = f"{verb} {names}{f', {note}' if note else ''}"
    texts: list[str] = []
    for values in options:
        attempts = _attempts(values, unknown.path, editor)
        fitting = next((attempt for attempt in attempts if _fits(editor, attempt)), None)
        if fitting is None:
            return f"{head}."
        texts.append(written(fitting, unknown.origin))
    return f"{head}: {' or '.join(texts)}"


def _attempts(
    values: Mapping[str, object], key: Path, editor: Editor
) -> Iterator[Mapping[str, object]]:
    """The values alone, and with the variant that has the first of the fields.

    Of several variants, the one whose name is a word of the unknown key.
    """
    yield values
    section, _, name = next(iter(values)).rpartition(".")
    classes = classes_at(type(editor.root), tuple(section.split("."))) if section else ()
    infos = [cls.__setpoint__ for cls in classes if name in cls.__setpoint__.fields]
    tags = [info.tag for info in infos if info.tag is not None]
    words = folded(dotted(key)).replace(".", "_").split("_")
    for tag in tags if len(tags) == 1 else set(tags).intersection(words):
        yield {section: tag, **values}


def _fits(editor: Editor, values: Mapping[str, object]) -> bool:
    try:
        trial = Editor(draft_of(editor.root))
        for path, value in values.items():
            plain = isinstance(value, Mapping | list | tuple)
            given = cast(object, value) if plain else PlainScalar(for_flag(value))
            trial.set(path.split("."), given, Origin(COMMAND_LINE))
    except SetpointError:
        return False
    return not trial.problems and all(_is_complete(trial.root, path) for path in values)


def _is_complete(root: Node, path: str) -> bool:
    """True if the sections that contain a value require nothing else."""
    values = (value for _, _, value in steps(root, path.removesuffix(".type")))
    return not any(
        info.required and value_or_missing(section, info.name) is MISSING
        for section in values
        if isinstance(section, Node)
        for info in type(section).__setpoint__.fields.values()
    )
