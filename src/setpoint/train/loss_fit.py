"""What a loss needs of the other sections, as far as the configuration tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.loss.config import Ignoring, LigerCrossEntropy, LossConfig, Weighing
from setpoint.model.config import HuggingFaceModel, ImportedModel, Transformer
from setpoint.train.vocabulary_fit import known_vocabulary

if TYPE_CHECKING:
    from setpoint.train.config import Job


def unfit(job: Job) -> Iterator[Problem]:
    """Look for what the loss cannot do with this job."""
    loss, model = job.loss, job.model
    kind = type(loss).__setpoint__.tag
    if type(loss).from_hidden and isinstance(model, ImportedModel | HuggingFaceModel):
        yield Problem(
            "loss",
            f"type = {kind} needs hidden states, and a model of type = "
            f"{type(model).__setpoint__.tag} gives logits only",
            valid=("cross_entropy",),
            also=("model",),
        )
    cap = model.logit_soft_cap if isinstance(model, Transformer) else None
    if not type(loss).soft_caps and cap is not None:
        yield Problem(
            "loss",
            f"type = {kind} cannot cap logits, and the model caps them at {cap:g}",
            valid=("chunked_cross_entropy", "cross_entropy"),
            also=("model.logit_soft_cap",),
        )
    if isinstance(loss, LigerCrossEntropy) and job.parallel.device == "cpu":
        yield Problem(
            "loss",
            "type = liger_cross_entropy needs a GPU: its kernels are written in Triton",
            valid=("chunked_cross_entropy",),
            also=("parallel.device",),
        )


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


def tokens_named(loss: LossConfig) -> Iterator[tuple[str, int]]:
    """List the tokens that a loss names."""
    if isinstance(loss, Ignoring) and loss.ignore_index is not None:
        yield "loss.ignore_index", loss.ignore_index
    if isinstance(loss, Weighing):
        for name in loss.token_weights or ():
            if name.isdecimal():
                yield f"loss.token_weights.{name}", int(name)


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
