"""All that a deterministic job needs, and nothing of it in the next job."""

import os
import random
from typing import Any

import numpy
import pytest
import torch

from setpoint.config import RunError
from setpoint.parallel.config import CUBLAS_VARIABLE
from setpoint.parallel.determinism import (
    determinism,
    explain,
    hashed,
    rank_seed,
    seed_everything,
    seed_step,
)

from ..support.snapshots import refused


def state() -> dict[str, Any]:
    backends = torch.backends
    settings: Any = torch.utils.deterministic
    matmul = backends.cuda.matmul
    return {
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "only warns": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn.deterministic": backends.cudnn.deterministic,
        "cudnn.benchmark": backends.cudnn.benchmark,
        "cudnn.allow_tf32": backends.cudnn.allow_tf32,
        "matmul.allow_tf32": matmul.allow_tf32,
        "float32 products": torch.get_float32_matmul_precision(),
        "bf16 sums": matmul.allow_bf16_reduced_precision_reduction,
        "fp16 sums": matmul.allow_fp16_reduced_precision_reduction,
        "fills": settings.fill_uninitialized_memory,
        "workspace": os.environ.get(CUBLAS_VARIABLE),
    }


DETERMINISTIC = {
    "algorithms": True, "only warns": False, "cudnn.deterministic": True, "cudnn.benchmark": False,
    "cudnn.allow_tf32": False, "matmul.allow_tf32": False, "float32 products": "highest",
    "bf16 sums": False, "fp16 sums": False, "fills": True, "workspace": ":4096:8",
}  # fmt: skip


def test_it_sets_all_and_takes_all_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CUBLAS_VARIABLE, raising=False)
    before = state()
    for _ in range(2):  # the next job wants the same, also after one that failed
        with pytest.raises(ValueError, match="^x$"), determinism(True):
            assert state() == DETERMINISTIC
            assert torch.empty(64).isnan().all()
            raise ValueError("x")
        assert state() == before
    with determinism(False):
        assert state() == before


def test_what_was_set_before_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: Any = torch.utils.deterministic
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(settings, "fill_uninitialized_memory", False)
    torch.set_float32_matmul_precision("high")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        before = state()
        with determinism(True):
            assert state() | {"workspace": ":4096:8"} == DETERMINISTIC
        assert state() == before
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("theirs", "held"), [(":16:8", ":16:8"), (":0:0", ":4096:8")])
def test_a_workspace_of_the_users(theirs: str, held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUBLAS_VARIABLE, theirs)
    with determinism(True):
        assert os.environ[CUBLAS_VARIABLE] == held
    assert os.environ[CUBLAS_VARIABLE] == theirs


def test_an_operation_without_a_deterministic_form_fails() -> None:
    """Not a warning: the run would not be what it says."""
    x = torch.ones(1, 1, 4, 4, requires_grad=True)
    with refused(RunError) as caught, determinism(True):
        torch.nn.functional.max_unpool2d(
            x, torch.zeros(1, 1, 4, 4, dtype=torch.int64), kernel_size=[2, 2]
        )
    assert caught.value.__cause__ is not None
    assert explain(caught.value) is explain(RuntimeError("x")) is None


@pytest.fixture(autouse=True)
def _generators_go_on_as_before() -> Any:
    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    numpy.random.set_state(states[1])
    torch.set_rng_state(states[2])


def drawn() -> tuple[float, float, float]:
    return random.random(), float(numpy.random.rand()), float(torch.rand(()))


def test_rank_0_is_seeded_with_the_seed_itself() -> None:
    """As one process always was: runs of before go on as they were."""
    seed_everything(2**40 + 5)
    found = drawn()
    random.seed(2**40 + 5)
    numpy.random.seed((2**40 + 5) % 2**32)
    torch.manual_seed(2**40 + 5)
    assert found == drawn()


def test_a_step_depends_on_seed_rank_and_number_alone() -> None:
    found: set[tuple[float, ...]] = set()
    for place in ((3, 7, 0), (3, 8, 0), (4, 7, 0), (3, 7, 1)):
        seed_step(*place)
        first = drawn()
        drawn()
        seed_step(*place)
        assert drawn() == first
        found.add(first)
    assert len(found) == 4


def test_gpus_are_seeded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.manual_seed does that, also for GPUs that are not in use yet."""
    seen: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seen.append)
    seed_everything(3, rank=1)
    assert seen == [rank_seed(3, 1)]


def test_seeds_never_coincide() -> None:
    """Neither within a job nor with that of the next seed, as seed + rank would."""
    seeds = [rank_seed(seed, rank) for seed in range(1000, 1010) for rank in range(64)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_are_those_of_every_machine() -> None:
    assert rank_seed(1234, 0) == 1234
    assert rank_seed(1234, 1) == hashed("1234/rank 1") == 324726876744691268
