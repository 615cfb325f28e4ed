"""Search: points that Optuna proposes from what the ones before came to."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.config import ConfigError, RunError, SetpointError
from setpoint.report.status import FAILED, FINISHED, STOPPED

from .launch import Launcher
from .metrics import MetricPath, Metrics, require
from .proposals import Axes, Proposals, sampler_of
from .study import Make, open_study
from .task import Task

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from .config import Search


class SearchRun:
    """One search in the folder of a sweep; a repeated one continues the same trials.

    Arguments:
        changed: called when a point starts or ends, or is found to be known.

    Raises:
        SetpointError: if Optuna is not installed, or its storage cannot be read.
    """

    def __init__(
        self,
        spec: Search,
        axes: Axes,
        make: Make,
        folder: Path,
        changed: Callable[[Task], None],
    ) -> None:
        self.spec = spec
        self.axes = axes
        self.folder = folder
        self.tasks: list[Task] = []
        self._make = make
        self._changed = changed
        self._objective = MetricPath.parse(spec.objective)
        self._proposals = Proposals(axes)
        self._trials: dict[int, Task] = {}
        self.rejected: list[str] = []
        self._study = open_study(spec, axes, make, folder)
        # Trials without a result: they are to be run again, before any new one.
        self._pending = self._recall()

    def run(self, launcher: Launcher) -> None:
        """Propose, run and evaluate until there are as many trials as wanted, or a signal comes.

        Raises:
            RunError: if a trial came to its end without the objective, and none before had it:
                the others would not have it either.
        """
        while True:
            while launcher.free > 0:
                number, params = self._pending.pop(0) if self._pending else self._ask()
                if number is None:
                    break
                self._begin(number, params, launcher)
            if not launcher.busy and (launcher.free == 0 or not self._wanted()):
                break
            for task in launcher.wait():
                self._tell(task)

    def best(self) -> dict[str, Any] | None:
        """The best trial so far.

        Returns:
            its number, value, point and run; None if no trial has a value.
        """
        known = [trial for trial in self._study.trials if trial.values]
        if not known:
            return None
        sign = 1 if self.spec.direction == "minimize" else -1
        best = min(known, key=lambda trial: (sign * trial.values[0], trial.number))
        task = self._trials.get(best.number)
        return {
            "trial": best.number,
            "value": best.values[0],
            "point": None if task is None else task.name,
            "run": None if task is None else str(task.run),
        }

    def counts(self) -> dict[str, int]:
        """How many trials there are in each state."""
        found: dict[str, int] = {}
        for trial in self._study.trials:
            name = trial.state.name.lower()
            found[name] = found.get(name, 0) + 1
        return found

    def _wanted(self) -> bool:
        return bool(self._pending) or len(self._study.trials) < self.spec.trials

    def _recall(self) -> list[tuple[int | None, dict[str, Any]]]:
        """Take up the trials of earlier calls; those without a result are returned."""
        pending: list[tuple[int | None, dict[str, Any]]] = []
        for trial in self._study.trials:
            if trial.state.name == "RUNNING":
                pending.append((trial.number, trial.params))
            else:
                self._known(trial)
        return pending

    def _known(self, trial: FrozenTrial) -> None:
        try:
            task = Task(self._make(self._proposals.point(trial.params)), self.folder)
            task.look()
        except SetpointError:
            return  # it failed then, for the reason that it would fail for now
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
        trial = self._study.ask(self._proposals.distributions())
        return trial.number, trial.params

    def _begin(self, number: int, params: dict[str, Any], launcher: Launcher) -> None:
        try:
            task = Task(self._make(self._proposals.point(params)), self.folder)
            known = next((t for t in self.tasks if t.name == task.name), None)
            if known is None:
                known = next(
                    (t for t in self.tasks if t.point.fingerprint == task.point.fingerprint), None
                )
            if known is None:
                task.look()
        except ConfigError as error:
            self._fail(number, error)
            return
        self._trials[number] = known or task
        if known is None:
            self.tasks.append(task)
            if task.status != FINISHED:
                launcher.start(task)
                return
            self._changed(task)
        elif known.status not in (FINISHED, FAILED, STOPPED):
            return  # it runs at this moment, and is reported with the other trial
        self._report(number, known or task)

    def _tell(self, task: Task) -> None:
        if task.status == STOPPED:
            return  # stays open, so that the next call goes on with it
        for number, other in self._trials.items():
            if other is task:
                self._report(number, task)

    def _report(self, number: int, task: Task) -> None:
        from optuna.trial import TrialState

        if self._study.trials[number].state.is_finished():
            return
        value = self.value(task) if task.status == FINISHED else None
        if value is None or math.isnan(value):
            if task.status == FINISHED:
                task.reason = task.reason or f"has no {self.spec.objective}"
            self._study.tell(number, state=TrialState.FAIL)
            if task.status == FINISHED and value is None:
                self._refuse_unknown_objective(task)
        else:
            self._study.tell(number, value)

    def _refuse_unknown_objective(self, task: Task) -> None:
        if any(trial.values for trial in self._study.trials):
            return
        try:
            require(self.spec.objective, [Metrics.read(task.run)])
        except SetpointError as error:
            raise RunError(
                f"the search has stopped: {task.name} came to its end without the objective "
                f"{self.spec.objective}, so that trials cannot be compared: {error}"
            ) from None

    def _fail(self, number: int, error: ConfigError) -> None:
        from optuna.trial import TrialState

        wrong = "; ".join(f"{problem.path} {problem.message}" for problem in error.problems)
        self.rejected.append(f"trial {number} is no valid configuration: {wrong}")
        self._study.tell(number, state=TrialState.FAIL)

    def value(self, task: Task) -> float | None:
        """What a point came to.

        Returns:
            the objective; None if the run has not measured it.
        """
        try:
            return Metrics.read(task.run).value(self._objective)
        except SetpointError as error:
            task.reason = str(error)
            return None
