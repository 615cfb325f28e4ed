"""Documents of one side as one row of tokens, in memory or in files that are mapped.

A folder of prepared data holds shards, ranges of the split's hash of document names, which follow
one another as documents do in memory. A shard is `SIDE-NUMBER.tokens.npy` (documents with
a separator after each), `.index.npy` (a row per document: `INDEX`), `.names`, and `.mask.npy` where
documents say which tokens are targets. `SIDE.starts.npy` and `SIDE.sources.npy` are of all shards
of a side. `manifest.json` is written last.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol, overload

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from setpoint.config import SetpointError
from setpoint.data.document import DataIdentity, Document, FileRecord
from setpoint.data.prepared import FORMAT, KIND, MANIFEST
from setpoint.files.atomic import Written, digest_file, replacing, write_file

if TYPE_CHECKING:
    from setpoint.data.tokenizers.tokenizer import TokenArray, Tokenizer


Ints = npt.NDArray[np.int64]


class TokenRow(Protocol):
    """What sequences are cut from; an array is one."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its items."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, key: slice, /) -> npt.NDArray[Any]: ...


class JoinedRow:
    """Arrays of one type as one row, none of which is copied.

    Arguments:
        parts: such as the files of prepared data, mapped into memory; at least one.
    """

    def __init__(self, parts: Sequence[npt.NDArray[Any]]) -> None:
        # Plain arrays: slices of mapped ones take five times as long.
        self.parts = tuple(np.asarray(part) for part in parts)
        sizes = np.array([len(part) for part in self.parts], np.int64)
        self.ends = np.cumsum(sizes)
        self.firsts = self.ends - sizes
        self.dtype: np.dtype[Any] = np.result_type(*self.parts)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, key: slice, /) -> npt.NDArray[Any]:
        """Items of a range, without a step: of one part as they lie there, else a copy."""
        start, stop, step = key.indices(len(self))
        assert step == 1
        number = int(np.searchsorted(self.ends, start, "right"))
        pieces: list[npt.NDArray[Any]] = []
        while start < stop:
            first = int(self.firsts[number])
            pieces.append(self.parts[number][start - first : stop - first])
            start, number = int(self.ends[number]), number + 1
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty(0, self.dtype)

    def slices(self, starts: Ints, stops: Ints) -> Iterator[npt.NDArray[Any]]:
        """Many ranges; several times faster than one after the other."""
        numbers = np.searchsorted(self.ends, starts, "right").clip(max=len(self.parts) - 1)
        before = self.firsts[numbers]
        found = (numbers.tolist(), (starts - before).tolist(), (stops - before).tolist())
        for number, first, last in zip(*found, strict=True):
            part = self.parts[number]
            if last <= len(part):
                yield part[first:last]
            else:
                begin = int(self.firsts[number])
                yield self[begin + first : begin + last]


