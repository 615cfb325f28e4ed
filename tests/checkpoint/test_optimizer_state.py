"""The state of optimizers, to the bit."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from setpoint.checkpoint.loading import load_weights
from setpoint.checkpoint.optimizer_state import (
    capture_optimizer,
    join_tensors,
    options_of,
    restore_optimizer,
    split_tensors,
)
from setpoint.checkpoint.store import CheckpointStore

from ..support.snapshots import refused
from .stored import load

Factory = Callable[[Any], Optimizer]

FACTORIES: dict[str, Factory] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1 / 3, betas=(0.9, 0.95), fused=False),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=0.1 / 3, betas=(0.9, 0.95), fused=True),
    "adamw_amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "adamw_tensor_lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.02), fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "sgd_plain": lambda p: torch.optim.SGD(p, lr=0.1),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1),
}


class Model(nn.Module):
    """Tied weights, a frozen parameter, and one that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embedding.weight
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.embedding(tokens)))


def groups(model: Model) -> list[dict[str, Any]]:
    free = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in free if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in free if p.dim() < 2], "weight_decay": 0.0},
    ]


def train(model: Model, optimizer: Optimizer, steps: Iterable[int]) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(16, (4, 6), generator=generator)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            if not isinstance(group["lr"], Tensor):
                group["lr"] = 0.1 / (step + 3)
        optimizer.step()


def new(factory: Factory, seed: int) -> tuple[Model, Optimizer]:
    torch.manual_seed(seed)
    model = Model()
    return model, factory(groups(model))


@pytest.mark.parametrize("name", FACTORIES)
def test_continues_bit_for_bit(tmp_path: Path, name: str) -> None:
    model, optimizer = new(FACTORIES[name], 0)
    built = options_of(optimizer)
    train(model, optimizer, range(4))
    tensors, state = capture_optimizer(optimizer, model.named_parameters(), built)
    store = CheckpointStore(tmp_path)
    store.save(4, {"model": model.state_dict(), "optimizer": tensors}, {"optimizer": state})
    train(model, optimizer, range(4, 9))

    other, resumed = new(FACTORIES[name], 1)
    loaded = load(store.root, "latest")
    load_weights(other, loaded)
    named = other.named_parameters()
    restore_optimizer(resumed, named, loaded.tensors["optimizer"], loaded.state["optimizer"])
    train(other, resumed, range(4, 9))
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    end, end_state = capture_optimizer(optimizer, model.named_parameters(), built)
    again, again_state = capture_optimizer(resumed, other.named_parameters(), built)
    assert end_state == again_state
    assert end.keys() == again.keys()
    for key in end:
        assert end[key].dtype == again[key].dtype
        assert torch.equal(end[key], again[key]), key


def test_names_and_options() -> None:
    model, optimizer = new(FACTORIES["adamw_fused"], 0)
    named = list(model.named_parameters())
    fresh, none = capture_optimizer(optimizer, named, options_of(optimizer))
    train(model, optimizer, range(1))
    tensors, state = capture_optimizer(optimizer, named, options_of(optimizer))
    assert sorted(tensors) == [
        f"{name}/{key}"
        for name in ("embedding.weight", "norm.bias", "norm.weight")
        for key in ("exp_avg", "exp_avg_sq", "step")
    ]
    assert state["type"] == "AdamW"
    assert [g["parameters"] for g in state["groups"]] == [
        ["embedding.weight"],
        ["unused", "norm.weight", "norm.bias"],
    ]
    turned = groups(model)
    turned[1]["params"].reverse()  # the order in a group does not matter
    other = FACTORIES["adamw_fused"](turned)
    restore_optimizer(other, named, tensors, state)
    for parameter, value in optimizer.state.items():
        assert torch.equal(other.state[parameter]["exp_avg"], value["exp_avg"])
    group = other.param_groups[0]
    assert group["betas"] == (0.9, 0.95) and isinstance(group["betas"], tuple)
    assert group["weight_decay"] == 0.1
    assert fresh == {}  # of an optimizer without a step
    restore_optimizer(optimizer, named, fresh, none)
    assert not optimizer.state_dict()["state"]


def test_named_groups_of_torch() -> None:
    model, _ = new(FACTORIES["adamw"], 0)
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(named)
    train(model, optimizer, range(1))
    tensors, state = capture_optimizer(optimizer, model.named_parameters(), options_of(optimizer))
    assert state["groups"][0]["counts"] == {}
    restore_optimizer(optimizer, model.named_parameters(), tensors, state)
    assert optimizer.param_groups[0]["param_names"] == [n for n, _ in named]


