"""Optimizers that leave PyTorch's compiler alone do what PyTorch's do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from setpoint.optim import base, torch_optimizers

NAMES = ("AdamW", "SGD", "Adafactor")
PAIRS = [(getattr(torch_optimizers, name), getattr(torch.optim, name)) for name in NAMES]


@pytest.fixture(params=["torch._dynamo", "is.not.loaded"])
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the compiler loaded, and as if it were not."""
    import torch._dynamo  # noqa: F401 - the first of the two

    monkeypatch.setattr(base, "COMPILER", request.param)
    return request.param


def trained(cls: type[torch.optim.Optimizer]) -> tuple[torch.Tensor, dict[str, Any], list[bool]]:
    """A matrix after three steps over two groups, the state, and whether gradients were on."""
    torch.manual_seed(0)
    made: Any = cls
    matrix, vector = (torch.nn.Parameter(torch.randn(4, 3)) for _ in range(2))
    optimizer = made([matrix], lr=0.1)
    optimizer.add_param_group({"params": [vector], "lr": 0.2})
    seen: list[bool] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    for _ in range(3):
        (matrix * vector).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    other = made([matrix, vector], lr=0.1)
    state = optimizer.state_dict()
    state["param_groups"] = other.state_dict()["param_groups"]
    other.load_state_dict(state)
    assert torch.is_grad_enabled() and matrix.grad is None
    return matrix.detach(), other.state_dict(), seen


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("own", "of_torch"), PAIRS)
def test_steps_states_and_hooks_are_those_of_pytorch(own: Any, of_torch: Any) -> None:
    assert own.__name__ == of_torch.__name__  # which checkpoints name
    ours, theirs = trained(own), trained(of_torch)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert ours[2] == theirs[2] == [True] * 3


@pytest.mark.usefixtures("compiler")
def test_a_closure_has_gradients_and_the_update_has_none() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch_optimizers.SGD([weight], lr=0.1)

    def closure() -> torch.Tensor:
        loss = weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert weight.tolist() == pytest.approx([0.8, 0.8]) and weight.requires_grad
