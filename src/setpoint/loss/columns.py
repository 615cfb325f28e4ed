"""Softmax statistics and accuracy of logits whose columns are divided among ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from setpoint.shapes.outcome import Columns, Projection


class Statistics(NamedTuple):
    """Statistics of each token's logits for a loss, equal on all ranks.

    Arguments:
        log_z: (T,) logarithm of the softmax's denominator.
        chosen: (T,) logit of the target.
        mean: (T,) mean of all logits; 0 unless requested.
    """

    log_z: Tensor
    chosen: Tensor
    mean: Tensor


def statistics(logits: Tensor, targets: Tensor, columns: Columns | None, mean: bool) -> Statistics:
    """Compute the statistics of (T, V) logits, with gradients.

    Arguments:
        logits: fp32 or fp64; this rank's columns.
        targets: (T,) int64, all of them token ids.
        columns: this rank's columns; None: all.
        mean: whether to compute the mean of all logits.
    """
    if columns is not None:
        return Statistics(*_Statistics.apply(logits, targets, columns, mean))
    log_z = logits.logsumexp(dim=-1)
    chosen = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return Statistics(log_z, chosen, logits.mean(dim=-1) if mean else torch.zeros_like(log_z))


def statistics_of_parts(
    logits: Tensor, targets: Tensor, columns: Columns, mean: bool
) -> Statistics:
    """Compute the statistics of (T, V') logits without gradients."""
    highest = columns.peers.reduce(_largest(logits), "max")
    # A row of -inf has no softmax; subtracting -inf would give NaN.
    highest = highest.where(highest.isfinite(), 0.0)
    denominator = (logits - highest.unsqueeze(-1)).exp_().sum(dim=-1)
    chosen = torch.zeros_like(denominator)
    if logits.shape[-1]:
        place, is_local = _local_targets(targets, columns, logits.shape[-1])
        chosen = logits.gather(-1, place).squeeze(-1).where(is_local, 0.0)
    total = logits.sum(dim=-1) if mean else torch.zeros_like(denominator)
    sums = torch.stack((denominator, chosen, total))
    denominator, chosen, total = columns.peers.reduce(sums).unbind()
    return Statistics(highest + denominator.log(), chosen, total / columns.total)


def add_to_targets(grad: Tensor, targets: Tensor, columns: Columns, value: Tensor) -> None:
    """Add a number per token to the column of its target, if it is local, in place.

    Arguments:
        grad: (T, V') local columns.
        value: (T,).
    """
    if not grad.shape[-1]:
        return
    place, is_local = _local_targets(targets, columns, grad.shape[-1])
    # Not scatter_add_, which has no deterministic form on every device.
    added = grad.gather(-1, place) + value.where(is_local, 0.0).unsqueeze(-1)
    grad.scatter_(-1, place, added)


def _local_targets(targets: Tensor, columns: Columns, width: int) -> tuple[Tensor, Tensor]:
    """(T, 1) local columns of targets, and (T,) whether each target is local."""
    place = targets - columns.first
    is_local = (place >= 0) & (place < width)
    return place.where(is_local, 0).unsqueeze(-1), is_local


def count_correct_in_parts(logits: Tensor, targets: Tensor, columns: Columns) -> Tensor:
    """Count the targets that have the highest logit over all ranks; ties go to the first.

    Arguments:
        targets: (...) int64; negative ones do not count.
    """
    local_max = _largest(logits)
    highest = columns.peers.reduce(local_max, "max")
    none = torch.full_like(targets, columns.total)
    if logits.shape[-1]:
        none = (logits.argmax(dim=-1) + columns.first).where(local_max == highest, none)
    return (columns.peers.reduce(none, "min") == targets).sum()


def _largest(logits: Tensor) -> Tensor:
    if logits.shape[-1]:
        return logits.amax(dim=-1)
    return logits.new_full(logits.shape[:-1], -torch.inf)


class _Statistics(torch.autograd.Function):
    """With p the softmax: d log_z = p, d chosen = one at the target, d mean = 1 / V."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, columns: Columns, mean: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        statistics = statistics_of_parts(logits, targets, columns, mean)
        ctx.save_for_backward(logits, targets, statistics.log_z)
        ctx.columns, ctx.mean = columns, mean
        return statistics

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, of_log_z: Tensor, of_chosen: Tensor, of_mean: Tensor
    ) -> tuple[Tensor, None, None, None]:
        # Computations from the statistics are the same on all ranks, so there is nothing to sum.
        logits, targets, log_z = ctx.saved_tensors
        columns = ctx.columns
        grad = (logits - log_z.unsqueeze(-1)).exp_().mul_(of_log_z.unsqueeze(-1))
        if ctx.mean:
            grad += (of_mean / columns.total).unsqueeze(-1)
        add_to_targets(grad, targets, columns, of_chosen)
        return grad, None, None, None


CHUNK = 1024  # tokens whose logits are in memory at once


def compute_dtype(hidden: Tensor) -> torch.dtype:
    """The dtype of matrix products of hidden states: the autocast dtype if autocast is on."""
    device = hidden.device.type
    is_autocast = torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if is_autocast else hidden.dtype


def count_correct(logits: Tensor, targets: Tensor, columns: Columns | None = None) -> Tensor:
    """Count the targets that have the highest logit; ties go to the first.

    Arguments:
        targets: (...) int64; IGNORE_INDEX marks positions that do not count.
        columns: the columns contained in the logits; None: all.
    """
    if columns is not None:
        return count_correct_in_parts(logits, targets, columns)
    # IGNORE_INDEX is negative, so it never is the index of the highest logit.
    return (logits.argmax(dim=-1) == targets).sum()


# As with losses that take hidden states, the graph of a compiled model ends before this.
# `torch.compiler.disable` would import the compiler, which takes as long as importing torch.
@torch._disable_dynamo  # pyright: ignore[reportPrivateImportUsage]
def count_correct_from_hidden(
    hidden: Tensor, projection: Projection, targets: Tensor, chunk: int = CHUNK
) -> Tensor:
    """Count the targets that have the highest logit, without computing all logits at once.

    Arguments:
        targets: (B, S) int64; IGNORE_INDEX marks positions that do not count.
        chunk: tokens per chunk of logits.
    """
    states, labels = hidden.flatten(0, 1), targets.flatten()
    device, format = hidden.device.type, compute_dtype(hidden)
    # Cast once, not per chunk.
    matrix = projection.weight.to(format)
    right = torch.zeros((), dtype=torch.int64, device=hidden.device)
    with torch.autocast(device, enabled=False):
        for start in range(0, len(labels), chunk):
            part = slice(start, start + chunk)
            logits = projection.logits(states[part].to(format), matrix)
            right += count_correct(logits, labels[part], projection.columns)
    return right
