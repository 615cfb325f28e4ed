"""The bare loop of `gpu.bench`: plain PyTorch on the same shapes, and nothing of Setpoint.

    python -m gpu.bare SHAPE.json FOLDER

It is what a careful engineer writes for one model and one GPU: fused AdamW, clipping, compiled
layers, a loss in chunks whose gradient is taken at once. Weights and tokens are random.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint

from model.bare import LlamaBlock, RMSNorm, Shape, rotation

ROWS = 1024
"""Of the logits that exist at a time."""
LR, CLIP = 3e-4, 1.0


class Experts(nn.Module):
    """A softmax over experts, of which each token takes some; SwiGLU, one product for all."""

    def __init__(self, s: dict[str, Any]) -> None:
        super().__init__()
        count, dim, inner = s["experts"], s["dim"], s["expert_dim"]
        self.count, self.top_k = count, s["top_k"]
        self.router = nn.Linear(dim, count, bias=False)
        self.gate = nn.Parameter(torch.empty(count, dim, inner))
        self.up = nn.Parameter(torch.empty(count, dim, inner))
        self.down = nn.Parameter(torch.empty(count, inner, dim))

    def forward(self, x: Tensor) -> Tensor:
        """Transform (B, S, dim)."""
        rows = x.flatten(0, 1)
        with torch.autocast(x.device.type, enabled=False):
            scores = F.linear(rows.float(), self.router.weight.float()).softmax(-1)
        weights, chosen = scores.topk(self.top_k)
        weights = weights / weights.sum(-1, keepdim=True)
        flat = chosen.flatten()
        order, ones = flat.argsort(), torch.ones_like(flat)
        # As bincount, whose shape a compiler does not know.
        counts = flat.new_zeros(self.count).scatter_add_(0, flat, ones)
        ends = counts.cumsum(0).to(torch.int32)
        sent = rows[order // self.top_k].to(torch.bfloat16)
        inner = F.silu(products(sent, self.gate, ends)) * products(sent, self.up, ends)
        out = products(inner, self.down, ends) * weights.flatten()[order, None]
        return (
            torch.zeros_like(rows).index_add(0, order // self.top_k, out.to(rows.dtype)).view_as(x)
        )


def products(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Rows, sorted by expert, with the matrix of their expert each."""
    matrices = matrices.to(torch.bfloat16)
    if rows.is_cuda:
        return torch.nn.functional.grouped_mm(rows, matrices, offs=ends)
    sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
    return torch.cat([part @ own for part, own in zip(rows.split(sizes), matrices, strict=True)])


class Model(nn.Module):
    """Tokens to hidden states; `output` makes logits of them."""

    def __init__(self, s: dict[str, Any]) -> None:
        super().__init__()
        shape = Shape(*(s[name] for name in Shape._fields[:-1]), window=0)
        self.embedding = nn.Embedding(s["vocab_size"], s["dim"])
        self.layers = nn.ModuleList(
            LlamaBlock(shape, s["eps"], s["qk_norm"]) for _ in range(s["layers"])
        )
        if s["experts"]:
            for layer in self.layers:
                layer.feed_forward = Experts(s)
        self.norm = RMSNorm(s["dim"], s["eps"])
        self.output = nn.Linear(s["dim"], s["vocab_size"], bias=False)
        if s["tied"]:
            self.output.weight = self.embedding.weight
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)
        self.recompute, self.base, self.size = s["recompute"], s["base"], s["head_dim"]

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, S) to (B, S, dim)."""
        turn = rotation(tokens.shape[1], self.size, self.base, tokens.device)
        x = self.embedding(tokens)
        for layer in self.layers:
            if self.recompute:
                x = checkpoint(layer, x, turn, use_reentrant=False)
            else:
                x = layer(x, turn)
        return self.norm(x)


class Loop:
    """Trains on random tokens."""

    def __init__(self, s: dict[str, Any]) -> None:
        self.s, self.device = s, torch.device(s["device"])
        self.generator = torch.Generator().manual_seed(1)
        torch.manual_seed(1)
        with self.device:
            torch.set_default_dtype(torch.bfloat16 if s["params"] == "bf16" else torch.float32)
            self.model = Model(s)
            torch.set_default_dtype(torch.float32)
        if s["float8"]:
            from torchao.float8 import Float8LinearConfig, convert_to_float8_training

            convert_to_float8_training(
                self.model.layers, config=Float8LinearConfig(emulate=self.device.type == "cpu")
            )
        if s["compile"]:
            for layer in self.model.layers:
                layer.compile()
        self.parameters = list(self.model.parameters())
        groups = [
            {"params": [p for p in self.parameters if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in self.parameters if p.ndim == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), fused=True)
        self.autocast = partial(
            torch.autocast, self.device.type, torch.bfloat16, enabled=s["params"] == "fp32"
        )

    def micro_batch(self) -> Tensor:
        """Forward and backward; the sum of the loss."""
        s = self.s
        size = (s["micro"], s["length"] + 1)
        rows = torch.randint(s["vocab_size"], size, generator=self.generator).to(self.device)
        with self.autocast():
            hidden = self.model(rows[:, :-1])
        tokens = s["micro"] * s["accumulation"] * s["length"]
        cut, total = hidden.detach().requires_grad_(), torch.zeros((), device=self.device)
        parts = zip(cut.flatten(0, 1).split(ROWS), rows[:, 1:].flatten().split(ROWS), strict=True)
        for part, targets in parts:
            with self.autocast():
                logits = self.model.output(part)
            loss = F.cross_entropy(logits.float(), targets, reduction="sum") / tokens
            loss.backward()
            total += loss.detach()
        hidden.backward(cut.grad)
        return total

    def step(self) -> Tensor:
        """Take one update."""
        losses = [self.micro_batch() for _ in range(self.s["accumulation"])]
        torch.nn.utils.clip_grad_norm_(self.parameters, CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return torch.stack(losses).sum()

    def peak(self) -> int:
        """The most bytes that tensors have taken; of the process on a CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(s: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train, and profile some steps at the end."""
    loop, times, losses = Loop(s), list[float](), list[float]()
    for step in range(1, s["timed"] + 1):
        loss = loop.step()
        if step % s["chunk"] == 0:
            losses.append(loss.item())
            times.append(time.time())
    peak, trace = loop.peak(), folder / "trace.json"
    activities = [ProfilerActivity.CPU]
    if loop.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    plan = schedule(wait=0, warmup=1, active=s["profiled"], repeat=1)
    with profile(activities=activities, schedule=plan) as seen:
        for _ in range(1 + s["profiled"]):
            loop.step()
            seen.step()
    seen.export_chrome_trace(str(trace))
    return {"times": times, "losses": losses, "peak_bytes": peak, "trace": str(trace)}


def main(shape: str, folder: str) -> None:
    """Run, and write down what came out."""
    found = run(json.loads(Path(shape).read_text()), Path(folder))
    Path(folder, "bare.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
