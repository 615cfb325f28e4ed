"""Rows of one length, made of parts of documents, and batches of rows.

A row is a list of parts: offset in the corpus and length. Rows of concatenated text come from
`Cut`, packed rows from a `Packer`, and rows of a stream carry their own tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from setpoint.config import SetpointError, plural
from setpoint.data.corpus import Corpus, Ints, Parts, TokenRow, gather, slices
from setpoint.data.document import DataIdentity
from setpoint.data.order import EpochCursor, MixedRows, shuffled
from setpoint.shapes.batch import IGNORE_INDEX, PADDING, TENSORS, Batch, Lengths

NAMED = 4
"""Documents that a message lists."""


class Cut:
    """Rows of concatenated documents.

    Plain text in the order of the corpus is cut in place. Otherwise rows are ranges of the
    concatenated inputs of all documents, since the last token of a complete document is only a
    target.

    Arguments:
        stride: tokens between the starts of two rows.
        partial: whether the remainder at the end counts as a row.
        divided: whether each document begins a new part.
        order: (documents,) order of the documents; None: corpus order.

    Raises:
        SetpointError: the text is shorter than one row.
    """

    def __init__(
        self,
        corpus: Corpus,
        length: int,
        *,
        stride: int,
        partial: bool = False,
        divided: bool = False,
        order: Ints | None = None,
    ) -> None:
        self.corpus, self.length, self.stride = corpus, length, stride
        self.is_plain = order is None and corpus.trained is None and not divided
        self.total = len(corpus.tokens) - 1
        if not self.is_plain:
            self.starts, self.lengths = corpus.reads()
            if order is not None:
                self.starts, self.lengths = self.starts[order], self.lengths[order]
            self.ends = np.cumsum(self.lengths)
            self.total = int(self.ends[-1])
        more = stride - length + partial * (length - 1)
        self.count = (self.total + more) // stride
        if not self.count:
            raise SetpointError(self._too_short())

    def pick(self, rows: Ints) -> Parts:
        """Parts of the rows with these (B,) numbers."""
        begins = rows * self.stride
        ends = np.minimum(begins + self.length, self.total)
        if self.is_plain:
            return Parts(begins, ends - begins, np.arange(1, len(rows) + 1))
        first = np.searchsorted(self.ends, begins, "right")
        counts = np.searchsorted(self.ends, ends) + 1 - first
        row = np.repeat(np.arange(len(rows)), counts)
        until = np.cumsum(counts)
        documents = np.arange(len(row)) + (first - until + counts)[row]
        before = self.ends[documents] - self.lengths[documents]
        skipped = np.maximum(begins[row] - before, 0)
        lengths = np.minimum(ends[row], self.ends[documents]) - before - skipped
        kept = lengths > 0  # of a document of one token nothing is read
        return Parts(
            self.starts[documents][kept] + skipped[kept],
            lengths[kept],
            until - np.append(0, np.cumsum(~kept))[until],
        )

    def _too_short(self) -> str:
        corpus, length, documents = self.corpus, self.length, len(self.corpus.files)
        size, need = self.total + 1, length + 1
        # That of one source of a mixture may be short where the others are not.
        named = len(corpus.sources) == 1 and corpus.sources != (corpus.side,)
        source = f" of '{corpus.sources[0]}'" if named else ""
        return (
            f"batch.sequence_length: {length} needs {need} tokens for one row, and the training "
            f"side{source} has {size} ({plural(documents, 'document')}, "
            f"{corpus.byte_count} bytes).\n"
            f"Valid: batch.sequence_length up to {size - 1}, or more text in data.sources."
        )


class DocumentRows:
    """Maker of batches from parts of documents.

    Padding is at the end of a row, with separators as inputs and `IGNORE_INDEX` as targets. Causal
    attention hides it from all other positions.

    Arguments:
        corpus: the documents; without tokens for a stream.
        sequence_length: maximum input tokens per row.
        numbered: parts of rows by number; None: rows are given as `Parts`.
        count: rows per epoch; None: unknown.
        isolated: whether batches have document ids, and position ids restart in each document.
        marked: whether position ids mark padding even without isolation, so that experts skip it.
        multiple: pad to the longest row of the batch, rounded up to a multiple of this; None: to
            the sequence length.
        row_tokens: mean tokens per row; None: all rows are full.
        layout: description of the rows; metrics with equal layouts are comparable.
        note: message about divided or dropped documents; empty: none.
        identity: identity of the text; None: identity of the corpus.

    Attributes:
        epoch_rows: rows per epoch; None for a stream.
        sources: names of the sources; `Batch.source` contains indices into them.
    """

    def __init__(
        self,
        corpus: Corpus,
        sequence_length: int,
        *,
        numbered: Cut | Parts | None = None,
        count: int | None,
        isolated: bool = False,
        marked: bool = False,
        multiple: int | None = None,
        row_tokens: float | None = None,
        layout: str = "",
        note: str = "",
        identity: DataIdentity | None = None,
    ) -> None:
        self.corpus, self.sequence_length = corpus, sequence_length
        self.numbered, self.epoch_rows = numbered, count
        self.isolated, self.marked, self.multiple = isolated, marked, multiple
        self.row_tokens = row_tokens or sequence_length
        self.layout, self.note = layout, note
        self.identity = identity or corpus.identity
        self.sources = corpus.sources

    def __len__(self) -> int:
        assert self.epoch_rows is not None
        return self.epoch_rows

    def parts(self, rows: Ints | Parts) -> Parts:
        """Parts of rows."""
        if isinstance(rows, Parts):
            return rows
        assert self.numbered is not None
        return self.numbered.pick(rows)

    def batch_of(self, rows: Ints | Parts) -> Batch:
        """Make rows into a batch."""
        corpus, parts = self.corpus, self.parts(rows)
        tokens = corpus.tokens if parts.tokens is None else parts.tokens
        count, (starts, lengths) = len(parts), (parts.starts, parts.lengths)
        begins, total = np.append(0, parts.ends[:-1]), np.append(0, np.cumsum(lengths))
        used = total[parts.ends] - total[begins]
        width = self.sequence_length
        if self.multiple is not None:
            width = min(-(-int(used.max()) // self.multiple) * self.multiple, width)
        valid = None if (used == width).all() else np.arange(width) < used[:, None]
        # Of each part its row, and where it begins among the places of all rows.
        row = np.repeat(np.arange(count), parts.ends - begins)
        places = total[:-1] - total[begins][row] + row * width
        inputs, targets = self._tokens(tokens, parts, row, places, (count, width), valid is None)
        sizes = corpus.token_bytes.take(targets)
        target_tokens = int(total[-1])
        if valid is not None:
            targets[~valid] = IGNORE_INDEX  # its bytes are those of a separator: none
        if corpus.trained is not None:
            trained = np.zeros(targets.size, np.bool_)
            marks = slices(corpus.trained, starts + 1, starts + lengths + 1)
            for place, mark in zip(places.tolist(), marks, strict=True):
                trained[place : place + len(mark)] = mark
            trained = trained.reshape(targets.shape)
            target_tokens = int(np.count_nonzero(trained))
            sizes *= trained
            targets[~trained] = IGNORE_INDEX
        positions = documents = None
        if self.isolated:
            new = np.zeros((count, width), np.bool_)
            new.flat[places] = True
            positions, documents = isolate(new, used)
        elif self.marked:
            columns = np.broadcast_to(np.arange(width), (count, width))
            positions = columns.copy() if valid is None else np.where(valid, columns, -1)
        source, sources = self._sources(parts, begins, (count, width), valid)
        placed, isolated = (
            None if array is None else torch.from_numpy(array) for array in (positions, documents)
        )
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
            sources=None if sources is None else torch.from_numpy(sources),
        )

    def _tokens(
        self,
        tokens: TokenRow,
        parts: Parts,
        row: Ints,
        places: Ints,
        shape: tuple[int, int],
        is_full: bool,
    ) -> tuple[Ints, Ints]:
        """Inputs and targets, (B, S) each."""
        starts, lengths = parts.starts, parts.lengths
        follows = (starts[1:] == starts[:-1] + lengths[:-1]) | (row[1:] != row[:-1])
        if is_full and follows.all():  # whole rows, as they lie in the corpus
            first = starts[np.append(0, parts.ends[:-1])]
            windows = gather(tokens, first, shape[1] + 1)
            return windows[:, :-1].copy(), windows[:, 1:].copy()
        # Tokens as they are stored, and int64 all at once: faster than part by part.
        size = shape[0] * shape[1]
        read, targets = (np.full(size, self.corpus.separator, tokens.dtype) for _ in range(2))
        spans = slices(tokens, starts, starts + lengths + 1)
        for place, part in zip(places.tolist(), spans, strict=True):
            end = place + len(part) - 1
            read[place:end] = part[:-1]
            targets[place:end] = part[1:]
        return read.astype(np.int64).reshape(shape), targets.astype(np.int64).reshape(shape)

    def _sources(
        self,
        parts: Parts,
        begins: Ints,
        shape: tuple[int, int],
        valid: npt.NDArray[np.bool_] | None,
    ) -> tuple[Ints, Ints | None]:
        """(B,) source of each row's first target, and (B, S) sources of all if they differ."""
        if len(self.sources) == 1:
            return np.zeros(shape[0], np.int64), None
        by_token = self.corpus.sources_along(parts.starts + 1, parts.lengths)
        places = np.append(0, np.cumsum(parts.lengths))[begins]
        source = by_token[places]
        sources = np.repeat(source, shape[1]).reshape(shape)
        if valid is None:
            valid = np.ones(shape, np.bool_)
        if (sources[valid] == by_token).all():
            return source, None
        sources[valid] = by_token
        return source, sources

    def _names(self, parts: Parts) -> Iterator[list[tuple[str, int]]]:
        """Documents of each row, with their numbers of tokens."""
        files, begin = self.corpus.files, 0
        documents = self.corpus.starts
        for end in parts.ends.tolist():
            row: list[tuple[str, int]] = []
            for number in range(begin, end):
                start, length = int(parts.starts[number]), int(parts.lengths[number])
                if parts.tokens is not None:
                    row.append((parts.names[number], length))
                    continue
                # Targets of a part may be of several documents, where rows are not divided.
                stop = start + length + 1
                first = max(int(np.searchsorted(documents, start + 1, "right")) - 1, 0)
                last = max(int(np.searchsorted(documents, stop - 1, "right")), first + 1)
                bounds = [start + 1, *documents[first + 1 : last].tolist(), stop]
                for document in range(first, last):
                    k = document - first
                    row.append((files[document].name, bounds[k + 1] - bounds[k]))
            yield row
            begin = end

    def names_in(self, rows: Ints | Parts) -> list[list[str | None]]:
        """Document name of each of the S + 1 tokens of each row; None for padding.

        A separator belongs to the document that follows it.
        """
        row_names: list[list[str | None]] = []
        for row in self._names(self.parts(rows)):
            names: list[str | None] = [name for name, length in row for _ in range(length)]
            missing = self.sequence_length - len(names)
            row_names.append([*names, *([None] * (missing + 1) if missing else names[-1:])])
        return row_names

    def describe(self, rows: Ints | Parts) -> str:
        """Names of the documents in these rows, for messages."""
        names = list(
            dict.fromkeys(name for row in self._names(self.parts(rows)) for name, _ in row)
        )
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"rows of {self.corpus.side} from {', '.join(names[:NAMED])}{more}"


