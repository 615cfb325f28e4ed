"""Cross-entropy of logits, with weights, label smoothing and a z-loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from setpoint.config import SetpointError, call_component
from setpoint.shapes.batch import IGNORE_INDEX
from setpoint.shapes.outcome import Columns, Projection, compute_dtype

if TYPE_CHECKING:
    from setpoint.loss.config import CrossEntropy, ImportedLossConfig


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


@runtime_checkable
class FromHidden(Protocol):
    """A loss of hidden states and their projection to logits, which need not exist all at once."""

    def from_hidden(
        self, hidden: Tensor, projection: Projection, targets: Tensor, weights: Tensor | None = None
    ) -> Any:
        """Compute the loss of one micro-batch, without waiting for the device.

        Arguments:
            targets: (B, S) int64; IGNORE_INDEX marks positions that do not count.
            weights: (B, S) fp32, from the data; None: all weights are 1.

        Returns:
            Sums in a `LossOutput`, not means; the backward pass can run through them once.
        """
        ...


@runtime_checkable
class Weighs(Protocol):
    """A loss that ignores or weights targets itself, and accepts weights from the data."""

    weigh: Weigher


@runtime_checkable
class PerToken(Protocol):
    """A loss whose output includes `each` if `per_token` is true."""

    per_token: bool


class LossOutput(NamedTuple):
    """Sums over the valid tokens of a micro-batch, to be divided by those of the whole batch.

    Arguments:
        total: fp32 scalar from which the backward pass starts, with all terms weighted; divide by
            the sum of the tokens' weights.
        nats: fp32 scalar without gradient: the cross-entropy alone, each token with weight one,
            for metrics; divide by the number of tokens.
        per_token: (B * S,) fp32 without gradient: the terms of `nats`, 0 for targets that do not
            count; None: not requested.
    """

    total: Tensor
    nats: Tensor
    per_token: Tensor | None = None


class Weigher:
    """Combines the weights of targets from the data and from the configuration.

    A target's weight is the product of the weight from the data and that of its token; targets of
    weight 0 do not count.

    Arguments:
        ignore_index: a token that does not count; None: all tokens count.
        token_weights: weights by token id, as text; other tokens have weight 1. None: all have
            weight 1.
    """

    def __init__(
        self, ignore_index: int | None = None, token_weights: Mapping[str, float] | None = None
    ) -> None:
        self.ignore_index = ignore_index
        self._tables: dict[torch.device, Tensor] = {}
        if token_weights:
            ids = [int(name) for name in token_weights]
            # An entry beyond the last id represents all unnamed tokens.
            table = torch.ones(max(ids) + 2)
            table[torch.tensor(ids)] = torch.tensor([float(w) for w in token_weights.values()])
            self._tables[table.device] = table

    @property
    def is_trivial(self) -> bool:
        """True if all targets have the weights given by the data."""
        return self.ignore_index is None and not self._tables

    def __call__(
        self, targets: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Weight the targets, without waiting for the device.

        Arguments:
            targets: int64 of any shape; IGNORE_INDEX marks targets that do not count.
            weights: fp32 of that shape, from the data; None: all weights are 1.

        Returns:
            the targets, with IGNORE_INDEX for those that do not count, and their weights, 0 for
            these; None if all other weights are 1.
        """
        if self.ignore_index is not None:
            targets = targets.masked_fill(targets == self.ignore_index, IGNORE_INDEX)
        if self._tables:
            table = self._table(targets.device)
            of_token = table[targets.clamp(0, len(table) - 1)]
            weights = of_token if weights is None else weights * of_token
        if weights is None:
            return targets, None
        targets = targets.masked_fill(weights == 0, IGNORE_INDEX)
        return targets, weights.masked_fill(targets == IGNORE_INDEX, 0.0)

    def _table(self, device: torch.device) -> Tensor:
        if device not in self._tables:
            self._tables[device] = next(iter(self._tables.values())).to(device)
        return self._tables[device]


