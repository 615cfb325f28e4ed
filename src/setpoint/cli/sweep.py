"""`setpoint sweep` and the `sweep` of scripts: many points, all checked before any starts."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from setpoint.cli.main import INSTALL, has_torch
from setpoint.cli.options import COMMON, JSON, Arguments, Command, Option, refuse_misspelt_options
from setpoint.cli.output import bold, dim, emit, print_notes, styled, table
from setpoint.cli.source import open_source, prepare
from setpoint.config import (
    NEEDS,
    Caution,
    Composition,
    Config,
    FileDocument,
    Origin,
    Problem,
    SetpointError,
    is_mapping,
    plural,
    verify,
)
from setpoint.config.files.file_document import names_file, without_suffix
from setpoint.config.files.read import read_file
from setpoint.config.layers.environment_variables import prefix_of
from setpoint.config.layers.extends import EXTENDS
from setpoint.config.layers.presets import UnknownPreset, preset_named, presets
from setpoint.config.migrations import MigratedDocument
from setpoint.report.goodput import FAILED, FINISHED, RUNNING, STOPPED
from setpoint.report.table import number_cell
from setpoint.sweep.optuna_search import Axes, optuna_missing
from setpoint.sweep.points import (
    LIMIT,
    Composer,
    PointChecker,
    ResolvedPoint,
    SweepCommandLine,
    read_command_line,
    refuse_misspelt_distributions,
    resolve_points,
)
from setpoint.sweep.run_metrics import TRAINING_LOSS
from setpoint.sweep.run_sweep import (
    JobPointChecker,
    PreparedSweep,
    name_experiment,
    prepare_sweep,
    run_sweep,
)
from setpoint.sweep.setting import SOURCE, Raw, Setting, axis_origin
from setpoint.sweep.space import Choices, Distribution, Product, RandomPoints, Space
from setpoint.sweep.sweep_file import OBJECTIVE, TABLE, Search, flattened, mentions, read_space
from setpoint.sweep.sweep_record import POINTS, SWEEP_FILE, SweepTask, read_record_of
from setpoint.track.console import short_time

FOLDER = "--folder"
TAKEN = (
    Option("--jobs N", "Number of points that run at a time; default 1."),
    Option("--dry-run", "Print the points and the planned action for each."),
    Option("--limit N", f"Maximum number of points; default {LIMIT}."),
    Option("--random N", "Random search with this many points."),
)
"""Options of both commands."""
DRAW_SEED = Option("--draw-seed N", "Seed of --random and --search; default 0.", at_least=0)


@Command(
    "sweep SOURCE [OVERRIDES]",
    *TAKEN,
    Option("--search N", "Sequential search with this many points in all.", excludes="--random"),
    Option("--objective PATH", f"Metric to optimize; default {OBJECTIVE}."),
    Option("--direction minimize|maximize", "Goal of --objective."),
    DRAW_SEED,
    *COMMON,
    JSON,
)
def sweep(arguments: Arguments) -> int:
    """Train every combination of the given values: a grid, random points or a search.

    `--optimizer.lr 1e-4,3e-4 --seed 1,2` is a grid of four points. Commas separate points, also in
    SOURCE and in --with; a list as a single point is written in brackets. A file with a table
    [sweep] describes points of any kind, which are combined with those of the command line. All
    points are resolved and checked before any is started. The runs are in workspace/experiment,
    with their results in sweep.json; repeating the command skips finished points and resumes the
    others.

    With --random N, values are drawn from distributions: 'log_uniform(1e-5, 1e-2)', 'uniform(0,
    1)', 'integer(2, 8)', 'choice(a, b)'; with --search N each point is proposed from the results of
    earlier ones.

    Examples:
        setpoint sweep tiny --optimizer.lr 1e-4,3e-4 --seed 1,2  a grid of four points
        setpoint sweep tiny --with null,reproducible --dry-run  print the points only
        setpoint sweep lr.toml --jobs 2  the points of a file, two at a time
        setpoint sweep tiny --random 9 --seed 'integer(1, 99)'  nine random points
    """
    refuse_misspelt_options(arguments)
    source, checker = arguments.positional[0], JobPointChecker()
    composer, search, axes, space = read_call(arguments, name_experiment(source), checker)
    prepared = prepare_sweep(
        source, composer, checker, search, axes, space,
        limit=arguments.integer("--limit") or LIMIT, imports=arguments.values("--import"),
    )  # fmt: skip
    return carry_out(prepared, arguments)


def carry_out(prepared: PreparedSweep, arguments: Arguments) -> int:
    """Print what would happen, or launch and report."""
    jobs = arguments.integer("--jobs") or 1
    screen = Screen(prepared, arguments)
    if arguments.has("--dry-run"):
        emit(arguments, screen.plan_facts, screen.plan_text)
        if prepared.search is not None and (missing := optuna_missing()):
            print_notes([missing])
        return 0
    if prepared.command is None and not has_torch():
        raise SetpointError(INSTALL.format("torch"))
    return run_sweep(prepared, jobs, screen, prefix_of(arguments.command.program.root)).status


class Screen:
    """Progress of a sweep: on standard output, or on standard error with JSON."""

    def __init__(self, prepared: PreparedSweep, arguments: Arguments) -> None:
        self.prepared = prepared
        self.arguments = arguments
        self.stream = sys.stderr if arguments.has("--json") else sys.stdout

    def say(self, text: str) -> None:
        """Print a line immediately."""
        print(text, file=self.stream, flush=True)

    def plan_facts(self) -> dict[str, Any]:
        """The points and the planned action for each, as plain data."""
        prepared = self.prepared
        points = [{**task.to_json(), "plan": task.plan()} for task in prepared.tasks]
        facts: dict[str, Any] = {"ok": True, "folder": str(prepared.folder), "points": points}
        if prepared.search is not None:
            facts["search"] = prepared.describe_search()
        facts["duplicates"] = [point.to_json() for point in prepared.duplicates]
        for name, kind in (("cautions", "caution"), ("dropped", "dropped")):
            facts[name] = [r.to_json() for r in prepared.notes if r.kind == kind]
        return facts

    def plan_text(self) -> str:
        """The points and the planned action for each, as text."""
        prepared = self.prepared
        if prepared.search is not None:
            rows = [(f"  {name}", str(value)) for name, value in prepared.describe_search().items()]
            lines = [bold(f"{prepared.folder}: a search"), table(rows)]
        else:
            points = [(task.name, str(task.run), task.plan()) for task in prepared.tasks]
            lines = [
                bold(f"{prepared.folder}: {plural(len(points), 'point')}"),
                table(points, ("point", "run directory", "plan")),
            ]
        return "\n".join([*lines, *self._notes()])

    def begin(self, tasks: list[SweepTask]) -> None:
        """Print the number of points."""
        search, folder = self.prepared.search, self.prepared.folder
        if search is not None:
            trials, done = plural(search.trials, "trial"), plural(len(tasks), "trial")
            self.say(f"{folder}: a search for {trials}, {done} before")
        else:
            finished = sum(task.status == FINISHED for task in tasks)
            finished_before = f", {finished} of them finished before" if finished else ""
            self.say(f"{folder}: {plural(len(tasks), 'point')}{finished_before}")
        notes = self._notes()
        if notes:
            self.say("\n".join(notes) + "\n" * bool(self.prepared.notes))

    def changed(self, task: SweepTask, tasks: list[SweepTask]) -> None:
        """Print that a point started or ended."""
        total = len(tasks) if self.prepared.search is None else self.prepared.search.trials
        ended = sum(task.status in (FINISHED, FAILED, STOPPED) for task in tasks)
        count = dim(f"[{ended}/{total}]")
        if task.status == RUNNING:
            how = f"resumes at step {task.state.step}" if task.state.step else "starts"
            self.say(f"{count} {task.name} {how}")
            return
        took = f" in {short_time(task.seconds)}" if task.seconds is not None else ""
        result = f": {task.reason}"
        if task.status == FINISHED:
            results = (
                f"  {words} {number_cell(task.metrics[name])}"
                for name, words in ((OBJECTIVE, "held-out loss"), (TRAINING_LOSS, "loss"))
                if name in task.metrics
            )
            result = next(results, "")
        self.say(f"{count} {task.name} {task.status}{took}{result}")

    def end(self, tasks: list[SweepTask], record: dict[str, Any]) -> None:
        """Print the results of the sweep."""
        failed = [task for task in tasks if task.status == FAILED]
        facts = {"ok": not failed, "folder": str(self.prepared.folder), **record}
        emit(self.arguments, facts, lambda: "\n".join(self._end_lines(tasks, failed, record)))

    def _end_lines(
        self, tasks: list[SweepTask], failed: list[SweepTask], record: dict[str, Any]
    ) -> Iterator[str]:
        counts = {
            status: sum(task.status == status for task in tasks)
            for status in dict.fromkeys(task.status for task in tasks)
        }
        yield "; ".join(f"{count} {status}" for status, count in counts.items())
        search = record.get("search", {})
        yield from search.get("rejected", ())
        best = search.get("best")
        if self.prepared.search is not None and best is None:
            yield f"no trial has a {self.prepared.search.objective} yet"
        if best is not None:
            yield f"best: {best['point']}, {number_cell(best['value'])}  {best['run']}"
        over = ""
        losses = {task: task.metrics.get(OBJECTIVE, math.nan) for task in tasks}
        finite = [task for task in tasks if math.isfinite(losses[task])]
        if self.prepared.search is None and len(finite) > 1:
            lowest = min(finite, key=lambda task: losses[task])
            loss = number_cell(losses[lowest])
            yield f"lowest held-out loss: {lowest.name}, {loss}  {lowest.run}"
            seeds = {item.value for task in tasks for item in task.point.point
                     if item.path == ("seed",)}  # fmt: skip
            over = " --over seed" * (len(seeds) > 1)
        for task in failed:
            yield f"{styled('failed:', '1;31')} {task.name}: {task.reason}\n  see {task.log}"
        if any(task.metrics for task in tasks):
            yield f"setpoint compare {self.prepared.folder}{over} shows the results"

    def _notes(self) -> list[str]:
        """Notes about omitted points, and cautions."""
        lines = [f"left out {duplicate.describe()}" for duplicate in self.prepared.duplicates]
        return [*lines, *(f"\n{note.render()}" for note in self.prepared.notes)]


class ScriptTask(SweepTask):
    """A point of a script that trains in its own way."""

    def __init__(self, point: ResolvedPoint[Config], folder: Path, finished: bool) -> None:
        super().__init__(point, folder, folder / POINTS / point.name)
        if finished:
            self.status = FINISHED

    def read_state(self) -> None:
        """Do nothing, since nothing can be read; the sweep's record states what is finished."""

    def read_metrics(self) -> None:
        """Do nothing, since a script's metrics are unknown."""

    def plan(self) -> str:
        """Planned action, in a few words."""
        return "skip: finished" if self.status == FINISHED else "start"


