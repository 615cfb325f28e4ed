"""Hints for unknown keys: retired, another system's, misplaced or misspelt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from ..migrations.chain import retired_hint, retired_hint_in
from ..schema.tree import all_fields, classes_at, field_of, names_secret
from ..values.node import Node
from ..words.errors import Invalid
from ..words.names import SHORT, folded


class OtherName(NamedTuple):
    """Entry of a root's table `OTHER_NAMES`, by a name that another system has.

    A name of several words joined by dots is the end of a path; with a dot in front it is the
    whole path; `section.*` is anything in a section of that name. The longest match counts.

    Arguments:
        fields: our fields; several where it may be either of them.
        answer: converts the value, see `ForeignKey` in `setpoint.config.other_names`, or is the
            hint itself.
    """

    fields: tuple[str, ...] = ()
    answer: Callable[[Any], Any] | str = ""


def foreign_table(root: type[Node], table: str = "OTHER_NAMES") -> Mapping[str, Any]:
    """The table of the module that the root names as `other_names`, imported now."""
    module = root.__setpoint__.other_names
    if module is None:
        return {}
    from importlib import import_module

    return getattr(import_module(module), table, {})


def other_name(root: type[Node], path: str, value: object = None) -> OtherName | None:
    """The entry for an unknown key, with those of its fields that the root has.

    Arguments:
        value: of the key; for a mapping only sections are meant that have one of its keys.
    """
    names = foreign_table(root)
    if not names:
        return None
    fields = {path for path, _ in all_fields(root)}
    words = [word for word in folded(path).split(".") if not word.isdecimal()]
    if not words:
        return None  # a number is no name
    keys = [".".join(words[start:]) for start in range(len(words))]
    if any(field.rpartition(".")[2] == words[-1] for field in fields):
        keys.pop()  # a name of our own
    for key in (f".{'.'.join(words)}", *keys, *(f"{word}.*" for word in words[-2::-1])):
        entry = names.get(key)
        if entry is not None:
            ours = tuple(
                field
                for field in entry.fields
                if field in fields
                and (not classes_at(root, tuple(field.split("."))) or may_hold(root, field, value))
            )
            if ours or not entry.fields:
                return entry._replace(fields=ours)
    return None


def other_name_hint(entry: OtherName) -> str:
    """The hint that needs no value: the names of our fields, or the sentence of the entry."""
    sentence = entry.answer if isinstance(entry.answer, str) else ""
    return sentence or f"Setpoint calls it {' or '.join(entry.fields)}."


def is_foreign_key(root: type[Node], path: str) -> bool:
    """True if other systems have a key that no field has."""
    return other_name(root, path) is not None


def unknown_key(cls: type[Node], key: str) -> Invalid:
    """The error for a key that a section does not have, or no longer has."""
    error = cls.__setpoint__.unknown(key)
    error.hint = retired_hint_in(cls, key) or error.hint
    return error


def is_secret_key(root: type[Node], path: str) -> bool:
    """True if an unknown key may be the name of a secret: misspelt, misplaced or another's."""
    entry = other_name(root, path)
    if entry is None or not entry.fields:
        return names_secret(root, path.rpartition(".")[2])
    return any(info.type.is_secret() for field, info in all_fields(root) if field in entry.fields)


def location_hint(root: type[Node], path: str, loose: bool = True, value: object = None) -> str:
    """A sentence that says where an unknown key belongs in the whole tree.

    Arguments:
        loose: also by names that are only alike.
        value: of the key; for a mapping only sections are meant that have one of its keys.

    Returns:
        the sentence, or the empty string where nothing is close.
    """
    retired = retired_hint(root, path)
    if retired:
        return retired
    section, _, last = path.rpartition(".")
    parents = tuple(section.split(".")) if section else ()
    variants = [cls for cls in classes_at(root, parents) if field_of(cls, last)]
    if variants:
        tags = " or ".join(cls.__setpoint__.tag or cls.__name__ for cls in variants)
        return f"It is a field of type = {tags}."
    entry = other_name(root, path, value)
    if entry is not None:
        return other_name_hint(entry)
    word = folded(last)
    paths = list(dict.fromkeys(path for path, _ in all_fields(root)))
    places = [path for path in paths if path.rpartition(".")[2] == word]
    names = [name for cls in classes_at(root, parents) for name in cls.__setpoint__.near(word)]
    close = [f"{section}.{name}" if section else name for name in names[:1]]
    if not places:
        places = close or (_alike(root, paths, word) if loose else [])
    elif section:
        if not classes_at(root, parents):  # of several, those in a section of the same name
            end = f".{section.rpartition('.')[2]}.{word}"
            alike = [path for path in places if f".{path}".endswith(end)]
            places = places if len(places) == 1 else alike
        places = [*places, *close]
    places = [path for path in dict.fromkeys(places) if may_hold(root, path, value)]
    return f"Did you mean {' or '.join(places[:3])}?" if places else ""


def may_hold(root: type[Node], path: str, value: object) -> bool:
    """True if a value is no mapping, or the section at a path has one of its keys."""
    if not isinstance(value, Mapping) or not value:
        return True
    keys = [*map(str, cast(Mapping[object, object], value))]
    classes = classes_at(root, tuple(path.split(".")))
    closed = [cls.__setpoint__ for cls in classes if not hasattr(cls, "__setpoint_open__")]
    return any(info.find(key) or (key == "type" and info.tag) for info in closed for key in keys)


def _alike(root: type[Node], paths: Sequence[str], word: str) -> list[str]:
    """The fields anywhere whose name, or name in other systems, is nearly a word."""
    import difflib

    if len(word) <= SHORT:
        return []
    ours: dict[str, list[str]] = {}
    for path in paths:
        ours.setdefault(path.rpartition(".")[2], []).append(path)
    others = {
        name: fields
        for name, entry in foreign_table(root).items()
        if "." not in name and (fields := [path for path in entry.fields if path in paths])
    }
    # Many names invite chance likenesses; who misspells a name seldom does so in its first letter.
    matches: list[tuple[float, list[str]]] = []
    for names, likeness in ((ours, 0.8), (others, 0.85)):
        first = [name for name in names if name[0] == word[0]]
        for name in difflib.get_close_matches(word, first, n=1, cutoff=likeness):
            ratio = difflib.SequenceMatcher(None, word, name).ratio()
            matches.append((ratio, names[name]))
    if matches:
        return max(matches, key=lambda match: match[0])[1]
    begin = [path for name in ours if name.startswith(f"{word}_") for path in ours[name]]
    return begin if len(begin) <= 3 else []
