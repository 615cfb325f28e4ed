from typing import Any

import pytest
import torch
from torch import nn

from setpoint.config import resolve
from setpoint.optim.config import AdamWConfig, Group, MuonConfig, SGDConfig
from setpoint.optim.grouping import (
    Gathered,
    gather,
    grouping_problems,
    keeps_decaying,
    multipliers_of,
    parameter_groups,
)
from setpoint.shapes.parameter import Parameter

from ..support.snapshots import refused

MODEL = (
    Parameter("embedding.weight", (9, 4), "embedding"),
    Parameter("layers.0.norm.weight", (4,), "norm"),
    Parameter("layers.0.up.weight", (8, 4), "matrix", 0.5),
    Parameter("layers.0.up.bias", (8,), "bias"),
    Parameter("layers.1.norm.weight", (4,), "norm"),
    Parameter("layers.1.up.weight", (8, 4), "matrix", 0.5),
    Parameter("scale", (4,), "vector"),
    Parameter("output.weight", (9, 4), "output"),
)
SAME_RATE = tuple(each._replace(rate=1.0) for each in MODEL)


def names(groups: list[Gathered]) -> dict[str, list[str]]:
    return {group.name: [each.name for each in group.parameters] for group in groups}


def test_without_rules_there_are_two():
    groups = gather(resolve(AdamWConfig(weight_decay=0.3)), SAME_RATE)
    matrices = ["embedding.weight", "layers.0.up.weight", "layers.1.up.weight", "output.weight"]
    rest = [each.name for each in MODEL if each.name not in matrices]
    assert names(groups) == {"decay": matrices, "no_decay": rest}
    assert [group.weight_decay for group in groups] == [0.3, 0.0]
    assert [group.lr_multiplier for group in groups] == [1.0, 1.0]
    assert [group.options for group in groups] == [{}, {}]


def test_what_the_model_itself_multiplies_rates_by():
    groups = gather(resolve(AdamWConfig()), MODEL)
    assert names(groups) == {
        "decay": ["embedding.weight", "output.weight"],
        "decay x 0.5": ["layers.0.up.weight", "layers.1.up.weight"],
        "no_decay": ["layers.0.norm.weight", "layers.0.up.bias", "layers.1.norm.weight", "scale"],
    }


def test_the_first_group_that_matches_takes_a_parameter():
    config = AdamWConfig(
        weight_decay=0.2,
        groups=[
            Group(pattern=r"^layers\.0\.up", lr_multiplier=3.0),
            Group(pattern="up", weight_decay_multiplier=0.5, options={"betas": [0.8, 0.9]}),
        ],
    )
    groups = gather(resolve(config), MODEL)
    assert names(groups) == {
        "decay": ["embedding.weight", "output.weight"],
        "no_decay": ["layers.0.norm.weight", "layers.1.norm.weight", "scale"],
        r"/^layers\.0\.up/ decay x 1.5": ["layers.0.up.weight"],
        r"/^layers\.0\.up/ no_decay x 3": ["layers.0.up.bias"],
        "/up/ x 0.5": ["layers.1.up.weight"],
    }
    assert [group.weight_decay for group in groups] == [0.2, 0.0, 0.2, 0.0, 0.1]
    assert [group.lr_multiplier for group in groups] == [1.0, 1.0, 1.5, 3.0, 0.5]
    assert groups[-1].options == {"betas": (0.8, 0.9)}


def test_no_decay_by_kind_and_by_pattern():
    config = resolve(AdamWConfig(no_decay=("embedding",), no_decay_patterns=("^output", r"\.1\.")))
    decaying = [each.name for each in SAME_RATE if keeps_decaying(config, each)]
    assert decaying == ["layers.0.norm.weight", "layers.0.up.weight", "layers.0.up.bias", "scale"]
    assert names(gather(config, SAME_RATE))["decay"] == decaying


def test_each_algorithm_has_groups_of_its_own():
    config = MuonConfig(lr=0.02, adamw_lr=0.01, adamw_patterns=(r"layers\.1",))
    groups = gather(resolve(config), SAME_RATE)
    assert names(groups) == {
        "adamw decay x 0.5": ["embedding.weight", "layers.1.up.weight", "output.weight"],
        "muon decay": ["layers.0.up.weight"],
        "adamw no_decay x 0.5": [
            "layers.0.norm.weight",
            "layers.0.up.bias",
            "layers.1.norm.weight",
            "scale",
        ],
    }


def problems(config) -> list[tuple[str, str]]:
    return [(found.path, found.message) for found in grouping_problems(config, MODEL)]


