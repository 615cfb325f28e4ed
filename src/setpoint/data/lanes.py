"""Rows of streamed sources, cut or packed lane by lane in a prefetching thread.

Each row of a step is a lane, so that batches do not depend on the number of ranks and a rank
tokenizes only its own rows; see `setpoint.data.stream`.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from setpoint.config import SetpointError
from setpoint.data.config import Packing
from setpoint.data.corpus import Corpus, Ints, build_corpus, encoded
from setpoint.data.packing import Packer, pieces_of
from setpoint.data.rows import DocumentRows, Parts
from setpoint.data.sampler import Deal
from setpoint.data.stream import LanePosition, Spot, Stream, StreamBlock, StreamReader
from setpoint.data.tokenizers.tokenizer import TokenArray

LEAST_AHEAD = 4
"""Minimum number of rows to prefetch; otherwise as many as are taken at a time."""
PATIENCE = 10.0
"""Seconds that closing waits for the thread, which may wait for a network."""


LaneRow = tuple[Parts, "LanePosition"]
"""A row, and the position of its lane after it."""


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Maker of the endless rows of lanes, a function of seed and position.

    Arguments:
        length: tokens of a row, S.
    """

    stream: Stream
    section: Packing
    length: int
    seed: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the tokens."""
        return np.min_scalar_type(self.stream.tokenizer.vocab_size - 1)

    def lanes(self, count: int, own: Mapping[int, LanePosition]) -> dict[int, Iterator[LaneRow]]:
        """Iterators over the rows of some lanes; documents are freed when all lanes have passed.

        Arguments:
            count: number of all lanes.
            own: the lanes to make, with their start positions.
        """
        stream, seed = self.stream, self.seed
        groups = stream.groups(count)
        size, made = count // groups, dict[int, Iterator[LaneRow]]()
        for group in range(groups):
            lanes = range(group * size, (group + 1) * size)
            here = {lane: own[lane] for lane in lanes if lane in own}
            if not here:
                continue
            more = f"/{group}" if group else ""
            reader = StreamReader(
                stream,
                lambda epoch, number, more=more: f"{seed}/{stream.name}/{epoch}/{number}{more}",
                partial(stream.order_of_group, seed, group, groups),
                max(stream.buffer // groups, 1),
                lanes,
                here,
            )
            make = self._cut if self.section.method == "concatenate" else self._packed
            made |= {lane: _rows(make(reader, lane, at), size > 1) for lane, at in here.items()}
        return made

    def _blocks(
        self, reader: StreamReader, lane: int, at: LanePosition
    ) -> Iterator[tuple[StreamBlock | None, LanePosition]]:
        """The blocks of a lane with the start position in each; None ends an epoch."""
        while True:
            block = reader.block(at.epoch, at.block)
            if block is None:
                at = LanePosition(at.epoch + 1)
                reader.move(lane, at.epoch, 0)
                yield None, at
                continue
            if at.digest and block.digest != at.digest:
                raise SetpointError(self._changed(block))
            yield block, replace(at, begin=block.begin, digest=block.digest)
            at = LanePosition(at.epoch, at.block + 1)
            reader.move(lane, at.epoch, at.block)

    def _cut(
        self, reader: StreamReader, lane: int, at: LanePosition
    ) -> Iterator[LaneRow | LanePosition]:
        """Concatenate documents and cut them every S + 1 tokens.

        Rows of several lanes cross epochs, since each lane has a part of the documents. With one
        lane the remainder at the end of an epoch is dropped.
        """
        tokenizer, width = self.stream.tokenizer, self.length + 1
        dtype = self.dtype
        separator = np.array([tokenizer.separator], dtype)
        cutter, alone, made = _Cutter(width), len(reader.lanes) == 1, at != LanePosition(at.epoch)
        for block, begin in self._blocks(reader, lane, at):
            if block is None:
                if not alone:
                    continue
                if cutter.have == self.length:
                    cutter.add(separator, 0, "")
                    made = True
                    yield cutter.row(), begin
                if not made:
                    raise SetpointError(self.stream.nothing_to_train_on(self.length))
                cutter, made = _Cutter(width), False
                yield begin
                continue
            offset = begin.offset
            block.take(lane, 0, begin.item)
            for item in range(begin.item, len(block.documents[lane])):
                reader.read_ahead()
                (document,) = block.take(lane, item, item + 1)
                pieces = encoded(document, tokenizer, self.stream.where)
                tokens = np.concatenate([separator, *(piece for _, piece in pieces)])
                tokens = tokens.astype(dtype, copy=False)
                while offset < len(tokens):
                    offset += cutter.add(tokens, offset, document.name)
                    if cutter.have == width:
                        behind = replace(begin, item=item, offset=offset, document=document.name)
                        made = True
                        yield cutter.row(), behind
                offset = 0

    def _packed(
        self, reader: StreamReader, lane: int, at: LanePosition
    ) -> Iterator[LaneRow | LanePosition]:
        """Pack groups of documents; no group crosses the end of a block."""
        stream, size = self.stream, self.section.group_size
        last = at.epoch  # in which there was a row
        for block, begin in self._blocks(reader, lane, at):
            if block is None:
                if begin.epoch > last + len(reader.lanes):
                    raise SetpointError(stream.nothing_to_train_on(self.length))
                yield begin
                continue
            first = begin.offset
            block.take(lane, 0, begin.item * size)
            for group in range(begin.item, -(-len(block.documents[lane]) // size)):
                reader.read_ahead()
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

    def _pack(self, corpus: Corpus, key: str) -> Parts:
        pieces = pieces_of(corpus, self.length, self.section.too_long)
        order = None if self.stream.shuffle else np.arange(len(pieces.starts))
        packer = Packer(
            pieces, self.section, length=self.length, seed=self.seed, name=key, order=order
        )
        return Parts.joined([packer.group(0, number) for number in range(packer.groups)])

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
    """Accumulator of the tokens of a row."""

    def __init__(self, width: int) -> None:
        self.width, self.have = width, 0
        self.parts: list[TokenArray] = []
        self.starts: list[int] = []
        self.names: list[str] = []

    def add(self, tokens: TokenArray, offset: int, name: str) -> int:
        """Add tokens of a document until the row is full; return their number."""
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
    found = zip(row.starts.tolist(), row.lengths.tolist(), strict=True)
    tokens = [corpus.tokens[start : start + length + 1] for start, length in found]
    numbers = np.searchsorted(corpus.starts, row.starts + 1, "right") - 1
    names = tuple(corpus.files[number].name for number in numbers.tolist())
    starts = np.cumsum([0, *row.lengths[:-1] + 1])
    return Parts(starts, row.lengths, row.ends, np.concatenate(tokens), names)


def _rows(rows: Iterator[LaneRow | LanePosition], across: bool) -> Iterator[LaneRow]:
    """Rows with positions after them; after the last row of an epoch the start of the next one.

    One row is delayed to find the last one, unless rows cross epochs.
    """
    row: LaneRow | None = None
    try:
        for found in rows:
            if isinstance(found, LanePosition):
                row = row and (row[0], found)
                continue
            if row is not None:
                yield row
            row = found
            if across:
                yield row
                row = None
    except SetpointError:
        if row is not None:
            yield row
        raise


class Ahead:
    """A thread that prefetches rows."""

    def __init__(self, lanes: Mapping[int, Iterator[LaneRow]]) -> None:
        self.lanes, self.order = lanes, list(lanes)
        self.ready: dict[int, deque[LaneRow]] = {lane: deque() for lane in lanes}
        self.queue: deque[int] = deque()
        self.asked: Counter[int] = Counter()
        """Number of rows of each lane that are ready or queued."""
        self.errors: dict[int, BaseException] = {}
        self.condition = threading.Condition()
        self.closed = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (lane := self._next()) is not None:
            try:
                row = next(self.lanes[lane])
                with self.condition:
                    self.ready[lane].append(row)
                    self.condition.notify_all()
            except BaseException as error:  # raised where the rows are taken
                with self.condition:
                    self.errors.setdefault(lane, error)
                    self.condition.notify_all()

    def _next(self) -> int | None:
        """Wait for the next queued lane; None after `stop`."""
        with self.condition:
            while not self.closed:
                if not self.queue:
                    self.condition.wait()
                elif (lane := self.queue.popleft()) not in self.errors:
                    return lane
            return None

    def take(self, lanes: Sequence[int]) -> list[LaneRow]:
        """The next row of each of the lanes.

        Raises:
            SetpointError: a row could not be made.
        """
        wanted, count = Counter(lanes), max(len(lanes), LEAST_AHEAD)
        first = self.order.index(lanes[-1]) + 1
        later = Counter(self.order[(first + at) % len(self.order)] for at in range(count))
        with self.condition:
            for each in (wanted, wanted + later):
                for lane, number in each.items():
                    missing = max(number - self.asked[lane], 0)
                    self.queue.extend([lane] * missing)
                    self.asked[lane] += missing
            self.condition.notify_all()
            while lacking := [k for k, number in wanted.items() if len(self.ready[k]) < number]:
                if failed := [lane for lane in lacking if lane in self.errors]:
                    raise self.errors[failed[0]]
                self.condition.wait()
            self.asked -= wanted
            return [self.ready[lane].popleft() for lane in lanes]

    def stop(self) -> None:
        """Ask the thread to stop."""
        with self.condition:
            self.closed = True
            self.condition.notify_all()

    def close(self) -> None:
        """Stop the thread and close the files."""
        self.stop()
        self.thread.join(PATIENCE)


class LaneCursor:
    """Position in the rows of a stream: `setpoint.data.sampler.Cursor`.

    Row i belongs to lane i modulo the number of lanes, which is the number of rows of a step at
    the start of the run. In the order of the files there is one lane, which every rank tokenizes:
    where a row begins depends on the token counts of all documents before it. The position covers
    the lanes of this rank.
    """

    is_dealt = True

    def __init__(self, maker: RowMaker) -> None:
        self.maker = maker
        self.lane_count, self.at = 1, {0: LanePosition()}
        self._ahead: Ahead | None = None
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
        return sum(at.epoch for at in self.at.values()) / max(len(self.at), 1)

    def take(self, slots: Ints, own: slice) -> Parts:
        """See `Cursor.take`.

        Raises:
            SetpointError: see `RowMaker`; earlier rows were returned.
        """
        all_lanes: list[int] = (slots % self.lane_count).tolist()
        lanes = [lane for lane in all_lanes if lane in self.at]
        made: list[LaneRow] = []
        if lanes:
            if self._ahead is None:
                self._ahead = Ahead(self.maker.lanes(self.lane_count, self.at))
                weakref.finalize(self, self._ahead.stop)
            made = self._ahead.take(lanes)
            self.at |= {lane: at for lane, (_, at) in zip(lanes, made, strict=True)}
        start, stop, _ = own.indices(len(slots))
        rows, given = iter(made), list[Parts]()
        for number, lane in enumerate(all_lanes):
            row = next(rows)[0] if lane in self.at else None
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
        for lane, at in self.at.items():
            lanes[str(lane)] = {
                "epoch": at.epoch,
                "block": at.block,
                "from": None if at.begin is None else {"file": at.begin.part, **at.begin.place},
                "digest": at.digest,
                "item": at.item,
                "offset": at.offset,
                "document": at.document,
            }
        epoch = min((at.epoch for at in self.at.values()), default=0)
        return {"epoch": epoch, "lane_count": self.lane_count, "lanes": lanes}

    def locate(
        self, state: Mapping[str, Any] | None, deal: Deal, other_data: bool = False
    ) -> tuple[int, dict[int, LanePosition]]:
        """See `Cursor.locate`.

        With other data a lane continues in the file of the state if it still exists, or else in the
        next epoch. Documents of a block are compared with the state when they are read.

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
        for lane, at in positions.items():
            if at.begin is not None and at.begin.part not in known and not other_data:
                raise SetpointError(
                    f"{stream.where}: the data position is in {at.begin.part}, which is "
                    "gone.\nValid: the files of the record, --accept data, or a new run."
                )
            if other_data:
                group = lane * groups // count
                order = stream.order_of_group(self.maker.seed, group, groups, at.epoch)
                here = at.begin is None or at.begin.part in {stream.parts[n].name for n in order}
                positions[lane] = replace(at, digest="") if here else LanePosition(at.epoch + 1)
        return count, positions

    def move(self, position: tuple[int, dict[int, LanePosition]]) -> None:
        """See `Cursor.move`."""
        self.close()
        self.lane_count, self.at = position

    def close(self) -> None:
        """Close the files and discard prefetched rows."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None


def _positions(state: Mapping[str, Any], deal: Deal) -> tuple[int, dict[int, LanePosition]]:
    """Number of lanes, and the positions of the lanes of a rank.

    Raises:
        SetpointError: the state is invalid.
    """

    def whole(found: Mapping[str, Any], name: str, least: int = 0) -> int:
        if type(found[name]) is not int or found[name] < least:
            raise ValueError(name, found[name])
        return found[name]

    try:
        count, positions = whole(state, "lane_count", 1), dict[int, LanePosition]()
        for lane in deal.lanes(count):
            found = state["lanes"][str(lane)]
            epoch, block, item, offset = (
                whole(found, name) for name in ("epoch", "block", "item", "offset")
            )
            begin = found["from"]
            if begin is not None:
                begin = Spot(begin["file"], {k: v for k, v in begin.items() if k != "file"})
            positions[lane] = LanePosition(
                epoch, block, begin, found["digest"], item, offset, found["document"]
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
) -> tuple[DocumentRows, LaneCursor]:
    """Build the rows of a stream, cut or packed while it is read.

    Arguments:
        marked: see `DocumentRows`.
    """
    packed, tokenizer = section.method != "concatenate", stream.tokenizer
    maker, none = RowMaker(stream, section, length, seed), np.empty(0, np.int64)
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
