"""Overrides on the command line, and their order.

`with_value` joins `--optimizer.lr 1e-3` to one word, `read_flags` turns it into a `Flag`, and
`put_flags` applies it: `Editor.set` descends to the section, `FieldInfo.read` parses the text by
the field's type and checks its range, and the value is stored with its origin. `Editor.report`
turns an `Invalid` on the way into a `Problem` with path and origin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..draft.hints import is_foreign_key, location_hint, retired_hint, switches
from ..draft.walk import TAG
from ..schema.class_info import fields_at
from ..types.base import BoolType, FieldType, takes
from ..types.compound import AnyOfType, OptionalType, SectionType, unwrapped
from ..values.node import Node
from ..values.origin import COMMAND_LINE, Origin
from ..words.errors import SetpointError
from ..words.plain_data import PlainScalar
from ..words.text import for_shell
from .editor import Editor
from .extends import EXTENDS

CHOOSING = ("type", EXTENDS)  # fragments may choose a variant, too


def unexpected(token: str) -> str:
    """The error for a word that is not an override."""
    return (
        f"unexpected argument {token!r}; an override is written --section.field value "
        f"or section.field=value"
    )


class Flag:
    """One override; its origin is the command line unless it comes from elsewhere."""

    __slots__ = ("label", "origin", "path", "text", "value")

    def __init__(
        self,
        path: tuple[str, ...],
        text: str,
        label: str,
        origin: Origin | None = None,
        value: object = None,
    ) -> None:
        self.path = path
        self.text = text
        self.label = label
        self.origin = origin or Origin(COMMAND_LINE, label)
        self.value = PlainScalar(text) if value is None else value

    @property
    def section(self) -> tuple[str, ...]:
        """The path that is set, in normal form; for `type`, that of its section."""
        names = self.path[:-1] if self.path[-1] in CHOOSING else self.path
        return tuple(name.replace("-", "_") for name in names)


def read_flags(cls: type[Node], tokens: Sequence[str]) -> list[Flag]:
    """Read overrides for a root class, whose fields determine which flags are switches.

    A flag and its value must be one token, as joined by the command (`--optimizer.lr=1e-3`).

    Raises:
        SetpointError: an argument is not an override, or lacks its value.
    """
    flags: list[Flag] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        index += 1
        if index < len(tokens) and (joined := with_value(cls, token, tokens[index])):
            token = joined
            index += 1
        flags.append(_read_flag(cls, token))
    return flags


def with_value(
    cls: type[Node], flag: str, word: str, is_argument: Callable[[str], bool] = lambda _: False
) -> str | None:
    """Join a flag and the next word if that is its value and not a positional argument.

    Arguments:
        is_argument: returns True if a word can be positional; called if the flag is a switch and
            the word is not a value for it: `--deterministic exp.toml`, but not `--deterministic
            ture`.

    Returns:
        `--flag=word`; None if the word is not its value, or the flag already has one.
    """
    if "=" in flag or not flag.startswith("--") or word.startswith("--"):
        return None
    path = _path(flag[2:])
    if _is_switch(cls, path) or _negated(cls, flag):
        kinds = _kinds(cls, path)
        is_value = word in ("true", "false") or "${" in word
        is_value = is_value or all(_fits_any(kinds, part) for part in word.split(","))
        if "=" in word or (not is_value and is_argument(word)):
            return None
    joined = f"{flag}={word}"
    return Word(joined, flag.place) if isinstance(flag, Word) else joined


def _negated(cls: type[Node], flag: str) -> tuple[str, ...] | None:
    """Path of the switch turned off by `--no-SWITCH`."""
    if not flag.startswith("--no-") or _kinds(cls, _path(flag[2:])):
        return None
    path = _path(flag[5:])
    return path if _is_switch(cls, path) else None


def _read_flag(cls: type[Node], token: str) -> Flag:
    """Read one override, whose value follows an equals sign unless it is a switch."""
    name, equals, text = token.partition("=")
    label = f"{name} ({token.place})" if isinstance(token, Word) else name
    if not name.startswith("--"):
        if not equals or not name or name[0] in "-~":
            raise SetpointError(unexpected(token))
        return Flag(_path(name), text, label)
    path = _path(name[2:])
    if negated := _negated(cls, name):
        if equals:
            raise SetpointError(
                f"{name} accepts no value, got {text!r}; write --{name[5:]} true or "
                f"--{name[5:]} false"
            )
        return Flag(negated, "false", label)
    if equals:
        key, assigns, _ = text.partition("=")
        if assigns and not _kinds(cls, path) and _kinds(cls, _path(key)):
            raise SetpointError(f"{name} is not an option; write --{text} or {text}")
        return Flag(path, text, label)
    if _is_switch(cls, path):
        return Flag(path, "true", label)
    if hint := retired_hint(cls, ".".join(path)):  # a retired switch has no value
        raise SetpointError(f"{name}: {hint}")
    is_field = path[1:] or path[0] in cls.__setpoint__.fields
    foreign = not _kinds(cls, path) and is_foreign_key(cls, ".".join(path))
    if foreign or not is_field:
        # Unknown fields are reported later, together with all other problems.
        return Flag(path, "true", label)
    head, _, last = name[2:].rpartition(".")
    switch = f"{head}.{last[3:]}"
    if last[:3] in ("no-", "no_") and _is_switch(cls, _path(switch)):
        raise SetpointError(f"{name} is unknown. Did you mean --no-{switch}?")
    near = "" if _kinds(cls, path) else location_hint(cls, ".".join(path))
    optional = [kind for kind in _kinds(cls, path) if isinstance(kind, OptionalType)]
    sections = [inner for kind in optional if isinstance(inner := unwrapped(kind), SectionType)]
    how = switches(sections[0], path, Origin(COMMAND_LINE)) if sections else ""
    how = how or near or f"Write {name} VALUE or {name}=VALUE."
    raise SetpointError(f"{name} needs a value. {how}")


def _fits_any(kinds: Sequence[FieldType], text: str) -> bool:
    return any(takes(kind, PlainScalar(text)) for kind in kinds)


def one_word(cls: type[Node], flag: str, words: Sequence[str]) -> str:
    """Join the words after a flag into one value, `--duration "2 epochs"`; empty if invalid."""
    path = _path(flag.removeprefix("--"))
    kinds = _kinds(cls, path)
    listing = ",".join(words)
    listed = [kind for kind in kinds if kind.lists_items(listing) and ".append" not in flag]
    for these, text in ((listed, listing), (kinds, " ".join(words))):
        if _fits_any(these, text):
            return f"--{'.'.join(path)} {for_shell(text)}"
    return ""


def put_flags(editor: Editor, flags: Sequence[Flag]) -> None:
    """Apply overrides to a draft.

    A later flag overrides an earlier one, except that a flag that chooses a variant is applied
    before those that set the variant's fields, regardless of position.
    """
    for flag in in_order(type(editor.root), flags):
        # The flags may have been read long before, and for several drafts.
        editor.set(flag.path, flag.value, flag.origin.applied())


def in_order(cls: type[Node], flags: Sequence[Flag]) -> list[Flag]:
    """Sort overrides into the order of application: as given, but a variant before its fields.

    A variant is not moved before a flag that sets the section as a whole, such as to `null`, or an
    enclosing section.
    """
    ordered: list[Flag] = []
    for flag in flags:
        index, section = len(ordered), flag.section
        for position in reversed(range(len(ordered) if _is_choice(cls, flag) else 0)):
            other = ordered[position]
            if section[: len(other.section)] == other.section:
                break
            if other.section[: len(section)] == section or other.path[0] == TAG:
                index = position
        ordered.insert(index, flag)
    return ordered


def is_section(cls: type[Node], path: tuple[str, ...]) -> bool:
    """True if a path such as `("model",)` names a section or optional section."""
    return any(_has_type(kind, SectionType) for kind in _kinds(cls, path))


def _path(name: str) -> tuple[str, ...]:
    return tuple(name.split("."))


def _kinds(cls: type[Node], path: tuple[str, ...]) -> list[FieldType]:
    """The types that a path can have in any of the variants along it."""
    return [info.type for info in fields_at(cls, path)]


def _is_switch(cls: type[Node], path: tuple[str, ...]) -> bool:
    return any(_has_type(kind, BoolType) for kind in _kinds(cls, path))


def _is_choice(cls: type[Node], flag: Flag) -> bool:
    if flag.path[-1] in CHOOSING:
        return True
    if flag.text == "null" or flag.text.startswith("{") or "${" in flag.text:
        return False
    return is_section(cls, flag.path)


def _has_type(kind: FieldType, cls: type[FieldType]) -> bool:
    """True if a type, or a type inside an optional or alternative one, is of some kind."""
    if isinstance(kind, OptionalType | AnyOfType):
        return any(_has_type(part, cls) for part in kind.parts)
    return isinstance(kind, cls)


class Word(str):
    """A word from a response file such as `@args.txt`, with `file:line`."""

    __slots__ = ("place",)

    place: str

    def __new__(cls, text: str, place: str) -> Word:
        """See the class."""
        word = super().__new__(cls, text)
        word.place = place
        return word
