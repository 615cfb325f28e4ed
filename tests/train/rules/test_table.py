"""The table of rules: what each reads, and which of those that need torch are named as skipped."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import ConfigError
from setpoint.config.resolving.checks import verify
from setpoint.train.config import Job
from setpoint.train.rules.table import RULES

from ..small import small_job

FUSED = ("optimizer=sgd", "optimizer.implementation=fused")
SHORT = ("precision.params=bf16", "precision.compute=bf16")
IMPORTED = "model={type=import, target=torch.nn.Linear, in_features=8, out_features=8}"
PATTERN = ("optimizer.no_decay_patterns=[norm]",)


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ((*FUSED, *SHORT), True),
        (FUSED, False),
        ((*FUSED, *SHORT, "precision.master=fp32"), False),
        (("optimizer=sgd", *SHORT), False),
        ((*FUSED, *SHORT, "parallel.device=cuda"), False),
        (("optimizer.implementation=fused", *SHORT), False),
    ],
)
def test_fused_and_short(flags: tuple[str, ...], wanted: bool, tmp_path: Path) -> None:
    job = small_job(tmp_path, "parallel.device=auto", *flags)
    skipped = [str(each) for each in verify(job, ()).skipped]
    assert any("the GPU that some" in text for text in skipped) is wanted


def test_fused_and_short_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="does not update bf16 weights on a CPU"):
        small_job(tmp_path, *FUSED, *SHORT, "parallel.device=cpu")
    job = small_job(tmp_path, *FUSED, *SHORT, "parallel.device=auto")
    for there, count in ((False, 1), (True, 0)):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there: there)
        assert len(verify(job, {"torch"}).problems) == count


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ((), False),
        (PATTERN, False),
        ((*PATTERN, IMPORTED), True),
        ((IMPORTED,), False),
    ],
)
def test_patterns(flags: tuple[str, ...], wanted: bool, tmp_path: Path) -> None:
    skipped = [str(each) for each in verify(small_job(tmp_path, *flags), ()).skipped]
    assert any("patterns match" in text for text in skipped) is wanted


@pytest.mark.parametrize(
    ("flag", "wanted"),
    [
        ("memory.activation_checkpointing=full", False),
        ("memory.activation_offload={}", True),
        ("memory.optimizer_offload={}", True),
        ("memory.empty_cache=9 steps", True),
    ],
)
def test_memory(flag: str, wanted: bool, tmp_path: Path) -> None:
    job = small_job(tmp_path, flag, "parallel.device=auto")
    skipped = [str(each) for each in verify(job, ()).skipped]
    assert any("the GPU that some" in text for text in skipped) is wanted


# A job for each rule that most jobs have nothing for.
VARIANTS: dict[str, tuple[str, ...]] = {
    "evaluation:long_evaluation": ("evaluation.sequences=null", "evaluation.every=1 steps"),
    "cautions:find_cautions": ("optimizer.lr=0.5",),
    "support:conflicts": ("compile={}", "memory.activation_checkpointing=full"),
    "support:conflicts_without_gpu": ("profiling.snapshot=true",),
    "loss:unknown_tokens": ("loss.token_weights={33: 2}",),
    "loss:baselines_are_dead": ("loss.ignore_index=33",),
    "vocabulary:vocabulary_problems": ("model.vocab_size=300",),
    "precision:idle_reduction": (*SHORT, "precision.reduce=fp32"),
    "precision:idle_rounding": (*SHORT, "optimizer=anyprecision_adamw"),
    "precision:float8_problems": (
        "precision.compute=bf16", "precision.float8={}", "parallel.device=cuda",
    ),
    "optimizer:listed_pattern_problems": PATTERN,
    "optimizer:built_pattern_problems": ("optimizer.no_decay_patterns=[weight]", IMPORTED),
    "evaluation:plateau_problems": ("schedule=plateau",),
    "evaluation:best_problems": ("checkpoint.keep_best=false",),
    "profiling:profiling_problems": ("profiling={}",),
    "determinism:workspace_problems": ("deterministic=true",),
    "compile:compiler_problems": ("compile={}",),
    "attention:backend_problems": ("model.attention_backend=sdpa_math",),
}  # fmt: skip
# What methods of the job read.
BEHIND = {"total_steps": {"duration", "batch"}, "plateau_basis": {"schedule", "evaluation"}}


class Watched:
    """A job that notes which of its sections are read."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.seen: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.seen |= BEHIND.get(name, {name})
        return getattr(self.job, name)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_rule_reads_the_sections_that_it_names(name: str, tmp_path: Path) -> None:
    job = small_job(tmp_path, *VARIANTS[name])
    rules = [rule for rule in RULES if rule.target == f"setpoint.train.rules.{name}"]
    assert rules
    applied = False
    for rule in rules:
        watched = Watched(job)
        if rule.when is not None and not rule.when(watched):
            continue
        applied = True
        module, _, function = rule.target.partition(":")
        found = getattr(import_module(module), function)(watched)
        if not rule.dead:
            list(found)  # a generator reads nothing before
        fields = {path.partition(".")[0] for path in rule.dead}
        assert not rule.sections or watched.seen <= {*rule.sections, *fields}
    assert applied


def test_every_rule_has_a_function_and_says_what_it_verifies() -> None:
    for rule in RULES:
        module, _, function = rule.target.partition(":")
        assert callable(getattr(import_module(module), function)), rule.target
        assert rule.what.startswith(("Whether ", "What ")), rule.target
        assert set(rule.sections) <= set(Job.__setpoint__.fields), rule.target
