"""Opens the source of each point of a sweep, and what a file with an axis of sources is put on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from setpoint.cli.options import Arguments
from setpoint.cli.source import open_source
from setpoint.config import (
    SUFFIXES,
    Composition,
    Document,
    MigratedDocument,
    Origin,
    SetpointError,
    is_mapping,
    preset_named,
    presets,
    read_file,
    unknown_preset,
)
from setpoint.sweep.config import Search, SweepFile
from setpoint.sweep.search import Axes
from setpoint.sweep_space.distribution import Choice, Distribution
from setpoint.sweep_space.flags import CommandLine, refuse_misspelt_distributions
from setpoint.sweep_space.setting import SOURCE, Raw, Setting, axis_origin, path_of
from setpoint.sweep_space.space import Axis, Path, Product, Random, Space
from setpoint.sweep_space.table import TABLE, flattened, mentions, place_in, read_table, space_of

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
        return MigratedDocument(file, data, lambda path: path)

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


def space_of_call(
    arguments: Arguments, line: CommandLine, document: Document | None, has_sources: bool
) -> tuple[Search | None, Axes, Space]:
    """What is varied, by the file and by the command line.

    Arguments:
        document: the file with the table `[sweep]`, if there is one.

    Returns:
        the search and its axes, or else None, nothing, and the points.

    Raises:
        SetpointError: if the two contradict each other.
    """
    parts: list[Space] = []
    search: Search | None = None
    axes: Axes = {}
    if document is not None:
        table = read_table(SweepFile, document).sweep
        place = place_in(document)
        if table.search is not None:
            search = table.search
            axes = {path_of(key): drawn.distribution for key, drawn in search.axes.items()}
            origins = {
                path: axis_origin(key, lambda _, key=key: place((TABLE, "search", "axes", key)))
                for path, key in zip(axes, search.axes, strict=True)
            }
            _refuse_fixed(line, origins, has_sources, arguments)
        else:
            space = space_of(table, place, (TABLE,))
            _refuse_fixed(line, space.paths, has_sources, arguments)
            parts.append(space)
    parts.extend(line.axes)
    drawn = {path: (value.distribution, text) for path, (value, text) in line.drawn.items()}
    count = arguments.integer("--random")
    trials = arguments.integer("--search")
    if count is not None or trials is not None:
        refuse_misspelt_distributions(line)
    if search is not None and (count is not None or line.axes or drawn):
        raise SetpointError(
            "the file describes a search, which stands alone; give neither --random nor several "
            "values beside it"
        )
    if trials is not None or search is not None:
        if trials is not None and search is None:
            search, axes = _search(arguments, line, drawn, count, trials)
        elif trials is not None or _searches(arguments):
            assert search is not None
            search = _changed(search, arguments, trials)
        return search, axes, Product([])
    if _searches(arguments):
        raise SetpointError("--objective and --direction have no effect without a search")
    if count is not None:
        if not drawn:
            raise SetpointError(
                "--random N draws values, and none is to be drawn; for instance "
                "--optimizer.lr 'log_uniform(1e-5, 1e-2)'"
            )
        origins = {p: (d, axis_origin(label)) for p, (d, label) in drawn.items()}
        parts.append(Random(origins, count, arguments.integer("--draw-seed", 0) or 0))
    elif drawn:
        label = next(iter(drawn.values()))[1]
        searches = any(option.name == "--search" for option in arguments.command.options)
        raise SetpointError(
            f"{label} is a distribution; say how many points are drawn with --random N"
            + (", or searched with --search N" if searches else "")
        )
    elif arguments.has("--draw-seed"):
        raise SetpointError("--draw-seed has no effect without --random or --search")
    return None, {}, Product(parts)


def _searches(arguments: Arguments) -> bool:
    return arguments.has("--objective") or arguments.has("--direction")


def _search(
    arguments: Arguments,
    line: CommandLine,
    drawn: dict[tuple[str, ...], tuple[Distribution, str]],
    count: int | None,
    trials: int,
) -> tuple[Search, Axes]:
    """A search whose axes are those of the command line."""
    if count is not None:
        raise SetpointError("--random and --search contradict each other; give one")
    axes: Axes = {}
    for axis in line.axes:
        axes[axis.path] = _choice(axis)
    for path, (distribution, _) in drawn.items():
        axes[path] = distribution
    if not axes:
        raise SetpointError(
            "--search N needs something to search; for instance "
            "--optimizer.lr 'log_uniform(1e-5, 1e-2)'"
        )
    return _changed(Search(trials=trials), arguments, trials), axes


def _choice(axis: Axis) -> Choice:
    return Choice(values=tuple(Raw(value) for value in axis.values))


def _changed(search: Search, arguments: Arguments, trials: int | None) -> Search:
    """A search with what the command line says of it."""
    changed = search.evolve()
    if trials is not None:
        changed.trials = trials
    changed.objective = arguments.value("--objective") or search.objective
    direction = arguments.value("--direction")
    if direction is not None:
        if direction not in ("minimize", "maximize"):
            raise SetpointError(f"--direction must be minimize or maximize, got {direction!r}")
        changed.direction = direction
    seed = arguments.integer("--draw-seed", 0)
    if seed is not None:
        changed.seed = seed
    return changed


def _refuse_fixed(
    line: CommandLine, paths: Mapping[Path, Origin], has_sources: bool, arguments: Arguments
) -> None:
    """A field of the file's sweep that the command line sets would be an axis without effect."""
    fixed = {**line.fixed, **{axis.path: "an axis" for axis in line.axes}}
    fixed.update({path: label for path, (_, label) in line.drawn.items()})
    for path, origin in paths.items():
        if path in fixed:
            raise SetpointError(
                f"{'.'.join(path)} is varied by the file ({origin.describe(path)}) and is given "
                f"on the command line as well ({fixed[path]}); leave one of them out"
            )
        if path == (SOURCE,) and not has_sources:
            raise SetpointError(
                f"{origin.describe(path)}: an axis of sources stands in the file that is itself "
                f"the source of the sweep; or give the sources on the command line: "
                f"{arguments.command.title} A,B"
            )
