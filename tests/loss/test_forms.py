"""Losses say by their methods what they can do."""

from __future__ import annotations

import pytest

from setpoint.config import resolve
from setpoint.loss.config import ChunkedCrossEntropy, CrossEntropy, LossConfig
from setpoint.loss.cross_entropy import FromHidden, Weighs


class Plain:
    """Is called with logits and targets, and that is all."""

    def __call__(self, logits: object, targets: object) -> object:
        return logits, targets


@pytest.mark.parametrize(
    ("section", "from_hidden"), [(CrossEntropy(), False), (ChunkedCrossEntropy(), True)]
)
def test_what_our_losses_are(section: LossConfig, from_hidden: bool) -> None:
    loss = resolve(section).build()
    assert isinstance(loss, FromHidden) == from_hidden == type(section).from_hidden
    assert isinstance(loss, Weighs)


def test_a_plain_one_is_neither() -> None:
    assert not isinstance(Plain(), FromHidden | Weighs)
