"""Peak memory and time of an update with each kind of activation checkpointing.

    cd benchmarks && python -m train.memory [--device cuda] [--rounds 10]

Losses and gradients must be equal, on a CPU to the last bit. Memory is that of tensors in one
forward and backward pass. Leaves with status 1 if one differs, or takes more memory than none.
With `--write` the ratios go into docs/memory.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from harness import DOCS, Report, devices, peak_bytes, write_block
from setpoint.config import resolve
from setpoint.loss.config import ChunkedCrossEntropy
from setpoint.memory.config import ActivationOffload, CheckpointedParts, Full, Memory, Operators
from setpoint.model.build import layers_of
from setpoint.model.config import TransformerConfig
from setpoint.model.initialize import initialize
from setpoint.shapes.batch import Batch
from setpoint.train.objective import Objective

# dim, layers, heads, width of the feed-forward networks, sequence, sequences, vocabulary
SHAPES = {"cpu": (256, 6, 8, 768, 256, 4, 4096), "cuda": (2048, 16, 16, 5632, 4096, 2, 32_000)}
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16}
NONE = "none"
BOTH = ("attention", "feed_forward")
WAYS: dict[str, Memory] = {
    NONE: Memory(),
    "`full`": Memory(activation_checkpointing=Full()),
    "`full`, reentrant": Memory(activation_checkpointing=Full(reentrant=True)),
    "`full`, every 2nd layer": Memory(activation_checkpointing=Full(every=2)),
    "`parts = [attention]`": Memory(activation_checkpointing=CheckpointedParts()),
    "`parts = [feed_forward]`": Memory(
        activation_checkpointing=CheckpointedParts(parts=("feed_forward",))
    ),
    "both parts": Memory(activation_checkpointing=CheckpointedParts(parts=BOTH)),
    "`operators`": Memory(activation_checkpointing=Operators()),
    "`operators`, `matmul_every = 2`": Memory(activation_checkpointing=Operators(matmul_every=2)),
}
OFFLOADS: dict[str, Memory] = {
    "offload": Memory(activation_offload=ActivationOffload()),
    "full and offload": Memory(
        activation_checkpointing=Full(), activation_offload=ActivationOffload()
    ),
}
HEADINGS = ("precision", "kind", "MiB", "x none", "ms", "speed of none / it (10 %-90 %)")


def pass_of(
    memory: Memory, device: torch.device, dtype: torch.dtype | None
) -> Callable[[], list[Tensor]]:
    """A forward and backward pass of a new model; its loss and gradients."""
    dim, layers, heads, width, length, batch, vocabulary = SHAPES[device.type]
    config = TransformerConfig(
        dim=dim, layers=layers, heads=heads, ffn_dim=width, max_sequence_length=length
    )
    model = resolve(config).build(vocab_size=vocabulary)
    initialize(model, 1)
    model.to(device)
    memory = resolve(memory)
    if memory.activation_checkpointing is not None:
        memory.activation_checkpointing.build(layers=layers_of(model))
    if memory.activation_offload is not None:
        memory.activation_offload.build(model=model, device=device)
    objective = Objective(model, resolve(ChunkedCrossEntropy()).build())
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randint(vocabulary, (2, batch, length), generator=generator).to(device)
    count = inputs.numel()
    given = Batch(inputs, targets, count, count, count)

    def gradients() -> list[Tensor]:
        with torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None):
            total = objective(given).result.total
        total.backward()
        found = [p.grad for p in model.parameters() if p.grad is not None]
        model.zero_grad(set_to_none=True)
        return [total.detach(), *found]

    return gradients


def main() -> int:
    report = Report("train.memory", __doc__, device=devices(), rounds=7)
    device = torch.device(report.options.device)
    ways = WAYS | (OFFLOADS if device.type == "cuda" else {})
    shares: dict[str, list[str]] = {name: [] for name in ways}
    for precision, dtype in PRECISIONS.items():
        steps = {name: pass_of(memory, device, dtype) for name, memory in ways.items()}
        found = {name: step() for name, step in steps.items()}
        report.agree(precision, found, 0.0 if device.type == "cpu" else 1e-2)
        peaks = {name: peak_bytes(step, device) for name, step in steps.items()}
        speeds = report.compare(precision, steps, {}, device, warm=1)
        for name, peak in peaks.items():
            share, mib = peak / peaks[NONE], f"{peak / 2**20:,.0f}"
            report.bound(name == NONE or share < 1, f"{precision}: {name} takes {share:.2f}")
            shares[name].append(f"{share:.2f}" if name != NONE else f"{mib} MiB")
            slower = str(speeds[name][0]) if name in speeds else ""
            milliseconds = f"{report.seconds[name] * 1000:,.0f}"
            report.rows.append((precision, name, mib, f"{share:.2f}", milliseconds, slower))
    if report.options.write:
        lines = [f"| {name} | {' | '.join(cells)} |" for name, cells in shares.items()]
        header = ["| | " + " | ".join(PRECISIONS) + " |", "|---" + "|--:" * len(PRECISIONS) + "|"]
        write_block(DOCS / "memory.md", "train.memory", header + lines)
    return report.finish(HEADINGS, f"{device}, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    sys.exit(main())
