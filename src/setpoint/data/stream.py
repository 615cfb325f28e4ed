"""A source that is read while it is trained on: documents in shuffled blocks, dealt to lanes.

Each row of a step is a lane: a stream of its own, with documents of its own, so that which rows a
step has does not depend on who makes them. A rank tokenizes those of its rows alone. The parts of a
source (its files) are dealt to groups of lanes where there are as many as groups; the documents of
a group are dealt to its lanes one by one. Whoever has lanes of a group reads all of its documents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import nextafter
from typing import NamedTuple, cast

import numpy as np

from setpoint.config import SetpointError
from setpoint.data.config import Data
from setpoint.data.corpus import Corpus, build_corpus, files_digest
from setpoint.data.document import DataIdentity, Document, FileRecord, Place, StreamSource
from setpoint.data.order import shuffled
from setpoint.data.reading import DocumentFilter, Show, duplicate_name, split_position
from setpoint.data.sources.config import SourceConfig
from setpoint.data.tokenizers.tokenizer import Tokenizer

SAMPLED = 10_000
"""Documents at the start of a stream of which a share is held out for validation."""
SAMPLED_BYTES = 1 << 26
"""Bytes of these documents after which there are no more of them."""


class Spot(NamedTuple):
    """Position in a stream at which a document begins.

    Arguments:
        part: name of the file, or of what else the stream is made of.
    """

    part: str
    place: Place


Found = tuple[Document, Callable[[], Spot]]
"""A document, and what tells the spot behind it until the next one is asked for."""


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
    def is_shuffled(self) -> bool:
        """False where parts and documents come in the order of the files."""
        return self.shuffle and self.buffer > 1

    @property
    def identity(self) -> DataIdentity:
        """Identity: its files, not their content."""
        digest = files_digest(self.tokenizer.name, self.parts)
        return DataIdentity("train", digest, None, None, self.parts)

    def order(self, seed: int, epoch: int) -> list[int]:
        """The numbers of the parts in the order in which an epoch reads them."""
        places = np.arange(len(self.parts))
        if self.is_shuffled:
            places = shuffled(f"parts/{seed}/{self.name}/{epoch}", len(self.parts), places)
        return places.tolist()

    def shuffled_block(self, key: str, size: int) -> list[int]:
        """The numbers of a block's documents in the order in which they are trained on."""
        places = np.arange(size)
        if self.is_shuffled:
            places = shuffled(f"blocks/{key}", size, places)
        return places.tolist()

    def groups(self, lanes: int) -> int:
        """Number of groups of lanes with parts of their own: as many as there can be."""
        counts = range(1, min(lanes, len(self.parts)) + 1)
        return max((count for count in counts if lanes % count == 0), default=1)

    def order_of_group(self, seed: int, group: int, groups: int, epoch: int) -> list[int]:
        """The parts that a group reads in an epoch; over epochs each gets as many."""
        order = self.order(seed, epoch)
        return order[(group - epoch * len(order)) % groups :: groups]

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
            limits = DocumentFilter(self.section.filter, where=self.where)
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
                kept = document if limits is None else limits.limited(document)
                if kept is not None and kept.size:
                    yield kept, partial(_spot, self.parts[number].name, behind)
            place = {}

    def nothing_to_train_on(self, length: int | None = None) -> str:
        """Message for parts that hold no document, or less than a row of them."""
        what = "no document"
        if length is not None:
            what = f"less than one row of batch.sequence_length = {length} tokens"
        held = f", with data.held_out = {self.held_out:g}" if self.held_out else ""
        return (
            f"{self.where}: the {len(self.parts):,} files of '{self.name}' hold {what} to train on"
            f"{held}.\nValid: more text, wider limits, or a smaller batch.sequence_length."
        )


def _spot(part: str, behind: Callable[[], Place]) -> Spot:
    return Spot(part, dict(behind()))


@dataclass(slots=True)
class StreamBlock:
    """Documents that are shuffled together, those of other ranks left out.

    Arguments:
        begin: where the first one is found; None: at the start of the epoch.
        digest: hash of the names and texts of all.
        documents: of each lane, in order; None are those that were taken.
        waiting: lanes that have not passed it.
    """

    begin: Spot | None
    digest: str
    size: int
    documents: dict[int, list[Document | None]]
    waiting: set[int] = field(default_factory=set)

    def take(self, lane: int, first: int, last: int) -> list[Document]:
        """Documents of a lane, which are then no longer held."""
        documents = self.documents[lane][first:last]
        self.documents[lane][first:last] = [None] * len(documents)
        return [document for document in documents if document is not None]


