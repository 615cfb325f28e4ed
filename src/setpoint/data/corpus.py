"""Corpora: the tokens of many documents as one sequence, in memory or in memory-mapped files.

Corpora in memory are built here; `setpoint.data.token_store` maps those of prepared data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from setpoint.config import SetpointError
from setpoint.data.document import DataIdentity, Document, FileRecord
from setpoint.data.reading import source_of
from setpoint.data.tokenizer import TokenArray, Tokenizer
from setpoint.shapes.protocols import Work, no_work

Ints = npt.NDArray[np.int64]


class TokenRow(Protocol):
    """A sequence of tokens, such as a numpy array."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the items."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, key: slice, /) -> npt.NDArray[Any]: ...


class PieceRow:
    """Pieces of arrays as one sequence, without copies.

    Arguments:
        arrays: arrays of one dtype, such as memory-mapped files.
        starts: (pieces,) offset of each piece in this sequence, ascending.
        numbers, places: (pieces,) array of each piece, and its offset there.
        size: length of this sequence.
        separator: (1,) the item before the first piece and after each; None: pieces are adjacent.
    """

    def __init__(
        self,
        arrays: Sequence[TokenRow],
        starts: Ints,
        numbers: npt.NDArray[np.integer[Any]],
        places: npt.NDArray[np.integer[Any]],
        size: int,
        separator: npt.NDArray[Any] | None = None,
    ) -> None:
        self.arrays, self.starts = tuple(arrays), starts
        self.numbers, self.places, self.size = numbers, places, size
        self.fill = np.empty(1, arrays[0].dtype) if separator is None else separator
        self.gap, self.dtype = int(separator is not None), self.fill.dtype

    @classmethod
    def joined(cls, parts: Sequence[npt.NDArray[Any]]) -> PieceRow:
        """Concatenation of arrays that are not empty."""
        # Plain arrays: slices of mapped ones take five times as long.
        arrays = [np.asarray(part) for part in parts]
        ends = np.cumsum([len(part) for part in arrays], dtype=np.int64)
        starts = np.append(0, ends[:-1])
        return cls(arrays, starts, np.arange(len(arrays)), np.zeros_like(starts), int(ends[-1]))

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: slice, /) -> npt.NDArray[Any]:
        """Items of a range with step 1; a view within one piece, otherwise a copy."""
        start, stop, step = key.indices(self.size)
        assert step == 1
        return next(self.slices(np.array([start]), np.array([max(stop, start)])))

    def slices(self, starts: Ints, stops: Ints) -> Iterator[npt.NDArray[Any]]:
        """Read many ranges; several times faster than reading them one by one."""
        pieces = np.maximum(np.searchsorted(self.starts, starts, "right") - 1, 0)
        begins, ends = self._bounds(pieces)
        places = self.places[pieces] + starts - begins
        inside = (starts >= begins) & (stops <= ends)
        columns = (inside, self.numbers[pieces], places, starts, stops)
        for is_inside, number, place, start, stop in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            if is_inside:
                piece = self.arrays[number][place : place + stop - start]
                yield piece.astype(self.dtype, copy=False)
            else:
                yield self._assembled(start, min(stop, self.size))

    def _bounds(self, pieces: Ints) -> tuple[Ints, Ints]:
        """Start and end of pieces in this sequence."""
        following = np.minimum(pieces + 1, len(self.starts) - 1)
        ends = np.where(pieces < following, self.starts[following], self.size)
        return self.starts[pieces], ends - self.gap

    def _assembled(self, start: int, stop: int) -> npt.NDArray[Any]:
        items = np.repeat(self.fill, max(stop - start, 0))
        first = max(int(np.searchsorted(self.starts, start, "right")) - 1, 0)
        pieces = np.arange(first, np.searchsorted(self.starts, stop))
        begins, ends = (bounds.tolist() for bounds in self._bounds(pieces))
        for piece, begin, end in zip(pieces.tolist(), begins, ends, strict=True):
            low, high = max(begin, start), min(end, stop)
            if low < high:
                place = int(self.places[piece]) + low - begin
                array = self.arrays[self.numbers[piece]]
                items[low - start : high - start] = array[place : place + high - low]
        return items


