"""The configuration of the loss."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import ClassVar

from setpoint.config import Config, ImportedComponent, Problem, field, rule


class LossConfig(Config):
    """Base of all loss sections, with the fields they share.

    Losses are sums over tokens, which the loop divides by the number of tokens in the whole batch,
    so that a token's weight does not depend on its micro-batch.
    """

    from_hidden: ClassVar[bool] = False
    """True if it receives hidden states and the output matrix instead of logits."""

    takes_columns: ClassVar[bool] = False
    """True if it supports logits whose columns are divided among ranks."""

    @property
    def left_out(self) -> tuple[int, ...]:
        """Ids of tokens that are never targets, neither in the loss nor in metrics."""
        return ()


class CrossEntropy(
    LossConfig, type="cross_entropy", owner="setpoint.loss.cross_entropy:CrossEntropyLoss"
):
    """Cross-entropy of the next token, in nats."""

    takes_columns = True

    ignore_index: int | None = field(default=None, ge=0)
    """Ignore index: token id excluded from loss and metrics, such as padding; null: every token is
    a target."""

    token_weights: dict[str, float] | None = field(default=None, item_ge=0, item_lt=inf)
    """Token weights: weights of targets by token id, {"10": 0.5}; others have 1. The loss is
    divided by their sum; weight 0 leaves a token out of metrics as well. null: all 1."""

    z_loss: float = field(default=0.0, ge=0, lt=inf)
    """Z-loss coefficient: weight of log(Z)^2 per token, Z being the softmax's denominator; keeps
    logits from drifting (PaLM: 1e-4). 0: off."""

    label_smoothing: float = field(default=0.0, ge=0, lt=1)
    """Label smoothing: probability spread evenly over all tokens (Szegedy et al., 2016). 0: off."""

    @property
    def left_out(self) -> tuple[int, ...]:
        weights = (self.token_weights or {}).items()
        weightless = {int(name) for name, weight in weights if weight == 0 and name.isdecimal()}
        ignored = () if self.ignore_index is None else (self.ignore_index,)
        return tuple(sorted(weightless.union(ignored)))

    @rule
    def _check_token_weights(self) -> Iterator[Problem]:
        if self.token_weights is None:
            return
        if not self.token_weights:
            yield Problem("token_weights", "is empty, so it would have no effect", valid=("null",))
        for name in self.token_weights:
            if not (name.isascii() and name.isdecimal() and name == str(int(name))):
                yield Problem(
                    "token_weights",
                    f"{name!r} is not the id of a token",
                    valid=('{"0": 0.5}', '{"256": 0}'),
                    hint="Ids are integers from 0 on, as the tokenizer numbers its tokens.",
                )
            elif int(name) == self.ignore_index and self.token_weights[name]:
                yield Problem(
                    f"token_weights.{name}",
                    "has no effect: ignore_index excludes that token",
                    also=("ignore_index",),
                    hint="Remove one of the two.",
                )


class ChunkedCrossEntropy(
    CrossEntropy,
    type="chunked_cross_entropy",
    owner="setpoint.loss.chunked:ChunkedCrossEntropyLoss",
):
    """Cross-entropy from hidden states, a chunk of tokens at a time.

    The logits of all tokens never exist at once: each chunk computes its gradient before the next
    begins. Needs a model that returns hidden states, as Setpoint's own do.
    """

    from_hidden = True

    chunk_size: int = field(default=512, ge=1)
    """Chunk size in tokens; memory for logits is proportional to chunk_size * vocabulary size."""


class ImportedLossConfig(
    LossConfig, ImportedComponent, type="import", owner="setpoint.loss.cross_entropy:ImportedLoss"
):
    """Any loss by its import path, such as torch.nn.CrossEntropyLoss; other keys are its arguments.

    It is constructed once and called with (N, V) fp32 logits and (N,) targets; it must return the
    sum over the targets that are not -100. "sum" and -100 are passed as reduction and ignore_index
    where it accepts them.
    """

    allowed_modules = ("torch.nn",)
    runtime_arguments = ("reduction", "ignore_index")


def tokens_named(loss: LossConfig) -> Iterator[tuple[str, int]]:
    """List the token ids in a loss section, each with the path of its field."""
    if not isinstance(loss, CrossEntropy):
        return
    if loss.ignore_index is not None:
        yield "loss.ignore_index", loss.ignore_index
    for name in loss.token_weights or ():
        if name.isdecimal():
            yield f"loss.token_weights.{name}", int(name)
