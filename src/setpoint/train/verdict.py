"""Verdict on a step, and the policies for non-finite steps and loss spikes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from statistics import median
from typing import TYPE_CHECKING, Any

from setpoint.config import RunError
from setpoint.resilience.config import RollBack, SkipStep
from setpoint.shapes.batch import ONE_SOURCE, BySource
from setpoint.train.position import Position

if TYPE_CHECKING:
    from torch import Tensor

    from setpoint.resilience.config import Spike, StepPolicy
    from setpoint.shapes.outcome import Routing
    from setpoint.train.config import Job


NORMAL = 1.4826
"""Standard deviation of a normal distribution in units of its median absolute deviation."""


class Verdict(Enum):
    """Outcome of a step."""

    TAKEN = "taken"
    SKIPPED = "skipped"
    """The weights stay, and the step counts: fp16 gradients overflowed, so the loss scale falls, or
    `resilience.non_finite` or `resilience.spike` skips it."""
    ROLLED_BACK = "rolled_back"
    """The run continues from its newest checkpoint, and the step does not count."""
    RETAKEN = "retaken"
    """A replica group was lost: nothing has changed, and the step is retaken."""
    REFUSED = "refused"
    """The run ends; only the loss scale has changed."""


def skip_flag(losses: Tensor, broken: Tensor, overflowed: Tensor, scaled: bool) -> Tensor:
    """Compute the flag for skipping the update on the device, without synchronization.

    Except for spikes, it agrees with `judge`: it is set for all verdicts but `Verdict.TAKEN`.

    Arguments:
        losses: the losses, the first of which is the loss.
        broken, overflowed: bool scalars; see `judge`.

    Returns:
        an fp32 scalar, 1 to skip and 0 otherwise, like `found_inf` in PyTorch's optimizers.
    """
    return (~losses[0].isfinite() | (overflowed if scaled else broken)).float()


def judge(
    loss: float,
    is_broken: bool,
    overflows: bool,
    scaled: bool,
    non_finite: BadStepPolicy,
    spikes: SpikedSteps | None,
) -> tuple[Verdict, BadStepPolicy | None]:
    """Judge a step: return the verdict, and the policy that applies to bad numbers.

    Arguments:
        is_broken: whether the norm of the gradients is not finite.
        overflows: whether gradients of a `scaled` loss are not finite.
    """
    if not math.isfinite(loss) or (is_broken and not scaled):
        return non_finite.verdict, non_finite
    if spikes is not None and spikes.acts_on(loss):
        return spikes.verdict, spikes
    return Verdict.SKIPPED if overflows else Verdict.TAKEN, None


class BadStepPolicy:
    """Policy for bad steps, with its counts.

    Arguments:
        field: the configuration field of the policy.
        in_a_row: steps skipped since the last step that was not skipped.
        skipped: steps skipped in the whole run.
        rollbacks: rollbacks to the checkpoint of step `target`, since it was saved.
    """

    def __init__(self, policy: StepPolicy, field: str) -> None:
        self.field = field
        self.skips = isinstance(policy, SkipStep)
        self.rolls_back = isinstance(policy, RollBack)
        self.limit = policy.limit if isinstance(policy, SkipStep | RollBack) else 0
        self.in_a_row = 0
        self.skipped = 0
        self.rollbacks = 0
        self.target: int | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict on a step to which the policy applies."""
        if self.rolls_back:
            return Verdict.ROLLED_BACK
        return Verdict.SKIPPED if self.skips else Verdict.REFUSED

    def describe(self, result: StepResult) -> str:
        """Describe what is wrong with a step."""
        numbers = f"the loss is {result.loss:.6g} and the gradient norm {result.grad_norm:.6g}"
        # Each replica computes the norm of its own copy of the gradients.
        if math.isfinite(result.loss) and math.isfinite(result.grad_norm):
            return f"{numbers} on this rank, but NaN or infinite on another"
        return numbers

    def apply(self, result: StepResult, job: Job, can_roll_back: bool) -> None:
        """Apply the policy to a bad step: count a skip, or end the run; the loop does rollbacks.

        Raises:
            RunError: the policy ends the run.
        """
        if result.verdict is Verdict.SKIPPED:
            self.skip(result.step, result.wrong)
        elif result.verdict is Verdict.REFUSED or not can_roll_back:
            is_finite = math.isfinite(result.loss) and math.isfinite(result.grad_norm)
            ending = "" if is_finite else " (not finite)"
            if result.step == 1 and job.model.pretrained is not None:
                raise RunError(
                    f"step 1: {result.wrong}{ending}, before anything was trained: the weights of "
                    f"model.pretrained = {job.model.pretrained} may contain NaN or "
                    f"have been read incorrectly. `setpoint replay RUN 1` finds the first module "
                    f"with non-finite values"
                )
            another = ", compute in fp32 or bf16" if job.precision.compute == "fp16" else ""
            raise RunError(
                f"step {result.step}: {result.wrong}{ending}; the step was not taken, and "
                f"checkpoints contain the steps before it. Lower optimizer.lr "
                f"({job.optimizer.lr}), "
                f"lengthen the warm-up{another}, or continue without such steps: "
                f"{self.field} = skip or rollback"
            )

    def skip(self, step: int, cause: str) -> None:
        """Count a skipped step.

        Arguments:
            cause: the problem.

        Raises:
            RunError: too many skipped steps in a row.
        """
        if self.in_a_row == self.limit:
            raise RunError(
                f"step {step}: {cause}, and the {self.limit} steps before it were skipped for the "
                f"same reason, as many as {self.field}.limit allows. {ADVICE}"
            )
        self.in_a_row += 1
        self.skipped += 1

    def roll_back_to(self, target: int, step: int, cause: str) -> int:
        """Count a rollback.

        Returns:
            the number of rollbacks to this checkpoint.

        Raises:
            RunError: too many rollbacks.
        """
        if target != self.target:
            self.target, self.rollbacks = target, 0
        if self.rollbacks == self.limit:
            raise RunError(
                f"step {step}: {cause}, and the run has gone back to the checkpoint of step "
                f"{target} as often as {self.field}.limit = {self.limit} allows; a restart "
                f"continues from there. {ADVICE}, or raise the limit"
            )
        self.rollbacks += 1
        return self.rollbacks

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint; empty if nothing was skipped."""
        return {"in_a_row": self.in_a_row, "skipped": self.skipped} if self.skipped else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.in_a_row, self.skipped = state.get("in_a_row", 0), state.get("skipped", 0)


def rollbacks_to(events: Iterable[Mapping[str, Any]], step: int) -> dict[str, Mapping[str, Any]]:
    """Find the rollbacks to a checkpoint since it was saved.

    Arguments:
        events: the rows of `events.jsonl`.

    Returns:
        the last event for each cause, in order.
    """
    last: dict[str, Mapping[str, Any]] = {}
    for event in events:
        kind = event.get("event")
        if kind == "restart" or (kind == "save" and event.get("step") == step):
            last.clear()
        elif kind == "rollback" and event.get("step") == step and _is_whole(event):
            last.pop(event["cause"], None)
            last[event["cause"]] = event
    return last


def _is_whole(event: Mapping[str, Any]) -> bool:
    kinds = {"cause": str, "rollbacks": int, "data": dict}
    return all(isinstance(event.get(key), kind) for key, kind in kinds.items())


class SpikedSteps(BadStepPolicy):
    """Steps with a loss far above the median of the preceding ones.

    The median is robust against single spikes that were trained on. All ranks have the same losses,
    so they make the same decisions.

    Arguments:
        losses: losses of the last trained steps.
        high: consecutive spikes, whether skipped or not.
    """

    def __init__(self, config: Spike) -> None:
        super().__init__(config.policy, "resilience.spike.policy")
        self.config = config
        self.losses: deque[float] = deque(maxlen=config.window)
        self.high = 0

    @property
    def middle(self) -> float:
        """The median of the losses."""
        return median(self.losses)

    def is_high(self, loss: float) -> bool:
        """True if a loss is a spike."""
        if len(self.losses) < self.config.window:
            return False
        middle = self.middle
        deviation = NORMAL * median(abs(value - middle) for value in self.losses)
        least = max((self.config.factor - 1) * abs(middle), self.config.deviations * deviation)
        return loss > middle + least

    def acts_on(self, loss: float) -> bool:
        """True if the policy applies to a step; does not count it."""
        return self.high + 1 >= self.config.patience and self.is_high(loss)

    def note(self, loss: float, trained_on: bool) -> None:
        """Count a step with a finite loss."""
        self.high = self.high + 1 if self.is_high(loss) else 0
        if trained_on:
            self.losses.append(loss)
            self.in_a_row = 0

    def describe(self, result: StepResult) -> str:
        """Describe a loss spike."""
        return (
            f"the loss is {result.loss:.6g}, a spike: the median of the {len(self.losses)} steps "
            f"before is {self.middle:.6g}"
        )

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        return {**super().state_dict(), "losses": list(self.losses), "high": self.high}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint; without losses in it, a new window begins."""
        super().load_state_dict(state)
        self.losses = deque(state.get("losses", ()), maxlen=self.config.window)
        self.high = state.get("high", 0)


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one optimizer step: its numbers and the verdict on it.

    Arguments:
        loss: the minimized loss: the weighted mean over the tokens of the step's global batch, in
            nats, including all additions of the loss and the model to the cross-entropy.
        cross_entropy: the cross-entropy alone, with equal weights for all targets that count.
        grad_norm: global norm of the gradients before clipping.
        tokens: tokens read by the model, without padding, whether or not their targets count.
        routing: routing of the tokens, on all ranks; None for models without experts, and for a
            skipped step.
        by_source: counts and sums of the global batch by source.
        policy: the policy that keeps the step from being trained on; None if nothing is wrong.
        wrong: description of the reason; empty if nothing is wrong.
        began: the position before the step.
    """

    verdict: Verdict = Verdict.TAKEN
    loss: float = math.nan
    cross_entropy: float = math.nan
    grad_norm: float = math.nan
    policy: BadStepPolicy | None = None
    routing: Routing | None = None
    by_source: BySource = ONE_SOURCE
    lr: float = math.nan
    tokens: int = 0
    wrong: str = ""
    began: Position = field(default_factory=Position)

    @property
    def step(self) -> int:
        """Number of the step."""
        return self.began.step + 1

    @property
    def cause(self) -> str:
        """Cause in events, spike or non_finite; meaningless if `policy` is None."""
        return "spike" if isinstance(self.policy, SpikedSteps) else "non_finite"


def skipped_metrics(*policies: BadStepPolicy | None) -> dict[str, int]:
    """Columns of skipped steps for a metrics row."""
    skipping = [policy.skipped for policy in policies if policy is not None and policy.skips]
    return {"skipped_steps": sum(skipping)} if skipping else {}


ADVICE = "Lower optimizer.lr or lengthen the warm-up"
