"""Rows of a stream: cut or packed while training runs, by a thread that stays a little ahead."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from setpoint.config import SetpointError
from setpoint.data.config import Packing
from setpoint.data.corpus import build_corpus, encoded
from setpoint.data.packed import PackedSequences
from setpoint.data.packing import PackedRows, Packer, pieces_of
from setpoint.data.sampler import refuse_other_stream
from setpoint.data.store import Corpus, DataIdentity
from setpoint.data.stream import Block, Blocks, Spot, Stream
from setpoint.data.tokenizers.tokenizer import TokenArray
from setpoint.shapes.batch import Batch

AHEAD = 64
"""Rows that are made before they are asked for; twice a step's, where that is more."""
PATIENCE = 10.0
"""Seconds that closing waits for a thread which may be waiting for a network."""
DESCRIBED = 4  # documents that a message names


class Row(NamedTuple):
    """One row, whose pieces may share a token.

    Arguments:
        tokens: of its pieces, with the last target of each.
        starts, lengths: what is read of each piece.
        names: of their documents.
    """

    tokens: TokenArray
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StreamRows:
    """Rows that carry their tokens.

    Arguments:
        ids: the tokens of all pieces, with the last target of each.
        packed: their pieces, as places in `ids`, in order.
        names: of the document of each piece.
    """

    ids: TokenArray
    packed: PackedRows
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, key: slice) -> StreamRows:
        start, stop, _ = key.indices(len(self))
        packed = self.packed[start:stop]
        if not len(packed):
            return StreamRows(self.ids[:0], packed, ())
        first = int(self.packed.ends[start - 1]) if start else 0
        low = int(packed.starts[0])
        high = int(packed.starts[-1] + packed.lengths[-1]) + 1
        packed = PackedRows(packed.starts - low, packed.lengths, packed.ends)
        return StreamRows(
            self.ids[low:high], packed, self.names[first : first + len(packed.starts)]
        )

    @property
    def tokens(self) -> int:
        """Tokens that the rows hold."""
        return self.packed.tokens

    @classmethod
    def joined(cls, parts: Sequence[StreamRows]) -> StreamRows:
        """Rows after rows."""
        before = np.cumsum([0, *(len(part.ids) for part in parts)]).tolist()
        moved = [
            PackedRows(part.packed.starts + at, part.packed.lengths, part.packed.ends)
            for part, at in zip(parts, before, strict=False)
        ]
        names = tuple(name for part in parts for name in part.names)
        return cls(np.concatenate([part.ids for part in parts]), PackedRows.joined(moved), names)

    @classmethod
    def of(cls, rows: Sequence[Row], dtype: np.dtype[Any]) -> StreamRows:
        """Put rows one after the other."""
        before = np.cumsum([0, *(len(row.tokens) for row in rows)]).tolist()
        starts = [start + at for row, at in zip(rows, before, strict=False) for start in row.starts]
        lengths = [length for row in rows for length in row.lengths]
        ends = np.cumsum([len(row.starts) for row in rows], dtype=np.int64)
        return cls(
            np.concatenate([np.empty(0, dtype), *(row.tokens for row in rows)]),
            PackedRows(np.array(starts, np.int64), np.array(lengths, np.int64), ends),
            tuple(name for row in rows for name in row.names),
        )


