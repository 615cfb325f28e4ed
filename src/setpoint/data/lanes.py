"""Rows of streamed sources, cut or packed lane by lane, with a thread that reads ahead.

Each row of a step is a lane, so that batches do not depend on the number of ranks, and a rank
tokenizes only its own rows; see `setpoint.data.stream`. With documents in file order there is a
single lane, because the start of a row depends on the token counts of all documents before it. Each
rank then tokenizes a part of the documents of each block, and the ranks exchange their tokens.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import chain
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from setpoint.config import SetpointError
from setpoint.data.config import Packing
from setpoint.data.corpus import Corpus, Ints, Parts, build_corpus, encoded
from setpoint.data.document import Document
from setpoint.data.order import Deal
from setpoint.data.packing import Packer, pieces_of
from setpoint.data.rows import DocumentRows
from setpoint.data.stream import Found, LanePosition, Spot, Stream, StreamBlock, StreamReader
from setpoint.data.tokenizer import TokenArray

T = TypeVar("T")

LEAST_AHEAD = 4
"""Minimum number of rows to prefetch; otherwise as many as are taken at a time."""
PATIENCE = 10.0
"""Seconds that closing waits for the thread, which may wait for a network."""


class DataRanks(Protocol):
    """The ranks of a job, such as `setpoint.parallel.world.World`."""

    @property
    def rank(self) -> int:
        """Index of this process."""
        ...

    @property
    def size(self) -> int:
        """Number of processes."""
        ...

    def all_of(self, value: T) -> list[T]:
        """Gather picklable values from all ranks, in rank order."""
        ...


LaneRow = tuple[Parts, LanePosition]
"""A row, and the position of its lane after it."""
LaneBlock = tuple[StreamBlock | None, LanePosition]
"""A block, and the position of a lane at its start; None ends an epoch."""


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Maker of the endless rows of lanes, which depend only on seed and position.

    Arguments:
        length: tokens of a row, S.
        ranks: ranks that share the tokenization of documents that all of them read; None: only this
            rank.
    """

    stream: Stream
    section: Packing
    length: int
    seed: int
    ranks: DataRanks | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the tokens."""
        return np.min_scalar_type(self.stream.tokenizer.vocab_size - 1)

    def open(self, count: int, starts: Mapping[int, LanePosition]) -> Ahead[LaneRow] | SharedLane:
        """Open the rows of some lanes; documents are freed when all lanes have passed them.

        Arguments:
            count: total number of lanes.
            starts: the lanes to produce, with their start positions.
        """
        rows = dict[int, Iterator[LaneRow]]()
        for group in range(self.stream.groups(count)):
            reader = StreamReader(self.stream, self.seed, group, count, starts)
            for lane in reader.places:
                blocks = self._blocks(reader, lane, starts[lane])
                if self.ranks is not None:
                    return SharedLane(self, blocks, starts[lane], self.ranks)
                rows[lane] = self.rows(blocks, lane, starts[lane], count, reader.read_ahead)
        return Ahead(rows)

    def rows(
        self,
        blocks: Iterator[LaneBlock],
        lane: int,
        position: LanePosition,
        lanes: int = 1,
        read_ahead: Callable[[], None] = lambda: None,
    ) -> Iterator[LaneRow]:
        """The rows of a lane, each with the position after it.

        After the last row of an epoch, the position is the start of the next epoch. Rows are
        delayed by one to detect the last one, unless rows cross epochs.

        Arguments:
            lanes: total number of lanes; with several lanes, rows cross epochs, since each lane has
                only a part of the documents.
            read_ahead: called for each document.
        """
        if self.section.method == "concatenate":
            rows = self._cut(blocks, lane, position, lanes, read_ahead)
        else:
            rows = self._packed(blocks, lane, position, lanes, read_ahead)
        row: LaneRow | None = None
        try:
            for entry in rows:
                if isinstance(entry, LanePosition):
                    row = row and (row[0], entry)
                    continue
                if row is not None:
                    yield row
                row = entry
                if lanes > 1:
                    yield row
                    row = None
        except SetpointError:
            if row is not None:
                yield row
            raise

    def _blocks(self, reader: StreamReader, lane: int, pos: LanePosition) -> Iterator[LaneBlock]:
        """The blocks of a lane."""
        while True:
            block = reader.block(pos.epoch, pos.block)
            if block is None:
                pos = LanePosition(pos.epoch + 1)
                reader.move(lane, pos.epoch, 0)
                yield None, pos
                continue
            if pos.digest and block.digest != pos.digest:
                raise SetpointError(self._changed(block))
            yield block, replace(pos, begin=block.begin, digest=block.digest)
            pos = LanePosition(pos.epoch, pos.block + 1)
            reader.move(lane, pos.epoch, pos.block)

    def _cut(
        self,
        blocks: Iterator[LaneBlock],
        lane: int,
        start: LanePosition,
        lanes: int,
        read_ahead: Callable[[], None],
    ) -> Iterator[LaneRow | LanePosition]:
        """Concatenate documents and cut them every S + 1 tokens.

        With one lane the remainder at the end of an epoch is dropped.
        """
        width = self.length + 1
        separator = np.array([self.stream.tokenizer.separator], self.dtype)
        cutter, has_rows = _Cutter(width), start != LanePosition(start.epoch)
        for block, begin in blocks:
            if block is None:
                if lanes > 1:
                    continue
                if cutter.have == self.length:
                    cutter.add(separator, 0, "")
                    has_rows = True
                    yield cutter.row(), begin
                if not has_rows:
                    raise SetpointError(self.stream.nothing_to_train_on(self.length))
                cutter, has_rows = _Cutter(width), False
                yield begin
                continue
            offset = begin.offset
            block.take(lane, 0, begin.item)
            for item in range(begin.item, len(block.documents[lane])):
                read_ahead()
                (document,) = block.take(lane, item, item + 1)
                tokens = np.append(separator, self.encode(document))
                while offset < len(tokens):
                    offset += cutter.add(tokens, offset, document.name)
                    if cutter.have == width:
                        position = replace(begin, item=item, offset=offset, document=document.name)
                        has_rows = True
                        yield cutter.row(), position
                offset = 0

    def _packed(
        self,
        blocks: Iterator[LaneBlock],
        lane: int,
        start: LanePosition,
        lanes: int,
        read_ahead: Callable[[], None],
    ) -> Iterator[LaneRow | LanePosition]:
        """Pack groups of documents; no group crosses the end of a block."""
        stream, size = self.stream, self.section.group_size
        last = start.epoch  # in which there was a row
        for block, begin in blocks:
            if block is None:
                if begin.epoch > last + lanes:
                    if not any(map(self._fits, stream.documents(range(len(stream.parts))))):
                        raise SetpointError(stream.nothing_to_train_on(self.length))
                    last = begin.epoch  # others had the documents that fit
                yield begin
                continue
            first = begin.offset
            block.take(lane, 0, begin.item * size)
            for group in range(begin.item, -(-len(block.documents[lane]) // size)):
                read_ahead()
                documents = block.take(lane, group * size, (group + 1) * size)
                corpus = build_corpus(
                    documents, stream.tokenizer, side="train", where=stream.where,
                    sources=(stream.name,),
                )  # fmt: skip
                key = f"{stream.name}/{begin.epoch}/{begin.block}/{group}"
                rows = self._pack(corpus, f"{key}/{lane}" if lane else key)
                for row in range(first, len(rows)):
                    last = begin.epoch
                    yield (
                        _with_tokens(corpus, rows[row : row + 1]),
                        replace(begin, item=group, offset=row + 1),
                    )
                first = 0

    def _fits(self, entry: Found) -> bool:
        """True if a document yields a row."""
        corpus = build_corpus([entry[0]], self.stream.tokenizer, side="train")
        return len(pieces_of(corpus, self.length, self.section.too_long).starts) > 0

    def _pack(self, corpus: Corpus, key: str) -> Parts:
        pieces = pieces_of(corpus, self.length, self.section.too_long)
        order = None if self.stream.shuffle else np.arange(len(pieces.starts))
        packer = Packer(
            corpus, pieces, self.section,
            length=self.length, seed=self.seed, name=key, order=order,
        )  # fmt: skip
        return Parts.joined([packer.group(0, number) for number in range(packer.groups)])

    def encode(self, document: Document) -> TokenArray:
        """Tokens of a document."""
        pieces = encoded(document, self.stream.tokenizer, self.stream.where)
        return np.concatenate([piece for _, piece in pieces]).astype(self.dtype, copy=False)

    def _changed(self, block: StreamBlock) -> str:
        where = f"{self.stream.name} at its start"
        if block.begin is not None:
            where = f"{block.begin.part}, row {block.begin.place.get('row', 0) + 1:,}"
        return (
            f"{self.stream.where}: the {block.size:,} documents from {where} on have changed "
            "since the data position was saved.\n"
            "Valid: the unchanged files, --accept data to continue with the current ones, or a new "
            "run."
        )


class _Cutter:
    """Accumulator for the tokens of a row."""

    def __init__(self, width: int) -> None:
        self.width, self.have = width, 0
        self.parts: list[TokenArray] = []
        self.starts: list[int] = []
        self.names: list[str] = []

    def add(self, tokens: TokenArray, offset: int, name: str) -> int:
        """Add tokens of a document until the row is full; return the number added."""
        part = tokens[offset : offset + self.width - self.have]
        # A document begins with the separator before it, where that is read and not a target only.
        if self.have == 0 or (offset == 0 and self.have < self.width - 1):
            self.starts.append(self.have)
            self.names.append(name)
        self.parts.append(part)
        self.have += len(part)
        return len(part)

    def row(self) -> Parts:
        """Return the row, and begin the next one."""
        starts = np.array(self.starts, np.int64)
        lengths = np.diff(starts, append=self.width - 1)
        tokens, names = np.concatenate(self.parts), tuple(self.names)
        row = Parts(starts, lengths, np.array([len(starts)]), tokens, names)
        self.have, self.parts, self.starts, self.names = 0, [], [], []
        return row


def _with_tokens(corpus: Corpus, row: Parts) -> Parts:
    """A packed row with its tokens."""
    spans = zip(row.starts.tolist(), row.lengths.tolist(), strict=True)
    tokens = [corpus.tokens[start : start + length + 1] for start, length in spans]
    numbers = np.searchsorted(corpus.starts, row.starts + 1, "right") - 1
    names = tuple(corpus.files[number].name for number in numbers.tolist())
    starts = np.cumsum([0, *row.lengths[:-1] + 1])
    return Parts(starts, row.lengths, row.ends, np.concatenate(tokens), names)


class Ahead(Generic[T]):
    """A thread that reads ahead from iterators.

    Arguments:
        lanes: iterator of each lane.
        least: minimum number of items to prefetch; if more are taken at a time, that many.
    """

    def __init__(self, lanes: Mapping[int, Iterator[T]], least: int = LEAST_AHEAD) -> None:
        self.lanes, self.order, self.least = lanes, list(lanes), least
        self.ready: dict[int, deque[Future[T]]] = {lane: deque() for lane in lanes}
        self.queue: SimpleQueue[tuple[int, Future[T]]] = SimpleQueue()
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        errors: dict[int, BaseException] = {}
        while True:
            lane, item = self.queue.get()
            if self.closed.is_set():
                return
            try:
                if lane in errors:
                    raise errors[lane]
                item.set_result(next(self.lanes[lane]))
            except BaseException as error:  # raised where the item is taken
                errors[lane] = error
                item.set_exception(error)

    def take(self, lanes: Sequence[int]) -> list[T]:
        """Take the next item of each lane.

        Raises:
            SetpointError: an item could not be made; nothing is taken in this case.
        """
        needed, first = Counter(lanes), self.order.index(lanes[-1]) + 1
        places = range(first, first + max(len(lanes), self.least))
        later = Counter(self.order[place % len(self.order)] for place in places)
        for counts in (needed, needed + later):
            for lane, number in counts.items():
                for _ in range(number - len(self.ready[lane])):
                    self.ready[lane].append(Future())
                    self.queue.put((lane, self.ready[lane][-1]))
        for lane, number in needed.items():
            for place in range(number):
                self.ready[lane][place].result()
        return [self.ready[lane].popleft().result() for lane in lanes]

    def stop(self) -> None:
        """Ask the thread to stop."""
        self.closed.set()
        self.queue.put((0, Future()))

    def close(self) -> None:
        """Stop the thread and close the files."""
        self.stop()
        self.thread.join(PATIENCE)


class SharedLane:
    """The rows of the only lane, with documents tokenized by all ranks, a part by each.

    A thread reads a block ahead and tokenizes this rank's part of it. The ranks exchange tokens in
    the thread that takes the rows, since all ranks take the same rows.
    """

    def __init__(
        self, maker: RowMaker, blocks: Iterator[LaneBlock], position: LanePosition, ranks: DataRanks
    ) -> None:
        self.ranks = ranks
        self.ahead = Ahead({0: _encode_local(maker, blocks, ranks)}, 1)
        self.rows = maker.rows(self._exchanged(), 0, position)

    def _exchanged(self) -> Iterator[LaneBlock]:
        """The blocks, with the tokens of all documents."""
        while True:
            block, begin, local_tokens = None, LanePosition(), list[TokenArray]()
            failure: Exception | None = None
            try:
                ((block, begin, local_tokens),) = self.ahead.take([0])
            except Exception as error:  # which the other ranks have to hear of
                failure = error
            parts = self.ranks.all_of((local_tokens, None if failure is None else str(failure)))
            if failure is not None:
                raise failure
            for _, message in parts:
                if message is not None:
                    raise SetpointError(message)
            if block is not None:
                tokens = chain.from_iterable(part for part, _ in parts)
                pairs = zip(block.remaining(0), tokens, strict=True)
                block.documents[0] = [
                    replace(document, data=b"", tokens=ids) for document, ids in pairs
                ]
            yield block, begin

    def take(self, lanes: Sequence[int]) -> list[LaneRow]:
        """See `Ahead.take`."""
        return [next(self.rows) for _ in lanes]

    def stop(self) -> None:
        """See `Ahead.stop`."""
        self.ahead.stop()

    def close(self) -> None:
        """See `Ahead.close`."""
        self.ahead.close()


def _encode_local(
    maker: RowMaker, blocks: Iterator[LaneBlock], ranks: DataRanks
) -> Iterator[tuple[StreamBlock | None, LanePosition, list[TokenArray]]]:
    """Blocks with the tokens of this rank's documents: runs of about equally many bytes."""
    for block, begin in blocks:
        documents = [] if block is None else block.remaining(0)
        sizes = np.array([document.size for document in documents], np.int64)
        owners = (np.cumsum(sizes) - sizes) * ranks.size // max(int(sizes.sum()), 1)
        local = [documents[number] for number in np.flatnonzero(owners == ranks.rank).tolist()]
        yield block, begin, [maker.encode(document) for document in local]


