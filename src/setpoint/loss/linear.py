"""Cross-entropy from hidden states with torch.nn.functional.linear_cross_entropy."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from setpoint.config import Problem, SetpointError
from setpoint.loss.columns import compute_dtype
from setpoint.loss.config import LinearCrossEntropy
from setpoint.loss.cross_entropy import FromHidden, LossOutput, Weigher
from setpoint.shapes.batch import IGNORE_INDEX
from setpoint.shapes.outcome import Projection


def missing_problems(section: LinearCrossEntropy) -> Iterator[Problem]:
    """Report a version of PyTorch without the loss."""
    del section
    if why := linear_missing():
        yield Problem("type", why, valid=("chunked_cross_entropy",), hint="It gives the same loss.")


def linear_missing() -> str | None:
    """Reason why the loss cannot be used here, or None."""
    if hasattr(F, "linear_cross_entropy"):
        return None
    return f"needs torch 2.13 or later for linear_cross_entropy; this is {torch.__version__}"


class LinearCrossEntropyLoss(FromHidden):
    """Weighted sum of the cross-entropy, by torch.nn.functional.linear_cross_entropy in chunks.

    Arguments:
        config: section with ignore_index, token_weights and chunk_size.
        retains: whether the backward pass may run twice; see `ChunkedCrossEntropyLoss`.

    Raises:
        SetpointError: this version of torch has no such function.
    """

    retains = False

    def __init__(self, config: LinearCrossEntropy) -> None:
        if why := linear_missing():
            raise SetpointError(f"loss.type = linear_cross_entropy: {why}")
        self.weigh = Weigher(config.ignore_index, config.token_weights)
        self.per_token = False
        self.options, self.compiled = (
            torch.nn.LinearCrossEntropyOptions(
                batch_chunk_size=config.chunk_size, allow_retain_graph=retains
            )
            # Compiled, it always retains its graph, and warns if that was not requested.
            for retains in (False, True)
        )

    def from_hidden(
        self, hidden: Tensor, projection: Projection, targets: Tensor, weights: Tensor | None = None
    ) -> LossOutput:
        if projection.soft_cap is not None:
            raise SetpointError(
                f"loss.type = linear_cross_entropy cannot cap logits, and the model caps them at "
                f"{projection.soft_cap:g}; valid: chunked_cross_entropy"
            )
        targets, weights = self.weigh(targets, weights)
        device, format = hidden.device.type, compute_dtype(hidden)
        states = (hidden.flatten(0, 1) * projection.scale).to(format)
        matrix = projection.weight[: projection.vocab_size].to(format)
        # A sum has the dtype of the hidden states, in which thousands of tokens do not add up: in
        # bf16 it is 5 % off for 4096 tokens. Losses of single tokens are rounded separately.
        single = weights is not None or format.itemsize < 4 or self.per_token
        with torch.autocast(device, enabled=False):
            loss = F.linear_cross_entropy(
                states,
                matrix,
                targets.flatten(),
                reduction="none" if single else "sum",
                ignore_index=IGNORE_INDEX,
                options=self.compiled
                if self.retains or torch.compiler.is_compiling()
                else self.options,
            )
        if not single:
            return LossOutput(loss, loss.detach())
        per_token = loss.float() if format.itemsize < 4 else loss
        total = per_token.sum() if weights is None else (per_token * weights.flatten()).sum()
        plain = per_token.detach()
        return LossOutput(total, plain.sum(), plain if self.per_token else None)
