"""Adafactor, PyTorch's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from setpoint.optim import uncompiled
from setpoint.optim.given import Given, given_groups

if TYPE_CHECKING:
    from setpoint.optim.config import Adafactor


def build_adafactor(config: Adafactor, parameters: Given) -> torch.optim.Adafactor:
    """Make the optimizer of an `adafactor` section (Shazeer and Stern, 2018).

    Arguments:
        parameters: groups, as from `parameter_groups`, or (qualified name, parameter) pairs, all
            of which decay.
    """
    return uncompiled.Adafactor(
        [_with_torchs_names(config, group) for group in given_groups(parameters)],
        lr=config.lr,
        beta2_decay=config.beta2_decay,
        eps=(config.eps1, config.eps2),
        d=config.clip_threshold,
        weight_decay=config.weight_decay,
    )


def _with_torchs_names(config: Adafactor, group: dict[str, Any]) -> dict[str, Any]:
    """A group whose options, if it has any, are called as PyTorch calls them."""
    renamed = dict(group)
    if "clip_threshold" in renamed:
        renamed["d"] = renamed.pop("clip_threshold")
    if "eps1" in renamed or "eps2" in renamed:
        renamed["eps"] = (renamed.pop("eps1", config.eps1), renamed.pop("eps2", config.eps2))
    return renamed
