"""Overrides on the command line: `--a.b value`, `--a.b=value` and `a.b=value`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..base import Config
from ..edit import EXTENDS, Editor
from ..errors import SetpointError
from ..files.plain import PlainScalar
from ..origin import COMMAND_LINE, Origin
from ..suggest import classes_at, field_of, former, known_elsewhere
from ..tags import TAG
from ..types.base import FieldType
from ..types.containers import AnyOfType, OptionalType
from ..types.scalars import BoolType
from ..types.sections import SectionType
from .order import in_order
from .word import label_of

CHOOSING = ("type", EXTENDS)  # a fragment may choose a variant as well


def deletes(token: str) -> bool:
    """Whether a word is Hydra's way to delete a key, such as `~evaluation`.

    Arguments:
        token: as typed.

    Returns:
        True for `~` and a dotted name; a home folder has a slash behind its name.
    """
    name = token.partition("=")[0]
    return name[:1] == "~" and all(part.isidentifier() or part.isdecimal()
                                   for part in name[1:].split("."))  # fmt: skip


def unexpected(token: str) -> str:
    """What is said of a word that is no override.

    Arguments:
        token: as typed.

    Returns:
        the message.
    """
    if deletes(token):
        name = token[1:].partition("=")[0]
        head, _, last = name.rpartition(".")
        how = f"--{name} null switches a section off"
        if head and last.isdecimal():
            how = f"--{head}.remove {last} takes an item out of a list"
        return f"unexpected argument {token!r}; nothing is deleted with ~ here: {how}"
    return (
        f"unexpected argument {token!r}; an override is written --section.field value "
        f"or section.field=value"
    )


class Flag:
    """One override.

    Arguments:
        path: the names as written.
        text: the value's text.
        label: the flag as typed, for origins.
        origin: where it comes from, if it is not the command line itself.
        value: what is set, if it is not the text as it stands.
    """

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
        """The path that is set, in one spelling; of the section where its `type` is."""
        names = self.path[:-1] if self.path[-1] in CHOOSING else self.path
        return tuple(name.replace("-", "_") for name in names)


def parse_flags(
    tokens: Sequence[str],
    is_switch: Callable[[tuple[str, ...]], bool],
    gone: Callable[[tuple[str, ...]], str] = lambda path: "",
    is_foreign: Callable[[tuple[str, ...]], bool] = lambda path: False,
) -> list[Flag]:
    """Read overrides.

    Arguments:
        tokens: the arguments that follow the source.
        is_switch: whether a path names a true-or-false field, which needs no value.
        gone: what became of a path that older schemas had, or the empty text.
        is_foreign: whether a path is what other systems call a field.

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
        label = label_of(token, name)
        if not name.startswith("--"):
            if not equals or not name or name.startswith("-") or deletes(token):
                raise SetpointError(unexpected(token))
            flags.append(Flag(_path(name), text, label))
            continue
        path = _path(name[2:])
        if equals:
            flags.append(Flag(path, text, label))
        elif is_switch(path):
            # A word that is no further override can only be meant as the value.
            if at < len(tokens) and not tokens[at].startswith("--") and "=" not in tokens[at]:
                flags.append(Flag(path, tokens[at], label))
                at += 1
            else:
                flags.append(Flag(path, "true", label))
        elif name.startswith("--no-") and is_switch(_path(name[5:])):
            if at < len(tokens) and not tokens[at].startswith("--") and "=" not in tokens[at]:
                raise SetpointError(
                    f"{name} takes no value, got {tokens[at]!r}; write --{name[5:]} true or "
                    f"--{name[5:]} false"
                )
            flags.append(Flag(_path(name[5:]), "false", label))
        elif at < len(tokens) and not tokens[at].startswith("--"):
            flags.append(Flag(path, tokens[at], label))
            at += 1
        elif said := gone(path):
            raise SetpointError(f"{name}: {said}")
        elif is_foreign(path):
            flags.append(Flag(path, "true", label))  # answered beside whatever else is wrong
        else:
            head, _, last = name[2:].rpartition(".")
            switch = f"{head}.{last[3:]}"
            if last[:3] in ("no-", "no_") and is_switch(_path(switch)):
                raise SetpointError(f"{name} is unknown. Did you mean --no-{switch}?")
            raise SetpointError(f"{name} needs a value, as in {name} VALUE or {name}=VALUE")
    return flags


