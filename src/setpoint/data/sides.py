"""Training and validation data of a job: read into memory, mapped from the cache, or streamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import nextafter
from typing import TYPE_CHECKING, NamedTuple, cast

from setpoint.config import SetpointError, plural
from setpoint.data.corpus import Corpus, build_corpus
from setpoint.data.document import Document, StreamSource
from setpoint.data.prepare import cached_corpora, stored_corpora
from setpoint.data.reading import (
    CorpusRequest,
    documents_of,
    duplicate_name,
    requests_of,
    split_documents,
    split_position,
)
from setpoint.data.stream import Stream
from setpoint.shapes.protocols import Work, no_work

if TYPE_CHECKING:
    from setpoint.data.config import Data, Prepare
    from setpoint.data.sources.config import SourceConfig
    from setpoint.data.tokenizer import Tokenizer

SAMPLED = 10_000
"""Documents at the start of a stream that are read for validation."""
SAMPLED_BYTES = 1 << 26
"""Bytes after which no more of these documents are read."""


class Sides(NamedTuple):
    """Training and validation data.

    Arguments:
        train: one corpus of all sources, or one per source of a mixture; a `Stream` if streamed.
        held_out: validation corpus of all sources; None if nothing is held out.
    """

    train: tuple[Corpus | Stream, ...]
    held_out: Corpus | None


def read_sides(config: Data, tokenizer: Tokenizer, show: Work = no_work) -> Sides:
    """Read or map training and validation data; both give the same order of tokens.

    Raises:
        SetpointError: a source cannot be read, or a side is empty.
        RunError: prepared data cannot be written.
    """
    train, *validation = requests_of(config)
    streams = open_streams(config, tokenizer) if config.streams else []
    read = _corpora_of(train, config.prepare, tokenizer, show) if train.sources else []
    held_out = next((corpus for corpus in read if corpus.side == "held_out"), None)
    read = [corpus for corpus in read if corpus is not held_out]
    for request in validation:
        (held_out,) = _corpora_of(request, config.prepare, tokenizer, show)
    if streams and not read and not validation and config.held_out:
        streams, held_out = hold_out(streams, tokenizer, show)
    if not config.is_mixture:
        return Sides((*read, *streams), held_out)
    stored, streamed = iter(read), iter(streams)
    return Sides(
        tuple(next(streamed if source.is_streamed else stored) for source in config.sources),
        held_out,
    )


def _corpora_of(
    request: CorpusRequest, config: Prepare | None, tokenizer: Tokenizer, show: Work
) -> list[Corpus]:
    """The corpora of a request: prepared ones, or else in memory."""
    sides = stored_corpora(request, tokenizer)
    if sides is None and config is not None:
        sides = cached_corpora(request, config, tokenizer, show)
    return build_corpora(request, tokenizer, show) if sides is None else sides


def named_corpus(
    name: str,
    sources: Sequence[SourceConfig],
    tokenizer: Tokenizer,
    config: Prepare | None = None,
    *,
    where: str,
    show: Work = no_work,
) -> Corpus:
    """Read all documents of sources into one corpus, for an evaluation text.

    Arguments:
        config: section of the cache; None: no cache.

    Raises:
        SetpointError: a source cannot be read, or no source contains text.
    """
    (corpus,) = _corpora_of(CorpusRequest(name, tuple(sources), where), config, tokenizer, show)
    return corpus


def build_corpora(
    request: CorpusRequest, tokenizer: Tokenizer, show: Work = no_work
) -> list[Corpus]:
    """Read all sources of a request into memory.

    Documents are in the order of the split's hash, so that any first part of a corpus is a fair
    sample.

    Returns:
        one corpus, or one per source if `request.mixed`; then the corpus of held-out documents.

    Raises:
        SetpointError: a source cannot be read, or a side is empty.
    """
    groups: list[list[Document]] = [[] for _ in request.sources] if request.mixed else [[]]
    numbers: dict[str, int] = {}
    notes: list[str] = []
    for index, source in enumerate(request.sources):
        for document in documents_of(source, request.where_of(index), tokenizer, notes):
            groups[index * request.mixed].append(document)
            numbers[document.name] = len(numbers)
            show(f"reading documents of {request.side}", len(numbers), None)
    has_text = [any(document.size for document in group) for group in groups]
    if not any(has_text):
        raise request.no_text()
    parts, held_out = split_documents(groups, request.held_out, where=request.where)
    build = partial(build_corpus, tokenizer=tokenizer, where=request.where, show=show, read=numbers)
    corpora: list[Corpus] = []
    for index, part in enumerate(parts):
        if not part:
            raise request.no_documents(index, has_text[index])
        names = request.names[index : index + 1] if request.mixed else request.names
        corpora.append(build(part, side=request.side, sources=names, notes=() if index else notes))
    if held_out:
        corpora.append(build(held_out, side="held_out", sources=request.names))
    return corpora


def open_streams(config: Data, tokenizer: Tokenizer) -> list[Stream]:
    """Open the streamed sources.

    Raises:
        SetpointError: files are missing, or a source cannot be opened.
    """
    streams: list[Stream] = []
    for index, section in enumerate(config.sources):
        if not section.is_streamed:
            continue
        where = f"data.sources.{index}"
        source = cast(StreamSource, section.build(where=where))
        streams.append(
            Stream(
                section=section,
                where=where,
                source=source,
                parts=tuple(source.parts()),
                tokenizer=tokenizer,
                held_out=0.0 if config.validation else config.held_out,
                buffer=config.shuffle_buffer,
                shuffle=config.shuffle,
            )
        )
    return streams


def hold_out(
    streams: Sequence[Stream], tokenizer: Tokenizer, show: Work = no_work
) -> tuple[list[Stream], Corpus]:
    """Hold out a fraction of the documents by hash; those among the first ones are for validation.

    If no hash of the first documents is below the fraction, the lowest one is held out.

    Returns:
        the streams without held-out documents, and the validation corpus.

    Raises:
        SetpointError: there are fewer than two documents, or one cannot be read.
    """
    documents: list[Document] = []
    lowest: tuple[float, int, Document] | None = None
    read, share = 0, streams[0].held_out
    for index, stream in enumerate(streams):
        size = 0
        for number, (document, _) in enumerate(stream.both_sides(range(len(stream.parts)))):
            if number == SAMPLED or size >= SAMPLED_BYTES:
                break
            read, size = read + 1, size + document.size
            position = split_position(document.name)
            if position < share:
                documents.append(document)
            if lowest is None or position < lowest[0]:
                lowest = position, index, document
            show("reading documents to hold out", read, None)
    if lowest is None or read < 2:
        raise SetpointError(
            f"data.held_out: {share:g} cannot be held out of {plural(read, 'streamed document')}.\n"
            "Valid: more documents, data.validation, or data.held_out = 0 with evaluation = null."
        )
    trained = list(streams)
    if not documents:
        position, index, document = lowest
        documents = [document]
        trained[index] = replace(streams[index], held_out=nextafter(position, 1.0))
    documents.sort(key=lambda document: split_position(document.name))
    for before, after in pairwise(documents):
        if before.name == after.name:
            raise duplicate_name("data.sources", after.name)
    names = [stream.name for stream in streams]
    corpus = build_corpus(documents, tokenizer, side="held_out", sources=names, show=show)
    return trained, corpus
