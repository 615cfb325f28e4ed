"""A layer of experts: grouped against loop, packed against not, and beside transformers.

    cd benchmarks && python -m model.moe [--device cuda] [--rounds 20] [--only few]

The sides have equal weights and must give equal outputs before anything is measured. They run
forward and backward in turns in one process. Setpoint's also compute their balance losses and
counts, which the block of transformers (Qwen3-MoE) does not. Leaves with status 1 if `auto` takes
more memory than transformers, or is slower than transformers or the loop in nine of ten rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from harness import Report, devices, peak_bytes
from setpoint.config import resolve
from setpoint.model.config import TransformerConfig
from setpoint.model.initialize import initialize
from setpoint.model.moe.config import MoE
from setpoint.model.moe.layer import MoELayer


class Shape(NamedTuple):
    """Sizes of one layer; `width` is that of an expert."""

    tokens: int
    dim: int
    width: int
    experts: int
    top_k: int


SHAPES = {
    "cpu": {
        "few": Shape(2048, 256, 512, 8, 2),
        "many": Shape(2048, 256, 128, 32, 4),
        "fine": Shape(1024, 512, 256, 64, 8),
    },
    "cuda": {"few": Shape(16384, 4096, 14336, 8, 2), "many": Shape(16384, 2048, 768, 128, 8)},
}
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
# In bf16 logits are rounded before the softmax on the other side, so that a token whose choices are
# close goes elsewhere.
TOLERANCE = {"fp32": 1e-5, "bf16": 0.1}
WAYS = {
    "grouped": {"implementation": "grouped"},
    "loop": {"implementation": "loop"},
    "unpacked": {"packed": False},
}
# How much more memory it may take: routers compute in fp32, those of transformers do not.
MEMORY = 1.02
HEADINGS = ("shape", "tokens/s", "x loop", "x unpacked", "x transformers", "MiB", "transformers")


def main() -> int:
    report = Report("model.moe", __doc__, device=devices(), rounds=20, only=None)
    device, against = torch.device(report.options.device), list[str]()
    for name, shape in SHAPES[device.type].items():
        if report.options.only not in (None, name):
            continue
        # A GPU has a grouped product in bf16 only, in which experts are trained there.
        for precision in PRECISIONS if device.type == "cpu" else ("bf16",):
            against.append(_compare(report, f"{name} {precision}", shape, precision, device))
    report.results["one MoE layer against `transformers`' Qwen3-MoE"] = ", ".join(against)
    return report.finish(
        HEADINGS,
        f"forward and backward of one layer of experts, {device}, {torch.get_num_threads()} "
        f"threads; tokens/s and memory of `auto`; ratios: median (10 %-90 %)",
    )


def _compare(report: Report, title: str, shape: Shape, precision: str, device: torch.device) -> str:
    """Compare all ways; the ratio to transformers."""
    sides: dict[str, nn.Module] = {way: _ours(shape, fields) for way, fields in WAYS.items()}
    sides["transformers"] = _theirs(shape, sides["grouped"])
    for module in sides.values():
        module.to(device, PRECISIONS[precision])
    torch.manual_seed(1)
    x = torch.randn(1, shape.tokens, shape.dim, device=device, dtype=PRECISIONS[precision])
    with torch.no_grad():
        outputs = {side: [_output(module, x)] for side, module in sides.items()}
    report.agree(title, outputs, TOLERANCE[precision])
    steps = {side: _step(module, x) for side, module in sides.items()}
    peaks: dict[str, int] = {}
    for side, step in steps.items():
        for module in sides.values():
            module.zero_grad(set_to_none=True)
        peaks[side] = peak_bytes(step, device)
    found = report.compare(title, steps, {}, device)
    for other in ("loop", "transformers"):
        report.bound(found[other][0].high >= 1.0, f"{title}: slower than {other}")
    small = peaks["grouped"] <= MEMORY * peaks["transformers"]
    report.bound(small, f"{title}: takes more memory than transformers")
    speed = f"{shape.tokens / report.seconds['grouped']:,.0f}"
    memory = [f"{peaks[side] / 2**20:,.0f}" for side in ("grouped", "transformers")]
    report.rows.append((title, speed, *(str(wall) for wall, _ in found.values()), *memory))
    return f"{title} {found['transformers'][0]}"


def _ours(shape: Shape, fields: dict[str, object]) -> MoELayer:
    moe = MoE(experts=shape.experts, top_k=shape.top_k, expert_dim=shape.width, **fields)
    sizes = {"dim": shape.dim, "heads": 4, "max_sequence_length": shape.tokens}
    layer = MoELayer(resolve(TransformerConfig(**sizes, moe=moe)), 0)
    initialize(layer, 1)
    return layer


def _theirs(shape: Shape, ours: nn.Module) -> nn.Module:
    """The block of transformers with our weights, computed as it does by default."""
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    config = Qwen3MoeConfig(
        hidden_size=shape.dim,
        moe_intermediate_size=shape.width,
        num_experts=shape.experts,
        num_experts_per_tok=shape.top_k,
        norm_topk_prob=True,
        experts_implementation="grouped_mm",
    )
    block = Qwen3MoeSparseMoeBlock(config)
    state = ours.state_dict()
    gate, up = (state[f"experts.{name}"].transpose(1, 2) for name in ("gate", "up"))
    with torch.no_grad():
        block.gate.weight.copy_(state["router.weight"])
        block.experts.gate_up_proj.copy_(torch.cat((gate, up), dim=1))
        block.experts.down_proj.copy_(state["experts.down"].transpose(1, 2))
    return block


def _output(module: nn.Module, x: Tensor) -> Tensor:
    y = module(x)
    return y[0] if isinstance(y, tuple) else y


def _step(module: nn.Module, x: Tensor) -> Callable[[], None]:
    """One forward and backward pass from and to hidden states; gradients are dropped."""
    gradient = torch.randn_like(x)
    own = x.clone().requires_grad_()

    def step() -> None:
        module.zero_grad(set_to_none=True)
        own.grad = None
        if isinstance(module, MoELayer):
            y, routing = module(own)
            torch.autograd.backward(
                (y, routing.balance), (gradient, 0.01 * routing.balance.detach())
            )
        else:
            _output(module, own).backward(gradient)

    return step


if __name__ == "__main__":
    sys.exit(main())
