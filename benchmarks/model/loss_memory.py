"""Memory and time of the output matrix and its loss: in chunks, and with full logits.

    cd benchmarks && python -m model.loss_memory [--device cuda] [--rounds 10]

A step goes from hidden states to their gradients and those of the matrix, which must agree. Leaves
with status 1 if chunks take more than a third of the memory of full logits or of transformers, or
if they are slower by more than a tenth.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from harness import Report, devices, peak_bytes
from setpoint.config import resolve
from setpoint.loss.config import ChunkedCrossEntropy, CrossEntropy
from setpoint.shapes.outcome import Projection

# tokens, dim, vocabulary
SHAPES = {"cpu": (4096, 256, 32_000), "cuda": (16_384, 2048, 128_256)}
PRECISIONS = {"fp32": (None, 1e-4), "bf16": (torch.bfloat16, 3e-2)}
BOUNDS = {"full": 1 / 1.1, "transformers": 1 / 1.1}
MOST_MEMORY = 1 / 3


def main() -> int:
    from transformers.loss.loss_utils import ForCausalLMLoss

    report = Report("model.loss_memory", __doc__, device=devices(), rounds=5)
    device = torch.device(report.options.device)
    tokens, dim, vocabulary = SHAPES[device.type]
    generator = torch.Generator(device).manual_seed(1)
    made = {"generator": generator, "device": device}
    hidden = torch.randn(1, tokens, dim, **made).requires_grad_()
    matrix = torch.randn(vocabulary, dim, **made).mul_(dim**-0.5).requires_grad_()
    targets = torch.randint(vocabulary, (1, tokens), **made)
    projection = Projection(matrix, vocabulary)
    chunked, full = (resolve(each).build() for each in (ChunkedCrossEntropy(), CrossEntropy()))
    losses: dict[str, Callable[[], Tensor]] = {
        "chunked": lambda: chunked.from_hidden(hidden, projection, targets).total / tokens,
        "full": lambda: full(projection.logits(hidden), targets).total / tokens,
        # As its models compute it; the targets are not shifted once more.
        "transformers": lambda: ForCausalLMLoss(
            F.linear(hidden, matrix), None, vocabulary, shift_labels=targets
        ),
    }
    for precision, (dtype, tolerance) in PRECISIONS.items():

        def gradients(loss: Callable[[], Tensor], dtype: torch.dtype | None) -> tuple[Tensor, ...]:
            on = dtype is not None
            with torch.autocast(device.type, dtype or torch.bfloat16, enabled=on):
                value = loss()
            return (value.detach(), *torch.autograd.grad(value, (hidden, matrix)))

        steps = {n: lambda loss=loss, d=dtype: gradients(loss, d) for n, loss in losses.items()}
        report.agree(precision, {name: step() for name, step in steps.items()}, tolerance)
        peaks = {name: peak_bytes(step, device) for name, step in steps.items()}
        speeds = report.compare(precision, steps, BOUNDS, device, warm=1)
        for other in speeds:
            small = peaks["chunked"] <= MOST_MEMORY * peaks[other]
            report.bound(small, f"{precision}: more than a third of the memory of {other}")
        for name, peak in peaks.items():
            speed = str(speeds[name][0]) if name in speeds else ""
            milliseconds = f"{report.seconds[name] * 1000:,.0f}"
            report.rows.append((precision, name, milliseconds, speed, f"{peak / 2**20:,.0f}"))
    rows = {name: row for precision, name, *row in report.rows if precision == "fp32"}
    report.results["chunked loss against full logits, 4,096 tokens, vocabulary 32,000"] = (
        f"{rows['chunked'][-1]} MiB against {rows['full'][-1]}; speed {rows['full'][1]}"
    )
    return report.finish(
        ("precision", "loss", "ms", "speed of chunked / it", "MiB"),
        f"{tokens} tokens, dim {dim}, vocabulary {vocabulary}, {device}, "
        f"{torch.get_num_threads()} threads; ratios: median (10 %-90 %)",
    )


if __name__ == "__main__":
    sys.exit(main())
