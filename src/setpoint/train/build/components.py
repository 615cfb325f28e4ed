"""From a resolved job to the objects that train it, in the order in which they need each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from setpoint.adapter.plan import AdapterReport
from setpoint.adapter.quantize.apply import noise_of
from setpoint.adapter.quantize.weight import StepNoise
from setpoint.checkpoint.optimizer_state import Options
from setpoint.compile.apply import Compiled
from setpoint.config import SetpointError
from setpoint.data.corpus import Corpus
from setpoint.data.evaluation import DocumentRows, EvaluationFeed, EvaluationRows
from setpoint.data.feed import Feed
from setpoint.data.loader import loader_options
from setpoint.data.sequences import CountedSequences, DataIdentity, Sequences
from setpoint.data.stream import Stream
from setpoint.data.tokenizers.tokenizer import Tokenizer
from setpoint.data.windows import evaluation_windows
from setpoint.model.layers import count_parameters
from setpoint.model.pretrained.document import read_keys
from setpoint.model.pretrained.run import DESCRIPTION
from setpoint.parallel.context import sequence_parts
from setpoint.parallel.pipeline import Pipeline
from setpoint.parallel.replica_groups import ReplicaGroups
from setpoint.parallel.replicas import Replicas
from setpoint.parallel.seeds import seed_everything
from setpoint.parallel.world import World, world_of
from setpoint.precision.build import build_scaler
from setpoint.precision.scaler import LossScaler
from setpoint.precision.weights import OptimizerParams
from setpoint.shapes.parameter import Parameter
from setpoint.shapes.sequence_parts import WHOLE, SequenceParts
from setpoint.track.console import short_count
from setpoint.track.progress import Work, no_work
from setpoint.train.batch import steps_before
from setpoint.train.build.companions import Companions, companions_of
from setpoint.train.build.data import (
    build_datasets,
    build_evaluation_rows,
    build_training_data,
    notes_of,
)
from setpoint.train.build.trained import build_trained
from setpoint.train.config import Job
from setpoint.train.evaluation.config import HELD_OUT
from setpoint.train.learning_rate import LearningRate
from setpoint.train.objective import Objective, require_tokens
from setpoint.train.verdict import NonFiniteSteps, SpikedSteps

HALF = 0.5
"""`data.held_out` from which on more validation than training text is expected."""


@dataclass(slots=True)
class Components:
    """The objects of one training job.

    Arguments:
        corpora: what `train` is cut from: one, or of a mixture one for each source.
        train, held_out: the two sides of the data in rows; None where nothing is held out.
        eval_sets: the data sets of the evaluation beside these, by their names.
        feed: gives each step its micro-batches of the training side, counted.
        eval_feed: gives evaluations their batches; None where nothing is evaluated.
        model: maps (B, S) tokens to (B, S, V) logits.
        objective: the model and its loss as one; maps tokens and targets to sums over tokens.
        replicas: sum the gradients of all ranks.
        sequence: which places of sequences this rank has.
        pipeline: runs the stages of this rank; None where it has the whole model.
        described: all parameters that the whole model trains, where this rank has a part.
        adapter: what the adapter of the model adapts, trains and freezes; None without one.
        weights: the model's parameters as the optimizer gets them.
        options: those of its groups as they were built, by which it is seen what it has counted.
        schedule: from the position of the run to the factor on the peak learning rate.
        scaler: scales the loss for fp16; does nothing otherwise.
        compiled: knows whether compiled code runs; None where nothing is compiled.
        pretrained: what the record says of the weights that the model started from; None where it
            started from random ones, or did not start now.
        companions: what each checkpoint keeps beside the weights.
        non_finite: decides what becomes of steps that are not finite.
        spikes: decides what becomes of loss spikes; None where nothing does.
        groups: the replica groups of torchft; None without.
        noise: that is added to quantized weights; None without.
    """

    world: World
    tokenizer: Tokenizer
    corpora: tuple[Corpus | Stream, ...]
    train: Sequences
    held_out: EvaluationRows | None
    feed: Feed
    model: nn.Module
    objective: Objective
    replicas: Replicas
    weights: OptimizerParams
    optimizer: torch.optim.Optimizer
    options: Options
    schedule: LearningRate
    scaler: LossScaler
    non_finite: NonFiniteSteps
    sequence: SequenceParts = WHOLE
    pipeline: Pipeline | None = None
    described: list[Parameter] | None = None
    adapter: AdapterReport | None = None
    compiled: Compiled | None = None
    pretrained: dict[str, Any] | None = None
    eval_sets: dict[str, EvaluationRows] = field(default_factory=dict)
    eval_feed: EvaluationFeed | None = None
    companions: Companions = field(default_factory=Companions)
    spikes: SpikedSteps | None = None
    noise: StepNoise | None = None
    groups: ReplicaGroups | None = None

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """The whole shapes of what a checkpoint has of the model, of what this rank has of it."""
        held = self.model.state_dict(keep_vars=True)
        return {name: self.replicas.shape_of(each) for name, each in held.items()}

    @property
    def parameter_count(self) -> int:
        """The number of parameters of the whole model."""
        if self.replicas.count is not None:
            return self.replicas.count
        if self.adapter is not None:
            return self.adapter.adapter + self.adapter.trained + self.adapter.frozen
        if self.described is None:
            return count_parameters(self.model)
        return sum(prod(each.shape) for each in self.described)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.world.device


def data_line(job: Job, parts: Components) -> str:
    """What the data is, and how often the duration goes through it."""
    corpora = [corpus for corpus in parts.corpora if isinstance(corpus, Corpus)]
    found, held_out = _streamed(parts.corpora), ""
    if parts.held_out is not None:
        tokens = "" if corpora else " tokens"
        held_out = f", {short_count(len(parts.held_out.corpus.tokens))}{tokens} held out"
    if corpora:
        train = DataIdentity.joined([corpus.identity for corpus in corpora])
        count = len(train.files)
        prepared = "" if train.prepared is None else f", from prepared data in {train.prepared}"
        found.append(
            f"{count:,} document{'s' * (count != 1)}, "
            f"{short_count(train.tokens or 0)} tokens to train on{held_out}{prepared}"
        )
    else:
        found[-1] += held_out
    notes = [f"data: {', '.join(found)}", *notes_of(parts.train)]
    notes += [
        f"{rows.identity.side.replace('_', '-')}: {rows.note}"
        for rows in (parts.held_out, *parts.eval_sets.values())
        if isinstance(rows, DocumentRows) and rows.note
    ]
    lines = [note for corpus in corpora for note in corpus.notes]
    if parts.held_out is not None:
        lines += parts.held_out.corpus.notes
        if corpora and not job.data.validation:
            lines += _uneven(corpora, parts.held_out.corpus, job.data.held_out)
    # An epoch is all windows once, each of which is a sequence of a step.
    per_epoch = (parts.train.epoch_rows or 0) / job.batch.global_size
    for limit in job.duration.limits if per_epoch else ():
        if limit.unit == "epochs":
            notes.append(f"{limit.text} are {math.ceil(limit.count * per_epoch):,} steps")
        elif limit.unit in ("steps", "tokens"):
            tokens = job.batch.global_size * job.batch.sequence_length
            steps = limit.count if limit.unit == "steps" else limit.count / tokens
            notes.append(f"{limit.text} are {steps / per_epoch:.3g} epochs")
    return "\n".join(["; ".join(notes), *lines])


def _uneven(corpora: Sequence[Corpus], held_out: Corpus, share: float) -> list[str]:
    """Cautions about a split by documents that leaves little to train on."""
    lines: list[str] = []
    if len(held_out.sources) > 1:
        trained = {corpus.sources[i] for corpus in corpora for i in np.unique(corpus.source)}
        validated = {held_out.sources[i] for i in np.unique(held_out.source)}
        lines = [
            f"caution: all documents of '{name}' are held out; none is trained on"
            for name in sorted(validated - trained - {held_out.side})
        ]
    have, kept = len(held_out.tokens), sum(len(corpus.tokens) for corpus in corpora)
    if have > kept and share < HALF:
        lines.append(
            f"caution: {have:,} tokens are held out and {kept:,} trained on, since documents "
            "differ in length; data.validation names texts to evaluate on"
        )
    return lines


def _streamed(corpora: Sequence[Corpus | Stream]) -> list[str]:
    """What is read while training runs."""
    return [
        f"{stream.name} streamed from {len(stream.parts):,} "
        f"part{'s' * (len(stream.parts) != 1)} in blocks of {stream.buffer:,} documents"
        for stream in corpora
        if isinstance(stream, Stream)
    ]


def build_components(
    job: Job,
    fresh: bool = True,
    show: Work = no_work,
    tokenizer_files: Path | None = None,
    model_files: Path | None = None,
    world: World | None = None,
) -> Components:
    """Build everything that a job needs; nothing is written.

    What is built works under `build.process.settings_of(job)`, which the caller opens
    before, and closes when it has been trained.

    Arguments:
        fresh: whether the run begins now, so that `model.pretrained` counts; a run that goes on
            has weights of its own.
        tokenizer_files: the directory with the tokenizer's files; None: `tokenizer.path`.
        model_files: the checkpoint that keeps the config.json of a model of transformers; None:
            `model.config`.
        world: this process's place; None: found here.

    Raises:
        SetpointError: if the data is empty or cannot be read, the device is not there, or the loss
            does not fit the tokenizer or the model.
    """
    world = world or world_of(job.parallel)
    device = world.device
    assert job.seed is not None
    # Models that initialize themselves do it alike on all ranks; each step draws by its own seed.
    seed_everything(job.seed)
    elsewhere = {} if tokenizer_files is None else {"directory": tokenizer_files}
    tokenizer = job.tokenizer.build(**elsewhere)
    require_tokens(job.loss, tokenizer.vocab_size)
    corpora, kept_back = job.data.build(tokenizer=tokenizer, mixed=job.data.is_mixture, show=show)
    held_out: EvaluationRows | None = None
    if job.evaluation is not None:
        assert kept_back is not None, "the configuration is refused otherwise"
        held_out = build_evaluation_rows(job, kept_back, job.data.validation or job.data.sources)
    elif kept_back is not None:  # for records: nothing reads its rows
        held_out = evaluation_windows(kept_back, job.batch.sequence_length)
    eval_sets = build_datasets(job, tokenizer, show)
    keys = None if model_files is None else read_keys(model_files, DESCRIPTION)
    train, sampler = build_training_data(job, corpora)
    made = build_trained(job, tokenizer.vocab_size, world, len(train.sources), fresh, keys)
    model, objective = made.model, made.objective
    if job.data.packing.isolate and not objective.takes_documents:
        raise SetpointError(
            f"data.packing.isolate: true needs a model that takes documents, and a "
            f"{type(model).__name__} takes tokens alone.\nValid: false, or a model with "
            "takes_documents = True."
        )
    feed = Feed(
        train,
        sampler,
        objective.count,
        micro_size=job.batch.micro_size,
        accumulation=job.batch.accumulation,
        data_rank=world.data_rank,
        data_size=world.data_size,
        **loader_options(job.data.loader.of_training, device),
    )
    eval_feed = None
    if job.evaluation is not None:
        assert held_out is not None
        texts: dict[str, CountedSequences] = {HELD_OUT: held_out, **eval_sets}
        eval_feed = EvaluationFeed(
            {name: (text, job.evaluation.sequences_of(name)) for name, text in texts.items()},
            micro_size=job.batch.micro_size,
            data_rank=world.data_rank,
            data_size=world.data_size,
            **loader_options(job.data.loader.of_evaluation, device),
        )
    return Components(
        world=world,
        tokenizer=tokenizer,
        corpora=corpora,
        train=train,
        held_out=held_out,
        feed=feed,
        model=model,
        objective=objective,
        replicas=made.replicas,
        weights=made.weights,
        optimizer=made.optimizer,
        options=made.options,
        schedule=LearningRate(
            job.schedule,
            tokens_per_step=job.batch.global_size * job.batch.sequence_length,
            epochs_per_step=job.batch.global_size / train.epoch_rows if train.epoch_rows else 0.0,
            phases=[
                (steps_before(phase.start, job.batch), phase.lr_factor)
                for phase in job.data.all_phases
            ],
            merge=None if job.adapter is None else job.adapter.merge,
        ),
        scaler=build_scaler(job.precision, device),
        non_finite=NonFiniteSteps(job.resilience.non_finite),
        spikes=None if job.resilience.spike is None else SpikedSteps(job.resilience.spike),
        sequence=sequence_parts(job.parallel, world),
        pipeline=made.pipeline,
        described=made.described,
        adapter=made.adapter,
        compiled=made.compiled,
        pretrained=made.pretrained,
        eval_sets=eval_sets,
        eval_feed=eval_feed,
        companions=companions_of(job.model, tokenizer, made.pretrained, keys, job.data.sources),
        noise=noise_of(model),
    )
