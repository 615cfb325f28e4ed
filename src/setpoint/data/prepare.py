"""Preparation of data: read sources in one process, tokenize in several, and sort by hash.

Memory use does not grow with the data. A piece is a few megabytes of tokenized documents in source
order: `NUMBER.tokens`, `.mask`, `.names`, `.index.npy` sorted by the hash of names, and finally
`NUMBER.json`, which marks it as complete. A shard, gathered from all pieces, contains the documents
in a range of hashes, about `SHARD` bytes. The processes do not import torch.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from setpoint.config import RunError, SetpointError
from setpoint.data.corpus import count_bytes, encoded
from setpoint.data.document import Document, TokenPlace
from setpoint.data.reading import (
    FEW,
    CorpusRequest,
    documents_of,
    duplicate_name,
    held_out_count,
    source_of,
    split_group,
)
from setpoint.data.token_store import (
    INDEX,
    INPUTS,
    MANIFEST,
    Side,
    StoreManifest,
    raw,
    replace_file,
    shard_name,
    write_array,
    write_parts,
    write_verified,
)
from setpoint.data.workers import Workers
from setpoint.files.atomic import Written, replacing, sync_directory, write_file
from setpoint.shapes.protocols import Work, no_work

if TYPE_CHECKING:
    from setpoint.data.document import Document
    from setpoint.data.tokenizer import Tokenizer


ROW = np.dtype(
    [
        *INDEX.descr,  # `at` and `name_at` are offsets in the piece
        ("hash", "<u8", (4,)),  # of the name, the first of four being the highest
        ("bytes", "<i8"),  # of its tokens and a separator, if it stays in a token file
        ("held_out", "?"),
        ("masked", "?"),
    ]
)
"""Index entry of a document of a piece."""


class Done(NamedTuple):
    """Summary of a complete piece, its last file."""

    documents: int
    tokens: int
    size: int
    first: str
    last: str
    masked: bool
    copied: int


PLAN = np.dtype(
    [
        ("source", "<i4"),  # index
        ("held_out", "?"),
        ("file", "<i4"),  # see `INDEX`
    ]
)
"""Facts about a document that are known before it is tokenized."""
PlannedFacts = tuple[int, bool, int]
Item = tuple[Document, PlannedFacts]


@dataclass(frozen=True, slots=True)
class TokenizedPiece:
    """A piece to tokenize.

    Arguments:
        facts: (documents,) `PLAN`.
    """

    folder: Path
    number: int
    documents: Sequence[Document]
    facts: npt.NDArray[Any]
    where: str

    def __reduce__(self) -> tuple[Any, ...]:
        # A list for each attribute: five times as fast as an object for each document.
        attributes = ("name", "data", "tokens", "trained", "score", "place")
        columns = [[getattr(document, name) for document in self.documents] for name in attributes]
        return _rebuild_piece, (self.folder, self.number, columns, self.facts, self.where)

    def run(self, tokenizer: Tokenizer) -> Done:
        """Tokenize and write the piece, unless an interrupted preparation already did.

        Raises:
            SetpointError: the tokenizer cannot encode a document, which the message names.
            OSError: the piece cannot be written.
        """
        documents = self.documents
        done = read_done(self.folder, self.number)
        size = sum(document.size for document in documents)
        content = len(documents), size, documents[0].name, documents[-1].name
        if done is not None and content == (done.documents, done.size, done.first, done.last):
            return done
        dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
        encodings = [
            np.concatenate([ids for _, ids in encoded(document, tokenizer, self.where)])
            for document in documents
        ]
        encodings = [ids.astype(dtype, copy=False) for ids in encodings]
        names = [d.name.encode("utf-8", "surrogateescape") for d in documents]
        masked = any(d.trained is not None for d in documents)
        files = self.facts["file"]
        copied = files == 0
        masks = [
            np.ones(len(tokens), np.bool_) if d.trained is None else d.trained
            for d, tokens, copy in zip(documents, encodings, copied.tolist(), strict=True)
            if masked and copy
        ]
        rows = np.zeros(len(documents), ROW)
        hashes = b"".join(hashlib.sha256(name).digest() for name in names)
        rows["hash"] = np.frombuffer(hashes, ">u8").reshape(-1, 4)
        rows["tokens"], rows["name_length"] = list(map(len, encodings)), list(map(len, names))
        sizes = rows["tokens"] * copied
        rows["at"], rows["file"] = np.cumsum(sizes) - sizes, files
        for number in np.flatnonzero(files).tolist():
            place = documents[number].place
            assert place is not None
            rows["at"][number] = place.first
            size = count_bytes(encodings[number], tokenizer.token_bytes)
            rows["bytes"][number] = size + tokenizer.token_bytes[tokenizer.separator]
        rows["name_at"] = np.cumsum(rows["name_length"], dtype=np.int64) - rows["name_length"]
        rows["read"] = (self.number << 32) + np.arange(len(documents))
        rows["size"] = [d.size for d in documents]
        rows["score"] = [np.nan if d.score is None else d.score for d in documents]
        rows["source"], rows["held_out"] = self.facts["source"], self.facts["held_out"]
        rows["masked"] = [d.trained is not None for d in documents]
        contents = bytes.fromhex("".join(d.record().sha256 for d in documents))
        rows["sha256"] = np.frombuffer(contents, np.uint8).reshape(-1, 32)
        stem = piece_stem(self.folder, self.number)
        kept = (tokens for tokens, copy in zip(encodings, copied.tolist(), strict=True) if copy)
        replace_file(Path(f"{stem}.tokens"), map(raw, kept))
        replace_file(Path(f"{stem}.names"), [b"".join(names)])
        if masked:
            replace_file(Path(f"{stem}.mask"), [raw(mask) for mask in masks])
        write_array(Path(f"{stem}.index.npy"), rows[in_order(rows)])
        done = Done(
            len(documents), int(rows["tokens"].sum()), int(rows["size"].sum()),
            documents[0].name, documents[-1].name, masked, int(copied.sum()),
        )  # fmt: skip
        with replacing(Path(f"{stem}.json")) as staged:
            write_file(staged, [json.dumps(done).encode()])
        return done


def _rebuild_piece(
    folder: Path,
    number: int,
    columns: Sequence[Sequence[Any]],
    facts: npt.NDArray[Any],
    where: str,
) -> TokenizedPiece:
    documents = [Document(*values) for values in zip(*columns, strict=True)]
    return TokenizedPiece(folder, number, documents, facts, where)


def piece_stem(folder: Path, number: int) -> Path:
    """Path of a piece without its suffix."""
    return folder / f"{number:06d}"


def read_done(folder: Path, number: int) -> Done | None:
    """Read the summary of a piece; None if it is not complete."""
    try:
        return Done(*json.loads(Path(f"{piece_stem(folder, number)}.json").read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def in_order(rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Order of rows by the hash of names."""
    return np.lexsort(rows["hash"].T[::-1])


