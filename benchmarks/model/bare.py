"""Three architectures as a careful engineer writes them for one shape, in plain PyTorch.

Nothing is configurable but the shape. Parameters have Setpoint's names, so that they can be loaded
from its modules.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Shape(NamedTuple):
    """The sizes of a model; `length` of sequences, `window` of Gemma's sliding layers."""

    vocab_size: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_dim: int
    length: int
    window: int


class RMSNorm(nn.Module):
    """Root-mean-square norm; `shift` 1 is Gemma's."""

    def __init__(self, dim: int, eps: float, shift: float = 0.0) -> None:
        super().__init__()
        self.eps, self.shift = eps, shift
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis."""
        weight = self.weight + self.shift if self.shift else self.weight
        return F.rms_norm(x, weight.shape, weight.to(x.dtype), self.eps)


def rotation(length: int, size: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines (length, size / 2) of rotary positions."""
    exponents = torch.arange(0, size, 2, device=device, dtype=torch.float32) / size
    angles = torch.arange(length, device=device, dtype=torch.float32)[:, None] / base**exponents
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate (B, heads, S, size) queries or keys."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Grouped queries with rotary positions; `norm` is put on queries and keys."""

    def __init__(self, shape: Shape, norm: RMSNorm | None, key_norm: RMSNorm | None) -> None:
        super().__init__()
        self.size = shape.head_dim
        wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.query = nn.Linear(shape.dim, wide, bias=False)
        self.key = nn.Linear(shape.dim, narrow, bias=False)
        self.value = nn.Linear(shape.dim, narrow, bias=False)
        self.output = nn.Linear(wide, shape.dim, bias=False)
        self.query_norm, self.key_norm = norm, key_norm
        self.grouped = shape.heads != shape.kv_heads

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """Mix (B, S, dim) between positions; causal without a mask."""
        batch, length, _ = x.shape
        q = self.query(x).view(batch, length, -1, self.size)
        k = self.key(x).view(batch, length, -1, self.size)
        v = self.value(x).view(batch, length, -1, self.size).transpose(1, 2)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        q, k = (rotate(part.transpose(1, 2), *turn).to(v.dtype) for part in (q, k))
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=self.grouped
        )
        return self.output(mixed.transpose(1, 2).reshape(batch, length, -1))


class GatedFeedForward(nn.Module):
    """SwiGLU, or GeGLU with the tanh approximation."""

    def __init__(self, shape: Shape, gelu: bool) -> None:
        super().__init__()
        self.gelu = gelu
        self.gate = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.up = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.down = nn.Linear(shape.ffn_dim, shape.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform (B, S, dim)."""
        gate = self.gate(x)
        gate = F.gelu(gate, approximate="tanh") if self.gelu else F.silu(gate)
        return self.down(gate * self.up(x))


class LlamaBlock(nn.Module):
    """Llama, and with norms on queries and keys Qwen3."""

    def __init__(self, shape: Shape, eps: float, qk_norm: bool) -> None:
        super().__init__()
        norms = [RMSNorm(shape.head_dim, eps) if qk_norm else None for _ in range(2)]
        self.attention_norm = RMSNorm(shape.dim, eps)
        self.attention = Attention(shape, *norms)
        self.feed_forward_norm = RMSNorm(shape.dim, eps)
        self.feed_forward = GatedFeedForward(shape, gelu=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Apply the layer."""
        x = x + self.attention(self.attention_norm(x), turn, None)
        return x + self.feed_forward(self.feed_forward_norm(x))


class GemmaBlock(nn.Module):
    """Gemma 3: norms on both sides and on queries and keys."""

    def __init__(self, shape: Shape, eps: float, sliding: bool) -> None:
        super().__init__()
        self.sliding = sliding
        self.attention_norm = RMSNorm(shape.dim, eps, 1.0)
        norms = [RMSNorm(shape.head_dim, eps, 1.0) for _ in range(2)]
        self.attention = Attention(shape, *norms)
        self.attention_output_norm = RMSNorm(shape.dim, eps, 1.0)
        self.feed_forward_norm = RMSNorm(shape.dim, eps, 1.0)
        self.feed_forward = GatedFeedForward(shape, gelu=True)
        self.feed_forward_output_norm = RMSNorm(shape.dim, eps, 1.0)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """Apply the layer."""
        x = x + self.attention_output_norm(self.attention(self.attention_norm(x), turn, mask))
        return x + self.feed_forward_output_norm(self.feed_forward(self.feed_forward_norm(x)))


class Llama(nn.Module):
    """Tokens to hidden states, as Llama and Qwen3 do it."""

    def __init__(self, shape: Shape, eps: float, base: float, qk_norm: bool) -> None:
        super().__init__()
        self.shape, self.base = shape, base
        self.embedding = nn.Embedding(shape.vocab_size, shape.dim)
        self.layers = nn.ModuleList(LlamaBlock(shape, eps, qk_norm) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.dim, eps)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, S) to (B, S, dim)."""
        turn = rotation(tokens.shape[1], self.shape.head_dim, self.base, tokens.device)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, turn)
        return self.norm(x)


class Gemma(nn.Module):
    """Tokens to hidden states, as Gemma 3 does it."""

    def __init__(self, shape: Shape, eps: float, pattern: tuple[bool, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab_size, shape.dim)
        self.layers = nn.ModuleList(GemmaBlock(shape, eps, sliding) for sliding in pattern)
        self.norm = RMSNorm(shape.dim, eps, 1.0)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, S) to (B, S, dim)."""
        length, size, device = tokens.shape[1], self.shape.head_dim, tokens.device
        turns = {s: rotation(length, size, 1e4 if s else 1e6, device) for s in (False, True)}
        at = torch.arange(length, device=device)
        back = at[:, None] - at
        window = (back >= 0) & (back < self.shape.window)
        x = self.embedding(tokens) * self.shape.dim**0.5
        for layer in self.layers:
            x = layer(x, turns[layer.sliding], window if layer.sliding else None)
        return self.norm(x)
