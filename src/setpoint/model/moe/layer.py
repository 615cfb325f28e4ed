"""Transformers with mixtures of experts: layers, routers, their losses, updates of router biases.

With T tokens that count, E experts and k choices per token: f_i is the fraction of the T k choices
that go to expert i, without gradient, and P_i its mean score, where the scores of a token sum to
one. E * sum_i f_i P_i is 1 if either is uniform, and grows as load and scores concentrate on the
same experts.

If several ranks divide the sequences, counts cover whole sequences, and each rank's losses are its
terms of a sum: `tokens` is the number of tokens that count on all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from setpoint.config import SetpointError
from setpoint.config.draft.config import owner_of
from setpoint.model.attention.attention import AttentionContext
from setpoint.model.block_modules import FeedForward
from setpoint.model.initialize import ConstantInit, Initializer, NormalInit
from setpoint.model.moe.dispatch import TokenDispatcher, run_locally
from setpoint.model.moe.experts import PackedExperts, UnpackedExperts, assign, load_factors
from setpoint.model.transformer import Block, Transformer, normalized
from setpoint.shapes.outcome import Outcome, Routing
from setpoint.shapes.protocols import ExpertPart

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from setpoint.model.attention.key_value_cache import KeyValueCache
    from setpoint.model.config import TransformerConfig
    from setpoint.model.moe import config as configs
    from setpoint.model.transformer import Head
    from setpoint.shapes.batch import ContextGroups, Lengths

# Keeps the sum of weights from being zero; below the resolution of any other sum.
TINY = 1e-20


class MoETransformer(Transformer):
    """A transformer in which some layers, or all, have experts."""

    def build_block(self, layer: int) -> Block:
        moe = self.config.moe
        assert moe is not None
        if not moe.has_experts(layer):
            return super().build_block(layer)
        return MoEBlock(self.config, layer, MoELayer(self.config, layer))

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
        """See `Transformer.forward`; in training, the outcome includes the routing of tokens."""
        x, context = self.embed(tokens, positions, documents, lengths, cache)
        routings: dict[int, LayerRouting] = {}
        for name, layer in self.layers.items():
            x = layer(x, context)
            if isinstance(x, tuple):  # of a layer with experts
                x, routing = x
                if routing is not None:
                    routings[int(name)] = routing
        result = self.project(x, head)
        if head is None:
            return result
        if not self.training:
            return Outcome(result)
        return Outcome(result, *combine(self.config, routings, x.device))

    def use_context(self, groups: ContextGroups) -> None:
        super().use_context(groups)
        for layer in self._expert_layers():
            layer.context_group = groups.whole

    def use_experts(self, exchange: TokenDispatcher) -> list[ExpertPart]:
        """Dispatch tokens to experts on other ranks; see `setpoint.shapes.protocols.HasExperts`.

        Raises:
            SetpointError: each expert is a separate module.
        """
        parts: list[ExpertPart] = []
        for layer in self._expert_layers():
            if not isinstance(layer.experts, PackedExperts):
                raise SetpointError(
                    "parallel.expert divides packed experts only\nValid: 1, or "
                    "model.moe.packed = true"
                )
            layer.dispatcher = exchange
            parts.append(ExpertPart(layer.experts, layer.experts.widths()))
        return parts

    def _expert_layers(self) -> list[MoELayer]:
        return [module for module in self.modules() if isinstance(module, MoELayer)]


class MoEBlock(Block):
    """A block with experts in place of the feed-forward network."""

    def forward(self, x: Tensor, context: AttentionContext) -> tuple[Tensor, LayerRouting | None]:
        """Apply the layer.

        Returns:
            (B, S, dim) residual stream and, in training, the routing of the tokens.
        """
        x = self.attend(x, context)
        inputs = normalized(x, self.feed_forward_norm)
        update, routing = self.feed_forward(inputs, context.positions)
        return self.add(x, update, self.feed_forward_output_norm), routing


class RouterOutput(NamedTuple):
    """Experts chosen for T tokens.

    Arguments:
        logits: (T, E).
        scores: (T, E) scores that sum to one for each token, for the balance losses.
        experts: (T, k) int64 the chosen experts.
        weights: (T, k) weights of the chosen experts.
    """

    logits: Tensor
    scores: Tensor
    experts: Tensor
    weights: Tensor


class Router(nn.Module):
    """Router that scores all experts by one matrix product, in at least fp32."""

    bias: Tensor | None
    """(E,) fp32, added to scores where experts are chosen, and nowhere else; None if absent."""

    bias_rate: float = 0.0
    """Change of the bias at a step, if there is one."""

    bias_schedule: str = "constant"
    """Schedule of `bias_rate`."""

    def __init__(self, config: configs.RouterConfig, *, model: TransformerConfig) -> None:
        super().__init__()
        assert model.moe is not None
        self.std = model.router_std
        self.normalize = config.normalize
        self.route_scale = model.moe.route_scale
        self.top_k = model.moe.top_k
        self.groups, self.top_groups = model.moe.groups, model.moe.top_groups
        self.weight = nn.Parameter(torch.empty(model.moe.experts, model.dim))
        self.logit_bias = nn.Parameter(torch.empty(model.moe.experts)) if model.moe.bias else None
        self.register_buffer("bias", None)

    def initializers(self) -> dict[str, Initializer]:
        """Return the initializers of the matrix, and of biases where there are any."""
        names = [name for name in ("logit_bias", "bias") if getattr(self, name) is not None]
        return {"weight": NormalInit(self.std), **dict.fromkeys(names, ConstantInit(0.0))}

    def forward(self, x: Tensor) -> RouterOutput:
        """Choose experts for (T, dim) tokens."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            bias = None if self.logit_bias is None else self.logit_bias.to(dtype)
            logits = F.linear(x.to(dtype), self.weight.to(dtype), bias)
            return self.decide(logits)

    def decide(self, logits: Tensor) -> RouterOutput:
        """Choose experts from (T, E) logits."""
        raise TypeError(f"{type(self).__name__} does not define how experts are chosen")

    def weigh(self, scores: Tensor, experts: Tensor) -> Tensor:
        """Compute the weights of chosen experts from their scores."""
        weights = scores.gather(1, experts)
        if self.normalize:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + TINY)
        return weights if self.route_scale == 1.0 else weights * self.route_scale


