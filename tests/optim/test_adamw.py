import copy

import pytest
import torch
from torch import nn

from setpoint.config import SetpointError, resolve
from setpoint.optim.config import AdamW


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 8), nn.LayerNorm(8), nn.Linear(8, 5))


def build(model: nn.Module, **fields) -> torch.optim.Optimizer:
    return resolve(AdamW(**fields)).build(parameters=model.named_parameters())


def backward(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(7, (4,), generator=generator)
    model(tokens).pow(2).sum().backward()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"lr": 0.05, "weight_decay": 0.5, "betas": (0.5, 0.7), "eps": 1e-2},
        {"lr": 0.01, "weight_decay": 0.0},
    ],
)
def test_steps_against_torch_without_fusion(fields):
    ours, theirs = network(), network()
    optimizer = build(ours, **fields)
    config = AdamW(**fields)
    decay = [p for p in theirs.parameters() if p.ndim >= 2]
    rest = [p for p in theirs.parameters() if p.ndim < 2]
    oracle = torch.optim.AdamW(
        [
            {"params": decay, "weight_decay": config.weight_decay},
            {"params": rest, "weight_decay": 0.0},
        ],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=False,
        foreach=False,
    )
    for step in range(20):
        for each, model in ((optimizer, ours), (oracle, theirs)):
            for group in each.param_groups:
                group["lr"] = config.lr * (step + 1) / 20
            backward(model, step)
            each.step()
            each.zero_grad()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_first_step_by_hand():
    weight = nn.Parameter(torch.tensor([[2.0, -3.0]]))
    fields = {"lr": 0.1, "weight_decay": 0.5, "betas": (0.9, 0.99), "eps": 1e-8}
    optimizer = resolve(AdamW(**fields)).build(parameters=[("w", weight)])
    weight.grad = torch.tensor([[4.0, -0.01]])
    optimizer.step()
    # After one step both means equal the gradient, so the update is lr * sign(gradient).
    decayed = torch.tensor([[2.0, -3.0]]) * (1 - 0.1 * 0.5)
    torch.testing.assert_close(weight.data, decayed - torch.tensor([[0.1, -0.1]]))


def test_only_matrices_decay():
    model = network()
    optimizer = build(model, weight_decay=0.3)
    groups = {group["name"]: group for group in optimizer.param_groups}
    assert groups["decay"]["weight_decay"] == 0.3
    assert groups["no_decay"]["weight_decay"] == 0.0
    assert groups["decay"]["param_names"] == ["0.weight", "2.weight"]
    assert groups["no_decay"]["param_names"] == ["1.weight", "1.bias", "2.bias"]
    parameters = dict(model.named_parameters())
    for group in groups.values():
        held = zip(group["param_names"], group["params"], strict=True)
        assert all(parameters[name] is parameter for name, parameter in held)


def test_is_fused_on_the_cpu():
    assert all(group["fused"] for group in build(network()).param_groups)


def test_other_devices_leave_the_choice_to_torch():
    optimizer = build(network().to("meta"))
    assert all(not group["fused"] for group in optimizer.param_groups)


def test_frozen_parameters_are_left_out():
    model = network()
    model[0].weight.requires_grad_(False)
    names = [name for group in build(model).param_groups for name in group["param_names"]]
    assert "0.weight" not in names
    assert len(names) == 4


def test_no_empty_group():
    assert len(build(nn.Linear(3, 3, bias=False)).param_groups) == 1


def test_nothing_to_train():
    model = network().requires_grad_(False)
    with pytest.raises(SetpointError, match="nothing to train"):
        build(model)


def test_state_returns_exactly():
    model = network()
    optimizer = build(model)
    for step in range(3):
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad()
    twin = copy.deepcopy(model)
    restored = build(twin)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, net in ((optimizer, model), (restored, twin)):
        backward(net, 3)
        each.step()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)
