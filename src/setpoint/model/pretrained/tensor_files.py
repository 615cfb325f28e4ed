"""The safetensors files of a directory: one, or several with an index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, cast

from setpoint.config import RunError, SetpointError
from setpoint.model.pretrained.header import TensorInfo, read_header

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