class SoftmaxRouter(Router):
    """Router with a softmax over all experts; groups rank by their best expert (DeepSeek-V2)."""

    def decide(self, logits: Tensor) -> RouterOutput:
        """Choose the most probable experts."""
        scores = torch.softmax(logits, dim=-1)
        experts = choose(scores, self.top_k, self.groups, self.top_groups, rank_by=1)
        return RouterOutput(logits, scores, experts, self.weigh(scores, experts))


class SigmoidRouter(Router):
    """Router with sigmoid scores; a bias affects the choice, not the weights (DeepSeek-V3).

    Groups are ranked by the sum of their two best experts.
    """

    def __init__(self, config: configs.SigmoidTopK, *, model: TransformerConfig) -> None:
        super().__init__(config, model=model)
        if config.bias_rate is None:
            return
        self.bias_rate, self.bias_schedule = config.bias_rate, config.bias_schedule
        # Not a parameter: it is updated by counting, not by gradients, so no optimizer, weight
        # decay or clipping may change it. `update_biases` does, once per step.
        self.bias = torch.zeros(self.weight.shape[0], dtype=torch.float32)

    def decide(self, logits: Tensor) -> RouterOutput:
        """Choose the experts with the highest score plus bias, if there is a bias."""
        scores = torch.sigmoid(logits)
        ranked = scores.detach() if self.bias is None else scores.detach() + self.bias
        experts = choose(ranked, self.top_k, self.groups, self.top_groups, rank_by=2)
        shares = scores / (scores.sum(dim=-1, keepdim=True) + TINY)
        return RouterOutput(logits, shares, experts, self.weigh(scores, experts))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move the module, but keep the bias in fp32, since steps of 0.001 vanish in bf16."""
        before = self.bias
        super()._apply(fn, recurse)
        if before is not None and self.bias is not None and self.bias.dtype != torch.float32:
            self.bias = before.to(self.bias.device)
        return self


def build_router(model: TransformerConfig) -> Router:
    """Build the router of a layer, by `model.moe.router`."""
    assert model.moe is not None
    return owner_of(type(model.moe.router))(model.moe.router, model=model)


def choose(scores: Tensor, top_k: int, groups: int, top_groups: int, rank_by: int) -> Tensor:
    """Choose experts for each token.

    With groups, the experts form `groups` equal, consecutive parts. A token first takes the
    `top_groups` groups whose `rank_by` best experts have the highest sum of scores, then the best
    experts in these (group-limited routing, DeepSeek-V2 and V3).
    """
    scores = scores.detach()
    if top_groups < groups:
        grouped = scores.unflatten(1, (groups, -1))
        group_scores = grouped.topk(min(rank_by, grouped.shape[2]), dim=2).values.sum(dim=2)
        chosen_groups = torch.zeros_like(group_scores, dtype=torch.bool)
        chosen_groups = chosen_groups.scatter(1, group_scores.topk(top_groups, dim=1).indices, True)
        scores = grouped.masked_fill(~chosen_groups.unsqueeze(2), float("-inf")).flatten(1)
    return scores.topk(top_k, dim=1).indices


class MoELayer(nn.Module):
    """Routed and shared experts in place of a feed-forward network.

    y = sum over the chosen experts e of weight_e * expert_e(x), plus shared(x). The module keeps no
    state: the values for losses and balancing are returned with the output.
    """

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        assert config.moe is not None
        moe = config.moe
        self.index = moe.layers_with_experts(layer)
        """Index among all layers with experts in the whole model."""
        self.count = moe.experts
        self.capacity_factor = moe.capacity_factor
        self.gradient_scale = moe.gradient_scale
        self.load_sequences = moe.load_sequences
        self.router = build_router(config)
        self.experts = (PackedExperts if moe.packed else UnpackedExperts)(config, layer)
        width = moe.shared_experts * moe.width(config.ffn_dim)
        self.shared_gate = nn.Linear(config.dim, 1, bias=False) if moe.shared_gate else None
        self.gate_std = config.router_std
        self.shared = FeedForward(config, layer, width, bias=False) if width else None
        self.context_group: ProcessGroup | None = None
        """The ranks that divide sequences with this one; None: sequences are whole."""
        self.dispatcher: TokenDispatcher = run_locally
        """Sends tokens to the ranks of their experts."""

    def initializers(self) -> dict[str, Initializer]:
        """Return the initializer of the gate of shared experts."""
        return {} if self.shared_gate is None else {"shared_gate.weight": NormalInit(self.gate_std)}

    def tensor_plan(self) -> dict[str, str]:
        """See `setpoint.shapes.protocols.TensorDivisible`; only the shared experts are divided."""
        return {"": "whole"}

    def forward(
        self, x: Tensor, positions: Tensor | None = None
    ) -> tuple[Tensor, LayerRouting | None]:
        """Transform each position with its experts.

        Capacity, balance and the scaling of gradients apply to `load_sequences` sequences at a
        time, and only in training: in evaluation no choice is dropped, so that a token does not
        depend on others in its batch.

        Arguments:
            positions: (B, S) integers, negative for padding, which takes no part in the capacity,
                the counts and the losses; (S,) or None: there is no padding.

        Returns:
            (B, S, dim) to be added to the residual stream and, in training, the layer's report.
        """
        batch, training = x.shape[0], self.training
        valid = None if positions is None or positions.dim() == 1 else positions >= 0
        tokens = x.flatten(0, 1)
        routed: RouterOutput = self.router(tokens)
        assigned, load = assign(
            routed.experts,
            self.count,
            self.capacity_factor if training else None,
            None if valid is None else valid.flatten(),
            self._parts(batch) if training else 1,
        )
        counts = None
        if training:
            # (parts, E) and (B, E), and the number of tokens that count: over all ranks of the
            # sequences.
            by_sequence = sequence_counts(
                routed.experts.unflatten(0, (batch, -1)), self.count, valid
            )
            by_part, taken, count = load.chosen.T, load.taken, None
            if self.context_group is not None:
                distributed.all_reduce(by_sequence, group=self.context_group)
                by_part = by_sequence.unflatten(0, (len(by_part), -1)).sum(dim=1)
                # Without a capacity, which is refused, all that is chosen is taken.
                taken, count = by_part.T, by_part.sum() // routed.experts.shape[1]
            counts = by_part, by_sequence, count
            if self.gradient_scale:
                factors = load_factors(len(assigned.slots), taken, load.ends, x.dtype)
                assigned = assigned._replace(factors=factors)
        finish = self.dispatcher(self.experts, tokens, routed.weights, assigned)
        # Computed while the results of other ranks are in transit.
        shared = None if self.shared is None else self.shared(x)
        if shared is not None and self.shared_gate is not None:
            shared = torch.sigmoid(self.shared_gate(x)) * shared
        y = finish().view_as(x)
        if shared is not None:
            y = y + shared
        if counts is None:
            return y, None
        by_part, by_sequence, count = counts
        valid_by_part = None if valid is None else valid.view(len(by_part), -1)
        scores, logits = routed.scores, routed.logits.unflatten(0, (batch, -1))
        report = LayerRouting(
            load.chosen.sum(dim=1),
            (load.chosen - load.taken).sum(),
            balance_loss(scores.unflatten(0, (len(by_part), -1)), by_part, valid_by_part, count),
            balance_loss(scores.unflatten(0, (batch, -1)), by_sequence, valid, count),
            z_loss(logits, valid, count),
        )
        return y, report

    def _parts(self, sequences: int) -> int:
        """Number of parts of a batch, each with a separate load."""
        size = self.load_sequences
        if size is None or sequences <= size:
            return 1
        if sequences % size:
            raise ValueError(f"{sequences} sequences are not a multiple of load_sequences = {size}")
        return sequences // size


# The share of the run over which linear_warmup rises.
WARMUP = 0.1


def update_biases(
    model: nn.Module,
    counts: Tensor,
    progress: float,
    frozen: Collection[str] = (),
    skip: Tensor | None = None,
) -> None:
    """Move the biases of all routers by one step.

    b_i <- b_i + rate * sign(mean load - load_i) (auxiliary-loss-free load balancing, Wang et al.,
    2024; DeepSeek-V3): every bias moves by the same amount, whatever the size of the error. Call it
    once per step, with the counts of the whole global batch.

    Arguments:
        counts: (layers with experts in the whole model, E), even if `model` is only a part.
        progress: elapsed fraction of the horizon, from 0 to 1.
        frozen: names of parameters that are frozen in this step.
        skip: above 0 if no bias may move; None: biases move.
    """
    layers = [(name, m) for name, m in model.named_modules() if isinstance(m, MoELayer)]
    if all(layer.router.bias is None for _, layer in layers):
        return
    if len(layers) != len(counts):  # this is a part of a model
        counts = counts[[layer.index for _, layer in layers]]
    error = counts.double().mean(dim=1, keepdim=True) - counts
    for (path, layer), signs in zip(layers, error.sign(), strict=True):
        router = layer.router
        # A frozen router keeps its choices.
        is_trained = any(
            parameter.requires_grad and f"{path}.router.{name}" not in frozen
            for name, parameter in router.named_parameters()
        )
        if router.bias is not None and is_trained:
            step = router.bias_rate * bias_factor(router.bias_schedule, progress)
            updated = router.bias.add(signs.to(router.bias.device), alpha=step)
            if skip is not None:
                updated = router.bias.where(skip.to(updated.device) > 0, updated)
            router.bias.copy_(updated)


def bias_factor(schedule: str, progress: float) -> float:
    """Compute the factor of a bias schedule.

    Arguments:
        progress: elapsed fraction p of the horizon, from 0 to 1.

    Returns:
        constant: 1; cosine_decay: (1 + cos(pi p)) / 2; linear_warmup: p / 0.1 until that reaches 1.
    """
    if schedule == "cosine_decay":
        return (1 + math.cos(math.pi * progress)) / 2
    if schedule == "linear_warmup":
        return min(1.0, progress / WARMUP)
    return 1.0


def balance_loss(
    scores: Tensor, counts: Tensor, valid: Tensor | None = None, tokens: Tensor | None = None
) -> Tensor:
    """Compute E * sum_i f_i P_i of each group of tokens, and its mean over tokens.

    A group is a batch (Switch Transformer, Fedus et al., 2021), a part of it, or a sequence
    (complementary sequence-wise balance loss, DeepSeek-V3, 2024).

    Arguments:
        scores: (groups, T, E).
        counts: (groups, E) choices of each expert, over all ranks that share the sequences.
        valid: (groups, T) False for padding, which takes no part; None if absent.
        tokens: number of tokens on all ranks that share the sequences; None: this rank has all.

    Returns:
        A scalar; 0 if no token counts.
    """
    share = counts.to(scores.dtype) / counts.sum(dim=1, keepdim=True).clamp(min=1)
    experts = scores.shape[-1]
    if valid is None and tokens is None:
        return experts * (share * scores.mean(dim=1)).sum(dim=1).mean()
    # A group weighs as many tokens as it has: sum_g n_g L_g / sum_g n_g, where n_g P_g is a sum.
    if valid is not None:
        scores = scores * valid.unsqueeze(-1)
    return experts * (share * scores.sum(dim=1)).sum() / _count(valid, tokens)


def z_loss(logits: Tensor, valid: Tensor | None = None, tokens: Tensor | None = None) -> Tensor:
    """Mean of log(sum(exp(logits)))^2 (ST-MoE, Zoph et al., 2022); 0 if no token counts.

    Arguments:
        logits: (B, S, E).
        valid: (B, S) False for padding, which takes no part; None if absent.
        tokens: number of tokens on all ranks that share the sequences; None: this rank has all.
    """
    squares = torch.logsumexp(logits, dim=-1).square()
    if valid is None and tokens is None:
        return squares.mean()
    return (squares if valid is None else squares * valid).sum() / _count(valid, tokens)


def _count(valid: Tensor | None, tokens: Tensor | None) -> Tensor:
    count = tokens if valid is None or tokens is not None else valid.sum()
    assert count is not None
    return count.clamp(min=1)


def sequence_counts(experts: Tensor, count: int, valid: Tensor | None) -> Tensor:
    """Count the choices of each expert in each sequence: (B, E) int64."""
    # No adding up at indices: a token chooses an expert at most once.
    chosen = experts.new_zeros((*experts.shape[:2], count)).scatter(2, experts, 1)
    return (chosen if valid is None else chosen * valid.unsqueeze(-1)).sum(dim=1)


class LayerRouting(NamedTuple):
    """Routing of the tokens of one layer in one forward pass.

    The report is returned, not kept on the layer, so that a layer recomputed in the backward pass
    reports once, and a pipeline can pass the report on.

    Arguments:
        counts: (E,) int64 choices of each expert, including dropped ones.
        dropped: () int64 number of dropped choices.
        balance, sequence_balance, z: () fp32 the terms of the loss, without their weights; they
            carry gradients.
    """

    counts: Tensor
    dropped: Tensor
    balance: Tensor
    sequence_balance: Tensor
    z: Tensor


def combine(
    config: TransformerConfig, layers: Mapping[int, LayerRouting], device: torch.device
) -> tuple[Tensor | None, Routing]:
    """Combine the reports of all layers of a model or pipeline stage.

    Returns:
        the fp32 scalar to add to the mean loss over tokens, or None if all weights are 0; and the
        report without gradients, with zeros for layers of other stages.
    """
    moe = config.moe
    assert moe is not None
    rows = moe.layers_with_experts(config.layers)
    counts = torch.zeros(rows, moe.experts, dtype=torch.int64, device=device)
    dropped = torch.zeros(rows, dtype=torch.int64, device=device)
    if not layers:
        return None, Routing(counts, dropped, *torch.zeros(3, device=device))
    for layer, report in layers.items():
        row = moe.layers_with_experts(layer)
        counts[row], dropped[row] = report.counts, report.dropped
    balance, sequence_balance, z = (
        torch.stack([getattr(report, term) for report in layers.values()]).sum()
        for term in ("balance", "sequence_balance", "z")
    )
    weighted = [
        term * weight
        for term, weight in (
            (balance, moe.balance_loss),
            (sequence_balance, moe.sequence_balance_loss),
            (z, moe.router_z_loss),
        )
        if weight
    ]
    auxiliary = torch.stack(weighted).sum() if weighted else None
    terms = (term.detach() for term in (balance, sequence_balance, z))
    return auxiliary, Routing(counts, dropped, *terms)