def isolate(begins: npt.NDArray[np.bool_], used: Ints) -> tuple[Ints, Ints]:
    """Make position ids that restart in each document, and document numbers from 0 in each row.

    Arguments:
        begins: (B, S) bool, first tokens of documents.
        used: (B,) tokens of each row; the rest is padding, -1 in both results.
    """
    places = np.arange(begins.shape[1])
    positions = places - np.maximum.accumulate(np.where(begins, places, 0), axis=1)
    documents = np.cumsum(begins, axis=1) - 1
    padding = places >= used[:, None]
    positions[padding] = documents[padding] = -1
    return positions, documents


def cut_rows(
    corpus: Corpus, length: int, *, isolated: bool = False, marked: bool = False
) -> DocumentRows:
    """Cut a corpus into rows that predict each token but the first once; pad the last row.

    Adjacent rows share one token: the last target of a row is the first input of the next.
    """
    cut = Cut(corpus, length, stride=length, partial=True, divided=isolated)
    is_text = corpus.trained is None
    layout = "isolated windows" if isolated else "windows"
    if not is_text:
        layout = f"{'isolated ' * isolated}documents, concatenated"
    return DocumentRows(
        corpus, length, numbered=cut, count=cut.count, isolated=isolated,
        marked=marked and not is_text, layout=layout,
    )  # fmt: skip


