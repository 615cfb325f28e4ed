"""A sweep from its checked points to its results, for the command and for Python."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from setpoint.config import (
    PROGRAM,
    Caution,
    Composition,
    ConfigError,
    FileDocument,
    Origin,
    Problem,
    RunError,
    SetpointError,
    chain_of,
    compose,
    fingerprint,
    to_plain,
)
from setpoint.config.draft.walk import sections
from setpoint.config.files.file_document import FilePosition, without_suffix
from setpoint.config.values.node import value_or_missing
from setpoint.config.values.origin import COMMAND_LINE, SWEEP
from setpoint.config.values.user_code import importable_name
from setpoint.parallel.rank import launched
from setpoint.plan.preflight import preflight
from setpoint.report.goodput import FAILED, FINISHED, RUNNING, STOPPED
from setpoint.sweep.launch import Launcher
from setpoint.sweep.optuna_search import Axes, SearchRun, corners, import_optuna, trials_before
from setpoint.sweep.points import (
    LIMIT,
    Composer,
    DuplicatePoint,
    PointChecker,
    PointNote,
    ResolvedPoint,
    SweepCommandLine,
    SweepError,
    refuse_too_many,
    resolve_points,
)
from setpoint.sweep.run_metrics import EVALUATION, TRAINING_LOSS, MetricPath, unmeasured
from setpoint.sweep.setting import Point, Setting, labels, name_of
from setpoint.sweep.space import Listed, Space
from setpoint.sweep.sweep_file import TABLE, Search, read_space
from setpoint.sweep.sweep_record import SweepRecord, SweepTask
from setpoint.train.arguments import Overrides, Source, composed
from setpoint.train.config import Job

PLACES = (("workspace",), ("experiment",))
"""The fields that say where the folder of the sweep lies."""


class JobPointChecker(PointChecker[Job]):
    """Checks the points of a sweep of training jobs."""

    def __init__(self) -> None:
        super().__init__(self._check)
        self.objective: MetricPath | None = None
        """Objective of the search."""

    def _check(self, job: Job) -> tuple[list[Problem], list[Caution]]:
        report = preflight(job)
        problems = list(report.problems)
        if job.seed is None:
            reason = "is null, so it would be drawn each time and points could not be found again"
            hint = "Give a seed, or several: --seed 1,2,3"
            problems.append(Problem("seed", reason, value="null", hint=hint))
        objective = self.objective
        if objective is not None and objective.kind == EVALUATION and job.evaluation is None:
            reason = f"is null, so the objective {EVALUATION}.{objective.column} is not measured"
            hint = (
                f"Optimize another metric, such as --objective {TRAINING_LOSS}, or set evaluation."
            )
            problems.append(Problem(EVALUATION, reason, value="null", hint=hint))
        elif objective is not None and (wrong := unmeasured(job, objective)) is not None:
            problems.append(wrong)
        return problems, list(report.cautions)


@dataclass
class PreparedSweep:
    """A sweep with points that are resolved and checked.

    Arguments:
        tasks: the points; empty for a search, which has none yet.
        duplicates: the omitted points.
        notes: cautions of points, and values dropped by a change of variant.
        command: makes the command of a point from the point and the modules it needs; None: the
            command trains.
    """

    source: str
    folder: Path
    tasks: list[SweepTask]
    duplicates: list[DuplicatePoint]
    imports: Sequence[str]
    notes: list[PointNote]
    command: Callable[[SweepTask, Sequence[str]], list[str]] | None = None
    search: Search | None = None
    axes: Axes = field(default_factory=dict)
    make: Callable[[Point], ResolvedPoint[Job]] | None = None

    def open_search(self, changed: Callable[[SweepTask], None]) -> SearchRun | None:
        """Open the search; None for a sweep with known points."""
        if self.search is None or self.make is None:
            return None
        return SearchRun(self.search, self.axes, self.make, self.folder, changed)

    def describe_search(self) -> dict[str, Any]:
        """Describe the search as text and as JSON."""
        assert self.search is not None and self.make is not None
        facts = {key: value for key, value in to_plain(self.search).items() if key != "axes"}
        facts["trials before"] = trials_before(self.search, self.axes, self.make, self.folder)
        return {**facts, **{".".join(path): axis.describe() for path, axis in self.axes.items()}}


def name_experiment(source: str) -> Callable[[Job], None]:
    """Function that names the experiment of a point after the job's name, or else the source."""

    def finish(draft: Job) -> None:
        if value_or_missing(draft, "experiment") is None:
            chain = chain_of(draft, "name")
            typed = bool(chain) and chain[-1][0].layer in (COMMAND_LINE, PROGRAM)
            # A name may be a reference, which is resolved later.
            name: object = draft.name
            text = name if typed and isinstance(name, str) else without_suffix(source)
            word = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.")[:40]
            experiment = f"sweep-{word or 'stdin'}"
            draft.set_field("experiment", experiment, Origin(SWEEP, "names its folder"))

    return finish


