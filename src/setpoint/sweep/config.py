"""Configuration of a sweep of training runs: the kernel's table, and search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from setpoint.config import RUNTIME, Config, Problem, check, field
from setpoint.sweep_space.distribution import Drawn
from setpoint.sweep_space.table import Sweep

OBJECTIVE = "evaluation.held_out_loss"
"""The default objective of a search."""


class Search(Config, role=RUNTIME):
    """Sequential search: each point is proposed from the results of earlier ones."""

    trials: int = field(ge=1)
    """Number of trials in total, over all sessions."""

    seed: int = field(default=0, ge=0, lt=2**32)
    """Seed of the sampler, not of the runs."""

    objective: str = OBJECTIVE
    """Objective, a metric as `setpoint compare` names it: KIND.COLUMN, optionally with .min, .max
    or .mean."""

    direction: Literal["minimize", "maximize"] = "minimize"
    """min or max of the objective."""

    sampler: Literal["tpe", "random"] = "tpe"
    """Sampler: tree-structured Parzen estimator (TPE), or random search."""

    axes: dict[str, Drawn] = field(factory=dict[str, Drawn])
    """Distribution of each field: "log_uniform(1e-5, 1e-2)", or a table with its type."""

    @check
    def _check_axes(self) -> Iterator[Problem]:
        if not self.axes:
            yield Problem("axes", "has no axes, so that all trials would be the same")


class SweepTable(Sweep, role=RUNTIME):
    """The table `[sweep]` of a file."""

    search: Search | None = None
    """Sequential search; excludes all other keys."""

    def parts(self) -> tuple[object, ...]:
        """See `Sweep.parts`."""
        return *super().parts(), self.search

    @check
    def _check_search(self) -> Iterator[Problem]:
        if self.search is not None and any(super().parts()):
            yield Problem("search", "stands alone: its trials are no points known in advance")


class SweepFile(Config, role=RUNTIME):
    """Configuration file with a sweep."""

    sweep: SweepTable = field(factory=SweepTable)
    """Fields to vary."""
