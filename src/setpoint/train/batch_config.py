"""The section `[batch]`, and the arithmetic of batch sizes and durations."""

from __future__ import annotations

import math

from setpoint.config import RUNTIME, Config, derived, field
from setpoint.units import Duration, Length

DEFAULT_GLOBAL_SIZE = 8


class BatchConfig(Config):
    """Batch size, gradient accumulation and sequence length.

    Give any two of the three sizes, or fewer: what is not given is derived.
    """

    global_size: int = derived(ge=1)
    """Global batch size: sequences per optimizer step over all ranks; 8 if no size is given."""

    micro_size: int = derived(ge=1, role=RUNTIME)
    """Micro-batch size: sequences in one forward and backward pass on one rank."""

    accumulation: int = derived(ge=1, role=RUNTIME)
    """Gradient accumulation: forward and backward passes per optimizer step on each rank; 1 unless
    it follows from the sizes."""

    sequence_length: int = field(default=256, ge=1)
    """Sequence length (context length) in tokens."""

    def sizes_match(self, ranks: int) -> bool:
        """True if the global size is the product of the others."""
        return self.micro_size * self.accumulation * ranks == self.global_size


def solve_batch(
    global_size: int | None,
    micro_size: int | None,
    accumulation: int | None,
    ranks: int,
    groups: int = 1,
) -> tuple[int, int, int]:
    """Complete the three sizes.

    Arguments:
        groups: replica groups, which divide the micro-batches of a step.

    Indivisible sizes are rounded down here; `Job` then reports the mismatch.
    """
    if global_size is None:
        if micro_size is None and accumulation is None:
            global_size = DEFAULT_GLOBAL_SIZE
        else:
            micro_size, accumulation = micro_size or 1, accumulation or groups
            global_size = micro_size * accumulation * ranks
    if micro_size is None:
        micro_size = max(1, global_size // ((accumulation or groups) * ranks))
    if accumulation is None:
        accumulation = max(1, global_size // (micro_size * ranks))
    return global_size, micro_size, accumulation


def batch_equation(global_size: int, micro_size: int, accumulation: int, ranks: int) -> str:
    """The sizes as an equation for people.

    Returns:
        for instance `64 = 8 (micro) * 4 (accumulation) * 2 (ranks)`.
    """
    return f"{global_size} = {micro_size} (micro) * {accumulation} (accumulation) * {ranks} (ranks)"


def limits_of(duration: Duration, batch: BatchConfig) -> dict[str, float]:
    """The limits of a duration, with tokens as the steps that reach them."""
    limits = {limit.unit: limit.count for limit in duration.limits}
    tokens = limits.pop("tokens", None)
    if tokens is not None:
        steps = -(-int(tokens) // (batch.global_size * batch.sequence_length))
        limits["steps"] = min(steps, limits.get("steps", steps))
    return limits


def steps_before(start: Length, batch: BatchConfig) -> int:
    """Number of steps in a length of steps or tokens, with tokens as full batches."""
    if start.unit == "steps":
        return int(start.count)
    return math.ceil(start.count / (batch.global_size * batch.sequence_length))