def test_patterns_that_match_nothing():
    config = resolve(
        MuonConfig(
            no_decay_patterns=("upp", "scale"),
            adamw_patterns=("embedding",),
            groups=[Group(pattern="embeding", lr_multiplier=2.0)],
        )
    )
    found = {problem.path: problem for problem in grouping_problems(config, MODEL)}
    everything = "matches none of the 8 parameters that are trained"
    assert {path: problem.message for path, problem in found.items()} == {
        "no_decay_patterns.0": everything,
        "adamw_patterns.0": "matches none of the 2 parameters of kind matrix that are trained",
        "groups.0.pattern": everything,
    }
    assert found["groups.0.pattern"].hint == "Did you mean embedding?"
    # Layers are alike: one of them is named.
    assert found["groups.0.pattern"].valid == (
        "embedding.weight", "layers.0.norm.weight", "layers.0.up.weight", "layers.0.up.bias",
        "scale", "output.weight",
    )  # fmt: skip


def test_a_group_that_others_leave_nothing_to():
    config = AdamWConfig(
        groups=[
            Group(pattern="up", lr_multiplier=2.0),
            Group(pattern="scale", lr_multiplier=2.0),
            Group(pattern=r"\.bias|scale", lr_multiplier=3.0),
        ]
    )
    (problem,) = grouping_problems(config, MODEL)
    assert problem.path == "groups.2.pattern"
    words = (
        "has no effect: earlier groups match everything it matches, 2 of 8 parameters that are "
        "trained"
    )
    assert problem.message == words
    assert problem.also == ("groups.0.pattern", "groups.1.pattern")


def test_a_group_that_sets_nothing_keeps_its_parameters_from_others():
    groups = [Group(pattern="norm"), Group(pattern="layers", lr_multiplier=2.0)]
    assert problems(AdamWConfig(groups=groups)) == []
    groups = [Group(pattern="norm"), Group(pattern="up", lr_multiplier=2.0)]
    ((path, message),) = problems(AdamWConfig(groups=groups))
    assert path == "groups.0.pattern"
    assert message.startswith("has no effect: the group sets nothing")


def test_what_cannot_be_gathered():
    with refused():
        gather(resolve(AdamWConfig()), ())


def test_matrices_the_other_way_round_have_groups_of_their_own() -> None:
    turned = Parameter("turned.weight", (4, 8), "matrix", inputs_first=True)
    groups = gather(resolve(MuonConfig()), (*SAME_RATE, turned))
    (group,) = [each for each in groups if turned in each.parameters]
    assert group.name == "muon (in, out) decay"
    assert group.options == {"algorithm": "muon", "inputs_first": True}
    (plain,) = [each for each in groups if each.name == "muon decay"]
    assert plain.options == {"algorithm": "muon"}
    # Others do not ask.
    assert gather(resolve(AdamWConfig()), (turned,))[0].options == {}


@pytest.mark.parametrize(
    ("pattern", "options", "unread"),
    [
        ("embedding", {"momentum": 0.5, "betas": [0.5, 0.9]}, ["momentum"]),
        (r"up\.weight", {"betas": [0.5, 0.9], "eps": 1e-5, "steps": 3}, ["betas", "eps"]),
        ("up", {"momentum": 0.5, "betas": [0.5, 0.9]}, []),
        (r"up\.weight", {"nesterov": False, "adjust_lr": "match_rms_adamw"}, []),
    ],
)
def test_options_that_nothing_in_the_group_reads(
    pattern: str, options: dict[str, Any], unread: list[str]
) -> None:
    config = resolve(MuonConfig(groups=[Group(pattern=pattern, options=options)]))
    found = list(grouping_problems(config, MODEL))
    assert [each.path for each in found] == [f"groups.0.options.{name}" for name in unread]
    if unread:
        assert "has no effect" in found[0].message and found[0].valid


def test_muon_needs_a_matrix() -> None:
    config = resolve(MuonConfig(adamw_patterns=("up",)))
    (problem,) = grouping_problems(config, MODEL)
    assert problem.path == "adamw_patterns"
    assert problem.message == (
        "leaves no parameters for Muon: 2 of 8 trained parameters are of kind matrix, and AdamW "
        "trains "
        "all of these"
    )
    assert not list(grouping_problems(resolve(MuonConfig(adamw_patterns=(r"layers\.1",))), MODEL))
    (problem,) = grouping_problems(resolve(MuonConfig()), MODEL[:2])
    assert "none of 2 trained parameters is of kind" in problem.message


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 8), nn.LayerNorm(8), nn.Linear(8, 5))


def trained(model: nn.Module) -> list[Parameter]:
    kinds = ("embedding", "norm", "norm", "matrix", "bias")
    return [
        Parameter(name, tuple(tensor.shape), kind, tensor=tensor)
        for (name, tensor), kind in zip(model.named_parameters(), kinds, strict=True)
    ]


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


class Slow(nn.Linear):
    """Knows how fast it learns."""

    def __init__(self, rates: dict[str, float]) -> None:
        super().__init__(2, 2)
        self.rates = rates

    def learning_rate_multipliers(self) -> dict[str, float]:
        return self.rates


def test_rates_that_a_model_says_itself():
    assert multipliers_of(nn.Linear(2, 2)) == {}
    assert multipliers_of(Slow({"bias": 0.5})) == {"bias": 0.5}
    with refused():
        multipliers_of(Slow({"wait": 0.5}))
