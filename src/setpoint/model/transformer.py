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
    Chosen,
    LatentAttention,
    attention_context,
)
from setpoint.model.attention.key_value_cache import KeyValueCache
from setpoint.model.block_modules import FeedForward, build_norm, compute_dtype
from setpoint.model.initialize import FirstRows, Initializer, NormalInit
from setpoint.model.parameters import (
    LAYER,
    embedding_rows,
    part_names,
    predicted_tokens,
    require_fit,
    units_around_layers,
)
from setpoint.shapes.outcome import Outcome, Projection, VocabularyPart, weight_in_use
from setpoint.shapes.peers import Peers
from setpoint.shapes.protocols import ExpertPart

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig
    from setpoint.model.moe.dispatch import TokenDispatcher
    from setpoint.model.moe.layer import LayerRouting, MoELayer
    from setpoint.shapes.batch import ContextGroups, Lengths

Head = Callable[[Tensor, Projection], Any]


class Block(nn.Module):
    """Attention, then feed-forward, each added to the residual stream.

    Norms are applied to the inputs (pre, Xiong et al., 2020), to the outputs before they are added
    (post, as in OLMo 2), or to both (as in Gemma 2).

    Arguments:
        layer: index in the whole model, from 0; determines the kind of attention, and whether there
            are experts.
    """

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.residual_scale = config.residual_scale
        before = config.norm_placement in ("pre", "both")
        after = config.norm_placement in ("post", "both")
        self.attention_norm = build_norm(config, config.dim) if before else None
        self.attention = (Attention if config.mla is None else LatentAttention)(config, layer)
        self.attention_output_norm = build_norm(config, config.dim) if after else None
        self.feed_forward_norm = build_norm(config, config.dim) if before else None
        self.has_experts = config.moe is not None and config.moe.has_experts(layer)
        if self.has_experts:
            from setpoint.model.moe.layer import MoELayer

            assert config.moe is not None
            self.feed_forward = MoELayer(config, layer)
        else:
            self.feed_forward = FeedForward(config, layer)
        self.feed_forward_output_norm = build_norm(config, config.dim) if after else None

    def forward(self, x: Tensor, context: AttentionContext) -> tuple[Tensor, LayerRouting | None]:
        """Apply the layer.

        Returns:
            (B, S, dim) residual stream and, in training with experts, the routing of the tokens.
        """
        normalized = x if self.attention_norm is None else self.attention_norm(x)
        x = self._add_residual(x, self.attention(normalized, context), self.attention_output_norm)
        normalized = x if self.feed_forward_norm is None else self.feed_forward_norm(x)
        routing = None
        if self.has_experts:
            update, routing = self.feed_forward(normalized, context.positions)
        else:
            update = self.feed_forward(normalized)
        return self._add_residual(x, update, self.feed_forward_output_norm), routing

    def _add_residual(self, x: Tensor, update: Tensor, norm: nn.Module | None) -> Tensor:
        if norm is not None:
            update = norm(update)
        if self.dropout and self.training:
            update = F.dropout(update, self.dropout)
        if self.residual_scale != 1.0:
            update = update * self.residual_scale
        return x + update


