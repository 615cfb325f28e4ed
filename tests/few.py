"""Cases of a parametrized test of which only some run in its small form."""

from __future__ import annotations

from collections.abc import Collection, Iterable
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
