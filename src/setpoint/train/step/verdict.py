"""What can become of a step."""

from __future__ import annotations

from enum import Enum


class Verdict(Enum):
    """What became of a step."""

    TAKEN = "taken"
    SKIPPED = "skipped"
    """The weights stay, and the step counts: the gradients of fp16 overflowed, so that the scale of
    the loss falls, or `resilience.non_finite` or `resilience.spike` passes over it."""
    ROLLED_BACK = "rolled_back"
    """The run goes on from its newest checkpoint, and the step does not count."""
    RETAKEN = "retaken"
    """A replica group was lost on the way: nothing has changed, and the step is taken again."""
    REFUSED = "refused"
    """The loss or the norm is not finite: nothing was changed but the scale of the loss."""
    SPIKED = "spiked"
    """The loss is a spike that `resilience.spike` acts on: nothing was changed."""
