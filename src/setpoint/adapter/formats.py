"""Quantization formats of 4 and 8 bits: pure functions from weights to parts and back.

A matrix is quantized as a whole, since its scales may depend on all of it. Its parts are tensors
that are divided among ranks like the matrix, by rows and columns, as long as no block is cut. Parts
of fixed size (`CodedPart.rows` and `.columns` false) are replicated.

Blocks run along rows, so that blocks of a flattened matrix are blocks of its rows: parts of NF4
equal those of bitsandbytes, and parts of NVFP4 those of torchao.

Several matrices of one shape, such as those of experts, are quantized one by one. Their parts are
stacked along a new first dimension, and dequantized together.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor

from setpoint.adapter.config import (
    FP8,
    MXFP4,
    NF4,
    NVFP4,
    SCALES_PER_SCALE,
    Int8,
    Quantization,
)
from setpoint.shapes.stored import E2M1

if TYPE_CHECKING:
    from collections.abc import Callable

    from setpoint.shapes.stored import Coded

Parts = dict[str, Tensor]

AT_ONCE: Final = 2**20
"""Weights quantized at a time (at least one row of blocks); peak memory is a few times as much."""

NF4_LEVELS: Final = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
"""QLoRA, Dettmers et al. (2023), appendix E."""
NF4_GAP: Final = NF4_LEVELS[8]
"""Smallest difference of two levels."""
E2M1_BETWEEN: Final = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
E2M1_MAX: Final = 6.0
E2M1_EXPONENT: Final = 2
"""Exponent of the largest magnitude."""
EXPONENT_BIAS: Final = 127
E4M3_MAX: Final = 448.0
E4M3_LEAST: Final = 2.0**-6
"""Smallest normal number; a smaller scale would lose its mantissa."""
AMAX_RATE: Final = 0.1
"""Weight of the new maximum when a matrix is quantized again (NVFP4)."""


def _dynamic_levels() -> Iterator[float]:
    """Levels of the dynamic tree (8-bit optimizers, Dettmers et al., 2022).

    A number consists of a sign, zeros that count powers of ten, a one, and a fraction in the
    remaining bits, which selects the center of one of equal parts of 0.1 to 1. There are also
    levels 0 and 1.
    """
    yield from (0.0, 1.0)
    for bits in range(7):
        width = 0.9 / 2**bits
        for part in range(2**bits):
            level = 10.0 ** (bits - 6) * (0.1 + (part + 0.5) * width)
            yield from (level, -level)


SCALE_LEVELS: Final = tuple(sorted(_dynamic_levels()))
"""The 256 levels of quantized scales, ascending."""


class CodedPart(NamedTuple):
    """One tensor of a quantized matrix.

    Arguments:
        rows, columns: whether dimension 0 or 1 corresponds to that of the matrix, and is divided
            like it.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    rows: bool = True
    columns: bool = True


class Box(NamedTuple):
    """Position of a part within a matrix.

    Arguments:
        first: row and column of the part's first weight.
        whole: shape of the matrix.
    """

    first: tuple[int, int]
    whole: tuple[int, int]


