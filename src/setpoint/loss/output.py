"""What a loss gives."""

from typing import NamedTuple

from torch import Tensor


class LossOutput(NamedTuple):
    """Sums over the valid tokens of a micro-batch; divide by those of the whole batch.

    Arguments:
        total: fp32 scalar to run backward from, all terms with their weights; divide by the sum of
            the tokens' weights.
        nats: fp32 scalar without gradient: the cross-entropy alone, each token with weight one,
            for metrics; divide by the number of tokens.
    """

    total: Tensor
    nats: Tensor
