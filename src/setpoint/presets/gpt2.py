"""GPT-2 in its published sizes, and a small one of the same build.

Shapes: config.json of openai-community/gpt2, gpt2-medium, gpt2-large and gpt2-xl on Hugging Face;
Language Models are Unsupervised Multitask Learners, Radford et al., 2019, gives 512 sequences of
1024 tokens in an update and no learning rates. These are of Language Models are Few-Shot Learners,
Brown et al., 2020, table 2.1, for models of nearly the same sizes.
"""

from __future__ import annotations

from setpoint.config import preset
from setpoint.model.config import Transformer
from setpoint.model.norm.config import LayerNorm
from setpoint.presets.recipes import published, small
from setpoint.train.batch import Batch
from setpoint.train.config import Job


@preset
def gpt2() -> Job:
    """GPT-2: 124,439,808 parameters.

    Returns:
        a new draft; data, tokenizer and duration are yours to choose.
    """
    model = _model()
    model.dim, model.layers, model.heads = 768, 12, 12
    model.ffn_dim = 3072
    return _job("gpt2", model, lr=6e-4)


@preset
def gpt2_medium() -> Job:
    """GPT-2 medium: 354,823,168 parameters.

    Returns:
        a new draft; data, tokenizer and duration are yours to choose.
    """
    model = _model()
    model.dim, model.layers, model.heads = 1024, 24, 16
    model.ffn_dim = 4096
    return _job("gpt2-medium", model, lr=3e-4)


@preset
def gpt2_large() -> Job:
    """GPT-2 large: 774,030,080 parameters.

    Returns:
        a new draft; data, tokenizer and duration are yours to choose.
    """
    model = _model()
    model.dim, model.layers, model.heads = 1280, 36, 20
    model.ffn_dim = 5120
    return _job("gpt2-large", model, lr=2.5e-4)


@preset
def gpt2_xl() -> Job:
    """GPT-2 XL: 1,557,611,200 parameters.

    Returns:
        a new draft; data, tokenizer and duration are yours to choose.
    """
    model = _model()
    model.dim, model.layers, model.heads = 1600, 48, 25
    model.ffn_dim = 6400
    return _job("gpt2-xl", model, lr=2e-4)


def _model() -> Transformer:
    """What all sizes share."""
    return Transformer(
        vocab_size=50_257,
        activation="gelu_tanh",
        ffn_bias=True,
        qkv_bias=True,
        attention_output_bias=True,
        norm=LayerNorm(),
        positions="learned",
        max_sequence_length=1024,
        tie_embeddings=True,
        init_std=0.02,
        dropout=0.1,
        attention_dropout=0.1,
        embedding_dropout=0.1,
    )


def _job(name: str, model: Transformer, lr: float) -> Job:
    batch = Batch(global_size=512, micro_size=8, sequence_length=1024)
    return published(name, model, batch, lr=lr)


@preset
def gpt2_tiny() -> Job:
    """The build of GPT-2 in small, on bytes of the standard library; half a minute on two cores."""
    model = Transformer(
        dim=128,
        layers=4,
        heads=4,
        ffn_dim=512,
        activation="gelu_tanh",
        ffn_bias=True,
        qkv_bias=True,
        attention_output_bias=True,
        norm=LayerNorm(),
        positions="learned",
        tie_embeddings=True,
        init_std=0.02,
    )
    return small("gpt2-tiny", model)
