"""A small Mistral 7B: sliding-window attention in all layers.

Build: config.json of mistralai/Mistral-7B-v0.1 on Hugging Face; Mistral 7B, Jiang et al., 2023.
"""

from __future__ import annotations

from setpoint.config import preset
from setpoint.model.config import TransformerConfig
from setpoint.presets.recipes import small
from setpoint.train.config import Job


@preset
def mistral_tiny() -> Job:
    """A small Mistral 7B, trained on bytes of the standard library; half a minute."""
    model = TransformerConfig(
        dim=128,
        layers=4,
        heads=4,
        kv_heads=1,
        ffn_dim=448,
        attention_pattern=("sliding",),
        sliding_window=64,
    )
    return small("mistral-tiny", model)
