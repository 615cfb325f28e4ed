"""Causal self-attention with grouped queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from setpoint.config import SetpointError
from setpoint.model.attention.backend import Scores
from setpoint.model.attention.config import Kind
from setpoint.model.attention.context import AttentionContext
from setpoint.model.attention.support import attention_scale, kind_of
from setpoint.model.autocast import cast_once
from setpoint.model.initialize import Constant, Initializer, Normal
from setpoint.model.norm.norms import build_norm
from setpoint.model.scale import hidden_std, residual_std

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig


class Attention(nn.Module):
    """Every position attends to itself and to those before it, or to the last of them.

    Softmax(scale * Q K^T) V per head (Vaswani et al., 2017), where several query heads share one
    key-value head (grouped-query attention, Ainslie et al., 2023). Queries and keys may be
    normalized in each head (Henry et al., 2020) and are then rotated by their positions.

    Arguments:
        layer: the index of the layer in the whole model, from 0; decides what it attends to.
    """

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.kind: Kind = kind_of(config, layer)
        self.head_dim = config.head_dim
        self.kv_heads = config.kv_heads
        self.group = config.heads // config.kv_heads
        self.scale = attention_scale(config)
        self.soft_cap = config.attention_soft_cap
        self.dropout = config.attention_dropout
        self.hidden_std = hidden_std(config)
        self.residual_std = residual_std(config)
        query_dim, kv_dim = config.heads * config.head_dim, config.kv_heads * config.head_dim
        bias = config.qkv_bias
        if config.merge_qkv:
            self.query_key_value = nn.Linear(config.dim, query_dim + 2 * kv_dim, bias=bias)
        else:
            self.query_key_value = None
            self.query = nn.Linear(config.dim, query_dim, bias=bias)
            self.key = nn.Linear(config.dim, kv_dim, bias=bias)
            self.value = nn.Linear(config.dim, kv_dim, bias=bias)
        self.query_norm = build_norm(config, config.head_dim) if config.qk_norm else None
        self.key_norm = build_norm(config, config.head_dim) if config.qk_norm else None
        self.output = nn.Linear(query_dim, config.dim, bias=config.attention_output_bias)

    def initializers(self) -> dict[str, Initializer]:
        """Return how each projection starts; norms speak for themselves."""
        rules: dict[str, Initializer] = {}
        for name, part in self.named_children():
            if isinstance(part, nn.Linear):
                std = self.residual_std if part is self.output else self.hidden_std
                rules[f"{name}.weight"] = Normal(std)
                if part.bias is not None:
                    rules[f"{name}.bias"] = Constant(0.0)
        return rules

    def tensor_plan(self) -> dict[str, str]:
        """See `setpoint.shapes.protocols.TensorDivisible`: by heads."""
        heads = f"{self.group * self.kv_heads}*{self.head_dim}"
        kv_heads = f"{self.kv_heads}*{self.head_dim} shared"
        plan = {"": "shared_input", "output": "row"}
        if self.query_key_value is not None:
            return {**plan, "query_key_value": f"column {heads} + {kv_heads} + {kv_heads}"}
        names = {"query": heads, "key": kv_heads, "value": kv_heads}
        return {**plan, **{name: f"column {groups}" for name, groups in names.items()}}

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Mix information between positions."""
        query, key, value = self._project(cast_once(x))
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key = context.apply_rotary(query, self.kind), context.apply_rotary(key, self.kind)
        key, value = context.update_cache(self.layer, self.kind, key, value)
        scores = Scores(self.scale, self.soft_cap, self.dropout if self.training else 0.0)
        mixed = context.attend(self.kind, query, key, value, scores)
        return self.output(mixed.flatten(2))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, S, dim) to queries (B, S, H, head_dim), and keys and values (B, S, K, head_dim)."""
        # Head counts are read off the shapes: under tensor parallelism they are the local ones.
        if self.query_key_value is not None:
            merged = self.query_key_value(x)
            if merged.shape[-1] != self.query_key_value.out_features:
                # A rank's rows would be some heads' queries and other heads' keys and values.
                raise SetpointError(
                    "model.merge_qkv = true: one matrix of queries, keys and values cannot be "
                    "divided among ranks one row after the other; tensor_plan() says how it can"
                )
            heads = merged.unflatten(-1, (-1, self.head_dim))
            # With more ranks than key-value heads, each has one of them.
            kv_heads = max(1, heads.shape[2] // (self.group + 2))
            queries = heads.shape[2] - 2 * kv_heads
            query, key, value = heads.split((queries, kv_heads, kv_heads), dim=2)
            return query, key, value
        query, key, value = self.query(x), self.key(x), self.value(x)
        shape = (-1, self.head_dim)
        return query.unflatten(-1, shape), key.unflatten(-1, shape), value.unflatten(-1, shape)
