"""Llama 3 in its published sizes, and a small one of the same build.

Shapes: config.json of meta-llama/Llama-3.2-1B, Llama-3.2-3B, Llama-3.1-8B and Llama-3.1-70B on
Hugging Face. Learning rates, warm-up, floor and tokens in an update: The Llama 3 Herd of Models,
2024, table 3 and section 3.4.1, which does not cover 1B and 3B; they use the settings of 8B.
"""

from __future__ import annotations

from collections.abc import Callable

from setpoint.config import preset
from setpoint.memory.config import Full
from setpoint.model.attention.config import Llama3Scaling
from setpoint.model.config import TransformerConfig
from setpoint.presets.recipes import published, sized, small
from setpoint.train.config import BatchConfig, Job


def _size(
    name: str,
    title: str,
    parameters: int,
    dim: int,
    layers: int,
    heads: int,
    ffn_dim: int,
    lr: float,
    tied: bool = False,
) -> Callable[[], Job]:
    def job(name: str) -> Job:
        model = TransformerConfig(
            vocab_size=128_256,
            dim=dim,
            layers=layers,
            heads=heads,
            kv_heads=8,
            ffn_dim=ffn_dim,
            rope_base=500_000.0,
            # Llama 3.2, which ties embeddings, stretches rotations further.
            rope_scaling=Llama3Scaling(factor=32.0 if tied else 8.0, original_length=8192),
            max_sequence_length=131_072,
            init_std=0.02,
            residual_init="plain",
            tie_embeddings=tied,
        )
        # 4M tokens in an update.
        batch = BatchConfig(global_size=512, micro_size=1, sequence_length=8192)
        # What operators saves of 80 layers of 8192 tokens is more than a GPU has.
        recompute = Full() if layers > 64 else None
        return published(name, model, batch, lr=lr, floor=0.01, recompute=recompute)

    return sized(name, title, parameters, job)


# fmt: off
#                  name          title             parameters   dim layers heads ffn_dim  lr
llama3_1b  = _size("llama3-1b",  "Llama 3.2 1B",   1_235_814_400, 2048, 16, 32,  8_192, 3e-4, True)
llama3_3b  = _size("llama3-3b",  "Llama 3.2 3B",   3_212_749_824, 3072, 28, 24,  8_192, 3e-4, True)
llama3_8b  = _size("llama3-8b",  "Llama 3.1 8B",   8_030_261_248, 4096, 32, 32, 14_336, 3e-4)
llama3_70b = _size("llama3-70b", "Llama 3.1 70B", 70_553_706_496, 8192, 80, 64, 28_672, 1.5e-4)
# fmt: on


@preset
def llama3_tiny() -> Job:
    """A small Llama 3, trained on bytes of the standard library; half a minute on two cores."""
    model = TransformerConfig(
        dim=128,
        layers=4,
        heads=4,
        kv_heads=2,
        ffn_dim=384,
        rope_base=500_000.0,
        rope_scaling=Llama3Scaling(factor=32.0, original_length=128),
        tie_embeddings=True,
    )
    return small("llama3-tiny", model, floor=0.01)
