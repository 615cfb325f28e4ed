import re

import pytest

from setpoint.config import ConfigError, resolve
from setpoint.model.attention.selection import (
    BACKENDS,
    able,
    chosen,
    determinism_problems,
    find_dense,
)

from ...support.snapshots import compare
from ..small import small_config
from .small import latent_config

NEEDS = {
    "capped": {"attention_soft_cap": 30.0, "head_dim": 8},
    "dropped": {"attention_dropout": 0.1, "head_dim": 8},
    "large heads": {"head_dim": 512},
    "odd heads": {"head_dim": 12},
}


def refused() -> str:
    """What is said to each backend that cannot do what the model needs."""
    lines = []
    for name, needed in NEEDS.items():
        lines += [f"# {name}", *(_said(backend, needed) for backend in BACKENDS)]
    lines += ["# latent", *(_said(backend, None) for backend in BACKENDS)]
    return "\n\n".join(line for line in lines if line)


def _said(backend, needed) -> str:
    try:
        if needed is None:
            latent_config(attention_backend=backend)
        else:
            small_config(attention_backend=backend, **needed)
    except ConfigError as error:
        # Where in the tests a value was set is no matter.
        return re.sub(r"small\.py:\d+", "small.py", str(error))
    return ""


def test_refusals():
    compare("model/attention_backend", refused())


@pytest.mark.parametrize("needed", [*NEEDS.values(), None], ids=[*NEEDS, "latent"])
def test_what_is_offered_is_taken(needed):
    config = latent_config() if needed is None else small_config(**needed)
    assert {"auto", "eager"} <= set(able(config))
    for backend in BACKENDS:
        assert (_said(backend, needed) == "") == (backend in able(config))


CAPPED = {"attention_soft_cap": 30.0}
DROPPED = {"attention_dropout": 0.1}


@pytest.mark.parametrize(
    ("device", "compute", "masked", "changes", "expected", "held"),
    [
        ("cpu", "bf16", False, {}, "sdpa", None),
        ("cpu", "bf16", True, {}, "sdpa", None),
        ("cpu", "fp32", True, CAPPED, "eager", None),
        ("cuda", "bf16", False, {}, "sdpa", None),
        ("cuda", "fp32", False, DROPPED, "sdpa", None),
        ("cuda", "bf16", True, {}, "varlen", None),
        ("cuda", "fp32", True, {}, "flex", None),
        ("cuda", "fp16", True, {"head_dim": 20}, "flex", None),
        ("cuda", "bf16", False, CAPPED, "flex", None),
        ("cuda", "bf16", True, CAPPED, "flex", None),
        ("cuda", "bf16", True, DROPPED, "sdpa", "mask"),
        ("cuda", "bf16", False, CAPPED | DROPPED, "eager", "scores"),
        ("cuda", "fp32", True, {"head_dim": 8}, "sdpa", "mask"),
        ("cuda", "bf16", True, {"attention_backend": "sdpa_efficient"}, "sdpa_efficient", "mask"),
        ("cuda", "bf16", False, {"attention_backend": "flex", **CAPPED}, "flex", None),
    ],
)
def test_the_choice(device, compute, masked, changes, expected, held):
    config = small_config(**{"head_dim": 16, **changes})
    assert chosen(config, device, compute, masked=masked) == expected
    if device == "cuda":
        dense = find_dense(config, compute, 32, documents=masked)
        assert (dense and ("scores" if dense.scores else "mask")) == held


def test_all_at_once():
    fields = {"attention_soft_cap": 30.0, "attention_dropout": 0.1, "attention_backend": "varlen"}
    with pytest.raises(ConfigError) as error:
        small_config(**fields, head_dim=8)
    assert len(error.value.problems) == 2
    assert error.value.problems[0].valid == ("auto", "eager", "flash_attention_2")
    assert resolve(small_config(**{**fields, "attention_backend": "auto"})) is not None


@pytest.mark.parametrize("backend", BACKENDS)
def test_which_backend_cannot_be_deterministic(backend):
    found = list(determinism_problems(small_config(attention_backend=backend, head_dim=8)))
    wanted = ["model.attention_backend"] if backend == "sdpa_cudnn" else []
    assert [problem.path for problem in found] == wanted
