"""The figures that say how well a text is predicted, from the sum of its cross-entropy."""

from __future__ import annotations

import math


def perplexity(loss: float) -> float:
    """Turn a mean cross-entropy into the number of tokens that would be as hard to choose among.

    Returns:
        exp(loss), as it is, without an upper limit; infinity where no float holds it.
    """
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def bits_per_byte(nats: float, size: int) -> float:
    """Turn a sum of cross-entropy into a figure that does not depend on the tokenizer.

    Arguments:
        size: bytes of the text that the tokens stand for, above 0.
    """
    return nats / math.log(2) / size
