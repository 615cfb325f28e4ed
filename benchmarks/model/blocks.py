"""Forward, backward and generation of three architectures, against transformers and plain PyTorch.

    cd benchmarks && python -m model.blocks [--device cuda] [--rounds 20] [--only llama]

The sides have equal weights and must give equal hidden states and tokens. Leaves with status 1 if
Setpoint is slower than transformers or takes more memory, or reaches less than 0.98 of the speed of
plain PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from harness import Report, devices, peak_bytes
from model.architectures import ARCHITECTURES, Body, Sides, sides_of
from model.bare import Shape
from setpoint.infer.generation import Sampling, generate

# By device: the shape, sequences of a batch, and tokens of a prompt and behind it.
SHAPES = {
    "cpu": (Shape(4096, 512, 4, 8, 4, 64, 1408, 512, 128), 2, 64, 128),
    "cuda": (Shape(32_000, 2048, 8, 16, 8, 128, 5632, 2048, 512), 4, 512, 256),
}
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16}
# How far hidden states may lie apart, relative to their norm: rounding, and no more.
TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2}
BOUNDS = {"transformers": 1.0, "bare": 0.98}
HEADINGS = ("", "tokens/s", "x transformers", "CPU time", "x bare", "CPU time", "MiB", "transf.",
            "bare")  # fmt: skip


def main() -> int:
    report = Report("model.blocks", __doc__, device=devices(), rounds=9, only=None)
    chosen = report.options
    device, (shape, batch, prompt, count) = torch.device(chosen.device), SHAPES[chosen.device]
    torch.manual_seed(1)
    tokens = torch.randint(shape.vocab_size, (batch, shape.length), device=device)
    found: dict[str, list[str]] = {key: [] for key in ("transformers", "bare", "memory", "text")}
    for name in ARCHITECTURES if chosen.only is None else (chosen.only,):
        sides, theirs = sides_of(name, shape, device)
        cells: dict[str, list[str]] = {key: [] for key in found}
        for precision in PRECISIONS:
            measured = _passes(report, f"{name} {precision}", sides, tokens, precision)
            for key, cell in zip(cells, measured, strict=False):
                cells[key].append(cell)
        theirs.eval()
        writers = _writers(theirs, sides.modules["setpoint"], tokens[:1, :prompt], count)
        title = f"{name}, greedy tokens"
        report.bound(writers["setpoint"]() == writers["transformers"](), f"{title} differ")
        wall, cpu = report.compare(title, writers, BOUNDS, device, warm=1)["transformers"]
        speed = f"{count / report.seconds['setpoint']:,.0f}"
        report.rows.append((title, speed, str(wall), f"{cpu.median:.3f}"))
        cells["text"].append(f"{cpu.median:.3f}")
        for key, values in cells.items():
            found[key].append(f"{name} {' / '.join(values)}")
    shown = dict(zip(found, map(", ".join, found.values()), strict=True))
    report.results = {
        "4 layers, dim 512, against `transformers`, fp32 / bf16": shown["transformers"],
        "against plain PyTorch; bound 0.98": shown["bare"],
        "peak memory of a step over that of `transformers`": shown["memory"],
        "greedy tokens with a cache against `transformers`, one prompt": shown["text"],
    }
    return report.finish(
        HEADINGS,
        f"forward and backward of {shape.layers} layers, dim {shape.dim}, {batch} sequences of "
        f"{shape.length} tokens, and {count} tokens behind a prompt of {prompt}; {device}, "
        f"{torch.get_num_threads()} threads; ratios: median (10 %-90 %)",
    )


def _passes(
    report: Report, title: str, sides: Sides, tokens: Tensor, precision: str
) -> tuple[str, str, str]:
    """Ratios to transformers and plain PyTorch by CPU time, and of memory."""
    dtype, device = PRECISIONS[precision], tokens.device

    def run(body: Body) -> Tensor:
        with torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None):
            return body(tokens)

    def step_of(module: nn.Module, body: Body) -> Callable[[], None]:
        def step() -> None:
            run(body).float().square().mean().backward()
            module.zero_grad(set_to_none=True)

        return step

    with torch.no_grad():
        hidden = {name: [run(body)] for name, body in sides.bodies.items()}
    report.agree(title, hidden, TOLERANCE[precision])
    steps = {name: step_of(sides.modules[name], body) for name, body in sides.bodies.items()}
    peaks = {name: peak_bytes(step, device) for name, step in steps.items()}
    speeds = report.compare(title, steps, BOUNDS, device)
    less = peaks["setpoint"] <= peaks["transformers"]
    report.bound(less, f"{title}: takes more memory than transformers")
    cells = [cell for wall, cpu in speeds.values() for cell in (str(wall), f"{cpu.median:.3f}")]
    memory = [f"{peaks[name] / 2**20:,.0f}" for name in ("setpoint", *speeds)]
    speed = f"{tokens.numel() / report.seconds['setpoint']:,.0f}"
    report.rows.append((title, speed, *cells, *memory))
    return cells[1], cells[3], f"{peaks['setpoint'] / peaks['transformers']:.2f}"


def _writers(theirs: Any, ours: Any, prompt: Tensor, count: int) -> dict[str, Callable[[], Any]]:
    """Both ways to continue a prompt; each returns the new tokens only."""
    from transformers import GenerationConfig

    sampling, mask = Sampling(temperature=0), torch.ones_like(prompt)
    given = {"max_new_tokens": count, "min_new_tokens": count, "pad_token_id": 0}
    config = GenerationConfig(do_sample=False, use_cache=True, eos_token_id=None, **given)

    def write_ours() -> list[int]:
        (written,) = generate(ours, prompt.tolist(), max_tokens=count, sampling=sampling)
        return written.tokens

    def write_theirs() -> list[int]:
        written = theirs.generate(prompt, attention_mask=mask, generation_config=config)
        return written[0, prompt.shape[1] :].tolist()

    return {"setpoint": write_ours, "transformers": write_theirs}


if __name__ == "__main__":
    sys.exit(main())
