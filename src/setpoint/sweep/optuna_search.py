"""Search: Optuna proposes points from the results of earlier ones, stored in `search.db`."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.config import ConfigError, RunError, SetpointError, to_plain
from setpoint.report.goodput import FAILED, FINISHED, STOPPED
from setpoint.sweep.launch import Launcher
from setpoint.sweep.points import ResolvedPoint
from setpoint.sweep.run_metrics import MetricPath, RunMetrics, require
from setpoint.sweep.setting import Point, Setting, axis_origin, value_text
from setpoint.sweep.space import Choices, Distribution, Integer, LogUniform
from setpoint.sweep.sweep_record import SweepTask
from setpoint.train.config import Job

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

    from setpoint.sweep.sweep_file import Search

STORAGE = "search.db"
"""The SQLite file of the trials in the folder of the sweep."""
DIGITS = 5
"""Digits of a proposed number."""
INSTALL = "a search needs the package {!r}: pip install 'setpoint[search]'"

Axes = dict[tuple[str, ...], Distribution]
Make = Callable[[Point], ResolvedPoint[Job]]


class SearchRun:
    """One search in the folder of a sweep; repeating it continues the same trials.

    Arguments:
        changed: called when a point starts, ends, or turns out to be finished.

    Raises:
        SetpointError: Optuna is not installed, or its storage cannot be read.
    """

    def __init__(
        self,
        spec: Search,
        axes: Axes,
        make: Make,
        folder: Path,
        changed: Callable[[SweepTask], None],
    ) -> None:
        self.spec = spec
        self.axes = axes
        self.folder = folder
        self.tasks: list[SweepTask] = []
        self.rejected: list[str] = []
        self._make = make
        self._changed = changed
        self._objective = MetricPath.parse(spec.objective)
        self._trials: dict[int, SweepTask] = {}
        self._study = open_study(spec, axes, make, folder)
        # Trials without a result run again before any new one.
        self._pending: list[tuple[int | None, dict[str, Any]]] = []
        for trial in self._study.trials:
            if trial.state.name == "RUNNING":
                self._pending.append((trial.number, trial.params))
            else:
                self._recall(trial)

    def run(self, launcher: Launcher) -> None:
        """Propose, run and evaluate points until all trials are done, or a signal arrives.

        Raises:
            RunError: a trial ended without the objective, and no earlier trial had it, so that the
                others would not have it either.
        """
        while True:
            while launcher.free > 0:
                number, params = self._pending.pop(0) if self._pending else self._ask()
                if number is None:
                    break
                self._begin(number, params, launcher)
            is_done = not self._pending and len(self._study.trials) >= self.spec.trials
            if not launcher.busy and (launcher.free == 0 or is_done):
                break
            for task in launcher.wait():
                if task.status != STOPPED:  # the next call resumes it
                    for number in [n for n, other in self._trials.items() if other is task]:
                        self._report(number, task)

    def best(self) -> dict[str, Any] | None:
        """Number, value, point and run of the best trial so far; None if no trial has a value."""
        trials = [trial for trial in self._study.trials if trial.values]
        if not trials:
            return None
        sign = 1 if self.spec.direction == "minimize" else -1
        best = min(trials, key=lambda trial: (sign * trial.values[0], trial.number))
        task = self._trials.get(best.number)
        return {
            "trial": best.number,
            "value": best.values[0],
            "point": None if task is None else task.name,
            "run": None if task is None else str(task.run),
        }

    def counts(self) -> dict[str, int]:
        """The number of trials in each state."""
        return dict(Counter(trial.state.name.lower() for trial in self._study.trials))

    def _recall(self, trial: FrozenTrial) -> None:
        """Load a trial from an earlier call that has a result."""
        try:
            task = SweepTask(self._make(point_of(self.axes, trial.params)), self.folder)
            task.read_state()
        except SetpointError:
            return  # it failed then for the same reason as now
        if task.name in (other.name for other in self.tasks):
            return
        if trial.state.name == "FAIL" and task.status != FINISHED:
            task.status, task.reason = FAILED, "failed in an earlier call"
        self._trials[trial.number] = task
        self.tasks.append(task)

    def _ask(self) -> tuple[int | None, dict[str, Any]]:
        number = len(self._study.trials)
        if number >= self.spec.trials:
            return None, {}
        self._study.sampler = sampler_of(self.spec.sampler, self.spec.seed, number)
        trial = self._study.ask(optuna_axes(self.axes))
        return trial.number, trial.params

    def _begin(self, number: int, params: dict[str, Any], launcher: Launcher) -> None:
        try:
            task = SweepTask(self._make(point_of(self.axes, params)), self.folder)
            same = [t for t in self.tasks if t.name == task.name]
            same += [t for t in self.tasks if t.point.fingerprint == task.point.fingerprint]
            if not same:
                task.read_state()
        except ConfigError as error:
            wrong = "; ".join(f"{problem.path} {problem.message}" for problem in error.problems)
            self.rejected.append(f"trial {number} is not a valid configuration: {wrong}")
            self._tell_failed(number)
            return
        self._trials[number] = task = same[0] if same else task
        if not same:
            self.tasks.append(task)
            if task.status != FINISHED:
                launcher.start(task)
                return
            self._changed(task)
        elif task.status not in (FINISHED, FAILED, STOPPED):
            return  # it is running, and is reported with the other trial
        self._report(number, task)

    def _report(self, number: int, task: SweepTask) -> None:
        if self._study.trials[number].state.is_finished():
            return
        finished = task.status == FINISHED
        value = self.value(task) if finished else None
        if value is not None and not math.isnan(value):
            self._study.tell(number, value)
            return
        if finished:
            task.reason = task.reason or f"has no {self.spec.objective}"
        self._tell_failed(number)
        if finished and value is None and not any(trial.values for trial in self._study.trials):
            try:
                require(self.spec.objective, [RunMetrics.read(task.run)])
            except SetpointError as error:
                raise RunError(
                    f"{task.name} finished without the objective {self.spec.objective}, so trials "
                    f"cannot be compared: {error}"
                ) from None

    def _tell_failed(self, number: int) -> None:
        from optuna.trial import TrialState

        self._study.tell(number, state=TrialState.FAIL)

    def value(self, task: SweepTask) -> float | None:
        """The objective of a point; None if its run did not measure it."""
        try:
            return RunMetrics.read(task.run).value(self._objective)
        except SetpointError as error:
            task.reason = str(error)
            return None


def open_study(spec: Search, axes: Axes, make: Make, folder: Path) -> Study:
    """Open or create the study of a search.

    Raises:
        SetpointError: Optuna is not installed, or its storage cannot be read.
    """
    optuna = import_optuna()
    path = (folder / STORAGE).resolve()
    name = study_name(spec, axes, make)
    try:
        return optuna.create_study(
            storage=f"sqlite:///{path}",
            study_name=name,
            direction=spec.direction,
            load_if_exists=True,
        )
    except Exception as error:  # SQLAlchemy and SQLite have their own errors
        raise _unreadable(path, error) from error


def trials_before(spec: Search, axes: Axes, make: Make, folder: Path) -> int:
    """Count the earlier trials of a search, without writing anything.

    Raises:
        SetpointError: there is a storage, but Optuna is not installed or cannot read it.
    """
    path = (folder / STORAGE).resolve()
    if not path.exists():
        return 0
    optuna = import_optuna()
    name = study_name(spec, axes, make)
    try:
        studies = optuna.get_all_study_summaries(f"sqlite:///{path}")
    except Exception as error:  # SQLAlchemy and SQLite have their own errors
        raise _unreadable(path, error) from error
    return sum(study.n_trials for study in studies if study.study_name == name)


def study_name(spec: Search, axes: Axes, make: Make) -> str:
    """Name of the study, the same for searches with comparable trials."""
    base = make(corners(axes)[0])
    facts = {
        "axes": {".".join(path): to_plain(axis) for path, axis in axes.items()},
        "objective": list(MetricPath.parse(spec.objective)),
        "direction": spec.direction,
        "base": base.fingerprint,
        "duration": to_plain(base.config)["duration"],
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return f"search-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def optuna_missing() -> str:
    """Message about the package missing for a search; empty if it is installed."""
    from importlib.util import find_spec

    return "" if find_spec("optuna") else INSTALL.format("optuna")


def import_optuna() -> Any:
    """Import Optuna.

    Raises:
        SetpointError: Optuna is not installed.
    """
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise SetpointError(INSTALL.format(error.name)) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _unreadable(path: Path, error: Exception) -> SetpointError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return SetpointError(f"{path}: the trials cannot be read: {reason}")


def point_of(axes: Axes, params: dict[str, Any]) -> Point:
    """The point of a trial with Optuna's parameters."""
    settings: list[Setting] = []
    for path, axis in axes.items():
        key = ".".join(path)
        value = params[key]
        if isinstance(axis, Choices):
            value = _choices(axis)[value]
        elif isinstance(value, float):
            low, high = axis.extremes()
            value = min(max(float(f"{value:.{DIGITS}g}"), low), high)
        settings.append(Setting(path, value, axis_origin(f"{key}, of a search")))
    return tuple(settings)


