"""Families of transformers on the axes that divide a model: what one rank trains, or a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.train.rules.parallel import family_problems

from ..forks import forked
from .huggingface_families import FAMILIES, family_job

DIVIDED = {
    "tensor=2": (),
    "pipeline=2": ("phi",),
    "ulysses=2": ("qwen3_next", "qwen3_5_text"),
    "ring=2": ("qwen3_next", "qwen3_5_text", "gpt_oss"),
}
"""Shapes, and the families that are refused in them."""
EXPERTS = ("shard=2,expert=2", "tensor=2,expert=2", "tensor=2,expert_tensor=2")
MOE = ("gpt_oss", "qwen3_next", "deepseek_v3", "llama4_text", "glm4_moe", "mixtral")
COMBINED = ("shard=2,tensor=2,expert=4", "pipeline=2,tensor=2", "pipeline=2,shard=2,expert=2",
            "ulysses=2,tensor=2")  # fmt: skip


def test_two_ranks_divide_a_family_by_every_axis() -> None:
    shapes = ("tensor=2,expert=2", "pipeline=2", "ulysses=2")
    said = forked("tests.model.huggingface_ranks", "gpt_oss", *shapes)
    assert all(f"gpt_oss, {shape}: equal" in said for shape in shapes)


@pytest.mark.slow
@pytest.mark.parametrize("shape", DIVIDED)
def test_two_ranks_divide_all_families(shape: str) -> None:
    kinds = [kind for kind in FAMILIES if kind not in DIVIDED[shape]]
    said = forked("tests.model.huggingface_ranks", *kinds, shape)
    assert all(f"{kind}, {shape}: equal" in said for kind in kinds)


@pytest.mark.slow
@pytest.mark.parametrize("shape", EXPERTS)
def test_two_ranks_divide_the_experts_of_all_families(shape: str) -> None:
    kinds = [*MOE, *([] if "expert_tensor" in shape else ["gpt_oss+lora"])]
    said = forked("tests.model.huggingface_ranks", *kinds, shape)
    assert all(f"{kind}, {shape}: equal" in said for kind in kinds)


@pytest.mark.slow
def test_four_ranks_combine_axes() -> None:
    said = forked("tests.model.huggingface_ranks", "4", "gpt_oss", *COMBINED)
    assert all(f"gpt_oss, {shape}: equal" in said for shape in COMBINED)


@pytest.mark.parametrize(
    ("kind", "degrees", "field", "why", "valid"),
    [
        ("qwen3_next", "ulysses=2", "ulysses", "layers of linear_attention", ("1",)),
        ("gpt_oss", "ring=2", "ring", "attention sinks", ("1",)),
        ("phi", "pipeline=2", "pipeline", "has a bias", ("1",)),
        ("mixtral", "tensor=4", "tensor", "the 2 heads of", ("2", "1")),
        ("mixtral", "shard=3,expert=3", "expert", "the 4 experts", ("2", "4", "1")),
        ("olmo2", "shard=2,expert=2", "expert", "has no experts", ("1",)),
        ("mixtral", "ulysses=8", "ulysses", "the 4 heads", ("4", "2", "1")),
    ],
)
def test_what_a_family_cannot_is_refused_by_check(
    tmp_path: Path, kind: str, degrees: str, field: str, why: str, valid: tuple[str, ...]
) -> None:
    named = [f"parallel.{each}" for each in degrees.split(",")]
    ranks = degrees.partition("=")[2][0]
    batch = ("batch.micro_size=1", "batch.global_size=12")
    job = family_job(tmp_path, kind, f"parallel.world_size={ranks}", *named, *batch)
    (problem,) = family_problems(job)
    assert (problem.path, tuple(problem.valid)) == (f"parallel.{field}", valid)
    assert why in problem.message


def test_a_family_that_fits_is_not_refused(tmp_path: Path) -> None:
    degrees = ("tensor=2", "pipeline=2", "expert=2")
    named = [f"parallel.{each}" for each in degrees]
    job = family_job(tmp_path, "gpt_oss", "parallel.world_size=4", *named, "batch.micro_size=1")
    assert list(family_problems(job)) == []
