"""The decoder-only transformer: embedding, blocks of attention and feed-forward, norm, output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from setpoint.config import SetpointError
from setpoint.model.attention.attention import (
    Attention,
    AttentionContext,
    LatentAttention,
    attention_context,
)
from setpoint.model.attention.backends import Backend
from setpoint.model.attention.key_value_cache import KeyValueCache
from setpoint.model.block_modules import FeedForward, build_norm
from setpoint.model.initialize import FirstRows, Initializer, NormalInit
from setpoint.model.parameters import (
    LAYER,
    embedding_rows,
    part_names,
    predicted_tokens,
    units_around_layers,
    vocab_error,
)
from setpoint.shapes.outcome import (
    Outcome,
    Projection,
    VocabularyPart,
    compute_dtype,
    weight_in_use,
)
from setpoint.shapes.peers import Peers

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig
    from setpoint.shapes.batch import ContextGroups, Lengths

Head = Callable[[Tensor, Projection], Any]


class Transformer(nn.Module):
    """Decoder-only transformer: embedding, blocks, norm, output.

    Only the residual stream passes between layers, and positions are explicit, so pipeline stages
    can be on different devices. A stage is a model after `keep_parts`; its layers keep their names,
    and thus their initialization and place in checkpoints. With tied embeddings, the last stage
    keeps the embedding as its output matrix; the gradients of both must be summed.

    Raises:
        SetpointError: the configured vocabulary is too small.
    """

    # See `setpoint.shapes.outcome.supports_head`.
    supports_head = True
    # See `setpoint.shapes.outcome.position_arguments`.
    takes_lengths = True
    # Rows may begin with padding, marked by negative positions.
    pads_left = True

    def __init__(self, config: TransformerConfig, *, vocab_size: int) -> None:
        super().__init__()
        if reason := vocab_error(config, vocab_size):
            raise SetpointError(
                f"model.vocab_size = {config.vocab_size}: {reason}. Valid: {vocab_size} or more, "
                f"or null for the tokenizer's size"
            )
        self.config = config
        self.vocab_size = predicted_tokens(config, vocab_size)
        self.rows = embedding_rows(config, vocab_size)
        self.vocabulary_part: VocabularyPart | None = None
        self.embedding: nn.Embedding | None = nn.Embedding(self.rows, config.dim)
        self.position_embedding = (
            nn.Embedding(config.max_sequence_length, config.dim)
            if config.positions == "learned"
            else None
        )
        self.layers = nn.ModuleDict(
            {str(layer): self.build_block(layer) for layer in range(config.layers)}
        )
        self.norm: nn.Module | None = build_norm(config, config.dim)
        # Tied: without a second name of the parameter, which the meta device separates and
        # safetensors refuses.
        self.output = None if config.tie_embeddings else Output(config.dim, self.rows, bias=False)
        self.logit_scale = config.logit_scale * config.width_ratio
        self._context_groups: ContextGroups | None = None
        self._backends: dict[Any, Backend] = {}

    def build_block(self, layer: int) -> Block:
        """Build a layer, by its index in the whole model."""
        return Block(self.config, layer, FeedForward(self.config, layer))

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        *,
        documents: Tensor | None = None,
        lengths: Lengths | None = None,
        cache: KeyValueCache | None = None,
        head: Head | None = None,
    ) -> Tensor | Outcome:
        """Compute the logits of every next token, or call a head with the hidden states.

        Arguments:
            tokens: (B, S) int64; for a later pipeline stage the (B, S, dim) residual stream.
            positions: (S,) or (B, S) integers, negative for padding. None: 0 .. S - 1, or the
                positions after the cache. Under context parallelism, positions of whole rows.
            documents: (B, S) integers; tokens attend within their document. None: tokens attend to
                the whole row.
            lengths: lengths of the documents, or of rows before padding, if the host knows them.
            head: called with the (B, S, dim) final hidden states and the projection to logits, in
                this forward pass, when a sharding engine has gathered the weights.

        Returns:
            (B, S, V) logits in the compute dtype; with a head, an `Outcome` with its result.
            Pipeline stages before the last return the (B, S, dim) residual stream instead.

        Raises:
            ValueError: the sequence is longer than max_sequence_length, or a stage without an
                embedding received tokens.
        """
        x, context = self.embed(tokens, positions, documents, lengths, cache)
        for layer in self.layers.values():
            x = layer(x, context)
        result = self.project(x, head)
        return result if head is None else Outcome(result)

    def embed(
        self,
        tokens: Tensor,
        positions: Tensor | None,
        documents: Tensor | None,
        lengths: Lengths | None,
        cache: KeyValueCache | None,
    ) -> tuple[Tensor, AttentionContext]:
        """Embed tokens as (B, S, dim), and prepare attention; see `forward`."""
        limit = self.config.max_sequence_length
        end = tokens.shape[1] + (0 if cache is None else cache.length)
        if end > limit:
            raise ValueError(
                f"a sequence of {end} tokens is longer than max_sequence_length = {limit}"
            )
        x = tokens
        if tokens.dim() == 2:
            if self.embedding is None:
                raise ValueError(
                    "this part of the model has no embedding; it needs the (B, S, dim) residual "
                    "stream from the part before it"
                )
            x = self.embedding(tokens)
            if self.config.embedding_scale != 1.0:
                x = x * self.config.embedding_scale
        context = attention_context(
            self.config,
            tokens,
            positions,
            documents,
            cache,
            self._context_groups,
            lengths=lengths,
            dtype=compute_dtype(x),
            backends=self._backends,
        )
        if self.position_embedding is not None and tokens.dim() == 2:
            self._check_positions(context.positions)
            # Padding has negative positions, and is masked.
            x = x + self.position_embedding(context.positions.clamp(min=0))
        if self.config.embedding_dropout and self.training and tokens.dim() == 2:
            x = F.dropout(x, self.config.embedding_dropout)
        return x, context

    def _check_positions(self, positions: Tensor) -> None:
        """Refuse positions beyond the learned embeddings, on a CPU."""
        rows = self.config.max_sequence_length
        if positions.is_cpu and not torch.compiler.is_compiling() and positions.numel():
            last = int(positions.max())
            if last >= rows:
                raise ValueError(f"position {last} is beyond the {rows} learned positions")

    def project(self, x: Tensor, head: Head | None) -> Any:
        """Compute logits from the residual stream, or call a head; see `forward`."""
        if self.norm is None:
            return x
        hidden = self.norm(x)
        if head is None:
            return self._logits(hidden)
        if self.output is None:
            return head(hidden, self.projection)
        return self.output(hidden, lambda states: head(states, self.projection))

    def _logits(self, hidden: Tensor) -> Tensor:
        """Project (B, S, dim) final hidden states."""
        projection = self.projection
        if projection.part is not None:
            projection = projection._replace(part=projection.part._replace(gathers=True))
        if self.output is None:
            return projection.logits(hidden)
        # By the module, not its weight: engines and adapters wrap its call.
        return projection.finish(self.output(hidden))

    @property
    def projection(self) -> Projection:
        """Projection of the final hidden states to logits."""
        matrix = self.embedding if self.config.tie_embeddings else self.output
        assert matrix is not None, "this part of the model has no output matrix"
        weight, soft_cap = weight_in_use(matrix), self.config.logit_soft_cap
        return Projection(weight, self.vocab_size, self.logit_scale, soft_cap, self.vocabulary_part)

    def make_cache(self) -> KeyValueCache:
        """Make a cache for generation."""
        return KeyValueCache()

    def initializers(self) -> dict[str, Initializer]:
        """Initial values of embeddings and output; layers define their own."""
        config = self.config
        rules: dict[str, Initializer] = {}
        stds = {
            "embedding": config.init_std_embedding,
            "position_embedding": config.init_std_embedding,
            "output": config.init_std_output,
        }
        for name, given in stds.items():
            std = given or config.init_std
            # Padding rows start at zero and stay there.
            is_padded = name != "position_embedding" and self.rows != self.vocab_size
            if getattr(self, name) is not None:
                rule = FirstRows(std, self.vocab_size) if is_padded else NormalInit(std)
                rules[f"{name}.weight"] = rule
        return rules

    def learning_rate_multipliers(self) -> dict[str, float]:
        """Learning-rate factors of muP by parameter; 1 for parameters left out, all without muP."""
        factors = {
            name: self.config.rate_multiplier(name, parameter.ndim)
            for name, parameter in self.named_parameters()
        }
        return {name: factor for name, factor in factors.items() if factor != 1.0}

    # Division among ranks: see the protocols of `setpoint.shapes.protocols`.

    @property
    def token_embedding(self) -> nn.Embedding | None:
        """See `Embeds`."""
        return self.embedding

    @property
    def stream_width(self) -> int:
        """See `Staged`."""
        return self.config.dim

    def stage_parts(self) -> list[str]:
        """See `Staged`; `output` includes the norm before it."""
        return part_names(self.config.layers)

    def keep_parts(self, parts: Sequence[str]) -> None:
        """See `Staged`."""
        self.layers = nn.ModuleDict(
            {name: layer for name, layer in self.layers.items() if LAYER + name in parts}
        )
        is_first, is_last = "embedding" in parts, "output" in parts
        if not is_first:
            self.position_embedding = None
        if not is_last:
            self.norm = self.output = None
        if not (is_first or (is_last and self.config.tie_embeddings)):
            self.embedding = None

    def tensor_plan(self) -> dict[str, str]:
        """Division of embeddings, norm and output; layers define their own."""
        plan = {
            "embedding": "vocabulary_rows",
            "position_embedding": "sequence",
            "norm": "shared_output",
            "output": "vocabulary_columns",
        }
        return {name: word for name, word in plan.items() if getattr(self, name) is not None}

    def divide_vocabulary(self, peers: Peers, gathers: bool) -> None:
        """See `VocabularyDivisible`."""
        self.vocabulary_part = VocabularyPart(peers, -(-self.rows // peers.size), gathers)

    def use_context(self, groups: ContextGroups) -> None:
        """See `SequenceDivisible`."""
        self._context_groups = groups

    def units_around_layers(self) -> list[list[nn.Module]]:
        """See `HasUnits`."""
        units = [
            [module for name in names if (module := getattr(self, name)) is not None]
            for names in units_around_layers(self.config)
        ]
        return [unit for unit in units if unit]


class Block(nn.Module):
    """Attention, then feed-forward, each added to the residual stream.

    Norms are applied to the inputs (pre, Xiong et al., 2020), to the outputs before they are added
    (post, as in OLMo 2), or to both (as in Gemma 2).

    Arguments:
        layer: index in the whole model, from 0; determines the kind of attention.
    """

    def __init__(self, config: TransformerConfig, layer: int, feed_forward: nn.Module) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.residual_scale = config.residual_scale
        before = config.norm_placement in ("pre", "both")
        after = config.norm_placement in ("post", "both")
        self.attention_norm = build_norm(config, config.dim) if before else None
        self.attention = (Attention if config.mla is None else LatentAttention)(config, layer)
        self.attention_output_norm = build_norm(config, config.dim) if after else None
        self.feed_forward_norm = build_norm(config, config.dim) if before else None
        self.feed_forward = feed_forward
        self.feed_forward_output_norm = build_norm(config, config.dim) if after else None

    def forward(self, x: Tensor, context: AttentionContext) -> Any:
        """Apply the layer to the (B, S, dim) residual stream."""
        x = self.attend(x, context)
        update = self.feed_forward(normalized(x, self.feed_forward_norm))
        return self.add(x, update, self.feed_forward_output_norm)

    def attend(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Add attention to the residual stream."""
        update = self.attention(normalized(x, self.attention_norm), context)
        return self.add(x, update, self.attention_output_norm)

    def add(self, x: Tensor, update: Tensor, norm: nn.Module | None) -> Tensor:
        """Add an update to the residual stream."""
        update = normalized(update, norm)
        if self.dropout and self.training:
            update = F.dropout(update, self.dropout)
        if self.residual_scale != 1.0:
            update = update * self.residual_scale
        return x + update


def normalized(x: Tensor, norm: nn.Module | None) -> Tensor:
    """Apply a norm, if there is one."""
    return x if norm is None else norm(x)


class Output(nn.Linear):
    """Output matrix, (V, dim)."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, hidden: Tensor, within: Callable[[Tensor], Any] | None = None
    ) -> Any:
        """Project hidden states, or call `within` with them while the weight is gathered."""
        return super().forward(hidden) if within is None else within(hidden)
