"""Processes to kill, and no trace of one test's settings in the next."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._dynamo

from ..support.forks import Forks
from .commands import Commands
from .poison import Poison, poison_runs
from .small import Kept


@pytest.fixture(scope="session")
def commands(forks: Forks) -> Commands:
    """Runs `setpoint` commands in processes of their own."""
    return Commands(forks)


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Sums depend on how many threads they are shared by, and what is compared must not."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def nothing_stays_for_the_next_test() -> Iterator[None]:
    """Forget what was compiled; the next test would count it."""
    yield
    torch._dynamo.reset()


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Poison:
    """Let every training of the test meet bad batches, numbered from 1 in the order of the data."""
    return lambda *bad, value=math.nan: poison_runs(monkeypatch, bad, value)


@pytest.fixture(scope="package")
def six_steps(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(tmp_path_factory.mktemp("six"), "duration=6 steps", "schedule=constant")


@pytest.fixture
def run(six_steps: Kept) -> Path:
    """A run of six steps with a constant schedule."""
    return six_steps.again()