def optuna_axes(axes: Axes) -> dict[str, Any]:
    """Convert the axes to Optuna's distributions."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    result: dict[str, Any] = {}
    for path, axis in axes.items():
        key = ".".join(path)
        if isinstance(axis, Choices):
            result[key] = CategoricalDistribution(tuple(_choices(axis)))
            continue
        low, high = axis.extremes()
        if isinstance(axis, Integer):
            result[key] = IntDistribution(low, high, step=axis.step)
        else:
            result[key] = FloatDistribution(low, high, log=isinstance(axis, LogUniform))
    return result


def _choices(axis: Choices) -> dict[str, object]:
    """Choices, by a text that Optuna can store."""
    return {value_text(raw.value): raw.value for raw in axis.values}


def sampler_of(kind: str, seed: int, number: int) -> Any:
    """The sampler for one trial.

    It is seeded for each trial, so that a resumed search makes the same proposals as an
    uninterrupted one.
    """
    from optuna.samplers import RandomSampler, TPESampler

    digest = hashlib.sha256(f"{seed}/{number}".encode()).digest()
    start = int.from_bytes(digest[:4], "big")
    return TPESampler(seed=start) if kind == "tpe" else RandomSampler(seed=start)


def corners(axes: Axes) -> list[Point]:
    """Points at every limit and every choice of every axis, one axis at a time.

    They reveal invalid axes before any point runs.
    """
    base = tuple(
        Setting(path, axis.extremes()[0], axis_origin(".".join(path)))
        for path, axis in axes.items()
    )
    points = [base]
    for index, (path, axis) in enumerate(axes.items()):
        for value in axis.extremes()[1:]:
            moved = Setting(path, value, base[index].origin)
            points.append((*base[:index], moved, *base[index + 1 :]))
    return points
