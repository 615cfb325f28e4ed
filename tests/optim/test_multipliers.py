import copy

import pytest
import torch
from torch import nn

from setpoint.config import SetpointError, resolve
from setpoint.config.foreign.partial import partial
from setpoint.optim.config import AdamW
from setpoint.optim.multipliers import apply_multipliers


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 8), nn.LayerNorm(8), nn.Linear(8, 5))


def built(model: nn.Module, multipliers: dict[str, float]) -> torch.optim.Optimizer:
    optimizer = resolve(AdamW(weight_decay=0.3)).build(parameters=model.named_parameters())
    apply_multipliers(optimizer, model.named_parameters(), multipliers)
    return optimizer


def test_each_group_has_one_multiplier_and_keeps_its_options():
    groups = built(network(), {"0.weight": 0.5, "2.bias": 0.5}).param_groups
    found = {group["name"]: group for group in groups}
    assert {name: group["param_names"] for name, group in found.items()} == {
        "decay x 0.5": ["0.weight"],
        "decay": ["2.weight"],
        "no_decay": ["1.weight", "1.bias"],
        "no_decay x 0.5": ["2.bias"],
    }
    assert [group["lr_multiplier"] for group in groups] == [0.5, 1.0, 1.0, 0.5]
    assert [group["weight_decay"] for group in groups] == [0.3, 0.3, 0.0, 0.0]
    assert all(len(group["params"]) == len(group["param_names"]) for group in groups)


@pytest.mark.parametrize("multipliers", [{}, {"0.weight": 1.0}])
def test_without_multipliers_the_groups_stay_as_they_are(multipliers):
    plain = resolve(AdamW(weight_decay=0.3)).build(parameters=network().named_parameters())
    state = built(network(), multipliers).state_dict()
    assert state == plain.state_dict()
    assert "lr_multiplier" not in state["param_groups"][0]


def test_a_name_that_is_not_there_is_refused():
    with pytest.raises(SetpointError, match=r"not there: 2\.wait"):
        built(network(), {"2.wait": 0.5})


def test_an_optimizer_of_torchs_own_without_names():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    apply_multipliers(optimizer, model.named_parameters(), {"2.weight": 0.0})
    before = copy.deepcopy(dict(model.named_parameters()))
    model(torch.tensor([1, 2])).pow(2).sum().backward()
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * group["lr_multiplier"]
    optimizer.step()
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == before.keys() - {"2.weight"}


def test_an_imported_optimizer():
    model = network()
    section = resolve(partial(torch.optim.Adagrad, lr=0.1))
    optimizer = section(list(model.named_parameters()))
    apply_multipliers(optimizer, model.named_parameters(), {"0.weight": 0.25})
    assert [group["lr_multiplier"] for group in optimizer.param_groups] == [0.25, 1.0]
