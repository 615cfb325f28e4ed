"""The configuration of the model."""

from __future__ import annotations

import math
from collections.abc import Iterator

from setpoint.config import Config, Problem, check, dead, derive, derived, field
from setpoint.config.foreign.section import Foreign
from setpoint.model.divisors import nearest_divisors


class ModelConfig(Config):
    """What all models share."""

    max_sequence_length: int = derived(
        ge=1, also_called=("max_position_embeddings", "n_positions", "n_ctx")
    )
    """Longest sequence, in tokens, that the model takes; generation forgets what lies further
    back. Set by the training job to its sequence length unless given."""


class Transformer(ModelConfig, type="transformer", owner="setpoint.model.transformer:Transformer"):
    """A decoder-only transformer with rotary positions, RMSNorm, SwiGLU and grouped queries."""

    dim: int = field(
        default=192,
        ge=1,
        also_called=("hidden_size", "n_embd", "d_model", "embed_dim", "emb_dim", "model_dim"),
    )
    """Width of the residual stream."""

    layers: int = field(
        default=4, ge=1, also_called=("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    )
    """Number of layers, each attention followed by feed-forward."""

    heads: int = field(
        default=6, ge=1, also_called=("num_attention_heads", "n_head", "n_heads", "num_heads")
    )
    """Number of query heads in each layer."""

    kv_heads: int = derived(
        ge=1,
        also_called=(
            "num_key_value_heads",
            "n_kv_heads",
            "n_kv_head",
            "num_kv_heads",
            "n_query_groups",
            "num_query_groups",
        ),
    )
    """Number of key-value heads; each serves heads / kv_heads query heads. As many as heads
    unless given; 1 is multi-query attention."""

    head_dim: int = derived(ge=2, also_called=("head_size", "kv_channels", "d_head"))
    """Size of one head, even. Unless given dim / heads; heads * head_dim may differ from dim."""

    ffn_dim: int = derived(
        ge=1, also_called=("intermediate_size", "ffn_hidden_size", "d_ff", "ffn_hidden_dim")
    )
    """Inner width of the feed-forward network. Unless given 8/3 * dim, which gives its three
    matrices the size of two of width 4 * dim, rounded up to a multiple of ffn_multiple_of."""

    ffn_multiple_of: int = field(default=64, ge=1, also_called=("multiple_of",))
    """What a derived ffn_dim is a multiple of; matrix units like 64 and more."""

    rope_base: float = field(
        default=10_000.0,
        gt=1,
        also_called=("rope_theta", "rotary_base", "rotary_emb_base"),
    )
    """Base of the rotary wavelengths: from 2 pi to nearly 2 pi * rope_base positions."""

    norm_eps: float = field(
        default=1e-5,
        gt=0,
        lt=1,
        also_called=("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    )
    """Added to the mean square in RMSNorm."""

    init_std: float = derived(
        gt=0, lt=math.inf, also_called=("initializer_range", "init_method_std")
    )
    """Standard deviation of initial weights; projections that write to the residual stream start
    with init_std / sqrt(2 * layers). Unless given sqrt(2 / (5 * dim)), the small initialization of
    Nguyen and Salazar, 2019: 0.056 for dim = 128, 0.01 for dim = 4096."""

    tie_embeddings: bool = field(
        default=False, also_called=("tie_word_embeddings", "weight_tying", "tied_embeddings")
    )
    """Use the embedding as the output matrix, too."""

    dropout: float = field(
        default=0.0,
        ge=0,
        lt=1,
        also_called=("hidden_dropout", "resid_pdrop", "resid_dropout", "residual_dropout"),
    )
    """Probability to drop an element of what attention and feed-forward add to the residual
    stream, in training."""

    @derive("kv_heads")
    def _derive_kv_heads(self) -> int:
        return self.heads

    @derive("head_dim")
    def _derive_head_dim(self) -> int:
        # At least 2, so that too many heads are reported by the check, in its words.
        return max(2, self.dim // self.heads)

    @derive("ffn_dim")
    def _derive_ffn_dim(self) -> int:
        return self._swiglu_width()

    @derive("init_std")
    def _derive_init_std(self) -> float:
        return math.sqrt(2 / (5 * self.dim))

    def _swiglu_width(self) -> int:
        step = self.ffn_multiple_of
        return step * -(-8 * self.dim // (3 * step))

    @check
    def _check_heads(self) -> Iterator[Problem]:
        is_derived = self.head_dim == max(2, self.dim // self.heads)
        # Heads that divide dim into even parts, and widths that these heads do.
        fitting = nearest_divisors(self.dim // 2, self.heads) if self.dim % 2 == 0 else ()
        below = self.dim // (2 * self.heads) * 2 * self.heads
        widths = [str(width) for width in (below, below + 2 * self.heads) if width]
        if is_derived and self.heads * self.head_dim != self.dim:
            yield Problem(
                "heads",
                f"dim = {self.dim} cannot be divided among {self.heads} heads",
                valid=[str(heads) for heads in fitting],
                also=("dim",),
                hint=f"Or keep heads and set dim to {' or '.join(widths)}, or set head_dim.",
            )
        elif self.head_dim % 2:
            sizes = [str(size) for size in (self.head_dim - 1, self.head_dim + 1)]
            hint = "Rotary embedding turns pairs of components."
            if is_derived:
                hint += f" Or keep heads and set dim to {' or '.join(widths)}"
                hint += f", or keep dim and set heads to {fitting[0]}." if fitting else "."
            yield Problem(
                "head_dim",
                f"{self.head_dim} is odd, and must be even",
                valid=sizes,
                also=("dim", "heads") if is_derived else (),
                hint=hint,
            )

    @check
    def _check_kv_heads(self) -> Iterator[Problem]:
        if self.heads % self.kv_heads:
            yield Problem(
                "kv_heads",
                f"{self.heads} heads cannot be shared evenly by {self.kv_heads} key-value heads",
                valid=[str(count) for count in nearest_divisors(self.heads, self.kv_heads)],
                also=("heads",),
            )

    @dead("ffn_multiple_of")
    def _ffn_multiple_of_is_dead(self) -> str | None:
        if self.ffn_dim != self._swiglu_width():
            return f"ffn_dim is given ({self.ffn_dim}), so it is not derived"
        return None


class ImportedModel(
    ModelConfig, Foreign, type="import", owner="setpoint.model.imported:build_imported"
):
    """Any torch module by its import path; other keys are its arguments.

    It maps (B, S) int64 tokens to (B, S, V) logits, and initializes itself. Where it takes
    vocab_size and max_sequence_length, it gets them.
    """

    trusts = ("torch.nn",)
    handed = ("vocab_size",)