@Command(
    "sweep SOURCE [OVERRIDES]",
    *TAKEN,
    DRAW_SEED._replace(help="Seed of --random; default 0.", requires="--random"),
    Option(f"{FOLDER} DIRECTORY", "Folder of the sweep; default: sweeps/SCRIPT-SOURCE."),
    *COMMON,
    JSON,
)
def sweep_script(arguments: Arguments) -> int:
    """Run the script with every combination of the given values.

    `--lr 1e-4,3e-4 --seed 1,2` is a grid of four points. Commas separate points, also in SOURCE and
    in --with; a list as a single point is written in brackets. A file with a table [sweep]
    describes points of any kind. All points are resolved and checked before any is started; each
    runs in a separate process. The folder of the sweep contains the record and output of each
    point, and sweep.json the results; repeating the command skips points that ended with status 0.
    With --random N, values such as 'log_uniform(1e-5, 1e-2)', 'integer(2, 8)' and 'choice(a, b)'
    are drawn.
    """
    refuse_misspelt_options(arguments)
    source = arguments.source or ""
    checker: PointChecker[Config] = PointChecker(_look)
    composer, search, _, space = read_call(arguments, lambda draft: None, checker)
    if search is not None:
        raise SetpointError(
            f"{source}: a search needs results, which a script does not report; give a grid, a "
            f"list or random points"
        )

    points = resolve_points(space, composer, arguments.integer("--limit") or LIMIT)
    folder = Path(arguments.value(FOLDER) or _default_folder(source))
    before = read_record_of(folder) if (folder / SWEEP_FILE).exists() else []
    finished = {point["fingerprint"] for point in before if point["status"] == FINISHED}
    tasks: list[SweepTask] = [
        ScriptTask(point, folder, point.fingerprint in finished) for point in points.kept
    ]
    return carry_out(
        PreparedSweep(source or "the defaults", folder, tasks, points.duplicates,
                 arguments.values("--import"), checker.notes(points.kept), _script_command),
        arguments,
    )  # fmt: skip


