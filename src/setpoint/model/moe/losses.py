"""Losses that keep the load of experts even, or the router's logits small; all means over tokens.

T tokens that count, E experts, k choices a token; f_i is the share of the T k choices that fell on
expert i and carries no gradient, P_i the mean score of expert i, where the scores of a token sum
to one. E * sum_i f_i P_i is 1 where either is uniform, and grows as load and scores gather on the
same experts.

Where several ranks divide the sequences, counts are of whole ones, and each rank's losses are its
parts of a sum: `tokens` says how many tokens count on all of them.
"""

import torch
from torch import Tensor


def balance_loss(
    scores: Tensor,
    counts: Tensor,
    valid: Tensor | None,
    parts: Tensor | None = None,
    tokens: Tensor | None = None,
) -> Tensor:
    """Compute E * sum_i f_i P_i over all tokens (Switch Transformer, Fedus et al., 2021).

    Arguments:
        parts: (E, parts) counts of equal parts of the batch, over each of which it is computed,
            and of which it is the mean over tokens; None: over the whole batch.
        valid: (B, S) False for padding, which takes no part; None: there is none.
        tokens: that count on all ranks of the sequences; None: those here are all.

    Returns:
        A scalar; 0 if nothing counts.
    """
    if parts is not None:
        return _balance_by_part(scores, parts.T, valid, tokens)
    share = counts.to(scores.dtype) / counts.sum().clamp(min=1)
    mean = _mean(scores.flatten(0, 1), None if valid is None else valid.flatten(), tokens)
    return scores.shape[-1] * (share * mean).sum()


def _balance_by_part(
    scores: Tensor, counts: Tensor, valid: Tensor | None, tokens: Tensor | None
) -> Tensor:
    by_part = scores.flatten(0, 1).unflatten(0, (len(counts), -1))  # (parts, T, E)
    share = counts.to(scores.dtype) / counts.sum(dim=1, keepdim=True).clamp(min=1)
    if valid is None and tokens is None:
        return scores.shape[-1] * (share * by_part.mean(dim=1)).sum(dim=1).mean()
    if valid is not None:
        by_part = by_part * valid.view(len(counts), -1, 1)
    return scores.shape[-1] * (share * by_part.sum(dim=1)).sum() / _count(valid, tokens)


def sequence_balance_loss(
    scores: Tensor,
    experts: Tensor,
    valid: Tensor | None,
    counts: Tensor | None = None,
    tokens: Tensor | None = None,
) -> Tensor:
    """Compute the balance loss of each sequence by itself, and their mean over tokens.

    Complementary sequence-wise balance loss (DeepSeek-V3, 2024).

    Arguments:
        valid: (B, S) False for padding, which takes no part; None: there is none.
        counts: (B, E) of whole sequences, as `sequence_counts` gives them; None: those here.
        tokens: that count on all ranks of the sequences; None: those here are all.

    Returns:
        A scalar; 0 if nothing counts.
    """
    if counts is None:
        counts = sequence_counts(experts, scores.shape[-1], valid)
    share = counts.to(scores.dtype) / counts.sum(dim=1, keepdim=True).clamp(min=1)
    if valid is None and tokens is None:
        return scores.shape[-1] * (share * scores.mean(dim=1)).sum(dim=1).mean()
    # A sequence weighs as many tokens as it has: sum_b n_b L_b / sum_b n_b, where n_b P_b is a sum.
    if valid is not None:
        scores = scores * valid.unsqueeze(-1)
    return scores.shape[-1] * (share * scores.sum(dim=1)).sum() / _count(valid, tokens)


def sequence_counts(experts: Tensor, count: int, valid: Tensor | None) -> Tensor:
    """Count how often each sequence chose each expert.

    Arguments:
        experts: (B, S, k) chosen ones of `count`.

    Returns:
        (B, E) int64.
    """
    # Not by adding up at indices: a token chooses an expert once at most.
    chosen = experts.new_zeros((*experts.shape[:2], count)).scatter(2, experts, 1)
    return (chosen if valid is None else chosen * valid.unsqueeze(-1)).sum(dim=1)


def z_loss(logits: Tensor, valid: Tensor | None, tokens: Tensor | None = None) -> Tensor:
    """Compute the mean of log(sum(exp(logits)))^2 (ST-MoE, Zoph et al., 2022).

    Arguments:
        valid: (B, S) False for padding, which takes no part; None: there is none.
        tokens: that count on all ranks of the sequences; None: those here are all.

    Returns:
        A scalar; 0 if nothing counts.
    """
    squares = torch.logsumexp(logits, dim=-1).square().flatten()
    return _mean(squares, None if valid is None else valid.flatten(), tokens)


def _mean(values: Tensor, valid: Tensor | None, tokens: Tensor | None) -> Tensor:
    """The mean of (T, ...) over the tokens that count."""
    if valid is None and tokens is None:
        return values.mean(dim=0)
    if valid is not None:
        values = values * valid.view(-1, *(1 for _ in values.shape[1:]))
    return values.sum(dim=0) / _count(valid, tokens)


def _count(valid: Tensor | None, tokens: Tensor | None) -> Tensor:
    found = tokens if valid is None or tokens is not None else valid.sum()
    assert found is not None
    return found.clamp(min=1)
