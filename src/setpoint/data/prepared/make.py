"""Preparing data: sources are read in one process, tokenized in several, and laid in order.

Memory does not grow with the data: a piece is some megabytes of documents, a shard a range of
hashes of about `SHARD` bytes, and the order of all documents is that of the shards.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from setpoint.config import RunError, SetpointError
from setpoint.data.corpus import Show, documents_of, source_of
from setpoint.data.prepared.key import Key, Request
from setpoint.data.prepared.names import MANIFEST
from setpoint.data.prepared.pieces import (
    Done,
    Item,
    Piece,
    Shard,
    ShardDone,
    piece_stem,
    read_done,
    write_parts,
)
from setpoint.data.prepared.store import INPUTS, Manifest, Side, shard_name, write_seen
from setpoint.data.prepared.worker import Workers
from setpoint.data.split import FEW, held_out_count, split_group
from setpoint.files.atomic import Written, sync_directory, write_file

if TYPE_CHECKING:
    from setpoint.data.document import Document
    from setpoint.data.tokenizers.tokenizer import Tokenizer

FIRST_PIECE, LAST_PIECE, GROWTH = 1 << 20, 1 << 23, 16
"""Bytes of the first pieces and of the largest, and after how many they are twice as large, so
that little data is spread over processes as well. The number of processes changes no piece."""
MOST = 1 << 16  # documents of a piece
SHARD = 1 << 27
TOP = 1 << 53


def prepare(
    folder: Path,
    key: Key,
    request: Request,
    tokenizer: Tokenizer,
    inputs: Sequence[str],
    *,
    workers: int,
    show: Show | None = None,
) -> Manifest:
    """Prepare data in a new folder, or go on where a process before was killed.

    The folder has its name only when all of it is on the disk. Nobody else may do the same now.

    Arguments:
        workers: processes that tokenize.

    Raises:
        SetpointError: a source cannot be read, a side is empty, or a document cannot be tokenized.
        RunError: a file cannot be written, as on a full disk. What is finished is kept.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    pieces = partial / "pieces"
    try:
        pieces.mkdir(parents=True, exist_ok=True)
        with Workers(tokenizer, workers) as pool:
            done, few, notes = _tokenize(pieces, request, tokenizer, pool, show)
            sides, files = _gather(partial, done, few, request, tokenizer, pool, show)
        data = "".join(f"{line}\n" for line in inputs).encode("utf-8", "surrogateescape")
        files[INPUTS] = _write(partial / INPUTS, data)
        manifest = Manifest(
            key=key.folder,
            described=request.described(),
            tokenizer=tokenizer.name,
            vocab_size=tokenizer.vocab_size,
            dtype=np.min_scalar_type(tokenizer.vocab_size - 1).str,
            sides=tuple(sides),
            files={name: (each.size, each.digest) for name, each in sorted(files.items())},
            notes=notes,
        )
        _write(partial / MANIFEST, manifest.text().encode())
        write_seen(
            partial,
            manifest,
            {name: (partial / name).stat().st_mtime_ns for name in manifest.files},
        )
        shutil.rmtree(pieces)
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
        f"{kept} finished pieces are kept in {partial}, and the same command goes on from there; "
        "or choose a folder on another disk"
    )


def _write(path: Path, data: bytes) -> Written:
    path.unlink(missing_ok=True)
    return write_file(path, [data])


def _tokenize(
    pieces: Path, request: Request, tokenizer: Tokenizer, pool: Workers, show: Show | None
) -> tuple[list[Done], set[int], tuple[str, ...]]:
    """Tokenize all documents; pieces of a process before are kept.

    Returns:
        what each piece holds, the groups of few documents, and what filters left out.
    """
    total = _size(request)
    what = f"tokenizing {request.side}, tokens"
    few: set[int] = set()
    notes: list[str] = []
    bytes_done = tokens = 0
    results: list[Done] = []
    works = (
        _Kept(done) if (done := _already(pieces, number, items)) is not None
        else Piece(pieces, number, items, request.where)
        for number, items in enumerate(_pieces(_items(request, tokenizer, few, notes)))
    )  # fmt: skip
    for _, done in pool.run(works):
        results.append(done)
        bytes_done, tokens = bytes_done + done.size, tokens + done.tokens
        if show is not None:
            # An estimate by the bytes of the files, of which records are not all text.
            expected = None if total is None else round(tokens * total / max(bytes_done, 1))
            show(what, tokens, None if expected is None else max(expected, tokens + 1))
    if show is not None:
        show(what, tokens, tokens)
    if not results:
        raise SetpointError(
            f"{request.where}: no source holds a single byte of text.\nValid: a source with text."
        )
    return results, few, tuple(notes)


