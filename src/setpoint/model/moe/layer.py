"""A mixture of experts in place of a feed-forward network, and the bias of its router."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, distributed, nn

from setpoint.model.feed_forward import FeedForward
from setpoint.model.moe.assign import Assignments, assign
from setpoint.model.moe.dispatch import Exchange, here
from setpoint.model.moe.experts import PackedExperts, UnpackedExperts
from setpoint.model.moe.losses import (
    balance_loss,
    sequence_balance_loss,
    sequence_counts,
    z_loss,
)
from setpoint.model.moe.router import Choice, build_router
from setpoint.model.moe.routing import LayerRouting
from setpoint.model.moe.rows import load_factors

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from setpoint.model.config import TransformerConfig


class MoELayer(nn.Module):
    """Each token goes to the experts that a router chooses, and to the shared ones.

    y = sum over the chosen experts e of weight_e * expert_e(x), plus shared(x). Nothing is kept on
    the module: what the losses and the balancing need is returned beside the output.

    Arguments:
        index: of the layer among those with experts of the whole model.
    """

    def __init__(self, config: TransformerConfig, index: int = 0) -> None:
        super().__init__()
        self.index = index
        assert config.moe is not None
        moe = config.moe
        self.count = moe.experts
        self.capacity_factor = moe.capacity_factor
        self.gradient_scale = moe.gradient_scale
        self.load_sequences = moe.load_sequences
        self.router = build_router(config)
        self.experts = PackedExperts(config) if moe.packed else UnpackedExperts(config)
        width = moe.shared_experts * moe.width(config.ffn_dim)
        self.shared = FeedForward(config, width, bias=False) if width else None
        self.context_group: ProcessGroup | None = None
        """The ranks that divide sequences with this one; None: sequences are whole."""
        # How tokens reach the experts; another one where ranks divide these.
        self.exchange: Exchange = here

    def tensor_plan(self) -> dict[str, str]:
        """See `setpoint.shapes.protocols.TensorDivisible`: all but the shared experts is whole."""
        return {"": "whole"}

    def forward(
        self, x: Tensor, positions: Tensor | None = None
    ) -> tuple[Tensor, LayerRouting | None]:
        """Transform each position by the experts it chooses.

        Capacity, balance and the scaling of gradients look at `load_sequences` sequences at a time.
        They belong to training: in evaluation no choice is
        dropped, so that a token does not depend on the others in its batch.

        Arguments:
            positions: (B, S) integers, negative for padding, which takes no part in the capacity,
                the counts and the losses; (S,) or None: there is no padding.

        Returns:
            (B, S, dim), to be added to the residual stream; and the report of the layer, which
            only training gives.
        """
        valid = None if positions is None or positions.dim() == 1 else positions >= 0
        tokens = x.flatten(0, 1)
        choice: Choice = self.router(tokens)
        assigned = assign(
            choice.experts,
            self.count,
            self.capacity_factor if self.training else None,
            None if valid is None else valid.flatten(),
            self._parts(x.shape[0]) if self.training else 1,
        )
        totals = self._totals(choice.experts.unflatten(0, (x.shape[0], -1)), assigned, valid)
        factors = None
        if self.gradient_scale and self.training:
            ends = (assigned.parts or assigned).ends
            factors = load_factors(len(assigned.slots), totals.taken, ends, x.dtype)
        finish = self.exchange(self.experts, tokens, choice.weights, assigned, factors)
        # Computed while the results of other ranks are on their way.
        shared = None if self.shared is None else self.shared(x)
        y = finish().view_as(x)
        if shared is not None:
            y = y + shared
        if not self.training:
            return y, None
        return y, self._report(choice, assigned, totals, x.shape[0], valid)

    def _parts(self, sequences: int) -> int:
        """Into how many parts, each with a load of its own, a batch falls."""
        size = self.load_sequences
        if size is None or sequences <= size:
            return 1
        if sequences % size:
            raise ValueError(f"{sequences} sequences are no multiple of load_sequences = {size}")
        return sequences // size

    def _totals(self, experts: Tensor, assigned: Assignments, valid: Tensor | None) -> _Totals:
        """The counts of whole sequences, whoever has the rest of them."""
        load = assigned.parts or assigned
        if self.context_group is None or not self.training:
            parts = None if assigned.parts is None else assigned.parts.chosen
            return _Totals(load.taken, assigned.chosen, parts)
        counts = _summed(sequence_counts(experts, self.count, valid), self.context_group)
        chosen, parts = counts.sum(dim=0), None
        if assigned.parts is not None:
            by_part = counts.unflatten(0, (assigned.parts.chosen.shape[1], -1)).sum(dim=1)
            parts = by_part.T
        # Without a capacity, which is refused, all that is chosen is taken.
        taken = chosen if parts is None else parts
        return _Totals(taken, chosen, parts, counts, chosen.sum() // experts.shape[2])

    def _report(
        self,
        choice: Choice,
        assigned: Assignments,
        totals: _Totals,
        batch: int,
        valid: Tensor | None,
    ) -> LayerRouting:
        logits, scores, experts = (
            part.unflatten(0, (batch, -1))
            for part in (choice.logits, choice.scores, choice.experts)
        )
        return LayerRouting(
            assigned.chosen,
            (assigned.chosen - assigned.taken).sum(),
            balance_loss(scores, totals.chosen, valid, totals.parts, totals.tokens),
            sequence_balance_loss(scores, experts, valid, totals.sequences, totals.tokens),
            z_loss(logits, valid, totals.tokens),
        )


class _Totals(NamedTuple):
    """What is counted over all ranks that divide the sequences of a batch.

    Arguments:
        taken: (E,) or, by parts of the batch, (E, parts); the loads of experts.
        chosen: (E,) int64.
        parts: (E, parts) chosen by parts; None where the batch is one.
        sequences: (B, E) chosen by sequences; None where this rank has all of them.
        tokens: that count; None where this rank has all of them.
    """

    taken: Tensor
    chosen: Tensor
    parts: Tensor | None
    sequences: Tensor | None = None
    tokens: Tensor | None = None


def _summed(counts: Tensor, group: ProcessGroup) -> Tensor:
    distributed.all_reduce(counts, group=group)
    return counts


# The share of the run over which linear_warmup rises.
WARMUP = 0.1


def update_biases(
    model: nn.Module,
    counts: Tensor,
    schedule_at: float,
    frozen: Collection[str] = (),
    stays: Tensor | None = None,
) -> None:
    """Move the biases of all routers by one step.

    b_i <- b_i + rate * sign(mean load - load_i) (auxiliary-loss-free load balancing, Wang et al.,
    2024; DeepSeek-V3): every bias moves by the same amount, whatever the error's size. To be called
    once per step, with the counts of its whole global batch.

    Arguments:
        counts: (layers with experts of the whole model, E), also where the model here is a part.
        schedule_at: how much of the horizon is over, from 0 to 1.
        frozen: the names of parameters that are frozen in this step.
        stays: above 0 where no bias is to move; None: they move.
    """
    found = [(name, each) for name, each in model.named_modules() if isinstance(each, MoELayer)]
    layers = [layer for _, layer in found]
    routers = [layer.router for layer in layers]
    if all(router.bias is None for router in routers):
        return
    if len(layers) != len(counts):  # this is a part of a model
        counts = counts[[layer.index for layer in layers]]
    error = counts.double().mean(dim=1, keepdim=True) - counts
    for (path, _), router, signs in zip(found, routers, error.sign(), strict=True):
        # Where a router is frozen, it chooses as it did.
        is_trained = any(
            each.requires_grad and f"{path}.router.{name}" not in frozen
            for name, each in router.named_parameters()
        )
        if router.bias is not None and is_trained:
            step = router.bias_rate * bias_factor(router.bias_schedule, schedule_at)
            moved = router.bias.add(signs.to(router.bias.device), alpha=step)
            if stays is not None:
                moved = router.bias.where(stays.to(moved.device) > 0, moved)
            router.bias.copy_(moved)


def bias_factor(schedule: str, at: float) -> float:
    """Compute what a schedule multiplies the rate by.

    Arguments:
        at: how much of the horizon is over, from 0 to 1.

    Returns:
        constant: 1; cosine_decay: (1 + cos(pi at)) / 2; linear_warmup: at / 0.1, and 1 from there.
    """
    if schedule == "cosine_decay":
        return (1 + math.cos(math.pi * at)) / 2
    if schedule == "linear_warmup":
        return min(1.0, at / WARMUP)
    return 1.0
