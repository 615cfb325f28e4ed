"""The errors that a user can cause, reports of several problems, and secrets hidden in them.

All other exceptions are bugs. A `Secret` contains only a reference, not the secret; the functions
here hide secrets in other values: a password in a URL, a key in its query, a token as plain text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any, Self, TypedDict, Unpack

from .names import plural

MAX_PROBLEMS = 1000  # in a report; reading the layers stops there
PAGE = 100  # columns of a list of valid values if the width of the terminal is unknown
WIDTH = 300  # of a path, a value or an origin in a report; longer ones are a mistake or hostile
UNKNOWN_KEY = "unknown key"
WRONG_KIND = "wrong kind"
MISSING_PATH = "missing path"
"""Kinds of mistakes: no field has the key; a value of another type, or another word, than the field
takes; no such file or directory on this machine. All other mistakes have none."""
HIDDEN = "***"
"""The text shown in place of a secret."""
# A text without any of these contains none of the keys below.
_MARKS = ("hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_",
          "glpat-", "AKIA", "xox", "sk-")  # fmt: skip
# A login before the host. In `user@host:path` of ssh, or a user name alone, there is no password.
_LOGIN = r"(?<=://)[^/\s?#@'\"]*:(?!\*\*\*@)[^/\s?#@'\"]+(?=@)"
_USER = r"(?<=://)[^/\s?#@'\"]+(?=@)"
# The whole name of a parameter decides: `token=` is one, `tokenizer=` is not.
_PARAMETER = (
    r"(?i)(?<=[?&;])((?:(?:access|auth|refresh|id|private|session|security|bearer)[_-]?)?token"
    r"|(?:x-)?api[_-]?key|(?:access|secret|private|shared)[_-]?(?:access[_-]?)?key"
    r"|password|passwd|pwd|(?:client[_-]?)?secret|sig|signature|auth|authorization|credentials?"
    r"|x-(?:amz|goog)-(?:signature|credential|security-token))=(?!\*\*\*)[^&#\s'\"]+"
)
# Prefixes of the keys of well-known services; such a text is a secret under any name.
_KEY = (
    r"(?<![A-Za-z0-9_])(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{20,}|AKIA[A-Z0-9]{16}(?![A-Za-z0-9])"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}|sk-(?=[A-Za-z0-9_-]*[0-9])(?=[A-Za-z0-9_-]*[A-Z]|[a-z0-9]{32})"
    r"[A-Za-z0-9_-]{20,})"
)


def suspicious(text: str) -> bool:
    """Check quickly whether a text may contain a secret; the patterns are far slower."""
    return (
        "://" in text
        or ("=" in text and ("?" in text or "&" in text or ";" in text))
        or (len(text) > 14 and any(mark in text for mark in _MARKS))
    )


def credential_in(text: str) -> str | None:
    """Find a secret inside a text, and return its kind as text, without the secret."""
    if not suspicious(text):
        return None
    if re.search(_LOGIN, text):
        return "a password inside a URL"
    parameter = re.search(_PARAMETER, text)
    if parameter:
        return f"a secret as the parameter {parameter[1]!r} of a URL"
    if re.search(_KEY, text):
        return "what looks like an access token"
    return None


def hide_secrets(text: str) -> str:
    """Hide logins and secret parameters of URLs, and keys of well-known services."""
    if not suspicious(text):
        return text
    text = re.sub(_USER, HIDDEN, text)
    text = re.sub(_PARAMETER, lambda match: f"{match[1]}={HIDDEN}", text)
    return re.sub(_KEY, HIDDEN, text)


def printable(text: str) -> str:
    """Escape unprintable characters, except line breaks."""
    if all(char.isprintable() or char == "\n" for char in text):
        return text
    return "".join(
        char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text
    )


class SetpointError(Exception):
    """An error for the user: the problem, its location, and valid values.

    The command line prints only the message and exits with `status`, without a traceback.
    """

    # The configuration or the arguments are wrong.
    status = 2
    kind = ""

    def __str__(self) -> str:
        return printable(hide_secrets(super().__str__()))


class MissingPathError(SetpointError):
    """A file or directory of the configuration that does not exist on this machine."""

    kind = MISSING_PATH


class RunError(SetpointError):
    """An error of a run whose configuration is correct: lost data, or a non-finite loss."""

    status = 1


class UserCodeError(SetpointError):
    """A fault in a user's own preset, modifier, factory or module.

    The command line prints the traceback, starting in user code, and exits with status 1, since
    neither the configuration nor the arguments are wrong.

    Arguments:
        traceback: the traceback of the exception, without frames of the engine.
    """

    status = 1

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message, traceback)
        self.message = message
        self.traceback = printable(hide_secrets(traceback))

    def __str__(self) -> str:
        return printable(hide_secrets(self.message))


class Invalid(SetpointError):
    """An invalid value of a field or, in Python, of `Period`, `ref` and similar classes.

    `Editor.report` adds the path and the origin for values of layers, `Config.set_field` for
    assignments in Python.

    Arguments:
        valid: valid values, nearest first.
        at: the path inside the value, for example `(2, "lr")` for a field of a list's third
            section.
        hint: a sentence with advice, or the empty string.
        secret: whether the value may be a secret, which reports must not repeat.
        kind: `UNKNOWN_KEY`, `WRONG_KIND`, `MISSING_PATH` or the empty text.
    """

    def __init__(
        self,
        message: str,
        valid: tuple[str, ...] = (),
        at: tuple[str | int, ...] = (),
        hint: str = "",
        secret: bool = False,
        kind: str = "",
    ) -> None:
        super().__init__(message, valid, at, hint, secret, kind)
        self.message = message
        self.valid = valid
        self.at = at
        self.hint = hint
        self.secret = secret
        self.kind = kind
        self.parts: tuple[Invalid, ...] = (self,)
        # The traceback of an error in the method that computes the value.
        self.traceback: str | None = None
        # The name of the function that the program called, as no report of a configuration names
        # the value.
        self.call = ""

    def __str__(self) -> str:
        text = f"{self.call} {self.sentence}" if self.call else self.message
        return printable(hide_secrets(text))

    @property
    def sentence(self) -> str:
        """The message with valid values and advice, for an error without a `Problem`."""
        return ". ".join(filter(None, [with_valid(self.message, self.valid), self.hint]))

    def called(self, name: str, value: object) -> Invalid:
        """The same error, with the call that raised it added to its text."""
        too_long = isinstance(value, int) and value.bit_length() > 1000
        text = "a whole number" if too_long else repr(value)
        self.call = f"{name}({text if len(text) <= 100 else text[:97] + '...'})"
        return self

    def inside(self, key: str | int) -> Invalid:
        """The error with one more key at the start of its path."""
        if len(self.parts) == 1:
            return self.but(at=(key, *self.at))
        return several([part.inside(key) for part in self.parts])

    def but(self, **changes: Any) -> Invalid:
        """The same error with some of the constructor's arguments changed."""
        names = ("message", "valid", "at", "hint", "secret", "kind")
        return Invalid(**{name: changes.get(name, getattr(self, name)) for name in names})