def prepare_sweep(
    source: str,
    composer: Composer[Job],
    checker: JobPointChecker,
    search: Search | None,
    axes: Axes,
    space: Space,
    *,
    limit: int = LIMIT,
    imports: Sequence[str] = (),
) -> PreparedSweep:
    """Resolve and check all points of a sweep of training jobs; for a search, its corners.

    Raises:
        SetpointError: too many points, a field that cannot be varied, or classes of a script.
        SweepError: lists the problems of all points.
    """
    for path in [*space.paths, *axes]:
        if path in PLACES:
            raise SetpointError(
                f"{path[0]} cannot be varied: all points of a sweep are in one folder, "
                f"workspace/experiment"
            )

    def make(point: Point) -> ResolvedPoint[Job]:
        config = composer.resolve(point)
        name = name_of(point, labels(axes))
        return ResolvedPoint(name, point, config, fingerprint(config))

    if search is not None:
        refuse_too_many(search.trials, limit)
        checker.objective = MetricPath.parse(search.objective)
        points = resolve_points(Listed(corners(axes)), composer, LIMIT * 10)
    else:
        points = resolve_points(space, composer, limit)
    jobs = [point.config for point in points.kept]
    refuse_own_classes(jobs)
    folder = _folder(jobs)
    if search is not None:
        notes = checker.notes(points.kept)
        return PreparedSweep(
            source, folder, [], [], imports, notes, search=search, axes=axes, make=make
        )
    tasks = [SweepTask(point, folder) for point in points.kept]
    wrong: dict[str, list[Problem]] = {}
    for task in tasks:
        try:
            task.read_state()
        except ConfigError as error:
            wrong[task.name] = list(error.problems)
        except SetpointError as error:
            wrong[task.name] = [Problem("", str(error))]
    if wrong:  # existing runs that cannot be resumed
        raise SweepError(wrong, len(tasks))
    notes = checker.notes(points.kept)
    return PreparedSweep(source, folder, tasks, points.duplicates, imports, notes)


def refuse_own_classes(jobs: Iterable[Job]) -> None:
    """Refuse configurations with classes of the running script, which no point could import.

    Raises:
        SetpointError: a class is of the script.
    """
    modules = {type(section).__module__ for job in jobs for _, section in sections(job)}
    if "__main__" in map(importable_name, modules):
        raise SetpointError(
            "the script or notebook defines config classes itself, which the processes of the "
            "points cannot import; move them into a module"
        )


def _folder(jobs: Sequence[Job]) -> Path:
    folders = {Path(os.path.expanduser(job.workspace)) / str(job.experiment) for job in jobs}
    if len(folders) > 1:
        raise SetpointError(
            f"all points of a sweep must be in one folder, but these sources are in "
            f"{', '.join(sorted(map(str, folders))[:4])}; give one --experiment for all"
        )
    return folders.pop()


class Watcher(Protocol):
    """Shows the progress of a sweep."""

    def begin(self, tasks: list[SweepTask]) -> None:
        """Show the number of points."""

    def changed(self, task: SweepTask, tasks: list[SweepTask]) -> None:
        """Show that a point started or ended."""

    def end(self, tasks: list[SweepTask], record: dict[str, Any]) -> None:
        """Show the results."""


class SweepResult(NamedTuple):
    """The result of a sweep.

    Arguments:
        folder: contains `sweep.json` and the folders of the points.
        points: each with its `status`, `reason`, `run`, `metrics` and configuration, `job`.
        best: the best trial of a search: its number, value, point and run.
        status: exit status of the command: 0 done, 1 a point failed, 75 or 130 stopped.
    """

    folder: Path
    points: list[SweepTask]
    best: dict[str, Any] | None
    status: int


