"""Which layers are computed in float8, and what is told of those that cannot be."""

from __future__ import annotations

from typing import Any

from setpoint.config import resolve
from setpoint.precision.config import Float8
from setpoint.precision.float8_fit import converted, layer_problems

LAYERS = {"output": (256, 32), "layers.0.up": (48, 32), "layers.0.router.up": (40, 32)}


def told(layers: dict[str, tuple[int, int]], **fields: Any) -> list[str]:
    found = layer_problems(resolve(Float8(**fields)), layers)
    return [f"{problem.path}: {problem.message}" for problem in found]


def test_layers_are_searched_by_name() -> None:
    assert converted(resolve(Float8()), LAYERS) == ["layers.0.up"]
    assert converted(resolve(Float8(skip=("^layers",))), LAYERS) == ["output"]
    assert converted(resolve(Float8(skip=())), LAYERS) == [*LAYERS]


def test_what_does_not_fit() -> None:
    assert told(LAYERS) == []  # of the patterns it has by default, one matches nothing
    assert told(LAYERS, skip=("^output$", "router")) == []
    assert told(LAYERS, skip=("router", "ruoter")) == [
        "skip.1: matches none of the model's linear layers"
    ]
    assert told(LAYERS, skip=("^output$",)) == [
        ": multiplies matrices whose sides are a multiple of 16, and layers.0.router.up is 40 x 32"
    ]
    odd = {"a": (16, 8), "b": (16, 16), "c": (24, 16), "d": (8, 8)}
    assert told(odd)[0].endswith("and a is 16 x 8, and of 2 other layers")
    assert told({"output": (16, 16)}) == [
        ": finds no linear layer: the model has none that skip does not match"
    ]