def _script_command(task: SweepTask, modules: Sequence[str]) -> list[str]:
    """The command of a point: the script as it was started, with the record as SOURCE."""
    imports = [word for name in modules if name != "__main__" for word in ("--import", name)]
    return [sys.executable, *_script(), str(task.folder), *imports]


def _script() -> list[str]:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return ["-m", spec.name.removesuffix(".__main__")] if spec is not None else [sys.argv[0]]


def _default_folder(source: str) -> Path:
    script = _script()[-1].rpartition("/")[2].removesuffix(".py")
    names = script, without_suffix(source)
    words = [re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:40] for name in names]
    return Path("sweeps", "-".join(word for word in words if word))


def _look(config: Config) -> tuple[list[Problem], list[Caution]]:
    # Checks that need torch run in the process of each point, which imports it anyway.
    verification = verify(config, [need for need in NEEDS if need != "torch"])
    return list(verification.problems), list(verification.cautions)


def read_call(
    arguments: Arguments, finish: Callable[[Any], None], checker: PointChecker[Any]
) -> tuple[Composer[Any], Search | None, Axes, Space]:
    """Read the files, and the axes of the files and the command line."""
    prepare(arguments)  # its classes have fields that the overrides may set
    root, source = arguments.command.program.root, arguments.source or ""
    line = read_command_line(root, source, arguments.values("--with"), arguments.overrides)
    opener = Opener(arguments, line)
    composer = Composer(opener, line, finish, checker)
    if line.source == "-" and None in line.modifiers:
        raise SetpointError(
            "standard input can be read only once, but several modifiers need it several times; "
            "save it as a file"
        )
    if line.source is not None and opener.file is None:
        composer.base()  # reads the file and its table of the sweep
    search, axes, space = _space(arguments, line, opener.document, opener.file is not None)
    return composer, search, axes, space


