"""Layers in float8 against the same in bf16. It runs on a CPU, too, where nobody would want it."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from setpoint.config import SetpointError, resolve
from setpoint.precision.config import Float8
from setpoint.precision.float8 import require_float8, use_float8, why_not
from setpoint.precision.weights import MasterWeights, cast_parameters

from ..model.small import small_model

CPU, GPU = torch.device("cpu"), torch.device("cuda")
RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="needs the package torchao"
)


def model_of(**changes: Any) -> Any:
    sizes = {"dim": 32, "heads": 4, "ffn_dim": 64}
    return small_model(**{**sizes, **changes}).train()


def learned(model: Any, updates: int = 30) -> list[float]:
    """The losses of updates on one text, which a model can learn by heart."""
    tokens = torch.randint(0, 37, (2, 33), generator=torch.Generator().manual_seed(0))
    weights = MasterWeights(model)
    optimizer = torch.optim.AdamW(weights.named_parameters(), lr=3e-3)
    losses: list[float] = []
    for _ in range(updates):
        logits: Tensor = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), tokens[:, 1:].flatten()
        )
        loss.backward()
        weights.grads_to_master()
        optimizer.step()
        weights.master_to_params()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


@torchao
@pytest.mark.parametrize("recipe", RECIPES)
def test_it_learns_as_bf16_does(recipe: Literal["tensorwise", "rowwise"]) -> None:
    plain, model = model_of(), model_of()
    for each in (plain, model):
        cast_parameters(each, torch.bfloat16)
    before = {name: id(p) for name, p in model.named_parameters()}
    use_float8(resolve(Float8(recipe=recipe)), model)
    assert [n for n, part in model.named_modules() if type(part).__name__ == "Float8Linear"] == [
        name for name, part in plain.named_modules()
        if isinstance(part, torch.nn.Linear) and name != "output"
    ]  # fmt: skip
    assert {name: id(p) for name, p in model.named_parameters()} == before
    assert type(model.output).__name__ == "Output"
    x = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.no_grad():
        wanted, found = (each.layers["0"].feed_forward.up(x).float() for each in (plain, model))
    error = float((found - wanted).norm() / wanted.norm())
    assert 0.01 < error < 0.06, error  # of numbers with three binary digits behind the point
    ours, theirs = learned(model), learned(plain)
    assert theirs[-1] < 0.1 * theirs[0]
    assert abs(ours[-1] - theirs[-1]) < 0.01 * theirs[0], (ours[-1], theirs[-1])


@torchao
def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(SetpointError, match=r"precision.float8: multiplies .* is 40 x 32"):
        use_float8(resolve(Float8()), model_of(ffn_dim=40))
    with pytest.raises(SetpointError, match=r"precision.float8.skip.0: matches none of"):
        use_float8(resolve(Float8(skip=("nothing",))), model_of())


def test_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    assert why_not(CPU) == "needs a GPU of Ada's or Hopper's age or newer, and the device is cpu"
    for capability in ((8, 9), (9, 0), (10, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        require_float8(GPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    with pytest.raises(SetpointError, match=r"compute capability 8.9 or more.* A100 has 8.0"):
        require_float8(GPU)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SetpointError, match=r"pip install 'setpoint\[float8\]'"):
        require_float8(GPU)
