"""Origins of values: one for each layer that sets a value."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from ..words.names import Path

# First line, last line, first column and last column of a piece of source.
Span = tuple[int | None, int | None, int | None, int | None]

DEFAULT = "default"
PRESET = "preset"
MODIFIER = "modifier"
FILE = "file"
ENVIRONMENT = "environment"
COMMAND_LINE = "command line"
SWEEP = "sweep"
PROGRAM = "program"
DERIVED = "derived"
REFERENCE = "reference"
RECORD = "record"
_KERNEL = "setpoint.config."
_count = itertools.count()
# Presets and modifiers run ordinary Python; their assignments are attributed to them, not to
# "program". The pair is (layer, label) of the innermost such function running in this thread.
_running: ContextVar[tuple[str, str]] = ContextVar("running", default=(PROGRAM, ""))


class Origin:
    """One source of one value.

    Arguments:
        label: name of the preset, file, variable or flag.
        find: `file:line[:column]`, or a function that finds it for a path inside the source.
        order: position among all layers, higher for later ones; None for the latest. A layer with
            fragments is ordered after them.
    """

    __slots__ = ("_find", "label", "layer", "order")

    def __init__(
        self,
        layer: str,
        label: str = "",
        find: Callable[[Path], str | None] | str | None = None,
        order: float | None = None,
    ) -> None:
        self.layer = layer
        self.label = label
        self.order: float = next(_count) if order is None else order
        self._find = find

    def applied(self) -> Origin:
        """Copy the origin as the latest layer, so that its values can be applied again."""
        return Origin(self.layer, self.label, self._find)

    def moved(self, old: Path, new: Path) -> Origin:
        """The origin for values inside a list item that a later layer moved from `old` to `new`."""
        find, depth = self._find, len(new)
        if not callable(find) or self.layer not in (FILE, RECORD):
            return self  # its place does not depend on the path

        def find_old(path: Path) -> str | None:
            return find((*old, *path[depth:]) if path[:depth] == new else path)

        return Origin(self.layer, self.label, find_old, self.order)

    def place(self, path: Path) -> str | None:
        """The place of a value in its source, `file:line[:column]`, if the layer has text."""
        return self._find(path) if callable(self._find) else self._find

    def describe(self, path: Path) -> str:
        """Describe the origin, for example `preset tiny (presets/tiny.py:20)` or `exp.toml:3:1`."""
        place = self.place(path)
        if self.layer == FILE:
            return place or self.label
        if self.layer == RECORD:
            return f"record {place or self.label}"
        if self.layer == ENVIRONMENT:
            return f"environment variable {self.label}"
        if self.layer == COMMAND_LINE:
            return f"command line {self.label}"
        name = f"{self.layer} {self.label}".strip()
        return f"{name} ({place})" if place else name

    def __reduce__(self) -> tuple[Any, ...]:
        # Finders refer to code or whole files, which other processes do not need; see `fixed`.
        find = None if callable(self._find) else self._find
        return _unpickled, (Origin, self.layer, self.label, find, self.order)

    def fixed(self, name: str) -> Origin:
        """The same origin for another process, with its place in Python code written out.

        Arguments:
            name: the field; a place in a file would need the whole path, and is omitted.
        """
        place = None if self.layer in (FILE, RECORD) else self.place((name,))
        return Origin(self.layer, self.label, place, self.order)

    def __repr__(self) -> str:
        return f"Origin({self.layer!r}, {self.label!r})"


# The origin of values that no layer has set.
UNTOUCHED = Origin(DEFAULT)


class Recorded(Origin):
    """A recorded origin, as described by the process that wrote the record."""

    __slots__ = ("text",)

    def __init__(self, layer: str, text: str, order: float | None = None) -> None:
        super().__init__(layer, order=order)
        self.text = text

    def describe(self, path: Path) -> str:
        return self.text

    def fixed(self, name: str) -> Origin:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (Recorded, self.layer, self.text, self.order)


def _unpickled(cls: Callable[..., Origin], *arguments: Any) -> Origin:
    """An origin from another process, in its order but before everything set by this process."""
    global _count
    *_, order = arguments
    _count = itertools.count(max(int(order), next(_count)) + 1)
    return cls(*arguments[:-1], order=order)


@contextmanager
def running(layer: str, label: str) -> Generator[None]:
    """Attribute assignments inside a `with` block to a preset or a modifier."""
    token = _running.set((layer, label))
    try:
        yield
    finally:
        _running.reset(token)


def python_origin(depth: int) -> Origin:
    """The origin of an assignment or constructor call in Python code.

    Arguments:
        depth: number of frames between the caller of this function and the user's line.
    """
    frame = sys._getframe(depth + 1)  # pyright: ignore[reportPrivateUsage]
    # A frame would keep all its local variables alive; code and offset do not.
    code, offset = frame.f_code, frame.f_lasti

    def find(path: Path) -> str:
        return f"{short_name(code.co_filename)}:{_line_of(code, offset, path)}"

    return Origin(*_running.get(), find)


def outside_origin(package: str = _KERNEL) -> Origin:
    """The origin of a change inside a list or mapping: the innermost line outside a package.

    Arguments:
        package: the start of its modules' names; the kernel's.
    """
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    depth = 0
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(package):
        frame, depth = frame.f_back, depth + 1
    return python_origin(depth + 1)


def _line_of(code: CodeType, offset: int, path: Path) -> int:
    """The line of the keyword `path[-1]` if the instruction is a call naming it, else its own."""
    positions = next(islice(code.co_positions(), offset // 2, None), None)
    if positions is None or positions[0] is None:
        return code.co_firstlineno
    first, last = positions[0], positions[1] or positions[0]
    if first == last or not path:
        return first
    keywords = _keyword_lines(code.co_filename).get((first, last, positions[2], positions[3]), {})
    return keywords.get(str(path[-1]), first)


@functools.cache
def _keyword_lines(filename: str) -> dict[Span, dict[str, int]]:
    """The lines of the keywords in every call in a file that spans several lines."""
    import ast
    import linecache

    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return {}
    return {
        (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset): {
            keyword.arg: keyword.lineno for keyword in node.keywords if keyword.arg
        }
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.lineno != node.end_lineno
    }


def short_name(filename: str) -> str:
    """A file's name relative to the working folder, or to a folder of `sys.path`."""
    import os

    try:
        for folder in (os.getcwd(), *sorted(sys.path, key=len, reverse=True)):
            if folder and filename.startswith(folder.rstrip(os.sep) + os.sep):
                return os.path.relpath(filename, folder)
    except OSError:  # the working folder is gone
        return filename
    return os.path.normpath(filename)
