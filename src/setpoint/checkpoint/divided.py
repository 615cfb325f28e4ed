"""Tensors of which ranks hold parts: which rank writes what, and what is read back of it.

Of each stem, rank r of n writes `<stem>-r-of-n.safetensors` with its parts, and `<stem>.index.json`
says which part of which tensor lies where. Any rank of any other division reads the parts that
overlap with what it holds. Parts that several ranks hold are written by one of them; the planner of
torch's distributed checkpoints chooses, so that all write about as much.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import finalize

import torch
from torch import Tensor

from setpoint.files.durable import CHUNK, fill, retried
from setpoint.files.tensor_file import DTYPES, Stored, bytes_of, decode_header, dtype_named
from setpoint.shapes.placed import Placeable, part_here

from .layout import INDEX, TENSORS, file_of_rank
from .manifest import (
    DamagedCheckpoint,
    Manifest,
    read_verified,
    understood,
    unreadable,
)

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import SavePlan

T = TypeVar("T")

OPEN = 32
"""Files of a checkpoint that stay open at most: it has several of each rank that has saved it, and
processes may open 1024."""


class Part(NamedTuple):
    """A box of a tensor, as one file holds it under the tensor's name.

    Arguments:
        offset: its first element in the tensor.
    """

    file: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]


class Layout(NamedTuple):
    """Where the parts of a tensor lie; together they are the whole, and none overlap."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: tuple[Part, ...]


Index = dict[str, dict[str, Layout]]
"""Stem to name to layout."""

Seen = dict[str, tuple[int, int]]
"""File name to size and time of its last change."""


def plan_of(tensors: Mapping[str, Mapping[str, Tensor]]) -> SavePlan:
    """What this rank could write: its parts of all tensors."""
    from torch.distributed.checkpoint.default_planner import create_default_local_save_plan

    return create_default_local_save_plan(joined(tensors), is_coordinator=True)


def share_out(plans: Sequence[SavePlan]) -> tuple[list[SavePlan], Index]:
    """Choose who writes what.

    Arguments:
        plans: of all ranks, by rank.

    Returns:
        what each is to write; and where all of it lies then.
    """
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    planner = DefaultSavePlanner(flatten_state_dict=False)
    planner.set_up_planner({}, is_coordinator=True)
    shares, metadata = planner.create_global_plan(list(plans))
    found: dict[str, list[Part]] = {}
    for rank, share in enumerate(shares):
        for item in share.items:
            data = item.tensor_data
            assert data is not None
            stem = _apart(item.index.fqn)[0]
            part = Part(
                file_of_rank(stem, rank, len(shares)),
                tuple(data.chunk.offsets),
                tuple(data.chunk.sizes),
            )
            found.setdefault(item.index.fqn, []).append(part)
    index: Index = {}
    for path, parts in found.items():
        about: Any = metadata.state_dict_metadata[path]
        stem, name = _apart(path)
        held = tuple(part for part in parts if prod(part.shape) or part.shape == tuple(about.size))
        index.setdefault(stem, {})[name] = Layout(about.properties.dtype, tuple(about.size), held)
    return list(shares), index


def parts_to_write(
    share: SavePlan, tensors: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, dict[str, Tensor]]:
    """The parts of this rank's share: stem to name to what it holds of the tensor."""
    found: dict[str, dict[str, Tensor]] = {stem: {} for stem in tensors}
    for item in share.items:
        stem, name = _apart(item.index.fqn)
        tensor = tensors[stem][name]
        local = part_here(tensor).detach()
        if local.numel() or not tensor.numel():
            found[stem][name] = local
    return found


def joined(tensors: Mapping[str, Mapping[str, T]]) -> dict[str, T]:
    """The tensors of all stems as `<stem>/<name>`."""
    return {
        f"{stem}/{name}": each for stem, named in tensors.items() for name, each in named.items()
    }


def _apart(path: str) -> tuple[str, str]:
    stem, _, name = path.partition("/")
    return stem, name


