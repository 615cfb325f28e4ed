"""Llama 3 in its published sizes, and a small one of the same build.

Shapes: config.json of meta-llama/Llama-3.2-1B, Llama-3.2-3B, Llama-3.1-8B and Llama-3.1-70B on
Hugging Face. Learning rates, warm-up, floor and tokens in an update: The Llama 3 Herd of Models,
2024, table 3 and section 3.4.1, which says nothing of 1B and 3B; these have those of 8B.
"""

from __future__ import annotations

from setpoint.config import preset
from setpoint.model.config import Transformer
from setpoint.model.rope.config import Llama3
from setpoint.presets.recipes import published, small
from setpoint.train.batch import Batch
from setpoint.train.config import Job


@preset
def llama3_1b() -> Job:
    """Llama 3.2 1B: 1,235,814,400 parameters.

    Returns:
        a new draft; data, tokenizer and duration are yours to choose.
    """
    model = _model(stretch=32.0)
    model.dim, model.layers, model.heads = 2048, 16, 32
    model.ffn_dim = 8192
    model.tie_embeddings = True
    return _job("llama3-1b", model, lr=3e-4)


@preset
def llama3_3b() -> Job:
    """Llama 3.2 3B: 3,212,749,824 parameters.

    Returns:
        a new draft; data, tokenizer and duration are yours to choose.
    """
    model = _model(stretch=32.0)
    model.dim, model.layers, model.heads = 3072, 28, 24
    model.ffn_dim = 8192
    model.tie_embeddings = True
    return _job("llama3-3b", model, lr=3e-4)


@preset
def llama3_8b() -> Job:
    """Llama 3.1 8B: 8,030,261,248 parameters.

    Returns:
        a new draft; data, tokenizer and duration are yours to choose.
    """
    model = _model(stretch=8.0)
    model.dim, model.layers, model.heads = 4096, 32, 32
    model.ffn_dim = 14_336
    return _job("llama3-8b", model, lr=3e-4)


@preset
def llama3_70b() -> Job:
    """Llama 3.1 70B: 70,553,706,496 parameters.

    Returns:
        a new draft; data, tokenizer and duration are yours to choose.
    """
    model = _model(stretch=8.0)
    model.dim, model.layers, model.heads = 8192, 80, 64
    model.ffn_dim = 28_672
    return _job("llama3-70b", model, lr=1.5e-4)


def _model(stretch: float) -> Transformer:
    """What all sizes share."""
    return Transformer(
        vocab_size=128_256,
        kv_heads=8,
        rope_base=500_000.0,
        rope_scaling=Llama3(factor=stretch, original_length=8192),
        max_sequence_length=131_072,
        init_std=0.02,
        residual_init="plain",
    )


def _job(name: str, model: Transformer, lr: float) -> Job:
    # 4M tokens in an update.
    batch = Batch(global_size=512, micro_size=1, sequence_length=8192)
    return published(name, model, batch, lr=lr, floor=0.01)


@preset
def llama3_tiny() -> Job:
    """Llama 3 in small, on bytes of the standard library; half a minute on two cores."""
    model = Transformer(
        dim=128,
        layers=4,
        heads=4,
        kv_heads=2,
        ffn_dim=384,
        rope_base=500_000.0,
        rope_scaling=Llama3(factor=32.0, original_length=128),
        tie_embeddings=True,
    )
    return small("llama3-tiny", model, floor=0.01)
