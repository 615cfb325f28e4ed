"""Reading of tensors one at a time, with row-wise dequantization of safetensors files.

Loading takes the memory of the model and of one tensor. `setpoint.model.pretrained.tensor_files`
determines which tensors are quantized, and how.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from setpoint.config import RunError, SetpointError
from setpoint.files import tensor_file
from setpoint.files.tensor_file import DTYPES, dtype_named, read_box
from setpoint.files.tensor_header import (
    FLOATS,
    TORCH_NAMES,
    DamagedFile,
    Encoding,
    Shape,
    TensorInfo,
)
from setpoint.model.pretrained.weight_names import Part, block
from setpoint.shapes.peers import BroadcastReader
from setpoint.shapes.placed import Placeable, whole_of
from setpoint.shapes.stored import E2M1
from setpoint.units.dtype import DType

Rows = tuple[int, int] | None
"""First row and end; None: all rows."""


def weight_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Dtype of weights.

    Arguments:
        dtype: a torch dtype, or a name such as `"bf16"`; None: as in the files.

    Raises:
        SetpointError: there is no such dtype, or weights cannot have it.
    """
    if dtype is None:
        return None
    result = DType.read(dtype).torch()
    if result not in map(dtype_named, FLOATS):
        known = ", ".join(TORCH_NAMES[name] for name in FLOATS)
        raise SetpointError(f"dtype = {dtype}: weights cannot have this dtype. Valid: {known}")
    return result


