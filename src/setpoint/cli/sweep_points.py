"""From the command line of `setpoint sweep` to the points, or to the search, that it means."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from setpoint.cli.options import Arguments
from setpoint.cli.source import prepare as import_what_is_named
from setpoint.cli.sweep_source import Opener, space_of_call
from setpoint.config import (
    COMMAND_LINE,
    SWEEP,
    Caution,
    Config,
    ConfigError,
    Origin,
    Problem,
    SetpointError,
    chain_of,
    dropped_values,
    fingerprint,
    to_plain,
    value_or_missing,
)
from setpoint.plan.preflight import preflight
from setpoint.sweep.config import Search
from setpoint.sweep.metrics import EVALUATION, TRAINING_LOSS, MetricPath, unmeasured
from setpoint.sweep.record import Task
from setpoint.sweep.search import Axes, SearchRun, corners, import_optuna, trials_before
from setpoint.sweep_space.flags import read_command_line
from setpoint.sweep_space.naming import labels, name_of
from setpoint.sweep_space.points import (
    LIMIT,
    Composer,
    DuplicatePoint,
    ResolvedPoint,
    SweepError,
    format_points,
    refuse_too_many,
    resolve_points,
    together,
)
from setpoint.sweep_space.setting import Point
from setpoint.sweep_space.space import Listed
from setpoint.train.config import Job

C = TypeVar("C", bound=Config)


class Remark:
    """Something that several points have in common.

    Arguments:
        kind: `caution` or `dropped`.
    """

    def __init__(self, kind: str, points: list[str], text: str, where: str) -> None:
        self.kind = kind
        self.points = points
        self.text = text
        self.where = where

    def render(self) -> str:
        """The remark for people."""
        between = "\n\n" if "\n" in self.text else "\n  "
        return f"{self.kind} in {self.where}:{between}{self.text}"

    def to_json(self) -> dict[str, object]:
        """The remark for machines."""
        return {"points": self.points, "text": self.text.strip()}


class Outside(Generic[C]):
    """Finds the problems of each point that its values alone do not show, and keeps the cautions.

    The configurations are kept as well, so that they are distinguished by identity.
    """

    def __init__(self, look: Callable[[C], tuple[list[Problem], list[Caution]]]) -> None:
        self._look = look
        self._cautions: dict[int, tuple[C, list[Caution]]] = {}

    def __call__(self, config: C) -> Sequence[Problem]:
        """The problems of one point."""
        problems, cautions = self._look(config)
        self._cautions[id(config)] = config, cautions
        return problems

    def remarks(self, points: Sequence[ResolvedPoint[C]]) -> list[Remark]:
        """What is worth a remark about points that are sound."""
        total = len(points)
        found: list[Remark] = []
        lost: dict[str, list[str]] = {}
        cautions: dict[tuple[str, str], dict[str, list[Caution]]] = {}
        for point in points:
            for line in dropped_values(point.config):
                lost.setdefault(line, []).append(point.name)
            for caution in self._cautions[id(point.config)][1]:
                same = cautions.setdefault((caution.code, caution.path), {})
                same.setdefault(point.name, []).append(caution)
        for line, names in lost.items():
            found.append(Remark("dropped", names, line, format_points(names, total)))
        for by_point in cautions.values():
            # Where the numbers differ from point to point, those of one of them will do.
            (first, names), *others = together(by_point)
            where = format_points(list(by_point), total)
            if others:
                where += f"; for {names[0]}"
            found.append(Remark("caution", list(by_point), first.render(), where))
        return found


class JobOutside(Outside[Job]):
    """Looks at the points of a sweep of training jobs."""

    def __init__(self) -> None:
        super().__init__(self._look_at)
        self.objective: MetricPath | None = None
        """What a search looks at."""

    def _look_at(self, job: Job) -> tuple[list[Problem], list[Caution]]:
        report = preflight(job)
        problems = list(report.problems)
        if job.seed is None:
            reason = "is null, so that it would be drawn anew each time, and no point found again"
            hint = "Give a seed, or several: --seed 1,2,3"
            problems.append(Problem("seed", reason, value="null", hint=hint))
        wanted = self.objective
        if wanted is not None and wanted.kind == EVALUATION and job.evaluation is None:
            reason = f"is null, so that the objective {EVALUATION}.{wanted.column} is not measured"
            hint = f"Search for another metric, such as --objective {TRAINING_LOSS}, or evaluate."
            problems.append(Problem(EVALUATION, reason, value="null", hint=hint))
        elif wanted is not None and (wrong := unmeasured(job, wanted)) is not None:
            problems.append(wrong)
        return problems, list(report.cautions)


PLACES = (("workspace",), ("experiment",))
"""The fields that say where the folder of the sweep lies."""


class Prepared:
    """A sweep of which everything is known that can be known before it starts.

    Arguments:
        tasks: its points; none yet for a search.
        duplicates: the points that were left out.
        remarks: what is legal but suspicious in some points, and what a switch of variant lost.
        command: makes the command of a point, given it and the modules it needs; None: it trains.
    """

    def __init__(
        self,
        source: str,
        folder: Path,
        tasks: list[Task],
        duplicates: list[DuplicatePoint],
        search: Search | None,
        axes: Axes,
        make: Callable[[Point], ResolvedPoint[Job]] | None,
        imports: Sequence[str],
        remarks: list[Remark],
        command: Callable[[Task, Sequence[str]], list[str]] | None = None,
    ) -> None:
        self.source = source
        self.folder = folder
        self.tasks = tasks
        self.duplicates = duplicates
        self.search = search
        self.axes = axes
        self._make = make
        self.imports = imports
        self.remarks = remarks
        self.command = command

    def require_packages(self) -> None:
        """Refuse to start what cannot run here.

        Raises:
            SetpointError: if PyTorch, or for a search Optuna, is not installed.
        """
        from importlib.util import find_spec

        if find_spec("torch") is None:
            raise SetpointError(
                "training needs the package 'torch': install PyTorch first, then 'setpoint[train]'"
            )
        if self.search is not None:
            import_optuna()

    def open_search(self, changed: Callable[[Task], None]) -> SearchRun | None:
        """Open the search, if it is one.

        Returns:
            the search; None for a sweep whose points are known.
        """
        if self.search is None or self._make is None:
            return None
        return SearchRun(self.search, self.axes, self._make, self.folder, changed)

    def describe_search(self) -> dict[str, Any]:
        """The search for people and machines."""
        assert self.search is not None and self._make is not None
        facts = {key: value for key, value in to_plain(self.search).items() if key != "axes"}
        facts["trials before"] = trials_before(self.search, self.axes, self._make, self.folder)
        return {**facts, **{".".join(path): axis.describe() for path, axis in self.axes.items()}}


def prepare(arguments: Arguments) -> Prepared:
    """Resolve and check all points.

    Raises:
        SetpointError: if the arguments contradict each other.
        SweepError: with the problems of all points.
    """
    source = arguments.positional[0]
    import_what_is_named(arguments)  # whose classes have fields that the overrides may set
    line = read_command_line(Job, source, arguments.options.get("--with", []), arguments.overrides)
    opener = Opener(arguments, line)
    outside = JobOutside()
    composer = Composer(opener, line, _Finish(source), outside)
    if line.source == "-" and None in line.modifiers:
        raise SetpointError(
            "standard input can be read once, and several modifiers need it several times; save "
            "it as a file"
        )
    if line.source is not None and opener.file is None:
        composer.base()  # reads the file, and with it the table of the sweep
    search, axes, space = space_of_call(arguments, line, opener.document, opener.file is not None)
    limit = arguments.integer("--limit") or LIMIT
    imports = arguments.options.get("--import", [])
    for path in [*space.paths, *axes]:
        if path in PLACES:
            raise SetpointError(
                f"{path[0]} cannot be varied: the points of a sweep lie in one folder, which is "
                f"workspace/experiment"
            )

    def make(point: Point) -> ResolvedPoint[Job]:
        config = composer.resolve(point)
        name = name_of(point, labels(axes))
        return ResolvedPoint(name, point, config, fingerprint(config))

    if search is not None:
        refuse_too_many(search.trials, limit)
        outside.objective = MetricPath.parse(search.objective)
        found = resolve_points(Listed(corners(axes)), composer, LIMIT * 10)
        folder = _folder([each.config for each in found.kept])
        remarks = outside.remarks(found.kept)
        return Prepared(source, folder, [], [], search, axes, make, imports, remarks)
    found = resolve_points(space, composer, limit)
    folder = _folder([each.config for each in found.kept])
    tasks = [Task(point, folder) for point in found.kept]
    _look(tasks)
    remarks = outside.remarks(found.kept)
    return Prepared(source, folder, tasks, found.duplicates, None, {}, make, imports, remarks)


class _Finish:
    """Names the experiment after --name, or else the source: runs of a sweep lie together."""

    def __init__(self, source: str) -> None:
        stem = re.sub(r"\.(toml|yaml|yml|json)$", "", source.rstrip("/").rpartition("/")[2])
        self.name = _folder_name(stem)

    def __call__(self, draft: Job) -> None:
        if value_or_missing(draft, "experiment") is None:
            chain = chain_of(draft, "name")
            typed = bool(chain) and chain[-1][0].layer == COMMAND_LINE
            name = _folder_name(draft.name) if typed else self.name
            draft.set_field("experiment", name, Origin(SWEEP, "names its folder"))


def _folder_name(text: str) -> str:
    word = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.")[:40]
    return f"sweep-{word or 'stdin'}"


def _folder(jobs: Sequence[Job]) -> Path:
    import os

    folders = {Path(os.path.expanduser(job.workspace)) / str(job.experiment) for job in jobs}
    if len(folders) > 1:
        raise SetpointError(
            f"the points of a sweep lie in one folder, and these sources lie in "
            f"{', '.join(sorted(map(str, folders))[:4])}; give one --experiment for all"
        )
    return folders.pop()


def _look(tasks: list[Task]) -> None:
    """Find out what is done already; what cannot be gone on with is reported together."""
    wrong: dict[str, list[Problem]] = {}
    for task in tasks:
        try:
            task.read_state()
        except ConfigError as error:
            wrong[task.name] = list(error.problems)
        except SetpointError as error:
            wrong[task.name] = [Problem("", str(error))]
    if wrong:
        raise SweepError(wrong, len(tasks))
