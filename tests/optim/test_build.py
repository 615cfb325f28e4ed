from typing import Any

import pytest
import torch
from torch import nn

from setpoint.config import ImportPath, SetpointError, resolve
from setpoint.optim.build import build_optimizer, title_of
from setpoint.optim.config import AdamWConfig, ImportedOptimizer, LionConfig, OptimizerConfig

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


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (Unpacking.Config(), "cannot be built over groups of parameters, as PyTorch has them: "),
        (Other.Config(), "is a Other; it must be a torch.optim.Optimizer"),
    ],
)
def test_what_cannot_be_used(config: OptimizerConfig, words: str) -> None:
    with pytest.raises(SetpointError, match=words):
        build_optimizer(resolve(config), groups())


def test_what_an_optimizer_is_called_in_errors() -> None:
    assert title_of(resolve(AdamWConfig(lr=0.1))) is None
    own = title_of(resolve(Own.Config(lr=0.1)))
    assert own == f"optimizer.type = own_optimizer_of_a_test ({__name__}.Own)"
    imported = resolve(ImportedOptimizer(target=SPARSE, lr=0.1, weight_decay=0))
    assert title_of(imported) == "optimizer.target = torch.optim.SparseAdam"
