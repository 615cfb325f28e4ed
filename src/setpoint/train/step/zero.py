"""The engine of a step where DeepSpeed divides what replicas would each hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from setpoint.parallel.zero import ZeroReplicas
from setpoint.precision.autocast import compute_in
from setpoint.train.engine import Finish, PlainEngine, Rates, Sums, collecting
from setpoint.train.objective import Share
from setpoint.train.step_errors import stepping

if TYPE_CHECKING:
    from setpoint.shapes.batch import Batch, Count
    from setpoint.train.build.components import Components
    from setpoint.train.config import Job


class ZeroEngine(PlainEngine):
    """Lets DeepSpeed sum, clip and update, as an `Engine`.

    It clips and updates in one call, which leaves the weights as they are where the norm is not
    finite: that is known to all ranks before they agree on the step.
    """

    def __init__(self, job: Job, parts: Components) -> None:
        super().__init__(job, parts)
        assert isinstance(parts.replicas, ZeroReplicas)
        self.zero = parts.replicas
        self.is_ahead = False  # DeepSpeed reads the norm

    def _backward(self, batch: Batch, count: Count, whole: Count) -> Share:
        """Forward and backward of one micro-batch; gradients add up."""
        parts, formats = self.parts, self.job.precision
        computing = compute_in(formats.compute, formats.params, parts.device)
        with self.span("forward"), computing, collecting(self.metrics):
            share = parts.objective.share(batch, *self._numbers(count, whole))
        with self.span("backward"):
            self.zero.backward(share.loss)
        return share

    def update(self, sums: Sums, rates: Rates) -> Finish:
        """See `Engine.update`."""
        for group in self.parts.optimizer.param_groups:
            group["lr"] = rates.lr * group.get("lr_multiplier", 1.0)
        with self.span("optimizer step"), stepping(self.job.optimizer):
            norm = self.zero.update()
        return self._finish(self._gather(sums, norm, []), lambda: None)
