"""Families of transformers on the axes that divide a model: what one rank trains, or a refusal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from setpoint.plan.dry_run import dry_run
from setpoint.train.rules.parallel_rules import family_problems

from ..support.forks import ENVIRONMENT
from .huggingface_families import FAMILIES, divide, every, family_job

DIVIDED = {
    "tensor=2": ("gpt2",),
    "pipeline=2": ("phi", "gpt2"),
    "ulysses=2": ("qwen3_next", "qwen3_5_text"),
    "ring=2": ("qwen3_next", "qwen3_5_text", "gpt_oss"),
}
"""Shapes, and the families that are refused in them."""
EXPERTS = ("shard=2,expert=2", "tensor=2,expert=2", "tensor=2,expert_tensor=2")
MOE = ("gpt_oss", "qwen3_next", "deepseek_v3", "glm4_moe", "mixtral")
COMBINED = ("shard=2,tensor=2,expert=4", "pipeline=2,tensor=2", "pipeline=2,shard=2,expert=2",
            "ulysses=2,tensor=2")  # fmt: skip


def test_two_ranks_divide_a_family_by_every_axis() -> None:
    divide(every(["gpt_oss"], ["shard=2", "pipeline=2", "tensor=2,expert=2"]))


@pytest.mark.slow
def test_adapters_of_experts_differ_by_rounding_alone() -> None:
    shapes = ("shard=2", "tensor=2", "shard=2,expert=2", "tensor=2,expert=2", "pipeline=2")
    divide(every(["mixtral+lora", "mixtral+dora"], shapes), "float64")


@pytest.mark.slow
def test_divided_experts_are_compiled() -> None:
    divide(every(["gpt_oss+compiled", "mixtral+compiled"], EXPERTS))


@pytest.mark.slow
@pytest.mark.parametrize("shape", DIVIDED)
def test_two_ranks_divide_all_families(shape: str) -> None:
    kinds = [kind for kind in FAMILIES if kind not in DIVIDED[shape]]
    # Updates of packed experts are added to tensors that the axes hold whole.
    kinds += ["gpt_oss+lora"] if shape == "tensor=2" else []
    divide(every(kinds, [shape]))


@pytest.mark.slow
@pytest.mark.parametrize("shape", EXPERTS)
def test_two_ranks_divide_the_experts_of_all_families(shape: str) -> None:
    kinds = [*MOE, *([] if "expert_tensor" in shape else ["gpt_oss+dora"])]
    divide(every(kinds, [shape]))


@pytest.mark.slow
def test_four_ranks_combine_axes() -> None:
    divide(every(["gpt_oss"], COMBINED), "4")


@pytest.mark.parametrize(
    ("kind", "degrees", "field", "why", "valid"),
    [
        ("qwen3_next", "ulysses=2", "ulysses", "layers of linear_attention", ("1",)),
        ("gpt_oss", "ring=2", "ring", "attention sinks", ("1",)),
        ("phi", "pipeline=2", "pipeline", "has a bias", ("1",)),
        ("phi", "pipeline=6", "pipeline", "6 stages exceed the 4 parts of Phi", ("1",)),
        ("mixtral", "tensor=4", "tensor", "the 2 key-value heads of", ("2", "1")),
        ("mixtral", "shard=3,expert=3", "expert", "the 4 experts", ("1",)),
        ("gpt_oss+lora", "tensor=2,expert_tensor=2", "expert_tensor", "have adapters", ("1",)),
        ("olmo2", "shard=2,expert=2", "expert", "has no packed experts", ("1",)),
        ("mixtral", "ulysses=8", "ulysses", "the 4 heads", ("4", "2")),
    ],
)
def test_what_a_family_cannot_is_refused_by_check(
    tmp_path: Path, kind: str, degrees: str, field: str, why: str, valid: tuple[str, ...]
) -> None:
    kind, _, adapter = kind.partition("+")
    flags = [f"parallel.{each}" for each in degrees.split(",")]
    flags += [f"adapter={{type: {adapter}, rank: 2}}"] if adapter else []
    ranks = degrees.partition("=")[2][0]
    batch = ("batch.micro_size=1", "batch.global_size=12")
    job = family_job(tmp_path, kind, f"parallel.world_size={ranks}", *flags, *batch)
    problem, *_ = family_problems(job)
    assert not adapter or problem.hint.endswith("by parallel.expert = 2.")
    assert (problem.path, tuple(problem.valid)) == (f"parallel.{field}", valid)
    assert why in problem.message


def test_a_step_on_several_axes_is_not_refused_and_is_planned(tmp_path: Path) -> None:
    degrees = ("tensor=2", "shard=2", "pipeline=2", "expert=2")
    named = [f"parallel.{each}" for each in degrees]
    batch = ("batch.micro_size=1", "batch.global_size=4")
    job = family_job(tmp_path, "gpt_oss", "parallel.world_size=8", *named, *batch)
    assert list(family_problems(job)) == []
    sent = {(row.kind, row.axes) for row in dry_run(job, 0).traffic}
    assert {("all_to_all", "tensor"), ("send", "pipeline"), ("all_gather", "shard")} <= sent


JOB = """
name = "tiny"
seed = 1
duration = "4 steps"
evaluation = "null"
model = {type = "huggingface", config = "gpt_oss", max_sequence_length = 64}
data.sources = [{type = "random", documents = 60, length = 12, alphabet = 8}]
data.packing.method = "first_fit_decreasing"
batch = {global_size = 4, micro_size = 1, sequence_length = 32}
"""


def setpoint(folder: Path, *words: str) -> None:
    command = [sys.executable, "-m", "setpoint", *words]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **ENVIRONMENT}, check=False)
    assert done.returncode in (0, 75)  # 75: stopped, to go on


@pytest.mark.slow
def test_a_run_goes_on_in_another_layout_and_is_exported_by_ranks(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    (tmp_path / "job.toml").write_text(JOB)
    overrides = f"model.overrides={{{FAMILIES['gpt_oss']}}}"
    train = ("train", "job.toml", overrides)
    divided = ("parallel.tensor=2", "parallel.expert=2", "workspace=divided")
    setpoint(tmp_path, *train, *divided, "--nproc", "2", "--until", "2")
    setpoint(tmp_path, *train, "parallel.pipeline=2", "workspace=divided", "--nproc", "2")
    setpoint(tmp_path, *train, "workspace=whole")
    (run,) = (tmp_path / "divided").glob("tiny-*")
    (whole,) = (tmp_path / "whole").glob("tiny-*")
    setpoint(tmp_path, "export", str(run), "by-ranks", "--nproc", "2", "--parallel.tensor", "2")
    setpoint(tmp_path, "export", str(whole), "alone")
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]])
    found, expected = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name)(tokens).logits
        for name in ("by-ranks", "alone")
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
