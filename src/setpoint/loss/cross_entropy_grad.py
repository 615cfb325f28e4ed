"""Cross-entropy together with its gradient by the logits, in the memory of one more."""

from typing import NamedTuple

from torch import Tensor

from setpoint.shapes.batch import IGNORE_INDEX


class CrossEntropyGrad(NamedTuple):
    """The loss of some tokens and its gradient, by closed formulas.

    Arguments:
        nats: the sum of the cross-entropy alone.
        weights: (T, 1) what each row of it is to be multiplied by, 0 where a token does not count.
    """

    total: Tensor
    nats: Tensor
    grad: Tensor
    weights: Tensor


def cross_entropy_grad(
    logits: Tensor,
    targets: Tensor,
    weights: Tensor | None,
    *,
    z_loss: float,
    label_smoothing: float,
) -> CrossEntropyGrad:
    """Compute what `CrossEntropyLoss.sums` does, and its gradient, without a graph.

    With p the softmax and y the smoothed target, the gradient of a token's loss is
    (1 + 2 z_loss log Z) p - y. Autograd would hold four tensors of the size of the logits on the
    way there; here it is made in place from the one that holds log p.

    Arguments:
        targets: (T,) int64; IGNORE_INDEX marks positions that do not count.
        weights: (T,) fp32, zero at those positions; None: the others weigh 1.
    """
    valid = targets != IGNORE_INDEX
    # Weights multiply rows, and so do what comes before and after: (T, D) is less to multiply.
    rows = valid.to(logits.dtype) if weights is None else weights.to(logits.dtype)
    chosen = targets.where(valid, 0).unsqueeze(-1)
    log_p = logits.log_softmax(dim=-1)
    log_p_chosen = log_p.gather(-1, chosen).squeeze(-1)
    each = -log_p_chosen
    nats = each.where(valid, 0.0).sum()
    chosen_logits = logits.gather(-1, chosen).squeeze(-1)
    log_z = chosen_logits - log_p_chosen
    if label_smoothing:
        each = each + label_smoothing * (chosen_logits - logits.mean(dim=-1))
    if z_loss:
        each = each + z_loss * log_z.square()
    total = (each.where(valid, 0.0) * rows).sum()
    del logits

    grad = log_p.exp_()
    if z_loss:
        grad *= (1 + 2 * z_loss * log_z).unsqueeze(-1)
    if label_smoothing:
        grad -= label_smoothing / grad.shape[-1]
    # Not scatter_add_, which has no deterministic form on every device.
    grad.scatter_(-1, chosen, grad.gather(-1, chosen) - (1 - label_smoothing))
    return CrossEntropyGrad(total, nats, grad, rows.unsqueeze(-1))
