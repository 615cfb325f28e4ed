"""Hints for unknown keys: misspelt, misplaced, retired, or another system's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..migrations.chain import retired_hint, retired_hint_in
from ..schema.tree import all_fields, classes_at, field_of, first_places
from ..values.node import Node
from ..words.errors import Invalid
from ..words.names import SHORT, folded


def unknown_key(cls: type[Node], key: str) -> Invalid:
    """The error for a key that a section does not have, or no longer has."""
    error = cls.__setpoint__.unknown(key)
    error.hint = retired_hint_in(cls, key) or error.hint
    return error


def place_of(root: type[Node], key: str, path: str, loose: bool = True) -> str:
    """A sentence that says where a misplaced or misspelt key belongs in the whole tree.

    Returns:
        the sentence, or the empty string where nothing is close.
    """
    gone = retired_hint(root, path)
    if gone:
        return gone
    section, _, last = path.rpartition(".")
    parents = tuple(section.split(".")) if section else ()
    here = [cls for cls in classes_at(root, parents) if field_of(cls, last)]
    if here:
        tags = " or ".join(cls.__setpoint__.tag or cls.__name__ for cls in here)
        return f"It is a field of type = {tags}."
    word = folded(key)
    every = list(dict.fromkeys(path for path, _ in all_fields(root)))
    places = [each for each in every if each.rpartition(".")[2] == word]
    foreign = "" if places else name_here(root, key)
    if foreign:
        return foreign
    beside = [name for cls in classes_at(root, parents) for name in cls.__setpoint__.near(word)]
    close = [f"{section}.{name}" if section else name for name in beside[:1]]
    if not places:
        places = close or (_alike(root, every, word) if loose else [])
    elif section:
        places = [*places, *close]
    places = list(dict.fromkeys(places))
    return f"Did you mean {' or '.join(places[:3])}?" if places else ""


def _alike(root: type[Node], paths: Sequence[str], word: str) -> list[str]:
    """The fields anywhere whose name, or name in other systems, is nearly a word."""
    import difflib

    if len(word) <= SHORT:
        return []
    ours: dict[str, list[str]] = {}
    for path in paths:
        ours.setdefault(path.rpartition(".")[2], []).append(path)
    theirs: dict[str, list[str]] = {}
    for path, info in all_fields(root):
        for name in info.also_called:
            theirs.setdefault(name, []).append(path)
    # Many names invite chance likenesses; who misspells a name seldom does so in its first letter.
    found: list[tuple[float, list[str]]] = []
    for names, likeness in ((ours, 0.8), (theirs, 0.85)):
        first = [name for name in names if name[0] == word[0]]
        for name in difflib.get_close_matches(word, first, n=1, cutoff=likeness):
            ratio = difflib.SequenceMatcher(None, word, name).ratio()
            found.append((ratio, list(dict.fromkeys(names[name]))))
    if found:
        return max(found, key=lambda each: each[0])[1]
    begin = [path for name in ours if name.startswith(f"{word}_") for path in ours[name]]
    return begin if len(begin) <= 3 else []


def name_here(root: type[Node], key: str) -> str:
    """A sentence that says what a field is called here that other systems call by another name.

    Returns:
        the sentence; the empty string where no field is `also_called` that, or one has that name.
    """
    word = folded(key)
    every = list(all_fields(root))
    if any(info.name == word for _, info in every):
        return ""
    places = first_places(root).items()
    paths = list(dict.fromkeys(path for info, path in places if word in info.also_called))
    return f"Setpoint calls it {' or '.join(paths)}." if paths else ""


def foreign_table(root: type[Node], name: str = "OTHER_NAMES") -> Mapping[str, Any]:
    """What the root declares of names of other systems, or of their values; see `other_names`.

    Returns:
        sentences and converters by name, or for `OTHER_VALUES` by path, with `*` for indices.
    """
    module = root.__setpoint__.other_names
    if module is None:
        return {}
    from importlib import import_module

    return getattr(import_module(module), name, {})


def known_elsewhere(root: type[Node], key: str) -> bool:
    """Whether other systems have a key, so that it is answered as theirs."""
    return folded(key) in foreign_table(root) or bool(name_here(root, key))
