"""A transformer small enough for every test."""

from setpoint.config import resolve
from setpoint.model.config import TransformerConfig
from setpoint.model.initialize import initialize
from setpoint.model.transformer import Transformer

VOCAB = 37


def small_config(**changes) -> TransformerConfig:
    fields = {
        "dim": 24, "layers": 2, "heads": 6, "kv_heads": 2, "ffn_dim": 40, "max_sequence_length": 64,
        "init_std": 0.2,
    }  # fmt: skip
    if changes.get("mla") is not None:
        del fields["kv_heads"]  # latent attention has none
    return resolve(TransformerConfig(**{**fields, **changes}))


def small_model(*, seed: int = 1, **changes) -> Transformer:
    model = small_config(**changes).build(vocab_size=VOCAB)
    initialize(model, seed)
    return model
