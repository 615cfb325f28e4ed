"""Preflight: its figures are those of the model that is built, its findings those of training."""

import os
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from setpoint.cli.check_plan import make_plan
from setpoint.config import SetpointError, verify
from setpoint.config.composition import compose
from setpoint.config.values.user_code import allow_imports
from setpoint.model.build import count_parameters
from setpoint.plan.preflight import preflight
from setpoint.track.run_directory import RunDirectory
from setpoint.train.build.components import build_components
from setpoint.train.build.job_parameters import gathered, trained
from setpoint.train.config import Job
from setpoint.train.rules.model_rules import built_pattern_problems
from setpoint.train.run_name import run_directory_of

from ..support.snapshots import compare_problems, refused
from ..train.small import small_job


@pytest.mark.parametrize(
    "flags",
    [(), ("model.tie_embeddings=true",), ("model.dim=48", "model.heads=3", "model.kv_heads=1")],
)
def test_the_figures_are_those_of_the_model(tmp_path: Path, flags: tuple[str, ...]) -> None:
    job = small_job(tmp_path, *flags)
    components = build_components(job)
    facts = preflight(job).facts
    assert facts["parameters"] == count_parameters(components.model)
    assert facts["run directory"] == run_directory_of(job)
    assert facts["batch"] == "4 = 2 (micro) * 2 (accumulation) * 1 (ranks)"
    assert facts["tokens per step"] == 64


def test_a_thousand_ranks() -> None:
    flags = ["batch.global_size=4096", "batch.micro_size=2", "parallel.world_size=1024"]
    flags += ["parallel.device=cuda", "precision.compute=bf16"]
    found = preflight(compose(Job, flags=flags).resolve())
    assert found.facts["batch"] == "4096 = 2 (micro) * 2 (accumulation) * 1024 (ranks)"
    assert found.facts["tokens per step"] == 4096 * 256
    assert found.problems == []
    assert "parallel: the device is there (needs torch)" in found.skipped
    assert all("(needs torch)" in reason for reason in found.skipped)
    assert found.to_json() == {"facts": found.facts, "cautions": [], "skipped": found.skipped}


def test_missing_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.txt").write_text("x")
    paths = ["there.txt", "gone.txt", "*.txt", "*.md"]
    job = compose(Job, flags=[f"data.sources=[{{type=text, paths={paths}}}]"]).resolve()
    compare_problems(preflight(job).problems)


def test_what_training_refuses_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a/x.txt", "b/x.txt"):
        Path(name).parent.mkdir()
        Path(name).write_text("x")
    Path("empty").mkdir()
    for paths in (["empty"], ["a/x.txt", "b/x.txt"]):
        job = compose(Job, flags=[f"data.sources=[{{type=text, paths={paths}}}]"]).resolve()
        compare_problems(preflight(job).problems)
        with refused():
            job.data.sources[0].build(where="data.sources.0").files()


@pytest.mark.parametrize("workspace", ["file", "file/runs", "file/..", "dead", "new/runs"])
def test_a_workspace_must_be_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workspace: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("dead").symlink_to("nowhere")
    job = compose(Job, "tiny", flags=[f"workspace={workspace}"]).resolve()
    is_wrong = workspace != "new/runs"
    problems = [(problem.path, problem.origin) for problem in preflight(job).problems]
    assert problems == [("workspace", "command line workspace")] * is_wrong
    assert not preflight(job, elsewhere=True).problems
    if is_wrong:
        with pytest.raises(SetpointError):
            RunDirectory.create(run_directory_of(job))
    monkeypatch.setattr(os, "access", lambda *_: False)
    compare_problems(preflight(job).problems)


def test_no_directory_is_promised_where_the_seed_decides(tmp_path: Path) -> None:
    facts = preflight(small_job(tmp_path, "seed=null")).facts
    assert str(facts["run directory"]).startswith("named after the seed")


def test_the_size_of_a_model_with_experts_or_a_vocabulary_of_its_own(tmp_path: Path) -> None:
    experts = "model.moe={experts=4, top_k=1, router={type=softmax_top_k, normalize=false}}"
    flags = (experts, "model.vocab_size=300")
    job = small_job(tmp_path, *flags)
    facts = preflight(job).facts
    total = count_parameters(build_components(job).model)
    assert facts["parameters"] == total
    model: Any = job.model
    expert = 3 * model.dim * model.ffn_dim
    assert facts["active parameters"] == total - 3 * expert
    assert "active parameters" not in preflight(small_job(tmp_path)).facts
    # The tokenizer is not here, and the vocabulary is known all the same.
    far = small_job(tmp_path, *flags, "tokenizer={type=huggingface, path=some/where}")
    assert preflight(far).facts["parameters"] == total


def test_what_only_building_shows(tmp_path: Path) -> None:
    for flag, words in (
        ("tokenizer={type=huggingface, path=some/where}", "the vocabulary of the tokenizer"),
        ("model.norm={type=import, target=torch.nn.LayerNorm}", "the imported norm"),
        ("model={type=import, target=torch.nn.Tanh}", "only once the model is built"),
    ):
        found = preflight(small_job(tmp_path, flag))
        assert "parameters" not in found.facts
        assert any(words in reason for reason in found.skipped), found.skipped


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
    rows = [group.to_json() for group in make_plan(job).groups]
    built = gathered(job.optimizer, build_components(job).model)
    assert rows == [group.to_json() for group in built]
    assert sum(row["tensors"] for row in rows) == len(trained(job, 257))


@pytest.mark.parametrize("model", [GPT2, TABLE], ids=["transformers", "imported"])
def test_patterns_for_models_that_are_built(tmp_path: Path, model: tuple[str, ...]) -> None:
    fits = job_of(tmp_path, *model, GROUPS.replace("PATTERN", "wte|table"))
    skipped = (
        "optimizer settings that apply to no parameter of the built model (needs import and torch)"
    )
    assert skipped in preflight(fits).skipped
    assert skipped not in preflight(job_of(tmp_path, *model)).skipped
    assert not list(built_pattern_problems(fits))
    wrong = job_of(tmp_path, *model, GROUPS.replace("PATTERN", "query"))
    assert not preflight(wrong).problems
    found = preflight(wrong, ("files", "import", "torch"))
    compare_problems(found.problems)
    assert skipped not in found.skipped


def test_a_model_that_cannot_be_built_is_a_problem(tmp_path: Path) -> None:
    flags = (*GPT2, "model.overrides.vocab_size=3", GROUPS.replace("PATTERN", "wte"))
    compare_problems(verify(job_of(tmp_path, *flags)).problems)
