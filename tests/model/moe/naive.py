"""A mixture of experts as one would explain it: a loop over tokens, in fp64, on plain lists."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from setpoint.model.config import TransformerConfig


@dataclass
class Answer:
    """What the layer gives.

    Arguments:
        y: (T, dim).
        counts: how often each expert was chosen.
        dropped: choices that no expert took.
        shares: (T, E) scores that sum to one.
        logits: (T, E).
        experts: the choices of each token.
    """

    y: Tensor
    counts: list[int]
    dropped: int
    shares: Tensor
    logits: Tensor
    experts: list[list[int]] = field(default_factory=list)


def matrices(state: dict[str, Tensor], expert: int, packed: bool) -> dict[str, Tensor]:
    """The projections (out, in) of one expert."""
    names = [name for name in ("gate", "up", "down") if f"experts.{name}" in state or not packed]
    if packed:
        return {name: state[f"experts.{name}"][expert].T for name in names}
    found = {name: state.get(f"experts.{expert}.{name}.weight") for name in names}
    return {name: matrix for name, matrix in found.items() if matrix is not None}


def network(parts: dict[str, Tensor], x: Tensor, activation: str) -> Tensor:
    """down(f(gate x) * up x), or down(f(up x))."""
    up = parts["up"] @ x
    if "gate" in parts:
        assert activation == "swiglu"
        gate = parts["gate"] @ x
        return parts["down"] @ (gate * torch.sigmoid(gate) * up)
    assert activation == "relu_squared"
    return parts["down"] @ (up.clamp(min=0) ** 2)


def best(values: list[float], count: int) -> list[int]:
    """Where the highest values are."""
    return sorted(range(len(values)), key=lambda i: -values[i])[:count]


def choices(ranked: list[float], config: TransformerConfig) -> list[int]:
    """The experts of one token."""
    moe = config.moe
    assert moe is not None
    size = moe.experts // moe.groups
    speakers = 1 if moe.router.__class__.__name__ == "SoftmaxTopK" else 2
    groups = [ranked[i * size : (i + 1) * size] for i in range(moe.groups)]
    rank = [sum(sorted(group)[-speakers:]) for group in groups]
    allowed = best(rank, moe.top_groups) if moe.groups > 1 else [0]
    open_ = [e if e // size in allowed else -1 for e in range(moe.experts)]
    return best([ranked[e] if e >= 0 else -math.inf for e in open_], moe.top_k)


def naive(
    config: TransformerConfig,
    state: dict[str, Tensor],
    x: Tensor,
    valid: list[bool] | None = None,
    training: bool = True,
) -> Answer:
    """Apply a layer to (T, dim) tokens.

    Arguments:
        config: of the model.
        state: the layer's tensors by name, in fp64; gradients flow into them.
        x: fp64.
        valid: which tokens are not padding.
        training: whether the capacity counts.

    Returns:
        all that the layer should give.
    """
    moe = config.moe
    assert moe is not None
    valid = valid or [True] * len(x)
    softmax = moe.router.__class__.__name__ == "SoftmaxTopK"
    logits = torch.stack([state["router.weight"] @ token for token in x])
    scores = torch.softmax(logits, 1) if softmax else 1 / (1 + torch.exp(-logits))
    limit = math.inf
    if moe.capacity_factor is not None and training:
        limit = math.ceil(sum(valid) * moe.top_k * moe.capacity_factor / moe.experts - 1e-9)
    counts, taken, dropped = [0] * moe.experts, [0] * moe.experts, 0
    outputs, chosen = [], []
    for t, token in enumerate(x):
        bias = state.get("router.bias")
        ranked = scores[t].detach() if bias is None else scores[t].detach() + bias
        experts = choices(ranked.tolist(), config)
        chosen.append(experts)
        total = sum(scores[t, e] for e in experts) if moe.router.normalize else 1.0
        y = torch.zeros_like(token)
        for e in experts:
            if not valid[t] and math.isfinite(limit):
                continue
            counts[e] += valid[t]
            if taken[e] >= limit:
                dropped += 1
                continue
            taken[e] += 1
            weight = scores[t, e] / total * moe.route_scale
            before, after = (weight, 1.0) if moe.scale_inputs else (1.0, weight)
            parts = matrices(state, e, moe.packed)
            y = y + after * network(parts, before * token, config.activation)
        if moe.shared_experts:
            shared = {n: state[f"shared.{n}.weight"] for n in ("gate", "up", "down")
                      if f"shared.{n}.weight" in state}  # fmt: skip
            y = y + network(shared, token, config.activation)
        outputs.append(y)
    shares = scores if softmax else scores / scores.sum(1, keepdim=True)
    return Answer(torch.stack(outputs), counts, dropped, shares, logits, chosen)


def naive_balance(answer: Answer, tokens: list[int], experts: int) -> Tensor:
    """E sum_i f_i P_i over some tokens."""
    top_k, total = len(answer.experts[0]), torch.zeros((), dtype=torch.float64)
    for e in range(experts):
        f = sum(answer.experts[t].count(e) for t in tokens) / (len(tokens) * top_k)
        p = sum(answer.shares[t, e] for t in tokens) / len(tokens)
        total = total + experts * f * p
    return total


def naive_z(answer: Answer, tokens: list[int]) -> Tensor:
    """The mean square of the log of the partition function."""
    squares = [torch.log(torch.exp(answer.logits[t]).sum()) ** 2 for t in tokens]
    return torch.stack(squares).mean()


def close(ours: Tensor | None, theirs: Tensor | None, tolerance: float) -> None:
    """Compare by size: the largest difference over the largest value."""
    assert ours is not None and theirs is not None
    scale = theirs.abs().max().clamp(min=1e-12)
    gap = (ours.double() - theirs.double()).abs().max() / scale
    assert gap <= tolerance, f"differ by {gap:.1e} of {scale:.1e}"
