"""Reading of safetensors tensors one at a time, with dequantization of rows.

Loading takes the memory of the model and of one tensor. Which tensors are quantized, and how, says
`setpoint.model.pretrained.tensor_files`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

import torch
from torch import Tensor

from setpoint.config import RunError, SetpointError
from setpoint.files import tensor_file
from setpoint.files.tensor_file import dtype_named, read_box
from setpoint.files.tensor_header import (
    FLOATS,
    TORCH_NAMES,
    DamagedFile,
    Encoding,
    Shape,
    TensorInfo,
)
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
    result = DType.read(dtype).torch()
    if result not in map(dtype_named, FLOATS):
        known = ", ".join(TORCH_NAMES[name] for name in FLOATS)
        raise SetpointError(f"dtype = {dtype}: weights cannot be of it. Valid: {known}")
    return result


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


Read = Callable[[TensorInfo, tuple[int, int] | None], Tensor]
"""Reads some rows of a stored tensor, or all."""

AT_ONCE: Final = 2**22
"""Weights dequantized at a time, at most or one row of blocks, in fp32."""

E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of a 4-bit float; the fourth bit is the sign."""

LEVELS: Final = {
    "e2m1": (*E2M1, *(-each for each in E2M1)),
    "int4": tuple(float(each) for each in range(-8, 8)),
}
"""Values of 4-bit codes."""


def dequantize(
    encoding: Encoding, shape: Shape, rows: tuple[int, int] | None, dtype: torch.dtype, read: Read
) -> Tensor:
    """Dequantize rows of a tensor, piece by piece.

    Arguments:
        shape: of the whole tensor.
        rows: first row and end; None: all.
        dtype: of the result, rounded from fp32.

    Raises:
        RunError: scales are not positive, or values are not finite.
    """
    first, last = rows or (0, shape[0])
    values = torch.empty((last - first, *shape[1:]), dtype=dtype)
    width = values[0].numel() if last > first else 1
    step = max(1, AT_ONCE // width)
    reader = _DenseRows(encoding, read)
    for start in range(first, last, step):
        end = min(start + step, last)
        if encoding.values == "levels":
            piece = reader.by_levels(start, end, width).view(end - start, *shape[1:])
        else:
            piece = reader.by_scales(start, end)
        if not piece.isfinite().all():
            scales = "absmax" if encoding.values == "levels" else "scales"
            raise unsound(encoding, scales, "that make weights which are not finite")
        values[start - first : end - first] = piece.mT if encoding.transposed else piece
    return values


def require_sound(encoding: Encoding, part: str, numbers: Tensor) -> None:
    """Refuse values that are not finite, and negative scales.

    A block of zeros may have scale zero.

    Raises:
        RunError: see `unsound`.
    """
    if part not in ("scales", "factor", "absmax") and not numbers.is_floating_point():
        return
    is_scale = part in ("scales", "factor", "absmax", "nested_absmax")
    for piece in numbers.flatten().split(AT_ONCE):
        piece = piece.float()
        if not piece.isfinite().all():
            raise unsound(encoding, part, "that are not finite")
        if is_scale and (piece < 0).any():
            raise unsound(encoding, part, "below zero")
    if part == "factor" and not numbers:
        raise unsound(encoding, part, "that are zero")


def unsound(encoding: Encoding, part: str, fault: str) -> RunError:
    """Error about invalid values in a part of a quantized tensor."""
    infos = dict(encoding.parts)
    name = encoding.names[[*infos].index(part)]
    return RunError(
        f"{infos[part].file}: {name} has values {fault}, so that {encoding.names[0]} cannot be "
        f"dequantized. Copy or download the file again, or quantize the model again; nothing was "
        f"loaded"
    )


class _DenseRows:
    """Dequantized rows of one tensor; scales shared by all rows are read once."""

    def __init__(self, encoding: Encoding, read: Read) -> None:
        self.encoding, self.read = encoding, read
        self.parts = dict(encoding.parts)
        self.factor = None
        if "factor" in self.parts:
            factor = read(self.parts["factor"], None).float().reshape(())
            require_sound(encoding, "factor", factor)
            self.factor = factor.reciprocal() if encoding.divides else factor
        if encoding.values == "levels":
            self.absmax = self._absmax()
            self.levels = read(self.parts["levels"], None).float()

    def by_scales(self, start: int, end: int) -> Tensor:
        """Rows of (..., rows, columns)."""
        codes = self.read(self.parts["codes"], (start, end))
        require_sound(self.encoding, "codes", codes)
        if codes.dim() == 4:  # blocks apart
            codes = codes.flatten(2)
        levels = LEVELS.get(self.encoding.values)
        values = codes.float() if levels is None else _unpack(codes, levels)
        scales = self._block_values("scales", start, end, values.dim())
        if self.parts["scales"].dtype == "U8":  # exponents of powers of two
            scales = torch.exp2(scales - 127)
        require_sound(self.encoding, "scales", scales)
        if "zeros" in self.parts:
            values = values - self._spread(self._block_values("zeros", start, end, 2), values)
        if (scales == 0).any() and ((self._spread(scales, values) == 0) & (values != 0)).any():
            raise unsound(self.encoding, "scales", "that are zero beside weights that are not")
        if self.factor is not None:
            scales = scales * self.factor
        return values * self._spread(scales, values)

    def _block_values(self, part: str, start: int, end: int, dims: int) -> Tensor:
        """Values of a part for each row, or one row for all."""
        info, high = self.parts[part], self.encoding.block[0]
        if not info.shape:
            return self.read(info, None).float().reshape(1, 1)
        if dims > 2:  # a row has all of its blocks
            return self.read(info, (start, end)).float()
        above, below = start // high, -(-end // high)
        blocks = self.read(info, (above, below)).float().view(below - above, -1)
        if len(blocks) == 1 or high == 1:
            return blocks
        return blocks.repeat_interleave(high, 0)[start - above * high :][: end - start]

    def _spread(self, scales: Tensor, values: Tensor) -> Tensor:
        columns = values.shape[-1]
        if scales.shape[-1] in (1, columns):
            return scales
        return scales.repeat_interleave(self.encoding.block[1], -1)[..., :columns]

    def _absmax(self) -> Tensor:
        codes = self.read(self.parts["absmax"], None)
        size, offset = self.encoding.nested
        if not size:
            require_sound(self.encoding, "absmax", codes)
            return codes.float()
        levels = self.read(self.parts["nested_levels"], None).float()
        outer = self.read(self.parts["nested_absmax"], None).float()
        return levels[codes.int()] * outer.repeat_interleave(size)[: len(codes)] + offset

    def by_levels(self, start: int, end: int, width: int) -> Tensor:
        """Flattened values of some rows; blocks run across row boundaries."""
        first, last = start * width, end * width
        codes = self.read(self.parts["codes"], (first // 2, -(-last // 2))).flatten()
        places = torch.stack((codes >> 4, codes & 15), -1).flatten()[first % 2 :][: last - first]
        blocks = torch.arange(first, last).div(self.encoding.block[1], rounding_mode="floor")
        return self.levels[places.int()] * self.absmax[blocks]


def _unpack(codes: Tensor, levels: tuple[float, ...]) -> Tensor:
    """Two values per byte, the first in the low half."""
    codes = codes.view(torch.uint8)
    return torch.tensor(levels)[torch.stack((codes & 15, codes >> 4), -1).flatten(-2).int()]
