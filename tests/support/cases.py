"""Cases of parametrized tests: some of many, and combinations that cover pairs of values."""

from collections.abc import Collection, Iterable
from itertools import combinations, product
from typing import Any

import pytest


def few(cases: Iterable[Any], kept: Collection[Any] = (), every: int = 0) -> list[Any]:
    """Mark cases slow but for some, where they differ little in what they prove.

    Arguments:
        cases: a value each, or a tuple for several arguments.
        kept: those that `make test` runs.
        every: it runs each so-manieth as well, the first among them; 0: none.
    """
    found: list[Any] = []
    left = list(kept)
    for number, case in enumerate(cases):
        if case in left:
            left.remove(case)
        elif not every or number % every:
            case = pytest.param(
                *case if isinstance(case, tuple) else (case,), marks=pytest.mark.slow
            )
        found.append(case)
    assert not left, f"no such cases: {left}"
    return found


def pairs(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combinations that hold each pair of values of any two axes, in the order of the product.

    Arguments:
        axes: the values of each.

    Returns:
        about as many as the two longest axes have together; always the same ones.
    """
    values = [list(axis) for axis in axes]
    every = list(product(*(range(len(axis)) for axis in values)))
    columns = list(combinations(range(len(values)), 2))

    def held(row: tuple[int, ...]) -> set[tuple[int, int, int, int]]:
        return {(a, row[a], b, row[b]) for a, b in columns}

    missing = {pair for row in every for pair in held(row)}
    chosen: list[tuple[int, ...]] = []
    while missing:
        best = max(every, key=lambda row: len(held(row) & missing))
        missing -= held(best)
        chosen.append(best)
    return [tuple(values[a][i] for a, i in enumerate(row)) for row in sorted(chosen)]


def rotated(first: Iterable[Any], *others: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Each value of the first axis once, with combinations of the others in turn.

    Arguments:
        first: the axis that is long.
        others: the values of the others.

    Returns:
        as many as the longer of the first axis and the combinations.
    """
    firsts, rest = list(first), list(product(*others))
    return [
        (firsts[i % len(firsts)], *rest[i % len(rest)]) for i in range(max(len(firsts), len(rest)))
    ]