class CompleteMask:
    """Target mask of complete documents: all tokens except separators."""

    dtype: np.dtype[Any] = np.dtype(np.bool_)

    def __init__(self, starts: Ints, size: int) -> None:
        self.starts, self.size = starts, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: slice, /) -> npt.NDArray[np.bool_]:
        start, stop, _ = key.indices(self.size)
        mask = np.ones(max(stop - start, 0), np.bool_)
        first, last = np.searchsorted(self.starts, [start + 1, stop + 1])
        ends = self.starts[first:last] - 1
        mask[ends[ends > 0] - start] = False
        if stop == self.size and len(mask):
            mask[-1] = False
        return mask


def slices(row: TokenRow, starts: Ints, stops: Ints) -> Iterator[npt.NDArray[Any]]:
    """Slices of a row, given (B,) starts and stops."""
    if isinstance(row, PieceRow):
        return row.slices(starts, stops)
    return (row[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True))


def gather(row: TokenRow, starts: Ints, width: int) -> Ints:
    """Cut windows, (B,) starts -> (B, width); past the end, the last item is repeated."""
    size = len(row)
    if isinstance(row, np.ndarray) and (starts <= size - width).all():
        views = as_strided(row, (size - width + 1, width), row.strides * 2, writeable=False)
        return views[starts].astype(np.int64)
    windows = list(slices(row, starts, starts + width))
    for number in np.flatnonzero(starts > size - width).tolist():
        missing = width - len(windows[number])
        windows[number] = np.append(windows[number], np.repeat(row[size - 1 : size], missing))
    return np.array(windows, np.int64)


