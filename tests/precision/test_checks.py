"""Checks of `[precision]`: the layers computed in float8, and fp16 without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from setpoint.config import resolve
from setpoint.precision.config import ON_A_GPU, Float8, converted, fp16_problems, layer_problems

LAYERS = {"output": (256, 32), "layers.0.up": (48, 32), "layers.0.router.up": (40, 32)}


def told(layers: dict[str, tuple[int, int]], **fields: Any) -> list[str]:
    found = layer_problems(resolve(Float8(**fields)), layers, {})
    return [f"{problem.path}: {problem.message}" for problem in found]


def test_layers_are_searched_by_name() -> None:
    assert converted(resolve(Float8()), LAYERS) == ["layers.0.up"]
    assert converted(resolve(Float8(skip=("^layers",))), LAYERS) == ["output"]
    assert converted(resolve(Float8(skip=())), LAYERS) == [*LAYERS]


def test_what_does_not_fit() -> None:
    assert told(LAYERS) == []  # of the patterns it has by default, one matches nothing
    assert told(LAYERS, skip=("^output$", "router")) == []
    assert told(LAYERS, skip=("router", "ruoter")) == [
        "skip.1: matches none of the 3 linear layers"
    ]
    assert told(LAYERS, skip=("^output$",)) == [
        ": multiplies matrices whose sides are a multiple of 16, and layers.0.router.up is 40 x 32"
    ]
    odd = {"a": (16, 8), "b": (16, 16), "c": (24, 16), "d": (8, 8)}
    assert told(odd)[0].endswith("and a is 16 x 8; 2 other layers do not fit either")
    assert told({"output": (16, 16)}) == [
        ": finds no linear layer: the model has none that skip does not match"
    ]


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_fp16_needs_a_gpu(device: str) -> None:
    (problem,) = fp16_problems("weights.dtype", "fp16", device)
    assert problem.path == "weights.dtype"
    assert problem.message.startswith("fp16 needs a GPU")
    assert problem.hint == ON_A_GPU


@pytest.mark.parametrize(("chosen", "device"), [("fp16", "cuda"), ("bf16", "cpu")])
def test_all_else_does_not(chosen: str, device: str) -> None:
    assert not list(fp16_problems("precision.compute", chosen, device))
