"""A source that is read while it is trained on: its documents, block by block in random order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import nextafter
from typing import NamedTuple, cast

import numpy as np

from setpoint.config import SetpointError
from setpoint.data.config import Data
from setpoint.data.corpus import Show, build_corpus, files_digest
from setpoint.data.document import Document, FileRecord, Place, StreamSource
from setpoint.data.keyed_random import shuffled
from setpoint.data.sources.config import SourceConfig
from setpoint.data.sources.limits import Limits
from setpoint.data.split import split_position
from setpoint.data.store import Corpus, DataIdentity
from setpoint.data.tokenizers.tokenizer import Tokenizer

SAMPLED = 10_000
"""Documents at the start of a stream of which a share is held out for validation."""
SAMPLED_BYTES = 1 << 26
"""Bytes of these documents after which there are no more of them."""


class Spot(NamedTuple):
    """Where in a stream a document begins.

    Arguments:
        part: name of the file, or of what else the stream is made of.
    """

    part: str
    place: Place


Found = tuple[Document, Callable[[], Spot]]
"""A document, and what tells the spot behind it until the next one is asked for."""


@dataclass(slots=True)
class Block:
    """Documents that are shuffled together.

    Arguments:
        number: in its epoch.
        begin: where the first one is found; None: at the start of the epoch.
        documents: None are those that were taken.
        digest: hash of their names and texts.
    """

    number: int
    begin: Spot | None
    documents: list[Document | None]
    digest: str

    def take(self, number: int) -> Document:
        """A document, which is then no longer held."""
        document = self.documents[number]
        assert document is not None
        self.documents[number] = None
        return document


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A source that is read while it is trained on, in place of a `Corpus`.

    Arguments:
        where: path of its section in the job, for messages.
        parts: see `StreamSource.parts`.
        held_out: share of the documents that is not trained on, by the hash of their names.
        buffer: documents of a block.
        shuffle: whether parts and documents of a block come in a random order.
    """

    section: SourceConfig
    where: str
    source: StreamSource
    parts: tuple[FileRecord, ...]
    tokenizer: Tokenizer
    held_out: float
    buffer: int
    shuffle: bool = True

    @property
    def name(self) -> str:
        """Name of the source."""
        return self.section.name

    @property
    def identity(self) -> DataIdentity:
        """What it is recognised by: its files, not their content."""
        digest = files_digest(self.tokenizer.name, self.parts)
        return DataIdentity("train", digest, None, None, self.parts)

    def order(self, seed: int, epoch: int) -> list[int]:
        """The numbers of the parts in the order in which an epoch reads them."""
        places = np.arange(len(self.parts))
        if self.shuffle and self.buffer > 1:
            places = shuffled(f"parts/{seed}/{self.name}/{epoch}", len(self.parts), places)
        return places.tolist()

    def order_in_block(self, seed: int, epoch: int, block: Block) -> list[int]:
        """The numbers of a block's documents in the order in which they are trained on."""
        places = np.arange(len(block.documents))
        if self.shuffle and self.buffer > 1:
            key = f"blocks/{seed}/{self.name}/{epoch}/{block.number}"
            places = shuffled(key, len(places), places)
        return places.tolist()

    def documents(self, order: Sequence[int], begin: Spot | None = None) -> Iterator[Found]:
        """The documents to train on.

        Arguments:
            order: of the parts.
            begin: where the first one is found; None: at the start.
        """
        for document, spot in self.both_sides(order, begin):
            if split_position(document.name) >= self.held_out:
                yield document, spot

    def both_sides(self, order: Sequence[int], begin: Spot | None = None) -> Iterator[Found]:
        """The documents that the filter keeps, those that are held out included.

        Raises:
            SetpointError: a document cannot be read, or is no plain text.
        """
        limits = None
        if self.section.filter is not None:
            limits = Limits(self.section.filter, where=self.where)
        place: Place = {}
        if begin is not None:
            at = [self.parts[number].name for number in order].index(begin.part)
            order, place = order[at:], begin.place
        for number in order:
            for document, behind in self.source.read(number, place):
                if document.trained is not None:
                    raise SetpointError(
                        f"{self.where}: the document '{document.name}' says which of its tokens "
                        "are trained on, and what is streamed is plain text.\n"
                        "Valid: streaming = false, or documents without `trained`."
                    )
                kept = document if limits is None else limits.kept(document)
                if kept is not None and kept.size:
                    yield kept, partial(_spot, self.parts[number].name, behind)
            place = {}


def _spot(part: str, behind: Callable[[], Place]) -> Spot:
    return Spot(part, dict(behind()))


class Blocks:
    """The documents of an epoch in blocks, of which one is read while the one before is used up.

    Arguments:
        size: documents of a block; the last one has fewer.
        number, begin: of the first block.
    """

    def __init__(
        self, documents: Iterator[Found], size: int, number: int, begin: Spot | None
    ) -> None:
        self.documents = documents
        self.size, self.number, self.begin = size, number, begin
        self.ahead: list[Document | None] = []
        self.behind: Spot | None = None
        self.hash = hashlib.sha256()
        self.error: Exception | None = None

    def read(self) -> bool:
        """Read one more document of the next block, where it lacks any.

        What goes wrong is raised by `next`, when everything before was used.
        """
        if len(self.ahead) == self.size or self.error is not None:
            return False
        try:
            found = next(self.documents, None)
            if found is None:
                return False
            document, spot = found
            self.ahead.append(document)
            if len(self.ahead) == self.size:
                self.behind = spot()
        except Exception as error:
            self.error = error
            return False
        name = document.name.encode("utf-8", "surrogateescape")
        self.hash.update(f"{len(name)} {len(document.data)} ".encode() + name)
        self.hash.update(document.data)
        for part in (document.tokens, document.trained):
            self.hash.update(b"" if part is None else np.ascontiguousarray(part).data)
        return True

    def next(self) -> Block | None:
        """The next block; None: there is none.

        Raises:
            SetpointError: a document of it cannot be read.
        """
        while self.read():
            pass
        if self.error is not None:
            raise self.error
        if not self.ahead:
            return None
        block = Block(self.number, self.begin, self.ahead, self.hash.hexdigest()[:16])
        self.number, self.begin, self.ahead = self.number + 1, self.behind, []
        self.hash = hashlib.sha256()
        return block


def open_streams(config: Data, tokenizer: Tokenizer) -> list[Stream]:
    """Look for the files of the sources that are read while training runs.

    Raises:
        SetpointError: there are none, or a source cannot be had.
    """
    found: list[Stream] = []
    for index, section in enumerate(config.sources):
        if not section.is_streamed:
            continue
        where = f"data.sources.{index}"
        source = cast(StreamSource, section.build(where=where))
        found.append(
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
    return found


def hold_out(
    streams: Sequence[Stream], tokenizer: Tokenizer, show: Show | None = None
) -> tuple[list[Stream], Corpus]:
    """Hold out a share of the documents by hash; those among the first ones are evaluated on.

    Where no hash of the first documents lies below the share, the lowest of them does instead.

    Returns:
        the streams without what is held out, and the corpus to evaluate on.

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
            if show is not None:
                show("reading documents to hold out", read, None)
    if lowest is None or read < 2:
        raise SetpointError(
            f"data.held_out: {share:g} cannot be held out of {read} streamed document"
            f"{'s' * (read != 1)}.\n"
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
            raise SetpointError(f"data.sources: two documents are called '{after.name}'.")
    names = [stream.name for stream in streams]
    corpus = build_corpus(documents, tokenizer, side="held_out", sources=names, show=show)
    return trained, corpus