class Output(nn.Linear):
    """Output matrix, (V, dim)."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, hidden: Tensor, within: Callable[[Tensor], Any] | None = None
    ) -> Any:
        """Project hidden states, or call `within` with them while the weight is gathered."""
        return super().forward(hidden) if within is None else within(hidden)


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

    def __init__(self, config: TransformerConfig, *, vocab_size: int) -> None:
        super().__init__()
        require_fit(config, vocab_size)
        self.config = config
        self.vocab_size = predicted_tokens(config, vocab_size)
        rows = embedding_rows(config, vocab_size)
        # Padding rows start at zero and stay there.
        self.has_padding = rows != self.vocab_size
        self.rows = rows
        self.vocabulary_part: VocabularyPart | None = None
        self.embedding: nn.Embedding | None = nn.Embedding(rows, config.dim)
        self.position_embedding = (
            nn.Embedding(config.max_sequence_length, config.dim)
            if config.positions == "learned"
            else None
        )
        self.layers = nn.ModuleDict(
            {str(layer): Block(config, layer) for layer in range(config.layers)}
        )
        self.norm: nn.Module | None = build_norm(config, config.dim)
        # Tied: without a second name of the parameter, which the meta device separates and
        # safetensors refuses.
        self.output = None if config.tie_embeddings else Output(config.dim, rows, bias=False)
        self.logit_scale = config.logit_scale * config.width_ratio
        self._context_groups: ContextGroups | None = None
        self._backends: dict[Any, Chosen] = {}

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
        end = tokens.shape[1] + (0 if cache is None else cache.length)
        if end > self.config.max_sequence_length:
            raise ValueError(
                f"a sequence of {end} tokens is longer than "
                f"max_sequence_length = {self.config.max_sequence_length}"
            )
        x = tokens if tokens.dim() == 3 else self._embed(tokens)
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
        if tokens.dim() == 2:
            x = self._add_positions(x, context.positions)
        routings: dict[int, LayerRouting] = {}
        for name, layer in self.layers.items():
            x, routing = layer(x, context)
            if routing is not None:
                routings[int(name)] = routing
        if self.norm is None:
            result = x
        elif head is None:
            return self._logits(self.norm(x))
        elif self.output is None:
            result = head(self.norm(x), self.projection)
        else:
            result = self.output(self.norm(x), lambda states: head(states, self.projection))
        if head is None:
            return x
        if self.config.moe is None or not self.training:
            return Outcome(result)
        from setpoint.model.moe.layer import combine

        return Outcome(result, *combine(self.config, routings, x.device))

    def _embed(self, tokens: Tensor) -> Tensor:
        """Embed tokens as (B, S, dim)."""
        if self.embedding is None:
            raise ValueError(
                "this part of the model has no embedding; it needs the (B, S, dim) residual "
                "stream from the part before it"
            )
        x = self.embedding(tokens)
        return x if self.config.embedding_scale == 1.0 else x * self.config.embedding_scale

    def _add_positions(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add learned positions, and apply dropout."""
        if self.position_embedding is not None:
            self._check_positions(positions)
            # Padding has negative positions, and is masked.
            x = x + self.position_embedding(positions.clamp(min=0))
        if self.config.embedding_dropout and self.training:
            x = F.dropout(x, self.config.embedding_dropout)
        return x

    def _check_positions(self, positions: Tensor) -> None:
        """Refuse positions beyond the learned embeddings, on a CPU."""
        rows = self.config.max_sequence_length
        if positions.is_cpu and not torch.compiler.is_compiling() and positions.numel():
            last = int(positions.max())
            if last >= rows:
                raise ValueError(f"position {last} is beyond the {rows} learned positions")

    @property
    def token_embedding(self) -> nn.Embedding | None:
        """See `setpoint.shapes.protocols.Embeds`."""
        return self.embedding

    @property
    def projection(self) -> Projection:
        """Projection of the final hidden states to logits."""
        matrix = self.embedding if self.config.tie_embeddings else self.output
        assert matrix is not None, "this part of the model has no output matrix"
        weight = weight_in_use(matrix)
        soft_cap = self.config.logit_soft_cap
        return Projection(weight, self.vocab_size, self.logit_scale, soft_cap, self.vocabulary_part)

    def _logits(self, hidden: Tensor) -> Tensor:
        """Project (B, S, dim) final hidden states."""
        projection = self.projection
        if projection.part is not None:
            projection = projection._replace(part=projection.part._replace(gathers=True))
        if self.output is None:
            return projection.logits(hidden)
        # By the module, not its weight: engines and adapters wrap its call.
        return projection.finish(self.output(hidden))

    def use_context(self, groups: ContextGroups) -> None:
        """See `setpoint.shapes.protocols.SequenceDivisible`."""
        self._context_groups = groups
        for layer in self._expert_layers():
            layer.context_group = groups.whole

    def _expert_layers(self) -> list[MoELayer]:
        if self.config.moe is None:
            return []
        from setpoint.model.moe.layer import MoELayer

        return [module for module in self.modules() if isinstance(module, MoELayer)]

    def use_experts(self, dispatcher: TokenDispatcher) -> list[ExpertPart]:
        """Dispatch tokens to experts on other ranks; see `setpoint.shapes.protocols.HasExperts`.

        Raises:
            SetpointError: the model has no experts, or a separate module for each one.
        """
        if self.config.moe is None:
            raise SetpointError(
                "parallel.expert: the model has no experts\nValid: 1, or set model.moe"
            )
        if not self.config.moe.packed:
            raise SetpointError(
                "parallel.expert divides packed experts only\nValid: 1, or model.moe.packed = true"
            )
        parts: list[ExpertPart] = []
        for layer in self._expert_layers():
            layer.dispatcher = dispatcher
            experts: Any = layer.experts
            parts.append(ExpertPart(experts, experts.widths()))
        return parts

    def make_cache(self) -> KeyValueCache:
        """Make a cache for generation."""
        return KeyValueCache()

    # Rows may begin with padding, marked by negative positions.
    pads_left = True

    @property
    def stream_width(self) -> int:
        """See `setpoint.shapes.protocols.Staged`."""
        return self.config.dim

    def stage_parts(self) -> list[str]:
        """See `setpoint.shapes.protocols.Staged`; `output` includes the norm before it."""
        return part_names(self.config.layers)

    def keep_parts(self, parts: Sequence[str]) -> None:
        """See `setpoint.shapes.protocols.Staged`."""
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

    def initializers(self) -> dict[str, Initializer]:
        """Initial values of embeddings and output; layers define their own."""
        std = self.config.init_std_embedding or self.config.init_std
        rules: dict[str, Initializer] = {}
        if self.embedding is not None:
            rules["embedding.weight"] = self._vocabulary_init(std)
        if self.position_embedding is not None:
            rules["position_embedding.weight"] = NormalInit(std)
        if self.output is not None:
            std = self.config.init_std_output or self.config.init_std
            rules["output.weight"] = self._vocabulary_init(std)
        return rules

    def _vocabulary_init(self, std: float) -> Initializer:
        """Initial values of a row for each token; padding rows are zeros."""
        return FirstRows(std, self.vocab_size) if self.has_padding else NormalInit(std)

    def tensor_plan(self) -> dict[str, str]:
        """Division of embeddings, norm and output; layers define their own."""
        plan = {
            "embedding": "vocabulary_rows",
            "position_embedding": "sequence",
            "norm": "shared_output",
            "output": "vocabulary_columns",
        }
        return {name: word for name, word in plan.items() if getattr(self, name) is not None}

    def units_around_layers(self) -> list[list[nn.Module]]:
        """See `setpoint.shapes.protocols.HasUnits`."""
        units = [
            [module for name in names if (module := getattr(self, name)) is not None]
            for names in units_around_layers(self.config)
        ]
        return [unit for unit in units if unit]

    def divide_vocabulary(self, peers: Peers, gathers: bool) -> None:
        """See `setpoint.shapes.protocols.VocabularyDivisible`."""
        self.vocabulary_part = VocabularyPart(peers, -(-self.rows // peers.size), gathers)

    def learning_rate_multipliers(self) -> dict[str, float]:
        """Learning-rate factors of muP by parameter; 1 for parameters left out, all without muP."""
        factors = {
            name: self.config.rate_multiplier(name, parameter.ndim)
            for name, parameter in self.named_parameters()
        }
        return {name: factor for name, factor in factors.items() if factor != 1.0}
