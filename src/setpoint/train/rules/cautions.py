"""Cautions: legal values that are seldom meant; each has a code to silence it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Caution, SetpointError, rule
from setpoint.data.tokenizers.config import HuggingFace
from setpoint.model.config import TransformerConfig
from setpoint.optim.config import ImportedOptimizer, LionConfig, MuonConfig, ScheduleFreeAdamWConfig
from setpoint.optim.schedule.config import Decaying, InverseSqrt, Piecewise, Plateau, Spanning
from setpoint.train.batch import limits_of
from setpoint.train.rules.run import rough_size
from setpoint.units import Duration, Length

if TYPE_CHECKING:
    from setpoint.adapter.config import AdapterConfig
    from setpoint.train.config import Job

CAUTIONS = {
    "fp32-without-tf32": "fp32 products on a GPU are several times as fast in TF32",
    "float8-without-compile": "float8 is slower than bf16 where nothing is compiled",
    "warmup-longer-than-run": "the warm-up is as long as the run, or longer",
    "warmup-longer-than-horizon": "the warm-up ends after the learning-rate curve does",
    "saved-only-at-the-end": "a long run saves no checkpoint before its end",
    "saved-after-the-end": "a step that a checkpoint is to be saved after lies beyond the run",
    "evaluated-but-not-saved": "most evaluated weights are not saved, so they cannot be the best",
    "best-is-the-worst": "what is kept as the best is the worst by its metric",
    "patience-beyond-run": "the run is over before early stopping could end it",
    "plateau-beyond-run": "the run is over before a plateau could lower the learning rate",
    "horizon-differs-from-run": "the learning-rate curve ends before the run does, or after it",
    "learning-rate-high": "the peak learning rate is far above what is usual",
    "schedule-free-with-decay": "the learning rate falls, in place of which the optimizer averages",
    "muon-learning-rate-low": "Muon has a learning rate as for AdamW, whose updates are larger",
    "lion-learning-rate-high": "a learning rate for AdamW is Lion's, whose updates are larger",
    "larger-than-any-machine": "weights, or activations of a micro-batch, fit no machine",
    "conversations-cut": "rows cut conversations, and answers are trained without their questions",
    "conversations-not-isolated": "conversations that share a row attend to each other",
    "positions-never-trained": "some learned positions lie beyond every training sequence",
    "adapter-on-random-weights": "an adapter is trained on weights that nothing has trained",
    "added-tokens-frozen": "an adapter leaves the rows of added tokens as they begin",
    "mup-without-adam": "muP's learning rates are those for Adam, and the optimizer is another one",
    "memory-exceeds-gpu": "a rank is planned to take more memory than a GPU has",
    "gpu-lacks-kernels": "--gpu names a GPU without the number format or attention of the job",
}
"""Meaning of each code; the last two are of `check --plan` and `check --gpu`."""
# Peaks of published runs lie two orders of magnitude below; a slip such as 3e4 lies above.
UNUSUAL_RATE = 0.1
# The largest memory that one machine has, which the largest accelerators have a hundredth of.
ANY_MACHINE = 32 * 2**40
LONG = 1000  # steps; to lose fewer does not hurt
# Published ones lie at 0.01 to 0.05.
LEAST_MUON_RATE = 5e-3
# Lion's authors advise a third to a tenth of AdamW's (Chen et al., 2023).
MOST_LION_RATE = 1e-3


@rule(cautions=CAUTIONS)
def precision_cautions(job: Job) -> Iterator[Caution]:
    """Formats that are slower than they need be."""
    precision = job.precision
    if precision.compute == "fp32" and precision.tf32 is None and job.parallel.device == "cuda":
        yield Caution(
            "fp32-without-tf32",
            "precision.compute",
            "matrix products in fp32 take 4 to 16 times as long on a GPU as in bf16 or TF32",
            valid=("bf16",),
            also=("precision.tf32",),
            hint="Or set precision.tf32 to true, or to false to keep fp32 exact.",
        )
    if precision.float8 is not None and job.compile is None and not precision.float8.emulate:
        yield Caution(
            "float8-without-compile",
            "precision.float8",
            "is slower than bf16 without compile, which fuses scaling and casts into kernels",
            valid=("null",),
            also=("compile",),
            hint="Or set compile to '{}'.",
        )


@rule(cautions=CAUTIONS)
def warmup_cautions(job: Job) -> Iterator[Caution]:
    """A warm-up that is longer than the run or the curve."""
    warmup = _share_of_run(job, job.schedule.rises_over)
    if warmup is not None and warmup >= 1:
        yield Caution(
            "warmup-longer-than-run",
            "schedule.warmup",
            f"{job.schedule.rises_over} of warm-up in a run of {job.duration}: the peak learning "
            f"rate is reached at its very end or never",
            valid=("5 %",) if job.schedule.runs_over is not None else (),
            also=("duration",),
        )
    elif isinstance(job.schedule, Decaying) and job.schedule.outlasting_warmup:
        yield Caution(
            "warmup-longer-than-horizon",
            "schedule.warmup",
            f"{job.schedule.warmup} of warm-up, and the curve ends at {job.schedule.horizon}: the "
            f"learning rate falls from the peak to the floor at once",
            valid=(str(job.schedule.horizon),),
            also=("schedule.horizon",),
        )


@rule(when=lambda job: job.checkpoint.save and job.total_steps() is not None, cautions=CAUTIONS)
def checkpoint_cautions(job: Job) -> Iterator[Caution]:
    """Checkpoints that are saved too late, or not of the weights that are evaluated."""
    steps = job.total_steps()
    assert steps is not None
    yield from _seldom_saved(job, steps)
    named = job.checkpoint.at
    if isinstance(named, tuple) and max(named, default=0) > steps:
        yield Caution(
            "saved-after-the-end",
            "checkpoint.at",
            f"the run ends at step {steps}, before it comes to step {max(named)}",
            also=("duration",),
        )
    every = job.checkpoint.every
    in_steps = every.unit == "steps" and every.count >= steps
    seldom = in_steps or every.unit in ("last_step", "never")
    other = job.checkpoint.at or job.checkpoint.also_every
    if steps >= LONG and seldom and not other:
        yield Caution(
            "saved-only-at-the-end",
            "checkpoint.every",
            f"nothing is saved before the end of {steps} steps; a crash would lose them all",
            valid=(f"{max(steps // 10, 1)} steps",),
            also=("duration",),
        )


def _share_of_run(job: Job, length: Length | Duration) -> float | None:
    """Length as a share of the run; above 1 where it exceeds the run."""
    if isinstance(length, Length):
        if not length:
            return 0.0
        if length.share is not None:
            span = job.schedule.runs_over
            share = None if span is None else _share_of_run(job, span)
            return None if share is None else length.share * share
        length = Duration(str(length))
    if length == job.duration:
        return 1.0
    limits, run = limits_of(length, job.batch), limits_of(job.duration, job.batch)
    if len(limits) > 1 or not limits.keys() <= run.keys():
        return None
    ((unit, count),) = limits.items()
    return count / run[unit]


@rule(when=lambda job: job.evaluation is not None, cautions=CAUTIONS)
def best_cautions(job: Job) -> Iterator[Caution]:
    """A selection that goes the wrong way."""
    assert job.evaluation is not None
    best = job.evaluation.best
    if best.direction != best.usual_direction:
        word = "less" if best.usual_direction == "min" else "more"
        yield Caution(
            "best-is-the-worst",
            "evaluation.best.direction",
            f"{word} {best.metric} is better, and {best.direction} selects the worst model",
            valid=(best.usual_direction,),
            also=("evaluation.best.metric",),
        )


@rule(cautions=CAUTIONS)
def patience_cautions(job: Job) -> Iterator[Caution]:
    """Early stopping or a plateau whose patience is longer than the run."""
    section, steps = job.evaluation, job.total_steps()
    if section is None or steps is None or section.every.unit not in ("steps", "tokens"):
        return
    per_step = job.batch.global_size * job.batch.sequence_length
    # An evaluation after the last step comes too late, and the first one is the best so far.
    trained = (steps - 1) * (per_step if section.every.unit == "tokens" else 1)
    count = int(trained // section.every.count) + section.before_training
    stopping, schedule = section.early_stopping, job.schedule
    late: list[tuple[str, str, str, int]] = []
    if stopping is not None:
        path = "evaluation.early_stopping.patience"
        late.append(("patience-beyond-run", path, "training ends", stopping.patience))
    if isinstance(schedule, Plateau):
        fall = "the learning rate falls"
        late.append(("plateau-beyond-run", "schedule.patience", fall, schedule.patience + 1))
    for code, path, what, patience in late:
        if count <= patience:
            yield Caution(
                code,
                path,
                f"{what} after {patience} evaluations without a gain, after the first, and {count} "
                f"are made before the last step",
                also=("evaluation.every", "duration"),
            )


def _seldom_saved(job: Job, steps: int) -> Iterator[Caution]:
    """A best checkpoint that is chosen among few of the evaluations."""
    section, saves = job.evaluation, job.checkpoint.every
    if section is None or not job.checkpoint.keep_best or job.checkpoint.also_every is not None:
        return
    if (section.every.unit, saves.unit) != ("steps", "steps"):
        return
    # The last step is evaluated and saved in any case.
    interval, period = int(section.every.count), int(saves.count)
    evaluated, saved = (steps - 1) // interval, (steps - 1) // math.lcm(interval, period)
    multiple = period % interval == 0 or interval % period == 0
    if multiple or 2 * saved >= evaluated:
        return
    yield Caution(
        "evaluated-but-not-saved",
        "checkpoint.every",
        f"the best is one that is evaluated and saved, and of {evaluated} evaluations before the "
        f"end {saved} are of weights that are saved",
        valid=(str(section.every),),
        also=("evaluation.every", "checkpoint.keep_best"),
    )


@rule(cautions=CAUTIONS)
def horizon_cautions(job: Job) -> Iterator[Caution]:
    """A schedule that ends where the run does not."""
    section, end = job.schedule, job.schedule.end
    share = None if end is None else _share_of_run(job, end)
    stated = isinstance(section, Spanning) and section.horizon_share is not None
    if end is None or share is None or share == 1 or stated:
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
            return  # the last phase keeps its rate on purpose
        else:
            effect = "the rest of the run trains at a rate of 0"
    yield Caution(
        "horizon-differs-from-run",
        path,
        f"the curve ends at {end} and the run at {job.duration}: {effect}",
        valid=valid,
        also=("duration",),
    )


@rule(cautions=CAUTIONS)
def optimizer_cautions(job: Job) -> Iterator[Caution]:
    """Learning rates that are unusual, or belong to another optimizer."""
    if job.optimizer.lr > UNUSUAL_RATE:
        yield Caution(
            "learning-rate-high",
            "optimizer.lr",
            f"a peak learning rate above {UNUSUAL_RATE:g} is unusual for type = "
            f"{type(job.optimizer).__setpoint__.tag}",
        )
    optimizer, schedule = job.optimizer, job.schedule
    decays = isinstance(schedule, Decaying | InverseSqrt | Plateau)
    if isinstance(optimizer, ScheduleFreeAdamWConfig) and decays:
        yield Caution(
            "schedule-free-with-decay",
            "schedule",
            "schedule_free_adamw averages its weights instead of lowering the learning rate; "
            "where the rate falls as well, the average moves ever less",
            valid=("constant", "none"),
            also=("optimizer",),
        )
    is_original = isinstance(optimizer, MuonConfig) and optimizer.adjust_lr == "original"
    if is_original and optimizer.lr < LEAST_MUON_RATE:
        yield Caution(
            "muon-learning-rate-low",
            "optimizer.lr",
            f"Muon's updates are orthogonal matrices, and below {LEAST_MUON_RATE:g} they are "
            f"small; with adjust_lr = match_rms_adamw they are as large as AdamW's",
            valid=("0.02",),
            also=("optimizer.adjust_lr",),
            hint="Set lr to 0.02, or adjust_lr to match_rms_adamw.",
        )
    if isinstance(optimizer, LionConfig) and optimizer.lr > MOST_LION_RATE:
        yield Caution(
            "lion-learning-rate-high",
            "optimizer.lr",
            f"all elements move by lr, and rates are three to ten times below AdamW's; above "
            f"{MOST_LION_RATE:g} is unusual",
            valid=(f"{optimizer.lr / 10:g}",),
            also=("optimizer",),
        )


@rule(when=lambda job: isinstance(job.model, TransformerConfig), cautions=CAUTIONS)
def size_cautions(job: Job) -> Iterator[Caution]:
    """Weights and activations that exceed any machine whatever else is chosen."""
    model, batch, ranks = job.model, job.batch, job.parallel.world_size
    assert isinstance(model, TransformerConfig)
    bound = ANY_MACHINE * ranks
    # Counted exactly only where it may come near: nearly all jobs are far away.
    if rough_size(job) > 10**12:
        from setpoint.train.build.job_parameters import training_bytes  # most jobs need no count

        weights = training_bytes(job)
        if weights is not None and weights > bound:
            yield Caution(
                "larger-than-any-machine",
                "model",
                f"parameters, gradients and optimizer state take at least {weights / 2**40:,.1f} "
                f"TiB, and {ranks} of the largest machines hold {bound / 2**40:,.0f} TiB together",
            )
    width = 4 if job.precision.compute == "fp32" else 2
    hidden = batch.micro_size * batch.sequence_length * model.dim * width
    if hidden > ANY_MACHINE:
        yield Caution(
            "larger-than-any-machine",
            "batch.micro_size",
            f"the output of one layer for {batch.micro_size} sequences of {batch.sequence_length} "
            f"tokens takes {hidden / 2**40:,.1f} TiB, and no machine has more than "
            f"{ANY_MACHINE / 2**40:,.0f} TiB",
            also=("batch.sequence_length", "model.dim"),
            hint="batch.accumulation divides the global batch into smaller ones.",
        )


@rule(when=lambda job: job.data.has_answers, cautions=CAUTIONS)
def packing_cautions(job: Job) -> Iterator[Caution]:
    """Questions apart from their answers, and beside those of other conversations."""
    packing = job.data.packing
    methods = ("next_fit", "first_fit_decreasing") if job.model.takes_documents else ()
    if packing.method == "concatenate":
        yield Caution(
            "conversations-cut",
            "data.packing.method",
            "rows of concatenated conversations end anywhere, so answers are trained without their "
            "questions",
            valid=(*methods, "none"),
            also=("data.sources",),
        )
    elif packing.method != "none" and not packing.isolate:
        yield Caution(
            "conversations-not-isolated",
            "data.packing.isolate",
            "conversations attend to those before them in their row",
            valid=("true",) if methods else (),
            also=("data.packing.method", "data.sources"),
            hint="" if methods else "Or set data.packing.method to none.",
        )


def _reaches_embedding(adapter: AdapterConfig) -> bool:
    if not adapter.can_be_searched:
        return True  # a bad pattern is reported elsewhere
    names = "embedding.weight", "model.embed_tokens.weight", "transformer.wte.weight"
    modules = [name.removesuffix(".weight") for name in names]
    return any(re.search(pattern, name) for pattern in adapter.train for name in names) or any(
        re.search(pattern, name) for pattern in adapter.targets or () for name in modules
    )


@rule(
    needs="files",
    when=lambda job: job.adapter is not None and job.model.pretrained is not None,
    cautions=CAUTIONS,
)
def new_row_cautions(job: Job) -> Iterator[Caution]:
    """Rows of tokens that the weights beneath an adapter do not have, where it freezes them."""
    from setpoint.data.tokenizers.vocabulary import vocabulary_size
    from setpoint.model.pretrained.check import vocabulary_of
    from setpoint.model.pretrained.locate import locate_here

    assert job.adapter is not None and job.model.pretrained is not None
    if isinstance(job.tokenizer, HuggingFace) and job.tokenizer.added:
        return  # which has its own caution
    try:
        place = locate_here(job.model.pretrained)
        rows = None if place is None else vocabulary_of(place)
    except SetpointError:
        return  # reported elsewhere
    size = vocabulary_size(job.tokenizer)
    if rows is None or size is None or size <= rows or _reaches_embedding(job.adapter):
        return
    yield Caution(
        "added-tokens-frozen",
        "adapter.train",
        f"the rows of {size - rows} tokens that the weights lack stay as they begin: the adapter "
        f"freezes the embedding",
        valid=("[^embedding, ^output]",) if isinstance(job.model, TransformerConfig) else (),
        also=("model.pretrained", "tokenizer"),
    )


@rule(when=lambda job: isinstance(job.model, TransformerConfig), cautions=CAUTIONS)
def model_cautions(job: Job) -> Iterator[Caution]:
    """Positions that are never trained, adapters of random weights, and muP without Adam."""
    model, length = job.model, job.batch.sequence_length
    assert isinstance(model, TransformerConfig)
    rows = model.max_sequence_length
    if model.positions == "learned" and model.pretrained is None and rows > length:
        yield Caution(
            "positions-never-trained",
            "model.max_sequence_length",
            f"of {rows} learned positions only the first {length} occur in training; the others "
            f"stay random",
            valid=(str(length),),
            also=("batch.sequence_length", "model.positions"),
        )
    if (
        job.adapter is not None
        and job.adapter.merge is None
        and model.pretrained is None
        and job.checkpoint.load is None
    ):
        yield Caution(
            "adapter-on-random-weights",
            "adapter",
            "the base weights are random and stay frozen",
            also=("model.pretrained", "checkpoint.load"),
            hint="Set model.pretrained to the model that it is to adapt.",
        )
    added = job.tokenizer.added if isinstance(job.tokenizer, HuggingFace) else ()
    if added and job.adapter is not None and not _reaches_embedding(job.adapter):
        yield Caution(
            "added-tokens-frozen",
            "adapter.train",
            f"the rows of {', '.join(added[:3])}{' ...' * (len(added) > 3)} stay as they begin: "
            f"the adapter freezes the embedding",
            valid=("[^embedding, ^output]",),
            also=("tokenizer.added",),
        )
    if model.mup is None:
        return
    optimizer = job.optimizer
    imported = isinstance(optimizer, ImportedOptimizer)
    name = str(optimizer.target) if imported else str(type(optimizer).__setpoint__.tag)
    if "adam" not in name.lower():
        yield Caution(
            "mup-without-adam",
            "model.mup.base_dim",
            f"its learning rates are those for Adam and its kin, and the optimizer is {name}, for "
            f"which widths may need others",
            also=("optimizer",),
        )
