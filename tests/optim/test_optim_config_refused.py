"""What is refused of the variants, as people read it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from setpoint.config import ConfigError, SetpointError, resolve
from setpoint.config.composition import compose
from setpoint.optim.config import AdamWConfig, ImportedOptimizer, MuonConfig, SGDConfig

from ..support.snapshots import compare


def on_meta() -> list[tuple[str, nn.Parameter]]:
    return [("w", nn.Parameter(torch.empty(2, device="meta")))]


def in_bf16() -> list[tuple[str, nn.Parameter]]:
    return [("w", nn.Parameter(torch.ones(2, dtype=torch.bfloat16)))]


def modes(given: Any) -> Any:
    fields = {"target": "torch.optim.LBFGS"}
    return compose(ImportedOptimizer, program=fields).resolve().build(parameters=given)


CASES: dict[str, Callable[[], Any]] = {
    "nesterov without momentum": lambda: resolve(SGDConfig(nesterov=True, momentum=0.0)),
    "nesterov with dampening": lambda: resolve(SGDConfig(nesterov=True, dampening=0.1)),
    "dampening without momentum": lambda: resolve(SGDConfig(dampening=0.1, momentum=0.0)),
    "muon's patterns": lambda: resolve(MuonConfig(adamw_patterns=("a(", ""))),
    "a vector for muon": lambda: resolve(MuonConfig()).build(parameters=on_meta()),
    "no fused AdamW": lambda: resolve(AdamWConfig(implementation="fused")).build(
        parameters=on_meta()
    ),
    "no fused SGD": lambda: resolve(SGDConfig(implementation="fused")).build(parameters=on_meta()),
    "no fused SGD in bf16": lambda: resolve(SGDConfig(implementation="fused")).build(
        parameters=in_bf16()
    ),
    "several losses": lambda: modes(in_bf16()),
}


def test_what_a_person_reads() -> None:
    lines: list[str] = []
    for name, refused in CASES.items():
        with pytest.raises((ConfigError, SetpointError)) as caught:
            refused()
        # Where this file says it is of no interest.
        words = re.sub(r"program \([^)]*\)", "program", str(caught.value))
        lines += [f"## {name}", words, ""]
    compare("optim/variants", "\n".join(lines))


def test_what_does_not_contradict_itself() -> None:
    # The default looks ahead, and is no choice of the user's.
    assert resolve(MuonConfig(momentum=0.0)).nesterov
    assert not resolve(MuonConfig(momentum=0.0, nesterov=False)).nesterov
