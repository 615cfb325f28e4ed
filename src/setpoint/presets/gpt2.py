"""GPT-2 in its published sizes, and a small one of the same build.

Shapes: config.json of openai-community/gpt2, gpt2-medium, gpt2-large and gpt2-xl on Hugging Face;
Language Models are Unsupervised Multitask Learners, Radford et al., 2019, gives 512 sequences of
1024 tokens per update but no learning rates. These are from Language Models are Few-Shot Learners,
Brown et al., 2020, table 2.1, for models of nearly the same sizes.
"""

from __future__ import annotations

from collections.abc import Callable

from setpoint.config import preset
from setpoint.model.config import LayerNormConfig, TransformerConfig
from setpoint.presets.recipes import published, sized, small
from setpoint.train.config import BatchConfig, Job


def _size(
    name: str, title: str, parameters: int, dim: int, layers: int, heads: int, lr: float
) -> Callable[[], Job]:
    def job(name: str) -> Job:
        model = TransformerConfig(
            vocab_size=50_257,
            dim=dim,
            layers=layers,
            heads=heads,
            ffn_dim=4 * dim,
            activation="gelu_tanh",
            ffn_bias=True,
            qkv_bias=True,
            attention_output_bias=True,
            norm=LayerNormConfig(),
            positions="learned",
            max_sequence_length=1024,
            tie_embeddings=True,
            init_std=0.02,
            dropout=0.1,
            attention_dropout=0.1,
            embedding_dropout=0.1,
        )
        batch = BatchConfig(global_size=512, micro_size=8, sequence_length=1024)
        return published(name, model, batch, lr=lr)

    return sized(name, title, parameters, job)


# fmt: off
#                   name           title           parameters      dim layers heads   lr
gpt2        = _size("gpt2",        "GPT-2",          124_439_808,  768, 12, 12, 6e-4)
gpt2_medium = _size("gpt2-medium", "GPT-2 medium",   354_823_168, 1024, 24, 16, 3e-4)
gpt2_large  = _size("gpt2-large",  "GPT-2 large",    774_030_080, 1280, 36, 20, 2.5e-4)
gpt2_xl     = _size("gpt2-xl",     "GPT-2 XL",     1_557_611_200, 1600, 48, 25, 2e-4)
# fmt: on


@preset
def gpt2_tiny() -> Job:
    """A small GPT-2, trained on bytes of the standard library; half a minute on two cores."""
    model = TransformerConfig(
        dim=128,
        layers=4,
        heads=4,
        ffn_dim=512,
        activation="gelu_tanh",
        ffn_bias=True,
        qkv_bias=True,
        attention_output_bias=True,
        norm=LayerNormConfig(),
        positions="learned",
        tie_embeddings=True,
        init_std=0.02,
    )
    return small("gpt2-tiny", model)
