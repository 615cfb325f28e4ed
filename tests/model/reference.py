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


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | float, eps: float) -> Tensor:
    x = x - x.sum(-1, keepdim=True) / x.shape[-1]
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + eps) * weight + bias


def any_norm(config, weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """Whichever norm the configuration asks for."""
    if type(config.norm).__name__ == "LayerNormConfig":
        return layer_norm(x, weights["weight"], weights.get("bias", 0.0), config.norm_eps)
    return norm(x, weights["weight"] + config.norm.zero_centered, config.norm_eps)


def linear(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)


def capped(x: Tensor, cap: float | None) -> Tensor:
    return x if cap is None else cap * torch.tanh(x / cap)


def attention(
    config, weights: dict[str, Tensor], x: Tensor, positions: list[int], layer: int = 0
) -> Tensor:
    """(S, dim) -> (S, dim), one query at a time."""
    size, group = config.head_dim, config.heads // config.kv_heads
    q, k, v = (linear(weights, name, x) for name in ("query", "key", "value"))
    kind = config.attention_pattern[layer % len(config.attention_pattern)]
    base, scale = config.rope_base, 1 / math.sqrt(size)
    if kind == "sliding" and config.rope_base_sliding is not None:
        base = config.rope_base_sliding
    if config.mup is not None and config.mup.base_head_dim is not None:
        scale = math.sqrt(config.mup.base_head_dim) / size
    if config.attention_scale is not None:
        scale = config.attention_scale

    def placed(vector: Tensor, s: int, name: str) -> Tensor:
        if config.qk_norm:
            vector = any_norm(config, below(weights, f"{name}_norm."), vector)
        return rotate(vector, positions[s], base) if config.positions == "rotary" else vector

    rows = []
    for s in range(x.shape[0]):
        first = max(0, s - config.sliding_window + 1) if kind == "sliding" else 0
        mixed = []
        for head in range(config.heads):
            kv = head // group
            query = placed(q[s, head * size : (head + 1) * size], s, "query")
            scores = torch.stack(
                [
                    query @ placed(k[t, kv * size : (kv + 1) * size], t, "key")
                    for t in range(first, s + 1)
                ]
            )
            scores = capped(scores * scale, config.attention_soft_cap)
            share = torch.exp(scores - scores.max())
            share = share / share.sum()
            mixed.append(share @ v[first : s + 1, kv * size : (kv + 1) * size])
        rows.append(torch.cat(mixed))
    return linear(weights, "output", torch.stack(rows))


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def positive(x: Tensor) -> Tensor:
    return x * (x > 0)


ACTIVATIONS = {
    "swiglu": lambda x: x / (1 + torch.exp(-x)),
    "swiglu_clamped": lambda x: x.clamp(max=7) / (1 + torch.exp(-1.702 * x.clamp(max=7))),
    "geglu": gelu,
    "geglu_tanh": gelu_tanh,
    "reglu": positive,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": positive,
    "relu_squared": lambda x: positive(x) ** 2,
}


def feed_forward(weights: dict[str, Tensor], x: Tensor, activation: str = "swiglu") -> Tensor:
    function, inner = ACTIVATIONS[activation], linear(weights, "up", x)
    if activation == "swiglu_clamped":
        inner = inner.clamp(-7, 7) + 1
    opened = function(linear(weights, "gate", x)) if "glu" in activation else None
    return linear(weights, "down", function(inner) if opened is None else opened * inner)


def below(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: t for name, t in state.items() if name.startswith(prefix)}


def logits(config, state: dict[str, Tensor], tokens: list[int], positions: list[int]) -> Tensor:
    """One sequence's (S, V) logits in float64 from a state dict; V as many as there are rows."""
    state = {name: tensor.double() for name, tensor in state.items()}
    x = state["embedding.weight"][tokens] * config.embedding_scale
    if config.positions == "learned":
        x = x + state["position_embedding.weight"][positions]
    for index in range(config.layers):
        layer = below(state, f"layers.{index}.")

        def normed(name: str, x: Tensor, layer: dict[str, Tensor] = layer) -> Tensor:
            own = below(layer, f"{name}.")
            return any_norm(config, own, x) if own else x

        added = attention(
            config, below(layer, "attention."), normed("attention_norm", x), positions, index
        )
        x = x + normed("attention_output_norm", added) * config.residual_scale
        added = feed_forward(
            below(layer, "feed_forward."), normed("feed_forward_norm", x), config.activation
        )
        x = x + normed("feed_forward_output_norm", added) * config.residual_scale
    x = any_norm(config, below(state, "norm."), x)
    scale = config.logit_scale
    if config.mup is not None:
        scale *= config.mup.base_dim / config.dim
    result = x @ state.get("output.weight", state["embedding.weight"]).T
    return capped(result * scale, config.logit_soft_cap)
