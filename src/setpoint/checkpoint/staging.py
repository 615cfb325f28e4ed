"""What each rank writes of a checkpoint: its share of the tensors, copied or not, as files.

Parts that several ranks hold are written by one of them; the planner of torch's distributed
checkpoints chooses, so that all write about as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from setpoint.files.durable import CHUNK, Written, write_file
from setpoint.files.tensor_file import bytes_of, encode_tensors, is_plain
from setpoint.files.threads import in_threads
from setpoint.shapes.placed import part_here

from .folder import STATE, TENSORS, file_of_rank
from .loading import Index, StoredLayout, StoredPart, joined
from .manifest import encode_state

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import SavePlan

Tensors = Mapping[str, Mapping[str, Tensor]]
"""File stem to name to tensor."""

Staged = dict[str, Iterable[bytes | memoryview]]
"""File name to its content in pieces, which are taken once."""

_Copy = tuple[memoryview, memoryview]
"""Where to, and from where."""


class HostMemory:
    """Host memory that tensors are copied to, save after save to the same places.

    Arguments:
        pinned: whether it is page-locked, which copies from a GPU faster.
    """

    def __init__(self, pinned: bool = False) -> None:
        self.pinned = pinned
        self._held: list[tuple[Tensor, memoryview]] = []
        self._used = 0
        self._still: frozenset[int] = frozenset()
        self._due: list[_Copy] = []
        # What is copied until `settle`: by threads of the host, and by a stream of the GPU.
        self._later: list[_Copy] = []
        self._settling = Lock()
        self._stream: torch.cuda.Stream | None = None
        self._sources: list[Tensor] = []

    def clear(self, still: Iterable[Tensor] = ()) -> None:
        """Let the next copies take the place of what is there.

        Arguments:
            still: those that nothing changes before `settle`, with whatever shares their memory.
        """
        self._used = 0
        self._still = frozenset(_storage(part_here(each)) for each in still) - {0}

    def copy(self, tensor: Tensor) -> memoryview:
        """A copy, contiguous, to be read after `wait` and `settle` only."""
        size = tensor.numel() * tensor.element_size()
        if self._used == len(self._held) or len(self._held[self._used][1]) != size:
            # What is saved changes rarely: the checkpoint of weights alone at the end.
            del self._held[self._used :]
            made = torch.empty(size, dtype=torch.uint8, pin_memory=self.pinned)
            self._held.append((made, bytes_of(made)))
        place, content = self._held[self._used]
        self._used += 1
        is_still = type(tensor) is Tensor and _storage(tensor) in self._still
        if is_plain(tensor):
            source, due = bytes_of(tensor), self._later if is_still else self._due
            for start in range(0, size, CHUNK):
                due.append((content[start : start + CHUNK], source[start : start + CHUNK]))
            return content
        into = place.view(tensor.dtype).view(tensor.shape)
        if is_still and self.pinned and tensor.is_cuda:
            if self._stream is None:
                self._stream = torch.cuda.Stream(tensor.device)
            if not self._sources:
                self._stream.wait_stream(torch.cuda.current_stream(tensor.device))
            self._sources.append(tensor)
            with torch.cuda.stream(self._stream):
                into.copy_(tensor, non_blocking=True)
        else:
            into.copy_(tensor, non_blocking=self.pinned)
        return content

    def wait(self) -> None:
        """Wait until all copies are there but those of what stays still."""
        due, self._due = self._due, []
        _copy_all(due)
        if self.pinned:
            torch.cuda.current_stream().synchronize()

    def settle(self) -> None:
        """Wait until all copies are there; any thread may call it.

        Copies that no thread has begun are made by this one. If that fails, or Ctrl-C cuts it off,
        the next call makes them all again.
        """
        with self._settling:
            _copy_all(self._later)
            self._later = []
            if self._sources and self._stream is not None:
                self._stream.synchronize()
                self._sources = []


def _copy_all(due: Sequence[_Copy]) -> None:
    def copy(number: int) -> None:
        # Without the lock of the interpreter; torch's own threads would meet after each tensor.
        into, source = (np.frombuffer(each, np.uint8) for each in due[number])
        np.copyto(into, source)

    in_threads(copy, len(due))


def _storage(tensor: Tensor) -> int:
    """Where the memory begins that a tensor is a view of; 0 if it is empty."""
    return tensor.untyped_storage().data_ptr()


def stage(tensors: Tensors, state: Mapping[str, Any], into: HostMemory | None = None) -> Staged:
    """Make files of whole tensors, `<stem>.safetensors`, and of the rest of a state, `state.json`.

    Arguments:
        into: what tensors are copied to, so that they may change before they are written, those
            that it knows as still after its `settle`; None: they are not copied.

    Raises:
        SetpointError: if a tensor cannot be saved.
        TypeError: if the state holds what JSON does not return as it was.
    """
    copy = None if into is None else into.copy
    files: Staged = {stem + TENSORS: encode_tensors(named, copy) for stem, named in tensors.items()}
    if into is not None:
        into.wait()
    return {**files, STATE: [encode_state(state)]}


def write(staged: Staged, folder: Path) -> dict[str, Written]:
    """Write files into an empty folder, and wait until the disk has them.

    Raises:
        OSError: if the disk is full or fails.
    """
    return {name: write_file(folder / name, pieces) for name, pieces in staged.items()}


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
    found: dict[str, list[StoredPart]] = {}
    for rank, share in enumerate(shares):
        for item in share.items:
            data = item.tensor_data
            assert data is not None
            stem = _apart(item.index.fqn)[0]
            part = StoredPart(
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
        index.setdefault(stem, {})[name] = StoredLayout(
            about.properties.dtype, tuple(about.size), held
        )
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


def _apart(path: str) -> tuple[str, str]:
    stem, _, name = path.partition("/")
    return stem, name
