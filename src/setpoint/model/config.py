"""The configuration of the model."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import ClassVar, Literal

from setpoint.config import (
    RUNTIME,
    Config,
    Free,
    ImportedComponent,
    Invalid,
    Problem,
    Rule,
    dead,
    derive,
    derived,
    field,
    rule,
)
from setpoint.config.words.names import nearest_divisors
from setpoint.model.attention.config import MLA, AttentionTemperature, Backend, Kind, RopeScaling
from setpoint.model.moe.config import MoE

PRETRAINED_RULES = (
    Rule("setpoint.model.pretrained.config_json:check_directory",
         "The pretrained weights exist and fit the model",
         needs="files", when=lambda model: model.pretrained is not None),
)  # fmt: skip


class ModelConfig(Config, rules=PRETRAINED_RULES):
    """Base of all model sections, with the fields they share."""

    takes_documents: ClassVar[bool] = False
    """True if attention can be isolated to the documents in a row."""

    @property
    def parameters_known(self) -> bool:
        """True if the configuration alone determines the parameters."""
        return False

    max_sequence_length: int = derived(ge=1)
    """Maximum sequence length (context length) in tokens; generation drops earlier ones. Default:
    batch.sequence_length."""

    pretrained: str | None = None
    """Pretrained weights to start from: a directory (run, checkpoint, Hugging Face model) or Hub
    id; null: random initialization."""

    embedding_noise: float = field(default=0.0, ge=0, lt=math.inf)
    """Scale alpha of uniform noise on token embeddings in training (NEFTune; neftune_noise_alpha),
    within +-alpha / sqrt(n * dim) for a row of n tokens; 0: none."""


class NormConfig(Config):
    """Normalization layer; `norm_eps` of the model applies to all."""


class RMSNormConfig(NormConfig, type="rms_norm", owner="setpoint.model.block_modules:RMSNorm"):
    """Root-mean-square norm (Zhang and Sennrich, 2019): x / rms(x) * weight."""

    zero_centered: bool = field(default=False)
    """Zero-centered weight (Gemma): the parameter is weight - 1, so weight decay pulls towards
    1."""


class LayerNormConfig(
    NormConfig, type="layer_norm", owner="setpoint.model.block_modules:LayerNorm"
):
    """Layer norm (Ba et al., 2016): (x - mean(x)) / std(x) * weight + bias."""

    bias: bool = True
    """Add a learned bias."""


class ImportedNorm(
    NormConfig,
    ImportedComponent,
    type="import",
    owner="setpoint.model.block_modules:build_imported",
):
    """Any torch module by its import path; other keys are its arguments.

    It maps (..., dim) to (..., dim) and initializes itself. dim or normalized_shape, and eps, are
    passed if it accepts them.
    """

    allowed_modules = ("torch.nn",)
    runtime_arguments = ("dim", "normalized_shape", "eps")


class MuP(Config):
    """Maximal update parametrization (muP, Yang et al., 2022): settings transfer to any width.

    Values tuned at base_dim hold at any dim, with Adam-like optimizers: hidden matrices start with
    init_std * sqrt(base_dim / dim) and learn at lr * base_dim / dim, and logits are multiplied by
    base_dim / dim. Other widths are assumed to grow with dim.
    """

    base_dim: int = field(ge=1)
    """muP base width: dim of the model for which hyperparameters were tuned."""

    base_head_dim: int | None = field(default=None, ge=1)
    """muP base head dimension: attention is scaled by sqrt(base_head_dim) / head_dim; null:
    head_dim, the usual scale."""


RULES = (
    Rule("setpoint.model.attention.selection:backend_problems",
         "The attention backend supports the model",
         when=lambda model: model.attention_backend != "auto"),
    Rule("setpoint.model.moe.config:expert_problems",
         "The layers and widths support experts",
         when=lambda model: model.moe is not None),
)  # fmt: skip


PARTIAL: dict[Kind, tuple[str, str]] = {
    "sliding": ("sliding_window", "a sliding window"),
    "chunked": ("attention_chunk", "chunked attention"),
}
"""Kinds of attention to a part of the earlier positions: the field with their size, and a name."""


class TransformerConfig(
    ModelConfig, type="transformer", owner="setpoint.model.build:build_transformer", rules=RULES
):
    """Decoder-only transformer."""

    takes_documents = True

    dim: int = field(default=192, ge=1)
    """Hidden size (d_model): width of the residual stream."""

    layers: int = field(default=4, ge=1, le=10_000)  # bounds what is counted layer by layer
    """Number of layers (blocks), each attention followed by feed-forward."""

    heads: int = field(default=6, ge=1)
    """Number of attention (query) heads per layer."""

    kv_heads: int = derived(ge=1)
    """Number of key-value heads (grouped-query attention, GQA); 1: multi-query attention (MQA).
    Default: heads."""

    head_dim: int = derived(ge=2)
    """Head dimension, even. Default: dim / heads; heads * head_dim may differ from dim."""

    ffn_dim: int = derived(ge=1)
    """Intermediate size of the feed-forward network (MLP). Default: ffn_multiplier * 4 * dim,
    for gated activations ffn_multiplier * 8/3 * dim, which have three matrices instead of two;
    rounded up to a multiple of ffn_multiple_of."""

    ffn_multiplier: float = field(default=1.0, gt=0, lt=math.inf)
    """FFN multiplier: factor of a derived ffn_dim, before rounding."""

    ffn_multiple_of: int = field(default=64, ge=1)
    """FFN rounding (multiple_of): a derived ffn_dim is rounded up to a multiple of this; 64 suits
    tensor cores."""

    activation: Literal[
        "swiglu", "swiglu_clamped", "geglu", "geglu_tanh", "reglu", "gelu", "gelu_tanh", "relu",
        "relu_squared",
    ] = "swiglu"  # fmt: skip
    """Activation function of the feed-forward network; glu variants are gated by a second
    projection (Shazeer, 2020). swiglu_clamped: GPT-OSS's, with projections clamped at 7."""

    ffn_bias: bool = False
    """FFN bias (mlp_bias): bias in the projections of the feed-forward network."""

    positions: Literal["rotary", "learned", "none"] = "rotary"
    """Position encoding. rotary: RoPE on queries and keys; learned: absolute position embeddings;
    none: order comes only from the causal mask (NoPE)."""

    rope_base: float = field(default=10_000.0, gt=1)
    """RoPE theta (base frequency): wavelengths go from 2 pi to nearly 2 pi * rope_base
    positions."""

    rope_base_sliding: float | None = field(default=None, gt=1)
    """RoPE theta of sliding-window layers, without rope_scaling (Gemma 3's rope_local_base_freq);
    null: rope_base, with rope_scaling."""

    rope_dim: int | None = field(default=None, ge=2)
    """Partial RoPE (partial_rotary_factor, rotary_dim): number of leading dimensions of each head
    that are rotated, even; null: all."""

    rope_pattern: tuple[bool, ...] = (True,)
    """Layers with RoPE (no_rope_layers), repeated over the layers: `false` for layers without
    positions (NoPE)."""

    rope_scaling: RopeScaling | None = None
    """RoPE scaling for contexts longer than the original one; null: none."""

    attention_pattern: tuple[Kind, ...] = ("full",)
    """Attention type of each layer (layer_types), repeated over the layers: `full`, `sliding` for
    sliding-window attention, or `chunked`."""

    sliding_window: int | None = field(default=None, ge=1)
    """Sliding window size: positions that a query attends to in a sliding layer, including its
    own."""

    attention_chunk: int | None = field(default=None, ge=1)
    """Chunk size (attention_chunk_size, Llama 4): in a chunked layer a query attends to the
    positions of its chunk, counted from the start of its document."""

    attention_scale: float | None = field(default=None, gt=0, lt=math.inf)
    """Softmax scale of attention: factor of the query-key products; null: 1 / sqrt(head_dim), or
    muP's scale."""

    attention_soft_cap: float | None = field(default=None, gt=0, lt=math.inf)
    """Attention logit soft-capping: scores x become cap * tanh(x / cap) (Gemma 2); null: none."""

    attention_temperature: AttentionTemperature | None = None
    """Attention temperature by position, in layers without RoPE (attn_temperature_tuning, Llama 4);
    null: none."""

    logit_soft_cap: float | None = field(default=None, gt=0, lt=math.inf)
    """Final logit soft-capping: logits x become cap * tanh(x / cap) (Gemma 2); null: none."""

    qk_norm: bool = False
    """QK-norm: normalize the queries and keys of each head, before RoPE."""

    qk_norm_across_heads: bool = False
    """QK-norm over all heads (OLMo 2): normalize the queries of all heads as one vector, and the
    keys likewise."""

    qk_norm_pattern: tuple[bool, ...] = (True,)
    """Layers with QK-norm, repeated over the layers: `false` for layers without."""

    qk_norm_weights: bool = True
    """Weights of QK-norm; false: RMS norm without weights (Llama 4's L2 norm)."""

    qkv_bias: bool = False
    """QKV bias: bias in the query, key and value projections (attention_bias)."""

    attention_output_bias: bool = False
    """Attention output bias: bias in the output projection (o_proj)."""

    attention_sinks: bool = False
    """Attention sinks (GPT-OSS): a learned score per head in the softmax, without a value."""

    merge_qkv: bool = False
    """Fused QKV: one matrix for the query, key and value projections."""

    attention_backend: Backend = field(default="auto", role=RUNTIME)
    """Attention implementation (attn_implementation). auto: on a GPU sdpa (cuDNN first) for causal
    attention, varlen for isolated documents and windows, flex for what these do not support;
    elsewhere sdpa, or eager for soft caps."""

    mla: MLA | None = None
    """Multi-head latent attention (MLA, DeepSeek-V2) instead of grouped-query attention; null:
    none."""

    moe: MoE | None = None
    """Mixture of experts (MoE) instead of feed-forward networks; null: none."""

    norm: NormConfig = field(factory=RMSNormConfig)
    """Normalization layer (RMSNorm or LayerNorm)."""

    norm_placement: Literal["pre", "post", "both"] = "pre"
    """Norm placement on attention and feed-forward. pre: on inputs; post: on outputs, before the
    residual addition; both: sandwich norm (Gemma)."""

    norm_eps: float = field(default=1e-5, gt=0, lt=1)
    """Norm epsilon (rms_norm_eps, layer_norm_eps): added to the mean square or the variance."""

    init_std: float = derived(gt=0, lt=math.inf)
    """Initializer range: standard deviation of initial weights. Default: sqrt(2 / (5 * dim)), the
    small init of Nguyen and Salazar, 2019 (0.01 for dim = 4096); with muP, computed from
    mup.base_dim."""

    init_std_embedding: float | None = field(default=None, gt=0, lt=math.inf)
    """Standard deviation of initial embeddings of tokens and positions. null: init_std."""

    init_std_output: float | None = field(default=None, gt=0, lt=math.inf)
    """Standard deviation of the initial output matrix. null: init_std."""

    residual_init: Literal["depth_scaled", "layer_scaled", "plain"] = "depth_scaled"
    """Initialization of the projections to the residual stream. depth_scaled: init_std / sqrt(2 *
    layers) (GPT-2); layer_scaled: init_std / sqrt(2 * n) in the nth layer; plain: init_std."""

    mup: MuP | None = None
    """Maximal update parametrization (muP); null: none."""

    vocab_size: int | None = field(default=None, ge=1)
    """Vocabulary size: rows of the embedding and logits, at least the tokenizer's size. null: that
    size rounded up to vocab_multiple_of; the padding rows are never predicted."""

    vocab_multiple_of: int = field(default=1, ge=1)
    """Vocabulary padding: the embedding's rows are rounded up to a multiple of this; 64 suits
    tensor cores."""

    embedding_scale: float = field(default=1.0, gt=0, lt=math.inf)
    """Embedding multiplier: factor of token embeddings; Gemma's is sqrt(dim)."""

    residual_scale: float = field(default=1.0, gt=0, lt=math.inf)
    """Residual multiplier: scales attention and feed-forward outputs before the residual
    addition."""

    logit_scale: float = field(default=1.0, gt=0, lt=math.inf)
    """Logit scale: factor of the logits, before logit_soft_cap."""

    tie_embeddings: bool = False
    """Weight tying (tie_word_embeddings): use the token embedding as the output matrix."""

    dropout: float = field(default=0.0, ge=0, lt=1)
    """Residual dropout: probability of zeroing an element of the attention and feed-forward outputs
    in training."""

    attention_dropout: float = field(default=0.0, ge=0, lt=1)
    """Attention dropout: probability of zeroing an attention weight in training."""

    embedding_dropout: float = field(default=0.0, ge=0, lt=1)
    """Embedding dropout: probability of zeroing an embedding element in training."""

    @derive("kv_heads")
    def _derive_kv_heads(self) -> int:
        return self.heads

    @derive("head_dim")
    def _derive_head_dim(self) -> int:
        return self.standard_head_dim()

    @derive("ffn_dim")
    def _derive_ffn_dim(self) -> int:
        return self.standard_ffn_dim()

    @derive("init_std")
    def _derive_init_std(self) -> float:
        return math.sqrt(2 / (5 * (self.dim if self.mup is None else self.mup.base_dim)))

    @property
    def parameters_known(self) -> bool:
        """False with imported norms."""
        return isinstance(self.norm, RMSNormConfig | LayerNormConfig)

    @property
    def is_gated(self) -> bool:
        """True if the activation multiplies two projections."""
        return "glu" in self.activation

    @property
    def width_ratio(self) -> float:
        """base_dim / dim under muP; 1 without muP.

        muP (Tensor Programs V, Yang et al., 2022, table 8, for Adam), with m = dim / base_dim:
        matrices from width to width (hidden) start with std / sqrt(m) and learn at lr / m; those
        from a fixed size to width (embeddings, biases, norms) and the output stay, and logits are
        divided by m. A model of width base_dim is the model without muP, bit for bit.
        """
        return 1.0 if self.mup is None else self.mup.base_dim / self.dim

    @property
    def hidden_std(self) -> float:
        """Initial standard deviation of matrices from width to width."""
        return self.init_std * math.sqrt(self.width_ratio)

    def residual_std(self, layer: int) -> float:
        """Initial standard deviation of matrices of a layer that write to the residual stream.

        With depth_scaled, the sum of 2 * layers such outputs has the same size at any depth (GPT-2,
        Radford et al., 2019).
        """
        if self.residual_init == "plain":
            return self.hidden_std
        count = self.layers if self.residual_init == "depth_scaled" else layer + 1
        return self.hidden_std / math.sqrt(2 * count)

    @property
    def router_std(self) -> float:
        """Initial standard deviation of matrices from width to a fixed number of scores.

        They learn at the rate of hidden matrices, so that under muP it is 1 / m, not 1 / sqrt(m)
        (table 3 of the paper: an output matrix whose result is divided by m).
        """
        return self.init_std * self.width_ratio

    def rate_multiplier(self, name: str, dims: int) -> float:
        """Factor of a parameter's learning rate under muP.

        Returns:
            `width_ratio` for matrices of the layers, including packed experts; 1 for all others,
            such as adapters.
        """
        hidden = name.startswith("layers.") and dims >= 2 and ".adapter." not in name
        hidden = hidden and not name.endswith("_bias")  # of experts, a row each
        return self.width_ratio if hidden else 1.0

    def count_layers(self, kind: Kind) -> int:
        """Number of layers of a kind; 0 if the pattern is empty."""
        pattern = self.attention_pattern
        of_kind = [place for place, one in enumerate(pattern[: self.layers]) if one == kind]
        return sum(-(-(self.layers - place) // len(pattern)) for place in of_kind)

    def rotates(self, layer: int) -> bool:
        """True if a layer rotates its queries and keys."""
        pattern = self.rope_pattern
        return self.positions == "rotary" and pattern[layer % len(pattern)]

    def norms_queries(self, layer: int) -> bool:
        """True if a layer normalizes its queries and keys."""
        return self.qk_norm and self.qk_norm_pattern[layer % len(self.qk_norm_pattern)]

    def standard_head_dim(self) -> int:
        """Default head dimension."""
        # At least 2, so that too many heads are reported by the check, in its words.
        return max(2, self.dim // self.heads)

    def standard_ffn_dim(self) -> int:
        """Default width of feed-forward networks."""
        step = self.ffn_multiple_of
        numerator, denominator = (8, 3) if self.is_gated else (4, 1)
        if self.ffn_multiplier == 1.0:
            return step * -(-numerator * self.dim // (denominator * step))
        return step * math.ceil(self.ffn_multiplier * numerator * self.dim / denominator / step)

    @rule
    def _check_heads(self) -> Iterator[Problem]:
        """Heads divide the width into even parts."""
        if self.mla is not None:
            return  # it reports head sizes itself
        is_derived = self.head_dim == self.standard_head_dim()
        if is_derived and self.heads * self.head_dim != self.dim:
            yield Problem(
                "heads",
                f"dim = {self.dim} cannot be divided among {self.heads} heads",
                valid=self._fitting_heads(),
                also=("dim",),
                hint=f"Or keep heads and set dim to {self._fitting_widths()}, or set head_dim.",
            )
        elif self.head_dim % 2 and self.positions == "rotary":
            sizes = [str(size) for size in (self.head_dim - 1, self.head_dim + 1)]
            hint = "Rotary embedding turns pairs of components."
            if is_derived:
                heads = self._fitting_heads()
                hint += f" Or keep heads and set dim to {self._fitting_widths()}"
                hint += f", or keep dim and set heads to {heads[0]}." if heads else "."
            yield Problem(
                "head_dim",
                f"{self.head_dim} is odd, but must be even",
                valid=sizes,
                also=("dim", "heads") if is_derived else (),
                hint=hint,
            )

    def _fitting_heads(self) -> list[str]:
        """Numbers of heads that divide dim into even parts, nearest first."""
        counts = nearest_divisors(self.dim // 2, self.heads) if self.dim % 2 == 0 else ()
        return [str(heads) for heads in counts]

    def _fitting_widths(self) -> str:
        """Widths next to dim that the heads divide into even parts."""
        below = self.dim // (2 * self.heads) * 2 * self.heads
        return " or ".join(str(width) for width in (below, below + 2 * self.heads) if width)

    @rule
    def _check_kv_heads(self) -> Iterator[Problem]:
        """Key-value heads divide the query heads."""
        if self.mla is None and self.heads % self.kv_heads:
            yield Problem(
                "kv_heads",
                f"{self.heads} heads cannot be shared evenly by {self.kv_heads} key-value heads",
                valid=[str(count) for count in nearest_divisors(self.heads, self.kv_heads)],
                also=("heads",),
            )

    @rule
    def _check_windows(self) -> Iterator[Problem]:
        """Sliding layers need a window, chunked ones a chunk, and the pattern an item."""
        if not self.attention_pattern:
            yield Problem(
                "attention_pattern", "is empty", valid=('["full"]', '["sliding", "full"]')
            )
            return
        for kind, (name, attention) in PARTIAL.items():
            if self.count_layers(kind) and getattr(self, name) is None:
                yield Problem(
                    name,
                    f"must be set for layers with {attention}",
                    valid=tuple(str(max(1, self.max_sequence_length // part)) for part in (4, 2)),
                    also=("attention_pattern",),
                )

    @rule
    def _check_rope(self) -> Iterator[Problem]:
        """Pairs of components are rotated, in one layer at least."""
        size = self.rope_dim
        if size is not None and self.mla is None and (size % 2 or size > self.head_dim):
            nearest = (size - size % 2, size + size % 2)
            yield Problem(
                "rope_dim",
                f"{size} must be even, and no more than head_dim = {self.head_dim}",
                valid=[str(n) for n in dict.fromkeys(nearest) if 2 <= n <= self.head_dim],
                also=("head_dim",),
                hint="Rotary embedding turns pairs of components.",
            )
        if not any(self.rope_pattern[: self.layers]):
            yield Problem(
                "rope_pattern",
                f"none of the {self.layers} layers is rotated",
                valid=("[true]",),
                hint='Or set positions to "none".',
            )
        if not any(self.qk_norm_pattern[: self.layers]):
            yield Problem(
                "qk_norm_pattern",
                f"none of the {self.layers} layers has the norms",
                valid=("[true]",),
                hint="Or set qk_norm to false.",
            )

    @rule
    def _check_mla(self) -> Iterator[Problem]:
        """Latent attention has even RoPE dimensions, and no muP."""
        if self.mla is None:
            return
        size = self.mla.rope_head_dim
        if size % 2 and self.positions == "rotary":
            yield Problem(
                "mla.rope_head_dim",
                f"{size} is odd, but must be even",
                valid=(str(size - 1), str(size + 1)),
                hint="Rotary embedding turns pairs of components.",
            )
        if self.mup is not None:
            yield Problem(
                "mup.base_dim",
                "muP cannot be combined with mla: its rules are for matrices from width to width, "
                "but latents have widths of their own",
                also=("mla.kv_rank",),
                hint="Set mup or mla to null.",
            )

    @dead("ffn_multiplier", "ffn_multiple_of")
    def _ffn_rule_is_dead(self) -> str | None:
        if self.ffn_dim != self.standard_ffn_dim():
            return f"ffn_dim is given ({self.ffn_dim}), so it is not derived"
        return self._unused_ffn_dim()

    @dead("ffn_dim")
    def _ffn_dim_is_dead(self) -> str | None:
        return None if self.ffn_dim == self.standard_ffn_dim() else self._unused_ffn_dim()

    @dead("rope_dim")
    def _rope_dim_is_dead(self) -> str | None:
        if self.mla is not None:
            return "mla.rope_head_dim is the number of rotated dimensions"
        return self._nothing_rotated()

    @dead("attention_temperature")
    def _attention_temperature_is_dead(self) -> str | None:
        rotated = all(map(self.rotates, range(self.layers)))
        return "all layers rotate queries and keys (rope_pattern)" if rotated else None

    @dead("qk_norm_across_heads", "qk_norm_pattern", "qk_norm_weights")
    def _qk_norm_options_are_dead(self) -> str | None:
        return None if self.qk_norm else "qk_norm is false"

    @dead("rope_base_sliding")
    def _rope_base_sliding_is_dead(self) -> str | None:
        return self._nothing_rotated() or self._no_layer("sliding")

    @dead("sliding_window")
    def _sliding_window_is_dead(self) -> str | None:
        return self._no_layer("sliding")

    @dead("attention_chunk")
    def _attention_chunk_is_dead(self) -> str | None:
        return self._no_layer("chunked")

    @dead("init_std_output")
    def _init_std_output_is_dead(self) -> str | None:
        return "tie_embeddings: the output matrix is the embedding" if self.tie_embeddings else None

    @dead("qk_norm", "qkv_bias", "attention_sinks", "merge_qkv")
    def _grouped_queries_are_dead(self) -> str | None:
        return None if self.mla is None else "mla replaces grouped queries"

    # Every full file has derived values, which may have no effect.

    @dead("kv_heads")
    def _kv_heads_are_dead(self) -> str | None:
        return None if self.kv_heads == self.heads else self._grouped_queries_are_dead()

    @dead("head_dim")
    def _head_dim_is_dead(self) -> str | None:
        is_derived = self.head_dim == self.standard_head_dim()
        return None if is_derived else self._grouped_queries_are_dead()

    @dead("mup.base_head_dim")
    def _base_head_dim_is_dead(self) -> str | None:
        if self.attention_scale is None:
            return None
        return f"attention_scale is given ({self.attention_scale:g}), so it is not derived"

    @dead("vocab_multiple_of")
    def _vocab_multiple_of_is_dead(self) -> str | None:
        if self.vocab_size is None or self.vocab_size % self.vocab_multiple_of == 0:
            return None
        return f"vocab_size is given ({self.vocab_size}), so it is not rounded"

    def _unused_ffn_dim(self) -> str | None:
        """Reason why no network has the width ffn_dim, or None."""
        if self.moe is None or self.moe.expert_dim is None:
            return None
        reason = self._no_dense_layer()
        return reason and f"{reason}, and moe.expert_dim is the width of experts"

    @dead("ffn_bias")
    def _no_dense_layer(self) -> str | None:
        """Reason why fields of dense feed-forward networks are unused, or None."""
        moe = self.moe
        if moe is None or moe.layers_with_experts(self.layers) < self.layers:
            return None
        return "all layers have experts (moe), so there is no dense feed-forward network"

    @dead("rope_pattern")
    def _nothing_rotated(self) -> str | None:
        """Reason why RoPE is unused, or None."""
        if self.positions != "rotary":
            return f"positions = {self.positions}, so nothing is rotated"
        return None

    @dead("rope_base", "rope_scaling")
    def _nothing_rotated_in_full(self) -> str | None:
        """Reason why the RoPE base and scaling of full layers are unused, or None."""
        if self.rope_base_sliding is not None and self.count_layers("sliding") == self.layers:
            return "all layers have a sliding window, so they rotate by rope_base_sliding"
        return self._nothing_rotated()

    def _no_layer(self, kind: Kind) -> str | None:
        """Reason why no layer is of a kind, or None."""
        if self.count_layers(kind):
            return None
        if kind in self.attention_pattern:
            return (
                f"only the first {self.layers} entries of attention_pattern are used, one for "
                f"each layer, and none of them is {kind}"
            )
        return f"no layer has {PARTIAL[kind][1]} (attention_pattern)"


class ImportedModel(
    ModelConfig, ImportedComponent, type="import", owner="setpoint.model.build:build_imported"
):
    """Any torch module by its import path; other keys are its arguments.

    It maps (B, S) int64 tokens to (B, S, V) logits, and initializes itself. vocab_size and
    max_sequence_length are passed if it accepts them.
    """

    allowed_modules = ("torch.nn",)
    runtime_arguments = ("vocab_size",)


class HuggingFaceConfig(
    ModelConfig,
    type="huggingface",
    owner="setpoint.model.huggingface.builder:build_huggingface",
    rules=(
        Rule("setpoint.model.huggingface.architecture:check_config",
             "Its config.json exists and fits the section", needs="files"),
        Rule("setpoint.model.huggingface.architecture:check_package",
             "The package transformers is installed", needs="import"),
        Rule("setpoint.model.huggingface.builder:check_weights",
             "The pretrained weights fit the model that transformers builds",
             needs="import",
             when=lambda model: model.pretrained is not None and find_spec("torch") is not None),
    ),
):  # fmt: skip
    """Causal language model of the transformers library."""

    takes_documents = True

    config: str = derived()
    """Hugging Face config.json: a directory, a hub id, or a model_type of transformers (llama) with
    its defaults. Default: the one next to the pretrained weights."""

    overrides: Free = field(factory=Free)
    """Overrides for config.json, by its own keys, such as num_hidden_layers."""

    attention_backend: Literal[
        "auto", "setpoint", "eager", "sdpa", "flash_attention_2", "flex_attention"
    ] = field(default="auto", role=RUNTIME)
    """Attention implementation: setpoint: as in type = transformer, with its masks and kernels; one
    from transformers, by name (attn_implementation); or auto: setpoint where the family supports
    it, else transformers' first choice."""

    @derive("config")
    def _derive_config(self) -> str:
        if self.pretrained is None:
            raise Invalid(
                "must be set unless pretrained is set",
                hint="Set it to a directory with a config.json, or to the id of a model.",
            )
        return self.pretrained

    @rule
    def _check_config(self) -> Iterator[Problem]:
        if self.config.lower() in ("null", "none", "~", ""):
            yield Problem(
                "config",
                "does not name a model",
                hint="Set it to a directory with a config.json, or to the id of a model.",
            )

    @property
    def names_model_type(self) -> bool:
        """True if `config` is a model_type, not the location of a config.json."""
        return self.config.isidentifier() and not os.path.exists(self.config)


def names_attention_backend(model: ModelConfig) -> bool:
    """True if a model names an attention backend, which may be unavailable."""
    return isinstance(model, TransformerConfig) and model.attention_backend != "auto"


def marks_padding(model: ModelConfig) -> bool:
    """True if the model reads padding from positions, so that experts skip it."""
    if isinstance(model, TransformerConfig):
        return model.moe is not None
    return isinstance(model, HuggingFaceConfig)
