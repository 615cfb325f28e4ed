"""Ranges of fields and their roles."""

from __future__ import annotations

import re
from typing import Any

from ..words.errors import Invalid
from ..words.plain_data import INFINITIES


class Bounds:
    """A range of numbers, and a pattern of texts.

    Arguments:
        gt, ge, lt, le: exclusive and inclusive limits; None where there is none.
        pattern: a regular expression that a text must match as a whole.
    """

    __slots__ = ("ge", "gt", "le", "lt", "pattern")

    def __init__(
        self,
        gt: float | None = None,
        ge: float | None = None,
        lt: float | None = None,
        le: float | None = None,
        pattern: str | None = None,
    ) -> None:
        self.gt = gt
        self.ge = ge
        self.lt = lt
        self.le = le
        self.pattern = pattern

    def __bool__(self) -> bool:
        return self.pattern is not None or self.limited

    def over(self, base: Bounds) -> Bounds:
        """These limits, with those of another range on a side that has none."""
        low = self if not (self.gt is self.ge is None) else base
        high = self if not (self.lt is self.le is None) else base
        pattern = base.pattern if self.pattern is None else self.pattern
        return Bounds(low.gt, low.ge, high.lt, high.le, pattern)

    @property
    def limited(self) -> bool:
        """True if there is a limit for numbers."""
        return not (self.gt is self.ge is self.lt is self.le is None)

    @property
    def empty(self) -> bool:
        """True if no number satisfies the limits."""
        lows = [limit for limit in (self.gt, self.ge) if limit is not None]
        highs = [limit for limit in (self.lt, self.le) if limit is not None]
        if not lows or not highs or max(lows) < min(highs):
            return False
        return max(lows) > min(highs) or self.gt == max(lows) or self.lt == min(highs)

    def takes(self, value: float) -> bool:
        """True if a number lies inside."""
        return (
            (self.gt is None or value > self.gt)
            and (self.ge is None or value >= self.ge)
            and (self.lt is None or value < self.lt)
            and (self.le is None or value <= self.le)
        )

    def describe(self) -> str:
        """The range in signs, for help texts and errors.

        Returns:
            for instance `> 0, < 1`.
        """
        signs = ((">", self.gt), (">=", self.ge), ("<", self.lt), ("<=", self.le))
        parts = [
            f"{sign} {limit:g}"
            for sign, limit in signs
            if limit is not None and limit not in INFINITIES
        ]
        if self.lt == float("inf") or self.gt == float("-inf"):
            parts.append("finite")
        if self.pattern is not None:
            parts.append(f"matching {self.pattern}")
        return ", ".join(parts)

    def check(self, value: Any) -> None:
        """Refuse a value outside the range.

        Arguments:
            value: a number, or a text where there is a pattern; the limits say nothing about
                values of other types, such as the word in `int | Literal["auto"]`.

        Raises:
            Invalid: if the value lies outside.
        """
        if isinstance(value, int | float) and not self.takes(value):
            raise Invalid(f"is out of range: it must be {self.describe()}")
        if self.pattern is None or not isinstance(value, str):
            return
        if re.fullmatch(self.pattern, value) is None:
            example = re.sub(r"[^A-Za-z0-9_.\-]+", "-", value).strip("-")
            such = f", such as {example}" if re.fullmatch(self.pattern, example) else ""
            raise Invalid(f"does not match the pattern {self.pattern}{such}")


class Role:
    """The part of a field in the fingerprint and in the resume contract.

    Arguments:
        name: `"identity"`, `"budget"` or `"runtime"`.
    """

    __slots__ = ("meaning", "name")

    def __init__(self, name: str, meaning: str) -> None:
        self.name = name
        self.meaning = meaning

    def __repr__(self) -> str:
        return self.name.upper()

    def __reduce__(self) -> str:
        return self.name.upper()  # a copy is the same object, since roles are compared by identity


IDENTITY = Role("identity", "affects the result: in the fingerprint, must match on resume")
BUDGET = Role("budget", "how long: outside the fingerprint, may grow on resume and is recorded")
RUNTIME = Role("runtime", "where and how: never in the fingerprint, free to change")