def test_state_keeps_its_type_beside_a_bf16_parameter() -> None:
    class Wide(Optimizer):
        """Holds float32 averages of bfloat16 parameters, in containers too."""

        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                wide = torch.full_like(parameter, 1 / 3, dtype=torch.float32)
                self.state[parameter] = {"average": wide, "history": [wide.clone()], "n": 2}

    parameter = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = Wide([parameter], {"lr": 0.1})
    optimizer.step()
    tensors, state = capture_optimizer(optimizer, [("w", parameter)], options_of(optimizer))
    fresh = Wide([parameter], {"lr": 0.2})
    restore_optimizer(fresh, [("w", parameter)], tensors, state)
    loaded = fresh.state[parameter]
    assert loaded["average"].dtype == torch.float32
    assert torch.equal(loaded["average"], torch.full((3,), 1 / 3))
    assert torch.equal(loaded["history"][0], torch.full((3,), 1 / 3))
    # Options are those that it was built with: the configuration owns them.
    assert loaded["n"] == 2 and fresh.param_groups[0]["lr"] == 0.2
    assert loaded["average"].data_ptr() != tensors["w/average"].data_ptr()


class Counting(Optimizer):
    """Counts in its groups, as schedule-free optimizers do, beside an option of its own."""

    def __init__(self, parameters: Any, lr: float = 0.1, momentum: float = 0.9) -> None:
        given = {"lr": lr, "momentum": momentum}
        super().__init__(parameters, {**given, "updates": 0, "most": torch.zeros(()), "idle": 0.5})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["updates"] += 1
            group["most"] += group["momentum"]
            group["lr"] = 7.0


def test_a_checkpoint_keeps_what_is_counted_and_no_options() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = Counting([weight])
    built = options_of(optimizer)
    optimizer.step()
    tensors, state = capture_optimizer(optimizer, [("w", weight)], built)
    (entry,) = state["groups"]
    assert entry["counts"] == {"updates": 1, "most": {"$tensor": "group 0/most"}}
    other = Counting([weight], lr=0.2, momentum=0.5)
    restore_optimizer(other, [("w", weight)], tensors, state)
    (group,) = other.param_groups
    assert (group["lr"], group["momentum"], group["idle"]) == (0.2, 0.5, 0.5)
    assert (group["updates"], float(group["most"])) == (1, pytest.approx(0.9))
    assert "name" not in group


@pytest.mark.parametrize("fused", [False, True])
def test_a_matrix_that_lies_column_by_column_goes_on_bit_for_bit(
    fused: bool, tmp_path: Path
) -> None:
    """Files hold rows, and the fused kernel takes the memory of weight and state side by side."""

    def made() -> tuple[nn.Parameter, Optimizer]:
        weight = nn.Parameter(torch.arange(24.0).reshape(6, 4).t() / 24)
        return weight, torch.optim.AdamW([weight], lr=0.1, fused=fused, foreach=False)

    def go(weight: nn.Parameter, optimizer: Optimizer) -> None:
        for _ in range(3):
            weight.grad = (weight.detach() * torch.arange(6.0)).sin()
            optimizer.step()

    weight, optimizer = made()
    go(weight, optimizer)
    tensors, state = capture_optimizer(optimizer, [("weight", weight)], options_of(optimizer))
    store = CheckpointStore(tmp_path)
    store.save(3, {"optimizer": tensors}, {"optimizer": state})
    loaded = store.load_newest()
    assert loaded is not None
    twin, resumed = made()
    with torch.no_grad():
        twin.copy_(weight)
    held, content = loaded.tensors["optimizer"], loaded.state["optimizer"]
    restore_optimizer(resumed, [("weight", twin)], held, content)
    go(weight, optimizer)
    go(twin, resumed)
    assert torch.equal(twin, weight)


def test_differences_are_refused_by_name() -> None:
    model, optimizer = new(FACTORIES["adamw"], 0)
    train(model, optimizer, range(1))
    named = list(model.named_parameters())
    tensors, state = capture_optimizer(optimizer, named, options_of(optimizer))

    sgd = FACTORIES["sgd"](groups(model))
    with refused():
        restore_optimizer(sgd, named, tensors, state)
    one_group = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    with refused():
        restore_optimizer(one_group, named, tensors, state)
    renamed = [(name.replace("norm", "ln"), parameter) for name, parameter in named]
    with refused():
        restore_optimizer(optimizer, renamed, tensors, state)
    with refused():
        capture_optimizer(optimizer, named[1:], options_of(optimizer))


def test_round_trip_through_json() -> None:
    value = {
        "betas": (0.9, 0.95),
        "blocks": [torch.ones(2), {"inner": torch.zeros(1)}, None],
        "pair": (torch.tensor(1), "text"),
        "flag": True,
    }
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(split_tensors(value, "group 0", tensors))
    assert set(tensors) == {"group 0/blocks/0", "group 0/blocks/1/inner", "group 0/pair/0"}
    again = join_tensors(json.loads(text), tensors)
    assert again["betas"] == (0.9, 0.95)
    assert isinstance(again["pair"], tuple)
    assert torch.equal(again["blocks"][0], torch.ones(2))
    assert again["blocks"][0].data_ptr() != value["blocks"][0].data_ptr()
    assert again["blocks"][2] is None and again["flag"] is True


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": {1, 2}}, "state/a is a set"),
        ({"a": {1: 2}}, "state/a has the key 1"),
        ({"$tensor": "x"}, r"has the key '\$tensor'"),
        ([lambda: None], "state/0 is a function"),
    ],
)
def test_what_cannot_be_saved_is_named(value: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        split_tensors(value, "state", {})
