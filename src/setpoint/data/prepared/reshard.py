"""Prepared data laid into another number of shards: the same rows of tokens, divided elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from setpoint.config import RunError
from setpoint.data.prepared.names import MANIFEST
from setpoint.data.prepared.pieces import write_array, write_parts
from setpoint.data.prepared.store import (
    Manifest,
    Side,
    StoredRecords,
    open_side,
    shard_name,
)
from setpoint.files.atomic import Written, write_file

if TYPE_CHECKING:
    from setpoint.data.token_row import TokenRow
    from setpoint.data.tokenizers.tokenizer import Tokenizer

COPIED = 1 << 22
"""Tokens that are copied at a time."""


def reshard(
    folder: Path, manifest: Manifest, target: Path, shards: int, tokenizer: Tokenizer
) -> Manifest:
    """Write prepared data that was verified into a new folder, in so many shards a side.

    A side of fewer documents has a shard for each.

    Raises:
        RunError: it cannot be written; nothing of it is left then.
    """
    try:
        target.mkdir(parents=True)
        files: dict[str, Written] = {}
        sides: list[Side] = []
        for side in manifest.sides:
            sides.append(replace(side, shards=min(shards, side.documents)))
            files |= _write_side(folder, manifest, side, target, sides[-1].shards, tokenizer)
        before = {f"{shard_name(side.name, k)}." for side in manifest.sides
                  for k in range(side.shards)}  # fmt: skip
        for name, written in manifest.files.items():
            if f"{name.partition('.')[0]}." not in before:
                shutil.copyfile(folder / name, target / name)
                files[name] = Written(*written)
        named = {name: (each.size, each.digest) for name, each in sorted(files.items())}
        made = replace(manifest, sides=tuple(sides), files=named)
        write_file(target / MANIFEST, [made.text().encode()])
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        raise RunError(
            f"{error.filename or target} cannot be written: {error.strerror or error}. Another "
            "number of shards needs the same space again until all is uploaded"
        ) from error
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return made


def _write_side(
    folder: Path, manifest: Manifest, side: Side, target: Path, shards: int, tokenizer: Tokenizer
) -> dict[str, Written]:
    corpus = open_side(folder, manifest, side, tokenizer)
    assert isinstance(corpus.files, StoredRecords)
    parts = corpus.files.parts()
    lengths = np.concatenate([index["tokens"] for index, _ in parts]).astype(np.int64) + 1
    ends = np.cumsum(lengths)  # with the separator behind each document
    cuts = _cuts(ends, shards)
    files: dict[str, Written] = {}
    for number, (first, last) in enumerate(pairwise(cuts)):
        index, names = _documents(parts, first, last)
        start, end = int(ends[first] - lengths[first]), int(ends[last - 1])
        index["start"] = ends[first:last] - lengths[first:last] - start
        stem = shard_name(side.name, number)
        files[f"{stem}.tokens.npy"] = _copy(target, f"{stem}.tokens.npy", corpus.tokens, start, end)
        files[f"{stem}.index.npy"] = write_array(target / f"{stem}.index.npy", index)
        files[f"{stem}.names"] = write_file(target / f"{stem}.names", [names])
        if corpus.trained is not None:
            name = f"{stem}.mask.npy"
            files[name] = _copy(target, name, corpus.trained, start, end)
    return files


def _cuts(ends: npt.NDArray[np.int64], shards: int) -> list[int]:
    """The first document of each shard, of about as many tokens and at least one document."""
    wanted = [int(ends[-1]) * k // shards for k in range(1, shards)]
    cuts = [0]
    for k, at in enumerate(np.searchsorted(ends, wanted).tolist(), start=1):
        cuts.append(min(max(at, cuts[-1] + 1), len(ends) - (shards - k)))
    return [*cuts, len(ends)]


def _documents(
    parts: list[tuple[npt.NDArray[Any], Path]], first: int, last: int
) -> tuple[npt.NDArray[Any], bytes]:
    """The index and the names of a range of documents; names of a shard lie in its order."""
    found: list[npt.NDArray[Any]] = []
    names: list[bytes] = []
    for index, path in parts:
        rows = index[max(first, 0) : max(last, 0)]
        first, last = first - len(index), last - len(index)
        if len(rows):
            begin, end = int(rows["name_at"][0]), rows["name_at"][-1] + rows["name_length"][-1]
            with path.open("rb") as file:
                file.seek(begin)
                names.append(file.read(int(end) - begin))
            found.append(rows)
    whole = np.concatenate(found)
    sizes = whole["name_length"].astype(np.int64)
    whole["name_at"] = np.cumsum(sizes) - sizes
    return whole, b"".join(names)


def _copy(target: Path, name: str, row: TokenRow, start: int, end: int) -> Written:
    """Write part of a side; in the row a separator stands in front of all of it."""

    def parts() -> Iterator[npt.NDArray[Any]]:
        for at in range(start, end, COPIED):
            yield np.asarray(row[1 + at : 1 + min(at + COPIED, end)])

    return write_parts(target / name, row.dtype, end - start, parts())
