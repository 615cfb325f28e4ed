"""Dequantization of rows of tensors in files; see `setpoint.model.pretrained.quantized`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from setpoint.config import RunError
from setpoint.files.tensor_header import Encoding, Shape, TensorInfo

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
    found = torch.empty((last - first, *shape[1:]), dtype=dtype)
    width = found[0].numel() if last > first else 1
    step = max(1, AT_ONCE // width)
    of = _DenseRows(encoding, read)
    for start in range(first, last, step):
        end = min(start + step, last)
        if encoding.values == "levels":
            piece = of.by_levels(start, end, width).view(end - start, *shape[1:])
        else:
            piece = of.by_scales(start, end)
        if not piece.isfinite().all():
            scales = "absmax" if encoding.values == "levels" else "scales"
            raise unsound(encoding, scales, "that make weights which are not finite")
        found[start - first : end - first] = piece.mT if encoding.transposed else piece
    return found


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


def unsound(encoding: Encoding, part: str, what: str) -> RunError:
    """Error about invalid values in a part of a quantized tensor."""
    infos = dict(encoding.parts)
    name = encoding.names[[*infos].index(part)]
    return RunError(
        f"{infos[part].file}: {name} has values {what}, so that {encoding.names[0]} cannot be "
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
        values = codes.float() if levels is None else _looked_up(codes, levels)
        scales = self._of_blocks("scales", start, end, values.dim())
        if self.parts["scales"].dtype == "U8":  # exponents of powers of two
            scales = torch.exp2(scales - 127)
        require_sound(self.encoding, "scales", scales)
        if "zeros" in self.parts:
            values = values - self._spread(self._of_blocks("zeros", start, end, 2), values)
        if (scales == 0).any() and ((self._spread(scales, values) == 0) & (values != 0)).any():
            raise unsound(self.encoding, "scales", "that are zero beside weights that are not")
        if self.factor is not None:
            scales = scales * self.factor
        return values * self._spread(scales, values)

    def _of_blocks(self, part: str, start: int, end: int, dims: int) -> Tensor:
        """Values of a part for each row, or one row for all."""
        info, high = self.parts[part], self.encoding.block[0]
        if not info.shape:
            return self.read(info, None).float().reshape(1, 1)
        if dims > 2:  # a row has all of its blocks
            return self.read(info, (start, end)).float()
        above, below = start // high, -(-end // high)
        found = self.read(info, (above, below)).float().view(below - above, -1)
        if len(found) == 1 or high == 1:
            return found
        return found.repeat_interleave(high, 0)[start - above * high :][: end - start]

    def _spread(self, scales: Tensor, values: Tensor) -> Tensor:
        columns = values.shape[-1]
        if scales.shape[-1] in (1, columns):
            return scales
        return scales.repeat_interleave(self.encoding.block[1], -1)[..., :columns]

    def _absmax(self) -> Tensor:
        found = self.read(self.parts["absmax"], None)
        size, offset = self.encoding.nested
        if not size:
            require_sound(self.encoding, "absmax", found)
            return found.float()
        levels = self.read(self.parts["nested_levels"], None).float()
        outer = self.read(self.parts["nested_absmax"], None).float()
        return levels[found.int()] * outer.repeat_interleave(size)[: len(found)] + offset

    def by_levels(self, start: int, end: int, width: int) -> Tensor:
        """Flattened values of some rows; blocks run across row boundaries."""
        first, last = start * width, end * width
        codes = self.read(self.parts["codes"], (first // 2, -(-last // 2))).flatten()
        places = torch.stack((codes >> 4, codes & 15), -1).flatten()[first % 2 :][: last - first]
        blocks = torch.arange(first, last).div(self.encoding.block[1], rounding_mode="floor")
        return self.levels[places.int()] * self.absmax[blocks]


def _looked_up(codes: Tensor, levels: tuple[float, ...]) -> Tensor:
    """Two values per byte, the first in the low half."""
    codes = codes.view(torch.uint8)
    return torch.tensor(levels)[torch.stack((codes & 15, codes >> 4), -1).flatten(-2).int()]
