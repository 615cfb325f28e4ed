"""Cross-section checks of `[loss]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.loss.config import Ignoring, tokens_named
from setpoint.train.rules.vocabulary import known_vocabulary

if TYPE_CHECKING:
    from setpoint.train.config import Job


def unknown_tokens(job: Job) -> Iterator[Problem]:
    """Look for tokens that the loss names and the tokenizer does not have.

    Returns:
        the problems; none where the tokenizer's vocabulary is not known.
    """
    named = list(tokens_named(job.loss))
    # The files of a tokenizer have megabytes, so they are read only where that is of use.
    size = known_vocabulary(job.tokenizer) if named else None
    for field, token in named:
        if size is not None and token >= size:
            yield Problem(
                field,
                f"the tokenizer has no token {token}: its vocabulary is {size}",
                valid=(f"0 to {size - 1}",),
                also=("tokenizer",),
            )


def baselines_are_dead(job: Job) -> str | None:
    """Say why n-gram baselines cannot be compared with the loss."""
    path = leaves_out(job)
    return path and f"{path} leaves tokens out, which n-gram models would count"


def leaves_out(job: Job) -> str | None:
    """Find what makes the loss, and with it each metric, leave tokens out.

    Returns:
        the path of the field; None if all tokens count.
    """
    loss = job.loss
    if not loss.left_out:
        return None
    ignores = isinstance(loss, Ignoring) and loss.ignore_index is not None
    return "loss.ignore_index" if ignores else "loss.token_weights"