COUNTED = 1 << 16
LOOKED_AT = 1 << 24
"""Tokens whose mask is read at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """The documents of one side as one token sequence: separator, document, separator, ...

    The sequence begins and ends with a separator, so predicting every token but the first predicts
    each byte and each document end exactly once. Documents with a target mask are complete by
    themselves: their training rows contain no separators.

    Arguments:
        side: "train", "held_out" or the name of an evaluation text; for messages.
        tokens: (T,) ids, in memory or in mapped files; 2 bytes each while the vocabulary allows.
        token_bytes: (V,) number of bytes of each id; 0 for the separator.
        byte_count: sum of `token_bytes` over `tokens`: bytes of text as the tokenizer sees it.
        files: name, size and SHA-256 of each document, in order.
        digest: SHA-256 over the tokenizer's name and `files`; equal digests mean equal tokens.
        sources: names of the documents' sources.
        starts: (documents,) offset of each document.
        source: (documents,) index of each document's source in `sources`.
        trained: (T,) bool, target mask; None: all tokens.
        notes: messages for the start of a run: documents dropped by filters, cautions.
        prepared: folder of the prepared data from which the corpus is mapped; None: it is in
            memory.
        read_at: (documents,) numbers that ascend in source order; None: documents are in source
            order.
        scores: (documents,) scores for a curriculum; NaN: no score.
    """

    side: str
    tokens: TokenRow
    token_bytes: npt.NDArray[np.int64]
    separator: int
    byte_count: int
    files: Sequence[FileRecord]
    digest: str
    sources: tuple[str, ...]
    starts: npt.NDArray[np.int64]
    source: npt.NDArray[np.integer[Any]]
    trained: TokenRow | None = None
    notes: tuple[str, ...] = ()
    prepared: str | None = None
    read_at: npt.NDArray[np.integer[Any]] | None = None
    scores: npt.NDArray[np.float64] | None = None

    def ordered(self, by: str, descending: bool = False) -> Ints:
        """(documents,) indices of the documents in an order; ties keep the order of the sources.

        Arguments:
            by: `sources` (the order of the sources), `length` or `score`.
        """
        read = np.arange(len(self.starts))
        if self.read_at is not None:
            read = np.argsort(self.read_at, kind="stable")
        if by == "sources":
            return read
        keys = np.diff(self.starts, append=len(self.tokens))
        if by == "score":
            assert self.scores is not None, "the rules of `data` ask for scores"
            keys = self.scores
        keys = keys[read]
        return read[np.argsort(-keys if descending else keys, kind="stable")]

    def reads(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Offset and number of the input tokens of each document; targets are shifted by one.

        Inputs run from the separator before a document to its last token; inputs of a complete
        document run from its first token to the last but one.
        """
        starts = np.asarray(self.starts, np.int64) - 1
        lengths = np.diff(starts, append=len(self.tokens) - 1)
        complete = self.complete(np.arange(len(starts)))
        return starts + complete, lengths - 2 * complete

    def complete(self, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """(documents,) True for complete documents, for which the separator is not a target."""
        mask = np.zeros(len(documents), np.bool_)
        if self.trained is None:
            return mask
        ends = np.append(self.starts[1:], len(self.tokens))[documents] - 1
        first = 0
        while first < len(ends):
            begin = int(ends[first])
            last = max(int(np.searchsorted(ends, begin + LOOKED_AT)), first + 1)
            trained = self.trained[begin : int(ends[last - 1]) + 1]
            mask[first:last] = ~trained[ends[first:last] - begin]
            first = last
        return mask

    def sources_along(self, starts: Ints, lengths: Ints) -> Ints:
        """Source index of each token in ranges, (P,) starts and lengths -> (sum of lengths,).

        A separator belongs to the document before it.
        """
        # A search for each token would take longer than to cut it: one for each range, and the
        # documents between.
        first = np.maximum(np.searchsorted(self.starts, starts, "right") - 1, 0)
        counts = np.searchsorted(self.starts, starts + lengths) - first
        before, places = np.cumsum(counts) - counts, np.cumsum(lengths) - lengths
        documents = np.arange(counts.sum()) + np.repeat(first - before, counts)
        part = np.repeat(np.arange(len(starts)), counts)
        begins = np.maximum(self.starts[documents] - starts[part], 0) + places[part]
        begins[before] = places
        spans = np.diff(begins, append=lengths.sum())
        return np.repeat(self.source[documents].astype(np.int64), spans)

    @property
    def vocab_size(self) -> int:
        """Number of token ids, V."""
        return len(self.token_bytes)

    @property
    def identity(self) -> DataIdentity:
        """Identity of the text."""
        return DataIdentity(
            self.side, self.digest, len(self.tokens), self.byte_count, self.files, self.prepared
        )


def count_bytes(tokens: TokenArray, token_bytes: npt.NDArray[np.int64]) -> int:
    """Count the bytes of tokens, in blocks to bound memory (8 bytes per token).

    If nearly all ids are one byte long, only the exceptions are counted, which is ten times as
    fast.
    """
    longer = [(token, int(token_bytes[token]) - 1) for token in np.flatnonzero(token_bytes != 1)]
    total = 0
    for i in range(0, len(tokens), COUNTED):
        piece = tokens[i : i + COUNTED]
        if len(longer) > 4:
            total += int(token_bytes[piece].sum())
        else:
            extra = (more * int(np.count_nonzero(piece == token)) for token, more in longer)
            total += len(piece) + sum(extra)
    return total


PIECE = 1 << 24
"""Bytes of a document that are tokenized at a time, where the tokenizer allows it."""
LARGE = 1 << 25
"""Bytes of a document above which tokenizing it in one call takes seconds."""


def build_corpus(
    documents: Sequence[Document],
    tokenizer: Tokenizer,
    *,
    side: str,
    where: str = "data.sources",
    sources: Sequence[str] = (),
    notes: Sequence[str] = (),
    show: Work = no_work,
    read: Mapping[str, int] | None = None,
) -> Corpus:
    """Tokenize documents and concatenate them in the given order.

    Arguments:
        read: position of each document in source order, by name; None: the given order.
        sources: names of the sources, prefixes of the documents' names; empty: one source.
        notes: see `Corpus`.

    Raises:
        SetpointError: the tokenizer cannot encode a document, which the message names.
    """
    dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
    separator = np.array([tokenizer.separator], dtype)
    pieces, starts, length = [separator], list[int](), 1
    masks: dict[int, npt.NDArray[np.bool_]] = {}
    done, total = 0, sum(document.size for document in documents)
    label = f"tokenizing {side}, bytes"
    for number, document in enumerate(documents, start=1):
        is_large = document.size >= LARGE and not getattr(tokenizer, "takes_pieces", False)
        if is_large:
            size = f"{document.size / 1e6:,.0f} MB"
            show(f"{label} (document {number} of {len(documents)} has {size})", done, total, True)
        else:
            show(label, done, total)
        starts.append(length)
        for size, piece in encoded(document, tokenizer, where):
            pieces.append(piece.astype(dtype, copy=False))
            length, done = length + len(piece), done + size
            if done < total:
                show(label, done, total)
        if document.trained is not None:
            masks[starts[-1]] = np.append(document.trained, False)
        pieces.append(separator)
        length += 1
    show(label, total, total)
    trained = np.ones(length, np.bool_) if masks else None
    for start, mask in masks.items():
        assert trained is not None
        trained[start : start + len(mask)] = mask
    files = tuple(document.record() for document in documents)
    scores = np.array([document.score for document in documents], np.float64)  # None: NaN
    read_at = None
    if read is not None:  # of a divided document, whose range follows its name, that of all of it
        names = (f.name if f.name in read else f.name.rpartition("[")[0] for f in files)
        read_at = np.array([read[name] for name in names], np.int64)
    tokens = np.concatenate(pieces)
    return Corpus(
        side=side,
        tokens=tokens,
        token_bytes=tokenizer.token_bytes,
        separator=tokenizer.separator,
        byte_count=count_bytes(tokens, tokenizer.token_bytes),
        files=files,
        digest=files_digest(tokenizer.name, files),
        sources=tuple(sources) or (side,),
        starts=np.array(starts, np.int64),
        source=np.array([source_of(file.name, sources) for file in files], np.int64),
        trained=trained,
        notes=tuple(notes),
        read_at=read_at,
        scores=scores,
    )


def encoded(
    document: Document, tokenizer: Tokenizer, where: str
) -> Iterator[tuple[int, npt.NDArray[np.integer[Any]]]]:
    """Tokenize a document, in pieces with the size of each if the tokenizer supports it.

    Raises:
        SetpointError: the tokenizer cannot encode the document.
    """
    if document.tokens is not None:
        yield document.size, document.tokens
        return
    step = PIECE if getattr(tokenizer, "takes_pieces", False) else max(len(document.data), 1)
    try:
        for start in range(0, max(len(document.data), 1), step):
            piece = document.data[start : start + step]
            yield len(piece), tokenizer.encode(piece)
    except SetpointError as error:
        raise SetpointError(f"{where}: the document '{document.name}': {error}") from error


def files_digest(tokenizer_name: str, files: Sequence[FileRecord]) -> str:
    """Digest of a sequence of documents for a tokenizer.

    Returns:
        hexadecimal SHA-256. Names are length-prefixed, so that records cannot run together.
    """
    digest = hashlib.sha256(f"{tokenizer_name}\n".encode())
    for file in files:
        name = file.name.encode("utf-8", "surrogateescape")
        digest.update(f"{len(name)} {file.size} {file.sha256} ".encode() + name + b"\n")
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Rows as concatenations of parts of documents.

    Arguments:
        starts: (P,) offset of the first input token of each part; targets are shifted by one.
        lengths: (P,) number of input tokens.
        ends: (B,) index after the last part of each row.
        tokens: for streamed rows, the array to which `starts` refer; None: the array of the corpus.
        names: (P,) document names, for streamed rows.
    """

    starts: Ints
    lengths: Ints
    ends: Ints
    tokens: TokenArray | None = None
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, key: slice) -> Parts:
        start, stop, _ = key.indices(len(self))
        first = int(self.ends[start - 1]) if start else 0
        last = int(self.ends[stop - 1]) if stop > start else first
        ends = self.ends[start : max(stop, start)] - first
        starts, lengths = self.starts[first:last], self.lengths[first:last]
        if self.tokens is None:
            return Parts(starts, lengths, ends)
        low, high = (int(starts[0]), int(starts[-1] + lengths[-1]) + 1) if len(starts) else (0, 0)
        return Parts(starts - low, lengths, ends, self.tokens[low:high], self.names[first:last])

    @property
    def token_count(self) -> int:
        """Number of input tokens."""
        return int(self.lengths.sum())

    def pick(self, rows: Ints) -> Parts:
        """Select rows by number."""
        return Parts.joined([self[row : row + 1] for row in rows.tolist()])

    @classmethod
    def joined(cls, parts: Sequence[Parts]) -> Parts:
        """Concatenate rows."""
        if len(parts) == 1:
            return parts[0]
        none = np.empty(0, np.int64)
        before = np.cumsum([0, *(len(part.starts) for part in parts)]).tolist()
        starts = [part.starts for part in parts]
        tokens = None
        if parts and parts[0].tokens is not None:
            arrays = [part.tokens for part in parts if part.tokens is not None]
            token_offsets = np.cumsum([0, *map(len, arrays)]).tolist()
            starts = [offsets + more for offsets, more in zip(starts, token_offsets, strict=False)]
            tokens = np.concatenate(arrays)
        return cls(
            np.concatenate([none, *starts]),
            np.concatenate([none, *(part.lengths for part in parts)]),
            np.concatenate([none, *(p.ends + n for p, n in zip(parts, before, strict=False))]),
            tokens,
            tuple(name for part in parts for name in part.names),
        )
