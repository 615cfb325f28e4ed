"""Peak memory and time of an update under each way to save memory, beside none.

    cd benchmarks && python -m train.memory [--device cuda] [--rounds 10] [--precision bf16]

Losses and gradients of all must be equal to the last bit on a CPU (within rounding on a GPU)
before anything is measured. Memory is what PyTorch's allocator was asked for in one forward and
backward pass; time is that of whole updates in turns, in one process. Leaves with status 1 if one
differs, or takes more memory than none. On a CPU offloading saves nothing, and is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from harness import clocks_in_turns, devices, options, peak_bytes, ratio, verdict
from setpoint.cli.output import table
from setpoint.config import resolve
from setpoint.loss.config import ChunkedCrossEntropy
from setpoint.memory.config import ActivationOffload, CheckpointedParts, Full, Memory, Operators
from setpoint.model.config import TransformerConfig
from setpoint.model.initialize import initialize
from setpoint.model.layers import layers_of
from setpoint.shapes.batch import Batch
from setpoint.train.objective import Objective
from setpoint.units import ByteSize

# dim, layers, heads, width of the feed-forward networks, sequence, sequences, vocabulary
SHAPES = {"cpu": (256, 6, 8, 768, 256, 4, 4096), "cuda": (2048, 16, 16, 5632, 4096, 2, 32_000)}
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16}
NONE = "none"
BOTH = ("attention", "feed_forward")
WAYS: dict[str, Memory] = {
    NONE: Memory(),
    "full": Memory(activation_checkpointing=Full()),
    "full, reentrant": Memory(activation_checkpointing=Full(reentrant=True)),
    "full, every 2nd": Memory(activation_checkpointing=Full(every=2)),
    "attention": Memory(activation_checkpointing=CheckpointedParts()),
    "feed-forward": Memory(activation_checkpointing=CheckpointedParts(parts=("feed_forward",))),
    "both parts": Memory(activation_checkpointing=CheckpointedParts(parts=BOTH)),
    "operators": Memory(activation_checkpointing=Operators()),
    "operators, 2nd matmul": Memory(activation_checkpointing=Operators(matmul_every=2)),
}
OFFLOADS: dict[str, Memory] = {
    "offload": Memory(activation_offload=ActivationOffload()),
    "offload, 1 GiB stays": Memory(activation_offload=ActivationOffload(limit=ByteSize("1 GiB"))),
    "full and offload": Memory(
        activation_checkpointing=Full(), activation_offload=ActivationOffload()
    ),
}
HEADINGS = ("what is saved", "MiB", "x none", "ms", "time x none (10 %-90 %)")


class Side:
    """A model under one way, and its update.

    Arguments:
        memory: the section.
        device: where it lies.
        precision: of products.
    """

    def __init__(self, memory: Memory, device: torch.device, precision: str) -> None:
        dim, layers, heads, width, length, batch, vocabulary = SHAPES[device.type]
        config = TransformerConfig(
            dim=dim, layers=layers, heads=heads, ffn_dim=width, max_sequence_length=length
        )
        self.model: nn.Module = resolve(config).build(vocab_size=vocabulary)
        initialize(self.model, 1)
        self.model.to(device)
        memory = resolve(memory)
        if memory.activation_checkpointing is not None:
            memory.activation_checkpointing.build(layers=layers_of(self.model))
        if memory.activation_offload is not None:
            memory.activation_offload.build(model=self.model, device=device)
        self.objective = Objective(self.model, resolve(ChunkedCrossEntropy()).build())
        generator = torch.Generator().manual_seed(1)
        tokens = torch.randint(vocabulary, (2, batch, length), generator=generator).to(device)
        inputs, targets = tokens
        count = inputs.numel()
        self.batch = Batch(inputs, targets, count, count, count)
        self.device, self.dtype = device, PRECISIONS[precision]

    def gradients(self) -> tuple[Tensor, list[Tensor]]:
        """One forward and backward pass."""
        on = self.dtype is not None
        with torch.autocast(self.device.type, self.dtype or torch.bfloat16, enabled=on):
            total = self.objective(self.batch).result.total
        total.backward()
        found = [p.grad for p in self.model.parameters() if p.grad is not None]
        self.model.zero_grad(set_to_none=True)
        return total.detach(), found


def main() -> int:
    arguments = options(__doc__, device=devices(), rounds=7, precision=None)
    device, failed = torch.device(arguments.device), list[str]()
    dim, layers, _, _, length, batch, _ = SHAPES[device.type]
    print(f"{layers} layers, dim {dim}, {batch} x {length} tokens, {device}, "
          f"{torch.get_num_threads()} threads")  # fmt: skip
    for precision in [arguments.precision] if arguments.precision else PRECISIONS:
        rows, wrong = _compare(device, precision, max(2, arguments.rounds))
        print(f"\n{precision}\n{table(rows, headings=HEADINGS)}")
        failed += wrong
    return verdict(failed, "equal, and all take less memory than none")


def _compare(
    device: torch.device, precision: str, rounds: int
) -> tuple[list[list[str]], list[str]]:
    ways = WAYS | (OFFLOADS if device.type == "cuda" else {})
    sides = {name: Side(memory, device, precision) for name, memory in ways.items()}
    failed = _differences(sides, precision)
    steps: dict[str, Callable[[], object]] = {n: side.gradients for n, side in sides.items()}
    peaks = {name: peak_bytes(step, device) for name, step in steps.items()}
    times = clocks_in_turns(steps, rounds, device, warm=1).wall
    rows: list[list[str]] = []
    for name, seconds in times.items():
        slower = ratio(times, NONE, name) if name != NONE else None
        share = peaks[name] / peaks[NONE]
        middle = sorted(seconds)[len(seconds) // 2] * 1000
        cells = [f"{peaks[name] / 2**20:,.0f}", f"{share:.2f}", f"{middle:,.0f}"]
        rows.append([name, *cells, "" if slower is None else str(slower)])
        if name != NONE and share >= 1:
            failed.append(f"{precision}: {name} takes {share:.2f} of the memory of none")
    return rows, failed


def _differences(sides: dict[str, Side], precision: str) -> list[str]:
    """What is wrong with losses and gradients, if anything."""
    failed = list[str]()
    bound = 0.0 if next(iter(sides.values())).device.type == "cpu" else 1e-2
    loss, expected = sides[NONE].gradients()
    for name, side in sides.items():
        value, found = side.gradients()
        pairs = [(value, loss), *zip(found, expected, strict=True)]
        gap = max(float((a - b).norm() / b.norm()) for a, b in pairs)
        if gap > bound:
            failed.append(f"{precision}: {name} differs by {gap:.1e}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