class _Kept:
    """A piece that is there."""

    def __init__(self, done: Done) -> None:
        self.done = done

    def run(self, tokenizer: Tokenizer) -> Done:
        return self.done


def _already(pieces: Path, number: int, items: Sequence[Item]) -> Done | None:
    done = read_done(pieces, number)
    if done is None:
        return None
    size = sum(item.document.size for item in items)
    names = items[0].document.name, items[-1].document.name
    same = (done.documents, done.size, done.first, done.last) == (len(items), size, *names)
    return done if same else None


def _size(request: Request) -> int | None:
    sizes = [source.most_tokens() for source in request.sources]
    return None if any(size is None for size in sizes) else sum(size or 0 for size in sizes)


def _items(
    request: Request, tokenizer: Tokenizer, few: set[int], notes: list[str]
) -> Iterator[Item]:
    """The documents; a group of few is split at once, and `few` gets its number.

    A group is what is split together: a source of a mixture, or all sources.
    """
    sources = (_found(request, index, tokenizer, notes) for index in range(len(request.sources)))
    share = request.held_out if request.held_out < 1 else 0.0
    for group, found in enumerate(sources if request.mixed else [chain.from_iterable(sources)]):
        first = list(islice(found, FEW + 1))
        if share and len(first) <= FEW:
            few.add(group)
            split = split_group(first, share)
            yield from (_item(document, request, False) for document in split.train)
            yield from (_item(document, request, True) for document in split.held_out)
        else:
            yield from (_item(document, request, False) for document in chain(first, found))


def _item(document: Document, request: Request, held_out: bool) -> Item:
    return Item(document, source_of(document.name, request.names), held_out)


def _found(
    request: Request, index: int, tokenizer: Tokenizer, notes: list[str]
) -> Iterator[Document]:
    where = request.where_of(index)
    documents = documents_of(request.sources[index], where, tokenizer, notes)
    return (document for document in documents if document.size)