def with_valid(message: str, valid: Sequence[str]) -> str:
    """Append valid values to a message."""
    return f"{message}. Valid: {', '.join(valid)}" if valid else message


def several(errors: list[Invalid]) -> Invalid:
    """Join several errors into one, so that all of them are reported."""
    if len(errors) == 1:
        return errors[0]
    joined = errors[0].but()
    joined.parts = tuple(part for error in errors for part in error.parts)
    return joined


class DeclarationError(SetpointError, TypeError):
    """An invalid declaration of a config class, with class and field."""


class UnresolvedError(SetpointError):
    """A derived or referenced field was read before `resolve` computed it."""


class Details(TypedDict, total=False):
    """The options of `Problem`."""

    valid: Sequence[str]
    also: Sequence[str]
    hint: str
    value: str | None
    origin: str | None
    kind: str


class Problem:
    """One problem: the field, what is wrong, and valid values.

    Arguments:
        path: the field; relative to the section in a `@rule`, to the root in a report, to the class
            in an assignment.
        also: other fields involved, shown with their values and origins.
        value: the offending value as text; filled in by the kernel.
        origin: the origin of the value as text; filled in by the kernel.
        kind: see `Invalid`.
    """

    __slots__ = ("also", "hint", "kind", "message", "origin", "path", "traceback", "valid", "value")

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
        kind: str = "",
    ) -> None:
        self.path = path
        self.message = message
        self.valid = tuple(valid)
        self.also = tuple(also)
        self.hint = hint
        self.value = value
        self.origin = origin
        self.kind = kind
        # The traceback of an error in a method of a config class; empty if none was raised.
        self.traceback: str | None = None

    @classmethod
    def of(cls, error: SetpointError, path: str, *prefixes: str, also: Sequence[str] = ()) -> Self:
        """The problem of a field that an error reports.

        Arguments:
            prefixes: names of the field or its value with which the text may begin.
        """
        text = str(error)
        for prefix in prefixes:
            text = text.removeprefix(f"{prefix}: ")
        message, _, valid = text.partition("\nValid: ")
        hint = f"Valid: {valid}" if valid else ""
        if not hint and (parts := re.fullmatch(r"(.+)\n(\S.*)", message)):
            message, hint = parts[1], parts[2]  # advice in a line of its own
        return cls(path, message, hint=hint, also=also, kind=error.kind)

    def placed(self, path: str, value: str | None, origin: str | None, also: list[str]) -> Self:
        """The problem with its path from the root."""
        from copy import copy  # imports weakref, which is needed only with an error

        problem = copy(self)
        problem.path, problem.value, problem.origin = path, value, origin
        problem.also = tuple(also)
        return problem

    def render(self, valid: bool = True) -> str:
        """The problem as an indented paragraph."""
        head = _short(self.path) or "(the whole configuration)"
        lines = [f"  {head}" + (f" = {self.value}" if self.value is not None else "")]
        if self.origin:
            word = "" if self.origin.startswith("derived from ") else "from "
            lines.append(f"    {word}{_short(self.origin)}")
        lines.append(f"    {_short(self.message)}")
        lines.extend(f"    with {other}" for other in self.also)
        if self.valid and valid:
            lines.append(wrapped_list("    Valid: ", self.valid))
        if self.hint:
            lines.append(f"    {self.hint}")
        if self.traceback:
            lines.extend(f"      {line}" for line in self.traceback.splitlines())
        return "\n".join(lines)

    def to_json(self) -> dict[str, object]:
        """The problem as JSON."""
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
    """A warning about a legal value, which is shown and recorded but stops nothing.

    Arguments:
        code: the name by which it can be silenced, for example `"warmup-longer-than-run"`.
        path, message, valid, also, hint: as for `Problem`.
    """

    __slots__ = ("code", "section")

    def __init__(self, code: str, path: str, message: str, **details: Unpack[Details]) -> None:
        super().__init__(path, message, **details)
        self.code = code
        # The path of the section whose check yielded it; filled in by the engine.
        self.section: tuple[str | int, ...] = ()

    def render(self, valid: bool = True) -> str:
        return f"{super().render(valid)}\n    silence it with --silence.append {self.code}"

    def __repr__(self) -> str:
        return f"Caution({self.code!r}, {self.path!r}, {self.message!r})"

    def line(self) -> str:
        """The caution on one line, for logs: `schedule.warmup = 700 steps: ... (CODE)`."""
        value = f" = {self.value}" if self.value is not None else ""
        return f"{_short(self.path)}{value}: {_short(self.message)} ({self.code})"

    def to_json(self) -> dict[str, object]:
        return {"code": self.code, **super().to_json()}


