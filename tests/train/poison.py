"""A loss that is not finite on some batches, for small jobs."""

import math
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from setpoint.shapes.batch import Batch
from setpoint.train.build.components import Components, build_components
from setpoint.train.config import Job
from setpoint.train.objective import Objective, Share
from setpoint.train.verdict import StepResult

from .small import loop_of, train_rows

Poison = Callable[..., None]

SEQUENCES = 4  # of a step


class Poisoned:
    """The objective, with a loss that is not a number on some batches of the data."""

    def __init__(
        self, components: Components, bad: Container[int], value: float = math.nan
    ) -> None:
        self.inner, self.feed, self.bad, self.value = (
            components.objective,
            components.feed,
            bad,
            value,
        )

    def share(self, batch: Batch, *numbers: float) -> Share:
        found = self.inner.share(batch, *numbers)
        taken = round(self.feed.epoch * len(self.feed.sequences))
        if taken // SEQUENCES not in self.bad:
            return found
        factors = torch.tensor([self.value, 1.0])  # the cross-entropy alone stays as it is
        return found._replace(loss=found.loss * self.value, losses=found.losses * factors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def poison_runs(patch: pytest.MonkeyPatch, bad: Container[int], value: float = math.nan) -> None:
    """Let every training meet bad batches, numbered from 1 in the order of the data."""

    def build(job: Job, *given: Any) -> Components:
        components = build_components(job, *given)
        objective: Any = Poisoned(components, bad, value)
        assert isinstance(components.objective, Objective)
        components.objective = objective
        return components

    patch.setattr("setpoint.train.run.build_components", build)


def weights(components: Components) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in components.model.parameters()]


def same(one: Components, other: Components) -> bool:
    equal = all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))
    a, b = one.optimizer.state_dict()["state"], other.optimizer.state_dict()["state"]
    return equal and all(torch.equal(a[n][key], b[n][key]) for n in a for key in a[n])


def by_hand(job: Job, *plan: int) -> tuple[Components, list[StepResult]]:
    """Take steps, or with negative numbers pass over batches of the data."""
    components = build_components(job)
    loop, results = loop_of(job, components=components), []
    for count in plan:
        for _ in range(abs(count)):
            if count > 0:
                results.append(loop.step())
            else:
                components.feed.take()
    return components, results


def check_rows(run: Path, results: list[StepResult]) -> None:
    """Each step has one row, that of the step which counts."""
    found = train_rows(run)
    assert [row["step"] for row in found] == [*range(1, len(results) + 1)]
    for row, result in zip(found, results, strict=True):
        assert (row["loss"], row["lr"], row["grad_norm"]) == (
            result.loss, result.lr, result.grad_norm,
        )  # fmt: skip
