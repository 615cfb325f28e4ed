"""What a loss gives, and what it may be able to do beside."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from setpoint.loss.weighing import Weigher
from setpoint.shapes.outcome import Projection


@runtime_checkable
class FromHidden(Protocol):
    """A loss that takes hidden states and the way to logits, so that it need not hold them all."""

    def from_hidden(
        self, hidden: Tensor, projection: Projection, targets: Tensor, weights: Tensor | None = None
    ) -> Any:
        """Compute the loss of a micro-batch.

        Arguments:
            weights: (B, S) fp32, from the data; None: all weigh 1.

        Returns:
            A `LossOutput`.
        """
        ...


@runtime_checkable
class Weighs(Protocol):
    """A loss that leaves targets out or weighs them by itself, and takes weights of the data."""

    weigh: Weigher


@runtime_checkable
class PerToken(Protocol):
    """A loss whose output has `each` where `per_token` is true."""

    per_token: bool


class LossOutput(NamedTuple):
    """Sums over the valid tokens of a micro-batch; divide by those of the whole batch.

    Arguments:
        total: fp32 scalar to run backward from, all terms with their weights; divide by the sum of
            the tokens' weights.
        nats: fp32 scalar without gradient: the cross-entropy alone, each token with weight one,
            for metrics; divide by the number of tokens.
        each: (B * S,) fp32 without gradient: the terms of `nats`, 0 where a target does not count;
            None: not asked for.
    """

    total: Tensor
    nats: Tensor
    each: Tensor | None = None
