"""Paths of fields, and the valid names nearest to one that was typed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

SHORT = 2  # letters of a name that is taken as it is


FORGOTTEN = "For one of your own, import its module: --import MODULE"
PREFIX = 4  # letters that may stand for a longer word
Path = tuple[str | int, ...]


def nearest(
    name: str, candidates: Iterable[str], count: int = 3, likeness: float = 0.6
) -> list[str]:
    """The names nearest to one that was typed.

    Arguments:
        count: how many to return at most.
        likeness: how alike two names must be, between 0 and 1 (difflib's ratio); more where the
            candidates are many and a chance likeness would mislead.
    """
    import difflib

    word = folded(name)
    options = {folded(option): option for option in reversed(list(candidates))}
    close = difflib.get_close_matches(word, [*options][::-1], n=count, cutoff=likeness)
    # A part of the name as typed, or whole words of it: `data` is not meant by `dataloader`.
    inside = [each for each in [*options][::-1] if _is_part(word, each)]
    return [options[each] for each in dict.fromkeys([*close, *inside])][:count]


def folded(name: str) -> str:
    """A name in the spelling of fields: small letters and underscores."""
    return name.lower().replace("-", "_")


def _words(name: str) -> str:
    return "_" + name.replace(".", "_").replace("/", "_") + "_"


def _is_part(word: str, option: str) -> bool:
    """Whether one name is made of whole words of the other, or of the beginning of one."""
    inside, whole = _words(word), _words(option)
    if not word:
        return False
    begins = inside[:-1] if len(word) >= PREFIX else inside
    return begins in whole or (len(option) > SHORT and whole in inside)


def did_you_mean(name: str, candidates: Iterable[str], before: str = "") -> str:
    """A sentence that asks whether the nearest of the valid names was meant.

    Arguments:
        before: what stands before the sentence, such as the space after another one.

    Returns:
        for instance `Did you mean lr?`; the empty text, without `before`, where nothing is close.
    """
    close = nearest(name, candidates, 1)
    return f"{before}Did you mean {close[0]}?" if close else ""


def dotted(path: Path) -> str:
    """A path as people write it.

    Returns:
        for instance `data.sources.0.type`.
    """
    try:
        return ".".join(cast(tuple[str, ...], path))  # most paths hold names only
    except TypeError:
        return ".".join(map(str, path))


def within(path: str, section: str) -> bool:
    """Whether a path is that of a section or field, or leads into it.

    Returns:
        True for `model.dim` and `model`, not for `models`.
    """
    return path == section or path.startswith(f"{section}.")
