"""Memory and time of the head and its loss: whole logits, in chunks, and as others do it.

    cd benchmarks && python -m model.loss_memory [--device cuda] [--rounds 10]

A step goes from hidden states to the gradients of these and of the output matrix. All sides must
give the same loss and gradients before anything is measured. Memory is measured twice: what
PyTorch's allocator was asked for, and, on a CPU, by how much the peak of the resident memory rises
in a fresh process. Leaves with status 1 if chunks take more than a third of the memory of whole
logits or of transformers, or if they are slower than either by more than a tenth.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from harness import (
    clocks_in_turns,
    devices,
    forget_peak,
    memory_line,
    options,
    peak_bytes,
    ratio,
    record,
    run_module,
    verdict,
)
from setpoint.cli.output import table
from setpoint.config import resolve
from setpoint.loss.config import ChunkedCrossEntropy, CrossEntropy, LinearCrossEntropy
from setpoint.loss.linear import linear_missing
from setpoint.shapes.outcome import Projection

# tokens, dim, vocabulary
SHAPES = {"cpu": (4096, 256, 32_000), "cuda": (16_384, 2048, 128_256)}
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16}
TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2}
CHUNKED, PLAIN, OTHER = "chunked", "whole logits", "transformers"
MOST_MEMORY, LEAST_SPEED = 1 / 3, 1 / 1.1
HEADINGS = ("precision", "loss", "ms", f"speed of {CHUNKED} / it", "allocated MiB", "resident MiB")

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def losses(device: str) -> dict[str, Loss]:
    """The sides: from (1, T, D) hidden states, a (V, D) matrix and (1, T) targets to the mean."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    plain = resolve(CrossEntropy()).build()

    def whole(hidden: Tensor, matrix: Tensor, targets: Tensor) -> Tensor:
        logits = Projection(matrix, len(matrix)).logits(hidden)
        return plain(logits, targets).total / targets.numel()

    def transformers(hidden: Tensor, matrix: Tensor, targets: Tensor) -> Tensor:
        # As its models do it; the targets are given as they are, not shifted once more.
        return ForCausalLMLoss(F.linear(hidden, matrix), None, len(matrix), shift_labels=targets)

    def from_hidden(loss: object) -> Loss:
        def mean(hidden: Tensor, matrix: Tensor, targets: Tensor) -> Tensor:
            projection = Projection(matrix, len(matrix))
            return loss.from_hidden(hidden, projection, targets).total / targets.numel()  # pyright: ignore[reportAttributeAccessIssue]

        return mean

    sides = {
        CHUNKED: from_hidden(resolve(ChunkedCrossEntropy()).build()),
        PLAIN: whole,
        OTHER: transformers,
    }
    if linear_missing() is None:
        sides["torch linear"] = from_hidden(resolve(LinearCrossEntropy()).build())
    return sides


class Head:
    """Hidden states, output matrix and targets, and the step that is measured.

    Arguments:
        device: where they lie.
        precision: what products are computed in.
    """

    def __init__(self, device: str, precision: str) -> None:
        tokens, dim, vocabulary = SHAPES[device]
        generator = torch.Generator(device).manual_seed(1)
        options = {"generator": generator, "device": device}
        self.hidden = torch.randn(1, tokens, dim, **options).requires_grad_()
        self.matrix = torch.randn(vocabulary, dim, **options).mul_(dim**-0.5).requires_grad_()
        self.targets = torch.randint(vocabulary, (1, tokens), **options)
        self.device, self.dtype = device, PRECISIONS[precision]

    def gradients(self, loss: Loss) -> tuple[Tensor, Tensor, Tensor]:
        """Take one step."""
        on = self.dtype is not None
        with torch.autocast(self.device, self.dtype or torch.bfloat16, enabled=on):
            value = loss(self.hidden, self.matrix, self.targets)
        hidden, matrix = torch.autograd.grad(value, (self.hidden, self.matrix))
        return value.detach(), hidden, matrix