class Opener:
    """Composes a source without the overrides, and keeps the table `[sweep]` of a file."""

    def __init__(self, arguments: Arguments, line: SweepCommandLine) -> None:
        self._arguments = arguments
        self._line = line
        self.document: FileDocument | None = None
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
                    f"{table.where((TABLE,))}: describes its own points, and cannot be combined "
                    f"with several sources; give one source, or the axis `{SOURCE}` in that table"
                )
            return composition
        if self.file is None:
            self.document = table
        elif table is not None and table.name != self.file.name:
            raise SetpointError(
                f"{table.where((TABLE,))} and {self.file.where((TABLE,))} both describe the points "
                f"of a sweep; remove one of the tables"
            )
        composition.sweep = None
        return composition

    def _file_of_sources(self, source: str | None) -> FileDocument | None:
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
                f"{document.where((EXTENDS,))}: `{EXTENDS}` and the axis `{SOURCE}` both set what "
                f"the file extends; make it a value of the axis, or remove one of the two"
            )
        return document

    def _put_on(self, below: Setting) -> FileDocument:
        """The file, extending one value of its axis of sources."""
        file = self.file
        assert file is not None  # the axis is refused for other files
        parent = self._parent(file, below)
        data = {EXTENDS: parent, **file.data}
        return MigratedDocument(file, data, lambda path: path)

    def _parent(self, file: FileDocument, below: Setting) -> str:
        text = below.value
        if not isinstance(text, str) or not text:
            raise SetpointError(f"{text!r} is not a source: expected the name of a preset or file")
        if names_file(text):
            path = os.path.join(os.path.dirname(file.name), os.path.expanduser(text))
            if not os.path.exists(path):
                raise SetpointError(f"there is no file {path}")
            other = read_file(path)
            if TABLE in other.data:
                raise SetpointError(
                    f"{other.where((TABLE,))}: describes its own points, so {text} cannot be "
                    f"one of several sources"
                )
        elif ":" in text.partition("(")[0]:
            raise SetpointError(
                f"{text!r} would be imported, but files cannot import code; register the function "
                f"as a preset and import its module with --import"
            )
        elif not preset_named(text):
            reason = UnknownPreset("preset", text.partition("(")[0], presets)
            raise SetpointError(f"{text}: {reason}")
        return str(text)


def _space(
    arguments: Arguments, line: SweepCommandLine, document: FileDocument | None, has_sources: bool
) -> tuple[Search | None, Axes, Space]:
    """The search and its axes, or the space of points, from the file and the command line."""
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
            "the file describes a search, which cannot be combined with --random or several values"
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
            f"{label} is a distribution; give the number of points to draw with --random N"
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
    """A search with the axes of the command line."""
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
    """Refuse a field set both by the file's sweep and by the command line."""
    fixed = {**line.fixed, **{axis.path: "an axis" for axis in line.axes}}
    fixed.update({path: label for path, (_, label) in line.drawn.items()})
    for path, origin in paths.items():
        if path in fixed:
            raise SetpointError(
                f"{'.'.join(path)} is varied by the file ({origin.describe(path)}) and also set "
                f"on the command line ({fixed[path]}); remove one of them"
            )
        if path == (SOURCE,) and not has_sources:
            raise SetpointError(
                f"{origin.describe(path)}: an axis of sources must be in the file that is the "
                f"source of the sweep; or give the sources on the command line: "
                f"{arguments.command.title} A,B"
            )
