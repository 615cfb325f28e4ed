"""Tensors read from safetensors files one at a time.

The bytes go straight into the tensor: nothing is mapped and nothing is held twice, so that loading
takes the memory of the model and of one tensor.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import torch
from torch import Tensor

from setpoint.config import SetpointError
from setpoint.model.pretrained.dequantize import dequantize
from setpoint.model.pretrained.header import DamagedFile, TensorInfo
from setpoint.shapes.peers import OneReader
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

FORMATS = {
    **STORED,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "BOOL": torch.bool,
}
"""What a file may hold that is read for others, as buffers of transformers are."""


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
        as_it_is = info.encoding is None
        if cut is not None and cut[1] - cut[0] < info.shape[1] and width >= WORTH_IT and as_it_is:
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
        file = self._open(info.file)
        for row in range(tensor.shape[0]):
            _fill(target[row * width : (row + 1) * width], info, file, start + row * pitch)
        return tensor

    def _open(self, path: Path) -> BinaryIO:
        if path not in self._files:
            self._files[path] = _opened(path)
        return self._files[path]

    def _read(self, info: TensorInfo, rows: Rows) -> Tensor:
        if info.encoding is not None:
            dtype = DTYPES[info.dtype]
            return dequantize(info.encoding, info.shape, rows, dtype, self._as_it_is)
        return self._as_it_is(info, rows)

    def part(self, info: TensorInfo) -> Tensor:
        """Read a whole tensor that may be of any format that a file has."""
        return self._as_it_is(info, None)

    def _as_it_is(self, info: TensorInfo, rows: Rows) -> Tensor:
        first, last = (0, None) if rows is None else rows
        shape = info.shape if last is None else (last - first, *info.shape[1:])
        tensor = torch.empty(shape, dtype=FORMATS[info.dtype])
        if not tensor.numel():
            return tensor
        start = info.start + first * (info.size // info.shape[0] if first else 0)
        target = tensor.view(-1).view(torch.uint8).numpy().data
        _fill(target, info, self._open(info.file), start)
        return tensor


class Unread:
    """A tensor that is read when it is indexed, as the slices of the safetensors library are.

    Those map the file: where it becomes shorter or its disk fails, the process is killed by SIGBUS,
    also later, as what they give stays mapped. Several threads may read at once.

    Arguments:
        failed: receives what is raised, which others may put into words of their own.
        reads: whether it is read; otherwise a tensor on the meta device stands for it.

    Raises:
        SetpointError: at once, if torch has no such number format.
    """

    def __init__(self, info: TensorInfo, failed: list[SetpointError], reads: bool = True) -> None:
        try:
            self.dtype = FORMATS[info.dtype]
        except KeyError:
            raise SetpointError(
                f"{info.file} cannot be read: it has numbers of the format {info.dtype}"
            ) from None
        self.info, self.failed, self.reads = info, failed, reads

    def get_dtype(self) -> str:
        """The number format by the file's name for it."""
        return self.info.dtype

    def get_shape(self) -> list[int]:
        """The sizes."""
        return list(self.info.shape)

    def __getitem__(self, index: Any) -> Tensor:
        """Read the whole tensor into memory of its own.

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


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb", buffering=0)
    except OSError as error:
        raise SetpointError(f"{path} cannot be read: {error.strerror}") from error


def _fill(target: memoryview, info: TensorInfo, file: BinaryIO, start: int) -> None:
    """Read what a file has from a place on; the same in all threads."""
    try:
        while target:
            count = os.preadv(file.fileno(), [target], start)
            if not count:
                raise DamagedFile(info.file, "it was cut short while it was read")
            target, start = target[count:], start + count
    except OSError as error:
        raise SetpointError(f"{info.file} cannot be read: {error.strerror}") from error


class SharedReader(TensorReader):
    """Tensors that one rank reads whole, and sends to the others."""

    by_rows = False

    def __init__(self, one: OneReader) -> None:
        super().__init__()
        self.one = one

    def read_box(self, info: TensorInfo, ranges: Sequence[tuple[int, int]]) -> Tensor:
        """See `TensorReader.read_box`; a tensor is sent once for boxes that follow each other."""
        return self.read(info)[tuple(slice(start, end) for start, end in ranges)]

    def part(self, info: TensorInfo) -> Tensor:
        """See `TensorReader.part`; it is sent as bytes."""
        read = super().part
        size, dtype = (info.size,), FORMATS[info.dtype]
        sent = self.one.tensor(lambda: read(info).view(-1).view(torch.uint8), size, torch.uint8)
        return sent.view(dtype).view(info.shape)

    def _read(self, info: TensorInfo, rows: Rows) -> Tensor:
        assert rows is None
        read = super()._read
        return self.one.tensor(lambda: read(info, None), info.shape, STORED[info.dtype])