class Format(ABC):
    """A quantization format. All computation is in fp32."""

    rows = 1
    """Rows of a block."""

    def __init__(self, columns: int | None) -> None:
        self._columns = columns

    def block(self, columns: int) -> int:
        """Columns of a block, given the columns of the matrix."""
        return self._columns or columns

    @abstractmethod
    def parts(self, rows: int, columns: int) -> dict[str, CodedPart]:
        """Tensors of a quantized matrix."""

    @abstractmethod
    def quantize(self, matrix: Tensor, before: Mapping[str, Tensor] | None = None) -> Parts:
        """Quantize a whole matrix.

        Arguments:
            before: earlier parts of the same matrix; a format may continue their range.
        """

    @abstractmethod
    def dequantize(
        self, parts: Mapping[str, Tensor], box: Box, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Weights in a box: (rows, columns), or (E, rows, columns) for several matrices."""

    @abstractmethod
    def parts_from(self, coded: Coded, rows: int, columns: int) -> Parts | None:
        """Parts of a matrix from a quantized file; None if its levels differ."""

    @abstractmethod
    def half_step(self, parts: Mapping[str, Tensor], box: Box) -> Tensor:
        """Half a quantization step per block: ([E,] blocks along rows, along columns)."""


class _Rowwise(Format):
    """Formats with one scale per block along a row."""

    _half = 0.5
    """Half a step for a scale of one."""

    def dequantize(
        self, parts: Mapping[str, Tensor], box: Box, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        values, scales = self._values(parts["codes"]), self._scales(parts, box)
        values.unflatten(-1, (scales.shape[-1], -1)).mul_(scales.unsqueeze(-1))
        return values.to(dtype)

    def half_step(self, parts: Mapping[str, Tensor], box: Box) -> Tensor:
        return self._scales(parts, box) * self._half

    @abstractmethod
    def _values(self, codes: Tensor) -> Tensor:
        """Values of codes for a scale of one, in fp32 and new memory."""

    def _scales(self, parts: Mapping[str, Tensor], box: Box) -> Tensor:
        """Scale of each block: ([E,] rows, blocks)."""
        return parts["scales"]

    def _amax(self, matrix: Tensor) -> Tensor:
        """Largest magnitude of each block: (rows, blocks)."""
        size = self.block(matrix.shape[1])
        amax = torch.empty(matrix.shape[0], matrix.shape[1] // size, device=matrix.device)
        for chunk in _chunks(matrix):
            blocks = matrix[chunk].unflatten(1, (-1, size))
            amax[chunk] = torch.linalg.vector_norm(blocks, torch.inf, dim=-1, dtype=torch.float32)
        return amax

    def _codes(self, matrix: Tensor, scales: Tensor, encode: Callable[[Tensor], Tensor]) -> Tensor:
        """Encode weights divided by their scales."""
        codes = _empty(self.parts(*matrix.shape)["codes"], matrix)
        size = self.block(matrix.shape[1])
        divisors = scales.where(scales > 0, 1.0)
        for chunk in _chunks(matrix):
            blocks = matrix[chunk].float().unflatten(1, (-1, size))
            codes[chunk] = encode((blocks / divisors[chunk].unsqueeze(-1)).flatten(1))
        return codes


class NF4Format(_Rowwise):
    """Format with levels `NF4_LEVELS`; the first of two weights is in the high half of a byte."""

    _half = 0.5 * NF4_GAP

    def __init__(self, columns: int, double: bool) -> None:
        super().__init__(columns)
        self.double = double

    def parts(self, rows: int, columns: int) -> dict[str, CodedPart]:
        blocks = columns // self.block(columns)
        codes = CodedPart((rows, columns // 2), torch.uint8)
        if not self.double:
            return {"codes": codes, "scales": CodedPart((rows, blocks), torch.float32)}
        count = ceil(rows * blocks / SCALES_PER_SCALE)
        return {
            "codes": codes,
            "scale_codes": CodedPart((rows, blocks), torch.uint8),
            "scale_scales": CodedPart((count,), torch.float32, False, False),
            "scale_mean": CodedPart((1,), torch.float32, False, False),
        }

    def quantize(self, matrix: Tensor, before: Mapping[str, Tensor] | None = None) -> Parts:
        codes, amax = self._blocks(matrix)
        if not self.double:
            return {"codes": codes, "scales": amax}
        # In fp64, where the order of summation has no effect: the same on all devices.
        mean = amax.mean(dtype=torch.float64).float().reshape(1)
        flat = _padded(amax.flatten() - mean)
        largest = torch.linalg.vector_norm(flat, torch.inf, dim=1)
        units = flat / largest.where(largest > 0, 1.0).unsqueeze(1)
        between = _between(SCALE_LEVELS, matrix.device)
        scale_codes = torch.bucketize(units, between).to(torch.uint8)
        return {
            "codes": codes,
            "scale_codes": scale_codes.flatten()[: amax.numel()].view_as(amax),
            "scale_scales": largest,
            "scale_mean": mean,
        }

    def _values(self, codes: Tensor) -> Tensor:
        return _unpacked(codes, NF4_LEVELS, high=True)

    def parts_from(self, coded: Coded, rows: int, columns: int) -> Parts | None:
        """See `Format.parts_from`; the format of bitsandbytes."""
        size, parts = self.block(columns), coded.parts
        if not _equal(parts["levels"], NF4_LEVELS):
            return None
        renamed = {"codes": parts["codes"].view(rows, -1)}
        shape = (rows, columns // size)
        if not self.double:
            return {**renamed, "scales": parts["absmax"].float().view(shape)}
        if not _equal(parts["nested_levels"], SCALE_LEVELS):
            return None
        return {
            **renamed,
            "scale_codes": parts["absmax"].view(shape),
            "scale_scales": parts["nested_absmax"].float(),
            "scale_mean": torch.tensor([coded.mean]),
        }

    def _blocks(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Codes, and the largest magnitude of each block."""
        amax = self._amax(matrix)
        between = _between(NF4_LEVELS, matrix.device)

        def encode(x: Tensor) -> Tensor:
            return _packed(torch.bucketize(x, between, out_int32=True), high=True)

        return self._codes(matrix, amax, encode), amax

    def _scales(self, parts: Mapping[str, Tensor], box: Box) -> Tensor:
        if not self.double:
            return parts["scales"]
        codes = parts["scale_codes"]
        levels = _table(SCALE_LEVELS, codes.device)
        # Groups are of the flattened scales of the whole matrix, of which these may be a box.
        size = self.block(box.whole[1])
        rows = torch.arange(codes.shape[-2], device=codes.device) + box.first[0]
        blocks = torch.arange(codes.shape[-1], device=codes.device) + box.first[1] // size
        groups = (rows.unsqueeze(1) * (box.whole[1] // size) + blocks) // SCALES_PER_SCALE
        mean = parts["scale_mean"].unsqueeze(-1)
        return levels[codes.int()] * parts["scale_scales"][..., groups] + mean


class Int8Format(_Rowwise):
    """Integers from -127 to 127."""

    def parts(self, rows: int, columns: int) -> dict[str, CodedPart]:
        blocks = columns // self.block(columns)
        return {
            "codes": CodedPart((rows, columns), torch.int8),
            "scales": CodedPart((rows, blocks), torch.float32, columns=self._columns is not None),
        }

    def quantize(self, matrix: Tensor, before: Mapping[str, Tensor] | None = None) -> Parts:
        scales = self._amax(matrix) / 127
        return {"codes": self._codes(matrix, scales, Tensor.round), "scales": scales}

    def _values(self, codes: Tensor) -> Tensor:
        return codes.float()

    def parts_from(self, coded: Coded, rows: int, columns: int) -> Parts | None:
        scales = coded.parts["scales"].float().view(rows, columns // self.block(columns))
        return {"codes": coded.parts["codes"], "scales": scales}


class _E2M1Format(_Rowwise):
    """E2M1 codes, two per byte, low half first; subclasses define the scales."""

    def _values(self, codes: Tensor) -> Tensor:
        return _unpacked(codes, (*E2M1, *(-level for level in E2M1)), high=False)


class NVFP4Format(_E2M1Format):
    """Format with an E4M3 scale per block and one fp32 scale that maps these into E4M3's range.

    Codes are a sign bit and an index into `E2M1`; the first of two weights is in the low half of a
    byte. Block scales are stored as bits of E4M3.
    """

    def parts(self, rows: int, columns: int) -> dict[str, CodedPart]:
        blocks = columns // self.block(columns)
        return {
            "codes": CodedPart((rows, columns // 2), torch.uint8),
            "scales": CodedPart((rows, blocks), torch.uint8),
            "scale": CodedPart((1,), torch.float32, False, False),
        }

    def quantize(self, matrix: Tensor, before: Mapping[str, Tensor] | None = None) -> Parts:
        amax = self._amax(matrix)
        scale = self._scale(amax, before)
        blocks = amax / E2M1_MAX / scale.where(scale > 0, 1.0)
        block_scales = blocks.clamp(E4M3_LEAST, E4M3_MAX).to(torch.float8_e4m3fn)
        codes = self._codes(matrix, block_scales.float() * scale, _e2m1)
        return {"codes": codes, "scales": block_scales.view(torch.uint8), "scale": scale}

    def parts_from(self, coded: Coded, rows: int, columns: int) -> Parts | None:
        parts = coded.parts
        return {
            "codes": parts["codes"],
            "scales": parts["scales"].view(torch.uint8),
            "scale": parts["factor"].float().reshape(1),
        }

    def _scale(self, amax: Tensor, before: Mapping[str, Tensor] | None) -> Tensor:
        """Global scale, which maps the largest block scale to the maximum of E4M3."""
        scale = amax.amax().reshape(1) / (E2M1_MAX * E4M3_MAX)
        return scale if before is None else torch.lerp(before["scale"], scale, AMAX_RATE)

    def _scales(self, parts: Mapping[str, Tensor], box: Box) -> Tensor:
        return parts["scales"].view(torch.float8_e4m3fn).float() * parts["scale"].unsqueeze(-1)


class MXFP4Format(_E2M1Format):
    """Format with powers of two as scales: the largest that keeps magnitudes in E2M1's range.

    Exponents are stored with bias 127. A magnitude between 6 and 8 times the scale becomes the
    largest number, as specified (OCP MX, 6.3). Codes are those of NVFP4.
    """

    def parts(self, rows: int, columns: int) -> dict[str, CodedPart]:
        return {
            "codes": CodedPart((rows, columns // 2), torch.uint8),
            "scales": CodedPart((rows, columns // self.block(columns)), torch.uint8),
        }

    def quantize(self, matrix: Tensor, before: Mapping[str, Tensor] | None = None) -> Parts:
        amax = self._amax(matrix)
        _, exponents = torch.frexp(amax)  # with a mantissa of at least 1/2
        exponents = (exponents - 1 - E2M1_EXPONENT).clamp(-EXPONENT_BIAS, EXPONENT_BIAS)
        biased = (exponents + EXPONENT_BIAS).where(amax > 0, 0).to(torch.uint8)
        return {"codes": self._codes(matrix, _power(biased), _e2m1), "scales": biased}

    def parts_from(self, coded: Coded, rows: int, columns: int) -> Parts | None:
        """See `Format.parts_from`; GPT-OSS stores blocks in a separate dimension."""
        shape = (rows, columns // self.block(columns))
        codes = coded.parts["codes"].reshape(rows, columns // 2)
        return {"codes": codes, "scales": coded.parts["scales"].reshape(shape)}

    def _scales(self, parts: Mapping[str, Tensor], box: Box) -> Tensor:
        return _power(parts["scales"])


class FP8Format(Format):
    """E4M3 with one fp32 scale per square of weights, as in DeepSeek-V3."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.rows = size

    def parts(self, rows: int, columns: int) -> dict[str, CodedPart]:
        blocks = (rows // self.rows, columns // self.rows)
        return {
            "codes": CodedPart((rows, columns), torch.uint8),
            "scales": CodedPart(blocks, torch.float32),
        }

    def quantize(self, matrix: Tensor, before: Mapping[str, Tensor] | None = None) -> Parts:
        parts = {k: _empty(part, matrix) for k, part in self.parts(*matrix.shape).items()}
        codes, scales = parts["codes"], parts["scales"]
        for chunk in _chunks(matrix, self.rows):
            squares = self._squares(matrix[chunk].float())
            block_scales = squares.abs().amax((1, 3)) / E4M3_MAX
            scales[chunk.start // self.rows : chunk.stop // self.rows] = block_scales
            units = squares / block_scales.where(block_scales > 0, 1.0)[:, None, :, None]
            flat = units.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)
            codes[chunk] = flat.flatten(2).flatten(0, 1)
        return parts

    def dequantize(
        self, parts: Mapping[str, Tensor], box: Box, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        values = parts["codes"].view(torch.float8_e4m3fn).float()
        self._squares(values).mul_(parts["scales"].unsqueeze(-2).unsqueeze(-1))
        return values.to(dtype)

    def half_step(self, parts: Mapping[str, Tensor], box: Box) -> Tensor:
        return parts["scales"] * 0.125

    def parts_from(self, coded: Coded, rows: int, columns: int) -> Parts | None:
        if rows % self.rows or columns % self.rows:
            return None
        codes, scales = coded.parts["codes"], coded.parts["scales"]
        shape = (rows // self.rows, columns // self.rows)
        return {"codes": codes.view(torch.uint8), "scales": scales.float().view(shape)}

    def _squares(self, matrix: Tensor) -> Tensor:
        """([E,] R rows of blocks, rows, C columns of blocks, columns)."""
        return matrix.unflatten(-1, (-1, self.rows)).unflatten(-3, (-1, self.rows))


def _power(biased: Tensor) -> Tensor:
    """Powers of two from biased exponents."""
    return torch.exp2(biased.float() - EXPONENT_BIAS)


def _chunks(matrix: Tensor, multiple: int = 1) -> Iterator[slice]:
    rows = max(1, AT_ONCE // (matrix.shape[1] * multiple)) * multiple
    for first in range(0, matrix.shape[0], rows):
        yield slice(first, min(first + rows, matrix.shape[0]))


def _empty(part: CodedPart, like: Tensor) -> Tensor:
    return torch.empty(part.shape, dtype=part.dtype, device=like.device)


def _table(levels: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(levels, dtype=torch.float32, device=device)


def _equal(stored: Tensor, levels: tuple[float, ...]) -> bool:
    """True if levels are equal up to rounding."""
    expected = _table(levels, stored.device)
    return stored.shape == expected.shape and torch.allclose(
        stored.float(), expected, rtol=0, atol=1e-6
    )


def _between(levels: tuple[float, ...], device: torch.device) -> Tensor:
    table = _table(levels, device)
    return (table[1:] + table[:-1]) / 2


def _padded(scales: Tensor) -> Tensor:
    """(groups, scales of a group), zero-padded."""
    count = -len(scales) % SCALES_PER_SCALE
    return torch.nn.functional.pad(scales, (0, count)).view(-1, SCALES_PER_SCALE)


def _packed(places: Tensor, high: bool) -> Tensor:
    """Pack two 4-bit numbers per byte, the first in its high or low half."""
    pairs = places.to(torch.uint8).unflatten(-1, (-1, 2))
    first, second = pairs.unbind(-1)
    return first << 4 | second if high else second << 4 | first


def _unpacked(codes: Tensor, levels: tuple[float, ...], high: bool) -> Tensor:
    """Levels of packed numbers in fp32, with one lookup for each pair."""
    table = _table(levels, codes.device)
    upper = table.repeat_interleave(16)  # by the high half of a byte
    lower = table.repeat(16)
    pairs = torch.stack([upper, lower] if high else [lower, upper], dim=1)
    return torch.nn.functional.embedding(codes.int(), pairs).flatten(-2)


def _e2m1(x: Tensor) -> Tensor:
    """Packed E2M1 numbers, rounded to nearest even."""
    between = torch.tensor(E2M1_BETWEEN, device=x.device)
    # Above these, the even neighbor is the upper one, so ties round up.
    between[1::2] = torch.nextafter(between[1::2], torch.zeros((), device=x.device))
    places = torch.bucketize(x.abs(), between, out_int32=True) | (x < 0).int() << 3
    return _packed(places, high=False)


def format_of(config: Quantization, device: torch.device | str = "cpu") -> Format:
    """Format for a section, computed by its backend."""
    match config:
        case NF4():
            backend = config.backend_on(torch.device(device).type)
            format = NF4Format if backend == "torch" else _BitsAndBytesNF4
            return format(config.group_size, config.double)
        case Int8():
            return Int8Format(config.group_size)
        case FP8():
            return FP8Format(config.group_size)
        case NVFP4():
            return NVFP4Format(config.group_size)
        case MXFP4():
            return MXFP4Format(config.columns)
        case _:
            raise AssertionError(f"no such format: {type(config).__name__}")


class _BitsAndBytesNF4(NF4Format):
    """NF4 with bitsandbytes kernels, except for nested scales, of which ranks may have boxes."""

    def __init__(self, columns: int, double: bool) -> None:
        super().__init__(columns, double)
        # Importing it takes seconds, and it reports what is missing.
        self._functional: Any = importlib.import_module("bitsandbytes.functional")

    def _blocks(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        codes, state = self._functional.quantize_4bit(
            matrix.contiguous(), blocksize=self.block(matrix.shape[1]), quant_type="nf4"
        )
        rows = matrix.shape[0]
        return codes.view(rows, -1), state.absmax.float().view(rows, -1)

    def dequantize(
        self, parts: Mapping[str, Tensor], box: Box, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        codes = parts["codes"]
        state = self._functional.QuantState(
            absmax=self._scales(parts, box).flatten(),
            shape=torch.Size((*codes.shape[:-1], 2 * codes.shape[-1])),
            blocksize=self.block(box.whole[1]),
            quant_type="nf4",
            dtype=dtype,
        )
        return self._functional.dequantize_4bit(codes.reshape(-1, 1), state)
