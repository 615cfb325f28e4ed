"""Tokens per second and peak memory of forward and backward, beside transformers and plain PyTorch.

    cd benchmarks && python -m model.blocks [--device cuda] [--rounds 20] [--only llama]

The three sides have equal weights and must give equal hidden states before anything is measured.
They run in turns in one process. Leaves with status 1 if Setpoint is slower than transformers,
takes more memory, or reaches less than 0.98 of the speed of the plain blocks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from harness import clocks_in_turns, devices, misses, options, peak_bytes, ratio, record, verdict
from model.architectures import ARCHITECTURES, Body, Sides, sides_of
from model.bare import Shape
from setpoint.cli.output import table

SHAPES = {
    "cpu": (Shape(512, 512, 4, 8, 4, 64, 1408, 512, 128), 2),
    "cuda": (Shape(512, 2048, 8, 16, 8, 128, 5632, 2048, 512), 4),
}
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16}
# How far hidden states may lie apart, relative to their norm: rounding, and no more.
TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2}
AHEAD = {"transformers": 1.0, "bare": 0.98}
HEADINGS = (
    "architecture",
    "tokens/s",
    "x transformers",
    "CPU time",
    "x bare",
    "CPU time",
    "MiB",
    "transf.",
    "bare",
)


def main() -> int:
    arguments = options(__doc__, device=devices(), rounds=15, only=None, precision=None)
    device = torch.device(arguments.device)
    shape, batch = SHAPES[arguments.device]
    torch.manual_seed(1)
    tokens = torch.randint(shape.vocab_size, (batch, shape.length), device=device)
    rows: list[list[str]] = []
    failed: list[str] = []
    for name in ARCHITECTURES if arguments.only is None else (arguments.only,):
        sides = sides_of(name, shape, device)
        for precision in PRECISIONS if arguments.precision is None else (arguments.precision,):
            title = f"{name} {precision}"
            failed += _differences(title, sides, tokens, precision)
            row, missed = _compare(title, sides, tokens, precision, max(2, arguments.rounds))
            rows.append(row)
            failed += missed
    print(
        f"forward and backward of {shape.layers} layers, dim {shape.dim}, {batch} sequences of "
        f"{shape.length} tokens, {arguments.device}, {torch.get_num_threads()} threads, "
        f"{max(2, arguments.rounds)} rounds; ratios: median (10 %-90 %)\n"
    )
    print(table(rows, headings=HEADINGS))
    cells = {title: row for title, *row in rows}
    names = list(dict.fromkeys(title.partition(" ")[0] for title in cells))

    def by_precision(column: int) -> str:
        return ", ".join(
            f"{name} " + " / ".join(cells[title][column] for title in cells
                                    if title.startswith(f"{name} "))
            for name in names
        )  # fmt: skip

    record(arguments, "model.blocks", {
        "4 layers, dim 512, against `transformers`, fp32 / bf16": by_precision(2),
        "against plain PyTorch; bound 0.98": by_precision(4),
        "peak memory of a step, MiB": by_precision(5),
        "the same of `transformers`": by_precision(6),
    })  # fmt: skip
    return verdict(failed, "ahead of transformers, at least 0.98 of plain PyTorch")


def _run(body: Body, tokens: Tensor, precision: str) -> Tensor:
    dtype = PRECISIONS[precision]
    with torch.autocast(tokens.device.type, dtype or torch.bfloat16, enabled=dtype is not None):
        return body(tokens)


def _differences(title: str, sides: Sides, tokens: Tensor, precision: str) -> list[str]:
    """What is wrong with the outputs, if anything."""
    with torch.no_grad():
        found = {n: _run(body, tokens, precision).float() for n, body in sides.bodies.items()}
    ours = found["setpoint"]
    gaps = {n: ((other - ours).norm() / ours.norm()).item() for n, other in found.items()}
    bound = TOLERANCE[precision]
    return [
        f"{title}: the outputs of setpoint and {name} differ by {gap:.1e}, above {bound}"
        for name, gap in gaps.items()
        if gap > bound
    ]


def _step(module: nn.Module, body: Body, tokens: Tensor, precision: str) -> Callable[[], None]:
    """One forward and backward pass, whose gradients are dropped."""

    def step() -> None:
        _run(body, tokens, precision).float().square().mean().backward()
        module.zero_grad(set_to_none=True)

    return step


def _compare(
    title: str, sides: Sides, tokens: Tensor, precision: str, rounds: int
) -> tuple[list[str], list[str]]:
    """The row of the table, and the bounds that were missed."""
    steps = {
        name: _step(sides.modules[name], body, tokens, precision)
        for name, body in sides.bodies.items()
    }
    peaks = {name: peak_bytes(step, tokens.device) for name, step in steps.items()}
    clocks = clocks_in_turns(steps, rounds, tokens.device)
    failed: list[str] = []
    cells: list[str] = []
    for other, bound in AHEAD.items():
        found = ratio(clocks.wall, "setpoint", other)
        cells += [str(found), f"{ratio(clocks.cpu, 'setpoint', other).median:.3f}"]
        if misses(clocks, "setpoint", other, bound, tokens.device):
            failed.append(f"{title}: {found.median:.3f} of {other}, below {bound}")
    if peaks["setpoint"] > peaks["transformers"]:
        failed.append(f"{title}: takes more memory than transformers")
    speed = tokens.numel() / sorted(clocks.wall["setpoint"])[rounds // 2]
    memory = [f"{peaks[name] / 2**20:,.0f}" for name in ("setpoint", "transformers", "bare")]
    return [title, f"{speed:,.0f}", *cells, *memory], failed


if __name__ == "__main__":
    sys.exit(main())