def encode_index(named: Mapping[str, Layout]) -> bytes:
    """The index of one stem, as JSON in UTF-8."""
    content = {
        name: {
            "dtype": DTYPES[layout.dtype],
            "shape": layout.shape,
            "parts": [part._asdict() for part in layout.parts],
        }
        for name, layout in named.items()
    }
    return (json.dumps({"tensors": content}) + "\n").encode()


def decode_index(content: bytes | bytearray) -> dict[str, Layout]:
    """Read what `encode_index` made; it must have been verified."""
    return {
        name: Layout(
            dtype_named(entry["dtype"]),
            tuple(entry["shape"]),
            tuple(
                Part(part["file"], tuple(part["offset"]), tuple(part["shape"]))
                for part in entry["parts"]
            ),
        )
        for name, entry in json.loads(content)["tensors"].items()
    }


@dataclass(frozen=True, slots=True, eq=False)
class Divided(Placeable):
    """A tensor whose parts lie in files, maybe several, which are read when they are asked for.

    Arguments:
        files: file name to the parts that it holds, shared by the tensors of a checkpoint.
    """

    layout: Layout
    name: str
    files: Files

    @property
    def shape(self) -> torch.Size:
        """See `Placeable.shape`."""
        return torch.Size(self.layout.shape)

    @property
    def dtype(self) -> torch.dtype:
        """As it was saved."""
        return self.layout.dtype

    def box(self, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        """See `Placeable.box`."""
        found = torch.empty(tuple(shape), dtype=self.dtype)
        self._read(found, offset)
        return found

    def fill(self, into: Tensor, offset: Sequence[int]) -> None:
        """See `Placeable.fill`."""
        if type(into) is Tensor and into.device.type == "cpu" and into.dtype == self.dtype:
            self._read(into, offset)
        else:
            Placeable.fill(self, into, offset)

    def _read(self, found: Tensor, offset: Sequence[int]) -> None:
        shape = found.shape
        for part in self.layout.parts:
            first = [max(a, b) for a, b in zip(offset, part.offset, strict=True)]
            last = [
                min(a + n, b + m)
                for a, n, b, m in zip(offset, shape, part.offset, part.shape, strict=True)
            ]
            if any(end <= start for start, end in zip(first, last, strict=True)):
                continue
            there = tuple(
                slice(s - a, e - a) for s, e, a in zip(first, last, part.offset, strict=True)
            )
            here = tuple(slice(s - a, e - a) for s, e, a in zip(first, last, offset, strict=True))
            self.files.read(part.file, self.name, there, found[here])


class Files(Mapping[str, Mapping[str, Stored]]):
    """The files with tensors in one checkpoint, read where parts of them are asked for.

    They are not mapped into memory, where a disk that fails would end the process without a word.

    Arguments:
        directory: of the checkpoint, whose files have been compared with the manifest.
        names: of the files.
        seen: what `look_at` said of them before; one that is another since is refused.
    """

    def __init__(self, directory: Path, names: Sequence[str], seen: Seen) -> None:
        self.directory, self.names, self.seen = directory, tuple(names), seen
        self._headers: dict[str, dict[str, Stored]] = {}
        # Descriptors that no thread reads from, those that were read from last at the end.
        self._idle: dict[str, int] = {}
        self._lock = Lock()
        finalize(self, _close, self._idle)

    def __getitem__(self, name: str) -> dict[str, Stored]:
        if name not in self._headers:
            with self._reading(name) as descriptor:
                length = bytearray(8)
                fill(descriptor, memoryview(length), 0)
                most = os.fstat(descriptor).st_size - 8
                text = bytearray(min(int.from_bytes(length, "little"), most))
                fill(descriptor, memoryview(text), 8)
            stored, aliases = decode_header(bytes(text))
            also = {alias: stored[owner] for alias, owner in aliases.items()}
            self._headers[name] = {**stored, **also}
        return self._headers[name]

    def read(self, name: str, tensor: str, box: Sequence[slice], into: Tensor) -> None:
        """Read a box of a tensor, as it lies in a file.

        Arguments:
            box: a slice for each dimension.
            into: of the shape of the box; it may be a view.

        Raises:
            DamagedCheckpoint: if the disk fails, or the file is not what it was.
            RunError: if it cannot be read.
        """
        with understood(self.directory):
            dtype, shape, start, _ = self[name][tensor]
        row = prod(shape[1:]) * dtype.itemsize
        is_rows = all(s == slice(0, n) for s, n in zip(box[1:], shape[1:], strict=True))
        with self._reading(name) as descriptor:
            if not into.numel():
                return
            if is_rows and into.is_contiguous() and into.dtype == dtype:
                offset = box[0].start * row if box else 0
                fill(descriptor, bytes_of(into), start + offset)
                return
            step = max(CHUNK // row, 1)
            for first in range(box[0].start, box[0].stop, step):
                last = min(first + step, box[0].stop)
                block = torch.empty((last - first, *shape[1:]), dtype=dtype)
                fill(descriptor, bytes_of(block), start + first * row)
                here = slice(first - box[0].start, last - box[0].start)
                into[here].copy_(block[(slice(None), *box[1:])])

    def whole(self, name: str) -> dict[str, Divided]:
        """The tensors of a file that holds all of each."""
        found: dict[str, Divided] = {}
        for tensor, (dtype, shape, _, _) in self[name].items():
            part = Part(name, (0,) * len(shape), shape)
            found[tensor] = Divided(Layout(dtype, shape, (part,)), tensor, self)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    @contextmanager
    def _reading(self, name: str) -> Iterator[int]:
        """Open a file for one thread; it stays open afterwards, as a part of it may be next."""
        with self._lock:
            descriptor = self._idle.pop(name, None)
        try:
            if descriptor is None:
                descriptor = retried(os.open, self.directory / name, os.O_RDONLY)
            if name in self.seen and _identity(os.fstat(descriptor)) != self.seen[name]:
                raise DamagedCheckpoint(self.directory, f"{name} has changed while it was read")
            yield descriptor
        except OSError as error:
            raise unreadable(self.directory, name, error) from error
        finally:
            if descriptor is not None:
                self._put_back(name, descriptor)

    def _put_back(self, name: str, descriptor: int) -> None:
        with self._lock:
            surplus = self._idle.pop(name, None)  # of another thread that has read the same file
            self._idle[name] = descriptor
            if len(self._idle) > OPEN:
                surplus = self._idle.pop(next(iter(self._idle)))
        if surplus is not None:
            os.close(surplus)


def look_at(directory: Path, names: Collection[str]) -> Seen:
    """What files are, as far as it shows without reading them; those that are missing are not."""
    found: Seen = {}
    for name in names:
        with suppress(OSError):
            found[name] = _identity(os.stat(directory / name))
    return found


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns


def open_tensors(
    directory: Path, manifest: Manifest, stems: Collection[str], seen: Seen
) -> dict[str, dict[str, Divided]]:
    """The tensors of a checkpoint by stem and name.

    Its files must have been verified; those with tensors are read when these are asked for.

    Arguments:
        seen: what `look_at` said of them before they were.

    Raises:
        DamagedCheckpoint: if an index is not what was saved.
    """
    files = Files(directory, [name for name in manifest.files if name.endswith(TENSORS)], seen)
    found: dict[str, dict[str, Divided]] = {}
    with understood(directory):
        for stem in stems:
            if stem + INDEX in manifest.files:
                layouts = decode_index(read_verified(directory, manifest, stem + INDEX))
                _require_whole(layouts, files.names)
                found[stem] = {name: Divided(each, name, files) for name, each in layouts.items()}
            else:
                found[stem] = files.whole(stem + TENSORS)
    return found


def _require_whole(layouts: Mapping[str, Layout], files: Collection[str]) -> None:
    """Refuse tensors of which no file has a part, and files that no manifest vouches for.

    Raises:
        ValueError: naming the tensor.
    """
    for name, (_, shape, parts) in layouts.items():
        if sum(prod(part.shape) for part in parts) != prod(shape):
            raise ValueError(f"the parts of {name} are not the whole")
        if any(part.file not in files for part in parts):
            raise ValueError(f"a part of {name} lies in no file of the checkpoint")


def _close(descriptors: dict[str, int]) -> None:
    for each in descriptors.values():
        os.close(each)
