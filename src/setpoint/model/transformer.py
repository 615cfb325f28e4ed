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
from setpoint.model.attention.cache import KeyValueCache
from setpoint.model.initialize import FirstRows, Initializer, NormalInit
from setpoint.model.modules import FeedForward, build_norm, compute_dtype
from setpoint.model.moe.experts import PackedExperts
from setpoint.model.moe.layer import MoELayer
from setpoint.model.moe.losses import LayerRouting, combine
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
    from setpoint.shapes.batch import ContextGroups, Lengths

Head = Callable[[Tensor, Projection], Any]


class Block(nn.Module):
    """Attention, then feed-forward, each added to the residual stream.

    Norms are on their inputs (pre, Xiong et al., 2020), on their outputs before these are added
    (post, as in OLMo 2), or on both (as in Gemma 2).

    Arguments:
        layer: index in the whole model, from 0; decides what is attended to, and experts.
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
            assert config.moe is not None
            self.feed_forward = MoELayer(config, config.moe.layers_with_experts(layer))
        else:
            self.feed_forward = FeedForward(config)
        self.feed_forward_output_norm = build_norm(config, config.dim) if after else None

    def forward(self, x: Tensor, context: AttentionContext) -> tuple[Tensor, LayerRouting | None]:
        """Apply the layer.

        Returns:
            (B, S, dim) residual stream; and in training, where there are experts, how tokens chose
            them.
        """
        normed = x if self.attention_norm is None else self.attention_norm(x)
        x = self._add(x, self.attention(normed, context), self.attention_output_norm)
        normed = x if self.feed_forward_norm is None else self.feed_forward_norm(x)
        routing = None
        if self.has_experts:
            added, routing = self.feed_forward(normed, context.positions)
        else:
            added = self.feed_forward(normed)
        return self._add(x, added, self.feed_forward_output_norm), routing

    def _add(self, x: Tensor, added: Tensor, norm: nn.Module | None) -> Tensor:
        if norm is not None:
            added = norm(added)
        if self.dropout and self.training:
            added = F.dropout(added, self.dropout)
        if self.residual_scale != 1.0:
            added = added * self.residual_scale
        return x + added


class Output(nn.Linear):
    """The output matrix, (V, dim)."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, hidden: Tensor, within: Callable[[Tensor], Any] | None = None
    ) -> Any:
        """Project hidden states, or call what multiplies with the weight by itself.

        Arguments:
            within: called with the hidden states in place of the product, so that a sharding
                engine has the weight gathered as long as it runs.
        """
        return super().forward(hidden) if within is None else within(hidden)


