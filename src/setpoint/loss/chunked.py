"""Cross-entropy from hidden states, one chunk of tokens at a time, each with its gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from setpoint.loss.cross_entropy import (
    CrossEntropyLoss,
    FromHidden,
    LossOutput,
    add_to_targets,
    statistics_of_parts,
)
from setpoint.shapes.batch import IGNORE_INDEX
from setpoint.shapes.outcome import Columns, Projection, compute_dtype

if TYPE_CHECKING:
    from setpoint.loss.config import ChunkedCrossEntropy


class ChunkedCrossEntropyLoss(CrossEntropyLoss, FromHidden):
    """Cross-entropy loss that never materializes the logits of all tokens at once.

    The gradient of a sum over tokens is a sum over chunks of tokens. So each chunk is projected to
    logits, immediately contributes its loss and the gradients of hidden states and output matrix,
    and its logits are dropped. Nothing is computed twice: the backward pass only multiplies these
    gradients by the incoming one.

    Arguments:
        retains: whether the backward pass may run twice, as in zero-bubble schedules, which compute
            the gradients of inputs and weights separately; otherwise gradients are scaled in place
            and released.
    """

    retains = False

    def __init__(self, config: ChunkedCrossEntropy) -> None:
        super().__init__(config)
        self.chunk_size = config.chunk_size

    # A compiler would trace the loop over chunks into one graph, and cannot trace gradients that
    # are taken in a forward pass: the graph of the model ends before this, and it runs as it is.
    # `torch.compiler.disable` would import the compiler for runs that compile nothing.
    @torch._disable_dynamo  # pyright: ignore[reportPrivateImportUsage]
    def from_hidden(
        self, hidden: Tensor, projection: Projection, targets: Tensor, weights: Tensor | None = None
    ) -> LossOutput:
        targets, weights = self.weigh(targets, weights)
        tokens = targets.flatten(), None if weights is None else weights.flatten()
        flat, matrix = hidden.flatten(0, 1), projection.weight
        if torch.is_grad_enabled() and (flat.requires_grad or matrix.requires_grad):
            return LossOutput(*_ChunkedSums.apply(flat, matrix, self, projection, *tokens))
        return self.run(flat, projection, *tokens)

    def run(
        self,
        hidden: Tensor,
        projection: Projection,
        all_targets: Tensor,
        all_weights: Tensor | None,
        gradients: _Gradients | None = None,
    ) -> LossOutput:
        """Sum the loss over chunks of (T, D) hidden states.

        Arguments:
            gradients: receives the gradients of the sum; None: gradients are not computed.
        """
        device, format = hidden.device.type, compute_dtype(hidden)
        # Cast once, not per chunk.
        matrix = projection.weight.detach().to(format)
        totals: list[LossOutput] = []
        with torch.autocast(device, enabled=False):
            for start in range(0, len(all_targets), self.chunk_size):
                part = slice(start, start + self.chunk_size)
                targets = all_targets[part]
                weights = None if all_weights is None else all_weights[part]
                states = hidden[part].detach().to(format)
                if gradients is None:
                    logits = projection.logits(states, matrix)
                    totals.append(self.sums(logits, targets, weights, projection.columns))
                else:
                    result = self._loss_and_grad(
                        projection, F.linear(states, matrix), targets, weights
                    )
                    per_token = result.per_token if self.per_token else None
                    totals.append(LossOutput(result.total, result.nats, per_token))
                    gradients.add(part, result, states, matrix)
                    del result  # free it before the next chunk
        sums, nats, singles = zip(*totals, strict=True)
        per_token = torch.cat(singles) if self.per_token else None
        return LossOutput(torch.stack(sums).sum(), torch.stack(nats).sum(), per_token)

    def _loss_and_grad(
        self, projection: Projection, product: Tensor, targets: Tensor, weights: Tensor | None
    ) -> CrossEntropyGrad:
        """The loss, and its gradient w.r.t. the product of states and matrix, in that dtype."""
        with torch.enable_grad():
            logits = projection.finish(product.requires_grad_())
        exact = logits.detach()
        result = cross_entropy_grad(
            exact if exact.dtype == torch.float64 else exact.float(),
            targets,
            weights,
            z_loss=self.z_loss,
            label_smoothing=self.label_smoothing,
            columns=projection.columns,
        )
        grad = result.grad.to(product.dtype)
        if logits is not product:
            (grad,) = torch.autograd.grad(logits, product, grad)
        return result._replace(grad=grad)


class _Gradients:
    """Gradients of the chunk sum w.r.t. hidden states and output matrix; None: not needed."""

    def __init__(self, hidden: Tensor | None, matrix: Tensor | None) -> None:
        self.hidden = None if hidden is None else torch.empty_like(hidden)
        # In short formats a sum over chunks would lose the terms of single chunks.
        self.matrix = (
            None
            if matrix is None
            else torch.zeros_like(matrix, dtype=torch.promote_types(matrix.dtype, torch.float32))
        )

    def add(self, part: slice, result: CrossEntropyGrad, states: Tensor, matrix: Tensor) -> None:
        """Add the gradient with respect to the product of (T', D) states and the (V, D) matrix."""
        if self.hidden is not None:
            self.hidden[part] = (result.grad @ matrix) * result.weights
        if self.matrix is None:
            return
        weighted = (states * result.weights).to(states.dtype)
        if self.matrix.dtype == states.dtype:
            self.matrix.addmm_(result.grad.T, weighted)
        else:
            self.matrix += result.grad.T @ weighted


class _ChunkedSums(torch.autograd.Function):
    """The sums, with gradients computed before the backward pass needs them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        matrix: Tensor,
        loss: ChunkedCrossEntropyLoss,
        projection: Projection,
        targets: Tensor,
        weights: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        of_hidden, of_matrix, *_ = ctx.needs_input_grad
        gradients = _Gradients(hidden if of_hidden else None, matrix if of_matrix else None)
        total, nats, per_token = loss.run(hidden, projection, targets, weights, gradients)
        ctx.gradients, ctx.retains = gradients, loss.retains
        ctx.mark_non_differentiable(nats, *(() if per_token is None else (per_token,)))
        return total, nats, per_token

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradients = ctx.gradients
        if gradients is None:
            raise RuntimeError(
                "chunked_cross_entropy: backward was run before, and its gradients, which are "
                "computed in forward and scaled in place, were already used; call the loss again"
            )
        if not ctx.retains:
            ctx.gradients = None
        scaled: list[Tensor | None] = []
        # Autograd casts that of the matrix, whose dtype may differ.
        for gradient in (gradients.hidden, gradients.matrix):
            if gradient is not None:
                gradient = gradient * above if ctx.retains else gradient.mul_(above)
            scaled.append(gradient)
        return *scaled, None, None, None, None


class CrossEntropyGrad(NamedTuple):
    """Loss of some tokens and its gradient, in closed form.

    Arguments:
        nats: sum of the plain cross-entropy.
        per_token: (T,) terms of that sum.
        weights: (T, 1) factors of the rows, 0 for tokens that do not count.
    """

    total: Tensor
    nats: Tensor
    per_token: Tensor
    grad: Tensor
    weights: Tensor


def cross_entropy_grad(
    logits: Tensor,
    targets: Tensor,
    weights: Tensor | None,
    *,
    z_loss: float,
    label_smoothing: float,
    columns: Columns | None = None,
) -> CrossEntropyGrad:
    """Compute the result of `CrossEntropyLoss.sums` and its gradient, without a graph.

    With p the softmax and y the smoothed target, the gradient of a token's loss is (1 + 2 z_loss
    log Z) p - y. Autograd would need four temporary tensors as large as the logits; here the
    gradient is computed in place from the tensor of log p.

    Arguments:
        targets: (T,) int64; IGNORE_INDEX marks positions that do not count.
        weights: (T,) fp32, zero at those positions; None: all others have weight 1.
        columns: the columns contained in the logits; None: all.
    """
    valid = targets != IGNORE_INDEX
    # Weights scale rows, as do the factors before and after: (T, D) is the smaller tensor.
    rows = valid.to(logits.dtype) if weights is None else weights.to(logits.dtype)
    labels = targets.where(valid, 0)
    if columns is None:
        log_p = logits.log_softmax(dim=-1)
        per_token = -log_p.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        chosen_logits = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        log_z = chosen_logits + per_token
        mean = logits.mean(dim=-1) if label_smoothing else None
    else:
        smoothed = label_smoothing > 0
        log_z, chosen_logits, mean = statistics_of_parts(logits, labels, columns, smoothed)
        log_p = logits - log_z.unsqueeze(-1)
        per_token = log_z - chosen_logits
    of_tokens = per_token.where(valid, 0.0)
    if mean is not None and label_smoothing:
        per_token = per_token + label_smoothing * (chosen_logits - mean)
    if z_loss:
        per_token = per_token + z_loss * log_z.square()
    total = (per_token.where(valid, 0.0) * rows).sum()
    del logits

    grad = log_p.exp_()
    if z_loss:
        grad *= (1 + 2 * z_loss * log_z).unsqueeze(-1)
    if label_smoothing:
        grad -= label_smoothing / (grad.shape[-1] if columns is None else columns.total)
    if columns is None:
        # Not scatter_add_, which has no deterministic form on every device.
        chosen = labels.unsqueeze(-1)
        grad.scatter_(-1, chosen, grad.gather(-1, chosen) - (1 - label_smoothing))
    else:
        add_to_targets(grad, labels, columns, torch.full_like(log_z, label_smoothing - 1))
    return CrossEntropyGrad(total, of_tokens.sum(), of_tokens, grad, rows.unsqueeze(-1))
