"""The whole model from the papers: numpy in fp64, head by head and token by token.

Written from the papers' formulas and the configuration's help texts, and sharing no line with what
it judges. Slow, and meant to be read.
"""

import math
from typing import Any

import numpy as np

from setpoint.model.config import TransformerConfig

Array = Any
Tensors = dict[str, Array]


def logits(c: TransformerConfig, t: Tensors, tokens: list[int]) -> Array:
    """(S, V) logits of one sequence at positions 0 .. S - 1.

    Arguments:
        c: the resolved configuration.
        t: the state dict in fp64.
        tokens: ids.

    Returns:
        as many columns as the embedding has rows.
    """
    x = np.stack([t["embedding.weight"][token] for token in tokens]) * c.embedding_scale
    if c.positions == "learned":
        x = x + t["position_embedding.weight"][: len(tokens)]
    for layer in range(c.layers):
        x = block(c, t, f"layers.{layer}", layer, x)
    x = norm(c, t, "norm", x)
    table = t["embedding.weight"] if c.tie_embeddings else t["output.weight"]
    scale = c.logit_scale * (1 if c.mup is None else c.mup.base_dim / c.dim)
    return capped(x @ table.T * scale, c.logit_soft_cap)


def block(c: TransformerConfig, t: Tensors, at: str, layer: int, x: Array) -> Array:
    """One layer on (S, dim)."""
    before, after = c.norm_placement != "post", c.norm_placement != "pre"
    for part in ("attention", "feed_forward"):
        y = norm(c, t, f"{at}.{part}_norm", x) if before else x
        if part == "attention":
            y = (attention if c.mla is None else latent_attention)(
                c, t, f"{at}.attention", layer, y
            )
        elif c.moe is not None and layer >= c.moe.first_dense and (layer + 1) % c.moe.every == 0:
            y = np.stack([experts(c, t, f"{at}.feed_forward", token) for token in y])
        else:
            y = feed_forward(c, t, f"{at}.feed_forward", y)
        if after:
            y = norm(c, t, f"{at}.{part}_output_norm", y)
        x = x + c.residual_scale * y
    return x


def norm(c: TransformerConfig, t: Tensors, at: str, x: Array) -> Array:
    """RMSNorm, Zhang and Sennrich, 2019; LayerNorm, Ba et al., 2016; on the last axis."""
    if type(c.norm).__name__ == "LayerNormConfig":
        centered = x - x.mean(-1, keepdims=True)
        y = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + c.norm_eps)
        return y * t[f"{at}.weight"] + t.get(f"{at}.bias", 0.0)
    shift = 1.0 if getattr(c.norm, "zero_centered", False) else 0.0
    y = x / np.sqrt((x**2).mean(-1, keepdims=True) + c.norm_eps)
    return y * (shift + t[f"{at}.weight"])


def linear(t: Tensors, at: str, x: Array) -> Array:
    """W x + b."""
    return x @ t[f"{at}.weight"].T + t.get(f"{at}.bias", 0.0)


def capped(x: Array, cap: float | None) -> Array:
    """Soft cap, Gemma 2."""
    return x if cap is None else cap * np.tanh(x / cap)


def nonlinearity(name: str, x: Array) -> Array:
    """The function in an activation; those with glu in their name apply it to the gate."""
    if name == "swiglu":
        return x / (1 + np.exp(-x))
    if name in ("gelu", "geglu"):
        return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    if name in ("gelu_tanh", "geglu_tanh"):
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return np.maximum(x, 0) ** (2 if name == "relu_squared" else 1)


def feed_forward(c: TransformerConfig, t: Tensors, at: str, x: Array) -> Array:
    """Shazeer, 2020."""
    up = linear(t, f"{at}.up", x)
    gated = "glu" in c.activation
    inner = nonlinearity(c.activation, linear(t, f"{at}.gate", x) if gated else up)
    return linear(t, f"{at}.down", inner * up if gated else inner)


