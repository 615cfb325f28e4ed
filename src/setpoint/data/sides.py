"""Training and validation data of a job: mapped from the cache, streamed, or read into memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from setpoint.data.cache import cached_corpora, stored_corpora
from setpoint.data.corpus import Corpus, build_corpus
from setpoint.data.document import Document
from setpoint.data.reading import (
    CorpusRequest,
    Show,
    documents_of,
    requests_of,
    split_documents,
)
from setpoint.data.stream import Stream, hold_out, open_streams

if TYPE_CHECKING:
    from setpoint.data.config import Data, Prepare
    from setpoint.data.sources.config import SourceConfig
    from setpoint.data.tokenizers.tokenizer import Tokenizer


class Sides(NamedTuple):
    """Training and validation data.

    Arguments:
        train: one corpus of all sources, or one per source of a mixture; a `Stream` if streamed.
        held_out: validation corpus of all sources; None if nothing is held out.
    """

    train: tuple[Corpus | Stream, ...]
    held_out: Corpus | None


def read_sides(
    config: Data, tokenizer: Tokenizer, mixed: bool = False, show: Show | None = None
) -> Sides:
    """Read or map training and validation data; the order of the tokens does not depend on which.

    Raises:
        SetpointError: a source cannot be read, or a side is empty.
        RunError: prepared data cannot be written.
    """
    train, *validation = requests_of(config, mixed)
    streams = open_streams(config, tokenizer)
    read = _corpora_of(train, config.prepare, tokenizer, show) if train.sources else []
    held_out = next((corpus for corpus in read if corpus.side == "held_out"), None)
    read = [corpus for corpus in read if corpus is not held_out]
    for request in validation:
        (held_out,) = _corpora_of(request, config.prepare, tokenizer, show)
    if streams and not read and not validation and config.held_out:
        streams, held_out = hold_out(streams, tokenizer, show)
    if not mixed:
        return Sides((*read, *streams), held_out)
    stored, streamed = iter(read), iter(streams)
    return Sides(
        tuple(next(streamed if source.is_streamed else stored) for source in config.sources),
        held_out,
    )


def _corpora_of(
    request: CorpusRequest, config: Prepare | None, tokenizer: Tokenizer, show: Show | None
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
    show: Show | None = None,
) -> Corpus:
    """Read all documents of sources into one corpus, for a text that is only evaluated.

    Arguments:
        config: section of the cache; None: no cache.

    Raises:
        SetpointError: a source cannot be read, or there is no text in any.
    """
    (corpus,) = _corpora_of(CorpusRequest(name, tuple(sources), where), config, tokenizer, show)
    return corpus


def build_corpora(
    request: CorpusRequest, tokenizer: Tokenizer, show: Show | None = None
) -> list[Corpus]:
    """Read all sources of a request into memory.

    Documents come in the order of the split's hash, so any first part of a corpus is a fair sample.

    Returns:
        one corpus, or one per source if `request.mixed`; then that of the held-out documents.

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
            if show is not None:
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