def training_rows(
    corpus: Corpus,
    length: int,
    *,
    isolated: bool = False,
    order: Ints | None = None,
) -> DocumentRows:
    """Concatenate documents and cut them into rows; the remainder at the end is dropped.

    Arguments:
        order: see `Cut`.

    Raises:
        SetpointError: the corpus is shorter than one row.
    """
    # Where documents are plain text the last target of a row is not an input of the next.
    stride = length + (corpus.trained is None)
    cut = Cut(corpus, length, stride=stride, divided=isolated, order=order)
    return DocumentRows(corpus, length, numbered=cut, count=cut.count, isolated=isolated)


PART = 4096
"""Rows whose order is computed at once, whatever the size of the epoch."""


class RowOrder(EpochCursor):
    """The rows of concatenated text, in a new random order each epoch or in ascending order.

    Arguments:
        rows: rows by number.
        name: name of the source in a mixture.
        kind: `shuffled`, or the name of the fixed order of the documents.
    """

    def __init__(
        self, rows: DocumentRows, seed: int, name: str = "", kind: str = "shuffled"
    ) -> None:
        super().__init__(
            rows.corpus,
            rows.sequence_length,
            size=len(rows),
            group_size=PART,
            key=f"windows/{seed}/{name}/" if name else f"windows/{seed}/",
            facts={"seed": seed, "order": kind, "method": "concatenate"},
        )
        self.rows, self.is_shuffled = rows, kind == "shuffled"

    def _rows(self, epoch: int, group: int) -> Parts:
        places = self.places(group)
        if self.is_shuffled:
            places = shuffled(f"{self.key}{epoch}", self.size, places)
        return self.rows.parts(places)

    def passed(self, epoch: int, group: int, row: int) -> int:
        """See `EpochCursor.passed`."""
        return group * PART + row


