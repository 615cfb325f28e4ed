"""What a file says about a sweep of training runs: the kernel's table, and search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from setpoint.config import RUNTIME, Config, Problem, check, field
from setpoint.sweep_space.distribution import Drawn
from setpoint.sweep_space.table import Sweep

OBJECTIVE = "evaluation.held_out_loss"
"""What a search looks at unless it is told otherwise."""


class Search(Config, role=RUNTIME):
    """Points that are proposed one after the other, from what the ones before came to."""

    trials: int = field(ge=1)
    """Number of trials, those of earlier calls included."""

    seed: int = field(default=0, ge=0, lt=2**32)
    """Seed of the sampler; the seed of the runs is a field of its own."""

    objective: str = OBJECTIVE
    """A metric, as `setpoint compare` names it: KIND.COLUMN, perhaps with .min, .max or .mean."""

    direction: Literal["minimize", "maximize"] = "minimize"
    """Whether less or more of it is better."""

    sampler: Literal["tpe", "random"] = "tpe"
    """Sampler: tree-structured Parzen estimator (TPE), or random search."""

    axes: dict[str, Drawn] = field(factory=dict[str, Drawn])
    """A distribution for each field: `"log_uniform(1e-5, 1e-2)"`, or a table with its type."""

    @check
    def _check_axes(self) -> Iterator[Problem]:
        if not self.axes:
            yield Problem("axes", "has no axes, so that all trials would be the same")


class SweepTable(Sweep, role=RUNTIME):
    """The table `[sweep]` of a file."""

    search: Search | None = None
    """Points that depend on one another; stands alone."""

    def parts(self) -> tuple[object, ...]:
        """See `Sweep.parts`."""
        return *super().parts(), self.search

    @check
    def _check_search(self) -> Iterator[Problem]:
        if self.search is not None and any(super().parts()):
            yield Problem("search", "stands alone: its trials are no points known in advance")


class SweepFile(Config, role=RUNTIME):
    """A configuration file, as far as it describes a sweep."""

    sweep: SweepTable = field(factory=SweepTable)
    """What is varied."""
