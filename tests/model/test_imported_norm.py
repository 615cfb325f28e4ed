from typing import Any

import pytest
import torch
from torch import Tensor, nn

from setpoint.config import SetpointError, resolve
from setpoint.config.components import partial
from setpoint.config.values.user_code import allow_imports
from setpoint.model.initialize import ConstantInit, initialize
from setpoint.model.transformer import Transformer

from .small import VOCAB, small_config

allow_imports(__name__)


class Scale(nn.Module):
    """A norm of the user's own: each vector over its largest component, times drawn weights."""

    def __init__(self, dim: int, eps: float, power: float = 1.0) -> None:
        super().__init__()
        self.eps, self.power = eps, power
        self.gain = nn.Parameter(torch.rand(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.abs().amax(-1, keepdim=True) + self.eps) ** self.power * self.gain


class Ruled(Scale):
    """One that says itself how it starts."""

    def initializers(self) -> dict[str, ConstantInit]:
        return {"gain": ConstantInit(3.0)}


def model_with(target: Any, **arguments: Any) -> Transformer:
    section: Any = partial(target, **arguments)
    return small_config(norm=section).build(vocab_size=VOCAB)


def test_it_gets_the_width_and_eps():
    model: Any = model_with(Scale, power=0.5)
    assert model.norm.gain.shape == (24,)
    assert model.norm.eps == 1e-5
    assert model.norm.power == 0.5
    ids = {id(layer.attention_norm.gain) for layer in model.layers.values()}
    assert len(ids) == 2, "each norm has parameters of its own"


def test_torchs_own_norms_take_the_width_by_their_name():
    model: Any = model_with(nn.LayerNorm, bias=False)
    assert model.norm.normalized_shape == (24,)
    assert model.norm.bias is None
    initialize(model, 1)
    assert model(torch.arange(6)[None]).shape == (1, 6, VOCAB)


def test_it_keeps_the_values_it_gives_itself_through_the_meta_device():
    torch.manual_seed(5)
    model: Any = model_with(Scale)
    drawn = model.norm.gain.detach().clone()
    initialize(model, 1)
    assert torch.equal(model.norm.gain, drawn)
    torch.manual_seed(5)
    section: Any = partial(Scale)
    with torch.device("meta"):
        other: Any = Transformer(small_config(norm=section), vocab_size=VOCAB)
    assert other.norm.gain.is_meta
    other.to_empty(device="cpu")
    initialize(other, 1)
    assert torch.equal(other.norm.gain, drawn)


def test_its_own_rules_come_first():
    model: Any = model_with(Ruled)
    initialize(model, 1)
    assert torch.equal(model.norm.gain, torch.full((24,), 3.0))


def test_making_it_draws_no_random_numbers():
    torch.manual_seed(1)
    expected = torch.rand(())
    torch.manual_seed(1)
    with torch.device("meta"):
        model_with(Scale)
    assert torch.equal(torch.rand(()), expected)


class Halves(nn.Module):
    """No norm: it changes the shape."""

    def forward(self, x: Tensor) -> Tensor:
        return x[..., ::2]


class Tokens(nn.Module):
    """No norm: it takes two arguments."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Halves, r"gives \(1, 2, 12\) for vectors of shape \(1, 2, 24\)"),
        (Tokens, r"cannot be called with \(\.\.\., 24\) vectors: TypeError"),
        (dict, "makes a dict; it must make a torch module"),
    ],
)
def test_what_is_no_norm(target: Any, words: str):
    with pytest.raises(SetpointError, match=words):
        model_with(target)


def test_an_argument_that_the_model_hands_over_is_refused():
    section: Any = partial(nn.LayerNorm, eps=0.1)
    with pytest.raises(SetpointError, match="eps"):
        resolve(small_config(norm=section)).build(vocab_size=VOCAB)
