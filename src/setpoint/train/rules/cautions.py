"""Cautions: valid settings that are rarely intended; each has a code that silences it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Caution, SetpointError, plural, rule
from setpoint.data.config import HuggingFace
from setpoint.model.config import ModelConfig, TransformerConfig
from setpoint.optim.config import ImportedOptimizer, LionConfig, MuonConfig, ScheduleFreeAdamWConfig
from setpoint.optim.schedule import Decaying, InverseSqrt, Piecewise, Plateau, Spanning
from setpoint.train.config import limits_of
from setpoint.units import Duration, Length

if TYPE_CHECKING:
    from setpoint.adapter.config import AdapterConfig
    from setpoint.train.config import Job

MOST_OTHER_TOKENS = 0.1
"""Share of tokens that may differ from the tokenizer of the weights, such as reserved ones."""

CAUTIONS = {
    "fp32-without-tf32": "fp32 matrix products on a GPU are several times slower than in TF32",
    "float8-without-compile": "float8 is slower than bf16 without compile",
    "ramp-longer-than-run": "the run ends before its batches have their full size",
    "warmup-longer-than-run": "the warm-up is as long as the run or longer",
    "warmup-longer-than-horizon": "the warm-up ends after the learning-rate curve",
    "saved-only-at-the-end": "a long run saves no checkpoint before its end",
    "saved-after-the-end": "checkpoint.at names a step after the end of the run",
    "evaluated-but-not-saved": "most evaluated weights are never saved, so they cannot be kept "
    "as the best",
    "best-is-the-worst": "the direction of the best checkpoint selects the worst value of its "
    "metric",
    "patience-beyond-run": "the run ends before early stopping could end it",
    "plateau-beyond-run": "the run ends before the plateau schedule could lower the learning rate",
    "horizon-differs-from-run": "the learning-rate curve ends before or after the run",
    "learning-rate-high": "the peak learning rate is far above the usual range",
    "schedule-free-with-decay": "the learning rate decays, although the optimizer averages "
    "weights instead",
    "muon-learning-rate-low": "the learning rate is usual for AdamW and too low for Muon with "
    "adjust_lr = original",
    "lion-learning-rate-high": "the learning rate is usual for AdamW and too high for Lion",
    "larger-than-any-machine": "weights, or activations of a micro-batch, exceed the memory of "
    "any machine",
    "conversations-cut": "rows cut conversations, so answers are trained without their questions",
    "conversations-not-isolated": "conversations packed into one row attend to each other",
    "positions-never-trained": "some learned positions lie beyond the training sequence length",
    "adapter-on-random-weights": "an adapter is trained on randomly initialized base weights",
    "other-tokenizer": "the tokenizer is not that of the pretrained weights",
    "added-tokens-frozen": "an adapter freezes the embedding rows of added tokens at their "
    "initial values",
    "mup-without-adam": "muP's learning-rate rules are for Adam, and the optimizer is a "
    "different one",
    "memory-exceeds-gpu": "a rank needs more memory than the GPU has",
    "gpu-lacks-kernels": "the GPU of --gpu lacks the dtype or attention kernel of the job",
}
"""Meaning of each code; the last two belong to `check --plan` and `check --gpu`."""
# Peaks of published runs are two orders of magnitude lower; a slip such as 3e4 is higher.
UNUSUAL_RATE = 0.1
LONG = 1000  # steps; losing fewer is acceptable
# Published values are 0.01 to 0.05.
LEAST_MUON_RATE = 5e-3
# Lion's authors advise a third to a tenth of AdamW's (Chen et al., 2023).
MOST_LION_RATE = 1e-3


@rule(cautions=CAUTIONS)
def precision_cautions(job: Job) -> Iterator[Caution]:
    """Number formats that are slower than necessary."""
    precision = job.precision
    if precision.compute == "fp32" and precision.tf32 is None and job.parallel.device == "cuda":
        yield Caution(
            "fp32-without-tf32",
            "precision.compute",
            "on a GPU, fp32 matrix products take 4 to 16 times as long as in bf16 or TF32",
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
    """A warm-up that outlasts the run or the learning-rate curve."""
    warmup = _share_of_run(job, job.schedule.rises_over)
    if warmup is not None and warmup >= 1:
        yield Caution(
            "warmup-longer-than-run",
            "schedule.warmup",
            f"a warm-up of {job.schedule.rises_over} in a run of {job.duration} reaches the peak "
            "learning rate at the very end or never",
            valid=("5 %",) if job.schedule.runs_over is not None else (),
            also=("duration",),
        )
    elif isinstance(job.schedule, Decaying) and job.schedule.outlasting_warmup:
        yield Caution(
            "warmup-longer-than-horizon",
            "schedule.warmup",
            f"a warm-up of {job.schedule.warmup} outlasts the curve, which ends at "
            f"{job.schedule.horizon}: the learning rate drops from the peak to the floor in one "
            "step",
            valid=(str(job.schedule.horizon),),
            also=("schedule.horizon",),
        )


@rule(when=lambda job: job.batch.ramp is not None, cautions=CAUTIONS)
def ramp_cautions(job: Job) -> Iterator[Caution]:
    """A batch size ramp that outlasts the run."""
    steps, last = job.total_steps(), job.batch.stages[-1]
    if steps is not None and last.step >= steps:
        yield Caution(
            "ramp-longer-than-run",
            "batch.ramp.over",
            f"batches reach {last.size} sequences after {last.step} steps, and the run ends after "
            f"{steps}",
            also=("duration", "batch.global_size"),
        )


@rule(when=lambda job: job.checkpoint.save and job.total_steps() is not None, cautions=CAUTIONS)
def checkpoint_cautions(job: Job) -> Iterator[Caution]:
    """Checkpoints that are saved too late, or at other steps than evaluations."""
    steps = job.total_steps()
    assert steps is not None
    yield from _seldom_saved(job, steps)
    named = job.checkpoint.at
    if isinstance(named, tuple) and max(named, default=0) > steps:
        yield Caution(
            "saved-after-the-end",
            "checkpoint.at",
            f"step {max(named)} is never reached: the run ends at step {steps}",
            also=("duration",),
        )
    every = job.checkpoint.every
    beyond_run = every.unit == "steps" and every.count >= steps
    saves_once = beyond_run or every.unit in ("last_step", "never")
    other_saves = job.checkpoint.at or job.checkpoint.also_every
    if steps >= LONG and saves_once and not other_saves:
        yield Caution(
            "saved-only-at-the-end",
            "checkpoint.every",
            f"no checkpoint is saved before the end of {steps} steps; a crash would lose all of "
            "them",
            valid=(f"{max(steps // 10, 1)} steps",),
            also=("duration",),
        )


def _share_of_run(job: Job, length: Length | Duration) -> float | None:
    """Length as a fraction of the run; above 1 if it exceeds the run."""
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
    """A best checkpoint that is selected in the wrong direction."""
    assert job.evaluation is not None
    best = job.evaluation.best
    if best.direction != best.usual_direction:
        word = "a lower" if best.usual_direction == "min" else "a higher"
        yield Caution(
            "best-is-the-worst",
            "evaluation.best.direction",
            f"{word} {best.metric} is better, so {best.direction} selects the worst model",
            valid=(best.usual_direction,),
            also=("evaluation.best.metric",),
        )


@rule(cautions=CAUTIONS)
def patience_cautions(job: Job) -> Iterator[Caution]:
    """Early stopping or a plateau schedule whose patience exceeds the run."""
    section, steps = job.evaluation, job.total_steps()
    if section is None or steps is None or section.every.unit not in ("steps", "tokens"):
        return
    # An evaluation after the last step is too late, and the first is always the best so far.
    trained = steps - 1
    if section.every.unit == "tokens":
        trained = job.batch.sequences_before(trained) * job.batch.sequence_length
    count = int(trained // section.every.count) + section.before_training
    stopping, schedule = section.early_stopping, job.schedule
    late: list[tuple[str, str, str, int]] = []
    if stopping is not None:
        path = "evaluation.early_stopping.patience"
        late.append(("patience-beyond-run", path, "training ends", stopping.patience))
    if isinstance(schedule, Plateau):
        fall = "the learning rate falls"
        late.append(("plateau-beyond-run", "schedule.patience", fall, schedule.patience + 1))
    for code, path, event, patience in late:
        if count <= patience:
            yield Caution(
                code,
                path,
                f"{event} after {patience} evaluations without improvement over an earlier one, "
                f"but the run makes only {count} before its last step",
                also=("evaluation.every", "duration"),
            )


def _seldom_saved(job: Job, steps: int) -> Iterator[Caution]:
    """A best checkpoint that is chosen among few of the evaluations."""
    section, saves = job.evaluation, job.checkpoint.every
    if section is None or not job.checkpoint.keep_best or job.checkpoint.also_every is not None:
        return
    if (section.every.unit, saves.unit) != ("steps", "steps"):
        return
    # The last step is always evaluated and saved.
    interval, period = int(section.every.count), int(saves.count)
    evaluated, saved = (steps - 1) // interval, (steps - 1) // math.lcm(interval, period)
    multiple = period % interval == 0 or interval % period == 0
    if multiple or 2 * saved >= evaluated:
        return
    yield Caution(
        "evaluated-but-not-saved",
        "checkpoint.every",
        f"the best checkpoint must be both evaluated and saved, but only {saved} of "
        f"{plural(evaluated, 'evaluation')} before the end coincide with a save",
        valid=(str(section.every),),
        also=("evaluation.every", "checkpoint.keep_best"),
    )


@rule(cautions=CAUTIONS)
def horizon_cautions(job: Job) -> Iterator[Caution]:
    """A schedule that does not end with the run."""
    section, end = job.schedule, job.schedule.end
    share = None if end is None else _share_of_run(job, end)
    stated = isinstance(section, Spanning) and section.horizon_share is not None
    if end is None or share is None or share == 1 or stated:
        return
    path, valid = "schedule.horizon", (str(job.duration),)
    effect = "the learning rate never reaches the floor"
    if share < 1:
        effect = "the rest of the run trains at the floor"
    if isinstance(section, Piecewise):
        path, valid = "schedule.phases", ()
        if share > 1:
            effect = "the last target is never reached"
        elif section.phases[-1].target:
            return  # the last phase keeps its rate intentionally
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
    """Learning rates that are unusual or meant for another optimizer."""
    if job.optimizer.lr > UNUSUAL_RATE:
        yield Caution(
            "learning-rate-high",
            "optimizer.lr",
            f"peak learning rates above {UNUSUAL_RATE:g} are unusual for optimizer.type = "
            f"{type(job.optimizer).__setpoint__.tag}",
        )
    optimizer, schedule = job.optimizer, job.schedule
    decays = isinstance(schedule, Decaying | InverseSqrt | Plateau)
    if isinstance(optimizer, ScheduleFreeAdamWConfig) and decays:
        yield Caution(
            "schedule-free-with-decay",
            "schedule",
            "schedule_free_adamw averages weights instead of decaying the learning rate; with a "
            "decaying rate the average moves less and less",
            valid=("constant", "none"),
            also=("optimizer",),
        )
    is_original = isinstance(optimizer, MuonConfig) and optimizer.adjust_lr == "original"
    if is_original and optimizer.lr < LEAST_MUON_RATE:
        yield Caution(
            "muon-learning-rate-low",
            "optimizer.lr",
            f"with adjust_lr = original a learning rate below {LEAST_MUON_RATE:g} makes Muon's "
            "updates very small; with match_rms_adamw they are as large as AdamW's",
            valid=("0.02",),
            also=("optimizer.adjust_lr",),
            hint="Set lr to 0.02, or adjust_lr to match_rms_adamw.",
        )
    if isinstance(optimizer, LionConfig) and optimizer.lr > MOST_LION_RATE:
        yield Caution(
            "lion-learning-rate-high",
            "optimizer.lr",
            "every element moves by lr in each step, so Lion's rates are three to ten times "
            f"lower than AdamW's; above {MOST_LION_RATE:g} is unusual",
            valid=(f"{optimizer.lr / 10:g}",),
            also=("optimizer",),
        )


@rule(when=lambda job: job.data.has_answers, cautions=CAUTIONS)
def packing_cautions(job: Job) -> Iterator[Caution]:
    """Packing that cuts conversations, or lets them attend to each other."""
    packing = job.data.packing
    methods = ("next_fit", "first_fit_decreasing") if job.model.takes_documents else ()
    if packing.method == "concatenate":
        yield Caution(
            "conversations-cut",
            "data.packing.method",
            "rows of concatenated conversations end anywhere, so some answers are trained "
            "without their questions",
            valid=(*methods, "none"),
            also=("data.sources",),
        )
    elif packing.method != "none" and not packing.isolate:
        yield Caution(
            "conversations-not-isolated",
            "data.packing.isolate",
            "conversations attend to earlier ones in the same row",
            valid=("true",) if methods else (),
            also=("data.packing.method", "data.sources"),
            hint="" if methods else "Or set data.packing.method to none.",
        )


def _rows_of_tokens(model: ModelConfig) -> tuple[str, ...]:
    """The value of `adapter.train` for the matrices with a row per token."""
    if not isinstance(model, TransformerConfig):
        return ()
    return ("[^embedding]",) if model.tie_embeddings else ("[^embedding, ^output]",)


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
    """Embedding rows of new tokens that the adapter leaves frozen."""
    from setpoint.data.vocabulary import vocabulary_size
    from setpoint.model.pretrained.config_json import vocabulary_of
    from setpoint.model.pretrained.locate import locate_here

    assert job.adapter is not None and job.model.pretrained is not None
    if isinstance(job.tokenizer, HuggingFace) and job.tokenizer.added:
        return  # it has its own caution
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
        f"the rows of {size - rows} tokens that the weights lack keep their initial values: the "
        "adapter freezes the embedding",
        valid=_rows_of_tokens(job.model),
        also=("model.pretrained", "tokenizer"),
    )


@rule(needs="files", when=lambda job: job.model.pretrained is not None, cautions=CAUTIONS)
def tokenizer_cautions(job: Job) -> Iterator[Caution]:
    """A tokenizer with other tokens than that of the pretrained weights."""
    from setpoint.data.vocabulary import TOKENIZER, chat_facts, read_vocabulary
    from setpoint.model.pretrained.locate import locate_here

    assert job.model.pretrained is not None
    tokenizer = job.tokenizer
    if isinstance(tokenizer, HuggingFace) and tokenizer.path == job.model.pretrained:
        return
    try:
        place = locate_here(job.model.pretrained)
        if place is None or not (place.directory / TOKENIZER).is_file():
            return
        tokens = read_vocabulary(str(place.directory)).ids
        facts = chat_facts(tokenizer)
    except SetpointError:
        return  # reported elsewhere
    if facts is None:
        return
    other = sum(facts.tokens.get(text) != number for text, number in tokens.items())
    if other > MOST_OTHER_TOKENS * len(tokens):
        yield Caution(
            "other-tokenizer",
            "tokenizer",
            f"{other:,} of the {len(tokens):,} tokens of the pretrained weights are missing in "
            f"{facts.title}, or have other ids",
            also=("model.pretrained",),
            hint=f"--tokenizer huggingface --tokenizer.path {job.model.pretrained}",
        )


@rule(when=lambda job: isinstance(job.model, TransformerConfig), cautions=CAUTIONS)
def model_cautions(job: Job) -> Iterator[Caution]:
    """Positions that are never trained, adapters on random weights, and muP without Adam."""
    model, length = job.model, job.batch.sequence_length
    assert isinstance(model, TransformerConfig)
    rows = model.max_sequence_length
    if model.positions == "learned" and model.pretrained is None and rows > length:
        yield Caution(
            "positions-never-trained",
            "model.max_sequence_length",
            f"only the first {length} of {rows} learned positions occur in training; the others "
            "stay random",
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
            "the base weights are randomly initialized and stay frozen",
            also=("model.pretrained", "checkpoint.load"),
            hint="Set model.pretrained to the model to adapt.",
        )
    added = job.tokenizer.added if isinstance(job.tokenizer, HuggingFace) else ()
    if added and job.adapter is not None and not _reaches_embedding(job.adapter):
        yield Caution(
            "added-tokens-frozen",
            "adapter.train",
            f"the rows of {', '.join(added[:3])}{' ...' * (len(added) > 3)} keep their initial "
            "values: the adapter freezes the embedding",
            valid=_rows_of_tokens(model),
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
            f"muP scales learning rates by the rules for Adam; {name} may need other rules",
            also=("optimizer",),
        )
