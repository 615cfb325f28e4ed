"""The sections `adamw`, `sgd` and `adafactor` against torch.optim."""

from typing import Any

import pytest
import torch
from torch import nn

from setpoint.config import resolve
from setpoint.optim import optimizer as base
from setpoint.optim import torch_optimizers
from setpoint.optim.config import AdafactorConfig, AdamWConfig, OptimizerConfig, SGDConfig
from setpoint.optim.torch_optimizers import can_fuse, divided_step, implementation_flags

from ..support.cases import few
from ..support.snapshots import refused
from .problem import assert_resumes, groups, learnt, network


def build(section: type[OptimizerConfig], given: Any, **fields: Any) -> torch.optim.Optimizer:
    return resolve(section(**fields)).build(parameters=given)


BETAS = {"betas": (0.9, 0.95)}
# A section with its fields, and the options of torch that it stands for.
AGAINST_TORCH: list[tuple[type[OptimizerConfig], dict[str, Any], dict[str, Any]]] = [
    (AdamWConfig, {}, {**BETAS, "fused": True}),
    (AdamWConfig, {"implementation": "fused"}, {**BETAS, "fused": True}),
    (AdamWConfig, {"implementation": "foreach"}, {**BETAS, "foreach": True}),
    (AdamWConfig, {"implementation": "loop"}, {**BETAS, "foreach": False, "fused": False}),
    (AdamWConfig, {"amsgrad": True, "betas": (0.8, 0.9), "eps": 1e-4},
     {"amsgrad": True, "betas": (0.8, 0.9), "eps": 1e-4, "fused": True}),
    (SGDConfig, {}, {"momentum": 0.9, "fused": True}),
    (SGDConfig, {"momentum": 0.95, "nesterov": True},
     {"momentum": 0.95, "nesterov": True, "fused": True}),
    (SGDConfig, {"dampening": 0.2}, {"momentum": 0.9, "dampening": 0.2, "fused": True}),
    (SGDConfig, {"momentum": 0.99, "implementation": "foreach"},
     {"momentum": 0.99, "foreach": True}),
    (SGDConfig, {"momentum": 0.8, "implementation": "loop"},
     {"momentum": 0.8, "foreach": False, "fused": False}),
    (AdafactorConfig, {}, {"lr": 0.02}),
    (AdafactorConfig, {"beta2_decay": -0.5}, {"lr": 0.02, "beta2_decay": -0.5}),
    (AdafactorConfig, {"eps1": 1e-4, "eps2": 1e-2}, {"lr": 0.02, "eps": (1e-4, 1e-2)}),
    (AdafactorConfig, {"clip_threshold": 2.0}, {"lr": 0.02, "d": 2.0}),
]  # fmt: skip
TORCHS: dict[type[OptimizerConfig], Any] = {
    AdamWConfig: torch.optim.AdamW,
    SGDConfig: torch.optim.SGD,
    AdafactorConfig: torch.optim.Adafactor,
}


@pytest.mark.parametrize("dtype", few([torch.float32, torch.float64], [torch.float32]))
@pytest.mark.parametrize(("section", "fields", "options"), AGAINST_TORCH)
def test_a_hundred_steps_against_torch(
    section: type[OptimizerConfig],
    fields: dict[str, Any],
    options: dict[str, Any],
    dtype: torch.dtype,
) -> None:
    ours, our_losses = learnt(lambda given: build(section, given, **fields), dtype)
    theirs, their_losses = learnt(lambda given: TORCHS[section](given, **options), dtype)
    assert torch.equal(ours, theirs) and our_losses == their_losses


@pytest.mark.parametrize(
    ("section", "fields"),
    [
        (AdamWConfig, {"amsgrad": True}),
        (AdamWConfig, {"implementation": "loop"}),
        (SGDConfig, {}),
        (SGDConfig, {"momentum": 0.0}),
        (AdafactorConfig, {}),
    ],
)
def test_state_returns_exactly(section: type[OptimizerConfig], fields: dict[str, Any]) -> None:
    assert_resumes(lambda given: build(section, given, **fields), torch.float32)


def test_groups_and_names_are_kept() -> None:
    optimizer = build(AdamWConfig, groups(network(), betas=(0.5, 0.6)), lr=0.03)
    first, last, rest = optimizer.param_groups
    assert (first["name"], first["weight_decay"], first["betas"]) == ("decay", 0.1, (0.5, 0.6))
    assert (last["lr_multiplier"], last["lr"]) == (0.5, 0.03)
    assert (rest["betas"], rest["weight_decay"]) == ((0.9, 0.95), 0.0)
    assert last["param_names"] == ["5.weight"]
    assert rest["param_names"] == ["0.bias", "2.weight", "2.bias", "3.bias", "5.bias"]
    given = groups(network(), clip_threshold=3.0, eps2=0.5)
    first, _, rest = build(AdafactorConfig, given, eps1=1e-5).param_groups
    assert (first["d"], first["eps"]) == (3.0, (1e-5, 0.5))
    assert (rest["d"], rest["eps"]) == (1.0, (1e-5, 1e-3))
    assert "clip_threshold" not in first and "eps2" not in first


def test_short_weights_on_a_cpu_are_updated_and_not_by_the_fused_kernel() -> None:
    """PyTorch's own leaves all but the last few elements as they are, and says nothing."""
    weight = torch.nn.Parameter(torch.ones(1000, dtype=torch.bfloat16))
    weight.grad = torch.ones_like(weight)
    build(SGDConfig, [("weight", weight)], lr=0.5, momentum=0.0).step()
    assert (weight == 0.5).all()
    with refused():
        build(SGDConfig, [("weight", weight)], implementation="fused")


PAIRS = [(getattr(torch_optimizers, cls.__name__), cls) for cls in TORCHS.values()]


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


def test_implementations_where_there_is_a_kernel() -> None:
    here, meta = torch.zeros(2), torch.zeros(2, device="meta")
    assert can_fuse([here])
    assert not can_fuse([here, meta]) and not can_fuse([torch.zeros(2, dtype=torch.int64)])
    assert implementation_flags("auto", [here]) == (True, None)
    assert implementation_flags("auto", [meta]) == (None, None)
    assert implementation_flags("fused", [here]) == (True, None)
    assert implementation_flags("foreach", [here]) == (False, True)
    assert implementation_flags("loop", [meta]) == (False, False)
    with refused():
        implementation_flags("fused", [here, meta])


@pytest.mark.parametrize("shape", [(), (5,), (1, 9), (8, 4), (3, 6, 7)])
def test_adafactor_for_gpus_and_shards_against_torch(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    ours = nn.Parameter(torch.randn(shape, dtype=torch.float64))
    theirs = nn.Parameter(ours.detach().clone())
    options: Any = {"lr": 0.02, "weight_decay": 0.1}
    group = torch.optim.Adafactor([ours], **options).param_groups[0]
    oracle, state = torch.optim.Adafactor([theirs], **options), dict[str, Any]()
    for _ in range(100):
        ours.grad = torch.randn_like(ours)
        theirs.grad = ours.grad.clone()
        oracle.step()
        with torch.no_grad():
            divided_step(ours, state, group)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
