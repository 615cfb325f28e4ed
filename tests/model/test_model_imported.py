from typing import Any

import pytest
import torch
from torch import Tensor, nn

from setpoint.config import SetpointError, resolve
from setpoint.config.components import partial
from setpoint.train.config import Job


class Bag(nn.Module):
    """A model of the user's own."""

    def __init__(self, vocab_size: int, max_sequence_length: int, dim: int = 4) -> None:
        super().__init__()
        self.longest = max_sequence_length
        self.embedding = nn.Embedding(vocab_size, dim)
        self.output = nn.Linear(dim, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.embedding(tokens))


class Narrow(nn.Module):
    """Gives the wrong shape, whatever it is told."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.float()


def build(target: Any, **arguments: Any) -> nn.Module:
    section: Any = partial(target, **arguments)
    return resolve(Job(model=section)).model.build(vocab_size=257)


def test_it_gets_what_it_takes() -> None:
    model: Any = build(Bag, dim=6)
    assert model.longest == Job().batch.sequence_length
    assert model.embedding.weight.shape == (257, 6)
    assert model.training


def test_trying_it_draws_no_random_numbers() -> None:
    torch.manual_seed(1)
    Bag(257, 1)
    expected = torch.rand(())
    torch.manual_seed(1)
    build(Bag)
    assert torch.rand(()) == expected


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Narrow, r"a tensor of shape \(1, 2\) .* it must give logits of shape \(1, 2, 257\)"),
        (dict, "makes a dict; it must make a torch module"),
        (nn.Flatten, r"a tensor of shape \(1, 2\)"),
        (nn.Tanh, "cannot be called with|gives a tensor"),
    ],
)
def test_what_is_no_language_model(target: Any, words: str) -> None:
    with pytest.raises(SetpointError, match=words):
        build(target)
