"""What the tests of losses share: small batches, and the losses they are held against."""

from typing import Any

import torch
from torch import Tensor

from setpoint.config import resolve
from setpoint.loss.chunked import ChunkedCrossEntropyLoss
from setpoint.loss.config import ChunkedCrossEntropy, CrossEntropy
from setpoint.loss.cross_entropy import CrossEntropyLoss
from setpoint.shapes.batch import IGNORE_INDEX
from setpoint.shapes.outcome import Projection

VOCAB = 11
# Each option alone, and all at once.
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "z_loss": {"z_loss": 0.3},
    "label_smoothing": {"label_smoothing": 0.2},
    "ignore_index": {"ignore_index": 3},
    "token_weights": {"token_weights": {"1": 0.5, "5": 0, "7": 2.5}},
    "all": {
        "z_loss": 0.3,
        "label_smoothing": 0.2,
        "ignore_index": 3,
        "token_weights": {"1": 0.5, "5": 0, "7": 2.5},
    },
}


def plain(**options: Any) -> CrossEntropyLoss:
    return resolve(CrossEntropy(**options)).build()


def chunked(chunk_size: int, **options: Any) -> ChunkedCrossEntropyLoss:
    return resolve(ChunkedCrossEntropy(chunk_size=chunk_size, **options)).build()


def batch(
    rows: int = 3, length: int = 7, ignored: float = 0.3, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (B, S, VOCAB) in fp64, targets and weights, some of which are zero."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, length, VOCAB, generator=generator, dtype=torch.float64) * 4
    targets = torch.randint(VOCAB, (rows, length), generator=generator)
    targets[torch.rand(rows, length, generator=generator) < ignored] = IGNORE_INDEX
    weights = torch.randint(0, 4, (rows, length), generator=generator) / 2
    return logits, targets, weights


def head(
    rows: int = 3,
    length: int = 7,
    dim: int = 5,
    dtype: torch.dtype = torch.float64,
    padded: int = 2,
) -> tuple[Tensor, Tensor]:
    """Hidden states (B, S, D) and an output matrix with some rows beyond the vocabulary."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(rows, length, dim, generator=generator, dtype=torch.float64)
    matrix = torch.randn(VOCAB + padded, dim, generator=generator, dtype=torch.float64)
    return hidden.to(dtype).requires_grad_(), matrix.to(dtype).requires_grad_()


def projection(matrix: Tensor, soft_cap: float | None = None, scale: float = 1.0) -> Projection:
    return Projection(matrix, VOCAB, scale, soft_cap)


def by_hand(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None, **options: Any
) -> tuple[Tensor, Tensor, float]:
    """The sums and their weight, token by token from the definition, in fp64."""
    total = nats = torch.zeros((), dtype=torch.float64)
    sum_of_weights = 0.0
    each = [1.0] * targets.numel() if weights is None else weights.flatten().tolist()
    flat = logits.flatten(0, 1).double()
    for x, target, weight in zip(flat, targets.flatten().tolist(), each, strict=True):
        if target == IGNORE_INDEX or target == options.get("ignore_index"):
            continue
        weight *= (options.get("token_weights") or {}).get(str(target), 1.0)
        if weight == 0:
            continue
        z = torch.log(torch.exp(x).sum())
        log_p = x - z
        smoothing = options.get("label_smoothing", 0.0)
        wanted = torch.full_like(x, smoothing / len(x))
        wanted[target] += 1 - smoothing
        total = total + weight * (-(wanted * log_p).sum() + options.get("z_loss", 0.0) * z**2)
        nats = nats - log_p[target]
        sum_of_weights += weight
    return total, nats.detach(), sum_of_weights