class StreamedSequences:
    """Makes batches of rows that carry their tokens: `setpoint.data.sequences.Sequences`.

    Arguments:
        isolated: whether a row tells the model its documents, and positions start anew in each.
        marked, multiple: see `PackedSequences`.
    """

    epoch_rows = None

    def __init__(
        self,
        stream: Stream,
        sequence_length: int,
        *,
        isolated: bool,
        marked: bool,
        multiple: int | None,
    ) -> None:
        self.sequence_length = sequence_length
        self.isolated, self.marked, self.multiple = isolated, marked, multiple
        self.identity: DataIdentity = stream.identity
        self.sources = (stream.name,)
        self.token_bytes = stream.tokenizer.token_bytes
        self.separator = stream.tokenizer.separator
        self.dtype = np.min_scalar_type(stream.tokenizer.vocab_size - 1)

    def rows(self, rows: StreamRows) -> Batch:
        """Some of them as a batch."""
        none = np.empty(0, np.int64)
        corpus = Corpus(
            side="train",
            tokens=rows.ids,
            token_bytes=self.token_bytes,
            separator=self.separator,
            byte_count=0,
            files=(),
            digest="",
            sources=self.sources,
            starts=none,
            source=none,
        )
        packed = PackedSequences(
            corpus,
            self.sequence_length,
            0,
            isolated=self.isolated,
            marked=self.marked,
            multiple=self.multiple,
            row_tokens=self.sequence_length,
        )
        return packed.rows(rows.packed)

    def describe(self, rows: StreamRows) -> str:
        """Name the first documents of some of them."""
        names = list(dict.fromkeys(rows.names))
        more = f" and {len(names) - DESCRIBED} more" if len(names) > DESCRIBED else ""
        return ", ".join(names[:DESCRIBED]) + more

    def names_in(self, rows: StreamRows) -> list[list[str | None]]:
        """The name of the document of each token; None for padding."""
        found: list[list[str | None]] = []
        begin = 0
        for end in rows.packed.ends.tolist():
            pieces = zip(
                rows.names[begin:end], rows.packed.lengths[begin:end].tolist(), strict=True
            )
            names: list[str | None] = [name for name, length in pieces for _ in range(length)]
            missing = self.sequence_length - len(names)
            found.append([*names, *([None] * (missing + 1) if missing else names[-1:])])
            begin = end
        return found


