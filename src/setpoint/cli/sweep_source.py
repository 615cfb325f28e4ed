"""Opens the source of each point of a sweep, and what a file with an axis of sources is put on."""

from __future__ import annotations

import os
from typing import Any

from setpoint.cli.command import Arguments
from setpoint.cli.source import open_source
from setpoint.config import (
    SUFFIXES,
    Composition,
    Document,
    Moved,
    SetpointError,
    is_mapping,
    preset_named,
    presets,
    read_file,
    unknown_preset,
)
from setpoint.sweep_space.flags import CommandLine
from setpoint.sweep_space.setting import SOURCE, Setting
from setpoint.sweep_space.table import TABLE, flattened, mentions

EXTENDS = "extends"


class Opener:
    """Composes a source without the overrides, and keeps the table of a file apart."""

    def __init__(self, arguments: Arguments, line: CommandLine) -> None:
        self._arguments = arguments
        self._line = line
        self.document: Document | None = None
        """The file with the table `[sweep]`, once one was opened."""
        self.file = self._file_of_sources(line.source)
        """The source, if it is a file whose table has an axis of sources."""
        self.document = self.file

    def __call__(
        self, source: str, modifiers: tuple[str, ...], below: Setting | None = None
    ) -> Composition[Any]:
        """Compose the layers below the overrides.

        Raises:
            SetpointError: if a layer cannot be read, or a second file describes a sweep.
        """
        inner = Arguments(self._arguments.command)
        inner.options = {**self._arguments.options, "--with": list(modifiers)}
        opened = source if below is None else self._put_on(below)
        composition: Composition[Any] = open_source(opened or None, inner)
        found = composition.sweep
        if self._line.source is None:
            if found is not None:
                raise SetpointError(
                    f"{found.where((TABLE,))}: describes points of its own, and cannot be combined "
                    f"with several sources; give one source, or the axis `{SOURCE}` in that table"
                )
            return composition
        if self.file is None:
            self.document = found
        elif found is not None and found.name != self.file.name:
            raise SetpointError(
                f"{found.where((TABLE,))} and {self.file.where((TABLE,))} both describe the points "
                f"of a sweep; leave one of the tables out"
            )
        composition.sweep = None
        return composition

    def _file_of_sources(self, source: str | None) -> Document | None:
        if source is None or preset_named(source) or not source.endswith(SUFFIXES):
            return None
        if not os.path.isfile(source):
            return None
        document = read_file(source)
        table = document.data.get(TABLE)
        if not is_mapping(table) or not mentions(flattened(table), SOURCE):
            return None
        if EXTENDS in document.data:
            raise SetpointError(
                f"{document.where((EXTENDS,))}: `{EXTENDS}` and the axis `{SOURCE}` both say what "
                f"the file is put on top of; make what it extends a value of the axis, or leave "
                f"one of the two out"
            )
        return document

    def _put_on(self, below: Setting) -> Document:
        """The file as it would be if it extended one value of its axis of sources."""
        file = self.file
        assert file is not None  # the axis is refused where it is not the file's own
        parent = self._parent(file, below)
        data = {EXTENDS: parent, **file.data}
        return Moved(file, data, lambda path: path)

    def _parent(self, file: Document, below: Setting) -> str:
        text = below.value
        if not isinstance(text, str) or not text:
            raise SetpointError(f"{text!r} is no source: expected the name of a preset or file")
        if text.endswith(SUFFIXES):
            path = os.path.join(os.path.dirname(file.name), os.path.expanduser(text))
            if not os.path.exists(path):
                raise SetpointError(f"there is no file {path}")
            other = read_file(path)
            if TABLE in other.data:
                raise SetpointError(
                    f"{other.where((TABLE,))}: describes points of its own, so {text} cannot be "
                    f"one of several sources"
                )
        elif ":" in text.partition("(")[0]:
            raise SetpointError(
                f"{text!r} would be imported, and a file imports nothing; register the function "
                f"as a preset and name its module by --import"
            )
        elif not preset_named(text):
            reason = unknown_preset("preset", text.partition("(")[0], presets)
            raise SetpointError(f"{text}: {reason}")
        return str(text)
