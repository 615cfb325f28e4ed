"""Streamed sources: documents in shuffled blocks, dealt to lanes.

Each row of a step is a lane with its own documents, so that batches do not depend on the number of
ranks, and a rank tokenizes only the documents of its rows. The parts of a source (its files) are
dealt to groups of lanes, and the documents of a group to its lanes one by one. A rank reads all
documents of the groups of its lanes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from setpoint.config import SetpointError
from setpoint.data.corpus import files_digest
from setpoint.data.document import DataIdentity, Document, FileRecord, Place, StreamSource
from setpoint.data.order import shuffled
from setpoint.data.reading import DocumentFilter, split_position
from setpoint.data.sources.config import SourceConfig
from setpoint.data.tokenizer import Tokenizer


class Spot(NamedTuple):
    """Position of a document in a stream.

    Arguments:
        part: name of the part, such as a file.
    """

    part: str
    place: Place


Found = tuple[Document, Callable[[], Spot]]
"""A document, and a function that returns the position after it; call it before the next one."""


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A streamed source, which takes the place of a `Corpus`.

    Arguments:
        where: path of its section in the job, for messages.
        parts: see `StreamSource.parts`.
        held_out: fraction of the documents to hold out, by the hash of their names.
        buffer: documents per block.
        shuffle: whether to shuffle parts, and documents within a block.
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
        """False if documents keep the order of the files."""
        return self.shuffle and self.buffer > 1

    @property
    def identity(self) -> DataIdentity:
        """Identity of the files, without their content."""
        digest = files_digest(self.tokenizer.name, self.parts)
        return DataIdentity("train", digest, None, None, self.parts)

    def order(self, seed: int, epoch: int) -> list[int]:
        """Numbers of the parts in an epoch's order."""
        return self.shuffled(f"parts/{seed}/{self.name}/{epoch}", len(self.parts))

    def shuffled(self, key: str, size: int) -> list[int]:
        """Random order of parts, or of documents in a block; ascending if none is shuffled."""
        places = np.arange(size)
        return (shuffled(key, size, places) if self.is_shuffled else places).tolist()

    def groups(self, lanes: int) -> int:
        """Largest possible number of lane groups, each with its own parts."""
        counts = range(1, min(lanes, len(self.parts)) + 1)
        return max((count for count in counts if lanes % count == 0), default=1)

    def order_of_group(self, seed: int, group: int, groups: int, epoch: int) -> list[int]:
        """Parts of a group in an epoch; over several epochs, all groups get equally many."""
        order = self.order(seed, epoch)
        return order[(group - epoch * len(order)) % groups :: groups]

    def documents(self, order: Sequence[int], begin: Spot | None = None) -> Iterator[Found]:
        """The training documents.

        Arguments:
            order: order of the parts.
            begin: position of the first document; None: the start.
        """
        for document, spot in self.both_sides(order, begin):
            if split_position(document.name) >= self.held_out:
                yield document, spot

    def both_sides(self, order: Sequence[int], begin: Spot | None = None) -> Iterator[Found]:
        """The filtered documents, including held-out ones.

        Raises:
            SetpointError: a document cannot be read or is not plain text.
        """
        limits = None
        if self.section.filter is not None:
            limits = DocumentFilter(self.section.filter, where=self.where)
        place: Place = {}
        if begin is not None:
            index = [self.parts[number].name for number in order].index(begin.part)
            order, place = order[index:], begin.place
        for number in order:
            for document, next_place in self.source.read(number, place):
                if document.trained is not None:
                    raise SetpointError(
                        f"{self.where}: the document '{document.name}' marks trained tokens, but "
                        f"only plain text can be streamed.\n"
                        "Valid: streaming = false, or documents without `trained`."
                    )
                kept = document if limits is None else limits.limited(document)
                if kept is not None and kept.size:
                    yield kept, partial(_spot, self.parts[number].name, next_place)
            place = {}

    def nothing_to_train_on(self, length: int | None = None) -> str:
        """Message about parts without training documents, or with less than one row of tokens."""
        text = "no document"
        if length is not None:
            text = f"less than one row of batch.sequence_length = {length} tokens"
        held_out = f", with data.held_out = {self.held_out:g}" if self.held_out else ""
        return (
            f"{self.where}: the {len(self.parts):,} files of '{self.name}' hold {text} to train on"
            f"{held_out}.\nValid: more text, wider limits, or a smaller batch.sequence_length."
        )


def _spot(part: str, next_place: Callable[[], Place]) -> Spot:
    return Spot(part, dict(next_place()))


@dataclass(slots=True)
class StreamBlock:
    """Documents that are shuffled together, without those of other ranks.

    Arguments:
        begin: position of the first document; None: start of the epoch.
        digest: hash of the names and texts of all documents.
        documents: documents of each lane, in order; None once taken.
        waiting: lanes that have not passed this block yet.
    """

    begin: Spot | None
    digest: str
    size: int
    documents: dict[int, list[Document | None]]
    waiting: set[int] = field(default_factory=set)

    def remaining(self, lane: int) -> list[Document]:
        """A lane's documents that have not been taken."""
        return [document for document in self.documents[lane] if document is not None]

    def take(self, lane: int, first: int, last: int) -> list[Document]:
        """Remove and return documents of a lane."""
        documents = self.documents[lane][first:last]
        self.documents[lane][first:last] = [None] * len(documents)
        return [document for document in documents if document is not None]