def takes_next(cls: type[Config], token: str, word: str) -> bool:
    """Whether a word is the value of the flag before it, and not an argument of its own.

    Arguments:
        cls: the class of the root.
        token: the flag, such as `--seed`.
        word: what follows it.

    Returns:
        False after a flag that has its value or takes none; after a switch if the word is no value
        of it: `--deterministic exp.toml`.
    """
    name, equals, _ = token.partition("=")
    if equals or not name.startswith("--") or word.startswith("--"):
        return False
    path = _path(name[2:])
    if _is_switch(cls, path):
        return "=" not in word and _is_value(_kinds(cls, path), word)
    if name.startswith("--no-") and _is_switch(cls, _path(name[5:])):
        return word in ("true", "false")  # which is refused in words
    return True


def _is_value(kinds: Sequence[FieldType], word: str) -> bool:
    """Whether a word is a value of one of the types, a reference, or the values of a sweep."""
    if "(" in word:
        from ..sweep.distribution import is_call

        return is_call(word)
    if "${" in word:
        return True

    def read(part: str) -> bool:
        for kind in kinds:
            try:
                kind.read(PlainScalar(part), Origin(COMMAND_LINE))
            except SetpointError:
                continue
            return True
        return False

    return all(map(read, word.split(",")))


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
    put_flags(editor, read_flags(type(editor.root), tokens))


def read_flags(cls: type[Config], tokens: Sequence[str]) -> list[Flag]:
    """Read overrides for a root class, which knows what is a switch.

    Arguments:
        cls: the class of the root.
        tokens: the arguments.

    Returns:
        the overrides in order.

    Raises:
        SetpointError: for an argument that is no override.
    """
    return parse_flags(
        tokens,
        lambda path: _is_switch(cls, path),
        # A switch that was retired has no value to be read.
        lambda path: former(cls, ".".join(path)),
        # What names no field is answered as such, together with whatever else is wrong.
        lambda path: known_elsewhere(cls, path[-1]) or _is_unknown(cls, path),
    )


def _is_unknown(cls: type[Config], path: tuple[str, ...]) -> bool:
    return len(path) == 1 and path[0] not in cls.__setpoint__.fields


def put_flags(editor: Editor, flags: Sequence[Flag]) -> None:
    """Put overrides onto a draft, in the order of `in_order`.

    Arguments:
        editor: the draft.
        flags: the overrides as given.
    """
    cls = type(editor.root)
    order = in_order(flags, lambda flag: _chooses(cls, flag), lambda flag: flag.path[0] == TAG)
    for flag in order:
        # Read long before, perhaps, and for several drafts.
        editor.set(flag.path, flag.value, flag.origin.applied())


def is_section(cls: type[Config], path: tuple[str, ...]) -> bool:
    """Whether a path names a section, or one that may stand there.

    Arguments:
        cls: the class of the root.
        path: the names in one spelling.

    Returns:
        True for `("model",)`.
    """
    return any(_holds(kind, SectionType) for kind in _kinds(cls, path))


def _path(name: str) -> tuple[str, ...]:
    return tuple(name.split("."))


def _kinds(cls: type[Config], path: tuple[str, ...]) -> list[FieldType]:
    """The types that a path can have in any of the variants along it."""
    owners = classes_at(cls, path[:-1])
    return [info.type for owner in owners if (info := field_of(owner, path[-1])) is not None]


def _is_switch(cls: type[Config], path: tuple[str, ...]) -> bool:
    return any(_holds(kind, BoolType) for kind in _kinds(cls, path))


def _chooses(cls: type[Config], flag: Flag) -> bool:
    if flag.path[-1] in CHOOSING:
        return True
    if flag.text == "null" or flag.text.startswith("{") or "${" in flag.text:
        return False
    return any(_holds(kind, SectionType) for kind in _kinds(cls, flag.path))


def _holds(kind: FieldType, wanted: type[FieldType]) -> bool:
    """Whether a type, or what is optional or an alternative in it, is of a kind."""
    if isinstance(kind, OptionalType | AnyOfType):
        return any(_holds(part, wanted) for part in kind.parts())
    return isinstance(kind, wanted)
