"""Overrides on the command line: `--a.b value`, `--a.b=value` and `a.b=value`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..base import Config
from ..edit import Editor
from ..errors import SetpointError
from ..files.plain import PlainScalar
from ..origin import COMMAND_LINE, Origin
from ..suggest import classes_at, field_of
from ..types.base import FieldType
from ..types.containers import AnyOfType, OptionalType
from ..types.scalars import BoolType
from ..types.sections import SectionType


class Flag:
    """One override.

    Arguments:
        path: the names as written.
        text: the value's text.
        label: the flag as typed, for origins.
    """

    __slots__ = ("label", "path", "text")

    def __init__(self, path: tuple[str, ...], text: str, label: str) -> None:
        self.path = path
        self.text = text
        self.label = label

    @property
    def section(self) -> tuple[str, ...]:
        """The path that is set, in one spelling; of the section where its `type` is."""
        names = self.path[:-1] if self.path[-1] == "type" else self.path
        return tuple(name.replace("-", "_") for name in names)


def parse_flags(tokens: Sequence[str], is_switch: Callable[[tuple[str, ...]], bool]) -> list[Flag]:
    """Read overrides.

    Arguments:
        tokens: the arguments that follow the source.
        is_switch: whether a path names a true-or-false field, which needs no value.

    Returns:
        the overrides in order.

    Raises:
        SetpointError: for an argument that is no override, or lacks its value.
    """
    flags: list[Flag] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        at += 1
        name, equals, text = token.partition("=")
        if not name.startswith("--"):
            if not equals or not name or name.startswith("-"):
                raise SetpointError(
                    f"unexpected argument {token!r}; an override is written --section.field value "
                    f"or section.field=value"
                )
            flags.append(Flag(_path(name), text, name))
            continue
        path = _path(name[2:])
        if equals:
            flags.append(Flag(path, text, name))
        elif is_switch(path):
            if at < len(tokens) and tokens[at].lower() in ("true", "false"):
                flags.append(Flag(path, tokens[at], name))
                at += 1
            else:
                flags.append(Flag(path, "true", name))
        elif name.startswith("--no-") and is_switch(_path(name[5:])):
            flags.append(Flag(_path(name[5:]), "false", name))
        elif at < len(tokens) and not tokens[at].startswith("--"):
            flags.append(Flag(path, tokens[at], name))
            at += 1
        else:
            raise SetpointError(f"{name} needs a value, as in {name} VALUE or {name}=VALUE")
    return flags


def apply_flags(editor: Editor, tokens: Sequence[str]) -> None:
    """Put the overrides of a command line onto a draft.

    A later flag beats an earlier one, except that a flag that chooses a variant acts before those
    that set the variant's fields, wherever it stands.

    Arguments:
        editor: the draft.
        tokens: the arguments.

    Raises:
        SetpointError: for an argument that is no override.
    """
    cls = type(editor.root)
    flags = parse_flags(tokens, lambda path: _is_switch(cls, path))
    for flag in in_order(flags, lambda flag: _chooses(cls, flag)):
        editor.set(flag.path, PlainScalar(flag.text), Origin(COMMAND_LINE, flag.label))


def in_order(flags: Sequence[Flag], chooses: Callable[[Flag], bool]) -> list[Flag]:
    """The order in which overrides apply: as given, but a variant before its fields.

    Arguments:
        flags: the overrides as given.
        chooses: whether one chooses a variant.

    Returns:
        the same overrides; one that chooses stands before those for fields of its section, though
        not before a flag that sets the section as a whole, such as `null`, or what holds it.
    """
    ordered: list[Flag] = []
    for flag in flags:
        at = len(ordered)
        if chooses(flag):
            target = flag.section
            for position in range(len(ordered) - 1, -1, -1):
                other = ordered[position].section
                if target[: len(other)] == other:
                    break
                if other[: len(target)] == target:
                    at = position
        ordered.insert(at, flag)
    return ordered


def _path(name: str) -> tuple[str, ...]:
    return tuple(name.split("."))


def _kinds(cls: type[Config], path: tuple[str, ...]) -> list[FieldType]:
    """The types that a path can have in any of the variants along it."""
    owners = classes_at(cls, path[:-1])
    return [info.type for owner in owners if (info := field_of(owner, path[-1])) is not None]


def _is_switch(cls: type[Config], path: tuple[str, ...]) -> bool:
    return any(_holds(kind, BoolType) for kind in _kinds(cls, path))


def _chooses(cls: type[Config], flag: Flag) -> bool:
    if flag.path[-1] == "type":
        return True
    if flag.text == "null" or flag.text.startswith("{") or "${" in flag.text:
        return False
    return any(_holds(kind, SectionType) for kind in _kinds(cls, flag.path))


def _holds(kind: FieldType, wanted: type[FieldType]) -> bool:
    """Whether a type, or what is optional or an alternative in it, is of a kind."""
    if isinstance(kind, OptionalType | AnyOfType):
        return any(_holds(part, wanted) for part in kind.parts())
    return isinstance(kind, wanted)
