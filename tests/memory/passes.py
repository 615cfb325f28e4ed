"""A forward and a backward pass of a small model, and what is compared of them."""

from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from setpoint.loss.config import ChunkedCrossEntropy
from setpoint.shapes.outcome import Outcome
from setpoint.train.objective import Objective

from ..model.families import FAMILIES, sparse
from ..model.small import VOCAB
from ..support.tensors import make_batch
from .meter import Meter

DROPOUT = {"dropout": 0.2, "attention_dropout": 0.2, "embedding_dropout": 0.2}
CASES: dict[str, dict[str, Any]] = {
    **FAMILIES,
    "unpacked": sparse(packed=False),
    "loop": sparse(implementation="loop"),
    "capacity": sparse(capacity_factor=0.8, gradient_scale=True),
}


class Pass(NamedTuple):
    """Results of a forward and a backward pass."""

    total: Tensor
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]
    routing: Any
    kept: int
    calls: Counter[str]
    random: Tensor


def run(
    model: nn.Module,
    precision: torch.dtype | None = None,
    *,
    metered: bool = True,
    length: int = 24,
    passes: int = 1,
) -> Pass:
    """Run passes over fixed tokens, whose gradients add up."""
    generator = torch.Generator().manual_seed(0)
    objective = Objective(model, ChunkedCrossEntropy(chunk_size=7).build())
    torch.manual_seed(5)
    meter, kept, outcome, total = Meter(), 0, None, torch.zeros(())
    if metered:
        meter.__enter__()
    try:
        for _ in range(passes):
            inputs, targets = torch.randint(VOCAB, (2, 3, length), generator=generator)
            with torch.autocast("cpu", precision, enabled=precision is not None):
                outcome = objective(make_batch(inputs, targets))
            total = outcome.result.total
            total = total if outcome.auxiliary is None else total + outcome.auxiliary
            kept = meter.alive()
            total.backward()
    finally:
        if metered:
            meter.__exit__(None, None, None)
    assert isinstance(outcome, Outcome)
    return Pass(
        total.detach(),
        {name: p.grad for name, p in model.named_parameters()},
        dict(model.named_buffers()),
        outcome.routing,
        kept,
        meter.calls,
        torch.get_rng_state(),
    )


def assert_same(one: Pass, other: Pass) -> None:
    """Everything that is learnt from is equal to the last bit."""
    assert torch.equal(one.total, other.total)
    assert list(one.gradients) == list(other.gradients)
    for name, gradient in one.gradients.items():
        theirs = other.gradients[name]
        assert gradient is not None and theirs is not None, name
        assert torch.equal(gradient, theirs), name
    for name, buffer in one.buffers.items():
        assert torch.equal(buffer, other.buffers[name]), name
    assert (one.routing is None) == (other.routing is None)
    for mine, theirs in zip(one.routing or (), other.routing or (), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(one.random, other.random)
