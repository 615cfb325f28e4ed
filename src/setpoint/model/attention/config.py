"""Attention settings of the model's configuration."""

from __future__ import annotations

from typing import Literal

from setpoint.config import Config, field

Kind = Literal["full", "sliding"]
"""Attention type of a layer: full or sliding window."""

Backend = Literal[
    "auto",
    "eager",
    "sdpa",
    "sdpa_flash",
    "sdpa_efficient",
    "sdpa_cudnn",
    "sdpa_math",
    "flex",
    "varlen",
    "flash_attention_2",
    "flash_attention_3",
    "flash_attention_4",
]
"""Attention backend."""


class MLA(Config):
    """Multi-head latent attention (DeepSeek-V2, 2024): keys and values come from a small latent."""

    query_rank: int | None = field(default=None, ge=1)
    """q_lora_rank: rank of the low-rank query projection; null: queries are projected directly."""

    kv_rank: int = field(ge=1)
    """kv_lora_rank: rank of the projection of keys and values, the part that a KV cache keeps."""

    rope_head_dim: int = field(ge=2)
    """qk_rope_head_dim: head dimensions with RoPE, even; all heads share these dimensions of the
    key."""

    nope_head_dim: int = field(ge=1)
    """qk_nope_head_dim: head dimensions of queries and keys without RoPE."""

    value_head_dim: int = field(ge=1)
    """v_head_dim: head dimension of values."""
