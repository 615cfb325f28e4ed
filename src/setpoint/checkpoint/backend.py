"""How the states of a run become files of a checkpoint, and are read back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from setpoint.files.durable import Written, write_file
from setpoint.files.tensor_file import HostMemory, encode_tensors
from setpoint.shapes.placed import Named

from .divided import Seen, open_tensors
from .layout import STATE, TENSORS
from .manifest import Manifest, read_verified, understood
from .state_file import decode_state, encode_state

Tensors = Mapping[str, Mapping[str, Tensor]]
"""File stem to name to tensor."""


@dataclass(frozen=True, slots=True)
class Staged:
    """The states as they are written, once.

    Arguments:
        files: file name to its content in pieces.
    """

    files: dict[str, Iterable[bytes | memoryview]]


class States(NamedTuple):
    """What was read back.

    Arguments:
        tensors: stem to name to tensor, read when it is placed (`setpoint.shapes.placed`).
        state: everything else.
    """

    tensors: dict[str, Named]
    state: dict[str, Any]


class Backend(Protocol):
    """The format of the states in a checkpoint's folder.

    `CheckpointStore` does what is the same in any format: the folder, its name, the manifest, the
    pointers, and which checkpoints stay.
    """

    def stage(
        self,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        into: HostMemory | None = None,
    ) -> Staged:
        """Take the states.

        Arguments:
            state: everything else, as JSON has it.
            into: what tensors are copied to, so that they may change before they are written, those
                that it knows as still after its `settle`; None: they are not copied.

        Raises:
            SetpointError: if a tensor cannot be saved.
            TypeError: if the state holds what JSON does not return as it was.
        """
        ...

    def write(self, staged: Staged, folder: Path) -> dict[str, Written]:
        """Write what was staged into an empty folder and wait until the disk has the files.

        Returns:
            file name to size and checksum, for the manifest.

        Raises:
            OSError: if the disk is full or fails.
        """
        ...

    def read(self, folder: Path, manifest: Manifest, stems: Collection[str], seen: Seen) -> States:
        """Read states, whose files with tensors have been compared with the manifest.

        Arguments:
            stems: the tensors to read, beside the rest of the state.
            seen: what the files were before they were compared, see `divided.look_at`.

        Raises:
            DamagedCheckpoint: naming the file that is missing or not what was saved.
            RunError: if a file cannot be read.
        """
        ...


class Safetensors:
    """`<stem>.safetensors` for the tensors of each stem, and `state.json` for the rest.

    Where ranks have written parts of tensors, there are files of theirs and an index for each stem.
    """

    def stage(
        self,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        into: HostMemory | None = None,
    ) -> Staged:
        """See `Backend.stage`."""
        files = {stem + TENSORS: encode_tensors(group, into) for stem, group in tensors.items()}
        if into is not None:
            into.wait()
        return Staged({**files, STATE: [encode_state(state)]})

    def write(self, staged: Staged, folder: Path) -> dict[str, Written]:
        """See `Backend.write`."""
        return {name: write_file(folder / name, pieces) for name, pieces in staged.files.items()}

    def read(self, folder: Path, manifest: Manifest, stems: Collection[str], seen: Seen) -> States:
        """See `Backend.read`."""
        tensors = open_tensors(folder, manifest, stems, seen)
        with understood(folder):
            state = decode_state(read_verified(folder, manifest, STATE))
        return States({**tensors}, state)


SAFETENSORS: Backend = Safetensors()
