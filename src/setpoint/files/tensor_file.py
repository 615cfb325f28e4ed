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
from threading import Lock
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from setpoint.config import SetpointError
from setpoint.shapes.placed import part_here

from .durable import CHUNK
from .threads import in_threads

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
"""What can be saved, by the names of the format."""

_OF_NAME = {name: dtype for dtype, name in DTYPES.items()}


def dtype_named(name: str) -> torch.dtype:
    """The dtype that the format has a name for."""
    return _OF_NAME[name]


class Shaped(Protocol):
    """What a file says of a tensor before its values."""

    @property
    def dtype(self) -> torch.dtype:
        """The format of its numbers."""
        ...

    @property
    def shape(self) -> Sequence[int]:
        """Its sizes."""
        ...


_Copy = tuple[memoryview, memoryview]
"""Where to, and from where."""


class HostMemory:
    """Host memory that tensors are copied to, save after save to the same places.

    Arguments:
        pinned: whether it is page-locked, which copies from a GPU faster.
    """

    def __init__(self, pinned: bool = False) -> None:
        self.pinned = pinned
        self._held: list[tuple[Tensor, memoryview]] = []
        self._used = 0
        self._still: frozenset[int] = frozenset()
        self._due: list[_Copy] = []
        # What is copied until `settle`: by threads of the host, and by a stream of the GPU.
        self._later: list[_Copy] = []
        self._settling = Lock()
        self._stream: torch.cuda.Stream | None = None
        self._sources: list[Tensor] = []

    def clear(self, still: Iterable[Tensor] = ()) -> None:
        """Let the next copies take the place of what is there.

        Arguments:
            still: those that nothing changes before `settle`, with whatever shares their memory.
        """
        self._used = 0
        self._still = frozenset(_storage(part_here(each)) for each in still) - {0}

    def copy(self, tensor: Tensor) -> memoryview:
        """A copy, contiguous, to be read after `wait` and `settle` only."""
        size = tensor.numel() * tensor.element_size()
        if self._used == len(self._held) or len(self._held[self._used][1]) != size:
            # What is saved changes rarely: the checkpoint of weights alone at the end.
            del self._held[self._used :]
            made = torch.empty(size, dtype=torch.uint8, pin_memory=self.pinned)
            self._held.append((made, bytes_of(made)))
        place, content = self._held[self._used]
        self._used += 1
        is_still = type(tensor) is Tensor and _storage(tensor) in self._still
        if _is_plain(tensor):
            source, due = bytes_of(tensor), self._later if is_still else self._due
            for start in range(0, size, CHUNK):
                due.append((content[start : start + CHUNK], source[start : start + CHUNK]))
            return content
        into = place.view(tensor.dtype).view(tensor.shape)
        if is_still and self.pinned and tensor.is_cuda:
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
        """Wait until all copies are there but those of what stays still."""
        due, self._due = self._due, []
        _copy_all(due)
        if self.pinned:
            torch.cuda.current_stream().synchronize()

    def settle(self) -> None:
        """Wait until all copies are there; any thread may call it.

        Copies that no thread has begun are made by this one. If that fails, or Ctrl-C cuts it off,
        the next call makes them all again.
        """
        with self._settling:
            _copy_all(self._later)
            self._later = []
            if self._sources and self._stream is not None:
                self._stream.synchronize()
                self._sources = []


def _copy_all(due: Sequence[_Copy]) -> None:
    def copy(number: int) -> None:
        # Without the lock of the interpreter; torch's own threads would meet after each tensor.
        into, source = (np.frombuffer(each, np.uint8) for each in due[number])
        np.copyto(into, source)

    in_threads(copy, len(due))


def _storage(tensor: Tensor) -> int:
    """Where the memory begins that a tensor is a view of; 0 if it is empty."""
    return tensor.untyped_storage().data_ptr()


def encode_tensors(
    tensors: Mapping[str, Tensor], into: HostMemory | None = None
) -> Iterable[bytes | memoryview]:
    """A safetensors file in pieces.

    Tensors that are the same memory seen in the same way (tied weights) are written once; the other
    names stand in the header and are tied again by `decode_tensors`. Tensors that merely overlap
    are written each for itself.

    Arguments:
        tensors: name to tensor of any shape (0-dim and empty ones too), stride and device.
        into: what all tensors are copied to, see `HostMemory`. Without, one that lies in
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
        return chain([start], (bytes_of(_in_host_memory(each)) for each in written))
    return [start, *(into.copy(each) for each in written)]


def encode_one_by_one(
    tensors: Mapping[str, Shaped], aliases: Mapping[str, str], read: Callable[[str], Tensor]
) -> Iterable[bytes | memoryview]:
    """A safetensors file in pieces, of tensors that are read when their piece is asked for.

    Arguments:
        tensors: what is known of them before.
        aliases: further names of some of them.
        read: gives one, on the CPU.
    """
    start, order = _header(tensors, list(tensors), aliases)
    written = (name for name in order if prod(tensors[name].shape))
    return chain([start], (bytes_of(read(name).contiguous()) for name in written))


def _header(
    tensors: Mapping[str, Shaped], names: Sequence[str], aliases: Mapping[str, str]
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


class Stored(NamedTuple):
    """Where a file holds a tensor: `start` and `end` are its bytes in the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


def decode_header(text: bytes) -> tuple[dict[str, Stored], dict[str, str]]:
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
    begin, found = 8 + len(text), dict[str, Stored]()
    for name, entry in header.items():
        start, end = (begin + offset for offset in entry["data_offsets"])
        found[name] = Stored(_OF_NAME[entry["dtype"]], tuple(entry["shape"]), start, end)
        if end - start != prod(found[name].shape) * found[name].dtype.itemsize:
            raise ValueError(f"{name} has {end - start} bytes")
    return found, json.loads(metadata.get("aliases", "{}"))


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
    """What two tensors have in common if and only if they are one."""
    if not tensor.numel():
        return (name,)
    view = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.is_conj(), tensor.is_neg())
    return (tensor.device, tensor.data_ptr(), *view)


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _in_host_memory(tensor: Tensor) -> Tensor:
    if _is_plain(tensor):
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor)


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor lies in host memory as it is written."""
    is_lazy = tensor.is_conj() or tensor.is_neg()
    here = type(tensor) is Tensor and tensor.device.type == "cpu"
    return here and tensor.is_contiguous() and not is_lazy
