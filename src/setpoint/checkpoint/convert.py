"""A checkpoint written once more, with its tensors whole or in as many parts as asked for.

One tensor is held at a time, or two where the copy is compared with the original: before it gets
its name, so that it is there whole and right, or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor

from setpoint.config import RunError, SetpointError
from setpoint.files.atomic import CHUNK, Written, publishing, write_file
from setpoint.files.tensor_file import encode_one_by_one
from setpoint.shapes.placed import Placeable

from .folder import POINTERS
from .loading import FilePart, StoredLayout, StoredTensor, encode_index, load_directory
from .manifest import (
    BASE,
    INDEX,
    MANIFEST,
    TENSORS,
    DamagedCheckpoint,
    Manifest,
    file_of_rank,
    files_of_stems,
    read_manifest,
)


def convert(
    source: Path, target: Path, parts: int | None, frozen: Mapping[str, Placeable] | None = None
) -> None:
    """Write a checkpoint with its tensors in another division.

    Arguments:
        target: the new directory, of any name.
        parts: into how many files the tensors of a stem are divided, by rows, as that many ranks
            would; None: whole tensors.
        frozen: the parameters that the source leaves out, where the copy is to hold them; None:
            it leaves them out as well.

    Raises:
        DamagedCheckpoint: the source is not what was saved.
        SetpointError: there is something at the target, or the disk refuses.
    """
    require_free(target)
    try:
        with publishing(target) as aside:
            _write(source, aside, parts, frozen)
            _compare(source, aside, frozen or {})
    except OSError as error:
        raise SetpointError(f"{target} cannot be written: {error.strerror}") from error


def require_free(target: Path) -> None:
    """Refuse a place that holds something, or lies among the checkpoints of a run.

    Raises:
        SetpointError: it is a file, a directory that is not empty, or would be one of these.
    """
    if any(os.path.lexists(target.parent / name) for name in POINTERS):
        raise SetpointError(
            f"{target.parent} holds the checkpoints of a run, which counts them and removes old "
            f"ones; give a directory elsewhere"
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        kind = "is not empty" if target.is_dir() else "is a file"
        raise SetpointError(f"{target} {kind}; give a new or empty directory")


def _tensors(directory: Path) -> dict[str, dict[str, StoredTensor]]:
    """The tensors of a checkpoint, of which every byte has been compared."""
    return cast("dict[str, dict[str, StoredTensor]]", load_directory(directory).tensors)


class _Box(NamedTuple):
    """A part of a tensor that becomes one of a file."""

    of: Placeable
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        return self.of.dtype


def _write(
    source: Path, folder: Path, parts: int | None, frozen: Mapping[str, Placeable] | None
) -> None:
    manifest = read_manifest(source)
    tensors: dict[str, dict[str, Placeable]] = {
        stem: {**named} for stem, named in _tensors(source).items()
    }
    files = {name for names in files_of_stems(manifest.files).values() for name in names}
    written: dict[str, Written] = {}
    if frozen is not None:
        files.add(BASE)
        tensors["model"] = {**tensors["model"], **frozen}
    for name in manifest.files.keys() - files:
        expected = manifest.files[name]
        written[name] = write_file(folder / name, _chunks(source / name))
        if written[name] != expected:
            raise DamagedCheckpoint(source, f"{name} has changed while it was read")
    for stem, named in tensors.items():
        aliases = _aliases(named)
        kept = {name: tensor for name, tensor in named.items() if name not in aliases}
        if parts is None:
            boxes = {
                name: _Box(tensor, (0,) * len(tensor.shape), tuple(tensor.shape))
                for name, tensor in kept.items()
            }
            written |= _write_file(folder, stem + TENSORS, boxes, aliases)
            continue
        layouts: dict[str, list[FilePart]] = {name: [] for name in kept}
        for rank in range(parts):
            file = file_of_rank(stem, rank, parts)
            boxes = dict(_boxes_of(kept, rank, parts))
            for name, box in boxes.items():
                layouts[name].append(FilePart(file, box.offset, box.shape))
            tied = {name: owner for name, owner in aliases.items() if owner in boxes}
            if boxes:
                written |= _write_file(folder, file, boxes, tied)
        index = {
            name: StoredLayout(
                tensor.dtype, tuple(tensor.shape), tuple(layouts[aliases.get(name, name)])
            )
            for name, tensor in named.items()
        }
        written[stem + INDEX] = write_file(folder / (stem + INDEX), [encode_index(index)])
    content = Manifest(manifest.step, manifest.metric, written).render()
    write_file(folder / MANIFEST, [content])


def _write_file(
    folder: Path, file: str, boxes: Mapping[str, _Box], aliases: Mapping[str, str]
) -> dict[str, Written]:
    def read(name: str) -> Tensor:
        box = boxes[name]
        return box.of.box(box.offset, box.shape)

    return {file: write_file(folder / file, encode_one_by_one(boxes, aliases, read))}


def _boxes_of(
    tensors: Mapping[str, Placeable], rank: int, ranks: int
) -> Iterator[tuple[str, _Box]]:
    """Content of one of several files: rows of each tensor; the first has those without rows."""
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        if not shape or not tensor.shape.numel():
            if rank == 0:
                yield name, _Box(tensor, (0,) * len(shape), shape)
            continue
        first, last = (shape[0] * number // ranks for number in (rank, rank + 1))
        if last > first:
            rest = shape[1:]
            yield name, _Box(tensor, (first, *(0 for _ in rest)), (last - first, *rest))


def _aliases(named: Mapping[str, Placeable]) -> dict[str, str]:
    """The further names of tied tensors, by which files hold them once."""
    owners: dict[tuple[object, ...], str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in named.items():
        if not isinstance(tensor, StoredTensor) or not tensor.shape.numel():
            continue
        places = [(part, tensor.files[part.file][name].start) for part in tensor.layout.parts]
        owner = owners.setdefault((tensor.layout.dtype, tensor.layout.shape, *places), name)
        if owner != name:
            aliases[name] = owner
    return aliases


def _compare(source: Path, copy: Path, frozen: Mapping[str, Placeable]) -> None:
    """Read the copy as it is on the disk, and compare each tensor with the original, bit by bit.

    Raises:
        RunError: naming one that differs.
    """
    originals, copies = _tensors(source), _tensors(copy)
    for stem, tensors in originals.items():
        named: dict[str, Placeable] = {**tensors, **(frozen if stem == "model" else {})}
        if named.keys() != copies[stem].keys():
            raise RunError(f"the copy of {source} lacks tensors of {stem}")
        for name, tensor in named.items():
            if not _same(tensor.whole(), copies[stem][name].whole()):
                raise RunError(f"the copy of {source} differs in {stem}/{name}")


def _same(one: Tensor, other: Tensor) -> bool:
    """True if two tensors are equal bit by bit, NaN included."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(*(tensor.reshape(-1).view(torch.uint8) for tensor in (one, other)))


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk
