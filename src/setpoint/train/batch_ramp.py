"""The section `[batch.ramp]`: a global batch size that grows over the run, in stages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from setpoint.config import Config, Problem, field, rule
from setpoint.data.config import PHASE_UNITS
from setpoint.units import Length

MOST_STAGES = 10_000
"""Most sizes of a ramp, since all are computed in advance."""


class BatchStage(NamedTuple):
    """Consecutive steps with the same global batch size.

    Arguments:
        step: the first step, from 0.
        sequences: sequences read before it.
        size: sequences per step.
    """

    step: int
    sequences: int
    size: int


class BatchRamp(Config):
    """Batch size ramp (batch size warm-up).

    With n = (batch.global_size - start) / increment, the size of a step grows by `increment` each
    time another n-th of `over` has passed at its start, as in Megatron-LM's --rampup-batch-size.
    """

    start: int = field(ge=1)
    """Global batch size of the first step, in sequences."""

    increment: int = field(ge=1)
    """Increment of the global batch size at each stage, in sequences; a divisor of
    `batch.global_size` - `start`."""

    over: Length
    """Length of the ramp in steps or tokens ("1e9 tokens"), counting tokens as full rows; then the
    batch has `batch.global_size` sequences."""

    @rule
    def _check_over(self) -> Iterator[Problem]:
        if self.over.unit not in PHASE_UNITS or not self.over.count:
            yield Problem("over", "is not a number of steps or tokens above 0",
                          valid=("2000 steps", "1e9 tokens"))  # fmt: skip


@lru_cache(maxsize=64)
def stages_of(
    start: int, increment: int, over: int, row_tokens: int | None, size: int
) -> tuple[BatchStage, ...]:
    """Compute the stages of a ramp.

    Arguments:
        over: length of the ramp, in steps or tokens.
        row_tokens: tokens of a sequence; None: `over` is in steps.
        size: the size after the ramp.
    """
    parts = min((size - start) // increment, MOST_STAGES)  # more are refused
    stages = [BatchStage(0, 0, start)]
    for part in range(1, parts + 1):
        last = stages[-1]
        # Distance to the start of this part, times the number of parts; rounded up to full steps.
        if row_tokens is None:
            rest, extent = part * over - parts * last.step, parts
        else:
            rest = part * over - parts * last.sequences * row_tokens
            extent = parts * last.size * row_tokens
        steps = max(0, -(-rest // extent))
        if not steps:  # a step passed several parts: no step has the last size
            stages.pop()
        stages.append(
            BatchStage(
                last.step + steps, last.sequences + steps * last.size, start + part * increment
            )
        )
    return tuple(stages)