class ShardDone(NamedTuple):
    """Summary of a shard that was written.

    Arguments:
        copied: number of tokens that were copied, not mapped in place.
        files: size and digest of each file, by name.
        records: bytes for the digest of the side.
        repeated_name: a name shared by two documents; empty: names are unique.
    """

    documents: int
    tokens: int
    copied: int
    bytes: int
    masked: bool
    files: dict[str, Written]
    records: bytes
    repeated_name: str


@dataclass(frozen=True, slots=True)
class Shard:
    """A range of hashes of one side, to be gathered from pieces.

    Arguments:
        below, above: half-open range of the first 53 bits of the hash.
        held_out: whether to gather held-out or training documents.
        limits: see `_limits`; individually marked documents are also held out.
        source: index of the source to gather; None: all sources.
    """

    pieces: Path
    count: int
    folder: Path
    name: str
    below: int
    above: int
    held_out: bool
    limits: tuple[int, ...]
    source: int | None
    masked: bool

    def run(self, tokenizer: Tokenizer) -> ShardDone:
        """Gather and write the shard.

        Raises:
            OSError: the shard cannot be read or written.
        """
        dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
        numbered = list(self._rows())
        rows = np.concatenate([rows for _, rows in numbered]) if numbered else np.zeros(0, ROW)
        piece = np.repeat([number for number, _ in numbered], [len(rows) for _, rows in numbered])
        order = in_order(rows)
        rows, piece = rows[order], piece[order].astype(np.int64)
        lengths = rows["tokens"].astype(np.int64)
        starts = np.cumsum(lengths + 1) - lengths - 1
        total = int((lengths + 1).sum())
        # Tokens that stay in their files take no place among those of the shard.
        copied = rows["file"] == 0
        sizes = (lengths + 1) * copied
        places = np.where(copied, np.cumsum(sizes) - sizes, rows["at"])
        tokens = np.full(int(sizes.sum()), tokenizer.separator, dtype)
        mask = np.ones(total if self.masked else 0, np.bool_)
        names: list[bytes] = [b""] * len(rows)
        # Piece by piece, so that no more than one is open.
        for number in np.unique(piece).tolist():
            numbers = np.flatnonzero(piece == number)
            self._copy(number, numbers, rows, places, starts, tokens, mask, names)
        index = np.zeros(len(rows), INDEX)
        for field in INDEX.names or ():
            index[field] = rows[field]
        index["at"] = places
        index["name_at"] = np.cumsum(rows["name_length"], dtype=np.int64) - rows["name_length"]
        # Of the whole side there is one index, and one file of names.
        write_array(self.pieces / f"{self.name}.index.npy", index)
        replace_file(self.pieces / f"{self.name}.names", [b"".join(names)])
        files = {f"{self.name}.tokens.npy": tokens}
        if self.masked:
            files[f"{self.name}.mask.npy"] = mask
        return ShardDone(
            documents=len(rows),
            tokens=total,
            copied=len(tokens),
            bytes=count_bytes(tokens, tokenizer.token_bytes) + int(rows["bytes"].sum()),
            masked=bool(rows["masked"].any()),
            files={name: write_array(self.folder / name, row) for name, row in files.items()},
            records=b"".join(
                f"{len(name)} {size} {bytes(sha).hex()} ".encode() + name + b"\n"
                for name, size, sha in zip(
                    names, rows["size"].tolist(), rows["sha256"], strict=True
                )
            ),
            repeated_name=_repeated_name(rows, names),
        )

    def _rows(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """The rows of each piece that belong to the shard."""
        low = np.uint64(self.below << 11)
        for number in range(self.count):
            index = np.load(f"{piece_stem(self.pieces, number)}.index.npy", mmap_mode="r")
            highest = index["hash"][:, 0]
            first = int(np.searchsorted(highest, low))
            last = len(index)
            if self.above < 2**53:
                last = int(np.searchsorted(highest, np.uint64(self.above << 11)))
            rows = np.array(index[first:last])
            limits = np.array(self.limits, np.uint64)[rows["source"]]
            held_out = rows["held_out"] | (rows["hash"][:, 0] >> np.uint64(11) < limits)
            rows = rows[held_out == self.held_out]
            if self.source is not None:
                rows = rows[rows["source"] == self.source]
            if len(rows):
                yield number, rows

    def _copy(
        self,
        number: int,
        numbers: npt.NDArray[np.int64],
        rows: npt.NDArray[Any],
        places: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        tokens: npt.NDArray[Any],
        mask: npt.NDArray[np.bool_],
        names: list[bytes],
    ) -> None:
        chosen = rows[numbers]
        stem = piece_stem(self.pieces, number)
        source = _mapped(f"{stem}.tokens", tokens.dtype)
        text = _mapped(f"{stem}.names", np.dtype(np.uint8))
        masks = mask
        if self.masked and (chosen["masked"] & (chosen["file"] == 0)).any():
            masks = _mapped(f"{stem}.mask", np.dtype(np.bool_))
        fields = ("at", "tokens", "name_at", "name_length", "masked", "file")
        columns = (chosen[name].tolist() for name in fields)
        for number, place, start, offset, count, name_at, length, masked, file in zip(
            numbers.tolist(), places[numbers].tolist(), starts[numbers].tolist(), *columns,
            strict=True,
        ):  # fmt: skip
            names[number] = text[name_at : name_at + length].tobytes()
            if not file:
                tokens[place : place + count] = source[offset : offset + count]
            if masked and self.masked:
                if not file:  # of what stays in its file all tokens are targets
                    mask[start : start + count] = masks[offset : offset + count]
                mask[start + count] = False


def _mapped(path: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if not os.path.getsize(path):
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, "r"))


