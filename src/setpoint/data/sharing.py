"""Data that processes hold in common where they are not forks of one another."""

from __future__ import annotations

import io
import mmap
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.multiprocessing  # teaches ForkingPickler tensors

T = TypeVar("T")

LARGE = 1 << 16
"""Bytes of an array above which it is not copied."""


class Shared(Generic[T]):
    """A value whose large arrays are in one place for all processes that it is sent to.

    Forks see the memory of their parent anyway. To others, arrays of mapped files are sent as the
    place in the file, and those in memory are copied once, into shared memory.
    """

    def __init__(self, value: T) -> None:
        self.value = value
        self._copies: dict[int, tuple[npt.NDArray[Any], torch.Tensor]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        buffer = io.BytesIO()
        _Pickler(buffer, self._copies).dump(self.value)
        return _opened, (buffer.getvalue(),)


def _opened(data: bytes) -> Shared[Any]:
    return Shared(pickle.loads(data))


class _Pickler(ForkingPickler):
    def __init__(
        self, file: io.BytesIO, copies: dict[int, tuple[npt.NDArray[Any], torch.Tensor]]
    ) -> None:
        super().__init__(file)
        self.copies = copies

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.nbytes < LARGE or value.dtype.hasobject:
            return NotImplemented
        array = cast("npt.NDArray[Any]", value)
        return _in_file(array) or self._in_memory(array)

    def _in_memory(self, array: npt.NDArray[Any]) -> tuple[Any, ...]:
        if id(array) not in self.copies:
            copy = torch.empty(array.nbytes, dtype=torch.uint8).share_memory_()
            copy.numpy()[:] = np.frombuffer(np.ascontiguousarray(array).data, np.uint8)
            self.copies[id(array)] = array, copy
        return _of_memory, (self.copies[id(array)][1], array.dtype.str, array.shape)


def _in_file(array: npt.NDArray[Any]) -> tuple[Any, ...] | None:
    """How to map the part of a file that an array is, if it is one."""
    owner: Any = array
    mapped: Any = None
    while isinstance(owner, np.ndarray):
        mapped = owner if isinstance(owner, np.memmap) else mapped
        owner = cast(Any, owner).base
    if mapped is None or not isinstance(owner, mmap.mmap) or mapped.filename is None:
        return None
    if mapped.mode != "r" or not array.flags.c_contiguous:
        return None
    start = mapped.offset - mapped.offset % mmap.ALLOCATIONGRANULARITY
    first = np.frombuffer(owner, np.uint8).ctypes.data
    offset = start + array.ctypes.data - first
    return _of_file, (str(mapped.filename), array.dtype.str, array.shape, offset)


def _of_file(path: str, kind: str, shape: tuple[int, ...], offset: int) -> npt.NDArray[Any]:
    return np.asarray(np.memmap(path, kind, "r", offset, shape))


def _of_memory(data: torch.Tensor, kind: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    return data.numpy().view(kind).reshape(shape)
