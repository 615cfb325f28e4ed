"""Conditions on runs: `optimizer.lr > 1e-4 and evaluation.held_out_loss < 1.2 or tags ~ base`."""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from setpoint.config import ABSENT, SetpointError, did_you_mean
from setpoint.report.status import STATUSES

Look = Callable[[str], Any]
"""Value of a run by name; `ABSENT` where it has none."""

Condition = Callable[[Look], bool]
"""True for a run that matches the query."""

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_TOKEN = re.compile(
    r"""\s*(?:(?P<operator><=|>=|==|!=|<|>|=|~)|(?P<bracket>[()])"""
    r"""|(?P<quoted>"[^"]*"|'[^']*')|(?P<word>[^\s()<>=!~"']+))"""
)
EXAMPLE = "'optimizer.lr > 1e-4 and evaluation.held_out_loss < 1.2'"


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class Query(NamedTuple):
    """A condition, and the names that it looks up."""

    holds: Condition
    names: tuple[str, ...]


def parse(text: str) -> Query:
    """Read a condition.

    Comparisons `NAME OPERATOR VALUE` with `<`, `<=`, `>`, `>=`, `=`, `!=` and `~` (a text that
    holds the value, or matches it where it has `*` or `?`; a list that has such an entry), joined
    by `and`, `or`, `not` and brackets. A run that lacks a name meets no comparison of it but `!=`.

    Raises:
        SetpointError: if it has another form, with the place; or names a status that none is.
    """
    reader = _Reader(text)
    holds = reader.either()
    if reader.now is not None:
        raise reader.refusal("expected and, or, or the end")
    return Query(holds, tuple(reader.names))


class _Reader:
    """Reads tokens one by one, `or` binding less than `and`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: dict[str, None] = {}
        self._tokens = self._split()
        self.now = next(self._tokens, None)

    def either(self) -> Condition:
        parts = [self._both()]
        while self._takes("or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else lambda look: any(part(look) for part in parts)

    def _both(self) -> Condition:
        parts = [self._one()]
        while self._takes("and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else lambda look: all(part(look) for part in parts)

    def _one(self) -> Condition:
        if self._takes("not"):
            inner = self._one()
            return lambda look: not inner(look)
        if self._takes("("):
            inner = self.either()
            if not self._takes(")"):
                raise self.refusal("expected )")
            return inner
        name = self._take("word", "expected a field or a metric")
        sign = self._take("operator", "expected one of < <= > >= = != ~")
        if self.now is None or self.now.kind not in ("word", "quoted"):
            raise self.refusal("expected a value")
        quoted = self.now.kind == "quoted"
        value = self.now.text[1:-1] if quoted else self.now.text
        if name == "status" and sign != "~" and value not in STATUSES:
            meant = did_you_mean(value, STATUSES, " ")
            raise SetpointError(f"no status is {value!r}.{meant}\nValid: {', '.join(STATUSES)}")
        self._step()
        self.names[name] = None
        return _comparison(name, sign, value, quoted)

    def _takes(self, text: str) -> bool:
        if self.now is None or self.now.kind == "quoted" or self.now.text != text:
            return False
        self._step()
        return True

    def _take(self, kind: str, expected: str) -> str:
        if self.now is None or self.now.kind != kind:
            raise self.refusal(expected)
        text = self.now.text
        self._step()
        return text

    def _step(self) -> None:
        self.now = next(self._tokens, None)

    def _split(self) -> Iterator[_Token]:
        at, end = 0, len(self.text.rstrip())
        while at < end:
            found = _TOKEN.match(self.text, at)
            if found is None:
                raise self.refusal("a quote is not closed" if self.text[at:].strip()[0] in "\"'"
                                   else "expected a comparison", at)  # fmt: skip
            kind = str(found.lastgroup)
            yield _Token(kind, found[kind], found.start(kind))
            at = found.end()

    def refusal(self, reason: str, at: int | None = None) -> SetpointError:
        """Error with a mark below the position."""
        if at is None:
            at = len(self.text) if self.now is None else self.now.at
        return SetpointError(
            f"the condition cannot be read: {reason}\n  {self.text}\n  {' ' * at}^\n"
            f"Valid: comparisons joined by and, or, not, as in {EXAMPLE}"
        )


def _comparison(name: str, sign: str, text: str, quoted: bool) -> Condition:
    wanted = text if quoted else _value(text)

    def holds(look: Look) -> bool:
        value = look(name)
        if sign == "!=":
            return value is ABSENT or not _equal(value, wanted)
        if value is ABSENT:
            return False
        if sign in ("=", "=="):
            return _equal(value, wanted)
        if sign == "~":
            return _like(value, text)
        try:
            return _COMPARE[sign](*_comparable(value, wanted))
        except TypeError:
            return False

    return holds


def _comparable(value: Any, wanted: Any) -> tuple[Any, Any]:
    """Numbers also where a text begins with one, as durations do: `100 steps`."""
    if isinstance(wanted, float | int) and isinstance(value, str):
        head = _value(value.partition(" ")[0])
        return (head, wanted) if isinstance(head, float | int) else (value, wanted)
    return value, wanted


def _equal(value: Any, wanted: Any) -> bool:
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    return value == wanted or (isinstance(value, str) and value == str(wanted))


def _like(value: Any, text: str) -> bool:
    pattern = text if any(sign in text for sign in "*?[") else f"*{text}*"
    values = value if isinstance(value, list | tuple) else [value]
    return any(fnmatch.fnmatchcase(str(one), pattern) for one in values)


def _value(text: str) -> Any:
    if text in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[text]
    try:
        return float(text)
    except ValueError:
        return text
