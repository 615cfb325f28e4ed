"""A component of the user's own as the model, with nothing but a forward that takes tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from setpoint.config import SetpointError, field, resolve
from setpoint.config.component_sections import partial
from setpoint.model.build import build_model, skeleton
from setpoint.model.config import LayerNormConfig, ModelConfig, TransformerConfig
from setpoint.model.moe.config import MoE
from setpoint.shapes.outcome import Projection
from setpoint.train.config import Job

from ..support.snapshots import refused
from ..support.variants import forget, known
from .pretrained.ours import SMALL
from .small import VOCAB


class Bigram(nn.Module):
    """A table of logits."""

    class Config(ModelConfig, type="bigram-of-a-test"):
        """A table of logits."""

        scale: float = field(default=1.0, gt=0)
        """What logits are multiplied by."""

    def __init__(self, config: Bigram.Config, *, vocab_size: int) -> None:
        super().__init__()
        self.scale = config.scale
        self.table = nn.Embedding(vocab_size, vocab_size)
        self.tried_in_training = False

    def forward(self, tokens: Tensor) -> Tensor:
        self.tried_in_training |= self.training
        return self.table(tokens) * self.scale


class Fixed(nn.Module):
    """One that knows its vocabulary itself."""

    class Config(ModelConfig, type="fixed-of-a-test"):
        """A table of logits for a fixed vocabulary."""

        size: int = VOCAB
        """Its vocabulary."""

    def __init__(self, config: Fixed.Config) -> None:
        super().__init__()
        self.table = nn.Embedding(config.size, config.size)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens)


class Broken(nn.Module):
    """One that cannot be built."""

    class Config(ModelConfig, type="broken-of-a-test"):
        """Cannot be built."""

    def __init__(self, config: Broken.Config, **rest: Any) -> None:
        super().__init__()
        raise KeyError(sorted(rest))


class Argued(nn.Module):
    """One whose forward takes more than tokens."""

    class Config(ModelConfig, type="argued-of-a-test"):
        """Takes more than tokens."""

    def __init__(self, config: Argued.Config) -> None:
        super().__init__()

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return tokens * mask


class Headless(nn.Module):
    """One that says that it takes a head, and does not."""

    supports_head = True

    class Config(ModelConfig, type="headless-of-a-test"):
        """Takes no head."""

    def __init__(self, config: Headless.Config, *, vocab_size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens)


class Handing(nn.Module):
    """One that gives what its head returns, and no `Outcome`."""

    supports_head = True

    class Config(ModelConfig, type="handing-of-a-test"):
        """Gives no outcome."""

    def __init__(self, config: Handing.Config, *, vocab_size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, 4)
        self.output = nn.Linear(4, vocab_size, bias=False)

    def forward(self, tokens: Tensor, head: Any = None) -> Tensor:
        hidden = self.table(tokens)
        if head is None:
            return self.output(hidden)
        return head(hidden, Projection(self.output.weight, len(self.output.weight)))


class Nothing:
    """No module."""

    class Config(ModelConfig, type="nothing-of-a-test"):
        """No module."""

    def __init__(self, config: Nothing.Config) -> None:
        self.config = config


OWN = forget(ModelConfig, __name__)


@pytest.fixture(autouse=True)
def own_variants() -> Iterator[None]:
    """The models of this file are known in its tests only."""
    with known(ModelConfig, OWN):
        yield


def build(section: ModelConfig) -> Any:
    section.max_sequence_length = 8
    return build_model(resolve(section), VOCAB)


def test_a_class_with_a_nested_config():
    model = build(Bigram.Config(scale=2.0))
    assert isinstance(model, Bigram)
    assert model(torch.zeros(3, 5, dtype=torch.int64)).shape == (3, 5, VOCAB)
    assert model.training


def test_it_gets_the_vocabulary_only_where_it_takes_it():
    assert isinstance(build(Fixed.Config()), Fixed)


def test_trying_it_draws_no_random_numbers_and_does_not_train():
    torch.manual_seed(1)
    nn.Embedding(VOCAB, VOCAB)
    expected = torch.rand(())
    torch.manual_seed(1)
    assert not build(Bigram.Config()).tried_in_training
    assert torch.rand(()) == expected


@pytest.mark.parametrize("module", [Fixed, Broken, Handing, Nothing])
def test_what_is_no_language_model(module: Any):
    with refused():
        build(module.Config(**{"size": 5} if module is Fixed else {}))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Argued, r"cannot be called with \(B, S\) int64 tokens: TypeError: .*mask"),
        (Headless, r"supports_head = True but cannot be called with a head.*: TypeError"),
    ],
)
def test_a_model_that_takes_other_arguments(module: Any, words: str):
    with pytest.raises(SetpointError, match=words):  # with a line of PyTorch
        build(module.Config())


class Bag(nn.Module):
    """A model of the user's own."""

    def __init__(self, vocab_size: int, max_sequence_length: int, dim: int = 4) -> None:
        super().__init__()
        self.longest = max_sequence_length
        self.embedding = nn.Embedding(vocab_size, dim)
        self.output = nn.Linear(dim, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.embedding(tokens))


def build_imported(target: Any, **arguments: Any) -> nn.Module:
    section: Any = partial(target, **arguments)
    return resolve(Job(model=section)).model.build(vocab_size=257)


def test_it_gets_what_it_takes() -> None:
    model: Any = build_imported(Bag, dim=6)
    assert model.longest == Job().batch.sequence_length
    assert model.embedding.weight.shape == (257, 6)
    assert model.training


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "experts": {"moe": MoE(experts=4)},
    "unpacked experts": {"moe": MoE(experts=4, packed=False, shared_experts=1)},
    "learned": {"positions": "learned", "norm": LayerNormConfig(), "activation": "gelu"},
}


@pytest.mark.parametrize("case", CASES)
def test_it_has_the_shapes_of_the_model_and_no_memory(case: str) -> None:
    config = resolve(TransformerConfig(**{**SMALL, **CASES[case]}))
    bare = skeleton(config, 20)
    built = config.build(vocab_size=20)
    shapes = {name: tensor.shape for name, tensor in built.state_dict().items()}
    assert {name: tensor.shape for name, tensor in bare.state_dict().items()} == shapes
    assert all(tensor.is_meta for tensor in bare.state_dict().values())
