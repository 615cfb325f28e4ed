"""Llama 3 in its published sizes, and a small one of the same build.

Shapes: config.json of meta-llama/Llama-3.2-1B, Llama-3.2-3B, Llama-3.1-8B and Llama-3.1-70B on
Hugging Face. Learning rates, warm-up, floor and tokens in an update: The Llama 3 Herd of Models,
2024, table 3 and section 3.4.1, which says nothing of 1B and 3B; these have those of 8B.
"""

from __future__ import annotations

from setpoint.config import Duration, Period, preset
from setpoint.model.config import Transformer
from setpoint.model.rope.config import Llama3
from setpoint.optim.config import AdamW, Cosine
from setpoint.train.batch import Batch
from setpoint.train.config import Evaluation, Job, Precision

VOCABULARY = 128_256
CONTEXT = 131_072


@preset
def llama3_1b() -> Job:
    """Llama 3.2 1B: 1,235,814,400 parameters.

    Returns:
        a new draft; data, tokenizer and duration are yours to choose.
    """
    model = Transformer(
        vocab_size=VOCABULARY,
        dim=2048,
        layers=16,
        heads=32,
        kv_heads=8,
        head_dim=64,
        ffn_dim=8192,
        rope_base=500_000.0,
        rope_scaling=Llama3(factor=32.0, original_length=8192),
        max_sequence_length=CONTEXT,
        tie_embeddings=True,
        init_std=0.02,
        residual_init="plain",
    )
    return _job("llama3-1b", model, lr=3e-4)


@preset
def llama3_3b() -> Job:
    """Llama 3.2 3B: 3,212,749,824 parameters.

    Returns:
        a new draft; data, tokenizer and duration are yours to choose.
    """
    model = Transformer(
        vocab_size=VOCABULARY,
        dim=3072,
        layers=28,
        heads=24,
        kv_heads=8,
        ffn_dim=8192,
        rope_base=500_000.0,
        rope_scaling=Llama3(factor=32.0, original_length=8192),
        max_sequence_length=CONTEXT,
        tie_embeddings=True,
        init_std=0.02,
        residual_init="plain",
    )
    return _job("llama3-3b", model, lr=3e-4)


@preset
def llama3_8b() -> Job:
    """Llama 3.1 8B: 8,030,261,248 parameters.

    Returns:
        a new draft; data, tokenizer and duration are yours to choose.
    """
    model = Transformer(
        vocab_size=VOCABULARY,
        dim=4096,
        layers=32,
        heads=32,
        kv_heads=8,
        ffn_dim=14_336,
        rope_base=500_000.0,
        rope_scaling=Llama3(factor=8.0, original_length=8192),
        max_sequence_length=CONTEXT,
        init_std=0.02,
        residual_init="plain",
    )
    return _job("llama3-8b", model, lr=3e-4)


@preset
def llama3_70b() -> Job:
    """Llama 3.1 70B: 70,553,706,496 parameters.

    Returns:
        a new draft; data, tokenizer and duration are yours to choose.
    """
    model = Transformer(
        vocab_size=VOCABULARY,
        dim=8192,
        layers=80,
        heads=64,
        kv_heads=8,
        ffn_dim=28_672,
        rope_base=500_000.0,
        rope_scaling=Llama3(factor=8.0, original_length=8192),
        max_sequence_length=CONTEXT,
        init_std=0.02,
        residual_init="plain",
    )
    return _job("llama3-70b", model, lr=1.5e-4)


def _job(name: str, model: Transformer, lr: float) -> Job:
    return Job(
        name=name,
        duration=Duration("1000 steps"),
        model=model,
        # 4M tokens in an update.
        batch=Batch(global_size=512, micro_size=1, sequence_length=8192),
        optimizer=AdamW(lr=lr, betas=(0.9, 0.95), weight_decay=0.1),
        schedule=Cosine(floor=0.01),
        precision=Precision(compute="bf16"),
        evaluation=Evaluation(every=Period("500 steps"), sequences=64),
    )


@preset
def llama3_tiny() -> Job:
    """The build of Llama 3 in small, on bytes of the standard library; half a minute on two cores.

    Returns:
        a new draft.
    """
    return Job(
        name="llama3-tiny",
        duration=Duration("200 steps"),
        model=Transformer(
            dim=128,
            layers=4,
            heads=4,
            kv_heads=2,
            ffn_dim=384,
            rope_base=500_000.0,
            rope_scaling=Llama3(factor=32.0, original_length=128),
            tie_embeddings=True,
        ),
        batch=Batch(global_size=8, sequence_length=256),
        optimizer=AdamW(lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1),
        schedule=Cosine(floor=0.01),
        precision=Precision(compute="bf16"),
        evaluation=Evaluation(every=Period("100 steps"), sequences=80),
    )
