"""The safetensors files of a directory: one, or several with an index; listed and written."""

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
"""The file that holds all tensors."""

INDEX: Final = "model.safetensors.index.json"
"""The file that says which of several files holds which tensor."""

_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth")
_SHOWN = 3


def list_tensors(directory: Path) -> dict[str, TensorInfo]:
    """Find all tensors of a directory; their data is not read.

    Arguments:
        directory: with `model.safetensors`, or an index and its files.

    Raises:
        SetpointError: if there are none that can be read, a file that the index names is missing,
            or holds other tensors than the index says.
        DamagedFile: if a file is not whole.
    """
    if (directory / SINGLE).is_file():
        return read_header(directory / SINGLE)
    if (directory / INDEX).is_file():
        return _list_shards(directory)
    pickles = [name for name in _PICKLES if (directory / name).is_file()]
    if pickles:
        raise SetpointError(
            f"{directory} holds its weights as {pickles[0]}, a pickle, which can run any program "
            f"when it is opened, so that it is not. Write it as safetensors where you trust it: "
            f"transformers.AutoModelForCausalLM.from_pretrained({str(directory)!r})"
            f".save_pretrained(...)"
        )
    others = sorted(path.name for path in directory.glob("*.safetensors"))
    beside = f"; it holds {', '.join(others[:_SHOWN])}" if others else ""
    raise SetpointError(f"{directory} holds no weights: neither {SINGLE} nor {INDEX}{beside}")


def _list_shards(directory: Path) -> dict[str, TensorInfo]:
    index = directory / INDEX
    try:
        content: Any = json.loads(index.read_bytes())
        shards = {str(k): str(v) for k, v in cast(dict[str, Any], content["weight_map"]).items()}
    except OSError as error:
        raise SetpointError(f"{index} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError(f"{index} is damaged: it has no weight_map of names to files") from error
    tensors: dict[str, list[str]] = {}
    for tensor, name in shards.items():
        tensors.setdefault(name, []).append(tensor)
    names = list(tensors)
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise RunError(f"{index} names {outside[0]!r}, which is no file beside it")
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise SetpointError(
            f"{directory} lacks {len(missing)} of the {len(names)} files that {INDEX} names: "
            f"{listed(missing)}. Copy or download the rest."
        )
    found: dict[str, TensorInfo] = {}
    for name in names:
        held = read_header(directory / name)
        absent = [tensor for tensor in tensors[name] if tensor not in held]
        if absent:
            raise RunError(
                f"{directory / name} lacks {len(absent)} tensors that {INDEX} says it holds: "
                f"{listed(absent)}"
            )
        # A tensor that the index does not name is reported as one too many, like any other.
        found.update(held)
    return found


def listed(words: list[str], shown: int = _SHOWN) -> str:
    """The first of some words, and how many more there are.

    Returns:
        for instance `a, b, c and 5 more`.
    """
    more = f" and {len(words) - shown} more" if len(words) > shown else ""
    return ", ".join(words[:shown]) + more


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
    """Write tensors as one file, or as several with an index; one tensor is in memory at a time.

    Arguments:
        make: returns a tensor by its name, of the shape and dtype that were planned.
        max_shard_size: bytes that no file's tensors exceed, but for one that alone is larger.

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
