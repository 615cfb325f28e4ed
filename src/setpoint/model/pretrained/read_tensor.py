"""Tensors read from safetensors files one at a time.

The bytes go straight into the tensor: nothing is mapped and nothing is held twice, so that loading
takes the memory of the model and of one tensor.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final, Self

import torch
from torch import Tensor

from setpoint.config import SetpointError
from setpoint.model.pretrained.header import DamagedFile, TensorInfo
from setpoint.shapes.reading import OneReader
from setpoint.units.dtype import DType

Rows = tuple[int, int] | None

WORTH_IT: Final = 4096
"""Bytes of a row from which on its part is read by itself: a page of the cache."""

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""What weights may be, by the names of the format."""


STORED = {**DTYPES, "U8": torch.uint8, "I8": torch.int8}
"""What parts of quantized weights may be besides."""


def weight_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """A number format for weights.

    Arguments:
        dtype: torch's object, or a name such as `"bf16"`; None: whatever there is.

    Raises:
        SetpointError: if there is no such format, or weights cannot be of it.
    """
    if dtype is None:
        return None
    found = DType.read(dtype).torch()
    if found not in DTYPES.values():
        known = ", ".join(str(each).removeprefix("torch.") for each in DTYPES.values())
        raise SetpointError(f"dtype = {dtype}: weights cannot be of it. Valid: {known}")
    return found


class TensorReader:
    """Reads tensors whose places are known; a context manager that closes the files.

    The tensor read last is kept, since several of ours may be parts of it.
    """

    by_rows = True
    """Whether it reads some rows of a tensor without the others."""

    def __init__(self) -> None:
        self._files: dict[Path, BinaryIO] = {}
        self._last: tuple[TensorInfo, Rows, Tensor] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._last = None
        for file in self._files.values():
            file.close()

    def read(self, info: TensorInfo, rows: Rows = None) -> Tensor:
        """Read one tensor.

        Arguments:
            rows: the first of them, and the one after the last; None: all.

        Raises:
            DamagedFile: if the file has become shorter since its header was read.
            SetpointError: if it cannot be read.
        """
        if self._last is not None and self._last[:2] == (info, rows):
            return self._last[2]
        self._last = None  # its memory is free before the next one's is taken
        tensor = self._read(info, rows)
        self._last = (info, rows, tensor)
        return tensor

    def read_box(self, info: TensorInfo, ranges: Sequence[tuple[int, int]]) -> Tensor:
        """Read a box of a tensor: of a matrix not much more than its bytes.

        Arguments:
            ranges: of each dimension, the first index and the one after the last.

        Raises: as `read` does.
        """
        rows = ranges[0]
        whole = all(end - start == n for (start, end), n in zip(ranges, info.shape, strict=True))
        cut = ranges[1] if len(ranges) == 2 else None
        width = 0 if cut is None else (cut[1] - cut[0]) * STORED[info.dtype].itemsize
        if cut is not None and cut[1] - cut[0] < info.shape[1] and width >= WORTH_IT:
            return self._read_columns(info, rows, cut)
        found = self.read(info, None if whole else rows)
        for dim, (start, end) in enumerate(ranges[1:], 1):
            found = found.narrow(dim, start, end - start)
        return found

    def _read_columns(
        self, info: TensorInfo, rows: tuple[int, int], columns: tuple[int, int]
    ) -> Tensor:
        """Read some columns of some rows, each row by itself."""
        dtype = STORED[info.dtype]
        tensor = torch.empty((rows[1] - rows[0], columns[1] - columns[0]), dtype=dtype)
        target = tensor.view(-1).view(torch.uint8).numpy().data
        width, pitch = tensor.shape[1] * dtype.itemsize, info.shape[1] * dtype.itemsize
        start = info.start + rows[0] * pitch + columns[0] * dtype.itemsize
        try:
            file = self._open(info.file).fileno()
            for row in range(tensor.shape[0]):
                here = target[row * width : (row + 1) * width]
                if os.preadv(file, [here], start + row * pitch) != width:
                    raise DamagedFile(info.file, "it was cut short while it was read")
        except OSError as error:
            raise SetpointError(f"{info.file} cannot be read: {error.strerror}") from error
        return tensor

    def _open(self, path: Path) -> BinaryIO:
        if path not in self._files:
            self._files[path] = path.open("rb")
        return self._files[path]

    def _read(self, info: TensorInfo, rows: Rows) -> Tensor:
        first, last = (0, None) if rows is None else rows
        shape = info.shape if last is None else (last - first, *info.shape[1:])
        tensor = torch.empty(shape, dtype=STORED[info.dtype])
        if not tensor.numel():
            return tensor
        start = info.start + first * (info.size // info.shape[0] if first else 0)
        target = tensor.view(-1).view(torch.uint8).numpy().data
        try:
            file = self._open(info.file)
            file.seek(start)
            count = file.readinto(target)  # pyright: ignore[reportAttributeAccessIssue]
        except OSError as error:
            raise SetpointError(f"{info.file} cannot be read: {error.strerror}") from error
        if count != tensor.nbytes:
            raise DamagedFile(info.file, "it was cut short while it was read")
        return tensor


class SharedReader(TensorReader):
    """Tensors that one rank reads whole, and sends to the others."""

    by_rows = False

    def __init__(self, one: OneReader) -> None:
        super().__init__()
        self.one = one

    def read_box(self, info: TensorInfo, ranges: Sequence[tuple[int, int]]) -> Tensor:
        """See `TensorReader.read_box`; a tensor is sent once for boxes that follow each other."""
        return self.read(info)[tuple(slice(start, end) for start, end in ranges)]

    def _read(self, info: TensorInfo, rows: Rows) -> Tensor:
        assert rows is None
        read = super()._read
        return self.one.tensor(lambda: read(info, None), info.shape, STORED[info.dtype])
