"""Safetensors files of a directory, single or sharded with an index: listing and writing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from setpoint.config import RunError, SetpointError
from setpoint.files.tensor_header import Shape, TensorInfo, encode_header, read_header

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SINGLE: Final = "model.safetensors"
"""Name of a single file."""

INDEX: Final = "model.safetensors.index.json"
"""Index of several files."""

_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth")
_SHOWN = 3


def list_tensors(directory: Path) -> dict[str, TensorInfo]:
    """List all tensors of a directory; their data is not read.

    Arguments:
        directory: with `model.safetensors`, or an index and its files.

    Raises:
        SetpointError: if there are no readable ones, a file of the index is missing, or its tensors
            differ from the index.
        DamagedFile: if a file is truncated.
    """
    if (directory / SINGLE).is_file():
        return read_header(directory / SINGLE)
    if (directory / INDEX).is_file():
        return _list_shards(directory)
    pickles = [name for name in _PICKLES if (directory / name).is_file()]
    if pickles:
        raise SetpointError(
            f"{directory} has its weights in {pickles[0]}, a pickle, which is not read because it "
            f"can run any code. If you trust it, convert it to safetensors: "
            f"transformers.AutoModelForCausalLM.from_pretrained({str(directory)!r})"
            f".save_pretrained(...)"
        )
    others = sorted(path.name for path in directory.glob("*.safetensors"))
    beside = f"; it has {', '.join(others[:_SHOWN])}" if others else ""
    raise SetpointError(f"{directory} has no weights: neither {SINGLE} nor {INDEX}{beside}")


def _list_shards(directory: Path) -> dict[str, TensorInfo]:
    index = directory / INDEX
    try:
        content: Any = json.loads(index.read_bytes())
        shards = {str(k): str(v) for k, v in cast(dict[str, Any], content["weight_map"]).items()}
    except OSError as error:
        raise SetpointError(f"{index} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError(f"{index} is damaged: it has no valid weight_map") from error
    tensors: dict[str, list[str]] = {}
    for tensor, name in shards.items():
        tensors.setdefault(name, []).append(tensor)
    names = list(tensors)
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise RunError(f"{index} refers to {outside[0]!r}, which is not in its directory")
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise SetpointError(
            f"{directory} lacks {len(missing)} of the {len(names)} files of {INDEX}: "
            f"{listed(missing)}. Copy or download them."
        )
    found: dict[str, TensorInfo] = {}
    for name in names:
        held = read_header(directory / name)
        absent = [tensor for tensor in tensors[name] if tensor not in held]
        if absent:
            raise RunError(
                f"{directory / name} lacks {len(absent)} tensors that {INDEX} assigns to it: "
                f"{listed(absent)}"
            )
        # A tensor that the index does not name is reported as one too many, like any other.
        found.update(held)
    return found


def listed(words: list[str], shown: int = _SHOWN) -> str:
    """The first of some words, and the number of the others.

    Returns:
        for instance `a, b, c and 5 more`.
    """
    more = f" and {len(words) - shown} more" if len(words) > shown else ""
    return ", ".join(words[:shown]) + more


class Planned(NamedTuple):
    """A tensor to write."""

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
    """Write tensors to one file, or to several with an index; one tensor is in memory at a time.

    Arguments:
        make: returns a tensor by its name, in the planned shape and dtype.
        max_shard_size: maximum bytes of the tensors of a file, unless one alone is larger.

    Raises:
        OSError: if they cannot be written.
    """
    from setpoint.files.tensor_file import DTYPES, bytes_of

    shards = list(_shards(planned, max_shard_size))
    files: list[Path] = []
    names: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        files.append(directory / (SINGLE if len(shards) == 1 else name))
        names.update((tensor.name, name) for tensor in shard)
        with files[-1].open("wb") as file:
            file.write(encode_header((name, DTYPES[dtype], shape) for name, shape, dtype in shard))
            for one in shard:
                tensor = make(one.name).detach().to("cpu", one.dtype).contiguous()
                assert tuple(tensor.shape) == one.shape
                file.write(bytes_of(tensor))
    if len(shards) == 1:
        return files
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
