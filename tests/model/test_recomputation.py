"""Activation checkpointing: layers that are computed again for their backward pass."""

from typing import Any

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from setpoint.loss.config import ChunkedCrossEntropy
from setpoint.model.transformer import Transformer
from setpoint.shapes.outcome import Outcome
from setpoint.train.objective import Objective

from ..support.tensors import make_batch
from .families import FAMILIES, sparse
from .small import VOCAB, small_model

DROPOUT = {"dropout": 0.2, "attention_dropout": 0.2, "embedding_dropout": 0.2}
CASES: dict[str, dict[str, Any]] = {
    **FAMILIES,
    "unpacked": sparse(packed=False),
    "capacity": sparse(capacity_factor=0.8, gradient_scale=True),
}


def backward(model: Transformer, precision: torch.dtype | None) -> Outcome:
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randint(VOCAB, (2, 2, 9), generator=generator)
    torch.manual_seed(5)
    with torch.autocast("cpu", precision, enabled=precision is not None):
        outcome = Objective(model, ChunkedCrossEntropy(chunk_size=7).build())(
            make_batch(inputs, targets)
        )
    total = outcome.result.total
    (total if outcome.auxiliary is None else total + outcome.auxiliary).backward()
    return outcome


@pytest.mark.parametrize("precision", [None, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_same_to_the_last_bit(name: str, precision: torch.dtype | None) -> None:
    plain, again = (small_model(**CASES[name], **DROPOUT) for _ in range(2))
    passes: list[str] = []
    for key, layer in again.layers.items():
        # What the layer itself does is seen within the wrapper.
        layer.attention.register_forward_hook(lambda *_, key=key: passes.append(key))
        again.layers[key] = checkpoint_wrapper(layer)
    expected, outcome = backward(plain, precision), backward(again, precision)
    assert passes == ["0", "1", "1", "0"]
    assert torch.equal(outcome.result.total, expected.result.total)
    for (key, one), other in zip(plain.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad), key
    if expected.routing is None:
        assert outcome.routing is None
    else:
        for mine, theirs in zip(outcome.routing, expected.routing, strict=True):
            assert torch.equal(mine, theirs)
    for (key, one), other in zip(plain.named_buffers(), again.buffers(), strict=True):
        assert torch.equal(one, other), key
