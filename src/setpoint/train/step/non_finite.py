"""What becomes of a step whose loss or gradient norm is not finite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from setpoint.config import RunError
from setpoint.resilience.config import RollBack, SkipNonFinite
from setpoint.train.step.verdict import Verdict

if TYPE_CHECKING:
    from setpoint.resilience.config import NonFinite


class NonFiniteSteps:
    """Decides by `resilience.non_finite`, and counts against its limit.

    Arguments:
        in_a_row: steps that were skipped since the last one that was not.
        skipped: of the whole run.
        rollbacks: to the checkpoint of step `target`, since it was saved.
    """

    def __init__(self, policy: NonFinite) -> None:
        self.skips = isinstance(policy, SkipNonFinite)
        self.rolls_back = isinstance(policy, RollBack)
        self.limit = policy.limit if isinstance(policy, SkipNonFinite | RollBack) else 0
        self.in_a_row = 0
        self.skipped = 0
        self.rollbacks = 0
        self.target: int | None = None

    def decide(self, step: int, loss: float, norm: float) -> Verdict:
        """Say what becomes of a step.

        Raises:
            RunError: if too many were skipped in a row.
        """
        if self.rolls_back:
            return Verdict.ROLLED_BACK
        if not self.skips:
            return Verdict.REFUSED
        if self.in_a_row == self.limit:
            raise RunError(
                f"step {step}: the loss is {loss} and the gradient norm {norm}, and the "
                f"{self.limit} steps before it were skipped for the same reason, as many as "
                f"resilience.non_finite.limit allows. {ADVICE}"
            )
        self.in_a_row += 1
        self.skipped += 1
        return Verdict.SKIPPED

    def roll_back_to(self, target: int, step: int, loss: float, norm: float) -> int:
        """Count a rollback.

        Returns:
            how many there were to this checkpoint.

        Raises:
            RunError: if that is too many.
        """
        if target != self.target:
            self.target, self.rollbacks = target, 0
        if self.rollbacks == self.limit:
            raise RunError(
                f"step {step}: the loss is {loss} and the gradient norm {norm}, and the run has "
                f"gone back to the checkpoint of step {target} {self.rollbacks} times, as often as "
                f"resilience.non_finite.limit allows. {ADVICE}"
            )
        self.rollbacks += 1
        return self.rollbacks

    def reset(self) -> None:
        """Note a step that is finite."""
        self.in_a_row = 0

    def advice(self, lr: float) -> str:
        """What to try where the run has failed."""
        return (
            f"Lower optimizer.lr ({lr}), lengthen the warm-up, compute in fp32 or bf16, or go on "
            f"without such steps: resilience.non_finite = skip or rollback"
        )

    def metrics(self) -> dict[str, int]:
        """What a row of metrics says."""
        return {"skipped_steps": self.skipped} if self.skips else {}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps; nothing where nothing was skipped."""
        return {"in_a_row": self.in_a_row, "skipped": self.skipped} if self.skipped else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.in_a_row, self.skipped = state.get("in_a_row", 0), state.get("skipped", 0)


ADVICE = "Lower optimizer.lr, lengthen the warm-up, or compute in fp32 or bf16"
