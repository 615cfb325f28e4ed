"""What a checkpoint does not hold: frozen parameters, which other weights have."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from setpoint.files.durable import Written

from .layout import BASE
from .manifest import Manifest, decode_written, encode_written, read_verified, understood


@dataclass(frozen=True, slots=True)
class Base:
    """The weights that a checkpoint takes its frozen parameters from.

    Arguments:
        name: as `model.pretrained` has it.
        directory: where they were.
        files: with their sizes and checksums, by which they are known.
        tensors: the names that are left out, and the dtypes that the values of each are rounded to
            one after the other, as safetensors calls them.
    """

    name: str
    directory: str
    files: dict[str, Written]
    tensors: dict[str, tuple[str, ...]]

    def encode(self) -> bytes:
        """The text of the file of a checkpoint that says so."""
        content = {
            "name": self.name,
            "directory": self.directory,
            "files": {name: encode_written(each) for name, each in sorted(self.files.items())},
            "tensors": self.tensors,
        }
        return (json.dumps(content, indent=1) + "\n").encode()

    def in_dtype(self, dtype: str | None) -> Base:
        """The same, with tensors of floating-point numbers in another dtype; None: as they are."""
        if dtype is None:
            return self
        kept = {
            name: (*through, dtype) if through[-1].startswith(("F", "BF")) else through
            for name, through in self.tensors.items()
        }
        return replace(self, tensors=kept)


def read_base(directory: Path, manifest: Manifest) -> Base | None:
    """Read what a checkpoint leaves out; None where it holds all.

    Raises:
        DamagedCheckpoint: if the file is not what was saved, or none of Setpoint's.
    """
    if BASE not in manifest.files:
        return None
    with understood(directory):
        content = json.loads(read_verified(directory, manifest, BASE))
        files = {name: decode_written(each) for name, each in content["files"].items()}
        tensors = {name: tuple(through) for name, through in content["tensors"].items()}
        return Base(content["name"], content["directory"], files, tensors)
