"""Reading of safetensors tensors one at a time, with dequantization.

Loading takes the memory of the model and of one tensor.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from setpoint.config import SetpointError
from setpoint.files import tensor_file
from setpoint.files.tensor_file import dtype_named, read_box
from setpoint.files.tensor_header import FLOATS, TORCH_NAMES, DamagedFile, TensorInfo
from setpoint.model.pretrained.dequantize import dequantize
from setpoint.shapes.peers import OneReader
from setpoint.units.dtype import DType

Rows = tuple[int, int] | None


def weight_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Dtype of weights.

    Arguments:
        dtype: a torch dtype, or a name such as `"bf16"`; None: as in the files.

    Raises:
        SetpointError: if there is no such dtype, or weights cannot have it.
    """
    if dtype is None:
        return None
    wanted = DType.read(dtype).torch()
    if wanted not in map(dtype_named, FLOATS):
        known = ", ".join(TORCH_NAMES[name] for name in FLOATS)
        raise SetpointError(f"dtype = {dtype}: weights cannot be of it. Valid: {known}")
    return wanted


class TensorReader:
    """Reads tensors by position; a context manager that closes the files.

    The last tensor is cached, since several weights of a model may be parts of it.
    """

    by_rows = True
    """True if it can read some rows of a tensor."""

    def __init__(self) -> None:
        self._files: dict[Path, int] = {}
        self._last: tuple[TensorInfo, Rows, Tensor] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._last = None
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def read(self, info: TensorInfo, rows: Rows = None) -> Tensor:
        """Read one tensor.

        Arguments:
            rows: first row and end; None: all.

        Raises:
            DamagedFile: if the file was truncated after its header was read.
            SetpointError: if it cannot be read.
        """
        if self._last is not None and self._last[:2] == (info, rows):
            return self._last[2]
        self._last = None  # its memory is free before the next one's is taken
        tensor = self._read(info, rows)
        self._last = (info, rows, tensor)
        return tensor

    def read_box(self, info: TensorInfo, ranges: Sequence[tuple[int, int]]) -> Tensor:
        """Read a box of a tensor; of a matrix, little more than its bytes.

        Arguments:
            ranges: first index and end in each dimension.

        Raises: as `read` does.
        """
        box = [slice(start, end) for start, end in ranges]
        is_all = box == [slice(0, size) for size in info.shape]
        if len(box) == 2 and box[1] != slice(0, info.shape[1]) and info.encoding is None:
            columns = box[1].stop - box[1].start
            if columns * dtype_named(info.dtype).itemsize >= tensor_file.ROW:
                return self._box(info, box)
        return self.read(info, None if is_all else ranges[0])[(slice(None), *box[1:])]

    def _read(self, info: TensorInfo, rows: Rows) -> Tensor:
        if info.encoding is not None:
            dtype = dtype_named(info.dtype)
            return dequantize(info.encoding, info.shape, rows, dtype, self._stored)
        return self._stored(info, rows)

    def part(self, info: TensorInfo) -> Tensor:
        """Read a whole tensor as stored."""
        return self._stored(info, None)

    def _stored(self, info: TensorInfo, rows: Rows) -> Tensor:
        box = [slice(0, size) for size in info.shape]
        if rows is not None:
            box[0] = slice(*rows)
        return self._box(info, box)

    def _box(self, info: TensorInfo, box: Sequence[slice]) -> Tensor:
        """Read a box of a tensor as stored."""
        tensor = torch.empty([one.stop - one.start for one in box], dtype=dtype_named(info.dtype))
        try:
            if info.file not in self._files:
                self._files[info.file] = os.open(info.file, os.O_RDONLY | os.O_CLOEXEC)
            read_box(self._files[info.file], info, box, tensor)
        except OSError as error:
            if error.errno == errno.ENODATA:
                raise DamagedFile(info.file, "it was cut short while it was read") from error
            raise SetpointError(f"{info.file} cannot be read: {error.strerror}") from error
        return tensor


class SharedReader(TensorReader):
    """Reads whole tensors on one rank, and sends them to the others."""

    by_rows = False

    def __init__(self, one: OneReader) -> None:
        super().__init__()
        self.one = one

    def read_box(self, info: TensorInfo, ranges: Sequence[tuple[int, int]]) -> Tensor:
        """See `TensorReader.read_box`; a tensor is sent once for consecutive boxes."""
        return self.read(info)[tuple(slice(start, end) for start, end in ranges)]

    def part(self, info: TensorInfo) -> Tensor:
        """See `TensorReader.part`; sent as bytes."""
        read = super().part
        size, dtype = (info.size,), dtype_named(info.dtype)
        sent = self.one.tensor(lambda: read(info).view(-1).view(torch.uint8), size, torch.uint8)
        return sent.view(dtype).view(info.shape)

    def _read(self, info: TensorInfo, rows: Rows) -> Tensor:
        assert rows is None
        read = super()._read
        return self.one.tensor(lambda: read(info, None), info.shape, dtype_named(info.dtype))


class Unread:
    """A tensor that is read when it is indexed, like the slices of the safetensors library.

    Those map the file into memory: if it is truncated or its disk fails, SIGBUS kills the process,
    even later, since tensors stay mapped. Several threads may read at once.

    Arguments:
        failed: collects errors, which the caller may report in its own words.
        reads: read the values; otherwise indexing gives a tensor on the meta device.

    Raises:
        SetpointError: at once, if torch has no such dtype.
    """

    def __init__(self, info: TensorInfo, failed: list[SetpointError], reads: bool = True) -> None:
        try:
            self.dtype = dtype_named(info.dtype)
        except KeyError:
            raise SetpointError(
                f"{info.file} cannot be read: it has numbers of the format {info.dtype}"
            ) from None
        self.info, self.failed, self.reads = info, failed, reads

    def get_dtype(self) -> str:
        """Name of the dtype in the file."""
        return self.info.dtype

    def get_shape(self) -> list[int]:
        """Shape as a list."""
        return list(self.info.shape)

    def __getitem__(self, index: Any) -> Tensor:
        """Read the whole tensor into memory.

        Raises: as `TensorReader.read` does.
        """
        if not self.reads:
            return torch.empty(self.info.shape, dtype=self.dtype, device="meta")[index]
        try:
            with TensorReader() as reader:
                return reader.read(self.info)[index]
        except SetpointError as error:
            self.failed.append(error)
            raise
