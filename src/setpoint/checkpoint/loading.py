"""Reading of verified checkpoints: in full, or only the parts that a rank needs.

Each stem is a single file `<stem>.safetensors`, or one file `<stem>-r-of-n.safetensors` per rank,
with an index `<stem>.index.json` of the tensor parts in each. If the sharding differs, a rank reads
the parts that overlap its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar
from weakref import finalize

import torch
from torch import Tensor, nn

from setpoint.config import RunError, SetpointError
from setpoint.files.atomic import fill, retried
from setpoint.files.tensor_file import DTYPES, dtype_named, read_box
from setpoint.files.tensor_header import DamagedFile, TensorInfo, decode_header
from setpoint.files.threads import in_threads
from setpoint.parallel.world import RemoteRankError, World
from setpoint.shapes.placed import Named, Placeable, put

from .folder import manifest_of
from .manifest import (
    BASE,
    INDEX,
    STATE,
    TENSORS,
    Base,
    DamagedCheckpoint,
    Manifest,
    as_damaged,
    decode_state,
    files_of_stems,
    read_base,
    read_manifest,
    read_verified,
    unreadable,
    verify,
)

T = TypeVar("T")

OPEN = 32
"""Maximum number of open files; a checkpoint has several per saving rank, and the usual limit of a
process is 1024."""


class FilePart(NamedTuple):
    """A box of a tensor, stored in one file under the tensor's name.

    Arguments:
        offset: the position of the box's first element in the tensor.
    """

    file: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]


class StoredLayout(NamedTuple):
    """The stored parts of a tensor, which cover it without overlap."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: tuple[FilePart, ...]


Index = dict[str, dict[str, StoredLayout]]
"""Stem to name to layout."""

Identities = dict[str, tuple[int, int]]
"""File name to size and time of its last change."""


def encode_index(named: Mapping[str, StoredLayout]) -> bytes:
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


