"""The plan of groups is what the optimizer gets, and patterns are held against any model."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from setpoint.cli.check_plan import make_plan
from setpoint.config import SetpointError, verify
from setpoint.config.values.user_code import allow_imports
from setpoint.plan.preflight import preflight
from setpoint.train.build.components import build_components
from setpoint.train.build.job_parameters import rows_of, trained
from setpoint.train.config import Job
from setpoint.train.rules.model import built_pattern_problems

from ..train.small import small_job

allow_imports(__name__)
GROUPS = "optimizer.groups=[{pattern=PATTERN, lr_multiplier=2}]"
TABLE = ("model=import", f"model.target={__name__}.Table")
GPT2 = (
    "model=huggingface",
    "model.config=gpt2",
    "model.overrides.n_layer=1",
    "model.overrides.n_embd=24",
)
# What the small job says of the transformer of Setpoint is not in others.
OURS = ("type", "dim", "layers", "heads", "dropout")


class Table(nn.Module):
    """A table of logits, whose code asks for values while it is made."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, vocab_size)
        self.scale = float(self.table.weight.detach().std())

    def forward(self, tokens):
        return self.table(tokens) * self.scale


def job_of(folder: Path, *flags: str) -> Job:
    ours = not any(flag.startswith("model=") for flag in flags)
    return small_job(folder, *flags, without=() if ours else OURS)


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("optimizer=muon", "model.mup.base_dim=8", "model.moe.experts=3"),
        (GROUPS.replace("PATTERN", "query"), 'optimizer.no_decay_patterns=["embedding"]'),
        ("model.norm={type=import, target=torch.nn.LayerNorm}",),
        GPT2,
        TABLE,
    ],
    ids=str,
)
def test_the_plan_is_what_the_optimizer_gets(tmp_path: Path, flags: tuple[str, ...]) -> None:
    job = job_of(tmp_path, *flags)
    rows = make_plan(job).groups
    assert rows == rows_of(job.optimizer, build_components(job).model)
    assert sum(row.tensors for row in rows) == len(trained(job, 257))


def test_the_vocabulary_must_be_known(tmp_path: Path) -> None:
    job = job_of(tmp_path, "tokenizer={type=huggingface, path=some/where}")
    with pytest.raises(SetpointError, match="vocabulary of the tokenizer"):
        make_plan(job)


@pytest.mark.parametrize("model", [GPT2, TABLE], ids=["transformers", "imported"])
def test_patterns_for_models_that_are_built(tmp_path: Path, model: tuple[str, ...]) -> None:
    fits = job_of(tmp_path, *model, GROUPS.replace("PATTERN", "wte|table"))
    skipped = (
        "optimizer patterns that match no parameter of the built model (needs import and torch)"
    )
    assert skipped in preflight(fits).skipped
    assert skipped not in preflight(job_of(tmp_path, *model)).skipped
    assert not list(built_pattern_problems(fits))
    wrong = job_of(tmp_path, *model, GROUPS.replace("PATTERN", "query"))
    assert not preflight(wrong).problems
    found = preflight(wrong, ("files", "import", "torch"))
    (problem,) = found.problems
    assert problem.path == "optimizer.groups.0.pattern"
    assert problem.value == "'query'"
    assert "matches none" in problem.message
    assert problem.valid
    assert skipped not in found.skipped


def test_a_model_that_cannot_be_built_is_a_problem(tmp_path: Path) -> None:
    flags = (*GPT2, "model.overrides.vocab_size=3", GROUPS.replace("PATTERN", "wte"))
    (problem,) = verify(job_of(tmp_path, *flags)).problems
    assert problem.path == "model.overrides.vocab_size"
    assert "3 embedding rows are fewer than the 257 tokens" in problem.message
