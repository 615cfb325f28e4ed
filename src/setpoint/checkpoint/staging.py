"""The files of a checkpoint that each rank writes: its share of the tensors, copied or not.

The planner of PyTorch's distributed checkpoints balances the shares; replicated parts are written
once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from setpoint.files.atomic import CHUNK, Written, write_file
from setpoint.files.tensor_file import bytes_of, encode_tensors, is_plain
from setpoint.files.threads import in_threads
from setpoint.parallel.world import World
from setpoint.shapes.placed import local_part

from .loading import FilePart, Index, StoredLayout, encode_index, joined
from .manifest import INDEX, STATE, TENSORS, encode_state, file_of_rank

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import SavePlan

Tensors = Mapping[str, Mapping[str, Tensor]]
"""File stem to name to tensor."""

Staged = dict[str, Iterable[bytes | memoryview]]
"""File name to its content in pieces, an iterable consumed once."""

OnSaved = Callable[[Path], object]

_Copy = tuple[memoryview, memoryview]
"""Target and source."""


class HostMemory:
    """Host memory for copies of tensors, reused for each save.

    Arguments:
        pinned: whether the memory is page-locked, for faster copies from a GPU.
    """

    def __init__(self, pinned: bool = False) -> None:
        self.pinned = pinned
        self._held: list[tuple[Tensor, memoryview]] = []
        self._used = 0
        self._unchanged: frozenset[int] = frozenset()
        self._due: list[_Copy] = []
        # Tensors to copy until `finish`: by threads of the host, and by a stream of the GPU.
        self._later: list[_Copy] = []
        self._finishing = Lock()
        self._stream: torch.cuda.Stream | None = None
        self._sources: list[Tensor] = []

    def clear(self, unchanged: Iterable[Tensor] = ()) -> None:
        """Start new copies, which overwrite the previous ones.

        Arguments:
            unchanged: tensors that stay unchanged until `finish`, as do all that share their
                memory.
        """
        self._used = 0
        self._unchanged = frozenset(_storage(local_part(tensor)) for tensor in unchanged) - {0}

    def copy(self, tensor: Tensor) -> memoryview:
        """Make a contiguous copy, which is complete after `wait` and `finish`."""
        size = tensor.numel() * tensor.element_size()
        if self._used == len(self._held) or len(self._held[self._used][1]) != size:
            # The saved tensors change rarely, for the checkpoint of weights alone at the end.
            del self._held[self._used :]
            buffer = torch.empty(size, dtype=torch.uint8, pin_memory=self.pinned)
            self._held.append((buffer, bytes_of(buffer)))
        place, content = self._held[self._used]
        self._used += 1
        is_unchanged = type(tensor) is Tensor and _storage(tensor) in self._unchanged
        if is_plain(tensor):
            source, due = bytes_of(tensor), self._later if is_unchanged else self._due
            for start in range(0, size, CHUNK):
                due.append((content[start : start + CHUNK], source[start : start + CHUNK]))
            return content
        into = place.view(tensor.dtype).view(tensor.shape)
        if is_unchanged and self.pinned and tensor.is_cuda:
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
        """Wait for all copies except those of unchanged tensors."""
        due, self._due = self._due, []
        _copy_all(due)
        if self.pinned:
            torch.cuda.current_stream().synchronize()

    def finish(self) -> None:
        """Wait for all copies; any thread may call it.

        This thread makes the copies that have not begun. After a failure or Ctrl-C, the next call
        repeats them all.
        """
        with self._finishing:
            _copy_all(self._later)
            self._later = []
            if self._sources and self._stream is not None:
                self._stream.synchronize()
                self._sources = []


def _copy_all(due: Sequence[_Copy]) -> None:
    def copy(number: int) -> None:
        # Runs without the GIL; PyTorch's own threads would synchronize after each tensor.
        into, source = (np.frombuffer(memory, np.uint8) for memory in due[number])
        np.copyto(into, source)

    in_threads(copy, len(due))


def _storage(tensor: Tensor) -> int:
    """Address of a tensor's storage; 0 if it is empty."""
    return tensor.untyped_storage().data_ptr()


