"""Tensors in safetensors files, written in pieces and read from an offset into memory.

The library safetensors memory-maps files. The mapping counts as memory of the process (640 MiB for
a file of 512 MiB, compared with 64 MiB here), and a truncated file or a failing disk kills the
process with SIGBUS. It also needs all tensors of a file in memory to write it. It is therefore used
only as a reference in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from setpoint.config import SetpointError

from .atomic import CHUNK, fill
from .tensor_header import TORCH_NAMES, TensorInfo, encode_header, read_header

DTYPES: dict[torch.dtype, str] = {
    getattr(torch, in_torch): name for name, in_torch in TORCH_NAMES.items()
}
"""Storable dtypes, with their names in the format."""

ROW = 4096
"""Minimum bytes for reading part of a row separately: a memory page."""

_DTYPES_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}

Copies = Callable[[Tensor], memoryview]
"""Copies a tensor and returns the memory of the copy."""


def dtype_named(name: str) -> torch.dtype:
    """The dtype with a name of the format.

    Raises:
        KeyError: torch has no such dtype.
    """
    return _DTYPES_BY_NAME[name]


def encode_tensors(
    tensors: Mapping[str, Tensor], into: Copies | None = None
) -> Iterable[bytes | memoryview]:
    """A safetensors file in pieces.

    Identical views of the same memory (tied weights) are written once; the header lists the other
    names, and `read_tensors` ties the tensors again. Tensors that only overlap are written
    separately.

    Arguments:
        tensors: tensors by name, of any shape (including 0-dim and empty), stride and device.
        into: copies each tensor to memory that is read later. Without it, a tensor in host memory
            that already has the file's layout is yielded directly, and others are copied when their
            piece is requested.

    Returns:
        the header, then the bytes of the tensors one by one.

    Raises:
        SetpointError: a tensor has no bytes to save (meta, sparse) or a dtype without a name.
    """
    aliases: dict[str, str] = {}
    owners: dict[tuple[object, ...], str] = {}
    kept: list[str] = []
    for name, tensor in tensors.items():
        _refuse_unsavable(name, tensor)
        owner = owners.setdefault(_memory(tensor, name), name)
        if owner == name:
            kept.append(name)
        else:
            aliases[name] = owner
    start, kept = _header(tensors, kept, aliases)
    written = (tensors[name].detach() for name in kept if tensors[name].numel())
    if into is None:
        return chain([start], (bytes_of(_in_host_memory(tensor)) for tensor in written))
    return [start, *(into(tensor) for tensor in written)]


def encode_one_by_one(
    tensors: Mapping[str, Any], aliases: Mapping[str, str], read: Callable[[str], Tensor]
) -> Iterable[bytes | memoryview]:
    """A safetensors file in pieces, for tensors that are read lazily.

    Arguments:
        tensors: objects with dtypes and shapes, by name.
        aliases: further names of some of them.
        read: returns a tensor on the CPU.
    """
    start, order = _header(tensors, list(tensors), aliases)
    written = (name for name in order if prod(tensors[name].shape))
    return chain([start], (bytes_of(read(name).contiguous()) for name in written))


def _header(
    tensors: Mapping[str, Any], names: Sequence[str], aliases: Mapping[str, str]
) -> tuple[bytes, list[str]]:
    """The header of a file, and the order of its tensors."""
    # Writing wide dtypes first keeps every tensor aligned to its element size.
    order = sorted(names, key=lambda name: (-tensors[name].dtype.itemsize, name))
    entries = ((n, DTYPES[tensors[n].dtype], tuple(tensors[n].shape)) for n in order)
    return encode_header(entries, aliases), order


def read_box(descriptor: int, info: TensorInfo, box: Sequence[slice], into: Tensor) -> None:
    """Read a box of a tensor from a file.

    Arguments:
        descriptor: the descriptor of the open file.
        box: a slice for each dimension, with its bounds.
        into: a tensor with the shape of the box, in host memory; may be a view.

    Raises:
        OSError: the file cannot be read; `ENODATA` if it was truncated.
    """
    if not into.numel():
        return
    dtype, shape = dtype_named(info.dtype), info.shape
    row = prod(shape[1:]) * dtype.itemsize
    first, end = (box[0].start, box[0].stop) if box else (0, 1)
    is_rows = all(s == slice(0, n) for s, n in zip(box[1:], shape[1:], strict=True))
    if is_rows and into.is_contiguous() and into.dtype == dtype:
        fill(descriptor, bytes_of(into), info.start + first * row)
        return
    if len(box) == 2 and (box[1].stop - box[1].start) * dtype.itemsize >= ROW:
        step, columns = 1, box[1]
    else:
        step, columns = max(CHUNK // row, 1), None
    for start in range(first, end, step):
        stop = min(start + step, end)
        offset = info.start + start * row
        if columns is None:
            block = torch.empty((stop - start, *shape[1:]), dtype=dtype)
        else:
            block = torch.empty((1, columns.stop - columns.start), dtype=dtype)
            offset += columns.start * dtype.itemsize
        fill(descriptor, bytes_of(block), offset)
        columns_of_box = (slice(None), *box[1:]) if columns is None else ...
        into[start - first : stop - first].copy_(block[columns_of_box])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a whole safetensors file from any writer; tied tensors are tied again.

    Raises:
        DamagedFile: the file is incomplete.
        SetpointError, OSError: the file cannot be read.
    """
    infos = read_header(path, tied=True)
    tensors = {
        info: torch.empty(info.shape, dtype=dtype_named(info.dtype)) for info in infos.values()
    }
    with path.open("rb") as file:
        for info, tensor in tensors.items():
            read_box(file.fileno(), info, [slice(0, size) for size in info.shape], tensor)
    return {name: tensors[info] for name, info in infos.items()}


def _refuse_unsavable(name: str, tensor: Tensor) -> None:
    if tensor.is_meta or tensor.layout != torch.strided:
        kind = "is on the meta device" if tensor.is_meta else f"is {tensor.layout}"
        raise SetpointError(f"tensor {name} {kind} and cannot be saved; only dense tensors can")
    if tensor.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise SetpointError(
            f"tensor {name} has the type {tensor.dtype}, which cannot be saved; supported: {known}"
        )


def _memory(tensor: Tensor, name: str) -> tuple[object, ...]:
    """A key that is equal only for identical views of the same memory."""
    if not tensor.numel():
        return (name,)
    view = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.is_conj(), tensor.is_neg())
    return (tensor.device, tensor.data_ptr(), *view)


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _in_host_memory(tensor: Tensor) -> Tensor:
    if is_plain(tensor):
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor)


def is_plain(tensor: Tensor) -> bool:
    """True if a tensor can be written from host memory without a copy."""
    is_lazy = tensor.is_conj() or tensor.is_neg()
    is_on_host = type(tensor) is Tensor and tensor.device.type == "cpu"
    return is_on_host and tensor.is_contiguous() and not is_lazy
