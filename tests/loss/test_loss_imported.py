from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from setpoint.config import ConfigError, resolve
from setpoint.config.component_sections import partial
from setpoint.config.composition import compose
from setpoint.loss.config import CrossEntropy, ImportedLossConfig
from setpoint.shapes.batch import IGNORE_INDEX

from ..support.snapshots import refused


def built(target: str, **fields: Any) -> Any:
    return compose(ImportedLossConfig, program={"target": target, **fields}).resolve().build()


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(0, 7, (2, 5), generator=generator)
    targets[0, 2] = IGNORE_INDEX
    return torch.randn(2, 5, 7, generator=generator), targets


def test_a_loss_of_torch_is_summed_over_tokens() -> None:
    logits, targets = batch()
    output = built("torch.nn.CrossEntropyLoss", label_smoothing=0.1)(logits, targets)
    expected = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(output.total, expected)
    torch.testing.assert_close(output.nats, resolve(CrossEntropy()).build()(logits, targets).nats)


class Mean:
    """A mean."""

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX)


class CountsAll:
    """Counts what does not count."""

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        return logits.square().sum()


class Vector:
    """One value a token."""

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        return logits.sum(-1)


@pytest.mark.parametrize("target", [Mean, CountsAll, Vector, torch.nn.Identity])
def test_what_is_no_sum(target: Any) -> None:
    from setpoint.train.config import Job

    section: Any = partial(target)
    with refused():
        resolve(Job(loss=section)).loss.build()


def test_what_is_handed_over_cannot_be_given() -> None:
    with refused(ConfigError):
        built("torch.nn.CrossEntropyLoss", reduction="mean")