class Transformer(nn.Module):
    """Predict each next token from those before it.

    embedding -> layers -> norm -> output. Nothing but the residual stream passes from layer to
    layer, and positions are explicit, so that the parts can be placed on different devices.
    Layers are kept by name: when some are taken away the others keep their names, and with
    the names their initialization and their place in checkpoints.

    A stage of a pipeline is a model that parts were taken away from by `keep_parts`. With tied
    embeddings the last stage keeps the embedding too, as its output matrix; gradients of the two
    are to be added up.

    Raises:
        SetpointError: the configuration's own vocabulary does not hold that many.
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
        # Rows that are there for speed only start at zero and stay there.
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
        # A tied output is no second name for the embedding: shared parameters come apart on the
        # way through the meta device, and safetensors refuses to store them.
        self.output = None if config.tie_embeddings else Output(config.dim, rows, bias=False)
        self.logit_scale = config.logit_scale * config.width_ratio
        self._context_groups: ContextGroups | None = None

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
        """Compute the logits of every next token, or what a head makes of the hidden states.

        Arguments:
            tokens: (B, S) int64; where parts of the model went before, the (B, S, dim) residual
                stream that they gave.
            positions: (S,) or (B, S) integers; negative ones are padding, which is masked. None:
                0 .. S - 1, or those that follow on the cache. See `use_context` for their length
                where ranks divide sequences.
            documents: (B, S) integers; a token sees those of its own document only. None: all.
            lengths: of the documents, or of what is before padding, where the host knows them; so
                no kernel has to read them off the device.
            head: called with the (B, S, dim) hidden states behind the last norm and with the
                projection to logits, within this forward pass, so that a sharding engine has
                gathered the weights. So a loss need not hold all logits.

        Returns:
            (B, S, V) logits in the compute dtype; with a head an `Outcome` with its result. Where
            other parts follow, the (B, S, dim) residual stream takes the place of the logits and
            of the result, the head is not called, and the outcome tells of the layers here.

        Raises:
            ValueError: the sequence is longer than max_sequence_length, or tokens came to a part
                without an embedding.
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
        )
        if tokens.dim() == 2:
            x = self._place(x, context.positions)
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
        return Outcome(result, *combine(self.config, routings, x.device))

    def _embed(self, tokens: Tensor) -> Tensor:
        """Look up (B, S, dim) vectors."""
        if self.embedding is None:
            raise ValueError(
                "this part of the model has no embedding; it takes the (B, S, dim) residual "
                "stream of the part before it"
            )
        x = self.embedding(tokens)
        return x if self.config.embedding_scale == 1.0 else x * self.config.embedding_scale

    def _place(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add learned positions to the embedding, and drop some of it."""
        if self.position_embedding is not None:
            self._check_positions(positions)
            # Padding has negative positions; what it looks up is masked.
            x = x + self.position_embedding(positions.clamp(min=0))
        if self.config.embedding_dropout and self.training:
            x = F.dropout(x, self.config.embedding_dropout)
        return x

    def _check_positions(self, positions: Tensor) -> None:
        """Refuse positions without an embedding, where that costs no waiting for a device."""
        rows = self.config.max_sequence_length
        if positions.is_cpu and not torch.compiler.is_compiling() and positions.numel():
            last = int(positions.max())
            if last >= rows:
                raise ValueError(f"position {last} is beyond the {rows} learned positions")

    @property
    def projection(self) -> Projection:
        """The way from the hidden states behind the last norm to logits."""
        matrix = self.embedding if self.config.tie_embeddings else self.output
        assert matrix is not None, "this part of the model has no output matrix"
        weight = weight_in_use(matrix)
        soft_cap = self.config.logit_soft_cap
        return Projection(weight, self.vocab_size, self.logit_scale, soft_cap, self.vocabulary_part)

    def _logits(self, hidden: Tensor) -> Tensor:
        """Project (B, S, dim) states behind the last norm."""
        projection = self.projection
        if projection.part is not None:
            projection = projection._replace(part=projection.part._replace(gathers=True))
        if self.output is None:
            return projection.logits(hidden)
        # By the module, not its weight: an engine may have changed how it is called.
        return projection.finish(self.output(hidden))

    def use_context(self, groups: ContextGroups) -> None:
        """Take parts of sequences from now on, which other ranks have the rest of.

        Tokens are those of this rank's places then; positions and documents are of whole rows.
        """
        self._context_groups = groups
        for module in self.modules():
            if isinstance(module, MoELayer):
                module.context_group = groups.whole

    def use_experts(self, dispatcher: TokenDispatcher) -> list[ExpertPart]:
        """See `setpoint.shapes.protocols.HasExperts`; the layers that are here, as in a stage.

        Raises:
            SetpointError: the model has no experts, or a module for each.
        """
        if self.config.moe is None:
            raise SetpointError(
                "parallel.expert: the model has no experts\nValid: 1, or set model.moe"
            )
        parts: list[ExpertPart] = []
        for module in self.modules():
            if isinstance(module, MoELayer):
                if not isinstance(module.experts, PackedExperts):
                    raise SetpointError(
                        "parallel.expert divides packed experts only\n"
                        "Valid: 1, or model.moe.packed = true"
                    )
                module.dispatcher = dispatcher
                parts.append(ExpertPart(module.experts, module.experts.widths()))
        return parts

    def make_cache(self) -> KeyValueCache:
        """Make what keeps texts that grow, for generation."""
        return KeyValueCache()

    # Rows may begin with padding, by positions that are negative there.
    pads_left = True

    @property
    def stream_width(self) -> int:
        """See `setpoint.shapes.protocols.Staged`."""
        return self.config.dim

    def stage_parts(self) -> list[str]:
        """See `setpoint.shapes.protocols.Staged`; `output` is the norm before it, too."""
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
        """Return how embeddings and the output start; the layers speak for themselves."""
        std = self.config.init_std
        tokens = FirstRows(std, self.vocab_size) if self.has_padding else NormalInit(std)
        rules: dict[str, Initializer] = {}
        if self.embedding is not None:
            rules["embedding.weight"] = tokens
        if self.position_embedding is not None:
            rules["position_embedding.weight"] = NormalInit(std)
        if self.output is not None:
            rules["output.weight"] = tokens
        return rules

    def tensor_plan(self) -> dict[str, str]:
        """See `setpoint.shapes.protocols.TensorDivisible`; the layers speak for themselves."""
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
        """Return what muP multiplies the learning rate of parameters by; see `model/scale.py`.

        Returns:
            factors by the name of the parameter; 1 for those left out, which without muP are all.
        """
        factors = {
            name: self.config.rate_multiplier(name, parameter.ndim)
            for name, parameter in self.named_parameters()
        }
        return {name: factor for name, factor in factors.items() if factor != 1.0}
