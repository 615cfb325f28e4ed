"""Problems and cautions of the section."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.config import ConfigError, resolve
from setpoint.config.resolving.checks import cautions_of
from setpoint.model.config import TransformerConfig
from setpoint.model.moe.config import MoE, SigmoidTopK, SoftmaxTopK

from ...support.snapshots import compare
from .small import described

WRONG: dict[str, dict[str, object]] = {
    "top_k": {"experts": 4, "top_k": 5},
    "groups": {"experts": 12, "groups": 5, "top_groups": 2, "router": SigmoidTopK()},
    "top_groups": {"experts": 12, "groups": 4, "top_groups": 5},
    "small groups": {"experts": 12, "groups": 4, "top_groups": 1, "top_k": 4},
    "all groups": {"experts": 12, "groups": 4, "top_groups": 4},
    "all groups are needed": {"experts": 12, "groups": 4, "top_groups": 4, "top_k": 10},
    "groups that hold all": {"experts": 12, "groups": 4, "top_groups": 3, "top_k": 3},
    "groups of one": {"experts": 4, "groups": 4, "top_groups": 3, "router": SigmoidTopK()},
    "dead groups": {"experts": 12, "top_groups": 2},
    "unpacked": {"experts": 4, "packed": False, "implementation": "grouped"},
    "dead capacity": {"experts": 8, "top_k": 4, "capacity_factor": 2.0},
    "dead schedule": {
        "experts": 4,
        "router": SigmoidTopK(bias_rate=0.0, bias_schedule="cosine_decay"),
    },
}


def test_what_contradicts_itself() -> None:
    found: list[str] = []
    for name, fields in WRONG.items():
        with pytest.raises(ConfigError) as error:
            resolve(MoE(**fields))
        (problem,) = error.value.problems
        found.append(f"{name}\n{described(problem)}")
        # What is proposed is valid.
        for value in problem.valid:
            proposed = int(value) if value.isdecimal() else value
            resolve(MoE(**{**fields, problem.path: proposed}))
    compare("model/moe_config", "\n\n".join(found))


@given(st.integers(1, 12), st.integers(1, 7), st.integers(0, 20))
def test_which_layers_have_experts(layers: int, every: int, first_dense: int) -> None:
    moe = MoE(experts=4, every=every, first_dense=first_dense)
    sparse = [i for i in range(layers) if i >= first_dense and (i + 1) % every == 0]
    assert [layer for layer in range(layers) if moe.has_experts(layer)] == sparse
    assert moe.layers_with_experts(layers) == len(sparse)


def test_a_weight_that_is_always_one_teaches_no_router() -> None:
    def codes(**fields: object) -> list[str]:
        return [caution.code for caution in cautions_of(resolve(MoE(**fields)))]

    assert codes(experts=4, top_k=1) == ["router-without-gradient"]
    assert codes(experts=4, top_k=1, router=SoftmaxTopK(normalize=False)) == []
    assert codes(experts=4, top_k=2) == codes(experts=1, top_k=1) == []


WRONG_MODELS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "no layer by every": ({"layers": 3}, {"every": 4}),
    "no layer by first_dense": ({"layers": 3}, {"first_dense": 3}),
    "no layer by both": ({"layers": 5}, {"first_dense": 4, "every": 2}),
    "grouped, dim": ({"dim": 30, "heads": 3}, {"implementation": "grouped"}),
    "grouped, ffn_dim": ({"ffn_dim": 6}, {"implementation": "grouped"}),
    "grouped, expert_dim": ({}, {"implementation": "grouped", "expert_dim": 2}),
}


def test_what_the_model_cannot_do() -> None:
    found: list[str] = []
    for name, (model, moe) in WRONG_MODELS.items():
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