def run_sweep(
    prepared: PreparedSweep, jobs: int, watcher: Watcher | None = None, prefix: str = "SETPOINT__"
) -> SweepResult:
    """Run all points that are not finished, `jobs` at a time, and record their results.

    Their processes do not inherit environment variables with the prefix.

    Raises:
        RunError: no trial of a search can have a result.
    """
    if prepared.search is not None and prepared.command is None:
        import_optuna()
    record = SweepRecord(prepared.folder, prepared.source, prepared.duplicates)
    try:
        return _run(prepared, record, jobs, watcher, prefix)
    finally:
        record.close()


def _run(
    prepared: PreparedSweep, record: SweepRecord, jobs: int, watcher: Watcher | None, prefix: str
) -> SweepResult:
    tasks, details, best = prepared.tasks, dict[str, Any](), None

    def changed(task: SweepTask) -> None:
        record.write(tasks, **details)
        if watcher is not None:
            watcher.changed(task, tasks)

    search = prepared.open_search(changed)
    if search is not None:
        tasks = search.tasks
    record.recall(tasks)
    record.write(tasks, **details)
    if watcher is not None:
        watcher.begin(tasks)
    try:
        with Launcher(jobs, changed, prepared.command, prepared.imports, prefix) as launcher:
            if search is None:
                launcher.run([task for task in tasks if task.status != FINISHED])
            else:
                search.run(launcher)
                best = search.best()
                facts = {"best": best, "trials": search.counts()}
                details["search"] = {**facts, "rejected": search.rejected}
    except RunError:
        for task in tasks:
            task.status = STOPPED if task.status == RUNNING else task.status
        record.write(tasks, **details)
        raise
    written = record.write(tasks, **details)
    if watcher is not None:
        watcher.end(tasks, written)
    if launcher.stopped is not None:
        status = launcher.stopped
    elif any(task.status == FAILED for task in tasks):
        status = 1
    elif any(task.status == STOPPED for task in tasks):
        status = 75  # a point stopped from outside resumes when the sweep is repeated
    else:
        status = 1 if search is not None and best is None else 0
    return SweepResult(prepared.folder, tasks, best, status)


def sweep(
    source: Source,
    overrides: Overrides = (),
    *,
    points: Mapping[str, object] | None = None,
    jobs: int = 1,
    dry_run: bool = False,
    limit: int = LIMIT,
) -> SweepResult:
    """Train a job at many points, all of which are checked first, like `setpoint sweep`.

    Each point is a process. Repeating the call skips finished points and resumes the others.

    Arguments:
        source: see `train`.
        overrides: see `train`; they apply to every point.
        points: the table `[sweep]` of a file, as `{"grid": {"optimizer.lr": [1e-4, 3e-4]}}`; None:
            the table in the source file.
        jobs: number of points that run at a time.
        dry_run: whether to only check the points.
        limit: maximum number of points.

    Raises:
        SetpointError: the points are invalid; `SweepError` lists the problems of each.
    """
    if launched() > 1:
        raise SetpointError("sweep starts processes itself.\nValid: one process, without torchrun")
    base = composed(source, overrides, caller="sweep")[0]
    document = base.sweep
    if isinstance(points, Mapping):
        if document is not None:
            raise SetpointError(
                f"sweep: {document.name} describes points as well; give points in one place"
            )
        table: dict[str, object] = {TABLE: dict(points)}
        document = FileDocument("program", "json", table, "", lambda: FilePosition(0))
    if document is None or not isinstance(points, Mapping | None):
        raise SetpointError(
            "sweep needs points, as in sweep('tiny', points={'grid': {'optimizer.lr': [1e-4, "
            "3e-4]}}) or points={'points': [{'seed': 1}, {'seed': 2}]}, or a file with a table "
            "[sweep]"
        )
    search, axes, _, space = read_space(document)
    line = SweepCommandLine()
    line.source = label = base.label

    def open_base(
        _: str, modifiers: tuple[str, ...], below: Setting | None = None
    ) -> Composition[Job]:
        chosen = base
        if below is not None:
            chosen = composed(str(below.value), overrides, caller="sweep")[0]
        merged = compose(Job, chosen.draft, modifiers=modifiers)
        merged.problems[:0] = chosen.problems
        return merged

    checker = JobPointChecker()
    composer = Composer(open_base, line, name_experiment(label), checker)
    prepared = prepare_sweep(label, composer, checker, search, axes, space, limit=limit)
    if dry_run:
        return SweepResult(prepared.folder, prepared.tasks, None, 0)
    return run_sweep(prepared, jobs)