class FileTensor(Placeable):
    """A tensor in a safetensors file, dequantized when it is read.

    Reading raises `DamagedFile` if the file was truncated after its header was read,
    `SetpointError` if it cannot be read, and the errors of `dequantize`.
    """

    __slots__ = ("info",)

    def __init__(self, info: TensorInfo) -> None:
        self.info = info

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.info.shape)

    @property
    def dtype(self) -> torch.dtype:
        """See `Placeable.dtype`.

        Raises:
            SetpointError: torch has no such dtype.
        """
        return _dtype_of(self.info)

    def box(self, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        box = [slice(start, start + size) for start, size in zip(offset, shape, strict=True)]
        if self.info.encoding is None:
            return _read_stored(self.info, box)
        rows = (box[0].start, box[0].stop)
        values = dequantize(self.info.encoding, self.info.shape, rows, self.dtype)
        return values[(slice(None), *box[1:])]


class TensorReader:
    """Reads tensors from files or memory, one after another.

    The last tensor is cached, since several weights of a model may be parts of it.

    Arguments:
        broadcast: the rank that reads whole tensors and sends them to the others, which must read
            the same ones; None: this process reads its own parts.
    """

    def __init__(self, broadcast: BroadcastReader | None = None) -> None:
        self.broadcast = broadcast
        self._last: tuple[Tensor | Placeable, Rows, Tensor] | None = None

    def read(self, source: Tensor | Placeable, rows: Rows = None) -> Tensor:
        """Read a tensor; if it is sharded, on all ranks together."""
        if self._last is not None and self._last[0] is source and self._last[1] == rows:
            return self._last[2]
        self._last = None  # free its memory before allocating the next tensor
        if isinstance(source, Tensor):
            tensor = whole_of(source) if rows is None else whole_of(source)[slice(*rows)]
        elif self.broadcast is not None:
            assert rows is None
            tensor = self.broadcast.tensor(source.whole, source.shape, source.dtype)
        elif rows is None:
            tensor = source.whole()
        else:
            size = (rows[1] - rows[0], *source.shape[1:])
            tensor = source.box((rows[0], *(0 for _ in source.shape[1:])), size)
        self._last = source, rows, tensor
        return tensor

    def box(
        self, source: Tensor | Placeable, ranges: Sequence[tuple[int, int]], whole: bool = False
    ) -> Tensor:
        """Read a box of a tensor; for a matrix, little more than the bytes of the box are read.

        Arguments:
            ranges: first index and end in each dimension.
            whole: whether further boxes follow that make up the whole tensor, which is then read
                once.
        """
        box = tuple(slice(start, end) for start, end in ranges)
        if whole or not box or self.broadcast is not None or isinstance(source, Tensor):
            return self.read(source)[box]
        if len(box) == 2 and box[1] != slice(0, source.shape[1]):
            columns = box[1].stop - box[1].start
            if columns * source.dtype.itemsize >= tensor_file.ROW:
                sizes = [end - start for start, end in ranges]
                return source.box([start for start, _ in ranges], sizes)
        rows = None if ranges[0] == (0, source.shape[0]) else ranges[0]
        return self.read(source, rows)[(slice(None), *box[1:])]

    def block(self, source: Tensor | Placeable, part: Part | None) -> Tensor:
        """Read a block of a tensor."""
        if part is None:
            return self.read(source)
        if isinstance(source, Tensor):
            if part.length is None:  # an expert: other ranks send only its block
                return whole_of(block(source, part))
            return block(self.read(source), part)
        ranges = [(0, size) for size in source.shape]
        ranges[part.dim] = (part.start, part.start + (part.length or 1))
        values = self.box(source, ranges)
        return values.squeeze(part.dim) if part.length is None else values

    def part(self, info: TensorInfo) -> Tensor:
        """Read a whole tensor as stored."""
        if self.broadcast is None:
            return read_rows(info)
        sent = self.broadcast.tensor(
            lambda: read_rows(info).view(-1).view(torch.uint8), (info.size,), torch.uint8
        )
        return sent.view(dtype_named(info.dtype)).view(info.shape)


def info_of(tensor: Tensor | Placeable) -> TensorInfo:
    """Dtype and shape of a tensor in memory, as for one in a file."""
    if isinstance(tensor, FileTensor):
        return tensor.info
    dtype = DTYPES.get(tensor.dtype, str(tensor.dtype))
    return TensorInfo(Path(), dtype, tuple(tensor.shape), 0, 0)


def read_rows(info: TensorInfo, rows: Rows = None) -> Tensor:
    """Read rows of a tensor as stored."""
    box = [slice(0, size) for size in info.shape]
    if rows is not None:
        box[0] = slice(*rows)
    return _read_stored(info, box)


def _read_stored(info: TensorInfo, box: Sequence[slice]) -> Tensor:
    tensor = torch.empty([one.stop - one.start for one in box], dtype=_dtype_of(info))
    try:
        with info.file.open("rb") as file:
            read_box(file.fileno(), info, box, tensor)
    except OSError as error:
        if error.errno == errno.ENODATA:
            raise DamagedFile(info.file, "it was truncated while it was being read") from error
        raise SetpointError(f"{info.file} cannot be read: {error.strerror}") from error
    return tensor


def _dtype_of(info: TensorInfo) -> torch.dtype:
    try:
        return dtype_named(info.dtype)
    except KeyError:
        raise SetpointError(
            f"{info.file} cannot be read: its dtype {info.dtype} is not supported"
        ) from None


AT_ONCE: Final = 2**22
"""Weights dequantized at a time, at most or one row of blocks, in fp32."""

LEVELS: Final = {
    "e2m1": (*E2M1, *(-level for level in E2M1)),
    "int4": tuple(float(code) for code in range(-8, 8)),
}
"""Values of 4-bit codes."""


def dequantize(
    encoding: Encoding, shape: Shape, rows: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    """Dequantize rows of a tensor, piece by piece.

    Arguments:
        shape: shape of the whole tensor.
        rows: first row and end.
        dtype: dtype of the result, which is rounded from fp32.

    Raises:
        RunError: scales are not positive, or values are not finite.
    """
    first, last = rows
    values = torch.empty((last - first, *shape[1:]), dtype=dtype)
    width = values[0].numel() if last > first else 1
    step = max(1, AT_ONCE // width)
    reader = _DenseRows(encoding)
    for start in range(first, last, step):
        end = min(start + step, last)
        if encoding.values == "levels":
            piece = reader.by_levels(start, end, width).view(end - start, *shape[1:])
        else:
            piece = reader.by_scales(start, end)
        if not piece.isfinite().all():
            scales = "absmax" if encoding.values == "levels" else "scales"
            raise unsound(encoding, scales, "that make the weights non-finite")
        values[start - first : end - first] = piece.mT if encoding.transposed else piece
    return values


def require_sound(encoding: Encoding, part: str, numbers: Tensor) -> None:
    """Refuse non-finite values and negative scales.

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
    """Dequantized rows of a tensor; scales shared by all rows are read once."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.parts = dict(encoding.parts)
        self.factor = None
        if "factor" in self.parts:
            factor = read_rows(self.parts["factor"]).float().reshape(())
            require_sound(encoding, "factor", factor)
            self.factor = factor.reciprocal() if encoding.divides else factor
        if encoding.values == "levels":
            self.absmax = self._absmax()
            self.levels = read_rows(self.parts["levels"]).float()

    def by_scales(self, start: int, end: int) -> Tensor:
        """Rows of (..., rows, columns)."""
        codes = read_rows(self.parts["codes"], (start, end))
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
            raise unsound(self.encoding, "scales", "that are zero although the weights are not")
        if self.factor is not None:
            scales = scales * self.factor
        return values * self._spread(scales, values)

    def _block_values(self, part: str, start: int, end: int, dims: int) -> Tensor:
        """Values of a part for each row, or a single row for all."""
        info, high = self.parts[part], self.encoding.block[0]
        if not info.shape:
            return read_rows(info).float().reshape(1, 1)
        if dims > 2:  # a row has all of its blocks
            return read_rows(info, (start, end)).float()
        above, below = start // high, -(-end // high)
        blocks = read_rows(info, (above, below)).float().view(below - above, -1)
        if len(blocks) == 1 or high == 1:
            return blocks
        return blocks.repeat_interleave(high, 0)[start - above * high :][: end - start]

    def _spread(self, scales: Tensor, values: Tensor) -> Tensor:
        columns = values.shape[-1]
        if scales.shape[-1] in (1, columns):
            return scales
        return scales.repeat_interleave(self.encoding.block[1], -1)[..., :columns]

    def _absmax(self) -> Tensor:
        codes = read_rows(self.parts["absmax"])
        size, offset = self.encoding.nested
        if not size:
            require_sound(self.encoding, "absmax", codes)
            return codes.float()
        levels = read_rows(self.parts["nested_levels"]).float()
        outer = read_rows(self.parts["nested_absmax"]).float()
        return levels[codes.int()] * outer.repeat_interleave(size)[: len(codes)] + offset

    def by_levels(self, start: int, end: int, width: int) -> Tensor:
        """Flattened values of some rows; blocks run across row boundaries."""
        first, last = start * width, end * width
        codes = read_rows(self.parts["codes"], (first // 2, -(-last // 2))).flatten()
        places = torch.stack((codes >> 4, codes & 15), -1).flatten()[first % 2 :][: last - first]
        blocks = torch.arange(first, last).div(self.encoding.block[1], rounding_mode="floor")
        return self.levels[places.int()] * self.absmax[blocks]


def _unpack(codes: Tensor, levels: tuple[float, ...]) -> Tensor:
    """Two values per byte, the first in the low half."""
    codes = codes.view(torch.uint8)
    return torch.tensor(levels)[torch.stack((codes & 15, codes >> 4), -1).flatten(-2).int()]
