from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from setpoint.config import resolve
from setpoint.model.build import skeleton
from setpoint.model.config import LayerNormConfig, TransformerConfig
from setpoint.model.moe.config import MoE

from .pretrained.ours import SMALL

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "experts": {"moe": MoE(experts=4)},
    "unpacked experts": {"moe": MoE(experts=4, packed=False, shared_experts=1)},
    "learned": {"positions": "learned", "norm": LayerNormConfig(), "activation": "gelu"},
}


@pytest.mark.parametrize("case", CASES)
def test_it_has_the_shapes_of_the_model_and_no_memory(case: str) -> None:
    config = resolve(TransformerConfig(**{**SMALL, **CASES[case]}))
    bare = skeleton(config, 20)
    built = config.build(vocab_size=20)
    shapes = {name: tensor.shape for name, tensor in built.state_dict().items()}
    assert {name: tensor.shape for name, tensor in bare.state_dict().items()} == shapes
    assert all(tensor.is_meta for tensor in bare.state_dict().values())


def test_it_imports_little() -> None:
    script = (
        "import sys, torch;"
        "from setpoint.config import resolve;"
        "from setpoint.model.config import TransformerConfig;"
        "from setpoint.model.build import skeleton;"
        "import setpoint.model.transformer;"
        "skeleton(resolve(TransformerConfig(max_sequence_length=8)), 20);"
        "sys.exit('sympy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