def main() -> int:
    arguments = options(__doc__, device=devices(), rounds=5, resident=[""])
    if arguments.resident:
        print(_resident_here(*arguments.resident))
        return 0
    rows: list[list[str]] = []
    failed: list[str] = []
    for precision in PRECISIONS:
        found, missed = _compare(arguments.device, precision, max(2, arguments.rounds))
        rows += found
        failed += missed
    tokens, dim, vocabulary = SHAPES[arguments.device]
    print(
        f"{tokens} tokens, dim {dim}, vocabulary {vocabulary}, {arguments.device}, "
        f"{torch.get_num_threads()} threads; ratios: median (10 %-90 %)\n"
    )
    print(table(rows, headings=HEADINGS))
    memory = {name: mib for precision, name, _, _, mib, _ in rows if precision == "fp32"}
    speed = next(row[3] for row in rows if row[:2] == ["fp32", PLAIN])
    record(arguments, "model.loss_memory", {
        "chunked loss against full logits, 4,096 tokens, vocabulary 32,000":
            f"{memory[CHUNKED]} MiB against {memory[PLAIN]}; speed {speed}"
    })  # fmt: skip
    return verdict(failed, "at most a third of the memory, and no slower")


def _compare(device: str, precision: str, rounds: int) -> tuple[list[list[str]], list[str]]:
    """The rows of the table, and what was missed."""
    head, sides = Head(device, precision), losses(device)
    failed = _differences(head, sides, precision)
    steps = {name: lambda loss=loss: head.gradients(loss) for name, loss in sides.items()}
    allocated = {name: peak_bytes(step, head.hidden.device) for name, step in steps.items()}
    times = clocks_in_turns(steps, rounds, head.hidden.device, warm=1).wall
    resident = {name: _resident(name, precision) if device == "cpu" else 0 for name in sides}
    rows: list[list[str]] = []
    for name in sides:
        speed = ratio(times, CHUNKED, name)
        milliseconds = sorted(times[name])[rounds // 2] * 1000
        figures = (allocated[name], resident[name])
        cells = [f"{bytes_ / 2**20:,.0f}" if bytes_ else "" for bytes_ in figures]
        rows.append([precision, name, f"{milliseconds:,.0f}", str(speed), *cells])
        if name not in (PLAIN, OTHER):
            continue
        if speed.median < LEAST_SPEED:
            failed.append(f"{precision}: {speed.median:.3f} of the speed of {name}")
        for what, bytes_ in (("allocated", allocated), ("resident", resident)):
            if bytes_[CHUNKED] > MOST_MEMORY * bytes_[name]:
                failed.append(f"{precision}: more than a third of what {name} {what}")
    return rows, failed


def _differences(head: Head, sides: dict[str, Loss], precision: str) -> list[str]:
    """What is wrong with losses and gradients, if anything."""
    bound, failed = TOLERANCE[precision], list[str]()
    expected = head.gradients(sides[PLAIN])
    for name, loss in sides.items():
        for ours, theirs in zip(head.gradients(loss), expected, strict=True):
            gap = float((ours - theirs).norm() / theirs.norm())
            if gap > bound:
                failed.append(f"{precision}: {name} differs by {gap:.1e}, above {bound}")
    return failed


def _resident(name: str, precision: str) -> int:
    """By how many bytes a step raises the peak of a fresh process."""
    # What is freed is given back at once, so that the peak is that of what is in use.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    return int(
        run_module(
            "model.loss_memory", "--device", "cpu", "--resident", name, precision, env=environment
        )
    )


def _resident_here(name: str, precision: str) -> int:
    head, loss = Head("cpu", precision), losses("cpu")[name]
    small = Head("cpu", precision)
    small.targets, small.hidden = small.targets[:, :8], small.hidden[:, :8].detach()
    small.hidden.requires_grad_()
    small.gradients(loss)  # loads what is loaded once
    before = forget_peak()
    head.gradients(loss)
    return memory_line("VmHWM") - before


if __name__ == "__main__":
    sys.exit(main())
