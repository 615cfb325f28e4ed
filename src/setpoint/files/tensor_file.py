"""Named tensors as one safetensors file.

Writer and reader are our own: the pieces of a file can be copies, which are written later, a full
disk is an `OSError`, and what is read is the very memory that was compared with its checksum.
Format: https://github.com/huggingface/safetensors (8 bytes of header length, JSON header, data).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from setpoint.config import SetpointError

DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The dtypes that can be saved, by the names of the format."""

_OF_NAME = {name: dtype for dtype, name in DTYPES.items()}


def dtype_named(name: str) -> torch.dtype:
    """The dtype that the format has a name for."""
    return _OF_NAME[name]


Copies = Callable[[Tensor], memoryview]
"""Takes a tensor and gives the memory of its copy."""


def encode_tensors(
    tensors: Mapping[str, Tensor], into: Copies | None = None
) -> Iterable[bytes | memoryview]:
    """A safetensors file in pieces.

    Tensors that are the same memory seen in the same way (tied weights) are written once; the other
    names stand in the header and are tied again by `decode_tensors`. Tensors that merely overlap
    are written each for itself.

    Arguments:
        tensors: name to tensor of any shape (0-dim and empty ones too), stride and device.
        into: copies each tensor to memory that is read later. Without, one that lies in
            host memory as it is written is given as it is, and others are copied when their piece
            is asked for.

    Returns:
        the header, then the tensors' bytes one by one.

    Raises:
        SetpointError: if a tensor has no bytes to save (meta, sparse) or a type without a name.
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
    """A safetensors file in pieces, of tensors that are read when their piece is asked for.

    Arguments:
        tensors: have the dtypes and shapes.
        aliases: further names of some of them.
        read: gives one, on the CPU.
    """
    start, order = _header(tensors, list(tensors), aliases)
    written = (name for name in order if prod(tensors[name].shape))
    return chain([start], (bytes_of(read(name).contiguous()) for name in written))


def _header(
    tensors: Mapping[str, Any], names: Sequence[str], aliases: Mapping[str, str]
) -> tuple[bytes, list[str]]:
    """The beginning of a file, and the order of the tensors in it."""
    # Wide types first keeps every tensor aligned to its own element size.
    order = sorted(names, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, object] = {"__metadata__": {"format": "pt", "aliases": json.dumps(aliases)}}
    offset = 0
    for name in order:
        dtype, shape = tensors[name].dtype, tensors[name].shape
        end = offset + prod(shape) * dtype.itemsize
        header[name] = {
            "dtype": DTYPES[dtype],
            "shape": list(shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, order


class HeaderEntry(NamedTuple):
    """A tensor in a file: `start` and `end` are its bytes there."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


def decode_header(text: bytes) -> tuple[dict[str, HeaderEntry], dict[str, str]]:
    """Read the beginning of a safetensors file.

    Arguments:
        text: the JSON of the header.

    Returns:
        what the file holds, in its order; and further names of some of it.

    Raises:
        ValueError: if a tensor has more or fewer bytes than its shape needs.
    """
    header = json.loads(text)
    metadata = header.pop("__metadata__", {})
    begin, entries = 8 + len(text), dict[str, HeaderEntry]()
    for name, entry in header.items():
        start, end = (begin + offset for offset in entry["data_offsets"])
        entries[name] = HeaderEntry(_OF_NAME[entry["dtype"]], tuple(entry["shape"]), start, end)
        if end - start != prod(entries[name].shape) * entries[name].dtype.itemsize:
            raise ValueError(f"{name} has {end - start} bytes")
    return entries, json.loads(metadata.get("aliases", "{}"))


def decode_tensors(content: bytearray | memoryview) -> dict[str, Tensor]:
    """Read what `encode_tensors` (or any other safetensors writer) made.

    The content must have been verified: it is not checked here.

    Returns:
        views of the content, in the order of the file; they need not be aligned as torch's own are.
    """
    begin = 8 + int.from_bytes(content[:8], "little")
    stored, aliases = decode_header(bytes(content[8:begin]))
    tensors: dict[str, Tensor] = {}
    for name, (dtype, shape, start, end) in stored.items():
        flat = (
            torch.frombuffer(content, dtype=torch.uint8, count=end - start, offset=start)
            if end > start
            else torch.empty(0, dtype=torch.uint8)
        )
        tensors[name] = flat.view(dtype).reshape(shape)
    for name, owner in aliases.items():
        tensors[name] = tensors[owner]
    return tensors


def _refuse_unsavable(name: str, tensor: Tensor) -> None:
    if tensor.is_meta or tensor.layout != torch.strided:
        kind = "is on the meta device" if tensor.is_meta else f"is {tensor.layout}"
        raise SetpointError(f"tensor {name} {kind} and cannot be saved; only dense tensors can")
    if tensor.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise SetpointError(f"tensor {name} has the type {tensor.dtype}; these are saved: {known}")


def _memory(tensor: Tensor, name: str) -> tuple[object, ...]:
    """A key that two tensors share if and only if they are one."""
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
    """True if a tensor lies in host memory as it is written."""
    is_lazy = tensor.is_conj() or tensor.is_neg()
    is_on_host = type(tensor) is Tensor and tensor.device.type == "cpu"
    return is_on_host and tensor.is_contiguous() and not is_lazy