@dataclass(slots=True)
class Save:
    """A save in progress, on one rank.

    Arguments:
        step, metric, texts, on_saved: see `CheckpointStore.save`.
        memory: memory for the copies; None if tensors are written without a copy.
        position: the position of the run, see `Manifest`.
        size: total bytes of its tensors.
        refused: error that cancels the save, shared with all ranks when they write.
    """

    step: int
    metric: float | None = None
    texts: Mapping[str, str | bytes] | None = None
    on_saved: OnSaved | None = None
    memory: HostMemory | None = None
    position: Mapping[str, float] = field(default_factory=dict)
    size: int = 0
    files: Staged = field(default_factory=dict)
    refused: Exception | None = None
    written: Future[Path] = field(default_factory=Future)

    def finish_copies(self) -> None:
        """Finish the copies; an error cancels the save."""
        try:
            if self.memory is not None:
                self.memory.finish()
        except Exception as error:
            self.refused = error

    def wait(self, until: float | None) -> bool:
        """Wait for the end, at most until a given time; True if the save has ended."""
        left = None if until is None else max(until - time.monotonic(), 0)
        return bool(wait([self.written], left).done)


def stage(
    tensors: Tensors,
    state: Mapping[str, Any],
    into: HostMemory | None,
    world: World,
    index: Index,
) -> Staged:
    """Prepare the files of this rank's share of the tensors and, on the main rank, the JSON files.

    Arguments:
        tensors: this rank's share, see `share_of`.
        state: content of `state.json`.
        into: memory for copies, so that tensors may change before they are written (those marked
            unchanged only after its `finish`); None: tensors are not copied.
        world: the ranks that save together.
        index: location of the parts of all ranks, by stem.

    Raises:
        SetpointError: a tensor cannot be saved.
        TypeError: the state has values that JSON does not preserve.
    """
    files: Staged = {}
    for stem, named in tensors.items():
        if world.size == 1:
            files[stem + TENSORS] = encode_tensors(named, into and into.copy)
        elif named:
            file = file_of_rank(stem, world.rank, world.size)
            files[file] = encode_tensors(named, into and into.copy)
    if into is not None:
        into.wait()
    if world.is_main:
        files[STATE] = [encode_state(state)]
        for stem, layouts in index.items():
            files[stem + INDEX] = [encode_index(layouts)]
    return files


def write(staged: Staged, folder: Path) -> dict[str, Written]:
    """Write and flush files into an empty folder."""
    return {name: write_file(folder / name, pieces) for name, pieces in staged.items()}


def share_of(world: World, tensors: Tensors) -> tuple[Tensors, Index]:
    """Assign tensor parts to ranks; all ranks must call it.

    Returns:
        the parts that this rank writes, in the form of `tensors`, and on the main rank the index of
        all parts. A single rank writes whole tensors, without an index.
    """
    if world.size == 1:
        return tensors, {}
    from torch.distributed.checkpoint.default_planner import create_default_local_save_plan

    index: Index = {}

    def choose(plans: list[SavePlan]) -> list[SavePlan]:
        shares, layouts = _share_out(plans)
        index.update(layouts)
        return shares

    plan = create_default_local_save_plan(joined(tensors), is_coordinator=True)
    parts: dict[str, dict[str, Tensor]] = {stem: {} for stem in tensors}
    for item in world.scatter_from_main(plan, choose).items:
        stem, name = _stem_and_name(item.index.fqn)
        tensor = tensors[stem][name]
        local = local_part(tensor).detach()
        if local.numel() or not tensor.numel():
            parts[stem][name] = local
    return parts, index


def _share_out(plans: Sequence[SavePlan]) -> tuple[list[SavePlan], Index]:
    """Assign the parts to ranks.

    Returns:
        the plan of each rank, and the index of all parts.
    """
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    planner = DefaultSavePlanner(flatten_state_dict=False)
    planner.set_up_planner({}, is_coordinator=True)
    shares, metadata = planner.create_global_plan(list(plans))
    parts_of: dict[str, list[FilePart]] = {}
    for rank, share in enumerate(shares):
        for item in share.items:
            data = item.tensor_data
            assert data is not None
            stem = _stem_and_name(item.index.fqn)[0]
            part = FilePart(
                file_of_rank(stem, rank, len(shares)),
                tuple(data.chunk.offsets),
                tuple(data.chunk.sizes),
            )
            parts_of.setdefault(item.index.fqn, []).append(part)
    index: Index = {}
    for path, parts in parts_of.items():
        about: Any = metadata.state_dict_metadata[path]
        stem, name = _stem_and_name(path)
        filled = tuple(
            part for part in parts if prod(part.shape) or part.shape == tuple(about.size)
        )
        index.setdefault(stem, {})[name] = StoredLayout(
            about.properties.dtype, tuple(about.size), filled
        )
    return list(shares), index


def _stem_and_name(path: str) -> tuple[str, str]:
    stem, _, name = path.partition("/")
    return stem, name