class PlacedRow:
    """Documents with a separator after each as one row, which lie in any order in several arrays.

    Arguments:
        arrays: such as token files, mapped into memory.
        starts: (documents,) the first token of each in the row, which rise.
        places: (documents,) `PLACE`, which array each lies in, and where.
        size: of the row, which begins and ends with a separator.
    """

    def __init__(
        self,
        arrays: Sequence[TokenRow],
        starts: Ints,
        places: npt.NDArray[Any],
        size: int,
        separator: npt.NDArray[Any],
    ) -> None:
        self.arrays, self.starts, self.places, self.size = tuple(arrays), starts, places, size
        self.separator, self.dtype = separator, separator.dtype

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: slice, /) -> npt.NDArray[Any]:
        """Items of a range, without a step: of one document as they lie there, else a copy."""
        start, stop, step = key.indices(self.size)
        assert step == 1
        return next(self.slices(np.array([start]), np.array([max(stop, start)])))

    def slices(self, starts: Ints, stops: Ints) -> Iterator[npt.NDArray[Any]]:
        """Many ranges; several times faster than one after the other."""
        # The documents that each range is of; -1: it begins before the first one.
        firsts = np.searchsorted(self.starts, starts, "right") - 1
        lasts = np.searchsorted(self.starts, stops)
        columns = (each.tolist() for each in (starts, stops, firsts, lasts))
        for start, stop, first, last in zip(*columns, strict=True):
            begins = self.starts[max(first, 0) : last + 1].tolist()
            if last == len(self.starts):
                begins.append(self.size)
            if first >= 0 and last - first == 1 and stop < begins[1]:
                yield self._piece(first, start - begins[0], stop - begins[0])
                continue
            found = np.full(stop - start, self.separator[0], self.dtype)
            for number, (begin, end) in enumerate(pairwise(begins), max(first, 0)):
                low, high = max(begin, start), min(end - 1, stop)
                if low < high:
                    piece = self._piece(number, low - begin, high - begin)
                    found[low - start : high - start] = piece
            yield found

    def _piece(self, document: int, start: int, stop: int) -> npt.NDArray[Any]:
        file, first = self.places[document].item()
        piece = self.arrays[file][first + start : first + stop]
        return piece.astype(self.dtype, copy=False)


class CompleteMask:
    """Targets of documents that are complete, as a row: all tokens but the separators."""

    dtype: np.dtype[Any] = np.dtype(np.bool_)

    def __init__(self, starts: Ints, size: int) -> None:
        self.starts, self.size = starts, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: slice, /) -> npt.NDArray[np.bool_]:
        start, stop, _ = key.indices(self.size)
        found = np.ones(max(stop - start, 0), np.bool_)
        first, last = np.searchsorted(self.starts, [start + 1, stop + 1])
        ends = self.starts[first:last] - 1
        found[ends[ends > 0] - start] = False
        if stop == self.size and len(found):
            found[-1] = False
        return found


def slices(row: TokenRow, starts: Ints, stops: Ints) -> Iterator[npt.NDArray[Any]]:
    """Ranges of a row, (B,) starts and stops."""
    if isinstance(row, JoinedRow | PlacedRow):
        return row.slices(starts, stops)
    return (row[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True))


def gather(row: TokenRow, starts: Ints, width: int) -> Ints:
    """Cut windows, (B,) starts -> (B, width); past the end the last item is repeated."""
    size = len(row)
    if isinstance(row, np.ndarray) and (starts <= size - width).all():
        views = as_strided(row, (size - width + 1, width), row.strides * 2, writeable=False)
        return views[starts].astype(np.int64)
    found = np.empty((len(starts), width), row.dtype)
    for window, items in zip(found, slices(row, starts, starts + width), strict=True):
        window[: len(items)] = items
        if len(items) < width:
            window[len(items) :] = row[size - 1 : size]
    return found.astype(np.int64)