class ConfigError(SetpointError):
    """All problems of a configuration, in one report sorted by path."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=_position))
        if any(problem.traceback is not None for problem in self.problems):
            self.status = UserCodeError.status  # the code is wrong, regardless of other problems
        super().__init__(self.render())

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]]]:
        # `Exception` would call the class with only the finished text, as in unpickling.
        return type(self), (self.problems,)

    def render(self) -> str:
        """The report as text."""
        count = len(self.problems)
        parts = [f"{plural(count, 'problem')} in the configuration"]
        listed: set[tuple[str, ...]] = set()  # the keys of a section are listed once
        for problem in self.problems[:MAX_PROBLEMS]:
            is_repeated = problem.kind == UNKNOWN_KEY and problem.valid in listed
            parts.append(problem.render(valid=not is_repeated))
            listed.add(problem.valid)
        if count > MAX_PROBLEMS:
            parts.append(f"... and {count - MAX_PROBLEMS} more")
        return "\n\n".join(parts)


def wrapped_list(before: str, words: Sequence[str]) -> str:
    """Join words with commas, wrapped at the width of the terminal, or of a page without one.

    Lines after the first are indented by the length of its beginning.
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
    # Item 10 of a list comes after item 9.
    return [
        (False, int(part), "") if part.isdecimal() and len(part) < 10 else (True, 0, part)
        for part in problem.path.split(".")
    ]
