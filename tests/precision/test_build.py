"""From the section to the model's format, the weights and the scaler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from setpoint.config import resolve
from setpoint.precision.config import LossScale, Precision
from setpoint.precision.mixed_precision import (
    MasterWeights,
    OptimizerParams,
    build_scaler,
    build_weights,
    convert_state,
    state_dtype,
    store_in,
)

BF16: dict[str, Any] = {"params": "bf16", "compute": "bf16"}


def section(**values: Any) -> Precision:
    return resolve(Precision(**values))


def test_the_format_of_the_weights() -> None:
    for values, dtype in (({}, torch.float32), (BF16, torch.bfloat16)):
        model = nn.Linear(3, 3).double()
        assert store_in(section(**values), model) == {}
        assert {p.dtype for p in model.parameters()} == {dtype}


def test_whose_weights_are_updated() -> None:
    for values, kind, held in (
        ({}, OptimizerParams, torch.float32),
        (BF16, OptimizerParams, torch.bfloat16),
        ({**BF16, "master": "fp32"}, MasterWeights, torch.float32),
    ):
        model = nn.Linear(3, 3)
        before = model.weight.detach().clone()
        full = store_in(section(**values), model)
        weights = build_weights(section(**values), model, full)
        assert type(weights) is kind
        assert {p.dtype for p in weights.parameters()} == {held}
        assert not full
        if kind is MasterWeights:
            assert torch.equal(dict(weights.named_parameters())["weight"], before)


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_the_format_of_sums(name: str) -> None:
    config = section(**BF16, reduce=name)
    model = nn.Linear(3, 3)
    build_weights(config, model, store_in(config, model))
    model(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
    assert model.weight.grad is not None
    assert model.weight.grad.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16}[name]


def test_the_format_of_the_state() -> None:
    assert state_dtype(section()) is None
    assert state_dtype(section(optimizer_state="bf16")) == torch.bfloat16


def test_a_state_of_other_formats_is_converted() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight])
    weight.grad = torch.full((3,), 0.1)
    optimizer.step()
    before = dict(optimizer.state[weight])
    for values, dtype in (({"optimizer_state": "bf16"}, torch.bfloat16), ({}, torch.float32)):
        convert_state(section(**values), optimizer)
        after = optimizer.state[weight]
        assert torch.equal(after["exp_avg"], before["exp_avg"].bfloat16().to(dtype))
        assert after["step"] is before["step"]


def test_of_a_foreign_state_only_what_followed_the_weights_is_converted() -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW([weight])
    table = torch.ones(2, 3)
    exact = torch.ones(3, dtype=torch.float64)
    optimizer.state[weight] = {"mean": torch.ones(3), "exact": exact, "table": table}
    others = {weight: torch.float32}
    convert_state(section(**BF16), optimizer, others)
    assert optimizer.state[weight]["mean"].dtype == torch.bfloat16
    assert optimizer.state[weight]["table"] is table
    # What was not in the format of its weight does not follow it now.
    assert optimizer.state[weight]["exact"] is exact
    convert_state(section(**BF16), optimizer)
    assert optimizer.state[weight]["table"].dtype == torch.bfloat16


def test_only_fp16_is_scaled() -> None:
    cpu = torch.device("cpu")
    assert not build_scaler(section(compute="bf16"), cpu).is_enabled()
    scaled = build_scaler(section(compute="fp16", loss_scale=LossScale(initial=32.0)), cpu)
    assert scaled.metrics()["loss_scale"] == 32.0


def test_bf16_is_one_model_sharded_or_not(run_module: Callable[[str], None]) -> None:
    run_module("tests.precision.sharded_compute")
