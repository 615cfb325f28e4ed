"""The two kinds of work of a preparation, each on its own: a piece of documents, and a shard.

A piece is some documents in the order of the sources, tokenized: `NUMBER.tokens`, `.mask`,
`.names`, `.index.npy` sorted by the hash of names, and last `NUMBER.json`; without that one it is
not there. A shard is gathered from all pieces. Processes that do this import no torch.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError
from setpoint.data.document import Document
from setpoint.files.atomic import Written, replacing, write_file

if TYPE_CHECKING:
    from setpoint.data.tokenizers.tokenizer import Tokenizer

ROW = np.dtype(
    [
        ("hash", "<u8", (4,)),  # of the name, the first of four being the highest
        ("read", "<i8"),  # rises in the order in which the sources give the documents
        ("at", "<i8"),  # place of the first token in the piece
        ("tokens", "<i8"),
        ("size", "<i8"),
        ("name_at", "<i8"),
        ("name_length", "<i4"),
        ("source", "<i4"),
        ("held_out", "?"),
        ("masked", "?"),
        ("sha256", "u1", (32,)),
    ]
)

INDEX = np.dtype(
    [
        ("read", "<i8"),
        ("start", "<i8"),  # place of the first token in its shard
        ("tokens", "<i8"),
        ("size", "<i8"),  # of the document, in bytes
        ("name_at", "<i8"),
        ("name_length", "<i4"),
        ("source", "<i4"),
        ("sha256", "u1", (32,)),
    ]
)
"""A document of a shard."""


class Item(NamedTuple):
    """A document of a piece.

    Arguments:
        source: which of the sources it is from.
    """

    document: Document
    source: int
    held_out: bool


class Done(NamedTuple):
    """What the last file of a piece says."""

    documents: int
    tokens: int
    size: int
    first: str
    last: str
    masked: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """Documents to be tokenized."""

    folder: Path
    number: int
    items: Sequence[Item]
    where: str

    def __reduce__(self) -> tuple[Any, ...]:
        # A list for each attribute: five times as fast as an object for each document.
        documents = [item.document for item in self.items]
        attributes = ("name", "data", "tokens", "trained")
        columns = [[getattr(each, name) for each in documents] for name in attributes]
        columns += [[item.source for item in self.items], [item.held_out for item in self.items]]
        return _received, (self.folder, self.number, columns, self.where)

    def run(self, tokenizer: Tokenizer) -> Done:
        """Tokenize and write them.

        Raises:
            SetpointError: the tokenizer cannot take a document, which is named.
            OSError: it cannot be written.
        """
        dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
        documents = [item.document for item in self.items]
        found = [
            _tokens(each, tokenizer, self.where).astype(dtype, copy=False) for each in documents
        ]
        names = [each.name.encode("utf-8", "surrogateescape") for each in documents]
        masked = any(each.trained is not None for each in documents)
        masks = [
            np.ones(len(tokens), np.bool_) if each.trained is None else each.trained
            for each, tokens in zip(documents, found, strict=True)
            if masked
        ]
        rows = np.zeros(len(documents), ROW)
        hashes = b"".join(hashlib.sha256(name).digest() for name in names)
        rows["hash"] = np.frombuffer(hashes, ">u8").reshape(-1, 4)
        rows["tokens"], rows["name_length"] = list(map(len, found)), list(map(len, names))
        rows["at"] = np.cumsum(rows["tokens"]) - rows["tokens"]
        rows["name_at"] = np.cumsum(rows["name_length"], dtype=np.int64) - rows["name_length"]
        rows["read"] = (self.number << 32) + np.arange(len(documents))
        rows["size"] = [each.size for each in documents]
        rows["source"] = [item.source for item in self.items]
        rows["held_out"] = [item.held_out for item in self.items]
        rows["masked"] = [each.trained is not None for each in documents]
        contents = bytes.fromhex("".join(each.record().sha256 for each in documents))
        rows["sha256"] = np.frombuffer(contents, np.uint8).reshape(-1, 32)
        stem = piece_stem(self.folder, self.number)
        _replace(Path(f"{stem}.tokens"), [_bytes(tokens) for tokens in found])
        _replace(Path(f"{stem}.names"), [b"".join(names)])
        if masked:
            _replace(Path(f"{stem}.mask"), [_bytes(mask) for mask in masks])
        write_array(Path(f"{stem}.index.npy"), rows[in_order(rows)])
        done = Done(
            len(documents), int(rows["tokens"].sum()), int(rows["size"].sum()),
            documents[0].name, documents[-1].name, masked,
        )  # fmt: skip
        with replacing(Path(f"{stem}.json")) as staged:
            write_file(staged, [json.dumps(done).encode()])
        return done


def _received(folder: Path, number: int, columns: Sequence[Sequence[Any]], where: str) -> Piece:
    items = [
        Item(Document(*each), source, held) for *each, source, held in zip(*columns, strict=True)
    ]
    return Piece(folder, number, items, where)


def piece_stem(folder: Path, number: int) -> Path:
    """The path of a piece without its suffixes."""
    return folder / f"{number:06d}"


def read_done(folder: Path, number: int) -> Done | None:
    """What the last file of a piece says; None where it is not there."""
    try:
        return Done(*json.loads(Path(f"{piece_stem(folder, number)}.json").read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def in_order(rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Order of rows by the hash of names."""
    return np.lexsort(rows["hash"].T[::-1])


def _tokens(document: Document, tokenizer: Tokenizer, where: str) -> npt.NDArray[Any]:
    if document.tokens is not None:
        return document.tokens
    try:
        return tokenizer.encode(document.data)
    except SetpointError as error:
        raise SetpointError(f"{where}: the document '{document.name}': {error}") from error


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    """The content of an array that `write_file` takes; an empty one has no format `B`."""
    return memoryview(np.ascontiguousarray(array).view(np.uint8).data)


