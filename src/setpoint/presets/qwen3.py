"""Qwen3 without experts in its published sizes, and a small one of the same build.

Shapes: config.json of Qwen/Qwen3-0.6B-Base to Qwen/Qwen3-14B-Base and of Qwen/Qwen3-32B on Hugging
Face; the Qwen3 Technical Report, 2025, table 1, has them, too. It gives no settings of the
optimizer; these are common ones to start from. Sequences have 4096 tokens, as in its first stage.
"""

from __future__ import annotations

from setpoint.config import preset
from setpoint.model.config import Transformer
from setpoint.presets.recipes import published, small
from setpoint.train.batch import Batch
from setpoint.train.config import Job


@preset
def qwen3_0_6b() -> Job:
    """Qwen3 0.6B: 596,049,920 parameters.

    Returns:
        a new draft; data, tokenizer and duration are yours to choose.
    """
    model = _model()
    model.dim, model.layers, model.heads = 1024, 28, 16
    model.ffn_dim = 3_072
    model.tie_embeddings = True
    return _job("qwen3-0-6b", model, lr=1e-3)


@preset
def qwen3_1_7b() -> Job:
    """Qwen3 1.7B: 1,720,574,976 parameters.

    Returns:
        a new draft; data, tokenizer and duration are yours to choose.
    """
    model = _model()
    model.dim, model.layers, model.heads = 2048, 28, 16
    model.ffn_dim = 6_144
    model.tie_embeddings = True
    return _job("qwen3-1-7b", model, lr=6e-4)


@preset
def qwen3_4b() -> Job:
    """Qwen3 4B: 4,022,468,096 parameters.

    Returns:
        a new draft; data, tokenizer and duration are yours to choose.
    """
    model = _model()
    model.dim, model.layers, model.heads = 2560, 36, 32
    model.ffn_dim = 9_728
    model.tie_embeddings = True
    return _job("qwen3-4b", model, lr=4e-4)


@preset
def qwen3_8b() -> Job:
    """Qwen3 8B: 8,190,735,360 parameters.

    Returns:
        a new draft; data, tokenizer and duration are yours to choose.
    """
    model = _model()
    model.dim, model.layers, model.heads = 4096, 36, 32
    model.ffn_dim = 12_288
    return _job("qwen3-8b", model, lr=3e-4)


@preset
def qwen3_14b() -> Job:
    """Qwen3 14B: 14,768,307,200 parameters.

    Returns:
        a new draft; data, tokenizer and duration are yours to choose.
    """
    model = _model()
    model.dim, model.layers, model.heads = 5120, 40, 40
    model.ffn_dim = 17_408
    return _job("qwen3-14b", model, lr=3e-4)


@preset
def qwen3_32b() -> Job:
    """Qwen3 32B: 32,762,123,264 parameters.

    Returns:
        a new draft; data, tokenizer and duration are yours to choose.
    """
    model = _model()
    model.dim, model.layers, model.heads = 5120, 64, 64
    model.ffn_dim = 25_600
    return _job("qwen3-32b", model, lr=1.5e-4)


def _model() -> Transformer:
    """What all sizes share."""
    return Transformer(
        vocab_size=151_936,
        kv_heads=8,
        head_dim=128,
        qk_norm=True,
        norm_eps=1e-6,
        rope_base=1_000_000.0,
        max_sequence_length=40_960,
        init_std=0.02,
        residual_init="plain",
    )


def _job(name: str, model: Transformer, lr: float) -> Job:
    # 4M tokens in an update.
    batch = Batch(global_size=1024, micro_size=1, sequence_length=4096)
    return published(name, model, batch, lr=lr)


@preset
def qwen3_tiny() -> Job:
    """The build of Qwen3 in small, on bytes of the standard library; half a minute on two cores."""
    model = Transformer(
        dim=128,
        layers=4,
        heads=4,
        kv_heads=2,
        head_dim=48,  # as in the published ones, heads * head_dim is not dim
        ffn_dim=384,
        qk_norm=True,
        norm_eps=1e-6,
        rope_base=1_000_000.0,
        tie_embeddings=True,
    )
    return small("qwen3-tiny", model)
