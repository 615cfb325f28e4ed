"""A small version of Gemma 3's text model.

Build: config.json of google/gemma-3-1b-pt on Hugging Face; Gemma 3 Technical Report, 2025: five
layers with a sliding window per layer without, with a RoPE base for each kind; norms before and
after attention and feed-forward, and on queries and keys; embeddings times sqrt(dim).
"""

from __future__ import annotations

from setpoint.config import preset, ref
from setpoint.model.config import RMSNormConfig, TransformerConfig
from setpoint.presets.recipes import small
from setpoint.train.config import Job


@preset
def gemma3_tiny() -> Job:
    """A small Gemma 3, trained on bytes of the standard library; half a minute."""
    model = TransformerConfig(
        dim=112,
        layers=6,
        heads=4,
        kv_heads=1,
        head_dim=32,
        ffn_dim=320,
        activation="geglu_tanh",
        norm=RMSNormConfig(zero_centered=True),
        norm_placement="both",
        norm_eps=1e-6,
        qk_norm=True,
        attention_pattern=("sliding",) * 5 + ("full",),
        sliding_window=64,
        rope_base=1_000_000.0,
        rope_base_sliding=10_000.0,
        embedding_scale=ref("model.dim ** 0.5"),
        tie_embeddings=True,
    )
    return small("gemma3-tiny", model)
