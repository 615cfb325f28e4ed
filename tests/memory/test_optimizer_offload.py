from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from setpoint.checkpoint.optimizer_state import capture_optimizer, options_of, restore_optimizer
from setpoint.config import resolve
from setpoint.memory.config import OptimizerOffload
from setpoint.memory.optimizer_offload import offload_optimizer
from setpoint.optim import config as configs
from setpoint.units import ByteSize

from ..pairs import pairs

CPU = torch.device("cpu")
MEANS = ("exp_avg", "exp_avg_sq")


def model() -> nn.Sequential:
    torch.manual_seed(1)
    layers = [nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 3)]
    return nn.Sequential(*layers)


def groups(net: nn.Module, **first: Any) -> list[dict[str, Any]]:
    """Matrices, vectors, and one that is left without a gradient."""
    parameters = list(net.parameters())
    return [
        {"params": [p for p in parameters if p.ndim == 2], "weight_decay": 0.1, **first},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]


def ours(config: Any, net: nn.Module, state_dtype: torch.dtype | None = None) -> Optimizer:
    named = dict(net.named_parameters())
    ways = {2: {"algorithm": "muon"}, 1: {"algorithm": "adamw"}}
    given = [
        {
            "params": [(name, p) for name, p in named.items() if p.ndim == ndim],
            "weight_decay": 0.1,
            **(ways[ndim] if isinstance(config, configs.Muon) else {}),
        }
        for ndim in (2, 1)
    ]
    return resolve(config).build(parameters=given, state_dtype=state_dtype)


OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda net: torch.optim.AdamW(groups(net), lr=1e-2, foreach=True),
    "fused adamw": lambda net: torch.optim.AdamW(groups(net), lr=1e-2, fused=True),
    "amsgrad": lambda net: torch.optim.AdamW(groups(net), lr=1e-2, amsgrad=True, foreach=False),
    "sgd": lambda net: torch.optim.SGD(groups(net), lr=1e-2, momentum=0.9, fused=True),
    "adafactor": lambda net: torch.optim.Adafactor(groups(net), lr=1e-2),
    "muon": lambda net: torch.optim.Muon(groups(net)[0]["params"], lr=1e-2),
    "lion": lambda net: ours(configs.Lion(), net),
    "our muon": lambda net: ours(configs.Muon(), net),
    "anyprecision": lambda net: ours(configs.AnyPrecisionAdamW(), net, torch.bfloat16),
}


def train(
    net: nn.Module, optimizer: Optimizer, steps: int = 5, start: int = 0, scaled: bool = False
) -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=8.0, growth_interval=2)
    for step in range(start, start + steps):
        torch.manual_seed(step)
        x = torch.randn(8, 16)
        if scaled and step == 2:
            x[0, 0] = torch.inf
        scaler.scale(net(x).square().mean()).backward()
        next(net.parameters()).grad = None if step == 1 else next(net.parameters()).grad
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def offloaded(name: str, limit: int) -> tuple[nn.Module, Optimizer]:
    net = model()
    optimizer = OPTIMIZERS[name](net)
    config = resolve(OptimizerOffload(limit=ByteSize(limit)))
    offload_optimizer(config, optimizer, CPU)
    return net, optimizer


def real_step(optimizer: Any, step: Callable[[Callable[[], None]], None]) -> None:
    """Put something around the updates that an offloaded optimizer makes by itself."""
    here = optimizer.step.__self__
    here.step_all = partial(step, here.step_all)


def assert_same(one: Optimizer, other: Optimizer) -> None:
    for mine, theirs in zip(one.param_groups, other.param_groups, strict=True):
        assert mine.keys() == theirs.keys()
        assert {k: v for k, v in mine.items() if k != "params"} == {
            k: v for k, v in theirs.items() if k != "params"
        }
        for p, q in zip(mine["params"], theirs["params"], strict=True):
            assert torch.equal(p, q)
            assert one.state[p].keys() == other.state[q].keys()
            for key, value in one.state[p].items():
                if isinstance(value, torch.Tensor):
                    assert torch.equal(value, other.state[q][key]), key
                else:
                    assert value == other.state[q][key]


