"""What is legal in a training job and yet seldom meant; each finding has a code to silence it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Caution
from setpoint.model.config import Transformer
from setpoint.optim.config import ImportedOptimizer

if TYPE_CHECKING:
    from setpoint.train.config import Job

WARMUP = "warmup-longer-than-run"
HORIZON = "horizon-differs-from-run"
NEVER_SAVED = "saved-only-at-the-end"
HIGH_RATE = "learning-rate-high"
UNTRAINED_POSITIONS = "positions-never-trained"
MUP_WITHOUT_ADAM = "mup-without-adam"
CAUTIONS = {
    WARMUP: "the warm-up is as long as the run, or longer",
    HORIZON: "the learning-rate curve ends before the run does, or after it",
    NEVER_SAVED: "a long run saves no checkpoint before its end",
    HIGH_RATE: "the peak learning rate is far above what is usual",
    UNTRAINED_POSITIONS: "some learned positions lie beyond every training sequence",
    MUP_WITHOUT_ADAM: "muP's learning rates are those for Adam, and the optimizer is another one",
}

# Peaks of published runs lie two orders of magnitude below; a slip such as 3e4 lies above.
UNUSUAL_RATE = 0.1
LONG = 1000  # updates whose loss hurts


def suspicious(job: Job) -> Iterator[Caution]:
    """Look for what is seldom meant.

    Arguments:
        job: the configuration, with every value determined.

    Returns:
        the findings.
    """
    updates = job.updates()
    if job.optimizer.lr > UNUSUAL_RATE:
        yield Caution(
            HIGH_RATE,
            "optimizer.lr",
            f"a peak learning rate above {UNUSUAL_RATE:g} is unusual for type = "
            f"{type(job.optimizer).__setpoint__.tag}",
        )
    yield from _suspicious_model(job)
    if updates is None:
        return
    warmup = getattr(job.schedule, "warmup_steps", 0)
    if warmup >= updates:
        yield Caution(
            WARMUP,
            "schedule.warmup_steps",
            f"{warmup} updates of warm-up in a run of {updates}: the peak learning rate is "
            f"reached at its very end or never",
            valid=(str(updates // 20),),
            also=("duration",),
        )
    horizon = getattr(job.schedule, "horizon_steps", updates)
    if horizon != updates:
        effect = (
            f"the last {updates - horizon} train at the floor"
            if horizon < updates
            else "the learning rate never comes down to the floor"
        )
        yield Caution(
            HORIZON,
            "schedule.horizon_steps",
            f"the curve ends at update {horizon} and the run at {updates}: {effect}",
            valid=(str(updates),),
            also=("duration",),
        )
    every = job.checkpoint.every
    in_steps = every.unit == "steps" and every.count >= updates
    if updates >= LONG and (in_steps or every.unit in ("last_step", "never")):
        yield Caution(
            NEVER_SAVED,
            "checkpoint.every",
            f"nothing is saved before the end of {updates} updates; a crash would lose them all",
            valid=(f"{max(updates // 10, 1)} steps",),
            also=("duration",),
        )


def _suspicious_model(job: Job) -> Iterator[Caution]:
    """What the model asks of the other sections and seldom gets on purpose."""
    model, length = job.model, job.batch.sequence_length
    if not isinstance(model, Transformer):
        return
    rows = model.max_sequence_length
    if model.positions == "learned" and model.pretrained is None and rows > length:
        yield Caution(
            UNTRAINED_POSITIONS,
            "model.max_sequence_length",
            f"of {rows} learned positions only the first {length} occur in training; the others "
            f"stay random",
            valid=(str(length),),
            also=("batch.sequence_length", "model.positions"),
        )
    if model.mup is None:
        return
    optimizer = job.optimizer
    imported = isinstance(optimizer, ImportedOptimizer)
    name = str(optimizer.target) if imported else type(optimizer).__name__
    if "adam" not in name.lower():
        yield Caution(
            MUP_WITHOUT_ADAM,
            "model.mup.base_dim",
            f"its learning rates are those for Adam and its kin, and the optimizer is {name}, for "
            f"which widths may need others",
            also=("optimizer",),
        )
