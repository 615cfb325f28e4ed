"""Looks at the points of a sweep from outside: what is wrong, and what is worth a remark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from setpoint.config import Caution, Config, Problem, dropped_values
from setpoint.plan.preflight import preflight
from setpoint.sweep.metrics import EVALUATION, MetricPath, unmeasured
from setpoint.sweep_space.points import ResolvedPoint, points_in_words, together
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

    The configurations are kept as well, so that one can be told from another by its identity.
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
            found.append(Remark("dropped", names, line, points_in_words(names, total)))
        for by_point in cautions.values():
            # Where the numbers differ from point to point, those of one of them will do.
            (first, names), *others = together(by_point)
            where = points_in_words(list(by_point), total)
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
            hint = "Search for another metric, such as --objective train.loss, or evaluate."
            problems.append(Problem(EVALUATION, reason, value="null", hint=hint))
        elif wanted is not None and (wrong := unmeasured(job, wanted)) is not None:
            problems.append(wrong)
        return problems, list(report.cautions)