def _repeated_name(rows: npt.NDArray[Any], names: Sequence[bytes]) -> str:
    if len(rows) < 2:
        return ""
    same = np.flatnonzero((rows["hash"][1:] == rows["hash"][:-1]).all(axis=1))
    return names[int(same[0])].decode("utf-8", "replace") if len(same) else ""


FIRST_PIECE, LAST_PIECE, GROWTH = 1 << 20, 1 << 23, 16
"""Bytes of the first and the largest pieces, and number of pieces after which the size doubles, so
that small data is distributed as well. Pieces do not depend on the number of processes."""
MOST = 1 << 16  # documents of a piece
SHARD = 1 << 27
TOP = 1 << 53


def prepare(
    folder: Path,
    request: CorpusRequest,
    tokenizer: Tokenizer,
    inputs: Sequence[str],
    *,
    workers: int,
    show: Work = no_work,
) -> StoreManifest:
    """Prepare data in a new folder, or continue after an interruption.

    The folder is renamed into place when it is complete. The caller must hold the lock.

    Arguments:
        workers: number of processes that tokenize.

    Raises:
        SetpointError: a source cannot be read, a side is empty, or a document cannot be tokenized.
        RunError: a file cannot be written, for example on a full disk; finished pieces are kept.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    try:
        (partial / "pieces").mkdir(parents=True, exist_ok=True)
        with Workers(tokenizer, workers) as pool:
            preparation = Preparation(partial, request, tokenizer, pool, show)
            preparation.tokenize()
            sides = preparation.gather()
        data = "".join(f"{line}\n" for line in inputs).encode("utf-8", "surrogateescape")
        files = preparation.files | {INPUTS: replace_file(partial / INPUTS, [data])}
        manifest = StoreManifest(
            key=folder.name,
            described=request.described(),
            tokenizer=tokenizer.name,
            vocab_size=tokenizer.vocab_size,
            dtype=preparation.dtype.str,
            sides=tuple(sides),
            files={name: (file.size, file.digest) for name, file in sorted(files.items())},
            notes=tuple(preparation.notes),
            token_files=tuple(place[:-1] for place in preparation.places),
        )
        replace_file(partial / MANIFEST, [manifest.text().encode()])
        write_verified(
            partial,
            manifest,
            {name: (partial / name).stat().st_mtime_ns for name in manifest.files},
        )
        shutil.rmtree(preparation.pieces)
        sync_directory(partial)
        os.rename(partial, folder)
        sync_directory(folder.parent)
    except OSError as error:
        raise RunError(_not_written(partial, error)) from error
    return manifest


def _not_written(partial: Path, error: OSError) -> str:
    kept = len(list(partial.glob("pieces/*.json")))
    where = error.filename or partial
    space = ""
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(partial).free
        space = f" ({free / 1e6:,.0f} MB are free)" if error.errno == errno.ENOSPC else ""
    return (
        f"data.prepare.folder: {where} cannot be written: {error.strerror or error}{space}. "
        f"{kept} finished pieces are kept in {partial}; repeat the command to continue, or choose "
        "a folder on another disk"
    )


class Preparation:
    """The pieces and shards of a request.

    Attributes:
        done: summaries of the pieces.
        few: groups with few documents, which are split one by one.
        notes: messages from filters.
        places: token files that are mapped in place, with their numbers from 1.
        files: size and digest of each file that was written, by name.
    """

    def __init__(
        self,
        folder: Path,
        request: CorpusRequest,
        tokenizer: Tokenizer,
        pool: Workers,
        show: Work,
    ) -> None:
        self.folder, self.pieces = folder, folder / "pieces"
        self.request, self.tokenizer, self.pool, self.show = request, tokenizer, pool, show
        self.dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
        self.done: list[Done] = []
        self.few: set[int] = set()
        self.notes: list[str] = []
        self.places: dict[TokenPlace, int] = {}
        self.files: dict[str, Written] = {}

    def tokenize(self) -> None:
        """Tokenize all documents; pieces from an interrupted preparation are reused."""
        total = self.request.most_tokens()
        label = f"tokenizing {self.request.side}, tokens"
        bytes_done = tokens = 0
        works = (
            TokenizedPiece(
                self.pieces, number, documents, np.array(facts, PLAN), self.request.where
            )
            for number, (documents, facts) in enumerate(_pieces(self._items()))
        )
        for _, done in self.pool.run(works):
            self.done.append(done)
            bytes_done, tokens = bytes_done + done.size, tokens + done.tokens
            # An estimate by the bytes of the files, of which records are not all text.
            expected = None if total is None else round(tokens * total / max(bytes_done, 1))
            self.show(label, tokens, None if expected is None else max(expected, tokens + 1))
        self.show(label, tokens, tokens)
        if not self.done:
            raise self.request.no_text()

    def _items(self) -> Iterator[Item]:
        """The documents; groups with few documents are split here.

        A group is split as a whole: one source of a mixture, or all sources.
        """
        request, places = self.request, self.places

        def item(document: Document, held_out: bool) -> Item:
            file, place = 0, document.place
            if request.in_place and place is not None:
                file = places.setdefault(place._replace(first=0), len(places) + 1)
            return document, (source_of(document.name, request.names), held_out, file)

        def filled(index: int) -> Iterator[Document]:
            source, where = request.sources[index], request.where_of(index)
            documents = documents_of(source, where, self.tokenizer, self.notes)
            return (document for document in documents if document.size)

        sources = map(filled, range(len(request.sources)))
        share = request.held_out if request.held_out < 1 else 0.0
        groups = sources if request.mixed else [chain.from_iterable(sources)]
        for group, documents in enumerate(groups):
            first = list(islice(documents, FEW + 1))
            if share and len(first) <= FEW:
                self.few.add(group)
                for held_out, side in enumerate(split_group(first, share)):
                    yield from (item(document, bool(held_out)) for document in side)
            else:
                yield from (item(document, False) for document in chain(first, documents))

    def gather(self) -> list[Side]:
        """Write the shards of all sides."""
        request, few = self.request, self.few
        limits = self._limits()
        # If all tokens stay in their files, which are targets follows from where documents end.
        masked = any(piece.masked for piece in self.done)
        masked = masked and any(piece.copied for piece in self.done)
        size = sum(piece.tokens for piece in self.done) * self.dtype.itemsize
        parts: list[tuple[str, str, int | None, bool]] = [("train", request.side, None, False)]
        if request.mixed:
            parts = [(f"train-{n}", request.side, n, False) for n in range(len(request.sources))]
        if request.held_out:
            parts.append(("held_out", "held_out", None, True))
        sides: list[Side] = []
        for name, side, source, held_out in parts:
            below, above = (0, max(limits)) if held_out else (min(limits), TOP)
            if few:
                below, above = 0, TOP
            shards = max(1, math.ceil(size * (above - below) / TOP / SHARD))
            bounds = [below + (above - below) * k // shards for k in range(shards + 1)]
            works = [
                Shard(
                    self.pieces, len(self.done), self.folder, shard_name(name, k), bounds[k],
                    bounds[k + 1], held_out, limits, source, masked,
                )
                for k in range(shards)
            ]  # fmt: skip
            sides.append(self._side(name, side, source, works))
        return sides

    def _indexes(self) -> Iterator[npt.NDArray[Any]]:
        """(documents,) `ROW` of each piece."""
        for number in range(len(self.done)):
            yield np.load(f"{piece_stem(self.pieces, number)}.index.npy", mmap_mode="r")

    def _limits(self) -> tuple[int, ...]:
        """First 53 bits of the hash below which each source's documents are held out.

        0 for a group with few documents, which are marked individually.
        """
        request = self.request
        separate = request.mixed and request.held_out < 1
        if not request.held_out:
            return (0,) * len(request.sources)

        def hashes(group: int) -> Iterator[npt.NDArray[np.uint64]]:
            for index in self._indexes():
                hashes = index["hash"][:, 0]
                yield hashes[index["source"] == group] if separate else hashes

        limits: list[int] = []
        for group in range(len(request.sources) if separate else 1):
            documents = sum(map(len, hashes(group)))
            if group in self.few or not documents:
                limits.append(0)
                continue
            needed = held_out_count(documents, request.held_out) + 1
            lowest = np.zeros(0, np.uint64)
            for piece in hashes(group):
                lowest = np.sort(np.concatenate([lowest, piece[:needed]]), kind="stable")[:needed]
            limits.append(int(lowest[-1]) >> 11)
        return tuple(limits) if separate else (limits[0],) * len(request.sources)

    def _side(self, name: str, side: str, source: int | None, works: Sequence[Shard]) -> Side:
        """Write the shards of a side, and its index over all shards.

        Arguments:
            source: index of its only source; None: all sources.
        """
        digest = hashlib.sha256(f"{self.tokenizer.name}\n".encode())
        # A separator stands before all.
        tokens, size = 1, int(self.tokenizer.token_bytes[self.tokenizer.separator])
        documents, copied, masked = 0, 0, False
        offsets: list[tuple[int, int]] = []
        shard: ShardDone
        for number, (_, shard) in enumerate(self.pool.run(works)):
            if shard.repeated_name:
                raise duplicate_name(self.request.where, shard.repeated_name)
            digest.update(shard.records)
            offsets.append((tokens, copied))
            tokens, size = tokens + shard.tokens, size + shard.bytes
            documents, copied = documents + shard.documents, copied + shard.copied
            masked = masked or shard.masked
            self.files.update(shard.files)
            self.show(f"writing {name}, shards", number + 1, len(works))
        if not documents:
            raise self._empty(source)
        stems = [self.pieces / work.name for work in works]

        def starts() -> Iterator[npt.NDArray[np.int64]]:
            for stem, (first, _) in zip(stems, offsets, strict=True):
                lengths = np.load(f"{stem}.index.npy", mmap_mode="r")["tokens"] + 1
                yield first + np.cumsum(lengths) - lengths

        def index() -> Iterator[npt.NDArray[Any]]:
            named = 0
            for stem, (_, copied) in zip(stems, offsets, strict=True):
                rows = np.load(f"{stem}.index.npy")
                rows["at"] += copied * (rows["file"] == 0)
                rows["name_at"] += named
                named += int(rows["name_length"].sum(dtype=np.int64))
                yield rows

        for file, dtype, parts in (
            (f"{name}.starts.npy", np.dtype("<i8"), starts()),
            (f"{name}.index.npy", INDEX, index()),
        ):
            self.files[file] = write_parts(self.folder / file, dtype, documents, parts)
        names = (raw(_mapped(f"{stem}.names", np.dtype(np.uint8))) for stem in stems)
        self.files[f"{name}.names"] = replace_file(self.folder / f"{name}.names", names)
        all_names = self.request.names
        sources = all_names if source is None else all_names[source : source + 1]
        return Side(
            name=name,
            side=side,
            sources=sources or (side,),
            documents=documents,
            tokens=tokens,
            bytes=size,
            digest=digest.hexdigest(),
            shards=len(works),
            masked=masked,
        )

    def _empty(self, source: int | None) -> SetpointError:
        """Error for a side without documents."""
        request = self.request
        if source is not None:
            has_text = any((index["source"] == source).any() for index in self._indexes())
            return request.no_documents(source, has_text)
        return SetpointError(
            f"{request.where}: data.held_out = {request.held_out:g} holds nothing out: there are "
            f"only one or two documents, which are too short to split, or are conversations, "
            f"which are not split.\n"
            "Valid: more documents, data.validation, or data.held_out = 0 with evaluation = null."
        )


def _pieces(items: Iterator[Item]) -> Iterator[tuple[list[Document], list[PlannedFacts]]]:
    documents, facts = list[Document](), list[PlannedFacts]()
    size, number = 0, 0
    for document, planned in items:
        documents.append(document)
        facts.append(planned)
        size += document.size
        most = min(LAST_PIECE, FIRST_PIECE << (number // GROWTH))
        if size >= most or len(documents) == MOST:
            yield documents, facts
            documents, facts, size, number = [], [], 0, number + 1
    if documents:
        yield documents, facts
