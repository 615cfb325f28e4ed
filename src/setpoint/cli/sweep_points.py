"""The points, or the search, of a command line of `setpoint sweep`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, cast

from setpoint.cli.options import Arguments
from setpoint.cli.source import open_source
from setpoint.cli.source import prepare as import_what_is_named
from setpoint.config import (
    Composition,
    Document,
    Origin,
    SetpointError,
    is_mapping,
)
from setpoint.config.files.document import names_file
from setpoint.config.files.read import read_file
from setpoint.config.layers.presets import preset_named, presets, unknown_preset
from setpoint.config.migrations import MigratedDocument
from setpoint.sweep.optuna_search import Axes
from setpoint.sweep.points import (
    LIMIT,
    Composer,
    PointChecker,
    SweepCommandLine,
    read_command_line,
    refuse_misspelt_distributions,
)
from setpoint.sweep.run_sweep import (
    JobPointChecker,
    PreparedSweep,
    name_experiment,
    prepare_sweep,
)
from setpoint.sweep.setting import (
    SOURCE,
    Raw,
    Setting,
    axis_origin,
)
from setpoint.sweep.space import Choices, Distribution, Product, RandomPoints, Space
from setpoint.sweep.sweep_file import (
    TABLE,
    Search,
    flattened,
    mentions,
    read_space,
)

EXTENDS = "extends"


def read_call(
    arguments: Arguments, finish: Callable[[Any], None], checker: PointChecker[Any]
) -> tuple[Composer[Any], Search | None, Axes, Space]:
    """Read the files and the axes, theirs and those of the command line."""
    import_what_is_named(arguments)  # whose classes have fields that the overrides may set
    root, source = arguments.command.program.root, arguments.source or ""
    line = read_command_line(root, source, arguments.values("--with"), arguments.overrides)
    opener = Opener(arguments, line)
    composer = Composer(opener, line, finish, checker)
    if line.source == "-" and None in line.modifiers:
        raise SetpointError(
            "standard input can be read once, and several modifiers need it several times; save "
            "it as a file"
        )
    if line.source is not None and opener.file is None:
        composer.base()  # reads the file, and with it the table of the sweep
    search, axes, space = _space(arguments, line, opener.document, opener.file is not None)
    return composer, search, axes, space


def prepare(arguments: Arguments) -> PreparedSweep:
    """Resolve and check all points."""
    source = arguments.positional[0]
    checker = JobPointChecker()
    composer, search, axes, space = read_call(arguments, name_experiment(source), checker)
    return prepare_sweep(
        source, composer, checker, search, axes, space,
        limit=arguments.integer("--limit") or LIMIT, imports=arguments.values("--import"),
    )  # fmt: skip


class Opener:
    """Composes a source without the overrides, and keeps the table `[sweep]` of a file."""

    def __init__(self, arguments: Arguments, line: SweepCommandLine) -> None:
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
        """Compose the layers below the overrides."""
        inner = Arguments(self._arguments.command)
        inner.noted = self._arguments.noted
        inner.options = {**self._arguments.options, "--with": list(modifiers)}
        opened = source if below is None else self._put_on(below)
        composition: Composition[Any] = open_source(opened or None, inner)
        table = composition.sweep
        if self._line.source is None:
            if table is not None:
                raise SetpointError(
                    f"{table.where((TABLE,))}: describes points of its own, and cannot be combined "
                    f"with several sources; give one source, or the axis `{SOURCE}` in that table"
                )
            return composition
        if self.file is None:
            self.document = table
        elif table is not None and table.name != self.file.name:
            raise SetpointError(
                f"{table.where((TABLE,))} and {self.file.where((TABLE,))} both describe the points "
                f"of a sweep; leave one of the tables out"
            )
        composition.sweep = None
        return composition

    def _file_of_sources(self, source: str | None) -> Document | None:
        if source is None or preset_named(source) or not names_file(source):
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
        """The file, extending one value of its axis of sources."""
        file = self.file
        assert file is not None  # the axis is refused where it is not the file's own
        parent = self._parent(file, below)
        data = {EXTENDS: parent, **file.data}
        return MigratedDocument(file, data, lambda path: path)

    def _parent(self, file: Document, below: Setting) -> str:
        text = below.value
        if not isinstance(text, str) or not text:
            raise SetpointError(f"{text!r} is no source: expected the name of a preset or file")
        if names_file(text):
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


def _space(
    arguments: Arguments, line: SweepCommandLine, document: Document | None, has_sources: bool
) -> tuple[Search | None, Axes, Space]:
    """The search and its axes, or the space of points, of the file and the command line."""
    parts: list[Space] = []
    search: Search | None = None
    axes: Axes = {}
    if document is not None:
        search, axes, origins, space = read_space(document)
        _refuse_fixed(line, origins, has_sources, arguments)
        if search is None:
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
            search, axes = _search(arguments, line, drawn, trials)
        elif trials is not None or arguments.has("--draw-seed") or _searches(arguments):
            assert search is not None
            search = _changed(search, arguments, trials)
        return search, axes, Product([])
    if _searches(arguments):
        raise SetpointError("--objective and --direction have no effect without a search")
    if count is None and arguments.has("--draw-seed"):
        raise SetpointError("--draw-seed has no effect without --random N or --search N")
    if count is not None:
        if not drawn:
            raise SetpointError(
                "--random N needs a distribution; for instance "
                "--optimizer.lr 'log_uniform(1e-5, 1e-2)'"
            )
        origins = {p: (d, axis_origin(label)) for p, (d, label) in drawn.items()}
        parts.append(RandomPoints(origins, count, arguments.integer("--draw-seed") or 0))
    elif drawn:
        label = next(iter(drawn.values()))[1]
        searches = any(option.name == "--search" for option in arguments.command.options)
        raise SetpointError(
            f"{label} is a distribution; say how many points are drawn with --random N"
            + (", or searched with --search N" if searches else "")
        )
    return None, {}, Product(parts)


def _searches(arguments: Arguments) -> bool:
    return arguments.has("--objective") or arguments.has("--direction")


def _search(
    arguments: Arguments,
    line: SweepCommandLine,
    drawn: dict[tuple[str, ...], tuple[Distribution, str]],
    trials: int,
) -> tuple[Search, Axes]:
    """A search whose axes are those of the command line."""
    choices = {a.path: Choices(values=tuple(Raw(value) for value in a.values)) for a in line.axes}
    axes: Axes = {**choices, **{path: distribution for path, (distribution, _) in drawn.items()}}
    if not axes:
        raise SetpointError(
            "--search N needs something to search; for instance "
            "--optimizer.lr 'log_uniform(1e-5, 1e-2)'"
        )
    return _changed(Search(trials=trials), arguments, trials), axes


def _changed(search: Search, arguments: Arguments, trials: int | None) -> Search:
    """A search with the options of the command line."""
    changed = search.evolve()
    if trials is not None:
        changed.trials = trials
    changed.objective = arguments.value("--objective") or search.objective
    if (direction := arguments.value("--direction")) is not None:
        changed.direction = cast("Any", direction)
    seed = arguments.integer("--draw-seed")
    if seed is not None:
        changed.seed = seed
    return changed


def _refuse_fixed(
    line: SweepCommandLine,
    paths: Mapping[tuple[str, ...], Origin],
    has_sources: bool,
    arguments: Arguments,
) -> None:
    """Refuse a field that both the file's sweep and the command line set."""
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