@dataclass(frozen=True, slots=True)
class LanePosition:
    """Position of the next row of a lane.

    Arguments:
        block: number of the block in its epoch.
        begin: start of the block; None: start of the epoch.
        digest: digest of the block; empty before its first row is taken.
        item: number of the lane's document, or of its packed group, in the block.
        offset: index of the next token in the document, counting the preceding separator, or of
            the next row in the group.
        document: name of the document; empty with packing.
    """

    epoch: int = 0
    block: int = 0
    begin: Spot | None = None
    digest: str = ""
    item: int = 0
    offset: int = 0
    document: str = ""


class StreamReader:
    """Reader of the documents of a group of lanes in blocks, one block ahead.

    Arguments:
        lane_count: number of lanes of all groups.
        starts: lanes whose documents are kept, with their start positions; those of other groups
            are ignored, and with none of this group nothing is read.

    Raises:
        SetpointError: raised by `block`: a document cannot be read, or an epoch has none.
    """

    def __init__(
        self,
        stream: Stream,
        seed: int,
        group: int,
        lane_count: int,
        starts: Mapping[int, LanePosition],
    ) -> None:
        self.stream, self.seed, self.group = stream, seed, group
        self.groups = stream.groups(lane_count)
        # The last block of an epoch may be smaller.
        self.size = max(stream.buffer // self.groups, 1)
        width = lane_count // self.groups
        self.lanes = range(group * width, (group + 1) * width)
        kept = {lane: starts[lane] for lane in self.lanes if lane in starts}
        # Of each lane the block that it is in.
        self.places = {lane: (start.epoch, start.block) for lane, start in kept.items()}
        self.blocks: dict[tuple[int, int], StreamBlock] = {}
        self.lengths: dict[int, int] = {}
        if kept:
            first = min(kept.values(), key=lambda start: (start.epoch, start.block))
            self._open(first.epoch, first.block, first.begin)

    def _open(self, epoch: int, number: int, begin: Spot | None) -> None:
        order = self.stream.order_of_group(self.seed, self.group, self.groups, epoch)
        self.documents = self.stream.documents(order, begin)
        self.epoch, self.number, self.begin = epoch, number, begin
        self._clear()

    def _clear(self) -> None:
        self.ahead: list[Document] = []
        self.next_begin: Spot | None = None
        self.hash = hashlib.sha256()
        self.error: Exception | None = None

    def read(self) -> bool:
        """Read one more document of the next block; False if the block is complete.

        Errors are raised once the documents before them have been used.
        """
        if len(self.ahead) == self.size or self.error is not None:
            return False
        try:
            entry = next(self.documents, None)
            if entry is None:
                return False
            document, spot = entry
            self.ahead.append(document)
            if len(self.ahead) == self.size:
                self.next_begin = spot()
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
        """Read as many documents as are dealt for each document of a lane of this rank."""
        for _ in range(-(-len(self.lanes) // len(self.places))):
            if not self.read():
                break

    def block(self, epoch: int, number: int) -> StreamBlock | None:
        """A block; None if its epoch has fewer blocks."""
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
            # All documents of a group's parts may be held out, where another group has some.
            every = range(len(self.stream.parts))
            if not number and next(self.stream.documents(every), None) is None:
                raise SetpointError(self.stream.nothing_to_train_on())
            self.lengths[epoch] = number
            self._open(epoch + 1, 0, None)
            return
        waiting = {lane for lane, place in self.places.items() if place <= (epoch, number)}
        documents: dict[int, list[Document | None]] = {lane: [] for lane in waiting}
        # Turned with the epoch, so that each lane gets some of fewer documents than lanes.
        first = number * self.size + epoch
        more = f"/{self.group}" if self.group else ""
        key = f"{self.seed}/{self.stream.name}/{epoch}/{number}{more}"
        for i, chosen in enumerate(self.stream.shuffled(f"blocks/{key}", count)):
            lane = self.lanes[(first + i) % len(self.lanes)]
            if lane in documents:
                documents[lane].append(self.ahead[chosen])
        if waiting:
            digest = self.hash.hexdigest()[:16]
            self.blocks[epoch, number] = StreamBlock(self.begin, digest, count, documents, waiting)
        self.number, self.begin = number + 1, self.next_begin
        self._clear()

    def move(self, lane: int, epoch: int, number: int) -> None:
        """Move a lane to another block; a block that all lanes have passed is freed."""
        place = self.places[lane]
        self.places[lane] = epoch, number
        if place in self.blocks:
            self.blocks[place].waiting.discard(lane)
            if not self.blocks[place].waiting:
                del self.blocks[place]
