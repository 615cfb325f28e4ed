"""Layers are alike if one graph does for them."""

from __future__ import annotations

from torch import nn

from setpoint.compile.apply import signature_of
from setpoint.model.moe.config import MoE

from ..model.small import small_model
from .models import Layer, Printing


def test_a_layers_number_is_not_looked_at() -> None:
    assert signature_of(Layer(0)) == signature_of(Layer(1))


def test_what_makes_another_kind() -> None:
    frozen = Layer(0)
    frozen.inner.weight.requires_grad_(False)
    wider = Layer(0)
    wider.inner = nn.Linear(8, 9)
    patched = Layer(0)
    patched.forward = lambda x: x
    kinds = [Layer(0), Layer(0, scale=2.0), Printing(0), frozen, wider, patched]
    assert len({signature_of(layer) for layer in kinds}) == 6


def test_kinds_of_a_transformer() -> None:
    model = small_model(
        layers=4,
        attention_pattern=("sliding", "full"),
        sliding_window=4,
        moe=MoE(experts=2, every=4),
    )
    kinds = [signature_of(layer) for layer in model.layers.values()]
    assert kinds[0] == kinds[2]
    assert len(set(kinds)) == 3
