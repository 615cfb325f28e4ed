"""Tensors of which ranks hold parts: which rank writes what, and what is read back of it.

Of each stem, rank r of n writes `<stem>-r-of-n.safetensors` with its parts, and `<stem>.index.json`
says which part of which tensor lies where. Any rank of any other division reads the parts that
overlap with what it holds. Parts that several ranks hold are written by one of them; the planner of
torch's distributed checkpoints chooses, so that all write about as much.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import finalize

import torch
from torch import Tensor

from setpoint.shapes.placed import part_here

from .durable import CHUNK, read_at, retried
from .layout import file_of_rank
from .manifest import understood, unreadable
from .tensor_file import DTYPES, Stored, bytes_of, decode_header, dtype_named

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import SavePlan


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


def plan_of(tensors: Mapping[str, Mapping[str, Tensor]]) -> SavePlan:
    """What this rank could write: its parts of all tensors."""
    from torch.distributed.checkpoint.default_planner import create_default_local_save_plan

    return create_default_local_save_plan(_joined(tensors), is_coordinator=True)


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


def _joined(tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
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
class Divided:
    """A tensor whose parts lie in several files, which are read when they are asked for.

    Arguments:
        files: file name to the parts that it holds, shared by the tensors of a checkpoint.
    """

    layout: Layout
    name: str
    files: Files

    @property
    def shape(self) -> torch.Size:
        """The shape of the whole tensor."""
        return torch.Size(self.layout.shape)

    @property
    def dtype(self) -> torch.dtype:
        """As it was saved."""
        return self.layout.dtype

    def box(self, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Read a box of the tensor into memory of its own.

        Arguments:
            offset: the first element of the box.
        """
        found = torch.empty(tuple(shape), dtype=self.dtype)
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
        return found

    def whole(self) -> Tensor:
        """Read all of it."""
        return self.box([0] * len(self.layout.shape), self.layout.shape)


class Files(Mapping[str, Mapping[str, Stored]]):
    """The files with tensors in one checkpoint, read where parts of them are asked for.

    They are not mapped into memory, where a disk that fails would end the process without a word.

    Arguments:
        directory: of the checkpoint, whose files have been compared with the manifest.
        names: of the files.
    """

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        self.directory, self.names = directory, tuple(names)
        self._headers: dict[str, dict[str, Stored]] = {}
        self._open: dict[str, int] = {}
        finalize(self, _close, self._open)

    def __getitem__(self, name: str) -> dict[str, Stored]:
        if name not in self._headers:
            with self._reading(name) as descriptor:
                length = bytearray(8)
                _fill(descriptor, memoryview(length), 0)
                most = os.fstat(descriptor).st_size - 8
                text = bytearray(min(int.from_bytes(length, "little"), most))
                _fill(descriptor, memoryview(text), 8)
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
                _fill(descriptor, bytes_of(into), start + offset)
                return
            step = max(CHUNK // row, 1)
            for first in range(box[0].start, box[0].stop, step):
                last = min(first + step, box[0].stop)
                block = torch.empty((last - first, *shape[1:]), dtype=dtype)
                _fill(descriptor, bytes_of(block), start + first * row)
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
        try:
            if name not in self._open:
                self._open[name] = retried(os.open, self.directory / name, os.O_RDONLY)
            yield self._open[name]
        except OSError as error:
            raise unreadable(self.directory, name, error) from error


def _fill(descriptor: int, into: memoryview, offset: int) -> None:
    """Read what a file has from a place on."""
    while into:
        count = retried(read_at, descriptor, into, offset)
        into, offset = into[count:], offset + count


def _close(descriptors: dict[str, int]) -> None:
    for each in descriptors.values():
        os.close(each)
