"""Multi-head latent attention: keys and values of all heads come from one small vector."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from setpoint.model.attention.backend import Scores
from setpoint.model.attention.config import Kind
from setpoint.model.attention.context import AttentionContext
from setpoint.model.attention.support import attention_scale, kind_of, query_size
from setpoint.model.autocast import cast_once
from setpoint.model.initialize import Constant, Initializer, Normal
from setpoint.model.norm.norms import build_norm
from setpoint.model.scale import hidden_std, residual_std
from setpoint.shapes.protocols import weight_in_use

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig


class LatentAttention(nn.Module):
    """Attention whose keys and values are projected up from a shared latent.

    With c = norm(W_down x), a head's keys are [W_key c, r] and its values W_value c, where the
    rotated part r, computed from x, is shared by all heads: a rotation in between would keep
    W_key from being moved to the query's side. Queries may go through a latent of their own.
    (Multi-head latent attention, DeepSeek-V2, 2024.)

    The cache holds c and r alone. For a single new token the projections up are moved over to the
    query and to the result, which are one token, while the keys are the whole text:
    q . W_key c = (W_key^T q) . c, and sum_j a_j W_value c_j = W_value sum_j a_j c_j.

    Arguments:
        config: the model's configuration, with `mla`.
        layer: the index of the layer in the whole model, from 0; decides what it attends to.
    """

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        assert config.mla is not None
        mla = config.mla
        self.layer = layer
        self.kind: Kind = kind_of(config, layer)
        self.heads = config.heads
        self.nope_head_dim = mla.nope_head_dim
        self.rope_head_dim = mla.rope_head_dim
        self.value_head_dim = mla.value_head_dim
        self.kv_rank = mla.kv_rank
        self.scale = attention_scale(config) or 1 / math.sqrt(query_size(config))
        self.soft_cap = config.attention_soft_cap
        self.dropout = config.attention_dropout
        self.hidden_std = hidden_std(config)
        self.residual_std = residual_std(config)
        queries = config.heads * query_size(config)
        if mla.query_rank is None:
            self.query = nn.Linear(config.dim, queries, bias=False)
        else:
            self.query_down = nn.Linear(config.dim, mla.query_rank, bias=False)
            self.query_down_norm = build_norm(config, mla.query_rank)
            self.query_up = nn.Linear(mla.query_rank, queries, bias=False)
        self.has_query_latent = mla.query_rank is not None
        self.key_value_down = nn.Linear(config.dim, mla.kv_rank + mla.rope_head_dim, bias=False)
        self.key_value_down_norm = build_norm(config, mla.kv_rank)
        up = config.heads * (mla.nope_head_dim + mla.value_head_dim)
        self.key_value_up = nn.Linear(mla.kv_rank, up, bias=False)
        bias = config.attention_output_bias
        self.output = nn.Linear(config.heads * mla.value_head_dim, config.dim, bias=bias)

    def initializers(self) -> dict[str, Initializer]:
        """Return how each projection starts; norms speak for themselves."""
        rules: dict[str, Initializer] = {
            f"{name}.weight": Normal(self.hidden_std)
            for name, part in self.named_children()
            if isinstance(part, nn.Linear)
        }
        rules["output.weight"] = Normal(self.residual_std)
        if self.output.bias is not None:
            rules["output.bias"] = Constant(0.0)
        return rules

    def tensor_plan(self) -> dict[str, str]:
        """See `setpoint.shapes.protocols.TensorDivisible`: by heads; latents are on all ranks."""
        query = "query_up" if self.has_query_latent else "query"
        sizes = {
            query: self.nope_head_dim + self.rope_head_dim,
            "key_value_up": self.nope_head_dim + self.value_head_dim,
        }
        columns = {name: f"column {self.heads}*{size}" for name, size in sizes.items()}
        return {"": "shared_input", **columns, "output": "row"}

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Mix information between positions."""
        x = cast_once(x)
        if self.has_query_latent:
            query = self.query_up(self.query_down_norm(self.query_down(x)))
        else:
            query = self.query(x)
        # Head counts are read off the shapes: under tensor parallelism they are the local ones.
        query = query.unflatten(-1, (-1, self.nope_head_dim + self.rope_head_dim))
        plain, turned = query.split((self.nope_head_dim, self.rope_head_dim), dim=-1)
        turned = context.apply_rotary(turned, self.kind)
        latent, shared = self.key_value_down(x).split((self.kv_rank, self.rope_head_dim), dim=-1)
        latent = self.key_value_down_norm(latent)
        shared = context.apply_rotary(shared.unsqueeze(2), self.kind)
        latent, shared = context.update_cache(self.layer, self.kind, latent, shared)
        if context.cache is not None and x.shape[1] == 1:
            mixed = self._attend_to_latents(plain, turned, latent, shared, context)
        else:
            mixed = self._attend_to_heads(plain, turned, latent, shared, context)
        return self.output(mixed.flatten(2))

    def _attend_to_heads(
        self,
        plain: Tensor,
        turned: Tensor,
        latent: Tensor,
        shared: Tensor,
        context: AttentionContext,
    ) -> Tensor:
        """Project up to a key and a value for each head, (B, L, H, ...)."""
        heads = self.key_value_up(latent).unflatten(
            -1, (-1, self.nope_head_dim + self.value_head_dim)
        )
        key, value = heads.split((self.nope_head_dim, self.value_head_dim), dim=-1)
        shared = shared.expand(-1, -1, key.shape[2], -1)
        query = torch.cat((plain, turned), dim=-1)
        return self._attend(query, torch.cat((key, shared), dim=-1), value, context)

    def _attend_to_latents(
        self,
        plain: Tensor,
        turned: Tensor,
        latent: Tensor,
        shared: Tensor,
        context: AttentionContext,
    ) -> Tensor:
        """Let one key-value head, the latents (B, L, 1, kv_rank), serve all heads."""
        up = weight_in_use(self.key_value_up).unflatten(
            0, (-1, self.nope_head_dim + self.value_head_dim)
        )
        to_key, to_value = up.split((self.nope_head_dim, self.value_head_dim), dim=1)
        query = torch.cat((torch.einsum("bshn,hnr->bshr", plain, to_key), turned), dim=-1)
        value = latent.unsqueeze(2)
        mixed = self._attend(query, torch.cat((value, shared), dim=-1), value, context)
        return torch.einsum("bshr,hvr->bshv", mixed, to_value)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, context: AttentionContext
    ) -> Tensor:
        scores = Scores(self.scale, self.soft_cap, self.dropout if self.training else 0.0)
        return context.attend(self.kind, query, key, value, scores)
