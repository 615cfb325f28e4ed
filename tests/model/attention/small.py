"""Attention small enough for every test."""

from torch import nn

from setpoint.config import resolve
from setpoint.model.attention.attention import Attention, LatentAttention
from setpoint.model.attention.config import MLA, AttentionTemperature
from setpoint.model.config import TransformerConfig
from setpoint.model.initialize import initialize

from ..small import small_config

SLIDING = {"attention_pattern": ("sliding",), "sliding_window": 4}
TEMPERATURE = AttentionTemperature(interval=3, scale=0.5)
SIZES = {"rope_head_dim": 4, "nope_head_dim": 6, "value_head_dim": 5}


def latent_config(*, query_rank: int | None = None, **changes) -> TransformerConfig:
    """Six heads of latent attention, of 24 wide hidden states."""
    mla = MLA(query_rank=query_rank, kv_rank=10, **SIZES)
    return resolve(
        TransformerConfig(dim=24, heads=6, max_sequence_length=64, init_std=0.2, mla=mla, **changes)
    )


CONFIGS = {
    "grouped": small_config(),
    "sliding": small_config(**SLIDING),
    "chunked": small_config(attention_pattern=("chunked",), attention_chunk=4),
    "temperature": small_config(positions="none", attention_temperature=TEMPERATURE),
    "latent": latent_config(),
    "latent, temperature": latent_config(positions="none", attention_temperature=TEMPERATURE),
    "latent, sliding": latent_config(query_rank=7, **SLIDING),
}


def small_attention(config: TransformerConfig, layer: int = 0) -> nn.Module:
    attention = (Attention if config.mla is None else LatentAttention)(config, layer)
    initialize(attention, 1)
    return attention
