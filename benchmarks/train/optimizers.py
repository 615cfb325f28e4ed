"""Seconds for a step of each optimizer, beside PyTorch's own or the authors'.

    cd benchmarks && python -m train.optimizers [--device cuda] [--rounds 20] [--only muon]

Both sides have the weights of a transformer and random gradients, and must give the same weights
before anything is measured. They run in turns in one process. Leaves with status 1 if weights
differ, or a side takes longer than its bound allows. Schedule-free AdamW is left out where the
package schedulefree is not installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from harness import Report, devices
from setpoint.config import resolve
from setpoint.optim import config

# Layers, dim, inner dim, key and value dim, vocabulary.
SHAPES = {"cpu": (4, 512, 1408, 128, 4096), "cuda": (16, 2048, 8192, 512, 32768)}
HEADINGS = ("optimizer", "beside", "ms", "ratio", "CPU time", "weights differ by")
Groups = list[dict[str, Any]]


class Side(NamedTuple):
    """An optimizer of ours and the one it is measured beside.

    Arguments:
        ours, theirs: from groups to what takes a step.
        beside: what the other is.
        tolerance: how far weights may lie apart after three steps.
        bound: the least ratio of speeds; 0 where the other does less.
        dtype: of the weights.
    """

    ours: Callable[[Groups], Callable[[], object]]
    theirs: Callable[[Groups], Callable[[], object]]
    beside: str
    tolerance: float = 0.0
    bound: float = 0.95
    dtype: torch.dtype = torch.float32


def weights(device: torch.device, dtype: torch.dtype) -> Groups:
    """Groups of matrices and of all else, with gradients."""
    layers, dim, inner, key_value, vocabulary = SHAPES[device.type]
    one = [(dim, dim)] * 2 + [(key_value, dim)] * 2 + [(inner, dim)] * 2 + [(dim, inner)]
    generator = torch.Generator(device).manual_seed(1)

    def parameter(*shape: int) -> nn.Parameter:
        def draw() -> Tensor:
            return torch.randn(shape, device=device, generator=generator).mul_(0.02).to(dtype)

        made = nn.Parameter(draw())
        made.grad = draw()
        return made

    matrices = [parameter(*shape) for _ in range(layers) for shape in one]
    norms = [parameter(dim) for _ in range(2 * layers + 1)]
    tables = [parameter(vocabulary, dim) for _ in range(2)]
    return [
        {"params": matrices, "weight_decay": 0.1},
        {"params": [*tables, *norms], "weight_decay": 0.0},
    ]


class ReferenceLion(torch.optim.Optimizer):
    """Lion, tensor by tensor, as the authors' code has it."""

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update all parameters."""
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = mean * 0.9 + p.grad * 0.1
                p.add_(update.sign_(), alpha=-group["lr"])
                mean.mul_(0.99).add_(p.grad, alpha=0.01)


def ours(section: Any, **options: Any) -> Callable[[Groups], Callable[[], object]]:
    """Build one of our optimizers."""

    def make(groups: Groups) -> Callable[[], object]:
        first, *rest = groups
        rest = [{**group, "algorithm": "adamw"} for group in rest] if options else rest
        return resolve(section).build(parameters=[{**first, **options}, *rest]).step

    return make


def torch_muon(groups: Groups) -> Callable[[], object]:
    """PyTorch's Muon for matrices and its AdamW for the rest."""
    muon = torch.optim.Muon(groups[:1], lr=0.02)
    adamw = torch.optim.AdamW(groups[1:], lr=0.02, betas=(0.9, 0.95), fused=True)
    return lambda: (muon.step(), adamw.step())


def torch_adamw(groups: Groups) -> Callable[[], object]:
    """PyTorch's fused AdamW."""
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True).step


