"""One finding of validation, and the report that carries all of them at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Self

from .credentials import hide_secrets
from .errors import SetpointError, UserCodeError

MOST = 1000  # problems that a report shows, and after which no more are looked for in the layers
PAGE = 100  # columns of a list of valid values where no terminal says how wide it is
WIDTH = 300  # of a path, a value or an origin in a report; what is longer is a mistake or hostile


class Problem:
    """One finding: which field, what is wrong, and what would be valid.

    Arguments:
        path: the field; relative to the section in a `@check`, from the root in a report.
        message: what is wrong, in numbers where there are any.
        valid: values that would be valid, nearest first.
        also: other fields that take part, shown with their values and origins.
        hint: what to do, as one sentence.
        value: the offending value as text; filled in by the engine.
        origin: where the value came from, as text; filled in by the engine.
    """

    __slots__ = ("also", "hint", "message", "origin", "path", "traceback", "valid", "value")

    def __init__(
        self,
        path: str,
        message: str,
        *,
        valid: Sequence[str] = (),
        also: Sequence[str] = (),
        hint: str = "",
        value: str | None = None,
        origin: str | None = None,
    ) -> None:
        self.path = path
        self.message = message
        self.valid = tuple(valid)
        self.also = tuple(also)
        self.hint = hint
        self.value = value
        self.origin = origin
        # Of a fault in a method of a config class: its traceback, empty where nothing was raised.
        self.traceback: str | None = None

    def placed(self, path: str, value: str | None, origin: str | None, also: list[str]) -> Self:
        """The same finding, seen from the root of the configuration.

        Arguments:
            path: the field's whole path.
            value, origin: of the field, as texts.
            also: the other fields that take part, as texts.

        Returns:
            a copy.
        """
        from copy import copy

        whole = copy(self)
        whole.path, whole.value, whole.origin, whole.also = path, value, origin, tuple(also)
        return whole

    def render(self, valid: bool = True) -> str:
        """The problem as an indented paragraph.

        Arguments:
            valid: whether to list what would be valid.

        Returns:
            several lines, without a trailing newline.
        """
        head = _short(self.path) or "(the whole configuration)"
        lines = [f"  {head}" + (f" = {self.value}" if self.value is not None else "")]
        if self.origin:
            lines.append(f"    from {_short(self.origin)}")
        lines.append(f"    {_short(self.message)}")
        lines.extend(f"    with {other}" for other in self.also)
        if self.valid and valid:
            lines.append(wrapped_list("    valid: ", self.valid))
        if self.hint:
            lines.append(f"    {self.hint}")
        if self.traceback:
            lines.extend(f"      {line}" for line in self.traceback.splitlines())
        return "\n".join(lines)

    def to_json(self) -> dict[str, object]:
        """The problem for machines.

        Returns:
            a mapping of plain values.
        """
        return {
            "path": hide_secrets(self.path),
            "message": hide_secrets(self.message),
            "value": self.value and hide_secrets(self.value),
            "origin": self.origin,
            "valid": list(self.valid),
            "also": list(self.also),
            "hint": self.hint,
        }

    def __str__(self) -> str:
        return self.render()

    def __repr__(self) -> str:
        return f"Problem({self.path!r}, {self.message!r})"


class Caution(Problem):
    """A finding that is legal but suspicious: it is shown and recorded, and stops nothing.

    Arguments:
        code: the name by which it can be silenced, for instance `"warmup-longer-than-run"`.
        path, message, valid, also, hint: as for `Problem`.
    """

    __slots__ = ("code",)

    def __init__(
        self,
        code: str,
        path: str,
        message: str,
        *,
        valid: Sequence[str] = (),
        also: Sequence[str] = (),
        hint: str = "",
        value: str | None = None,
        origin: str | None = None,
    ) -> None:
        super().__init__(
            path, message, valid=valid, also=also, hint=hint, value=value, origin=origin
        )
        self.code = code

    def render(self, valid: bool = True) -> str:
        """See `Problem.render`; the code is in the last line."""
        return f"{super().render(valid)}\n    silence it with --silence.append {self.code}"

    def __repr__(self) -> str:
        return f"Caution({self.code!r}, {self.path!r}, {self.message!r})"

    def line(self) -> str:
        """The caution on one line, for logs.

        Returns:
            for instance `schedule.warmup = 700 steps: ... (warmup-longer-than-run)`.
        """
        value = f" = {self.value}" if self.value is not None else ""
        return f"{_short(self.path)}{value}: {_short(self.message)} ({self.code})"

    def to_json(self) -> dict[str, object]:
        """See `Problem.to_json`."""
        return {"code": self.code, **super().to_json()}


class ConfigError(SetpointError):
    """Everything that is wrong with a configuration, in one report sorted by path.

    Arguments:
        problems: the findings, in any order.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=_position))
        if any(problem.traceback is not None for problem in self.problems):
            self.status = UserCodeError.status  # the code is wrong, whatever else is
        super().__init__(self.render())

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]]]:
        # `Exception` would call the class with the finished text, in another process too.
        return type(self), (self.problems,)

    def render(self) -> str:
        """The report as text.

        Returns:
            a headline and one paragraph per problem.
        """
        count = len(self.problems)
        head = f"{count} problem{'s' if count != 1 else ''} in the configuration"
        parts = [head]
        listed: set[tuple[str, ...]] = set()  # the keys of a section stand once
        for problem in self.problems[:MOST]:
            again = problem.message.startswith("unknown key") and problem.valid in listed
            parts.append(problem.render(valid=not again))
            listed.add(problem.valid)
        if count > MOST:
            parts.append(f"... and {count - MOST} more")
        return "\n\n".join(parts)


def wrapped_list(before: str, words: Sequence[str]) -> str:
    """Words with commas, broken at the width of the terminal, or of a page where there is none.

    Arguments:
        before: the beginning of the first line; the others are indented as far as it reaches.
        words: each of them stays whole.

    Returns:
        the lines, without a trailing newline.
    """
    width = PAGE
    if sys.stderr is not None and sys.stderr.isatty():
        from shutil import get_terminal_size

        width = max(get_terminal_size().columns, 40)
    lines = [before]
    for index, word in enumerate(words):
        comma = "," if index < len(words) - 1 else ""
        empty = len(lines[-1]) == len(before)
        if not empty and len(lines[-1]) + len(word) + len(comma) + 1 > width:
            lines.append(" " * len(before))
            empty = True
        lines[-1] += ("" if empty else " ") + word + comma
    return "\n".join(lines)


def _short(text: str) -> str:
    line = " ".join(text.splitlines())
    return line if len(line) <= WIDTH else line[: WIDTH - 3] + "..."


def _position(problem: Problem) -> list[tuple[bool, int, str]]:
    # Item 10 of a list follows item 9.
    return [
        (False, int(part), "") if part.isdecimal() and len(part) < 10 else (True, 0, part)
        for part in problem.path.split(".")
    ]