@pytest.mark.parametrize(
    ("name", "scaled", "limit"), pairs(OPTIMIZERS, [False, True], [0, 5000, 10**6])
)
def test_equal_to_the_last_bit(name: str, scaled: bool, limit: int) -> None:
    net = model()
    plain = OPTIMIZERS[name](net)
    train(net, plain, scaled=scaled)
    other, optimizer = offloaded(name, limit)
    train(other, optimizer, scaled=scaled)
    assert_same(optimizer, plain)


def test_the_limit_is_what_is_on_the_device_at_once() -> None:
    most = {}
    for limit in (0, 4000, 10**6):
        net, optimizer = offloaded("adamw", limit)
        sizes: list[int] = []

        def step(real: Callable[[], None], optimizer=optimizer, sizes=sizes) -> None:
            real()
            some = [p for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
            sizes.append(sum(optimizer.state[p][key].nbytes for p in some for key in MEANS))

        real_step(optimizer, step)
        train(net, optimizer, steps=3)
        most[limit] = max(sizes)
    assert most[0] == 2 * 4 * 16 * 24  # that of one parameter
    assert most[0] < most[4000] <= 4000
    assert most[10**6] == 2 * 4 * sum(p.numel() for p in model().parameters())


def test_state_lies_where_it_lay() -> None:
    net, optimizer = offloaded("adamw", 4000)
    train(net, optimizer, steps=1)
    places = {id(v): v.data_ptr() for s in optimizer.state.values() for v in s.values()}
    train(net, optimizer, steps=2, start=4)
    for state in optimizer.state.values():
        for key in MEANS:
            assert places[id(state[key])] == state[key].data_ptr()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("to", ["offloaded", "plain"])
def test_a_checkpoint_goes_both_ways(name: str, to: str) -> None:
    net, optimizer = offloaded(name, 4000)
    built = options_of(optimizer)
    train(net, optimizer, steps=4)
    tensors, state = capture_optimizer(optimizer, net.named_parameters(), built)
    if to == "offloaded":
        other, resumed = offloaded(name, 4000)
    else:
        other = model()
        resumed = OPTIMIZERS[name](other)
    other.load_state_dict(net.state_dict())
    restore_optimizer(resumed, other.named_parameters(), tensors, state)
    assert_same(resumed, optimizer)
    train(net, optimizer, steps=3, start=4)
    train(other, resumed, steps=3, start=4)
    assert_same(resumed, optimizer)


def test_state_that_is_loaded_does_not_pass_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    net, optimizer = offloaded("adamw", 4000)
    train(net, optimizer, steps=2)
    content = optimizer.state_dict()
    seen: list[int] = []
    real = Optimizer._process_value_according_to_param_policy

    def look(param: Any, value: Any, *rest: Any, **more: Any) -> Any:
        seen.append(value.numel())
        return real(param, value, *rest, **more)

    place = "_process_value_according_to_param_policy"
    monkeypatch.setattr(Optimizer, place, staticmethod(look))
    _, fresh = offloaded("adamw", 4000)
    fresh.load_state_dict(content)
    assert seen and max(seen) == 1


def test_groups_are_whole_again_when_an_update_fails() -> None:
    net, optimizer = offloaded("adamw", 0)
    before = [list(group["params"]) for group in optimizer.param_groups]

    def fail(real: Callable[[], None]) -> None:
        raise ValueError("no")

    real_step(optimizer, fail)
    net(torch.randn(2, 16)).sum().backward()
    with pytest.raises(ValueError, match="no"):
        optimizer.step()
    after = [group["params"] for group in optimizer.param_groups]
    assert all(
        p is q
        for one, two in zip(before, after, strict=True)
        for p, q in zip(one, two, strict=True)
    )
