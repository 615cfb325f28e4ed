"""Rewriting of a checkpoint with whole tensors, or with a different number of parts.

Only one tensor is in memory at a time, or two while the copy is compared with the original. The
copy gets its final name after that comparison.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from setpoint.checkpoint.folder import POINTERS
from setpoint.checkpoint.loading import (
    FilePart,
    StoredLayout,
    StoredTensor,
    encode_index,
    load_directory,
)
from setpoint.checkpoint.manifest import (
    BASE,
    INDEX,
    MANIFEST,
    TENSORS,
    DamagedCheckpoint,
    file_of_rank,
    files_of_stems,
    read_manifest,
)
from setpoint.config import RunError, SetpointError
from setpoint.files.atomic import CHUNK, Written, publishing, write_file
from setpoint.files.tensor_file import encode_one_by_one
from setpoint.shapes.placed import Named, Placeable, in_memory


def convert(
    source: Path, target: Path, parts: int | None, frozen: Mapping[str, Placeable] | None = None
) -> None:
    """Write a checkpoint with its tensors divided differently.

    Arguments:
        target: the new directory, of any name.
        parts: the number of files of each stem, with the tensors divided by rows as for that many
            ranks; None: whole tensors.
        frozen: the parameters omitted by the source, if the copy is to contain them; None: the copy
            also omits them.

    Raises:
        DamagedCheckpoint: the source differs from what was saved.
        SetpointError: the target exists, or cannot be written.
    """
    require_free(target)
    try:
        with publishing(target) as aside:
            _write(source, aside, parts, frozen)
            _compare(source, aside, frozen or {})
    except OSError as error:
        raise RunError(f"{target} cannot be written: {error.strerror}") from error


def require_free(target: Path) -> None:
    """Refuse a target that is not empty, or is among a run's checkpoints.

    Raises:
        SetpointError: the target is a file, a nonempty directory, or among the checkpoints of a
            run.
    """
    if any(os.path.lexists(target.parent / name) for name in POINTERS):
        raise SetpointError(
            f"{target.parent} contains the checkpoints of a run, which manages them and removes "
            f"old ones; give another directory"
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        kind = "is not empty" if target.is_dir() else "is a file"
        raise SetpointError(f"{target} {kind}; give a new or empty directory")


def _tensors(directory: Path) -> dict[str, dict[str, StoredTensor]]:
    """The tensors of a checkpoint, after every byte has been compared."""
    return cast("dict[str, dict[str, StoredTensor]]", load_directory(directory).tensors)


class _Box(NamedTuple):
    """A part of a tensor to write to a file."""

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
            raise DamagedCheckpoint(source, f"{name} changed while it was being read")
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
    write_file(folder / MANIFEST, [replace(manifest, files=written).render()])


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
    """Content of one of several files: rows of each tensor; the first has scalars, too."""
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        if not shape or not tensor.shape.numel():
            if rank == 0:
                yield name, _Box(tensor, (0,) * len(shape), shape)
            continue
        first, last = (shape[0] * number // ranks for number in (rank, rank + 1))
        if last > first:
            sides = shape[1:]
            yield name, _Box(tensor, (first, *(0 for _ in sides)), (last - first, *sides))


def _aliases(named: Mapping[str, Placeable]) -> dict[str, str]:
    """Further names of tied tensors, which files store only once."""
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
    """Read the copy back, and compare each tensor bit by bit with the original.

    Raises:
        RunError: a tensor, named in the error, differs.
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
    """True if two tensors are equal bit by bit, including NaN."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(*(tensor.reshape(-1).view(torch.uint8) for tensor in (one, other)))


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


ELEMENTS = 1 << 22
"""Number of elements per comparison, in float64."""


class TensorSide(NamedTuple):
    """Shape and dtype of a tensor in one checkpoint."""

    shape: tuple[int, ...]
    dtype: str


class TensorDifference(NamedTuple):
    """A tensor that differs between two checkpoints.

    Arguments:
        left, right: None if a checkpoint lacks it.
        norm: 2-norm of the left tensor.
        difference: 2-norm of left - right; this and the next two are None if a side is missing or
            the shapes differ.
        relative: difference / norm; infinite if the norm is 0.
        largest: the largest absolute difference of an element.
    """

    name: str
    left: TensorSide | None
    right: TensorSide | None
    norm: float | None = None
    difference: float | None = None
    relative: float | None = None
    largest: float | None = None

    @property
    def order(self) -> float:
        """Sort key, largest first: tensors that cannot be compared, NaN, then by `relative`."""
        if self.relative is None or math.isnan(self.relative):
            return -math.inf
        return -self.relative


def tensor_differences(left: Named, right: Named) -> Iterator[TensorDifference]:
    """Compare tensors by name; bit-equal ones are omitted."""
    for name in sorted({*left, *right}):
        a, b = left.get(name), right.get(name)
        if a is None or b is None:
            yield TensorDifference(
                name, None if a is None else _side(a), None if b is None else _side(b)
            )
        elif a.shape != b.shape:
            yield TensorDifference(name, _side(a), _side(b))
        else:
            figures = _largest_difference(in_memory(a), in_memory(b))
            if figures is not None:
                yield TensorDifference(name, _side(a), _side(b), *figures)


def state_differences(
    left: Mapping[str, Any], right: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Values that differ, by dotted path; None for a missing value."""
    a, b = dict(_leaves(left, "")), dict(_leaves(right, ""))
    paths = dict.fromkeys((*a, *b))
    return {
        path: (a.get(path), b.get(path))
        for path in paths
        if repr(a.get(path)) != repr(b.get(path))  # NaN equals NaN
    }


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    items = value.items() if isinstance(value, Mapping) else ()
    if isinstance(value, list):
        items = enumerate(value)
    if not items:
        yield path, value
    for key, item in items:
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


def _side(tensor: Tensor | Placeable) -> TensorSide:
    return TensorSide(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _largest_difference(left: Tensor, right: Tensor) -> tuple[float, float, float, float] | None:
    """Norm, norm of the difference, their ratio, and the maximum; None if all bits are equal."""
    a, b = left.reshape(-1), right.reshape(-1)
    if a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
        return None
    squares = differences = largest = 0.0
    for start in range(0, len(a), ELEMENTS):
        part, other = (_exact(values[start : start + ELEMENTS]) for values in (a, b))
        apart = (part - other).abs()
        squares += part.abs().square().sum().item()
        differences += apart.square().sum().item()
        most = apart.max().item()
        largest = most if most > largest or math.isnan(most) else largest
    norm, difference = math.sqrt(squares), math.sqrt(differences)
    relative = difference / norm if norm else math.inf if difference else 0.0
    return norm, difference, relative, largest


def _exact(part: Tensor) -> Tensor:
    return part.to(torch.complex128 if part.is_complex() else torch.float64)
