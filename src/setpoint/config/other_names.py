"""Answers to keys of other systems: our field, with the value converted, as it is to be written.

A field's `also_called` says under what names other systems have it; where value and meaning are the
same, nothing more is needed. What has another unit, or stands in several fields here, or nowhere,
is answered by the table `OTHER_NAMES` of the module that the root names:

    class Job(Node, other_names="mine.other_names"): ...

    OTHER_NAMES = {
        "epochs": lambda given: Ours({"duration": f"{given.text} epochs"}),
        "wandb": "There is no wandb tracker.",
        "lora.*": "There are no adapters.",
    }

A key is the last word of a path, a whole path with `*` for indices, or `section.*` for all that
stands in a section of that name.

The same module may hold `OTHER_VALUES`, by path with `*` for indices: answers to values that a
field or section cannot take, such as `--data my.txt`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from .draft.copying import draft_of
from .draft.unknown_keys import foreign_table
from .layers.editor import Editor, Unknown
from .layers.hints import value_here, written
from .layers.presets import preset_named
from .resolving.resolve import determined
from .schema.field import FieldInfo
from .schema.tree import all_fields, classes_at, field_of, first_places
from .types.containers import OptionalType
from .types.sections import SectionType
from .values.node import Node, value_or_missing
from .values.origin import COMMAND_LINE, ENVIRONMENT, PROGRAM, Origin
from .words.errors import SetpointError
from .words.plain_data import MISSING, PlainScalar, guess
from .words.text import for_flag

MOST = 100  # keys of a report that are converted; each is tried on a copy of the draft
# Values to write, and the choices of variants of which one must come first where they are refused.
Option = tuple[Mapping[str, object], Sequence[Mapping[str, object]]]
__all__ = ["Converter", "Given", "Ours", "answer", "written"]


class Ours(NamedTuple):
    """What is to be written here for a key of another system.

    Arguments:
        values: dotted paths with plain values, in the order in which they are written.
    """

    values: Mapping[str, object]
    note: str = ""


class Given:
    """A key of another system as it was given.

    Arguments:
        name: the last word of its path, in small letters with underscores.
        editor: holds the draft and the other unknown keys.
    """

    def __init__(self, name: str, value: object, editor: Editor) -> None:
        self.name = name
        self.value = _guessed(value)
        self._editor = editor

    @property
    def text(self) -> str:
        """The value as a text."""
        return for_flag(self.value)

    @property
    def number(self) -> float | None:
        """The value as a finite number; None for anything else."""
        value = self.value
        if isinstance(value, str):  # files of other systems quote numbers: "1e-4"
            value = _guessed(PlainScalar(value))
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if abs(number) < float("inf") else None

    @property
    def truth(self) -> bool | None:
        """The value as true or false; None for anything else."""
        if isinstance(self.value, bool):
            return self.value
        return {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False,
                "off": False, "0": False, "none": False}.get(self.text.lower())  # fmt: skip

    def of(self, path: str) -> Any:
        """A value of the configuration that the key was given to, as far as it can be determined.

        Returns:
            the value; None where there is none, or it could not be computed.
        """
        if self._editor.determined is None:
            try:
                self._editor.determined = determined(self._editor.root, self._editor.problems)
            except SetpointError:
                return None
        node: Any = self._editor.determined
        for part in path.split("."):
            if not isinstance(node, Node) or part not in type(node).__setpoint__.fields:
                return None
            node = value_or_missing(node, part)
        return None if node is MISSING else node

    @property
    def root(self) -> Node | None:
        """The whole configuration, its derived values computed; None where that failed."""
        self.of("")
        return self._editor.determined

    def beside(self, *names: str) -> Given | None:
        """Another unknown key that was given along with this one.

        Arguments:
            names: what it may be called; the first that was given counts.
        """
        for name in names:
            for unknown in reversed(self._editor.unknown):
                if _word(unknown.path[-1]) == name:
                    return Given(name, unknown.value, self._editor)
        return None


Converter = Callable[[Given], Ours | str | None]


def _guessed(value: object) -> object:
    """A text of a flag as what it looks like; a number of too many digits stays a text."""
    try:
        return guess(value) if isinstance(value, PlainScalar) else value
    except SetpointError:
        return str(value)


def _word(key: object) -> str:
    """A key in the spelling of `also_called`."""
    return str(key).lower().replace("-", "_")


def answer(editor: Editor) -> None:
    """Say of each unknown key that other systems have what is to be written here.

    Arguments:
        editor: with everything applied; hints of its problems are replaced.
    """
    if not editor.unknown and not editor.wrong_kind:
        return
    root = type(editor.root)
    table = foreign_table(root)
    for unknown in editor.unknown[:MOST]:
        words = [_word(part) for part in unknown.path]
        said = _said(table, _whole_paths(words), unknown, editor) if words[1:] else None
        owners = _owners(root, unknown) if said is None else []
        if owners:  # a field of ours, of another variant
            unknown.problem.hint = _of_variant(owners, unknown, editor) or unknown.problem.hint
            continue
        if said is None:
            said = _said(table, words[-1:], unknown, editor)
        if said is None:
            said = _renamed(editor, unknown, words[-1]) or None
        if said is None and words[:-1]:  # a section of another system
            said = _said(table, words[:-1], unknown, editor)
        if isinstance(said, Ours):
            said = _sentence([(said.values, ())], said.note, unknown.origin, editor)
        if said:
            unknown.problem.hint = said
    for refused in editor.wrong_kind[:MOST]:
        hint = _answer_value(refused, editor)
        if hint:
            refused.problem.hint = hint


def _whole_paths(words: Sequence[str]) -> list[str]:
    """The entries for a path that count before its last word: the path itself, and `section.*`."""
    full = ".".join("*" if word.isdecimal() else word for word in words)
    return [full, *(f"{word}.*" for word in words[:-1])]


def _owners(root: type[Node], unknown: Unknown) -> list[type[Node]]:
    """The variants that have the field which the chosen one has not."""
    classes = classes_at(root, unknown.path[:-1])
    return [cls for cls in classes if field_of(cls, str(unknown.path[-1]))]


def _of_variant(owners: list[type[Node]], unknown: Unknown, editor: Editor) -> str:
    """How a field of another variant is set, where one variant alone has it."""
    tag = owners[0].__setpoint__.tag
    as_flags = unknown.origin.layer in (COMMAND_LINE, ENVIRONMENT)
    if len(owners) > 1 or tag is None or unknown.value is MISSING or not as_flags:
        return ""
    section = ".".join(map(str, unknown.path[:-1]))
    values = {section: tag, f"{section}.{unknown.path[-1]}": unknown.value}
    if not _fits(editor, values):
        return ""
    return f"It is a field of type = {tag}: {written(values, unknown.origin)}"


def _answer_value(refused: Unknown, editor: Editor) -> str:
    """What is to be written for a value that its place cannot take; empty where nothing is known.

    Of a list of such values each is answered with what is to be written for all of them.
    """
    path = refused.path[:-1] if refused.path[-1] == "type" else refused.path
    value = refused.value
    if value is MISSING or not path:
        return ""
    beside = [each for each in editor.wrong_kind if each.path[:-1] == path[:-1]]
    if str(path[-1]).isdecimal() and len(beside) > 1:
        value = [each.value for each in beside]
    key = ".".join("*" if str(part).isdecimal() else _word(part) for part in path)
    entry: Converter | str | None = foreign_table(type(editor.root), "OTHER_VALUES").get(key)
    given = Given(_word(path[-1]), value, editor)
    said = entry(given) if callable(entry) else entry
    if isinstance(said, Ours):
        values = [(said.values, ())]
        return _sentence(values, said.note, refused.origin, editor, "It belongs in")
    if said:
        return said

    section = {".".join(map(str, path)): f"@{value}"}
    if isinstance(value, str) and preset_named(value) and _fits(editor, section):
        return (
            f"The section of the preset {value} is taken by @: {written(section, refused.origin)}"
        )
    return ""


def _said(
    table: Mapping[str, Converter | str], names: Sequence[str], unknown: Unknown, editor: Editor
) -> Ours | str | None:
    name = next((name for name in names if name in table), None)
    if name is None:
        return None
    entry = table[name]
    return entry if isinstance(entry, str) else entry(Given(name, unknown.value, editor))


def _renamed(editor: Editor, unknown: Unknown, word: str) -> str:
    """The answer for a name that fields are `also_called`."""
    root = type(editor.root)
    if any(info.name == word for _, info in all_fields(root)):
        return ""
    found = {path: info for info, path in first_places(root).items() if word in info.also_called}
    if not found:
        return ""
    given = Given(word, unknown.value, editor)
    options: list[Option] = []
    for path, info in found.items():
        value = _value(info, unknown.value, given)
        if value is not MISSING:
            owners = [i.owner for p, i in all_fields(root) if p == path and word in i.also_called]
            tags = [tag for owner in owners if (tag := cast(Any, owner).__setpoint__.tag)]
            section = path.rpartition(".")[0]
            options.append(({path: value}, [{section: tag} for tag in tags if section]))
    if len(options) < len(found):
        return f"Setpoint calls it {' or '.join(found)}."
    return _sentence(options, "", unknown.origin, editor)


def _value(info: FieldInfo, value: object, given: Given) -> object:
    """A value of another system as the field takes it; MISSING where it may mean anything."""
    word = given.text.lower().removeprefix("torch.")
    ours = value_here(info, word)
    if ours:
        return ours
    if given.truth is not None and not _reads(info, PlainScalar("true")):
        if given.truth:  # `bf16 = true`: the name itself is a value
            named = value_here(info, given.name)
            choices = info.type.candidates()
            if named or given.name in choices:
                return named or given.name
        optional = isinstance(info.type, OptionalType)
        if optional and isinstance(info.type.parts[0], SectionType) and given.truth:
            return {}
        if optional and not given.truth:
            return None
    if isinstance(value, Mapping):
        return MISSING
    return value if _reads(info, value) else MISSING


def _reads(info: FieldInfo, value: object) -> bool:
    try:
        info.read(value, Origin(PROGRAM))
    except SetpointError:
        return False
    return True


def _sentence(
    options: Sequence[Option],
    note: str,
    origin: Origin,
    editor: Editor,
    verb: str = "Setpoint calls it",
) -> str:
    """`Setpoint calls it A, NOTE: what to write`; without that where it would be refused."""
    names = " or ".join(" and ".join(values) for values, _ in options)
    head = f"{verb} {names}{f', {note}' if note else ''}"
    texts: list[str] = []
    for values, variants in options:
        attempts = (values, *({**variant, **values} for variant in variants))
        fitting = next((attempt for attempt in attempts if _fits(editor, attempt)), None)
        if fitting is None:
            return f"{head}."
        texts.append(written(fitting, origin))
    return f"{head}: {' or '.join(texts)}"


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
    """Whether nothing is required beside a value that is set, in the sections that hold it."""
    node: Any = root
    for part in path.removesuffix(".type").split("."):
        node = value_or_missing(node, part) if isinstance(node, Node) else None
        if isinstance(node, Node):
            fields = type(node).__setpoint__.fields.values()
            if any(i.required and value_or_missing(node, i.name) is MISSING for i in fields):
                return False
    return True
