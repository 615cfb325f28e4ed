from typing import Any

import pytest
import torch
from torch import nn

from setpoint.config import ConfigError, ImportPath, SetpointError, resolve
from setpoint.config.component_sections import partial
from setpoint.config.composition import compose
from setpoint.optim.config import AdamWConfig, ImportedOptimizer, LionConfig, OptimizerConfig
from setpoint.optim.elementwise import Lion, foreach_groups
from setpoint.optim.optimizer import (
    GroupedOptimizer,
    build_optimizer,
    takes_flag,
    title_of,
)

from ..support.snapshots import refused
from ..support.variants import forget

SPARSE = ImportPath("torch.optim.SparseAdam", ("torch",))


def groups() -> list[dict[str, Any]]:
    weight = nn.Parameter(torch.ones(2, 2))
    return [{"name": "decay", "params": [("w", weight)], "weight_decay": 0.1}]


class Own(torch.optim.SGD):
    """Takes groups as they are."""

    class Config(OptimizerConfig, type="own_optimizer_of_a_test"):
        """One of somebody's own."""

    def __init__(self, config: OptimizerConfig, *, parameters: Any) -> None:
        super().__init__(parameters, lr=config.lr)


class Unpacking(Own):
    """Takes pairs."""

    class Config(OptimizerConfig, type="unpacking_optimizer_of_a_test"):
        """Another."""

    def __init__(self, config: OptimizerConfig, *, parameters: Any) -> None:
        super().__init__(config, parameters=[tensor for _, tensor in parameters])


class Other:
    """Is none."""

    class Config(OptimizerConfig, type="no_optimizer_of_a_test"):
        """None."""

    def __init__(self, config: OptimizerConfig, *, parameters: Any) -> None:
        del config, parameters


forget(OptimizerConfig, __name__)


def test_optimizers_of_setpoint() -> None:
    optimizer = build_optimizer(resolve(AdamWConfig(weight_decay=0.3)), groups())
    assert optimizer.param_groups[0]["weight_decay"] == 0.1
    lion = build_optimizer(resolve(LionConfig()), groups(), torch.bfloat16)
    parameter = lion.param_groups[0]["params"][0]
    parameter.grad = torch.ones(2, 2)
    lion.step()
    assert {value.dtype for value in lion.state[parameter].values()} == {torch.bfloat16}


def test_somebodys_own() -> None:
    optimizer = build_optimizer(resolve(Own.Config(lr=0.5)), groups())
    assert isinstance(optimizer, Own)
    assert optimizer.param_groups[0]["param_names"] == ["w"]


def test_what_cannot_be_used() -> None:
    with pytest.raises(SetpointError, match="cannot be built from PyTorch parameter groups: Value"):
        build_optimizer(resolve(Unpacking.Config()), groups())
    with refused():
        build_optimizer(resolve(Other.Config()), groups())


def test_what_an_optimizer_is_called_in_errors() -> None:
    assert title_of(resolve(AdamWConfig(lr=0.1))) is None
    own = title_of(resolve(Own.Config(lr=0.1)))
    assert own == f"optimizer.type = own_optimizer_of_a_test ({__name__}.Own)"
    imported = resolve(ImportedOptimizer(target=SPARSE, lr=0.1, weight_decay=0))
    assert title_of(imported) == "optimizer.target = torch.optim.SparseAdam"


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 2))


def section(target: str, **fields: Any) -> ImportedOptimizer:
    values = {"target": target, **fields}
    return compose(ImportedOptimizer, program=values).resolve()


def imported_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    named = list(model.named_parameters())
    return [
        {"name": "decay", "params": [p for p in named if p[1].ndim >= 2], "weight_decay": decay},
        {"name": "no_decay", "params": [p for p in named if p[1].ndim < 2], "weight_decay": 0.0},
    ]


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    data = torch.randn(16, 4, generator=torch.Generator().manual_seed(5))
    for _ in range(5):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("config", "plain"),
    [
        (
            section("torch.optim.Adagrad", lr=0.1, lr_decay=0.01, weight_decay=0.2),
            lambda imported_groups: torch.optim.Adagrad(imported_groups, lr=0.1, lr_decay=0.01),
        ),
        (
            section("torch.optim.SGD", lr=0.05, momentum=0.9, nesterov=True),
            lambda imported_groups: torch.optim.SGD(
                imported_groups, lr=0.05, momentum=0.9, nesterov=True
            ),
        ),
        (
            section("torch.optim.Adam", lr=0.01, betas=[0.8, 0.9], weight_decay=0.2),
            lambda imported_groups: torch.optim.Adam(imported_groups, lr=0.01, betas=(0.8, 0.9)),
        ),
    ],
    ids=["Adagrad", "SGD", "Adam"],
)
def test_it_learns_what_plain_torch_learns(config: ImportedOptimizer, plain: Any) -> None:
    model, other = net(), net()
    matrices = [p for p in other.parameters() if p.ndim >= 2]
    vectors = [p for p in other.parameters() if p.ndim < 2]
    apart = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    ours = trained(model, config.build(parameters=imported_groups(model, config.weight_decay)))
    theirs = trained(other, plain(apart))
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)
    assert not torch.equal(ours[0], next(net().parameters()))