def decode_index(content: bytes | bytearray) -> dict[str, StoredLayout]:
    """Decode the verified output of `encode_index`."""
    return {
        name: StoredLayout(
            dtype_named(entry["dtype"]),
            tuple(entry["shape"]),
            tuple(
                FilePart(part["file"], tuple(part["offset"]), tuple(part["shape"]))
                for part in entry["parts"]
            ),
        )
        for name, entry in json.loads(content)["tensors"].items()
    }


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor(Placeable):
    """A tensor stored in one or more files, read lazily.

    Arguments:
        files: file name to the parts in it, shared by the tensors of a checkpoint.
    """

    layout: StoredLayout
    name: str
    files: TensorFiles

    @property
    def shape(self) -> torch.Size:
        """See `Placeable.shape`."""
        return torch.Size(self.layout.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype in which it was saved."""
        return self.layout.dtype

    def box(self, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        """See `Placeable.box`."""
        tensor = torch.empty(tuple(shape), dtype=self.dtype)
        self._read(tensor, offset)
        return tensor

    def fill(self, into: Tensor, offset: Sequence[int]) -> None:
        """See `Placeable.fill`."""
        if type(into) is Tensor and into.device.type == "cpu" and into.dtype == self.dtype:
            self._read(into, offset)
        else:
            Placeable.fill(self, into, offset)

    def _read(self, into: Tensor, offset: Sequence[int]) -> None:
        shape = into.shape
        for part in self.layout.parts:
            first = [max(a, b) for a, b in zip(offset, part.offset, strict=True)]
            last = [
                min(a + n, b + m)
                for a, n, b, m in zip(offset, shape, part.offset, part.shape, strict=True)
            ]
            if any(end <= start for start, end in zip(first, last, strict=True)):
                continue
            source = tuple(
                slice(s - a, e - a) for s, e, a in zip(first, last, part.offset, strict=True)
            )
            target = tuple(slice(s - a, e - a) for s, e, a in zip(first, last, offset, strict=True))
            self.files.read(part.file, self.name, source, into[target])


class TensorFiles(Mapping[str, Mapping[str, TensorInfo]]):
    """The tensor files of a checkpoint, read lazily.

    They are not memory-mapped, because a failing disk would then kill the process with SIGBUS.

    Arguments:
        directory: the directory of the checkpoint, verified against its manifest.
        names: the names of the files.
        identities: the identities of the files at verification; a file that has changed since is
            refused.
    """

    def __init__(self, directory: Path, names: Sequence[str], identities: Identities) -> None:
        self.directory, self.names, self.identities = directory, tuple(names), identities
        self._headers: dict[str, dict[str, TensorInfo]] = {}
        # Descriptors not in use by a thread, the most recently used ones last.
        self._idle: dict[str, int] = {}
        self._lock = Lock()
        finalize(self, _close, self._idle)

    def __getitem__(self, name: str) -> dict[str, TensorInfo]:
        if name not in self._headers:
            with self._reading(name) as descriptor:
                length = bytearray(8)
                fill(descriptor, memoryview(length), 0)
                most = os.fstat(descriptor).st_size - 8
                text = bytearray(min(int.from_bytes(length, "little"), most))
                fill(descriptor, memoryview(text), 8)
            try:
                stored, aliases = decode_header(self.directory / name, text)
            except DamagedFile as error:
                raise DamagedCheckpoint(self.directory, f"{name}: {error.reason}") from error
            also = {alias: stored[owner] for alias, owner in aliases.items()}
            self._headers[name] = {**stored, **also}
        return self._headers[name]

    def read(self, name: str, tensor: str, box: Sequence[slice], into: Tensor) -> None:
        """Read a box of a tensor, in the layout of the file.

        Arguments:
            box: a slice for each dimension.
            into: a tensor with the shape of the box; may be a view.

        Raises:
            DamagedCheckpoint: the disk fails, or the file has changed since its verification.
            RunError: the file cannot be read.
        """
        with as_damaged(self.directory):
            info = self[name][tensor]
        with self._reading(name) as descriptor:
            read_box(descriptor, info, box, into)

    def whole(self, name: str) -> dict[str, StoredTensor]:
        """The tensors of a file that stores them whole."""
        tensors: dict[str, StoredTensor] = {}
        for tensor, info in self[name].items():
            part = FilePart(name, (0,) * len(info.shape), info.shape)
            layout = StoredLayout(dtype_named(info.dtype), info.shape, (part,))
            tensors[tensor] = StoredTensor(layout, tensor, self)
        return tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    @contextmanager
    def _reading(self, name: str) -> Iterator[int]:
        """Open a file for one thread, and keep it open for the next part."""
        with self._lock:
            descriptor = self._idle.pop(name, None)
        try:
            if descriptor is None:
                descriptor = retried(os.open, self.directory / name, os.O_RDONLY)
            if name in self.identities and _identity(os.fstat(descriptor)) != self.identities[name]:
                raise DamagedCheckpoint(self.directory, f"{name} changed while it was being read")
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


def file_identities(directory: Path, names: Collection[str]) -> Identities:
    """Size and modification time of each file that exists."""
    identities: Identities = {}
    for name in names:
        with suppress(OSError):
            identities[name] = _identity(os.stat(directory / name))
    return identities


def _identity(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_size, facts.st_mtime_ns


def open_tensors(
    directory: Path, manifest: Manifest, stems: Collection[str], identities: Identities
) -> dict[str, dict[str, StoredTensor]]:
    """The tensors of a checkpoint by stem and name.

    The files must have been verified; tensors are read lazily.

    Arguments:
        identities: the identities of the files before the verification.

    Raises:
        DamagedCheckpoint: an index differs from what was saved.
    """
    files = TensorFiles(
        directory, [name for name in manifest.files if name.endswith(TENSORS)], identities
    )
    tensors: dict[str, dict[str, StoredTensor]] = {}
    with as_damaged(directory):
        for stem in stems:
            if stem + INDEX in manifest.files:
                layouts = decode_index(read_verified(directory, manifest, stem + INDEX))
                _require_whole(layouts, files.names)
                tensors[stem] = {
                    name: StoredTensor(layout, name, files) for name, layout in layouts.items()
                }
            else:
                tensors[stem] = files.whole(stem + TENSORS)
    return tensors


def _require_whole(layouts: Mapping[str, StoredLayout], files: Collection[str]) -> None:
    """Refuse tensors with missing parts, and files that are not in the manifest.

    Raises:
        ValueError: names the tensor.
    """
    for name, (_, shape, parts) in layouts.items():
        if sum(prod(part.shape) for part in parts) != prod(shape):
            raise ValueError(f"the parts of {name} do not cover the whole tensor")
        if any(part.file not in files for part in parts):
            raise ValueError(f"a part of {name} is in no file of the checkpoint")


def _close(descriptors: dict[str, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)


def joined(tensors: Mapping[str, Mapping[str, T]]) -> dict[str, T]:
    """The tensors of all stems as `<stem>/<name>`."""
    return {
        f"{stem}/{name}": tensor
        for stem, named in tensors.items()
        for name, tensor in named.items()
    }


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """Content of a checkpoint, as passed to `CheckpointStore.save`.

    Arguments:
        tensors: tensors by file stem and name. They are read when they are placed
            (`setpoint.shapes.placed`), from files that were compared with the manifest.
        metric: the metric that selects the best checkpoint, lower is better; None if not measured.
        partial: whether something was omitted; the missing state stays unchanged.
        base: the frozen parameters that the checkpoint omits; None if it has all parameters, or if
            they have been added (`setpoint.model.pretrained.load`).
    """

    step: int
    tensors: dict[str, Named]
    state: dict[str, Any]
    metric: float | None
    path: Path
    partial: bool = False
    base: Base | None = None


def agree(world: World | None, error: SetpointError | None) -> None:
    """Raise an error on every rank if reading failed on any rank.

    Arguments:
        world: the ranks that read together; None: only this process.
        error: the error of this rank, if any.

    Raises:
        SetpointError: the error of this rank, or else of another rank.
    """
    own_refusal = None
    if error is not None:
        is_damage = isinstance(error, DamagedCheckpoint)
        own_refusal = (str(error), (error.path, error.reason) if is_damage else None)
    answers = [own_refusal] if world is None else world.all_of(own_refusal)
    refusals = [answer for answer in answers if answer is not None]
    for text, damage in refusals:
        if damage is None:
            raise error if error is not None and str(error) == text else RemoteRankError(text)
    for _, damage in refusals:
        assert damage is not None
        raise DamagedCheckpoint(*damage)


def load_directory(
    directory: Path,
    only: Collection[str] | None = None,
    world: World | None = None,
) -> LoadedCheckpoint:
    """Verify and read a checkpoint.

    Arguments:
        only: the file stems to verify and open, in addition to the state; None opens all tensors
            and verifies every file.
        world: the ranks that read the checkpoint, each of which verifies some of the files.

    Raises:
        DamagedCheckpoint: a file, named in the error, is missing or differs from what was saved.
        RunError: a file cannot be read.
        SetpointError: a newer version of Setpoint wrote it.
        KeyError: a stem of `only` was never saved.
    """
    manifest = manifest_of(directory)
    files = files_of_stems(manifest.files)
    if only is not None:
        for stem in only:
            if stem not in files:
                raise KeyError(f"{directory} has no tensors {stem!r}, only {', '.join(files)}")
    stems = [stem for stem in files if only is None or stem in only]
    # All files are compared before any tensor is read, since tensors are read into those of the
    # run. The other files are compared as they are read.
    compared = manifest.files if only is None else chain(*(files[stem] for stem in stems))
    names = {*compared} - {STATE, BASE}
    identities = file_identities(directory, names)
    share = sorted(names) if world is None else sorted(names)[world.rank :: world.size]
    verify(directory, manifest, share)
    tensors = open_tensors(directory, manifest, stems, identities)
    with as_damaged(directory):
        state = decode_state(read_verified(directory, manifest, STATE))
    base = read_base(directory, manifest)
    return LoadedCheckpoint(
        manifest.step, {**tensors}, state, manifest.metric, directory, base=base
    )


def verify_directory(directory: Path) -> float | None:
    """Verify a checkpoint without reading its tensors into memory.

    Raises:
        DamagedCheckpoint: a file, named in the error, is missing or differs from what was saved.
        RunError: a file cannot be read.
        SetpointError: a newer version of Setpoint wrote it.
    """
    manifest = read_manifest(directory)
    verify(directory, manifest, manifest.files)
    return manifest.metric


def load_weights(
    model: nn.Module, checkpoint: LoadedCheckpoint, elsewhere: Collection[str] = ()
) -> None:
    """Load the weights of a checkpoint into a model, which may be sharded.

    Arguments:
        checkpoint: if it is partial, weights that it lacks stay unchanged.
        elsewhere: names of tensors on other ranks.

    Raises:
        RunError: a tensor, named in the error, is missing, unexpected, or of another shape.
    """
    saved, state = checkpoint.tensors["model"], model.state_dict()
    if checkpoint.partial:
        state = {name: tensor for name, tensor in state.items() if name in saved}
    shapes = {name: tensor.shape for name, tensor in state.items()}
    refuse_misfits(checkpoint.path, shapes, saved, elsewhere)
    put_all([(tensor, saved[name]) for name, tensor in state.items()])


def put_all(pairs: Sequence[tuple[Tensor, Tensor | Placeable]]) -> None:
    """Copy full tensors into local parts; tensors from files are read in parallel."""
    read = [pair for pair in pairs if isinstance(pair[1], StoredTensor)]
    in_threads(lambda number: put(*read[number]), len(read))
    for into, full in pairs:
        if not isinstance(full, StoredTensor):
            put(into, full)


def refuse_misfits(
    path: Path, shapes: Mapping[str, torch.Size], saved: Named, elsewhere: Collection[str] = ()
) -> None:
    """Refuse weights that do not match a model.

    Arguments:
        shapes: the shapes of the model's tensors.
        elsewhere: names of tensors on other ranks.

    Raises:
        RunError: a tensor, named in the error, is missing, unexpected, or of another shape.
    """
    wrong = [f"{name} is missing" for name in shapes if name not in saved]
    known = {*shapes, *elsewhere}
    wrong += [f"{name} is not in the model" for name in saved if name not in known]
    wrong += [
        f"{name} is {tuple(saved[name].shape)}, the model's is {tuple(shape)}"
        for name, shape in shapes.items()
        if name in saved and saved[name].shape != shape
    ]
    if wrong:
        shown = "; ".join(wrong[:2]) + (f"; and {len(wrong) - 2} more" if len(wrong) > 2 else "")
        raise RunError(f"{path} does not fit the model: {shown}")
