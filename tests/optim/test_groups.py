import torch
from torch import nn

from setpoint.config import resolve
from setpoint.optim.config import AdamWConfig, Group, SGDConfig
from setpoint.optim.grouping import parameter_groups
from setpoint.shapes.protocols import Parameter


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 8), nn.LayerNorm(8), nn.Linear(8, 5))


def trained(model: nn.Module) -> list[Parameter]:
    kinds = ("embedding", "norm", "norm", "matrix", "bias")
    return [
        Parameter(name, tuple(tensor.shape), kind, tensor=tensor)
        for (name, tensor), kind in zip(model.named_parameters(), kinds, strict=True)
    ]


def test_groups_are_in_the_form_of_torch():
    model = network()
    groups = parameter_groups(resolve(AdamWConfig(weight_decay=0.3)), trained(model))
    assert [sorted(group) for group in groups] == [["name", "params", "weight_decay"]] * 2
    assert [group["name"] for group in groups] == ["decay", "no_decay"]
    assert [name for name, _ in groups[0]["params"]] == ["0.weight", "2.weight"]
    assert groups[1]["params"][0][1] is model[1].weight
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    assert optimizer.param_groups[1]["param_names"] == ["1.weight", "1.bias", "2.bias"]
    assert optimizer.param_groups[0]["weight_decay"] == 0.3


def test_multipliers_and_options():
    groups = [Group(pattern="^2", lr_multiplier=0.1, options={"betas": [0.5, 0.6], "eps": 1e-3})]
    made = parameter_groups(resolve(AdamWConfig(groups=groups)), trained(network()))
    assert "lr_multiplier" not in made[0]
    assert made[2]["lr_multiplier"] == 0.1
    assert (made[2]["betas"], made[2]["eps"]) == ((0.5, 0.6), 1e-3)


def test_frozen_parameters_are_left_out():
    model = network()
    model[0].weight.requires_grad_(False)
    (group, _) = parameter_groups(resolve(AdamWConfig()), trained(model))
    assert [name for name, _ in group["params"]] == ["2.weight"]


def test_groups_learn_as_those_that_are_written_out_by_hand():
    section = SGDConfig(
        lr=0.1,
        weight_decay=0.2,
        momentum=0.5,
        groups=[
            Group(pattern="^0", lr_multiplier=0.5, options={"momentum": 0.9}),
            Group(pattern="norm|^1", weight_decay_multiplier=2.0),
        ],
    )
    ours, theirs = network(), network()
    config = resolve(section)
    optimizer = config.build(parameters=parameter_groups(config, trained(ours)))
    oracle = torch.optim.SGD(
        [
            {"params": [theirs[0].weight], "lr": 0.05, "momentum": 0.9, "weight_decay": 0.2},
            {"params": list(theirs[1].parameters()), "weight_decay": 0.4},
            {"params": [theirs[2].weight], "weight_decay": 0.2},
            {"params": [theirs[2].bias], "weight_decay": 0.0},
        ],
        lr=0.1,
        momentum=0.5,
    )
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * group.get("lr_multiplier", 1.0)
    for _ in range(5):
        for model, each in ((ours, optimizer), (theirs, oracle)):
            model(torch.tensor([1, 2, 6])).pow(2).sum().backward()
            each.step()
            each.zero_grad()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