def test_groups_are_carried_over() -> None:
    decay, rest = imported_groups(net(), 0.2)
    given = [{**decay, "lr_multiplier": 0.5, "eps": 0.1}, rest]
    first, second = section("torch.optim.Adagrad").build(parameters=given).param_groups
    assert (first["name"], first["weight_decay"], first["lr"]) == ("decay", 0.2, 3e-4)
    assert (first["lr_multiplier"], first["eps"]) == (0.5, 0.1)
    assert (second["name"], second["weight_decay"], second["eps"]) == ("no_decay", 0.0, 1e-10)
    assert first["param_names"] == ["0.weight", "3.weight"]


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        ("torch.optim.Adagrad", {"lr_decya": 1}),
        ("torch.optim.Adagrad", {"params": 1}),
        ("torch.optim.Adagrad", {"eps": "x"}),
        ("torch.optim.Rprop", {"weight_decay": 0.1}),
        ("torch.optim.Optimizer", {}),
        ("torch.optim.lr_scheduler.LRScheduler", {"last_epoch": 3}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "plain",
)
def test_what_the_signature_refuses(target: str, fields: dict[str, Any]) -> None:
    with refused(ConfigError):
        section(target, **fields)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("torch.optim.LBFGS", "doesn't support per-parameter options"),
        ("torch.optim.lr_scheduler.ConstantLR", "failed|makes a|does not accept lr"),
    ],
)
def test_what_cannot_be_built(target: str, words: str) -> None:
    with pytest.raises(SetpointError, match=words):  # PyTorch's
        section(target).build(parameters=imported_groups(net(), 0.0))


class Closed(torch.optim.SGD):
    """Needs the loss several times in a step."""

    def step(self, closure: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().step(closure)


class Modes(torch.optim.SGD):
    """Wants to be told when the model is judged."""

    def train(self) -> None:
        """Go back to the point that is trained."""

    def eval(self) -> None:
        """Go to the average."""


def no_optimizer(params: Any, lr: float) -> object:
    return object()


def test_what_the_loop_cannot_use() -> None:
    from setpoint.train.config import Job

    for target in (Closed, no_optimizer, Modes):
        made: Any = partial(target)
        config = resolve(Job(optimizer=made)).optimizer
        with refused():
            config.build(parameters=net().named_parameters())


class Halving(GroupedOptimizer):
    """Halves what has a gradient."""

    def update(self, group: dict[str, Any]) -> None:
        for p in group["params"]:
            if p.grad is not None:
                p.mul_(group["factor"])


def test_a_closure_is_called_with_gradients() -> None:
    a = nn.Parameter(torch.ones(1))
    optimizer = Halving([{"params": [a], "factor": 0.5}], {})

    def closure() -> float:
        loss = (3 * a).sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == 3.0
    assert a.item() == 0.5


def test_the_device_skips_steps_of_optimizers_that_say_so() -> None:
    """A new optimizer does not apply NaN gradients before the host has seen them."""
    assert not takes_flag(Halving([{"params": [nn.Parameter(torch.ones(1))]}], {}))
    assert takes_flag(Lion([{"params": [nn.Parameter(torch.ones(1))]}]))


def test_lists_for_foreach_operations() -> None:
    here = [torch.zeros(1), torch.zeros(2)]
    there = [torch.zeros(1, device="meta"), torch.zeros(2, device="meta")]
    found = list(foreach_groups([here[0], *there, here[1]]))
    expected = [[here[0]], [here[1]], there]
    assert [[id(t) for t in one] for one in found] == [[id(t) for t in one] for one in expected]
    assert list(foreach_groups([])) == []
