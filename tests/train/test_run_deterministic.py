"""Deterministic runs are the same twice, bit for bit, in processes of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch._dynamo

from setpoint.compile.compile_model import CACHE
from setpoint.config.values.user_code import allow_imports
from setpoint.parallel.config import CUBLAS_VARIABLE
from setpoint.train.open import settings_of
from setpoint.train.run import train

from ..support.forks import Forks
from ..support.snapshots import refused
from .deterministic_runs import CASES, QUICK
from .small import small_job

ROOT = Path(__file__).resolve().parents[2]
Twice = list[dict[str, Any]]


def learned_twice(names: Sequence[str], folder: Path, forks: Forks) -> Twice:
    """Results of two processes, of which one is a fork."""
    words = ["-m", "tests.train.deterministic_runs"]
    for name in ("a", "b"):
        (folder / name).mkdir()
    status, output = forks.run([*words, str(folder / "a"), *names], ROOT)
    assert status == 0, output
    done = subprocess.run(
        [sys.executable, *words, str(folder / "b"), *names],
        cwd=ROOT,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=240,
        check=True,
    )
    return [json.loads(text.splitlines()[-1]) for text in (output, done.stdout)]


def assert_same(twice: Twice) -> None:
    first, second = twice
    assert first == second
    for _, losses in first.values():
        assert len(set(losses)) == len(losses)


def test_twice_the_same(tmp_path: Path, forks: Forks) -> None:
    twice = learned_twice(QUICK, tmp_path, forks)
    assert_same(twice)
    # Else the comparison would see nothing.
    assert len({digest for digest, _ in twice[0].values()}) == len(QUICK)


@pytest.mark.slow
def test_others_twice_the_same(tmp_path: Path, forks: Forks) -> None:
    assert_same(learned_twice([name for name in CASES if name not in QUICK], tmp_path, forks))


def test_inductor_measures_nothing_then(tmp_path: Path) -> None:
    from torch._inductor import config

    with settings_of(small_job(tmp_path, "deterministic=true", "compile={}")):
        assert config.deterministic
    with settings_of(small_job(tmp_path, "compile={}")):
        assert not config.deterministic


class Look(torch.nn.Module):
    """A model of the user's own that notes what it is built under, or fails to be built."""

    seen: ClassVar[list[bool]] = []

    def __init__(self, vocab_size: int, fails: bool = False) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(vocab_size, vocab_size)
        self.seen.append(torch.are_deterministic_algorithms_enabled())
        if fails:
            raise ValueError("it cannot be built")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Look up logits, and note what it is trained under."""
        self.seen.append(torch.are_deterministic_algorithms_enabled())
        return self.table(tokens)


allow_imports(__name__)
OWN = ("model=import", f"model.target={__name__}.Look", "deterministic=true", "duration=1 steps")


def process_state() -> list[object]:
    dynamo = torch._dynamo.config
    return [
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.deterministic,
        os.environ.get(CUBLAS_VARIABLE),
        os.environ.get(CACHE),
        dynamo.recompile_limit,
    ]


def test_the_process_is_free_again_after_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CUBLAS_VARIABLE, raising=False)
    before = process_state()
    Look.seen.clear()
    train(small_job(tmp_path, *OWN))
    assert len(Look.seen) > 1 and all(Look.seen)
    assert process_state() == before
    # Also after a build that failed.
    job = small_job(
        tmp_path, *OWN, "model.fails=true", "compile.recompile_limit=3",
        f"compile.cache={tmp_path / 'cache'}",
    )  # fmt: skip
    with refused():
        train(job)
    assert process_state() == before