class MixedSequences:
    """Maker of batches from the rows of several sources."""

    def __init__(self, names: Sequence[str], members: Sequence[DocumentRows]) -> None:
        self.sources = tuple(names)
        self.members = tuple(members)

    @property
    def sequence_length(self) -> int:
        """Input tokens per row, S."""
        return self.members[0].sequence_length

    @property
    def identity(self) -> DataIdentity:
        """Combined identity of the sources."""
        return DataIdentity.joined([member.identity for member in self.members])

    @property
    def epoch_rows(self) -> int | None:
        """Rows per epoch over all sources; None with a stream."""
        counts = [member.epoch_rows for member in self.members]
        return None if None in counts else sum(count or 0 for count in counts)

    def batch_of(self, rows: MixedRows) -> Batch:
        """Make rows into a batch, in the order of the sampler."""
        numbered = [
            (number, member.batch_of(part))
            for number, (member, part) in enumerate(zip(self.members, rows.parts, strict=True))
            if len(part)
        ]
        # Where each row of the batch lies when those of one source stand together.
        places = torch.from_numpy(np.argsort(np.argsort(rows.source, kind="stable")))
        batches = [batch for _, batch in numbered]
        tensors: dict[str, Any] = {name: _joined(batches, name, places) for name in TENSORS}
        return Batch(
            **tensors,
            lengths=Lengths.of_places(tensors["positions"], tensors["documents"]),
            tokens=sum(batch.tokens for batch in batches),
            target_tokens=sum(batch.target_tokens for batch in batches),
            target_bytes=sum(batch.target_bytes for batch in batches),
            source=torch.from_numpy(rows.source),
        )

    def describe(self, rows: MixedRows) -> str:
        """Names of the documents in these rows, by source."""
        pairs = zip(self.members, rows.parts, strict=True)
        return "; ".join(member.describe(part) for member, part in pairs if len(part))

    def names_in(self, rows: MixedRows) -> list[list[str | None]]:
        """See `DocumentRows.names_in`."""
        pairs = zip(self.members, rows.parts, strict=True)
        names = [iter(member.names_in(part) if len(part) else []) for member, part in pairs]
        return [next(names[source]) for source in rows.source.tolist()]


Sequences = DocumentRows | MixedSequences


def _joined(batches: Sequence[Batch], name: str, places: torch.Tensor) -> torch.Tensor | None:
    tensors = [getattr(batch, name) for batch in batches]
    if all(tensor is None for tensor in tensors):
        return None
    width = max(tensor.shape[1] for tensor in tensors)
    pad = torch.nn.functional.pad
    wide = [pad(rows, (0, width - rows.shape[1]), value=PADDING[name]) for rows in tensors]
    return torch.cat(wide)[places]