COUNTED = 1 << 16
LOOKED_AT = 1 << 24
"""Tokens of which it is looked at once whether they are targets."""


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """The documents of one side in a row: separator, document, separator, ..., separator.

    Because a separator stands before the first document and after the last, predicting every
    token but the first predicts each byte and each document's end exactly once. Documents that say
    which of their tokens are targets are complete without the separators, which are no part of
    their training rows.

    Arguments:
        side: "train", "held_out" or the name of a text that is only evaluated on, for messages.
        tokens: (T,) ids, in memory or in mapped files; 2 bytes each while the vocabulary allows.
        token_bytes: (V,) bytes each id stands for; 0 for the separator.
        byte_count: bytes of text as the tokenizer sees it, the sum of `token_bytes` over `tokens`.
        files: name, size and SHA-256 of each document, in order.
        digest: SHA-256 over the tokenizer's name and `files`; equal digests mean equal tokens.
        sources: names of the sources that the documents are from.
        starts: (documents,) the first token of each.
        source: (documents,) which of `sources` each is from.
        trained: (T,) bool, which tokens are targets; None: all.
        notes: lines for the start of a run: what filters left out, and cautions about texts.
        prepared: the folder of prepared data that it is mapped from; None: it is in memory.
        read_at: gives (documents,) numbers that rise in the order in which the sources gave them;
            None: they lie in that order.
        scores: gives (documents,) their scores; None where a source has none.
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
    read_at: Callable[[], npt.NDArray[np.integer[Any]]] | None = None
    scores: Callable[[], npt.NDArray[np.float64]] | None = None

    def ordered(self, by: str, descending: bool = False) -> Ints:
        """The documents, (documents,), in an order; those that are alike as they were read.

        Arguments:
            by: `sources`, as the sources gave them, `length` or `score`.
        """
        read = np.arange(len(self.starts))
        if self.read_at is not None:
            read = np.argsort(self.read_at(), kind="stable")
        if by == "sources":
            return read
        keys = np.diff(self.starts, append=len(self.tokens))
        if by == "score":
            assert self.scores is not None, "the rules of `data` ask for scores"
            keys = self.scores()
        keys = keys[read]
        return read[np.argsort(-keys if descending else keys, kind="stable")]

    def reads(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The first token that is read of each document, and how many are; the targets are one on.

        A document is read from the separator before it to its last token, a complete one from its
        first token to the last but one.
        """
        starts = np.asarray(self.starts, np.int64) - 1
        lengths = np.diff(starts, append=len(self.tokens) - 1)
        complete = self.complete(np.arange(len(starts)))
        return starts + complete, lengths - 2 * complete

    def complete(self, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether documents, in order, are complete: the separator behind one is no target."""
        found = np.zeros(len(documents), np.bool_)
        if self.trained is None:
            return found
        ends = np.append(self.starts[1:], len(self.tokens))[documents] - 1
        first = 0
        while first < len(ends):
            begin = int(ends[first])
            last = max(int(np.searchsorted(ends, begin + LOOKED_AT)), first + 1)
            trained = self.trained[begin : int(ends[last - 1]) + 1]
            found[first:last] = ~trained[ends[first:last] - begin]
            first = last
        return found

    def sources_along(self, starts: Ints, lengths: Ints) -> Ints:
        """Which of `sources` the tokens of ranges are from, (P,) each -> (sum of lengths,).

        A separator ends its document.
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

    def part(self, tokens: TokenArray, predicted: npt.NDArray[np.bool_]) -> Corpus:
        """A corpus of some of the tokens, with the bytes of those that are predicted."""
        size = count_bytes(tokens[predicted], self.token_bytes)
        return replace(self, tokens=tokens, trained=predicted, byte_count=size)

    @property
    def vocab_size(self) -> int:
        """Number of token ids, V."""
        return len(self.token_bytes)

    @property
    def identity(self) -> DataIdentity:
        """What it is recognised by."""
        return DataIdentity(
            self.side, self.digest, len(self.tokens), self.byte_count, self.files, self.prepared
        )


def count_bytes(tokens: TokenArray, token_bytes: npt.NDArray[np.int64]) -> int:
    """How many bytes tokens stand for; in pieces, since all at once takes 8 bytes a token.

    Where nearly all tokens are one byte, the others are counted, which takes a tenth of the time.
    """
    others = [(token, int(token_bytes[token]) - 1) for token in np.flatnonzero(token_bytes != 1)]

    def count(piece: TokenArray) -> int:
        if len(others) > 4:
            return int(token_bytes[piece].sum())
        found = (more * int(np.count_nonzero(piece == token)) for token, more in others)
        return len(piece) + sum(found)

    return sum(count(tokens[at : at + COUNTED]) for at in range(0, len(tokens), COUNTED))


INDEX = np.dtype(
    [
        ("read", "<i8"),
        ("score", "<f8"),  # NaN: none
        ("start", "<i8"),  # place of the first token in its shard
        ("tokens", "<i8"),
        ("size", "<i8"),  # of the document, in bytes
        ("name_at", "<i8"),
        ("name_length", "<i4"),
        ("source", "<i4"),
        ("file", "<i4"),  # number of the token file that it stays in, from 1; 0: the shard
        ("at", "<i8"),  # place of the first token there
        ("sha256", "u1", (32,)),
    ]
)
"""A document of a shard."""
PLACE = np.dtype([("file", "<i4"), ("at", "<i8")])
"""Where the tokens of a document lie."""


def raw(array: npt.NDArray[Any]) -> memoryview:
    """The content of an array that `write_file` takes; an empty one has no format `B`."""
    return memoryview(np.ascontiguousarray(array).view(np.uint8).data)


def replace_file(path: Path, chunks: Iterable[bytes | memoryview]) -> Written:
    """Write a file anew, on the disk when the call returns."""
    path.unlink(missing_ok=True)  # half of one, from a process that was killed
    return write_file(path, chunks)


def write_array(path: Path, array: npt.NDArray[Any]) -> Written:
    """Write a `.npy` file; see `replace_file`."""
    return write_parts(path, array.dtype, len(array), [array])


def write_parts(
    path: Path, dtype: np.dtype[Any], length: int, parts: Iterable[npt.NDArray[Any]]
) -> Written:
    """Write arrays as one `.npy` file; see `replace_file`."""
    head = io.BytesIO()
    described = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": (length,),
    }
    np.lib.format.write_array_header_1_0(head, described)
    return replace_file(path, chain([head.getvalue()], map(raw, parts)))