def _pieces(items: Iterator[Item]) -> Iterator[list[Item]]:
    piece: list[Item] = []
    size, number = 0, 0
    for item in items:
        piece.append(item)
        size += item.document.size
        if size >= min(LAST_PIECE, FIRST_PIECE << (number // GROWTH)) or len(piece) == MOST:
            yield piece
            piece, size, number = [], 0, number + 1
    if piece:
        yield piece


def _gather(
    folder: Path,
    done: Sequence[Done],
    few: set[int],
    request: Request,
    tokenizer: Tokenizer,
    pool: Workers,
    show: Show | None,
) -> tuple[list[Side], dict[str, Written]]:
    """Write the sides."""
    count = len(done)
    limits = _limits(folder / "pieces", count, few, request)
    masked = any(each.masked for each in done)
    itemsize = np.min_scalar_type(tokenizer.vocab_size - 1).itemsize
    tokens = sum(each.tokens for each in done)
    sides: list[Side] = []
    files: dict[str, Written] = {}
    parts: list[tuple[str, str, int | None, bool]] = []
    if request.mixed:
        parts += [(f"train-{n}", request.side, n, False) for n in range(len(request.sources))]
    else:
        parts.append(("train", request.side, None, False))
    if request.held_out:
        parts.append(("held_out", "held_out", None, True))
    for name, side, source, held_out in parts:
        below, above = (0, max(limits)) if held_out else (min(limits), TOP)
        if few:
            below, above = 0, TOP
        shards = max(1, math.ceil(tokens * itemsize * (above - below) / TOP / SHARD))
        bounds = [below + (above - below) * k // shards for k in range(shards + 1)]
        works = [
            Shard(
                folder / "pieces", count, folder, shard_name(name, k), bounds[k], bounds[k + 1],
                held_out, limits, source, masked,
            )
            for k in range(shards)
        ]  # fmt: skip
        made = _side(folder, name, works, pool, tokenizer, files, request, show)
        if not made.documents:
            raise SetpointError(_empty(folder / "pieces", count, request, source))
        chosen = request.names if source is None else request.names[source : source + 1]
        sides.append(
            Side(
                name=name,
                side=side,
                sources=chosen or (side,),
                documents=made.documents,
                tokens=made.tokens,
                bytes=made.bytes,
                digest=made.digest,
                shards=shards,
                masked=masked and made.masked,
            )
        )
    return sides, files


def _limits(pieces: Path, count: int, few: set[int], request: Request) -> tuple[int, ...]:
    """By source, the first 53 bits of a hash below which documents are held out.

    0 for a group of few, whose documents say it themselves.
    """
    separate = request.mixed and request.held_out < 1
    groups = range(len(request.sources) if separate else 1)
    if not request.held_out:
        return (0,) * len(request.sources)

    def hashes(number: int, group: int) -> npt.NDArray[np.uint64]:
        index = np.load(f"{piece_stem(pieces, number)}.index.npy", mmap_mode="r")
        hashes = index["hash"][:, 0]
        return hashes[index["source"] == group] if separate else hashes

    limits: list[int] = []
    for group in groups:
        documents = sum(len(hashes(number, group)) for number in range(count))
        if group in few or not documents:
            limits.append(0)
            continue
        wanted = held_out_count(documents, request.held_out) + 1
        lowest = np.zeros(0, np.uint64)
        for number in range(count):
            lowest = np.concatenate([lowest, hashes(number, group)[:wanted]])
            lowest = np.sort(lowest, kind="stable")[:wanted]
        limits.append(int(lowest[-1]) >> 11)
    return tuple(limits) if separate else (limits[0],) * len(request.sources)


class _Sum:
    """What a side comes to."""

    def __init__(self, digest: str, documents: int, tokens: int, size: int, masked: bool) -> None:
        self.digest, self.documents, self.tokens = digest, documents, tokens
        self.bytes, self.masked = size, masked


def _side(
    folder: Path,
    name: str,
    works: Sequence[Shard],
    pool: Workers,
    tokenizer: Tokenizer,
    files: dict[str, Written],
    request: Request,
    show: Show | None,
) -> _Sum:
    digest = hashlib.sha256(f"{tokenizer.name}\n".encode())
    tokens, size, documents = 1, 0, 0
    offsets: list[int] = []
    shard: ShardDone
    masked = False
    for number, (_, shard) in enumerate(pool.run(works)):
        if shard.twice:
            raise SetpointError(
                f"{request.where}: two documents are called '{shard.twice}'.\n"
                "Valid: one name for each source, so that its documents' names differ."
            )
        digest.update(shard.records)
        offsets.append(tokens)
        tokens, size = tokens + shard.tokens, size + shard.bytes
        documents += shard.documents
        masked = masked or shard.masked
        files.update(shard.files)
        if show is not None:
            show(f"writing {name}, shards", number + 1, len(works))
    indexes = (np.load(folder / f"{work.name}.index.npy", mmap_mode="r") for work in works)
    starts = (np.asarray(index["start"] + at) for index, at in zip(indexes, offsets, strict=True))
    file = f"{name}.starts.npy"
    files[file] = write_parts(folder / file, np.dtype("<i8"), documents, starts)
    if len(request.sources) > 1 and works[0].source is None:
        indexes = (np.load(folder / f"{work.name}.index.npy", mmap_mode="r") for work in works)
        sources = (np.ascontiguousarray(index["source"]) for index in indexes)
        file = f"{name}.sources.npy"
        files[file] = write_parts(folder / file, np.dtype("<i4"), documents, sources)
    return _Sum(digest.hexdigest(), documents, tokens, size, masked)


def _empty(pieces: Path, count: int, request: Request, source: int | None) -> str:
    """Why a side is empty."""
    indexes = (np.load(f"{piece_stem(pieces, n)}.index.npy", mmap_mode="r") for n in range(count))
    if source is not None and not any((index["source"] == source).any() for index in indexes):
        return (
            f"{request.where}.{source}: '{request.names[source]}' holds no text.\n"
            "Valid: a source with text, or a mixture without it."
        )
    if source is not None:
        return (
            f"{request.where}.{source}: no document of '{request.names[source]}' is left to train "
            f"on, with data.held_out = {request.held_out:.15g}.\n"
            "Valid: more documents, or a smaller number or share."
        )
    return (
        f"{request.where}: data.held_out = {request.held_out:g} holds nothing out: there are one "
        "or two documents, too short to be cut or conversations, which are not cut.\n"
        "Valid: more documents, data.validation, or data.held_out = 0 with evaluation = null."
    )
