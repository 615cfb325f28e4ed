"""Tensors written to safetensors files one at a time.

The shapes are known before the tensors are made, so that a file is written from its header on, and
never more than one of its tensors is held.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from setpoint.model.pretrained.pieces import Shape
from setpoint.model.pretrained.read_tensor import DTYPES
from setpoint.model.pretrained.tensor_files import INDEX, SINGLE

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Planned(NamedTuple):
    """A tensor that is to be written."""

    name: str
    shape: Shape
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_tensors(
    directory: Path,
    planned: Sequence[Planned],
    make: Callable[[str], Tensor],
    max_shard_size: int,
) -> list[Path]:
    """Write tensors as one file, or as several with an index.

    Arguments:
        make: gives a tensor by its name, of the shape and type that were planned.
        max_shard_size: bytes that no file's tensors exceed, but for one that alone is larger.

    Raises:
        OSError: if they cannot be written.
    """
    shards = list(_shards(planned, max_shard_size))
    if len(shards) == 1:
        _write_file(directory / SINGLE, shards[0], make)
        return [directory / SINGLE]
    files: list[Path] = []
    names: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = directory / f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_file(file, shard, make)
        files.append(file)
        names.update((tensor.name, file.name) for tensor in shard)
    total = sum(tensor.size for tensor in planned)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return [*files, directory / INDEX]


def _shards(planned: Sequence[Planned], most: int) -> Iterator[list[Planned]]:
    shard: list[Planned] = []
    size = 0
    for tensor in planned:
        if shard and size + tensor.size > most:
            yield shard
            shard, size = [], 0
        shard.append(tensor)
        size += tensor.size
    yield shard


def _write_file(path: Path, shard: Sequence[Planned], make: Callable[[str], Tensor]) -> None:
    with path.open("wb") as file:
        file.write(_header(shard))
        for planned in shard:
            tensor = make(planned.name).detach().to("cpu", planned.dtype).contiguous()
            assert tuple(tensor.shape) == planned.shape
            if tensor.numel():
                file.write(tensor.view(-1).view(torch.uint8).numpy().data)


def _header(shard: Sequence[Planned]) -> bytes:
    # transformers asks for the format, which says that matrices lie as torch has them.
    header: Mapping[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    entries: dict[str, object] = {}
    for tensor in shard:
        entries[tensor.name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.size],
        }
        offset += tensor.size
    text = json.dumps({**header, **entries}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
