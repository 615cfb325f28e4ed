"""Cautions: what is legal and yet seldom meant; each finding has a code to silence it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Caution
from setpoint.model.config import Transformer
from setpoint.optim.config import (
    ImportedOptimizer,
    InverseSqrt,
    Lion,
    Muon,
    Piecewise,
    Plateau,
    ScheduleFreeAdamW,
)
from setpoint.optim.schedule.config import Decaying
from setpoint.train.batch import share_of_run

if TYPE_CHECKING:
    from setpoint.train.config import Job

WARMUP = "warmup-longer-than-run"
HORIZON = "horizon-differs-from-run"
NEVER_SAVED = "saved-only-at-the-end"
HIGH_RATE = "learning-rate-high"
UNTRAINED_POSITIONS = "positions-never-trained"
MUP_WITHOUT_ADAM = "mup-without-adam"
DECAYS_ANYWAY = "schedule-free-with-decay"
LOW_MUON_RATE = "muon-learning-rate-low"
MUON_RATE_FOR_ADAMW = "muon-rate-for-adamw"
HIGH_LION_RATE = "lion-learning-rate-high"
JUDGED_UNSAVED = "judged-but-not-saved"
HOPELESS_PATIENCE = "patience-beyond-run"
HOPELESS_PLATEAU = "plateau-beyond-run"
WORST_IS_BEST = "best-is-the-worst"
UNUSED_ROWS = "vocabulary-mostly-unused"
TOO_LARGE = "larger-than-any-machine"
CAUTIONS = {
    TOO_LARGE: "the weights, or the activations of a micro-batch, do not fit any machine",
    WARMUP: "the warm-up is as long as the run, or longer",
    HORIZON: "the learning-rate curve ends before the run does, or after it",
    NEVER_SAVED: "a long run saves no checkpoint before its end",
    HIGH_RATE: "the peak learning rate is far above what is usual",
    UNTRAINED_POSITIONS: "some learned positions lie beyond every training sequence",
    HOPELESS_PATIENCE: "the run is over before early stopping could end it",
    HOPELESS_PLATEAU: "the run is over before a plateau could lower the learning rate",
    WORST_IS_BEST: "what is kept as the best is the worst by its metric",
    MUP_WITHOUT_ADAM: "muP's learning rates are those for Adam, and the optimizer is another one",
    DECAYS_ANYWAY: "the optimizer takes the place of a falling learning rate, and the rate falls",
    LOW_MUON_RATE: "a learning rate for AdamW is Muon's, whose updates are of another size",
    MUON_RATE_FOR_ADAMW: "AdamW gets the learning rate of Muon's matrices for what is not a matrix",
    HIGH_LION_RATE: "a learning rate for AdamW is Lion's, whose updates are larger",
    JUDGED_UNSAVED: "most evaluations judge weights that are not saved, so that none is the best",
}
UNUSED_ROWS_MEANS = "most rows of the embedding stand for no token of the tokenizer"

# Peaks of published runs lie two orders of magnitude below; a slip such as 3e4 lies above.
UNUSUAL_RATE = 0.1
# The largest memory that one machine has, which the largest accelerators have a hundredth of.
ANY_MACHINE = 32 * 2**40
LONG = 1000  # updates whose loss hurts
# Published ones lie at 0.01 to 0.05; switching the type keeps the rate that AdamW had.
LEAST_MUON_RATE = 5e-3
# Lion's authors advise a third to a tenth of AdamW's (Chen et al., 2023).
MOST_LION_RATE = 1e-3


def suspicious(job: Job) -> Iterator[Caution]:
    """Look for what is seldom meant."""
    updates = job.updates()
    if job.optimizer.lr > UNUSUAL_RATE:
        yield Caution(
            HIGH_RATE,
            "optimizer.lr",
            f"a peak learning rate above {UNUSUAL_RATE:g} is unusual for type = "
            f"{type(job.optimizer).__setpoint__.tag}",
        )
    yield from _too_large(job)
    yield from _suspicious_model(job)
    yield from _suspicious_optimizer(job)
    yield from _suspicious_best(job)
    warmup = share_of_run(job, job.schedule.rises_over)
    if warmup is not None and warmup >= 1:
        yield Caution(
            WARMUP,
            "schedule.warmup",
            f"{job.schedule.rises_over} of warm-up in a run of {job.duration}: the peak learning "
            f"rate is reached at its very end or never",
            valid=("5 %",) if job.schedule.runs_over is not None else (),
            also=("duration",),
        )
    yield from _suspicious_end(job)
    if updates is None:
        return
    yield from _suspicious_patience(job)
    yield from _seldom_saved(job, updates)
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


def _suspicious_best(job: Job) -> Iterator[Caution]:
    """A selection that goes the wrong way."""
    best = job.evaluation.best if job.evaluation is not None else None
    if best is not None and best.direction != best.usual_direction:
        word = "less" if best.usual_direction == "min" else "more"
        yield Caution(
            WORST_IS_BEST,
            "evaluation.best.direction",
            f"{word} {best.metric} is better, and {best.direction} selects the worst model",
            valid=(best.usual_direction,),
            also=("evaluation.best.metric",),
        )


def _suspicious_patience(job: Job) -> Iterator[Caution]:
    """Evaluations that are waited for and never come."""
    section, cadence = job.evaluation, ("evaluation.every", "duration")
    if section is not None and section.early_stopping is not None:
        hopeless = hopeless_patience(job)
        if hopeless is not None:
            path = "evaluation.early_stopping.patience"
            yield Caution(HOPELESS_PATIENCE, path, hopeless, also=cadence)
    if isinstance(job.schedule, Plateau):
        hopeless = hopeless_plateau(job)
        if hopeless is not None:
            yield Caution(HOPELESS_PLATEAU, "schedule.patience", hopeless, also=cadence)


def _seldom_saved(job: Job, updates: int) -> Iterator[Caution]:
    """A best checkpoint that is chosen among few of the evaluations."""
    section, saves = job.evaluation, job.checkpoint.every
    if section is None or not job.checkpoint.keep_best:
        return
    judges = section.every
    if (judges.unit, saves.unit) != ("steps", "steps"):
        return
    # The last update is judged and saved in any case.
    each, period = int(judges.count), int(saves.count)
    judged, saved = (updates - 1) // each, (updates - 1) // math.lcm(each, period)
    multiple = period % each == 0 or each % period == 0
    if multiple or 2 * saved >= judged:
        return
    yield Caution(
        JUDGED_UNSAVED,
        "checkpoint.every",
        f"the best is one that is judged and saved, and of {judged} evaluations before the "
        f"end {saved} are of weights that are saved",
        valid=(str(judges),),
        also=("evaluation.every", "checkpoint.keep_best"),
    )


def _suspicious_end(job: Job) -> Iterator[Caution]:
    """A curve that ends where the run does not."""
    section, end = job.schedule, job.schedule.end
    share = None if end is None else share_of_run(job, end)
    if end is None or share is None or share == 1:
        return
    path, valid = "schedule.horizon", (str(job.duration),)
    effect = "the learning rate never comes down to the floor"
    if share < 1:
        effect = "the rest of the run trains at the floor"
    if isinstance(section, Piecewise):
        path, valid = "schedule.phases", ()
        if share > 1:
            effect = "the last target is never reached"
        elif section.phases[-1].target:
            return  # to stay somewhere after the last phase is what it is for
        else:
            effect = "the rest of the run learns nothing, as the last target is 0"
    yield Caution(
        HORIZON,
        path,
        f"the curve ends at {end} and the run at {job.duration}: {effect}",
        valid=valid,
        also=("duration",),
    )


def _suspicious_optimizer(job: Job) -> Iterator[Caution]:
    """Rates that belong to another optimizer."""
    optimizer, schedule = job.optimizer, job.schedule
    decays = isinstance(schedule, Decaying | InverseSqrt | Plateau)
    if isinstance(optimizer, ScheduleFreeAdamW) and decays:
        yield Caution(
            DECAYS_ANYWAY,
            "schedule",
            "schedule_free_adamw averages its weights instead of lowering the learning rate; "
            "where the rate falls as well, the average moves ever less",
            valid=("constant", "none"),
            also=("optimizer",),
        )
    if isinstance(optimizer, Muon) and optimizer.adjust_lr == "original":
        yield from _suspicious_muon(optimizer)
    if isinstance(optimizer, Lion) and optimizer.lr > MOST_LION_RATE:
        yield Caution(
            HIGH_LION_RATE,
            "optimizer.lr",
            f"all elements move by lr, and rates are three to ten times below AdamW's; above "
            f"{MOST_LION_RATE:g} is unusual",
            valid=(f"{optimizer.lr / 10:g}",),
            also=("optimizer",),
        )


def _suspicious_muon(optimizer: Muon) -> Iterator[Caution]:
    """One of two rates that fits the other algorithm: updates are not adjusted to be alike."""
    if optimizer.lr < LEAST_MUON_RATE:
        keep = "" if optimizer.adamw_lr is not None else f" and adamw_lr to {optimizer.lr:g}"
        yield Caution(
            LOW_MUON_RATE,
            "optimizer.lr",
            f"Muon's updates are orthogonal matrices, and below {LEAST_MUON_RATE:g} they are "
            f"small; with adjust_lr = match_rms_adamw they are as large as AdamW's",
            valid=("0.02",),
            also=("optimizer.adjust_lr", "optimizer.adamw_lr"),
            hint=f"Set lr to 0.02{keep}, or adjust_lr to match_rms_adamw.",
        )
    elif optimizer.lr > LEAST_MUON_RATE and optimizer.adamw_lr is None:
        yield Caution(
            MUON_RATE_FOR_ADAMW,
            "optimizer.adamw_lr",
            f"embeddings, the output and norms are AdamW's, and {optimizer.lr:g} is a rate for "
            f"orthogonal matrices; AdamW's is usually about a tenth",
            valid=(f"{optimizer.lr / 10:g}",),
            also=("optimizer.lr", "optimizer.adjust_lr"),
        )


def _too_large(job: Job) -> Iterator[Caution]:
    """What exceeds any machine whatever else is chosen."""
    model, batch, ranks = job.model, job.batch, job.parallel.world_size
    if not isinstance(model, Transformer):
        return
    bound = ANY_MACHINE * ranks
    # Counted exactly only where it may come near: nearly all jobs are far away.
    if model.dim * (model.dim + (model.ffn_dim or 0)) * model.layers > 10**11:
        from setpoint.train.build.parameters import least_weights  # most jobs need no count

        weights = least_weights(job)
        if weights is not None and weights > bound:
            yield Caution(
                TOO_LARGE,
                "model",
                f"parameters, gradients and optimizer state take at least {weights / 2**40:,.1f} "
                f"TiB, and {ranks} of the largest machines hold {bound / 2**40:,.0f} TiB together",
            )
    width = 4 if job.precision.compute == "fp32" else 2
    hidden = batch.micro_size * batch.sequence_length * model.dim * width
    if hidden > ANY_MACHINE:
        yield Caution(
            TOO_LARGE,
            "batch.micro_size",
            f"the output of one layer for {batch.micro_size} sequences of {batch.sequence_length} "
            f"tokens takes {hidden / 2**40:,.1f} TiB, and no machine has more than "
            f"{ANY_MACHINE / 2**40:,.0f} TiB",
            also=("batch.sequence_length", "model.dim"),
            hint="batch.accumulation divides the global batch into smaller ones.",
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


def hopeless_patience(job: Job) -> str | None:
    """Tell whether a run is over before training can have stopped getting better.

    Returns:
        that it is, in words; None if it is not, if nothing ends early, or if nobody can tell.
    """
    stopping = job.evaluation.early_stopping if job.evaluation is not None else None
    count = _evaluations_in_time(job)
    # The first evaluation is the best so far.
    if stopping is None or count is None or count > stopping.patience:
        return None
    return (
        f"training ends after {stopping.patience} evaluations without a gain, after the first, "
        f"and {count} are made before the last update"
    )


def hopeless_plateau(job: Job) -> str | None:
    """Tell whether a run is over before a plateau can have lowered the learning rate.

    Returns:
        that it is, in words; None if it is not, for other schedules, or if nobody can tell.
    """
    section, count = job.schedule, _evaluations_in_time(job)
    if not isinstance(section, Plateau) or count is None or count > section.patience + 1:
        return None
    return (
        f"the learning rate falls after {section.patience + 1} evaluations without a gain, after "
        f"the first, and {count} are made before the last update"
    )


def _evaluations_in_time(job: Job) -> int | None:
    """How many evaluations count and can change the run; None if nobody can tell."""
    section, updates = job.evaluation, job.updates()
    per_update = {"steps": 1, "tokens": job.batch.global_size * job.batch.sequence_length}
    if section is None or updates is None or section.every.unit not in per_update:
        return None
    every = section.every
    # What is seen after the last update comes too late.
    count = int((updates - 1) * per_update[every.unit] // every.count)
    return count + section.before_training
