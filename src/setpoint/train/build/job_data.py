"""Data of a job: training and evaluation rows, and notes about them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from setpoint.config import SetpointError, plural
from setpoint.data.corpus import Corpus
from setpoint.data.lanes import DataRanks, build_streamed
from setpoint.data.order import (
    Cursor,
    MixtureSchedule,
    Sampler,
    Shares,
    describe_position,
    planned_rows,
    shares_of,
)
from setpoint.data.packing import build_packed, evaluation_rows
from setpoint.data.rows import DocumentRows, MixedSequences, RowOrder, Sequences, training_rows
from setpoint.data.sides import named_corpus
from setpoint.data.stream import Stream
from setpoint.model.config import marks_padding
from setpoint.shapes.protocols import Work, no_work
from setpoint.train.config import steps_before

if TYPE_CHECKING:
    from setpoint.data.sources.config import SourceConfig
    from setpoint.data.tokenizer import Tokenizer
    from setpoint.train.config import Job


def build_training_data(
    job: Job, corpora: Sequence[Corpus | Stream], ranks: DataRanks | None = None
) -> tuple[Sequences, Sampler]:
    """Cut or pack the training split into sequences, and order them.

    Arguments:
        corpora: one corpus, or one per source of a mixture.
        ranks: see `build_streamed`.

    Raises:
        SetpointError: a corpus is shorter than one sequence, or the sources of a mixture allow
            fewer epochs than the duration requires.
    """
    step_rows = job.batch.global_size
    if not job.data.is_mixture:
        rows, cursor = _rows_of(job, corpora[0], "", ranks)
        return rows, Sampler([cursor], step_rows=step_rows)
    names = tuple(source.name for source in job.data.sources)
    pairs = zip(names, corpora, strict=True)
    built = [_rows_of(job, corpus, name, ranks) for name, corpus in pairs]
    mixture = MixedSequences(names, [rows for rows, _ in built])
    limits = _limits_of(job, mixture.members)
    _require_rows(job, limits)
    row_tokens = job.batch.sequence_length if job.data.mixture.by == "tokens" else None
    schedule = MixtureSchedule(names, phases_of(job), limits, mixture.epoch_rows, row_tokens)
    return mixture, Sampler([cursor for _, cursor in built], schedule, step_rows)


def _rows_of(
    job: Job, corpus: Corpus | Stream, name: str, ranks: DataRanks | None
) -> tuple[DocumentRows, Cursor]:
    data, section, length = job.data, job.data.packing, job.batch.sequence_length
    seed = job.seed if data.seed is None else data.seed
    assert seed is not None
    marked = marks_padding(job.model)
    if isinstance(corpus, Stream):
        return build_streamed(corpus, section, length=length, seed=seed, marked=marked, ranks=ranks)
    kind, order = "shuffled", None
    if data.curriculum is not None:
        by, descending = data.curriculum.by, data.curriculum.descending
        kind, order = f"{by}{', descending' * descending}", corpus.ordered(by, descending)
    elif not data.shuffle:
        kind, order = "sources", corpus.ordered("sources")
    if section.method != "concatenate":
        return build_packed(
            corpus,
            section,
            length=length,
            seed=seed,
            bucket=job.batch.global_size,
            marked=marked,
            name=name,
            order=order,
            kind=kind,
        )
    rows = training_rows(corpus, length, isolated=bool(section.isolate), order=order)
    return rows, RowOrder(rows, seed, name, kind)


def build_evaluation_rows(
    job: Job, corpus: Corpus, sources: Sequence[SourceConfig]
) -> DocumentRows:
    """Build evaluation rows of a text in the same form as training rows.

    Raises:
        SetpointError: see `evaluation_rows`.
    """
    section, length = job.data.packing_of(sources), job.batch.sequence_length
    return evaluation_rows(corpus, section, length, marked=marks_padding(job.model))


def notes_of(sequences: Sequences) -> Iterator[str]:
    """Notes of packing, by source for a mixture."""
    if isinstance(sequences, MixedSequences):
        for name, member in zip(sequences.sources, sequences.members, strict=True):
            yield from (f"{name}: {note}" for note in notes_of(member))
    elif sequences.note:
        yield sequences.note


def phases_of(job: Job) -> list[Shares]:
    """The shares of the sources, and the rows at which they change."""
    weights = {source.name: source.weight or 0.0 for source in job.data.sources}
    temperature = job.data.mixture.temperature
    phases = [Shares(0, shares_of(list(weights.values()), temperature))]
    for phase in job.data.all_phases:
        shares = list((weights | phase.weights).values())
        first = job.batch.sequences_before(steps_before(phase.start, job.batch))
        phases.append(Shares(first, shares_of(shares, temperature)))
    return phases


def describe_data_position(job: Job, state: Mapping[str, Any]) -> str:
    """The position in the data, as text: phase, rows and epochs of each source.

    Arguments:
        state: the state of the job's feed.
    """
    place, sections = describe_position(state), job.data.all_phases
    if not sections or not place:
        return place
    starts = [phase.first for phase in phases_of(job)]
    taken = sum(source["taken"] for source in state["sources"].values())
    number = bisect_right(starts, taken)
    origin = "its sources' own weights"
    if number > 1:
        section = sections[number - 2]
        origin = f"{'annealing ' * (section is job.data.anneal)}from {section.start} on"
    return f"phase {number} of {len(starts)} ({origin}), {place}"


def _limits_of(job: Job, members: Sequence[DocumentRows]) -> list[int | None]:
    return [
        None
        if source.epochs is None or member.epoch_rows is None
        else max(1, round(source.epochs * member.epoch_rows))
        for source, member in zip(job.data.sources, members, strict=True)
    ]


def planned_in_words(job: Job, sequences: Sequences) -> str | None:
    """Mixture shares of the sources over the whole duration, as text; None if still unknown."""
    steps = job.total_steps()
    if steps is None or not isinstance(sequences, MixedSequences):
        return None
    rows, members = job.batch.sequences_before(steps), sequences.members
    phases = phases_of(job)
    if job.data.mixture.by == "tokens":
        if job.data.streams:
            return None
        # Approximate for rows.
        sizes = [member.row_tokens for member in members]
        shares = [
            [share / size for share, size in zip(phase.shares, sizes, strict=True)]
            for phase in phases
        ]
        phases = [
            Shares(phase.first, shares_of(rows_of_source))
            for phase, rows_of_source in zip(phases, shares, strict=True)
        ]
    planned = planned_rows(phases, _limits_of(job, members), rows)
    parts = [
        f"{name} {count / planned.total:.1%} ({round(count):,} sequences"
        + (f", {count / member.epoch_rows:.3g} epochs)" if member.epoch_rows else ")")
        for name, member, count in zip(sequences.sources, members, planned.sources, strict=True)
    ]
    return ", ".join(parts)


def _require_rows(job: Job, limits: Sequence[int | None]) -> None:
    """Refuse a run that needs more rows than the epochs of its sources allow."""
    steps, phases = job.total_steps(), phases_of(job)
    count = planned_rows(phases, limits).total
    # Each part of a plan with phases may be off by one row per source; the rest is found later.
    tolerance = 0 if len(phases) == 1 else len(limits) * (len(limits) + len(phases))
    if len(phases) > 1 and job.data.mixture.by == "tokens":
        return  # rows of different sources have different numbers of tokens
    needed = 0 if steps is None else job.batch.sequences_before(steps)
    if needed > count + tolerance:
        raise SetpointError(
            f"data.sources: `epochs` allows {count:,.0f} sequences of the sources with a weight "
            f"in this phase, but {steps:,} steps take {needed:,}.\n"
            f"Valid: duration up to {int(job.batch.steps_for(count))} steps, more epochs, or "
            "epochs = null for a source."
        )


COMPARED = 10_000_000
"""Maximum number of documents for the check of evaluated text in training."""


def build_datasets(job: Job, tokenizer: Tokenizer, show: Work = no_work) -> dict[str, DocumentRows]:
    """Read and tokenize the evaluation data sets.

    Returns:
        the data sets by name, in the given order; empty without an evaluation.

    Raises:
        SetpointError: a source cannot be read, a text is empty, or none of its documents remain.
    """
    built: dict[str, DocumentRows] = {}
    section = job.evaluation
    for index, dataset in enumerate(section.datasets if section is not None else ()):
        where = f"evaluation.datasets.{index}.sources"
        corpus = named_corpus(
            dataset.name, dataset.sources, tokenizer, job.data.prepare, where=where, show=show
        )
        built[dataset.name] = build_evaluation_rows(job, corpus, dataset.sources)
    return built


def trained_on(train: Sequences, datasets: Mapping[str, Sequences]) -> Iterator[str]:
    """Find documents that appear in both training and evaluation data."""
    if not datasets:
        return
    if train.identity.tokens is None:
        yield "evaluation: streamed data is not searched for texts that are also trained on"
        return
    if len(train.identity.files) > COMPARED:
        yield (
            f"evaluation: {len(train.identity.files):,} documents, more than {COMPARED:,}, are "
            f"not searched for texts that are also trained on"
        )
        return
    known = {file.sha256 for file in train.identity.files}
    for name, dataset in datasets.items():
        files = dataset.identity.files
        shared = [file for file in files if file.sha256 in known]
        if shared:
            yield (
                f"caution: {len(shared):,} of {len(files):,} evaluated documents of {name} "
                f"are also trained on, such as {shared[0].name}"
            )


HALF = 0.5
"""`data.held_out` from which on more validation than training text is expected."""


def uneven_split(corpora: Sequence[Corpus], held_out: Corpus, share: float) -> list[str]:
    """Cautions about a split by documents that leaves little training data."""
    lines: list[str] = []
    if len(held_out.sources) > 1:
        trained = {corpus.sources[i] for corpus in corpora for i in np.unique(corpus.source)}
        validated = {held_out.sources[i] for i in np.unique(held_out.source)}
        lines = [
            f"caution: all documents of '{name}' are held out; none is trained on"
            for name in sorted(validated - trained - {held_out.side})
        ]
    taken, kept = len(held_out.tokens), sum(len(corpus.tokens) for corpus in corpora)
    if taken > kept and share < HALF:
        lines.append(
            f"caution: {taken:,} tokens are held out and {kept:,} trained on, since documents "
            "differ in length; set data.validation to choose texts to evaluate on"
        )
    return lines


def streamed_sources(corpora: Sequence[Corpus | Stream]) -> list[str]:
    """The sources streamed during training, as text."""
    return [
        f"{stream.name} streamed from {plural(len(stream.parts), 'part')} in blocks of "
        f"{stream.buffer:,} documents"
        for stream in corpora
        if isinstance(stream, Stream)
    ]
