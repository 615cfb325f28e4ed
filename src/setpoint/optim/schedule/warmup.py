"""The linear warm-up that most schedules begin with."""

from __future__ import annotations


def warmup_factor(step: float, *, warmup_steps: int, warmup_from: float = 0.0) -> float:
    """Compute the factor of a linear warm-up, which is 1 after it.

    With W = warmup_steps and a = warmup_from: a + (1 - a) * min(1, (step + 1) / W).

    Arguments:
        step: number of the update, the first is 0; a fraction where tokens are counted.
        warmup_steps: W; update W - 1 is the first with factor 1, and none has factor a.
        warmup_from: a, what the warm-up rises from.

    Returns:
        The factor, in (a, 1].
    """
    if step >= warmup_steps - 1:
        return 1.0
    return warmup_from + (1.0 - warmup_from) * ((step + 1) / warmup_steps)