def _replace(path: Path, chunks: Iterable[bytes | memoryview]) -> Written:
    path.unlink(missing_ok=True)  # half of one, from a process that was killed
    return write_file(path, chunks)


def write_array(path: Path, array: npt.NDArray[Any]) -> Written:
    """Write a `.npy` file, on the disk when the call returns, in place of what was there."""
    return write_parts(path, array.dtype, len(array), [array])


def write_parts(
    path: Path, dtype: np.dtype[Any], length: int, parts: Iterable[npt.NDArray[Any]]
) -> Written:
    """Write arrays as one `.npy` file; see `write_array`."""
    head = io.BytesIO()
    described = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": (length,),
    }
    np.lib.format.write_array_header_1_0(head, described)
    return _replace(path, chain([head.getvalue()], map(_bytes, parts)))


class ShardDone(NamedTuple):
    """What was written of a shard.

    Arguments:
        files: what each of its files is, by name.
        records: what the digest of its side is fed with.
        twice: a name that two documents have; empty where there is none.
    """

    documents: int
    tokens: int
    bytes: int
    masked: bool
    files: dict[str, Written]
    records: bytes
    twice: str


@dataclass(frozen=True, slots=True)
class Shard:
    """A range of hashes of one side, to be gathered from pieces.

    Arguments:
        below, above: the range of the first 53 bits of the hash, above left out.
        held_out: the side; only documents of it are gathered.
        limits: by source, the first 53 bits of a hash below which documents are held out, beside
            those that say it themselves.
        source: only documents of this source; None: of all.
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
        """Gather and write it.

        Raises:
            OSError: it cannot be read or written.
        """
        dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
        found = list(self._rows())
        rows = np.concatenate([rows for _, rows in found]) if found else np.zeros(0, ROW)
        piece = np.repeat([number for number, _ in found], [len(rows) for _, rows in found])
        order = in_order(rows)
        rows, piece = rows[order], piece[order].astype(np.int64)
        lengths = rows["tokens"].astype(np.int64)
        starts = np.cumsum(lengths + 1) - lengths - 1
        total = int((lengths + 1).sum())
        tokens = np.full(total, tokenizer.separator, dtype)
        mask = np.ones(total if self.masked else 0, np.bool_)
        names: list[bytes] = [b""] * len(rows)
        # Piece by piece, so that no more than one is open.
        for number in np.unique(piece).tolist():
            self._copy(number, np.flatnonzero(piece == number), rows, starts, tokens, mask, names)
        index = np.zeros(len(rows), INDEX)
        for field in ("read", "tokens", "size", "source", "sha256"):
            index[field] = rows[field]
        index["start"] = starts
        sizes = np.array([len(name) for name in names], np.int64)
        index["name_at"], index["name_length"] = np.cumsum(sizes) - sizes, sizes
        stem = str(self.folder / self.name)
        files = {
            f"{self.name}.tokens.npy": write_array(Path(f"{stem}.tokens.npy"), tokens),
            f"{self.name}.index.npy": write_array(Path(f"{stem}.index.npy"), index),
            f"{self.name}.names": _replace(Path(f"{stem}.names"), [b"".join(names)]),
        }
        if self.masked:
            files[f"{self.name}.mask.npy"] = write_array(Path(f"{stem}.mask.npy"), mask)
        return ShardDone(
            documents=len(rows),
            tokens=total,
            bytes=_byte_count(tokens, tokenizer.token_bytes),
            masked=bool(rows["masked"].any()),
            files=files,
            records=b"".join(
                f"{len(name)} {size} {bytes(sha).hex()} ".encode() + name + b"\n"
                for name, size, sha in zip(
                    names, rows["size"].tolist(), rows["sha256"], strict=True
                )
            ),
            twice=_twice(rows, names),
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
        places: npt.NDArray[np.int64],
        rows: npt.NDArray[Any],
        starts: npt.NDArray[np.int64],
        tokens: npt.NDArray[Any],
        mask: npt.NDArray[np.bool_],
        names: list[bytes],
    ) -> None:
        stem = piece_stem(self.pieces, number)
        source = _mapped(f"{stem}.tokens", tokens.dtype)
        text = _mapped(f"{stem}.names", np.dtype(np.uint8))
        masks = (
            _mapped(f"{stem}.mask", np.dtype(np.bool_)) if rows[places]["masked"].any() else mask
        )
        chosen = rows[places]
        columns = [chosen[name].tolist() for name in ("at", "tokens", "name_at", "name_length")]
        for place, start, at, count, name_at, length, masked in zip(
            places.tolist(), starts[places].tolist(), *columns, chosen["masked"].tolist(),
            strict=True,
        ):  # fmt: skip
            tokens[start : start + count] = source[at : at + count]
            names[place] = text[name_at : name_at + length].tobytes()
            if masked:
                mask[start : start + count] = masks[at : at + count]
                mask[start + count] = False


def _mapped(path: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if not os.path.getsize(path):
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, "r"))


def _byte_count(tokens: npt.NDArray[Any], token_bytes: npt.NDArray[np.int64]) -> int:
    step = 1 << 16
    return sum(int(token_bytes[tokens[at : at + step]].sum()) for at in range(0, len(tokens), step))


def _twice(rows: npt.NDArray[Any], names: Sequence[bytes]) -> str:
    if len(rows) < 2:
        return ""
    same = np.flatnonzero((rows["hash"][1:] == rows["hash"][:-1]).all(axis=1))
    return names[int(same[0])].decode("utf-8", "replace") if len(same) else ""
