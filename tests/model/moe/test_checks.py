from __future__ import annotations

import pytest

from setpoint.config import ConfigError, resolve
from setpoint.model.config import TransformerConfig
from setpoint.model.moe.config import MoE

from ...snapshots import compare
from .small import described

WRONG: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "no layer by every": ({"layers": 3}, {"every": 4}),
    "no layer by first_dense": ({"layers": 3}, {"first_dense": 3}),
    "no layer by both": ({"layers": 5}, {"first_dense": 4, "every": 2}),
    "grouped, dim": ({"dim": 30, "heads": 3}, {"implementation": "grouped"}),
    "grouped, ffn_dim": ({"ffn_dim": 6}, {"implementation": "grouped"}),
    "grouped, expert_dim": ({}, {"implementation": "grouped", "expert_dim": 2}),
}


def test_what_the_model_cannot_do() -> None:
    found: list[str] = []
    for name, (model, moe) in WRONG.items():
        fields = {"dim": 32, "heads": 2, "max_sequence_length": 8, **model}
        with pytest.raises(ConfigError) as error:
            resolve(TransformerConfig(**fields, moe=MoE(experts=4, **moe)))
        (problem,) = error.value.problems
        found.append(f"{name}\n{described(problem)}")
        # What is proposed is valid.
        field = problem.path.removeprefix("moe.")
        for value in problem.valid:
            proposed = int(value) if value.isdecimal() else value
            resolve(TransformerConfig(**fields, moe=MoE(experts=4, **{**moe, field: proposed})))
    compare("model/moe_checks", "\n\n".join(found))
