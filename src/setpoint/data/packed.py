"""Packed rows: sequences made of whole documents, and the order of their rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from setpoint.config import SetpointError
from setpoint.data.config import Packing
from setpoint.data.packing import (
    PackedRows,
    Packer,
    Pieces,
    parts_of_rows,
    pieces_of,
    require_pieces,
)
from setpoint.data.sampler import refuse_other_stream
from setpoint.data.sequences import Rows
from setpoint.data.store import Corpus, DataIdentity, slices
from setpoint.shapes.batch import IGNORE_INDEX, Batch, Lengths

DESCRIBED = 4  # documents that a message names


class PackedSequences:
    """Rows of pieces of a corpus, padded: `setpoint.data.sequences.Sequences`.

    Padding is the separator among the inputs, `IGNORE_INDEX` among the targets, and lies at the
    end of a row.

    Arguments:
        sequence_length: tokens that a row holds at most.
        count: rows of an epoch.
        isolated: whether a row tells the model its documents, and positions start anew in each.
        marked: whether positions say where padding is, which experts are to leave out, though
            documents are not isolated.
        multiple: rows of a batch are padded to the longest, rounded up to a multiple of it; None:
            to the sequence length.
        row_tokens: tokens of a row, on average over an epoch.
        note: what became of the documents, in words.
    """

    def __init__(
        self,
        corpus: Corpus,
        sequence_length: int,
        count: int,
        *,
        isolated: bool = True,
        marked: bool = False,
        multiple: int | None = None,
        row_tokens: float,
        note: str = "",
    ) -> None:
        self.corpus = corpus
        self.sequence_length = sequence_length
        self.count = count
        self.isolated = isolated
        self.marked = marked
        self.multiple = multiple
        self.row_tokens = row_tokens
        self.note = note
        self.places = np.arange(sequence_length)

    @property
    def identity(self) -> DataIdentity:
        """What its documents are of."""
        return self.corpus.identity

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources; a row is from the source of its first document."""
        return self.corpus.sources

    def __len__(self) -> int:
        return self.count

    @property
    def epoch_rows(self) -> int:
        """Rows of an epoch."""
        return self.count

    def rows(self, rows: PackedRows) -> Batch:
        """Some of them as a batch."""
        corpus, count = self.corpus, len(rows)
        begins = np.append(0, rows.ends[:-1])
        total = np.append(0, np.cumsum(rows.lengths))
        used = total[rows.ends] - total[begins]
        width = self._width(int(used.max()))
        # Of each piece its row, its number in that, and where it lies among the places of all rows.
        row = np.repeat(np.arange(count), rows.ends - begins)
        numbers = np.arange(len(row)) - begins[row]
        places = total[:-1] - total[begins][row] + row * width
        size, lengths, starts = count * width, rows.lengths, rows.starts
        # Tokens as they are stored, and int64 all at once: faster than piece by piece.
        read, wanted = (np.full(size, corpus.separator, corpus.tokens.dtype) for _ in range(2))
        positions, documents = (np.full(size, -1, np.int64) for _ in range(2))
        found = slices(corpus.tokens, starts, starts + lengths + 1)
        pieces = zip(places.tolist(), lengths.tolist(), numbers.tolist(), found, strict=True)
        for place, length, number, tokens in pieces:
            end = place + length
            read[place:end] = tokens[:-1]
            wanted[place:end] = tokens[1:]
            if self.isolated:
                positions[place:end] = self.places[:length]
                documents[place:end] = number
        inputs, targets = (each.astype(np.int64).reshape(count, width) for each in (read, wanted))
        sizes, target_tokens = corpus.token_bytes.take(targets), int(total[-1])
        for each, end in zip(targets, used.tolist(), strict=True):
            each[end:] = IGNORE_INDEX  # its bytes are those of a separator: none
        if corpus.trained is not None:
            trained = np.zeros(size, np.bool_)
            marks = slices(corpus.trained, starts + 1, starts + lengths + 1)
            for place, mark in zip(places.tolist(), marks, strict=True):
                trained[place : place + len(mark)] = mark
            trained = trained.reshape(count, width)
            target_tokens = int(np.count_nonzero(trained))
            sizes *= trained
            targets[~trained] = IGNORE_INDEX
        if self.marked and not self.isolated:
            for each, end in zip(positions.reshape(count, width), used.tolist(), strict=True):
                each[:end] = self.places[:end]
        placed = torch.from_numpy(positions).view(count, width)
        if not (self.isolated or self.marked):
            placed = None
        isolated = torch.from_numpy(documents).view(count, width) if self.isolated else None
        of_pieces = corpus.sources_at(starts + 1)
        source, sources = of_pieces[begins], None
        if (of_pieces != source[row]).any():
            sources = np.repeat(source, width)
            pieces = zip(places.tolist(), lengths.tolist(), of_pieces.tolist(), strict=True)
            for place, length, number in pieces:
                sources[place : place + length] = number
        return Batch(
            inputs=torch.from_numpy(inputs),
            targets=torch.from_numpy(targets),
            tokens=int(total[-1]),
            target_tokens=target_tokens,
            target_bytes=int(sizes.sum()),
            positions=placed,
            documents=isolated,
            lengths=Lengths.of_places(placed, isolated),
            source=torch.from_numpy(source),
            sources=None if sources is None else torch.from_numpy(sources).view(count, width),
        )

    def _width(self, longest: int) -> int:
        if self.multiple is None:
            return self.sequence_length
        return min(-(-longest // self.multiple) * self.multiple, self.sequence_length)

    def names_in(self, rows: PackedRows) -> list[list[str | None]]:
        """The name of the document of each token; None for padding."""
        found: list[list[str | None]] = []
        for parts in parts_of_rows(self.corpus, rows):
            names: list[str | None] = [part.name for part in parts for _ in range(part.length)]
            missing = self.sequence_length - len(names)
            found.append([*names, *([None] * (missing + 1) if missing else names[-1:])])
        return found

    def describe(self, rows: PackedRows) -> str:
        """Name the first documents of some of them."""
        names = list(
            dict.fromkeys(part.name for row in parts_of_rows(self.corpus, rows) for part in row)
        )
        more = f" and {len(names) - DESCRIBED} more" if len(names) > DESCRIBED else ""
        return ", ".join(names[:DESCRIBED]) + more


class ConcatenatedSequences(PackedSequences):
    """Rows of documents one after the other, cut where rows end, of which some are complete.

    Since a complete document's last token is not read, its rows cannot be windows of the corpus:
    they are numbered ranges of what is read of all documents.

    Arguments:
        order: (documents,) the order in which they follow one another; None: that of the corpus.
        stride: tokens from the start of a row to that of the next; None: the sequence length.
        partial: whether what is left at the end is a row as well, for evaluation.

    Raises:
        SetpointError: there is less than one row.
    """

    def __init__(
        self,
        corpus: Corpus,
        sequence_length: int,
        *,
        isolated: bool,
        marked: bool,
        partial: bool = False,
        order: npt.NDArray[np.int64] | None = None,
        stride: int | None = None,
    ) -> None:
        self.starts, self.lengths = corpus.reads()
        if order is not None:
            self.starts, self.lengths = self.starts[order], self.lengths[order]
        self.ends = np.cumsum(self.lengths)
        self.stride = stride or sequence_length
        more = self.stride - sequence_length + partial * (sequence_length - 1)
        count = (int(self.ends[-1]) + more) // self.stride
        if not count:
            raise SetpointError(
                f"batch.sequence_length: {sequence_length} is more than the {self.ends[-1]} tokens "
                f"that are read of {len(self.ends)} documents.\n"
                f"Valid: up to {self.ends[-1]}, or more data."
            )
        super().__init__(
            corpus,
            sequence_length,
            count,
            isolated=isolated,
            marked=marked,
            row_tokens=sequence_length,
        )

    def rows(self, rows: Rows) -> Batch:
        """Some of them, (B,) numbers, as a batch."""
        return super().rows(self.pieces(rows))

    def names_in(self, rows: Rows) -> list[list[str | None]]:
        """See `PackedSequences.names_in`."""
        return super().names_in(self.pieces(rows))

    def describe(self, rows: Rows) -> str:
        """See `PackedSequences.describe`."""
        return super().describe(self.pieces(rows))

    def pieces(self, rows: npt.NDArray[np.int64]) -> PackedRows:
        """The parts of documents in some of them, (B,) numbers."""
        begins = rows * self.stride
        ends = np.minimum(begins + self.sequence_length, self.ends[-1])
        first = np.searchsorted(self.ends, begins, "right")
        counts = np.searchsorted(self.ends, ends) + 1 - first
        row = np.repeat(np.arange(len(rows)), counts)
        until = np.cumsum(counts)
        documents = np.arange(len(row)) + (first - until + counts)[row]
        before = self.ends[documents] - self.lengths[documents]
        skipped = np.maximum(begins[row] - before, 0)
        lengths = np.minimum(ends[row], self.ends[documents]) - before - skipped
        kept = lengths > 0  # of a document of one token nothing is read
        return PackedRows(
            self.starts[documents][kept] + skipped[kept],
            lengths[kept],
            until - np.append(0, np.cumsum(~kept))[until],
        )


class PackedSampler:
    """Every document once per epoch, in rows that are packed anew each epoch.

    Rows of all epochs form one stream. Its state is which row of which group comes next.
    """

    def __init__(self, sequences: PackedSequences, packer: Packer) -> None:
        self.sequences = sequences
        self.packer = packer
        self._epoch, self._group, self._row = 0, 0, 0

    @property
    def epoch(self) -> float:
        """Passes over the documents that were taken, with the fraction of the current one."""
        packer, taken = self.packer, 0
        if self._row:
            taken = int(packer.group(self._epoch, self._group).ends[self._row - 1])
        return self._epoch + (self._group * packer.group_size + taken) / len(packer)

    def take(self, count: int) -> PackedRows:
        """The next rows, and move past them."""
        parts: list[PackedRows] = []
        while count:
            group = self.packer.group(self._epoch, self._group)
            parts.append(group[self._row : self._row + count])
            count -= len(parts[-1])
            self._row += len(parts[-1])
            if self._row == len(group):
                self._group, self._row = self._group + 1, 0
            if self._group == self.packer.groups:
                self._epoch, self._group = self._epoch + 1, 0
        return PackedRows.joined(parts)

    def forget(self) -> None:
        """Drop the groups that are kept."""
        self.packer.group.cache_clear()

    def state_dict(self) -> dict[str, Any]:
        """Which row of which group of which epoch comes next, and what it is a place in."""
        place = {"epoch": self._epoch, "group": self._group, "row": self._row}
        return {**place, **self._stream()}

    def load_state_dict(self, state: Mapping[str, Any], other_data: bool = False) -> None:
        """Go on where `state` was taken; see `setpoint.data.sampler.Sampler`.

        Other data goes on at the same row of the same group, or with the next group or epoch where
        there are fewer.

        Raises:
            SetpointError: the state is one of other data or of another packing, or of none.
        """
        stream = self._stream()
        if "group" not in state and "index" in state:
            raise SetpointError(
                "data.packing.method: the data position was recorded with concatenate, and now it "
                f"is {self.packer.method}, so it does not point at the same rows.\n"
                "Valid: concatenate, or a new run."
            )
        refuse_other_stream(state, stream, ("epoch", "group", "row"), other_data)
        epoch, group, row = (state[name] for name in ("epoch", "group", "row"))
        place = (epoch, group, row)
        valid = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in place)
        if valid and other_data and group >= self.packer.groups:
            epoch, group, row = epoch + 1, 0, 0
        valid = valid and group < self.packer.groups
        rows = len(self.packer.group(epoch, group)) if valid else 0
        if valid and other_data and row >= rows:
            epoch, group = divmod(epoch * self.packer.groups + group + 1, self.packer.groups)
            row = 0
        elif not valid or row >= rows:
            named = f"epoch {epoch!r}, group {group!r}, row {row!r}"
            raise SetpointError(
                f"data loader state: {named} is not a position.\n"
                f"Valid: epoch 0 or more, group 0 to {self.packer.groups - 1}, and a row of it."
            )
        self._epoch, self._group, self._row = epoch, group, row

    def _stream(self) -> dict[str, Any]:
        identity, packer = self.sequences.identity, self.packer
        return {
            "sequence_length": self.sequences.sequence_length,
            "seed": packer.seed,
            "tokens": identity.tokens,
            "digest": identity.digest,
            "method": packer.method,
            "group_size": packer.group_size,
            "bucket": packer.bucket,
            "too_long": packer.too_long,
            "shuffle": packer.order is None,
        }


def build_packed(
    corpus: Corpus,
    section: Packing,
    *,
    length: int,
    seed: int,
    bucket: int,
    marked: bool = False,
    name: str = "",
    shuffle: bool = True,
) -> tuple[PackedSequences, PackedSampler]:
    """Pack the documents of a corpus.

    Arguments:
        shuffle: whether they are taken in a random order, or in that of the sources.
        length: tokens of a row.
        bucket: rows that stand together with `length_buckets`.
        marked: see `PackedSequences`.
        name: of the source, where there are several streams with one seed.

    Raises:
        SetpointError: a document is too long and that is an error, or none is left.
    """
    pieces = pieces_of(corpus, length, section.too_long)
    require_pieces(pieces, corpus, length)
    order = None if shuffle else _order_of_pieces(corpus, pieces)
    packer = Packer(
        pieces, section, length=length, seed=seed, bucket=bucket, name=name, order=order
    )
    count = packer.rows_of_epoch()
    tokens = int(pieces.lengths.sum())
    notes = [f"{tokens / (count * length):.1%} of the places of {count:,} rows hold tokens"]
    if section.pad_to_multiple_of is not None:
        notes = [f"{count:,} rows of {tokens / count:.0f} tokens on average"]
    notes += pieces.notes
    sequences = PackedSequences(
        corpus,
        length,
        count,
        # A document that has its row for itself is alone there already.
        isolated=bool(section.isolate) and section.method != "none",
        marked=marked,
        multiple=section.pad_to_multiple_of,
        row_tokens=tokens / count,
        note=", ".join(notes),
    )
    return sequences, PackedSampler(sequences, packer)


def _order_of_pieces(corpus: Corpus, pieces: Pieces) -> npt.NDArray[np.int64]:
    """Pieces by the order in which their documents are read."""
    rank = np.argsort(corpus.reading_order())
    documents = np.searchsorted(corpus.starts, pieces.starts + 1, "right") - 1
    return np.argsort(rank[documents], kind="stable")
