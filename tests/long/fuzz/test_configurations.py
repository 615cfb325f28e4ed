"""Whole configurations of random layers resolve or are refused in words, and at once."""

import time
from collections import Counter

import pytest

from . import configurations
from .configurations import KINDS, Case, attempt, case_of, failure, fuzz, prepared


def test_random_configurations_resolve_or_are_refused() -> None:
    run = fuzz(seed=1, first=0, cases=500)
    assert not run.failures, "\n".join(run.failures.values())
    assert sum(run.count.values()) == 500
    assert {name.partition(" ")[0] for name in run.count} == set(KINDS)
    assert run.count["everything accepted"] and run.count["job refused"]


@pytest.mark.slow
def test_many_random_configurations_resolve_or_are_refused() -> None:
    run = fuzz(seed=time.time_ns() % 10**9, first=0, cases=30_000)
    assert not run.failures, "\n".join(run.failures.values())


def test_a_case_is_made_of_its_seed_and_number() -> None:
    def texts(seed: int) -> list[str]:
        return [case_of(seed, number).describe() for number in range(50)]

    assert texts(5) == texts(5) != texts(6)


def test_faults_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(case: Case, count: Counter[str] | None = None) -> None:
        attempt(case, count)
        if any("seed" in flag for flag in case.flags):
            raise ZeroDivisionError
        while any("dim" in flag for flag in case.flags):
            pass

    monkeypatch.setattr(configurations, "attempt", broken)
    monkeypatch.setattr(configurations, "SECONDS", 0.2)
    with prepared():
        found = failure(Case("job", "tiny", flags=("--seed=3", "--optimizer.lr=2")))
        assert found is not None and "ZeroDivisionError" in found[0]
        hang = failure(Case("job", flags=("--model.dim=8",)))
        assert hang is not None and "Hang" in hang[0]
