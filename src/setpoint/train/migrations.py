"""What changed between the schemas of a training job; see `setpoint.config.migrate`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from setpoint.config import RUNTIME
from setpoint.config.migrate import Added, Operation, migration


@migration(to=2)
def cautions() -> Iterable[Operation]:
    """Findings that are legal but suspicious are shown, and can be silenced by name.

    Returns:
        the changes from schema 1.
    """
    return [Added("silence", [], role=RUNTIME)]


# What a transformer was before schema 3 gave it a choice.
TRANSFORMER: dict[str, Any] = {
    "ffn_multiplier": 1.0,
    "activation": "swiglu",
    "ffn_bias": False,
    "positions": "rotary",
    "rope_base_sliding": None,
    "rope_scaling": None,
    "attention_pattern": ["full"],
    "sliding_window": None,
    "attention_scale": None,
    "attention_soft_cap": None,
    "logit_soft_cap": None,
    "qk_norm": False,
    "qkv_bias": False,
    "attention_output_bias": False,
    "merge_qkv": False,
    "mla": None,
    "moe": None,
    "norm": {"type": "rms_norm", "zero_centered": False},
    "norm_placement": "pre",
    "residual_init": "depth_scaled",
    "mup": None,
    "vocab_size": None,
    "vocab_multiple_of": 1,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "logit_scale": 1.0,
    "attention_dropout": 0.0,
    "embedding_dropout": 0.0,
}
CROSS_ENTROPY: dict[str, Any] = {
    "ignore_index": None,
    "token_weights": None,
    "label_smoothing": 0.0,
}


@migration(to=3)
def architectures() -> Iterable[Operation]:
    """Models, losses and experts have many forms; pretrained weights can be started from.

    Returns:
        the changes from schema 2.
    """
    fields = [Added(f"model.{name}", old, of="transformer") for name, old in TRANSFORMER.items()]
    fields += [
        Added(f"loss.{name}", old, of="cross_entropy") for name, old in CROSS_ENTROPY.items()
    ]
    backend = Added("model.attention_backend", "auto", role=RUNTIME, of="transformer")
    return [Added("model.pretrained", None), backend, *fields]
