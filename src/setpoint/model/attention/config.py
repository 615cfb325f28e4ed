"""Attention and RoPE settings of the model's configuration."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Literal

from setpoint.config import Config, Problem, field, rule

Kind = Literal["full", "sliding", "chunked"]
"""Attention type of a layer: full, sliding window, or chunked."""

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
    """kv_lora_rank: rank of the key-value projection, whose output a KV cache keeps."""

    rope_head_dim: int = field(ge=2)
    """qk_rope_head_dim: number of head dimensions with RoPE, even; all heads share these key
    dimensions."""

    nope_head_dim: int = field(ge=1)
    """qk_nope_head_dim: head dimensions of queries and keys without RoPE."""

    value_head_dim: int = field(ge=1)
    """v_head_dim: head dimension of values."""


class AttentionTemperature(Config):
    """Attention temperature by position (Llama 4), in layers without RoPE.

    The query at position p, from 0 in each document, is multiplied by
    1 + scale * ln(1 + floor((p + 1) / interval)).
    """

    interval: int = field(default=8192, ge=1)
    """Llama 4's floor_scale: number of positions with the same factor."""

    scale: float = field(default=0.1, gt=0, lt=inf)
    """Llama 4's attn_scale: how fast the factor grows with position."""


class RopeScaling(Config):
    """RoPE scaling for contexts longer than the original one."""

    factor: float = field(ge=1, lt=inf)
    """Scaling factor: new context length / original context length."""


class LinearScaling(RopeScaling, type="linear"):
    """Linear RoPE scaling (Chen et al., 2023): positions are divided by the factor."""


class Llama3Scaling(RopeScaling, type="llama3"):
    """Llama 3's RoPE scaling: scale long wavelengths, keep short ones, interpolate between."""

    low_frequency_factor: float = field(default=1.0, gt=0, lt=inf)
    """Llama 3's low_freq_factor: wavelengths above original_length / low_frequency_factor are
    scaled by factor."""

    high_frequency_factor: float = field(default=4.0, gt=0, lt=inf)
    """Llama 3's high_freq_factor: wavelengths below original_length / high_frequency_factor are not
    scaled."""

    original_length: int = field(ge=1)
    """Original context length (original_max_position_embeddings), in tokens."""

    @rule
    def _check_factors(self) -> Iterator[Problem]:
        if self.low_frequency_factor > self.high_frequency_factor:
            yield Problem(
                "low_frequency_factor",
                f"{self.low_frequency_factor:g} must not be above high_frequency_factor = "
                f"{self.high_frequency_factor:g}",
                valid=("1",) if self.high_frequency_factor >= 1 else (),
                also=("high_frequency_factor",),
            )


class YarnScaling(RopeScaling, type="yarn"):
    """YaRN (Peng et al., 2023): long wavelengths are scaled, short ones kept, a ramp between."""

    original_length: int = field(ge=1)
    """Original context length (original_max_position_embeddings), in tokens."""

    beta_fast: float = field(default=32.0, gt=0, lt=inf)
    """YaRN beta_fast: dimensions that rotate more often than this over original_length are not
    scaled."""

    beta_slow: float = field(default=1.0, gt=0, lt=inf)
    """YaRN beta_slow: dimensions with fewer than this many rotations over original_length are
    scaled by factor."""

    attention_factor: float | None = field(default=None, gt=0, lt=inf)
    """YaRN attention factor (mscale): scale of queries and keys; null: 0.1 ln(factor) + 1."""

    truncate: bool = True
    """YaRN truncate: round the ends of the ramp between beta_fast and beta_slow outwards to whole
    dimensions."""

    @rule
    def _check_betas(self) -> Iterator[Problem]:
        if self.beta_slow >= self.beta_fast:
            yield Problem(
                "beta_slow",
                f"{self.beta_slow:g} must be below beta_fast = {self.beta_fast:g}",
                also=("beta_fast",),
            )
