"""Errors, bits and speed of the formats of quantized bases.

    cd benchmarks && python -m adapter.quantization_error [--rows 1024] [--columns 4096]

Weights are normal, and heavy-tailed (Student's t with 4 degrees of freedom). Errors are relative:
the root mean square over that of the weights, and the largest over the largest weight. Seconds are
of a matrix, quantized once and dequantized to bf16. Leaves with status 1 if a format is worse than
the bound beside it.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import Tensor

from harness import options, record
from setpoint.adapter.quantize.config import FP8, MXFP4, NF4, NVFP4, Int8, Quantization
from setpoint.adapter.quantize.formats import Box, format_of
from setpoint.cli.output import table
from setpoint.config import resolve

FORMATS: dict[str, tuple[Quantization, float]] = {
    "nf4": (NF4(), 0.095),
    "nf4, double = false": (NF4(double=False), 0.095),
    "int8": (Int8(), 0.012),
    "int8, group_size = 64": (Int8(group_size=64), 0.007),
    "fp8": (FP8(), 0.028),
    "nvfp4": (NVFP4(), 0.1),
    "mxfp4": (MXFP4(), 0.13),
}
"""The section, and the most that the root mean square of errors of normal weights may be."""


def main() -> int:
    """Print a table."""
    given = options(__doc__, rows=1024, columns=4096)
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(given.rows, given.columns, generator=generator) * 0.02
    # Of a normal number and a chi-square one with 4 degrees of freedom.
    squares = torch.randn(4, *normal.shape, generator=generator).square().sum(0)
    heavy = normal / (squares / 4).sqrt()
    rows, wrong = [], 0
    for name, (config, bound) in FORMATS.items():
        format = format_of(resolve(config))
        start = time.perf_counter()
        parts = format.quantize(normal)
        middle = time.perf_counter()
        box = Box((0, 0), (given.rows, given.columns))
        format.dequantize(parts, box, torch.bfloat16)
        end = time.perf_counter()
        mean, most = errors(normal, format.dequantize(parts, box))
        tails, top = errors(heavy, format.dequantize(format.quantize(heavy), box))
        wrong += mean > bound
        bits = format.bits(given.rows, given.columns)
        rows.append(
            (name, f"{bits:.3f}", f"{mean:.4f}", f"{bound}", f"{most:.4f}", f"{tails:.4f}",
             f"{top:.4f}", f"{middle - start:.3f}", f"{end - middle:.3f}")
        )  # fmt: skip
    heads = ("format", "bits", "normal: rms", "bound", "largest", "heavy tails: rms", "largest")
    print(table(rows, (*heads, "quantize s", "dequantize s")))
    result = ", ".join(f"{name} {error}" for name, _, error, *_ in rows)
    record(given, "adapter.quantization_error", {
        "relative error of quantized normal weights": result
    })  # fmt: skip
    return 1 if wrong else 0


def errors(weights: Tensor, found: Tensor) -> tuple[float, float]:
    """The root mean square of errors, and the largest, relative to those of the weights."""
    away = found - weights
    return (away.norm() / weights.norm()).item(), (away.abs().max() / weights.abs().max()).item()


if __name__ == "__main__":
    sys.exit(main())
