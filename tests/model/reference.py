"""The transformer once more, in plain mathematics: float64, loops over heads, no fused anything."""

import math

import torch
from torch import Tensor


def rope_angle(position: int, plane: int, head_dim: int, base: float) -> float:
    return position / base ** (2 * plane / head_dim)


def rotate(vector: Tensor, position: int, base: float) -> Tensor:
    """Turn each pair (i, i + half) of one head's vector by the angle of its position."""
    half = vector.shape[0] // 2
    turned = vector.clone()
    for i in range(half):
        angle = rope_angle(position, i, 2 * half, base)
        a, b = vector[i], vector[i + half]
        turned[i] = a * math.cos(angle) - b * math.sin(angle)
        turned[i + half] = a * math.sin(angle) + b * math.cos(angle)
    return turned


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + eps) * weight


def attention(config, weights: dict[str, Tensor], x: Tensor, positions: list[int]) -> Tensor:
    """(S, dim) -> (S, dim), one query at a time."""
    size, group = config.head_dim, config.heads // config.kv_heads
    q, k, v = (x @ weights[f"{name}.weight"].T for name in ("query", "key", "value"))
    rows = []
    for s in range(x.shape[0]):
        mixed = []
        for head in range(config.heads):
            kv = head // group
            query = rotate(q[s, head * size : (head + 1) * size], positions[s], config.rope_base)
            scores = torch.stack(
                [
                    query
                    @ rotate(k[t, kv * size : (kv + 1) * size], positions[t], config.rope_base)
                    for t in range(s + 1)
                ]
            ) / math.sqrt(size)
            share = torch.exp(scores - scores.max())
            share = share / share.sum()
            mixed.append(share @ v[: s + 1, kv * size : (kv + 1) * size])
        rows.append(torch.cat(mixed))
    return torch.stack(rows) @ weights["output.weight"].T


def feed_forward(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    gate = x @ weights["gate.weight"].T
    return (gate / (1 + torch.exp(-gate)) * (x @ weights["up.weight"].T)) @ weights["down.weight"].T


def below(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: t for name, t in state.items() if name.startswith(prefix)}


def logits(config, state: dict[str, Tensor], tokens: list[int], positions: list[int]) -> Tensor:
    """One sequence's (S, V) logits in float64 from a state dict."""
    state = {name: tensor.double() for name, tensor in state.items()}
    x = state["embedding.weight"][tokens]
    for index in range(config.layers):
        layer = below(state, f"layers.{index}.")
        normed = norm(x, layer["attention_norm.weight"], config.norm_eps)
        x = x + attention(config, below(layer, "attention."), normed, positions)
        normed = norm(x, layer["feed_forward_norm.weight"], config.norm_eps)
        x = x + feed_forward(below(layer, "feed_forward."), normed)
    x = norm(x, state["norm.weight"], config.norm_eps)
    return x @ state.get("output.weight", state["embedding.weight"]).T
