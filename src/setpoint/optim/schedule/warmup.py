"""The linear warm-up that most schedules begin with."""

from __future__ import annotations


def warmup_factor(at: float, *, warmup: float, warmup_from: float = 0.0, ahead: float = 1) -> float:
    """Compute the factor of a linear warm-up, which is 1 after it.

    With W = warmup and a = warmup_from: a + (1 - a) * min(1, (at + ahead) / W).

    Arguments:
        at: where the step begins, in the unit of the warm-up; the number of the step, from 0.
        warmup: W; in steps, step W - 1 is the first with factor 1, and none has factor a.
    """
    if at + ahead >= warmup:
        return 1.0
    return warmup_from + (1.0 - warmup_from) * ((at + ahead) / warmup)