SEEN = "verified.json"
"""What a machine has verified: modification time of each file then."""
INPUTS = "inputs.txt"


@dataclass(frozen=True, slots=True)
class Side:
    """A corpus in a store.

    Arguments:
        name: of its files.
        side: as `Corpus.side`.
        sources: as `Corpus.sources`.
        masked: whether there are files that say which tokens are targets.
    """

    name: str
    side: str
    sources: tuple[str, ...]
    documents: int
    tokens: int
    bytes: int
    digest: str
    shards: int
    masked: bool


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a store holds.

    Arguments:
        key: fingerprint of what determines the content.
        described: the same for people, such as the sources.
        tokenizer: `Tokenizer.name`.
        files: by name, size and BLAKE3.
        notes: as `Corpus.notes`.
        token_files: path, dtype, offset and tokens of files in which documents stay.
    """

    key: str
    described: dict[str, Any]
    tokenizer: str
    vocab_size: int
    dtype: str
    sides: tuple[Side, ...]
    files: dict[str, tuple[int, str]]
    notes: tuple[str, ...] = ()
    token_files: tuple[tuple[str, str, int, int], ...] = ()

    def text(self) -> str:
        """As it is written."""
        return json.dumps({"kind": KIND, "format": FORMAT, **asdict(self)}, indent=1) + "\n"

    @property
    def tokens(self) -> int:
        """Tokens of all sides."""
        return sum(side.tokens for side in self.sides)

    @property
    def documents(self) -> int:
        """Documents of all sides."""
        return sum(side.documents for side in self.sides)


class DamagedData(SetpointError):
    """Prepared data that is not what its manifest says."""


def read_manifest(folder: Path) -> Manifest:
    """Read what a store holds.

    Raises:
        DamagedData: there is no manifest, or none that this version understands.
    """
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if found.pop("kind") != KIND:
            raise ValueError("it is of something else")
        version = found.pop("format")
        if version != FORMAT:
            raise DamagedData(
                f"the prepared data in {folder} has format {version!r}, and this version of "
                f"setpoint reads {FORMAT}.\nValid: data prepared by this version."
            )
        sides = tuple(
            Side(**{**side, "sources": tuple(side["sources"])}) for side in found.pop("sides")
        )
        files = {
            name: (int(size), str(digest)) for name, (size, digest) in found.pop("files").items()
        }
        for name in files:  # they are copied and pushed under these names
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ValueError(f"it names the file {name!r}, which lies elsewhere")
        notes = tuple(str(each) for each in found.pop("notes"))
        token_files = tuple(
            (str(path), str(dtype), int(offset), int(count))
            for path, dtype, offset, count in found.pop("token_files")
        )
        return Manifest(**found, sides=sides, files=files, notes=notes, token_files=token_files)
    except OSError as error:
        raise DamagedData(
            f"{folder / MANIFEST} cannot be read: {error.strerror}.\n"
            "Valid: a folder that `setpoint data prepare` wrote."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedData(
            f"{folder / MANIFEST} is damaged: {error or type(error).__name__}.\n"
            "Valid: a folder that `setpoint data prepare` wrote."
        ) from error


def verify(folder: Path, manifest: Manifest) -> None:
    """Compare all files with the manifest.

    Sizes are compared always. A file is read for its hash once, and again when its modification
    time is another than at that time, so that opening costs nothing as data grows.

    Raises:
        DamagedData: a file is missing, cut short or has other content.
    """
    seen = _read_seen(folder, manifest)
    now: dict[str, int] = {}
    for name, (size, digest) in manifest.files.items():
        path = folder / name
        try:
            status = path.stat()
            if status.st_size == size and seen.get(name) != status.st_mtime_ns:
                same = digest_file(path).digest == digest
            else:
                same = True
        except OSError as error:
            raise DamagedData(_damaged(folder, f"{name}: {error.strerror}")) from error
        if status.st_size != size:
            less = "cut short: it" if status.st_size < size else "another: it"
            what = f"{name} is {less} has {status.st_size:,} bytes, and had {size:,}"
            raise DamagedData(_damaged(folder, what))
        if not same:
            raise DamagedData(_damaged(folder, f"the content of {name} is not what was written"))
        now[name] = status.st_mtime_ns
    if now != seen:
        write_seen(folder, manifest, now)


def _damaged(folder: Path, what: str) -> str:
    return (
        f"the prepared data in {folder} is damaged: {what}.\n"
        "Valid: remove the folder and prepare it again (`setpoint data prepare`)."
    )


def _read_seen(folder: Path, manifest: Manifest) -> dict[str, int]:
    try:
        found = json.loads((folder / SEEN).read_text(encoding="utf-8"))
        return dict(found["files"]) if found["of"] == _own_hash(manifest) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # nothing is trusted then


def write_seen(folder: Path, manifest: Manifest, times: dict[str, int]) -> None:
    """Note which files were verified; where it cannot be written they are verified again."""
    text = json.dumps({"of": _own_hash(manifest), "files": times})
    with suppress(OSError), replacing(folder / SEEN) as staged:
        staged.write_text(text, encoding="utf-8")


def read_inputs(folder: Path) -> list[str]:
    """The state that the files of the sources had when a store was prepared; empty where unknown.

    As `setpoint.data.sources.files.inputs_of` has it.
    """
    try:
        return (folder / INPUTS).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []


def _own_hash(manifest: Manifest) -> str:
    return hashlib.sha256(manifest.text().encode()).hexdigest()


def open_side(folder: Path, manifest: Manifest, side: Side, tokenizer: Tokenizer) -> Corpus:
    """Map one corpus of a store that was verified.

    Raises:
        DamagedData: a file has another dtype or length than the manifest says.
        SetpointError: it was prepared with another tokenizer.
    """
    if tokenizer.name != manifest.tokenizer:
        raise SetpointError(
            f"the prepared data in {folder} is of the tokenizer '{manifest.tokenizer}', and the "
            f"job has '{tokenizer.name}'.\nValid: that tokenizer, or data prepared with this one."
        )
    before = np.array([tokenizer.separator], np.dtype(manifest.dtype))
    starts = _mapped(folder / f"{side.name}.starts.npy", np.dtype("<i8"), side.documents)
    tokens = _joined(folder, side, "tokens", before)
    if manifest.token_files:
        places = _mapped(folder / f"{side.name}.places.npy", PLACE, side.documents)
        arrays = [tokens[1:] if len(tokens) == 1 else JoinedRow(tokens.parts[1:])]
        arrays += [_token_file(folder, *file) for file in manifest.token_files]
        tokens = PlacedRow(arrays, starts, places, side.tokens, before)
    mask = None
    if side.masked and f"{shard_name(side.name, 0)}.mask.npy" in manifest.files:
        mask = _joined(folder, side, "mask", np.ones(1, np.bool_))
    elif side.masked:
        mask = CompleteMask(starts, side.tokens)
    for kind, row in (("tokens", tokens), ("mask", mask)):
        if row is not None and len(row) != side.tokens:
            what = f"the {kind} of {side.name} are {len(row):,}, and were {side.tokens:,}"
            raise DamagedData(_damaged(folder, what))
    return Corpus(
        side=side.side,
        tokens=tokens,
        token_bytes=tokenizer.token_bytes,
        separator=tokenizer.separator,
        byte_count=side.bytes,
        files=StoredRecords(folder, side),
        digest=side.digest,
        sources=side.sources,
        starts=starts,
        source=_sources(folder, side),
        trained=mask,
        notes=manifest.notes if side == manifest.sides[0] else (),
        prepared=str(folder),
        read_at=partial(_column, folder, side, "read"),
        scores=partial(_column, folder, side, "score"),
    )


def first_lengths(folder: Path, count: int) -> list[int]:
    """Tokens of the first documents of a store."""
    manifest, lengths = read_manifest(folder), list[int]()
    for side in manifest.sides:
        path = folder / f"{side.name}.starts.npy"
        starts = _mapped(path, np.dtype("<i8"), side.documents)[: count + 1 - len(lengths)]
        ends = [side.tokens] if len(starts) == side.documents else []
        lengths += (np.diff([*starts.tolist(), *ends]) - 1).tolist()
    return lengths


def _column(folder: Path, side: Side, name: str) -> npt.NDArray[Any]:
    """A column of the index of all documents of a side."""
    shards = (shard_name(side.name, number) for number in range(side.shards))
    parts = [np.array(_mapped(folder / f"{shard}.index.npy", INDEX)[name]) for shard in shards]
    return np.concatenate(parts)


def _sources(folder: Path, side: Side) -> npt.NDArray[Any]:
    if len(side.sources) == 1:
        # One value for all, which takes no memory.
        return np.broadcast_to(np.zeros(1, np.int32), (side.documents,))
    return _mapped(folder / f"{side.name}.sources.npy", np.dtype("<i4"), side.documents)


def _joined(folder: Path, side: Side, kind: str, first: npt.NDArray[Any]) -> JoinedRow:
    """The files of a side as one row, with what stands before them."""
    parts = [
        _mapped(folder / f"{shard_name(side.name, number)}.{kind}.npy", first.dtype)
        for number in range(side.shards)
    ]
    return JoinedRow([first, *(part for part in parts if len(part))])


def _token_file(folder: Path, path: str, dtype: str, offset: int, count: int) -> TokenRow:
    try:
        return np.asarray(np.memmap(path, dtype, "r", offset, (count,)))
    except (OSError, ValueError) as error:
        raise DamagedData(_damaged(folder, f"its token file {path}: {error}")) from error


def shard_name(side: str, number: int) -> str:
    """What the names of a shard's files begin with."""
    return f"{side}-{number:05d}"


