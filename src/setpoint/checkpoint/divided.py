"""Tensors of which ranks hold parts: which rank writes what, and what is read back of it.

Of each stem, rank r of n writes `<stem>-r-of-n.safetensors` with its parts, and `<stem>.index.json`
says which part of which tensor lies where. Any rank of any other division reads the parts that
overlap with what it holds. Parts that several ranks hold are written by one of them; the planner of
torch's distributed checkpoints chooses, so that all write about as much.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from setpoint.shapes.placed import part_here

from .layout import file_of_rank
from .tensor_file import DTYPES, decode_tensors, dtype_named

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
            found[here].copy_(self.files[part.file][self.name][there])
            self.files.release(part.file)
        return found

    def whole(self) -> Tensor:
        """Read all of it."""
        return self.box([0] * len(self.layout.shape), self.layout.shape)


class Files(Mapping[str, Mapping[str, Tensor]]):
    """The files of ranks in one checkpoint, mapped into memory when they are first used.

    Arguments:
        directory: of the checkpoint, whose files have been compared with the manifest.
        names: of the files.
    """

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        self.directory, self.names = directory, tuple(names)
        self._open: dict[str, dict[str, Tensor]] = {}
        self._maps: dict[str, mmap.mmap] = {}

    def __getitem__(self, name: str) -> dict[str, Tensor]:
        if name not in self._open:
            with (self.directory / name).open("rb") as file:
                # Private: torch wants memory that it may write to, and no file is changed.
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._open[name] = decode_tensors(content)
            self._maps[name] = content
        return self._open[name]

    def release(self, name: str) -> None:
        """Take what has been read of a file out of this process's memory; the cache keeps it."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._maps[name].madvise(mmap.MADV_DONTNEED)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