@dataclass(frozen=True, slots=True)
class Position:
    """Where the next row begins.

    Arguments:
        index: rows of the epoch before it.
        block: number of the block of documents.
        begin: where that block begins; None: where the epoch does.
        digest: of the block's documents; empty: nothing of it was taken.
        item: document of the block, in its order, or group of documents that are packed.
        offset: token of that document with the separator before it, or row of the group.
        name: of that document; empty where documents are packed.
    """

    epoch: int = 0
    index: int = 0
    block: int = 0
    begin: Spot | None = None
    digest: str = ""
    item: int = 0
    offset: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class RowMaker:
    """The endless rows of a stream from any position on, a function of seed and position.

    Arguments:
        length: tokens of a row, S.
    """

    stream: Stream
    section: Packing
    length: int
    seed: int

    def rows(self, at: Position) -> Iterator[tuple[Row, Position]]:
        """Rows, each with the position behind it, which may be the start of the next epoch.

        Raises:
            SetpointError: a document cannot be read or tokenized, others than before are at the
                position, or an epoch has no row.
        """
        while True:
            held: tuple[Row, Position] | None = None
            # A row is held back until it is known whether it is the last one of its epoch.
            try:
                for found in self._epoch(at):
                    if held is not None:
                        yield held
                    held = found
            except SetpointError:
                if held is not None:
                    yield held
                raise
            if held is None and not at.index:
                raise SetpointError(self._no_row())
            at = Position(epoch=at.epoch + 1)
            if held is not None:
                yield held[0], at

    def _epoch(self, at: Position) -> Iterator[tuple[Row, Position]]:
        stream = self.stream
        order = stream.order(self.seed, at.epoch)
        documents = stream.documents(order, at.begin)
        blocks = Blocks(documents, stream.buffer, at.block, at.begin)
        return (self._cut if self.section.method == "concatenate" else self._packed)(at, blocks)

    def _each(self, at: Position, blocks: Blocks) -> Iterator[tuple[Block, list[int]]]:
        """The blocks from a position on, with the order of their documents."""
        expected = at.digest
        while (block := blocks.next()) is not None:
            if expected and block.digest != expected:
                raise SetpointError(self._changed(block))
            expected = ""
            yield block, self.stream.order_in_block(self.seed, at.epoch, block)

    def _cut(self, at: Position, blocks: Blocks) -> Iterator[tuple[Row, Position]]:
        """One row of documents, cut every S + 1 tokens; what is left at its end is left out."""
        tokenizer, width = self.stream.tokenizer, self.length + 1
        dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
        separator = np.array([tokenizer.separator], dtype)
        cutter = _Cutter(width)
        first, offset, index = at.item, at.offset, at.index
        for block, order in self._each(at, blocks):
            for number in order[:first]:
                block.take(number)
            for item in range(first, len(order)):
                blocks.read()
                document = block.take(order[item])
                pieces = encoded(document, tokenizer, self.stream.where)
                tokens = np.concatenate([separator, *(piece for _, piece in pieces)])
                tokens = tokens.astype(dtype, copy=False)
                while offset < len(tokens):
                    offset += cutter.add(tokens, offset, document.name)
                    if cutter.have == width:
                        index += 1
                        yield (
                            cutter.row(),
                            _behind(at.epoch, index, block, item, offset, document.name),
                        )
                offset = 0
            first = 0
        if cutter.have == self.length:
            cutter.add(separator, 0, "")
            yield cutter.row(), Position(at.epoch, index + 1)

    def _packed(self, at: Position, blocks: Blocks) -> Iterator[tuple[Row, Position]]:
        """Groups of documents, packed each by itself; none crosses the end of a block."""
        stream, size = self.stream, self.section.group_size
        first, begin, index = at.item, at.offset, at.index
        for block, order in self._each(at, blocks):
            for number in order[: first * size]:
                block.take(number)
            for group in range(first, -(-len(order) // size)):
                documents = []
                for number in order[group * size : (group + 1) * size]:
                    blocks.read()
                    documents.append(block.take(number))
                corpus = build_corpus(
                    documents,
                    stream.tokenizer,
                    side="train",
                    where=stream.where,
                    sources=(stream.name,),
                )
                key = f"{stream.name}/{at.epoch}/{block.number}/{group}"
                rows = self._pack(corpus, key)
                for row in range(begin, len(rows)):
                    index += 1
                    yield (
                        _packed_row(corpus, rows[row : row + 1]),
                        _behind(at.epoch, index, block, group, row + 1),
                    )
                begin = 0
            first = 0

    def _pack(self, corpus: Corpus, key: str) -> PackedRows:
        pieces = pieces_of(corpus, self.length, self.section.too_long)
        order = None if self.stream.shuffle else np.arange(len(pieces.starts))
        packer = Packer(
            pieces, self.section, length=self.length, seed=self.seed, name=key, order=order
        )
        return PackedRows.joined([packer.group(0, number) for number in range(packer.groups)])

    def _changed(self, block: Block) -> str:
        where = _words(block.begin) or f"{self.stream.name} at its start"
        return (
            f"{self.stream.where}: the {len(block.documents):,} documents from {where} on are not "
            "those that were there when the data position was saved.\n"
            "Valid: the files as they were, --accept data to go on with those of today, or a new "
            "run."
        )

    def _no_row(self) -> str:
        held = f", with data.held_out = {self.stream.held_out:g}" if self.stream.held_out else ""
        return (
            f"{self.stream.where}: the {len(self.stream.parts):,} files of '{self.stream.name}' "
            f"hold less than one row of batch.sequence_length = {self.length} tokens to train on"
            f"{held}.\nValid: more text, wider limits, or a smaller batch.sequence_length."
        )


class _Cutter:
    """Collects tokens until they are a row."""

    def __init__(self, width: int) -> None:
        self.width, self.have = width, 0
        self.parts: list[TokenArray] = []
        self.starts: list[int] = []
        self.names: list[str] = []

    def add(self, tokens: TokenArray, offset: int, name: str) -> int:
        """Take as many tokens of a document from an offset on as are lacking; say how many."""
        part = tokens[offset : offset + self.width - self.have]
        # A document begins with the separator before it, where that is read and not a target only.
        if self.have == 0 or (offset == 0 and self.have < self.width - 1):
            self.starts.append(self.have)
            self.names.append(name)
        self.parts.append(part)
        self.have += len(part)
        return len(part)

    def row(self) -> Row:
        """What was collected, which is then given away."""
        ends = [*self.starts[1:], self.width - 1]
        lengths = tuple(end - start for start, end in zip(self.starts, ends, strict=True))
        row = Row(np.concatenate(self.parts), tuple(self.starts), lengths, tuple(self.names))
        self.have, self.parts, self.starts, self.names = 0, [], [], []
        return row


def _packed_row(corpus: Corpus, row: PackedRows) -> Row:
    starts, lengths = row.starts.tolist(), row.lengths.tolist()
    pieces = zip(starts, lengths, strict=True)
    tokens = [corpus.tokens[start : start + length + 1] for start, length in pieces]
    firsts = np.cumsum([0, *(length + 1 for length in lengths[:-1])]).tolist()
    numbers = np.searchsorted(corpus.starts, row.starts + 1, "right") - 1
    names = tuple(corpus.files[number].name for number in numbers.tolist())
    return Row(np.concatenate(tokens), tuple(firsts), tuple(lengths), names)


def _behind(
    epoch: int, index: int, block: Block, item: int, offset: int, name: str = ""
) -> Position:
    return Position(epoch, index, block.number, block.begin, block.digest, item, offset, name)


def _words(spot: Spot | None) -> str:
    return "" if spot is None else f"{spot.part}, row {spot.place.get('row', 0) + 1:,}"


class Ahead:
    """A thread that makes rows before they are asked for, so that a step does not wait for them."""

    def __init__(self, rows: Iterator[tuple[Row, Position]]) -> None:
        self.ready: deque[tuple[Row, Position]] = deque()
        self.condition = threading.Condition()
        self.bound = AHEAD
        self.error: BaseException | None = None
        self.closed = False
        self.thread = threading.Thread(target=self._run, args=(rows,), daemon=True)
        self.thread.start()

    def _run(self, rows: Iterator[tuple[Row, Position]]) -> None:
        try:
            while self._wanted():
                row = next(rows)
                with self.condition:
                    self.ready.append(row)
                    self.condition.notify_all()
        except BaseException as error:  # raised where the rows are taken
            with self.condition:
                self.error = error
                self.condition.notify_all()

    def _wanted(self) -> bool:
        """Wait until another row is wanted; False: none is any more."""
        with self.condition:
            while len(self.ready) >= self.bound and not self.closed:
                self.condition.wait()
            return not self.closed

    def take(self, count: int) -> list[tuple[Row, Position]]:
        """The next rows.

        Raises:
            SetpointError: what went wrong when the first one that lacks was made.
        """
        with self.condition:
            self.bound = max(self.bound, 2 * count)
            self.condition.notify_all()
            while len(self.ready) < count and self.error is None:
                self.condition.wait()
            if len(self.ready) < count:
                assert self.error is not None
                raise self.error
            found = [self.ready.popleft() for _ in range(count)]
            self.condition.notify_all()
            return found

    def stop(self) -> None:
        """Let the thread end."""
        with self.condition:
            self.closed = True
            self.condition.notify_all()

    def close(self) -> None:
        """End the thread, and the reading of files."""
        self.stop()
        self.thread.join(PATIENCE)


class StreamSampler:
    """The rows of a stream, which carry their tokens: `setpoint.data.sampler.Sampler`."""

    def __init__(self, sequences: StreamedSequences, maker: RowMaker) -> None:
        self.sequences = sequences
        self.maker = maker
        self.at = Position()
        self._ahead: Ahead | None = None

    @property
    def epoch(self) -> float:
        """Whole passes over the stream; how long the current one is, is not known."""
        return float(self.at.epoch)

    def take(self, count: int) -> StreamRows:
        """The next rows, and move past them.

        Raises:
            SetpointError: see `RowMaker.rows`; rows before that were given.
        """
        rows: list[tuple[Row, Position]] = []
        if count:
            if self._ahead is None:
                self._ahead = Ahead(self.maker.rows(self.at))
                weakref.finalize(self, self._ahead.stop)
            rows = self._ahead.take(count)
            self.at = rows[-1][1]
        return StreamRows.of([row for row, _ in rows], self.sequences.dtype)

    def forget(self) -> None:
        """Close the files, and drop the rows that were not taken."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def state_dict(self) -> dict[str, Any]:
        """Where the block of documents begins, and where in it the next row does."""
        at = self.at
        begin = None if at.begin is None else {"file": at.begin.part, **at.begin.place}
        return {
            "epoch": at.epoch,
            "index": at.index,
            "block": {"number": at.block, "from": begin, "digest": at.digest},
            "next": {"item": at.item, "offset": at.offset, "document": at.name},
            **self._stream(),
        }

    def load_state_dict(self, state: Mapping[str, Any], other_data: bool = False) -> None:
        """Go on where `state` was taken; see `setpoint.data.sampler.Sampler`.

        Other files go on with the file of the state where it is still there, else with the next
        epoch. Whether the documents of the block are still the same is seen when they are read.

        Raises:
            SetpointError: the state is one of other files or of another order, or of none.
        """
        stream = self._stream()
        refuse_other_stream(state, stream, ("epoch", "index", "block", "next"), other_data)
        at = _position(state)
        names = {part.name for part in self.maker.stream.parts}
        if at.begin is not None and at.begin.part not in names:
            if not other_data:
                raise SetpointError(
                    f"{self.maker.stream.where}: the data position is in {at.begin.part}, which is "
                    "gone.\nValid: the files of the record, --accept data, or a new run."
                )
            at = Position(epoch=at.epoch + 1)
        self.forget()
        self.at = replace(at, digest="") if other_data else at

    def _stream(self) -> dict[str, Any]:
        maker = self.maker
        packed = {}
        if maker.section.method != "concatenate":
            packed = {"group_size": maker.section.group_size, "too_long": maker.section.too_long}
        return {
            "sequence_length": maker.length,
            "seed": maker.seed,
            "digest": self.sequences.identity.digest,
            "shuffle_buffer": maker.stream.buffer,
            "shuffle": maker.stream.shuffle,
            "method": maker.section.method,
            **packed,
        }


def _position(state: Mapping[str, Any]) -> Position:
    """The position of a state.

    Raises:
        SetpointError: it is none.
    """
    try:
        block, item = state["block"], state["next"]
        begin = block["from"]
        if begin is not None:
            begin = Spot(begin["file"], {k: v for k, v in begin.items() if k != "file"})
        numbers = (state["epoch"], state["index"], block["number"], item["item"], item["offset"])
        if not all(type(each) is int and each >= 0 for each in numbers):
            raise ValueError(numbers)
        epoch, index, number, at, offset = numbers
        return Position(epoch, index, number, begin, block["digest"], at, offset, item["document"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SetpointError(
            f"data loader state: {type(error).__name__}: {error} is no position in a stream.\n"
            "Valid: a state as written into checkpoints."
        ) from None


def build_streamed(
    stream: Stream, section: Packing, *, length: int, seed: int, marked: bool = False
) -> tuple[StreamedSequences, StreamSampler]:
    """Cut or pack a stream while it is read.

    Arguments:
        marked: see `PackedSequences`.
    """
    packed = section.method != "concatenate"
    sequences = StreamedSequences(
        stream,
        length,
        isolated=bool(section.isolate) and section.method != "none",
        marked=marked and packed,
        multiple=section.pad_to_multiple_of if packed else None,
    )
    return sequences, StreamSampler(sequences, RowMaker(stream, section, length, seed))
