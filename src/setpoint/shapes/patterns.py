"""Patterns that select names: regular expressions, and problems of patterns without effect.

Sections use them to select parameters, layers and modules. A list of patterns selects every name
that any pattern matches; in a list of sections with a `pattern` each, a name belongs to the first
section that matches it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from setpoint.config import Invalid, Problem, nearest
from setpoint.config.types.base import compiled_pattern


def matches(patterns: Iterable[str], name: str) -> bool:
    """True if any of the patterns is found in a name."""
    return any(re.search(pattern, name) for pattern in patterns)


def first_match(patterns: Iterable[str], name: str) -> int | None:
    """The index of the first pattern that is found in a name, or None."""
    return next((i for i, pattern in enumerate(patterns) if re.search(pattern, name)), None)


def pattern_problems(
    path: str, pattern: str, valid: Sequence[str] = (), means: str = "all names"
) -> Iterator[Problem]:
    """Check the form of a regular expression for names.

    Arguments:
        valid: valid values, shown for an empty pattern.
        means: the names that an empty pattern would match.
    """
    if not pattern:
        yield Problem(path, f"is empty, so it would match {means}", valid=valid)
        return
    try:
        compiled_pattern(pattern)
    except Invalid as error:
        yield Problem(path, error.message, hint=error.hint)


def is_pattern(text: str) -> bool:
    """True if `pattern_problems` finds nothing."""
    return not any(True for _ in pattern_problems("", text))


def unmatched(
    path: str, patterns: Iterable[str], names: Sequence[str], population: str, most: int = 12
) -> Iterator[Problem]:
    """Find patterns of a list that match no name; malformed ones are reported elsewhere.

    Arguments:
        path: path of the list.
        population: plural noun for the names.
        most: maximum number of names shown.
    """
    for index, pattern in enumerate(patterns):
        if is_pattern(pattern) and not any(re.search(pattern, name) for name in names):
            yield matches_nothing(f"{path}.{index}", pattern, names, population, most)


def untaken(
    path: str, patterns: Sequence[str], names: Sequence[str], population: str, most: int = 12
) -> Iterator[Problem]:
    """Find sections whose `pattern` matches no name, or only names taken by earlier sections.

    Arguments:
        path: path of the list of sections.
        population, most: see `unmatched`.
    """
    taken = [first_match(patterns, name) for name in names]
    for index, pattern in enumerate(patterns):
        if index in taken:
            continue
        rules = [rule for rule, n in zip(taken, names, strict=True) if re.search(pattern, n)]
        if not rules:
            yield matches_nothing(f"{path}.{index}.pattern", pattern, names, population, most)
            continue
        before = [f"{path}.{rule}" for rule in sorted({rule for rule in rules if rule is not None})]
        yield Problem(
            f"{path}.{index}.pattern",
            f"has no effect: earlier {path} match everything it matches, {len(rules)} of "
            f"{len(names)} {population}",
            also=[f"{rule}.pattern" for rule in before],
            hint=f"Put it before {' and '.join(before)}, or remove it.",
        )


def matches_nothing(
    path: str, pattern: str, names: Sequence[str], population: str, most: int = 12
) -> Problem:
    """The problem of a pattern that matches no names.

    Arguments:
        population, most: see `unmatched`.
    """
    words = dict.fromkeys(part for name in names for part in name.split("."))
    parts = [part for part in re.findall(r"\w+", pattern.replace("\\", " ")) if part not in words]
    close = [word for part in parts for word in nearest(part, [*words], 1)]
    return Problem(
        path,
        f"matches none of the {len(names)} {population}",
        valid=examples(names)[:most],
        hint=f"Did you mean {close[0]}?" if close else "",
    )


def examples(names: Iterable[str]) -> list[str]:
    """One name for each set of names that differ only in numbers, since layers are alike."""
    by_form: dict[str, str] = {}
    for name in names:
        by_form.setdefault(re.sub(r"\d+", "0", name), name)
    return list(by_form.values())
