"""Routers: which experts a token goes to, and with what weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from setpoint.config.draft.config import owner_of
from setpoint.model.initialize import Constant, Initializer, Normal
from setpoint.model.scale import router_std

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig
    from setpoint.model.moe import config as configs

# Keeps the sum of weights from being zero; below the resolution of any other sum.
TINY = 1e-20


class Choice(NamedTuple):
    """What a router decides for T tokens.

    Arguments:
        scores: (T, E) scores that sum to one for each token, for the balance losses.
        experts: (T, k) int64 the chosen experts.
    """

    logits: Tensor
    scores: Tensor
    experts: Tensor
    weights: Tensor


class Router(nn.Module):
    """Scores all experts by one matrix product, in fp32 at least, whatever the rest computes in."""

    bias: Tensor | None
    """(E,) fp32, added to scores where experts are chosen, and nowhere else; None: nothing is."""

    bias_rate: float = 0.0
    """How far the bias moves at a step."""

    bias_schedule: str = "constant"
    """How that changes over the run."""

    def __init__(self, config: configs.RouterConfig, *, model: TransformerConfig) -> None:
        super().__init__()
        assert model.moe is not None
        self.std = router_std(model)
        self.normalize = config.normalize
        self.route_scale = model.moe.route_scale
        self.top_k = model.moe.top_k
        self.groups, self.top_groups = model.moe.groups, model.moe.top_groups
        self.weight = nn.Parameter(torch.empty(model.moe.experts, model.dim))
        self.register_buffer("bias", None)

    def initializers(self) -> dict[str, Initializer]:
        """Return how the matrix starts, and the bias where there is one."""
        rules: dict[str, Initializer] = {"weight": Normal(self.std)}
        return rules if self.bias is None else {**rules, "bias": Constant(0.0)}

    def forward(self, x: Tensor) -> Choice:
        """Choose experts for each token."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.to(dtype), self.weight.to(dtype))
            return self.decide(logits)

    def decide(self, logits: Tensor) -> Choice:
        """Choose by the logits."""
        raise TypeError(f"{type(self).__name__} does not say how it chooses")

    def weigh(self, scores: Tensor, experts: Tensor) -> Tensor:
        """Compute the weights of chosen experts from their scores."""
        weights = scores.gather(1, experts)
        if self.normalize:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + TINY)
        return weights if self.route_scale == 1.0 else weights * self.route_scale


class SoftmaxTopK(Router):
    """Scores are a softmax over all experts; groups rank by their best expert (DeepSeek-V2)."""

    def decide(self, logits: Tensor) -> Choice:
        """Choose the most probable experts."""
        scores = torch.softmax(logits, dim=-1)
        experts = choose(scores, self.top_k, self.groups, self.top_groups, rank_by=1)
        return Choice(logits, scores, experts, self.weigh(scores, experts))


class SigmoidTopK(Router):
    """Each score is a sigmoid; a bias takes part in the choice, not in the weights (DeepSeek-V3).

    Groups are ranked by the sum of their two best experts.
    """

    def __init__(self, config: configs.SigmoidTopK, *, model: TransformerConfig) -> None:
        super().__init__(config, model=model)
        self.bias_rate, self.bias_schedule = config.bias_rate, config.bias_schedule
        # Not a parameter: it is moved by counting, not by gradients, so that no optimizer, weight
        # decay or clipping may touch it. `update_biases` does, once per step.
        self.bias = torch.zeros(self.weight.shape[0], dtype=torch.float32)

    def decide(self, logits: Tensor) -> Choice:
        """Choose the experts whose scores are highest with the bias."""
        assert self.bias is not None
        scores = torch.sigmoid(logits)
        ranked = scores.detach() + self.bias
        experts = choose(ranked, self.top_k, self.groups, self.top_groups, rank_by=2)
        shares = scores / (scores.sum(dim=-1, keepdim=True) + TINY)
        return Choice(logits, shares, experts, self.weigh(scores, experts))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move the module, but keep the bias in fp32: steps of 0.001 vanish in bf16."""
        before = self.bias
        super()._apply(fn, recurse)
        if before is not None and self.bias is not None and self.bias.dtype != torch.float32:
            self.bias = before.to(self.bias.device)
        return self


def build_router(model: TransformerConfig) -> Router:
    """Make one router of a model.

    Returns:
        A module that maps (T, dim) to a `Choice`.
    """
    assert model.moe is not None
    return owner_of(type(model.moe.router))(model.moe.router, model=model)


def choose(scores: Tensor, top_k: int, groups: int, top_groups: int, rank_by: int) -> Tensor:
    """Choose experts for each token.

    With groups, the experts lie in `groups` equal parts, one after the other. A token first takes
    the `top_groups` groups whose `rank_by` best experts have the highest sum of scores, then the
    best experts in these (group-limited routing, DeepSeek-V2 and V3).
    """
    scores = scores.detach()
    if top_groups < groups:
        grouped = scores.unflatten(1, (groups, -1))
        best = grouped.topk(min(rank_by, grouped.shape[2]), dim=2).values.sum(dim=2)
        taken = torch.zeros_like(best, dtype=torch.bool)
        taken = taken.scatter(1, best.topk(top_groups, dim=1).indices, True)
        scores = grouped.masked_fill(~taken.unsqueeze(2), float("-inf")).flatten(1)
    return scores.topk(top_k, dim=1).indices