class LaneCursor:
    """Position in the rows of a stream, with the methods of `EpochCursor`.

    Row i belongs to lane i modulo the number of lanes, which is the number of rows of a step at
    the start of the run; in the order of the files there is one lane. The position covers the lanes
    of this rank.
    """

    is_dealt = True

    def __init__(self, maker: RowMaker) -> None:
        self.maker = maker
        self.lane_count, self.positions = 1, {0: LanePosition()}
        self._ahead: Ahead[LaneRow] | SharedLane | None = None
        section = maker.section
        self.facts: dict[str, Any] = {
            "sequence_length": maker.length,
            "seed": maker.seed,
            "digest": maker.stream.identity.digest,
            "shuffle_buffer": maker.stream.buffer,
            "order": "shuffled" if maker.stream.shuffle else "sources",
            "method": section.method,
        }
        if section.method != "concatenate":
            self.facts |= {"group_size": section.group_size, "too_long": section.too_long}

    @property
    def epoch(self) -> float:
        """Completed passes over the stream, averaged over lanes."""
        return sum(pos.epoch for pos in self.positions.values()) / max(len(self.positions), 1)

    def take(self, slots: Ints, local_rows: slice) -> Parts:
        """See `EpochCursor.take`.

        Raises:
            SetpointError: see `RowMaker`; earlier rows have been returned.
        """
        all_lanes: list[int] = (slots % self.lane_count).tolist()
        lanes = [lane for lane in all_lanes if lane in self.positions]
        made_rows: list[LaneRow] = []
        if lanes:
            if self._ahead is None:
                self._ahead = self.maker.open(self.lane_count, self.positions)
                weakref.finalize(self, self._ahead.stop)
            made_rows = self._ahead.take(lanes)
            self.positions |= {lane: pos for lane, (_, pos) in zip(lanes, made_rows, strict=True)}
        start, stop, _ = local_rows.indices(len(slots))
        rows, given = iter(made_rows), list[Parts]()
        for number, lane in enumerate(all_lanes):
            row = next(rows)[0] if lane in self.positions else None
            if start <= number < stop:
                assert row is not None, "a rank asks for the lanes that it was dealt"
                given.append(row)
        if not given:
            none = np.empty(0, np.int64)
            return Parts(none, none, none, np.empty(0, self.maker.dtype))
        return Parts.joined(given)

    def position(self) -> dict[str, Any]:
        """Start of the current block, and the next row in it, of each lane of this rank."""
        lanes: dict[str, Any] = {}
        for lane, pos in self.positions.items():
            lanes[str(lane)] = {
                "epoch": pos.epoch,
                "block": pos.block,
                "from": None if pos.begin is None else {"file": pos.begin.part, **pos.begin.place},
                "digest": pos.digest,
                "item": pos.item,
                "offset": pos.offset,
                "document": pos.document,
            }
        epoch = min((pos.epoch for pos in self.positions.values()), default=0)
        return {"epoch": epoch, "lane_count": self.lane_count, "lanes": lanes}

    def locate(
        self, state: Mapping[str, Any] | None, deal: Deal, other_data: bool = False
    ) -> tuple[int, dict[int, LanePosition]]:
        """See `EpochCursor.locate`.

        If the data changed, a lane continues in the file named by the state if that still exists,
        else in the next epoch. Documents of a block are compared with the state when they are read.

        Raises:
            SetpointError: the position is invalid, or its file does not exist.
        """
        stream = self.maker.stream
        if state is None:
            count = deal.step_rows if stream.is_shuffled else 1
            return count, dict.fromkeys(deal.lanes(count), LanePosition())
        count, positions = _positions(state, deal)
        groups = stream.groups(count)
        known = {part.name for part in stream.parts}
        for lane, pos in positions.items():
            if pos.begin is not None and pos.begin.part not in known and not other_data:
                raise SetpointError(
                    f"{stream.where}: the data position is in {pos.begin.part}, which no longer "
                    f"exists.\nValid: the files of the record, --accept data, or a new run."
                )
            if other_data:
                group = lane * groups // count
                order = stream.order_of_group(self.maker.seed, group, groups, pos.epoch)
                kept = pos.begin is None or pos.begin.part in {stream.parts[n].name for n in order}
                positions[lane] = replace(pos, digest="") if kept else LanePosition(pos.epoch + 1)
        return count, positions

    def move(self, position: tuple[int, dict[int, LanePosition]]) -> None:
        """See `EpochCursor.move`."""
        self.close()
        self.lane_count, self.positions = position

    def close(self) -> None:
        """Close the files and discard prefetched rows."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None


def _positions(state: Mapping[str, Any], deal: Deal) -> tuple[int, dict[int, LanePosition]]:
    """The number of lanes, and the positions of a rank's lanes.

    Raises:
        SetpointError: the state is invalid.
    """

    def integer(mapping: Mapping[str, Any], name: str, least: int = 0) -> int:
        if type(mapping[name]) is not int or mapping[name] < least:
            raise ValueError(name, mapping[name])
        return mapping[name]

    try:
        count, positions = integer(state, "lane_count", 1), dict[int, LanePosition]()
        for lane in deal.lanes(count):
            lane_state = state["lanes"][str(lane)]
            epoch, block, item, offset = (
                integer(lane_state, name) for name in ("epoch", "block", "item", "offset")
            )
            begin = lane_state["from"]
            if begin is not None:
                begin = Spot(begin["file"], {k: v for k, v in begin.items() if k != "file"})
            positions[lane] = LanePosition(
                epoch, block, begin, lane_state["digest"], item, offset, lane_state["document"]
            )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SetpointError(
            f"data loader state: invalid position in a stream ({type(error).__name__}: {error}).\n"
            "Valid: a state as written into checkpoints."
        ) from None
    return count, positions


def build_streamed(
    stream: Stream,
    section: Packing,
    *,
    length: int,
    seed: int,
    marked: bool = False,
    ranks: DataRanks | None = None,
) -> tuple[DocumentRows, LaneCursor]:
    """Build the rows of a stream, cut or packed while it is read.

    Arguments:
        marked: see `DocumentRows`.
        ranks: ranks that all take the same rows at the same time; None: unknown.
    """
    packed, tokenizer = section.method != "concatenate", stream.tokenizer
    shared = ranks is not None and ranks.size > 1 and not stream.is_shuffled
    maker = RowMaker(stream, section, length, seed, ranks if shared else None)
    none = np.empty(0, np.int64)
    empty = Corpus(
        side="train",
        tokens=np.empty(0, maker.dtype),
        token_bytes=tokenizer.token_bytes,
        separator=tokenizer.separator,
        byte_count=0,
        files=(),
        digest="",
        sources=(stream.name,),
        starts=none,
        source=none,
    )
    rows = DocumentRows(
        empty,
        length,
        count=None,
        isolated=bool(section.isolate) and section.method != "none",
        marked=marked and packed,
        multiple=section.pad_to_multiple_of if packed else None,
        identity=stream.identity,
    )
    return rows, LaneCursor(maker)