def experts(c: TransformerConfig, t: Tensors, at: str, x: Array) -> Array:
    """One token: softmax top-k (Switch, DeepSeek-V2) or sigmoid top-k (DeepSeek-V3)."""
    moe = c.moe
    assert moe is not None
    z = t[f"{at}.router.weight"] @ x
    soft = type(moe.router).__name__ == "SoftmaxTopK"
    scores = np.exp(z) / np.exp(z).sum() if soft else 1 / (1 + np.exp(-z))
    ranked = scores + t.get(f"{at}.router.bias", 0.0)
    size = moe.experts // moe.groups
    ranks = [
        sum(sorted(ranked[g * size : (g + 1) * size])[-(1 if soft else 2) :])
        for g in range(moe.groups)
    ]
    groups = sorted(range(moe.groups), key=lambda g: -ranks[g])[: moe.top_groups]
    able = [e for e in range(moe.experts) if moe.groups == 1 or e // size in groups]
    chosen = sorted(able, key=lambda e: -ranked[e])[: moe.top_k]
    total = sum(scores[e] for e in chosen) if moe.router.normalize else 1.0
    y = feed_forward(c, t, f"{at}.shared", x) if moe.shared_experts else np.zeros(c.dim)
    for e in chosen:
        names = ("gate", "up", "down")
        own = {
            f"{n}.weight": t[f"{at}.experts.{n}"][e].T
            if moe.packed
            else t[f"{at}.experts.{e}.{n}.weight"]
            for n in names
            if f"{at}.experts.{n}" in t or f"{at}.experts.{e}.{n}.weight" in t
        }
        own = {f"e.{name}": matrix for name, matrix in own.items()}
        y = y + moe.route_scale * scores[e] / total * feed_forward(c, own, "e", x)
    return y


def frequencies(
    c: TransformerConfig, size: int, base: float, scaling: Any
) -> tuple[list[float], float]:
    """Radians per position of each plane, and the factor of queries and keys."""
    found, factor = [], 1.0
    for i in range(size // 2):
        f = base ** (-2 * i / size)
        kind = type(scaling).__name__
        if kind == "LinearScaling":
            f /= scaling.factor
        elif kind == "Llama3Scaling":
            # Meta's code for Llama 3.1, by wavelengths.
            wave = 2 * math.pi / f
            low = scaling.original_length / scaling.low_frequency_factor
            high = scaling.original_length / scaling.high_frequency_factor
            if wave > low:
                f /= scaling.factor
            elif wave >= high:
                smooth = scaling.original_length / wave - scaling.low_frequency_factor
                smooth /= scaling.high_frequency_factor - scaling.low_frequency_factor
                f = (1 - smooth) * f / scaling.factor + smooth * f
        elif kind == "YarnScaling":
            # Peng et al., 2023, with the ramp over planes of the published code.
            def plane(turns: float) -> float:
                length = scaling.original_length / (turns * 2 * math.pi)
                return size * math.log(length) / (2 * math.log(base))

            first, last = plane(scaling.beta_fast), plane(scaling.beta_slow)
            if scaling.truncate:
                first, last = math.floor(first), math.ceil(last)
            first, last = max(first, 0), min(last, size - 1)
            ramp = min(1.0, max(0.0, (i - first) / (last - first)))
            f = f / scaling.factor * ramp + f * (1 - ramp)
            factor = scaling.attention_factor or 0.1 * math.log(scaling.factor) + 1
        found.append(f)
    return found, factor


def rotated(c: TransformerConfig, layer: int, vector: Array, position: int) -> Array:
    """RoPE, Su et al., 2021, in split halves, by complex numbers."""
    if c.positions != "rotary":
        return vector
    sliding = c.attention_pattern[layer % len(c.attention_pattern)] == "sliding"
    own = sliding and c.rope_base_sliding is not None
    base, scaling = (c.rope_base_sliding, None) if own else (c.rope_base, c.rope_scaling)
    assert base is not None
    radians, factor = frequencies(c, len(vector), base, scaling)
    half = len(vector) // 2
    turned = (vector[:half] + 1j * vector[half:]) * np.exp(1j * position * np.array(radians))
    return np.concatenate((turned.real, turned.imag)) * factor


def scale_of(c: TransformerConfig, size: int) -> float:
    """1 / sqrt(size), or as asked for; muP: sqrt(base) / size (Yang et al., 2022)."""
    if c.attention_scale is not None:
        return c.attention_scale
    if c.mup is not None and c.mup.base_head_dim is not None:
        return math.sqrt(c.mup.base_head_dim) / size
    return 1 / math.sqrt(size)


def mixed(
    c: TransformerConfig, layer: int, q: list[Array], k: list[Array], v: list[Array]
) -> Array:
    """One head: (S, V) of vectors at S positions."""
    sliding = c.attention_pattern[layer % len(c.attention_pattern)] == "sliding"
    out = []
    for i, query in enumerate(q):
        first = max(0, i - (c.sliding_window or 0) + 1) if sliding else 0
        seen = range(first, i + 1)
        scores = np.array([capped(query @ k[j] * scale_of(c, len(query)), c.attention_soft_cap)
                           for j in seen])  # fmt: skip
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        out.append(sum(w * v[j] for w, j in zip(weights, seen, strict=True)))
    return np.stack(out)


def attention(c: TransformerConfig, t: Tensors, at: str, layer: int, x: Array) -> Array:
    """Grouped queries, Ainslie et al., 2023."""
    d, group = c.head_dim, c.heads // c.kv_heads
    if c.merge_qkv:
        whole = linear(t, f"{at}.query_key_value", x)
        ends = (c.heads * d, (c.heads + c.kv_heads) * d)
        parts = np.split(whole, ends, axis=1)
    else:
        parts = [linear(t, f"{at}.{name}", x) for name in ("query", "key", "value")]
    queries, keys, values = (
        [part[:, h * d : (h + 1) * d] for h in range(part.shape[1] // d)] for part in parts
    )
    if c.qk_norm:
        queries = [norm(c, t, f"{at}.query_norm", head) for head in queries]
        keys = [norm(c, t, f"{at}.key_norm", head) for head in keys]
    queries, keys = (
        [[rotated(c, layer, vector, p) for p, vector in enumerate(head)] for head in heads]
        for heads in (queries, keys)
    )
    heads = [
        mixed(c, layer, queries[h], keys[h // group], list(values[h // group]))
        for h in range(c.heads)
    ]
    return linear(t, f"{at}.output", np.concatenate(heads, axis=1))


def latent_attention(c: TransformerConfig, t: Tensors, at: str, layer: int, x: Array) -> Array:
    """MLA, DeepSeek-V2, 2024, appendix C: [q_nope, q_rope] . [k_nope, k_rope], k_rope shared."""
    m = c.mla
    assert m is not None
    if m.query_rank is None:
        q = linear(t, f"{at}.query", x)
    else:
        down = norm(c, t, f"{at}.query_down_norm", linear(t, f"{at}.query_down", x))
        q = linear(t, f"{at}.query_up", down)
    down = linear(t, f"{at}.key_value_down", x)
    latent = norm(c, t, f"{at}.key_value_down_norm", down[:, : m.kv_rank])
    shared = [rotated(c, layer, vector, p) for p, vector in enumerate(down[:, m.kv_rank :])]
    up = linear(t, f"{at}.key_value_up", latent)
    n, size, own = m.nope_head_dim, m.nope_head_dim + m.rope_head_dim, m.nope_head_dim + m.value_head_dim  # noqa: E501  # fmt: skip
    heads = []
    for h in range(c.heads):
        query = q[:, h * size : (h + 1) * size]
        mine = up[:, h * own : (h + 1) * own]
        turned = [np.concatenate((row[:n], rotated(c, layer, row[n:], p)))
                  for p, row in enumerate(query)]  # fmt: skip
        keys = [np.concatenate((row[:n], r)) for row, r in zip(mine, shared, strict=True)]
        heads.append(mixed(c, layer, turned, keys, list(mine[:, n:])))
    return linear(t, f"{at}.output", np.concatenate(heads, axis=1))