class CrossEntropyLoss:
    """Sum over tokens of w [(1 - s) CE + s mean over classes of -log p + z_loss log(Z)^2].

    CE is -log p of the target, p the softmax of the logits, Z its denominator, w the weight of the
    target, and s the label smoothing (smoothing: Szegedy et al., 2016; z-loss: PaLM, Chowdhery et
    al., 2022).
    """

    def __init__(self, config: CrossEntropy) -> None:
        self.weigh = Weigher(config.ignore_index, config.token_weights)
        self.z_loss = config.z_loss
        self.label_smoothing = config.label_smoothing
        self.per_token = False

    def __call__(
        self,
        logits: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        columns: Columns | None = None,
    ) -> LossOutput:
        """Compute the loss of one micro-batch, without waiting for the device.

        Arguments:
            logits: (B, S, V) in any floating point dtype; computed in fp32 (fp64 stays fp64).
            targets: (B, S) int64; IGNORE_INDEX marks positions that do not count.
            weights: (B, S) fp32, from the data; None: all weights are 1.
            columns: the columns contained in the logits; None: all.

        Returns:
            Sums, not means; all zero if no target is valid.
        """
        targets, weights = self.weigh(targets, weights)
        flat = None if weights is None else weights.flatten()
        return self.sums(logits.flatten(0, 1), targets.flatten(), flat, columns)

    def sums(
        self,
        logits: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        columns: Columns | None = None,
    ) -> LossOutput:
        """Compute the loss of tokens with known weights.

        Arguments:
            targets: (T,) int64; IGNORE_INDEX marks positions that do not count.
            weights: (T,) fp32, zero at those positions; None: all others have weight 1.
            columns: see `__call__`.
        """
        if logits.dtype != torch.float64:
            logits = logits.float()
        plain = weights is None and not self.z_loss and not self.label_smoothing
        if plain and columns is None:
            return summed(logits, targets, self.per_token)
        valid = targets != IGNORE_INDEX
        # log Z is needed separately, so the cross-entropy is computed from it: one pass, not two.
        smoothed = self.label_smoothing > 0
        log_z, chosen, mean = statistics(logits, targets.where(valid, 0), columns, smoothed)
        per_token = log_z - chosen
        of_tokens = per_token.where(valid, 0.0)
        nats = of_tokens.sum()
        total = nats if weights is None else _weighted_sum(per_token, valid, weights)
        if self.label_smoothing:
            # (1 - s) (log Z - x_target) + s (log Z - mean(x)) = CE + s (x_target - mean(x))
            pull = chosen - mean
            total = total + self.label_smoothing * _weighted_sum(pull, valid, weights)
        if self.z_loss:
            total = total + self.z_loss * _weighted_sum(log_z.square(), valid, weights)
        return LossOutput(total, nats.detach(), of_tokens.detach() if self.per_token else None)


def summed(logits: Tensor, targets: Tensor, per_token: bool) -> LossOutput:
    """Unweighted cross-entropy of (T, V) logits."""
    if not per_token:
        total = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum")
        return LossOutput(total, total.detach())
    # The two steps of F.cross_entropy, bit for bit; the losses of single tokens are read between
    # them.
    log_p = logits.log_softmax(dim=-1)
    total = F.nll_loss(log_p, targets, ignore_index=IGNORE_INDEX, reduction="sum")
    valid = targets != IGNORE_INDEX
    chosen = log_p.detach().gather(-1, targets.where(valid, 0).unsqueeze(-1)).squeeze(-1)
    return LossOutput(total, total.detach(), (-chosen).where(valid, 0.0))


def _weighted_sum(per_token: Tensor, valid: Tensor, weights: Tensor | None) -> Tensor:
    # Targets that do not count may have infinite or NaN losses, so these are excluded, not
    # multiplied by zero.
    per_token = per_token.where(valid, 0.0)
    return per_token.sum() if weights is None else (per_token * weights).sum()


class ImportedLoss:
    """A loss from another library, summed over tokens; the cross-entropy is also measured.

    Raises:
        SetpointError: the loss cannot be built, or does not sum over the valid tokens.
    """

    def __init__(self, config: ImportedLossConfig) -> None:
        handed = {"reduction": "sum", "ignore_index": IGNORE_INDEX}
        self.loss: Callable[[Tensor, Tensor], Tensor] = call_component(
            config, (), handed, tuple(handed)
        )
        self.per_token = False
        self._title = f"loss.target = {config.target}"
        self._prove_sum()

    def __call__(self, logits: Tensor, targets: Tensor) -> LossOutput:
        """Compute the loss of one micro-batch.

        Arguments:
            logits: (B, S, V) in any floating point dtype; computed in fp32 (fp64 stays fp64).
            targets: (B, S) int64; IGNORE_INDEX marks positions that do not count.
        """
        flat, labels = logits.flatten(0, 1), targets.flatten()
        if flat.dtype != torch.float64:
            flat = flat.float()
        total = self.loss(flat, labels)
        with torch.no_grad():
            plain = summed(flat, labels, self.per_token)
        return LossOutput(total, plain.nats, plain.per_token)

    def _prove_sum(self) -> None:
        """Test the loss on one token, on it twice, and on a token next to an ignored one."""
        row = torch.tensor([[0.5, -1.0, 0.25]])
        target, ignored = torch.tensor([1]), torch.tensor([IGNORE_INDEX])
        once = self._value(row, target)
        for other, expected, words in (
            (target, 2 * once, "the same token twice"),
            (ignored, once, f"a token and one whose target is {IGNORE_INDEX}"),
        ):
            value = self._value(torch.cat((row, row)), torch.cat((target, other)))
            if not math.isclose(value, expected, rel_tol=1e-5):
                raise SetpointError(
                    f"{self._title} gives {once:.6g} for one token and {value:.6g} for {words}, "
                    f"but a sum over tokens would give {expected:.6g}; the training loop divides "
                    f"by the tokens of the whole batch\nValid: a sum over the targets other than "
                    f"{IGNORE_INDEX}, as with reduction='sum' in torch"
                )

    def _value(self, logits: Tensor, targets: Tensor) -> float:
        try:
            value = self.loss(logits, targets)
        except Exception as error:
            raise SetpointError(
                f"{self._title} cannot be called with (N, V) logits and (N,) targets: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(value, Tensor) or value.ndim:
            raise SetpointError(f"{self._title} must return a scalar tensor")
        return float(value)