@dataclass(frozen=True, slots=True)
class LanePosition:
    """Position of the next row of a lane.

    Arguments:
        block: number of the block in its epoch.
        begin: where that block begins; None: where the epoch does.
        digest: of the block's documents; empty: nothing of it was taken.
        item: document of the lane in the block, or group of documents that are packed.
        offset: token of that document with the separator before it, or row of the group.
        document: its name; empty where documents are packed.
    """

    epoch: int = 0
    block: int = 0
    begin: Spot | None = None
    digest: str = ""
    item: int = 0
    offset: int = 0
    document: str = ""


class StreamReader:
    """The documents of some of the parts in blocks, of which one is read while another is used up.

    Arguments:
        key: of the orders of blocks, a function of the epoch and the number of a block.
        order: of an epoch the numbers of the parts.
        size: documents of a block; the last one of an epoch has fewer.
        lanes: all that the documents are dealt to.
        own: those of them whose documents are kept, with where each begins.

    Raises:
        SetpointError: from `block`; a document cannot be read, or an epoch has none.
    """

    def __init__(
        self,
        stream: Stream,
        key: Callable[[int, int], str],
        order: Callable[[int], list[int]],
        size: int,
        lanes: range,
        own: Mapping[int, LanePosition],
    ) -> None:
        self.stream, self.key, self.order, self.size, self.lanes = stream, key, order, size, lanes
        # Of each lane the block that it is in.
        self.places = {lane: (at.epoch, at.block) for lane, at in own.items()}
        self.blocks: dict[tuple[int, int], StreamBlock] = {}
        self.lengths: dict[int, int] = {}
        first = min(own.values(), key=lambda at: (at.epoch, at.block))
        self._open(first.epoch, first.block, first.begin)

    def _open(self, epoch: int, number: int, begin: Spot | None) -> None:
        self.documents = self.stream.documents(self.order(epoch), begin)
        self.epoch, self.number, self.begin = epoch, number, begin
        self._clear()

    def _clear(self) -> None:
        self.ahead: list[Document] = []
        self.behind: Spot | None = None
        self.hash = hashlib.sha256()
        self.error: Exception | None = None

    def read(self) -> bool:
        """Read one more document of the next block, where it lacks any.

        What goes wrong is raised when everything before was used.
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
        if document.tokens is not None:
            self.hash.update(np.ascontiguousarray(document.tokens).data)
        return True

    def read_ahead(self) -> None:
        """Read about as many documents as are dealt while a lane of this rank gets one."""
        for _ in range(-(-len(self.lanes) // len(self.places))):
            if not self.read():
                break

    def block(self, epoch: int, number: int) -> StreamBlock | None:
        """A block that lanes wait for; None where its epoch ended before."""
        while (epoch, number) not in self.blocks:
            if epoch in self.lengths and number >= self.lengths[epoch]:
                return None
            self._load()
        return self.blocks[epoch, number]

    def _load(self) -> None:
        while self.read():
            pass
        if self.error is not None:
            raise self.error
        epoch, number, count = self.epoch, self.number, len(self.ahead)
        if not count:
            if not number:
                raise SetpointError(self.stream.nothing_to_train_on())
            self.lengths[epoch] = number
            self._open(epoch + 1, 0, None)
            return
        waiting = {lane for lane, place in self.places.items() if place <= (epoch, number)}
        documents: dict[int, list[Document | None]] = {lane: [] for lane in waiting}
        # Turned with the epoch, so that each lane gets some of fewer documents than lanes.
        first = number * self.size + epoch
        for at, chosen in enumerate(self.stream.shuffled_block(self.key(epoch, number), count)):
            lane = self.lanes[(first + at) % len(self.lanes)]
            if lane in documents:
                documents[lane].append(self.ahead[chosen])
        if waiting:
            digest = self.hash.hexdigest()[:16]
            self.blocks[epoch, number] = StreamBlock(self.begin, digest, count, documents, waiting)
        self.number, self.begin = number + 1, self.behind
        self._clear()

    def move(self, lane: int, epoch: int, number: int) -> None:
        """Note that a lane goes on with another block; one that all have passed is dropped."""
        place = self.places[lane]
        self.places[lane] = epoch, number
        if place in self.blocks:
            self.blocks[place].waiting.discard(lane)
            if not self.blocks[place].waiting:
                del self.blocks[place]


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
            raise duplicate_name("data.sources", after.name)
    names = [stream.name for stream in streams]
    corpus = build_corpus(documents, tokenizer, side="held_out", sources=names, show=show)
    return trained, corpus