def overwriting(
    make: Callable[[Groups], Callable[[], object]],
) -> Callable[[Groups], Callable[[], object]]:
    """Give an optimizer that overwrites gradients the same ones at each step."""

    def made(groups: Groups) -> Callable[[], object]:
        step = make(groups)
        tensors = [p for group in groups for p in group["params"]]
        gradients = [p.grad.clone() for p in tensors]

        def whole() -> None:
            for p, gradient in zip(tensors, gradients, strict=True):
                p.grad.copy_(gradient)
            step()

        return whole

    return made


def schedule_free(groups: Groups) -> Callable[[], object]:
    """The authors' optimizer."""
    made: Any = import_module("schedulefree").AdamWScheduleFree(groups, lr=3e-4)
    made.train()
    return made.step


SIDES = {
    "adamw": Side(ours(config.AdamWConfig()), torch_adamw, "torch, fused"),
    "sgd": Side(
        ours(config.SGDConfig(lr=0.01)),
        lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9, fused=True).step,
        "torch, fused",
    ),
    "adafactor": Side(
        ours(config.AdafactorConfig()), lambda groups: torch.optim.Adafactor(groups).step, "torch"
    ),
    "muon": Side(
        ours(config.MuonConfig(), algorithm="muon"), torch_muon, "torch's Muon and AdamW", 2e-3
    ),
    "lion": Side(
        ours(config.LionConfig()),
        lambda groups: ReferenceLion(groups, {"lr": 1e-4}).step,
        "the authors' loop",
        1e-6,
    ),
    "schedule_free_adamw": Side(
        overwriting(ours(config.ScheduleFreeAdamWConfig())),
        overwriting(schedule_free),
        "schedulefree",
    ),
    # PyTorch's rounds to the nearest number, and so does less.
    "anyprecision_adamw, bf16, nearest": Side(
        ours(config.AnyPrecisionAdamWConfig(rounding="nearest")),
        torch_adamw,
        "torch's AdamW in bf16, fused",
        2e-3,
        0.0,
        torch.bfloat16,
    ),
    "anyprecision_adamw, bf16, stochastic": Side(
        ours(config.AnyPrecisionAdamWConfig()),
        torch_adamw,
        "torch's AdamW in bf16, fused",
        2e-3,
        0.0,
        torch.bfloat16,
    ),
}


def main() -> int:
    report = Report("train.optimizers", __doc__, device=devices(), rounds=15, only=None)
    device, speeds = torch.device(report.options.device), list[str]()
    for name in SIDES if report.options.only is None else (report.options.only,):
        if name == "schedule_free_adamw" and find_spec("schedulefree") is None:
            report.leave_out(name, "schedulefree")
            continue
        side = SIDES[name]
        mine, other = weights(device, side.dtype), weights(device, side.dtype)
        steps = {"ours": side.ours(mine), "theirs": side.theirs(other)}
        for _ in range(3):
            for step in steps.values():
                step()
        pairs = zip(_tensors(mine), _tensors(other), strict=True)
        gap = max(float((a - b).abs().max()) for a, b in pairs)
        report.bound(gap <= side.tolerance, f"{name}: weights differ by {gap:.3g}")
        wall, cpu = report.compare(name, steps, {"theirs": side.bound}, device)["theirs"]
        milliseconds = f"{1e3 * report.seconds['ours']:.1f}"
        row = (name, side.beside, milliseconds, str(wall), f"{cpu.median:.3f}", f"{gap:.2g}")
        report.rows.append(row)
        speeds.append(f"{name} {cpu.median:.3f}")
    report.results["a step of 15.5 million weights against `torch.optim` or the authors' code"] = (
        f"{', '.join(speeds)} by CPU time"
    )
    count = sum(tensor.numel() for tensor in _tensors(weights(device, torch.bfloat16)))
    return report.finish(
        HEADINGS,
        f"a step over {count / 1e6:.1f} million weights, {device}, {torch.get_num_threads()} "
        f"threads; ratios: median (10 %-90 %)",
    )


def _tensors(groups: Groups) -> list[Tensor]:
    return [p.detach() for group in groups for p in group["params"]]


if __name__ == "__main__":
    sys.exit(main())