def _mapped(path: Path, dtype: np.dtype[Any], length: int | None = None) -> npt.NDArray[Any]:
    try:
        found = np.load(path, mmap_mode="r") if path.stat().st_size > 128 else np.load(path)
    except (OSError, ValueError) as error:
        raise DamagedData(_damaged(path.parent, f"{path.name}: {error}")) from error
    if found.dtype != dtype:
        what = f"{path.name} has the dtype {found.dtype}, and the manifest says {dtype}"
        raise DamagedData(_damaged(path.parent, what))
    if length is not None and len(found) != length:
        what = f"{path.name} has {len(found):,} entries, and the manifest says {length:,}"
        raise DamagedData(_damaged(path.parent, what))
    return np.asarray(found)


class StoredRecords(Sequence[FileRecord]):
    """The documents of a side, read from mapped files when they are asked for."""

    def __init__(self, folder: Path, side: Side) -> None:
        self.folder, self.side = folder, side
        self._ends: npt.NDArray[np.int64] | None = None
        self._parts: list[npt.NDArray[Any]] = []
        self._names: dict[int, Any] = {}

    def __len__(self) -> int:
        return self.side.documents

    @overload
    def __getitem__(self, key: int) -> FileRecord: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[FileRecord]: ...
    def __getitem__(self, key: int | slice) -> FileRecord | Sequence[FileRecord]:
        if isinstance(key, slice):
            return [self[place] for place in range(*key.indices(len(self)))]
        place = key + len(self) if key < 0 else key
        if not 0 <= place < len(self):
            raise IndexError(key)
        parts, ends = self._index()
        number = int(np.searchsorted(ends, place, "right"))
        row = parts[number][place - (int(ends[number]) - len(parts[number]))]
        return self._record(number, row)

    def __iter__(self) -> Iterator[FileRecord]:
        for number, part in enumerate(self._index()[0]):
            for row in part:
                yield self._record(number, row)

    def rows(self) -> Iterator[tuple[int, int, FileRecord]]:
        """First token, number of tokens and record of each document."""
        first = 1
        for number, part in enumerate(self._index()[0]):
            end = first
            for row in part:
                start = first + int(row["start"])
                end = start + int(row["tokens"]) + 1
                yield start, int(row["tokens"]), self._record(number, row)
            first = end

    def parts(self) -> list[tuple[npt.NDArray[Any], Path]]:
        """The index of each shard, and the file of its names."""
        names = (shard_name(self.side.name, number) for number in range(self.side.shards))
        paths = [self.folder / f"{name}.names" for name in names]
        return list(zip(self._index()[0], paths, strict=True))

    def _index(self) -> tuple[list[npt.NDArray[Any]], npt.NDArray[np.int64]]:
        if self._ends is None:
            names = (shard_name(self.side.name, number) for number in range(self.side.shards))
            self._parts = [_mapped(self.folder / f"{name}.index.npy", INDEX) for name in names]
            self._ends = np.cumsum([len(part) for part in self._parts], dtype=np.int64)
        return self._parts, self._ends

    def _record(self, number: int, row: Any) -> FileRecord:
        if number not in self._names:
            path = self.folder / f"{shard_name(self.side.name, number)}.names"
            # Kept for one shard at a time: documents are asked for in order.
            self._names = {number: np.memmap(path, np.uint8, "r")}
        at, length = int(row["name_at"]), int(row["name_length"])
        name = self._names[number][at : at + length].tobytes()
        return FileRecord(
            name.decode("utf-8", "surrogateescape"), int(row["size"]), row["sha256"].tobytes().hex()
        )


def stored_documents(folder: Path, name: str, tokenizer: Tokenizer) -> Iterator[Document]:
    """The documents of all sides of a store, as tokens.

    Arguments:
        name: of the source, which their names then begin with.

    Raises:
        SetpointError: it is damaged, or of another tokenizer.
    """
    manifest = read_manifest(folder)
    verify(folder, manifest)
    for side in manifest.sides:
        corpus = open_side(folder, manifest, side, tokenizer)
        assert isinstance(corpus.files, StoredRecords)
        for start, count, record in corpus.files.rows():
            trained = None
            if corpus.trained is not None:
                # The separator is a target behind plain text, and none behind what is complete.
                mask = corpus.trained[start : start + count + 1]
                trained = None if mask[-1] else mask[:-1]
            yield Document(
                f"{name}/{record.name}",
                tokens=np.array(corpus.tokens[start : start + count]),
                trained=trained,
            )
