"""The same formats by other libraries' kernels; what is stored is the same, whichever computes."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from setpoint.adapter.quantize.checks import backend_in
from setpoint.adapter.quantize.config import FP8, MXFP4, NF4, NVFP4, Int8, Quantization
from setpoint.adapter.quantize.formats import (
    Box,
    Format,
    FP8Format,
    Int8Format,
    MXFP4Format,
    NF4Format,
    NVFP4Format,
    Parts,
)
from setpoint.shapes.torchao import import_torchao


def format_of(config: Quantization, device: torch.device | str = "cpu") -> Format:
    """The format of a section, computed by the library that it asks for.

    Arguments:
        device: where the weights are.
    """
    kind = torch.device(device).type
    match config:
        case NF4():
            ours = backend_in(config, kind) == "torch"
            format = NF4Format if ours else _BitsAndBytesNF4
            return format(config.group_size, config.double)
        case Int8():
            return Int8Format(config.group_size)
        case FP8():
            return FP8Format(config.group_size)
        case NVFP4():
            ours = backend_in(config, kind) == "torch"
            return (NVFP4Format if ours else _TorchAONVFP4)(config.group_size)
        case MXFP4():
            return MXFP4Format(config.columns)
        case _:
            raise AssertionError(f"no such format: {type(config).__name__}")


class _BitsAndBytesNF4(NF4Format):
    """Blocks by kernels of bitsandbytes; the scales of scales are ours, as ranks may have boxes."""

    def __init__(self, columns: int, double: bool) -> None:
        super().__init__(columns, double)
        # It takes seconds to import, and says what it lacks.
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


class _TorchAONVFP4(NVFP4Format):
    """Numbers and scales of blocks by torchao."""

    def __init__(self, columns: int) -> None:
        super().__init__(columns)
        self._module: Any = import_torchao("prototype.mx_formats.nvfp4_tensor")

    def quantize(self, matrix: Tensor, before: Mapping[str, Tensor] | None = None) -> Parts:
        scale = self._scale(self._amax(matrix), before)
        least = scale.where(scale > 0, 1.0)[0]
        scales, codes = self._module.nvfp4_quantize(matrix.contiguous(), self._columns, least)
        return {"codes": codes, "scales": scales.view(torch.uint8), "scale": scale}

    def dequantize(
        self, parts: Mapping[str, Tensor], box: Box, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        if parts["codes"].dim() > 2:
            each = [dict(zip(parts, own, strict=True)) for own in zip(*parts.values(), strict=True)]
            return torch.stack([self.dequantize(own, box, dtype) for own in each])
        scales = parts["scales"].view(torch.float8_e4m3fn)
        given = (parts["codes"], scales, self._columns, dtype, parts["scale"][0])
        return self._module.NVFP4Tensor(*given).dequantize(dtype)
