"""Refusals of settings of compile, profiling and memory, before anything is built."""

from pathlib import Path

import pytest
import torch

from setpoint.compile import requirements as checks
from setpoint.config import ConfigError
from setpoint.config.resolving.checks import verify
from setpoint.train.build.components import build_components
from setpoint.train.run import train

from ...support.snapshots import compare, refused
from ..small import small_job
from .refusals import refusals

COMPILED = "compile={}"
FULL, PARTS, OPERATORS = (
    f"memory.activation_checkpointing={name}" for name in ("full", "parts", "operators")
)
BELOW = "memory.activation_checkpointing"
ACTIVATIONS = "memory.activation_offload.limit=0"
REFUSED: dict[str, tuple[str, ...]] = {
    "graphs of a GPU on a CPU": ("compile.mode=reduce-overhead", "parallel.device=cpu"),
    "options that measure": (
        "compile.options={max_autotune: true, triton: {autotune_cublasLt: true, cudagraphs: true}}",
        "deterministic=true",
    ),
    "a limit of nothing": ("compile.recompile_limit=0",),
    "another system's name": ("compile.memory_policy=default",),
    "a switch": ("compile.enable=true",),
    "a slip": ("compile.mode=max-autotun",),
}  # fmt: skip


def test_what_is_refused(tmp_path: Path) -> None:
    cases = {name: (COMPILED, *flags) for name, flags in REFUSED.items()}
    compare("train/compile", refusals(tmp_path, cases))


def test_names_are_checked_with_torch_only(tmp_path: Path) -> None:
    job = small_job(tmp_path, COMPILED, "compile.backend=inductr")
    assert verify(job, {"files"}).problems == []
    (problem,) = verify(job, {"torch"}).problems
    assert (problem.path, problem.hint) == ("compile.backend", "Did you mean inductor?")


def test_no_compiler_is_found_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_missing_compiler", lambda: "inductor needs a C++ compiler")
    job = small_job(tmp_path, COMPILED, "parallel.device=cpu")
    with refused(ConfigError):
        train(job)
    assert not (tmp_path / "runs").exists()


PROFILING_REFUSALS: dict[str, tuple[str, ...]] = {
    "a window beyond the run": ("profiling={skip=28}",),
    "more cycles than there are": ("profiling={active=8, repeat=5}",),
    "a rank that is not there": ("profiling.ranks=[0, 1]",),
    "no ranks": ("profiling.ranks=[]",),
    "another system's name": ("profiling.record_shapes=true",),
    "pacing that paces nothing": ("resilience.gc={every=never, automatic=true}",),
    "another system's interval": ("resilience.gc.gc_freq=50",),
}  # fmt: skip
TAKEN: tuple[tuple[str, ...], ...] = (
    (COMPILED, "compile.options={max_autotune: false}", "deterministic=true"),
    (COMPILED, "compile.backend=eager", "model.dropout=0", FULL),
    (COMPILED, "compile.backend=aot_eager", "model.dropout=0.1", FULL),
    (FULL, f"{BELOW}.reentrant=true", f"{BELOW}.every=2"),
    (OPERATORS, "model.attention_dropout=0.1"),
    (PARTS, ACTIVATIONS, "memory.empty_cache=10 steps", "parallel.device=cuda"),
    # The last cycle is over with the last update.
    ("profiling={skip=5, wait=1, warmup=1, active=3, repeat=5}",),
    # As many as there are, and some of them not whole.
    ("profiling={active=9, repeat=null}",),
    # Nobody knows how many updates there will be.
    ("duration=1 epochs", "schedule=constant", "profiling={skip=100000}"),
)


def test_what_is_refused_of_profiling(tmp_path: Path) -> None:
    compare("train/profiling", refusals(tmp_path, PROFILING_REFUSALS))


@pytest.mark.parametrize("flags", TAKEN)
def test_what_is_taken(tmp_path: Path, flags: tuple[str, ...]) -> None:
    assert small_job(tmp_path, *flags)


def test_a_snapshot_needs_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = small_job(tmp_path, "profiling.snapshot=true")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [problem.path for problem in verify(job, {"torch"}).problems] == ["profiling.snapshot"]
    with refused(ConfigError):
        train(job)
    assert not (tmp_path / "runs").exists()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not verify(job, {"torch"}).problems


MEMORY_REFUSALS: dict[str, tuple[str, ...]] = {
    "no parts": (PARTS, f"{BELOW}.parts=[]"),
    "an unknown part": (PARTS, f"{BELOW}.parts=[head]"),
    "nothing saved": (OPERATORS, f"{BELOW}.save=[]"),
    "no products to count": (OPERATORS, f"{BELOW}.save=[attention]", f"{BELOW}.matmul_every=2"),
    "reentrant operators": (OPERATORS, f"{BELOW}.reentrant=true"),
    "another system's name": ("memory.recompute_granularity=full", "memory.gpu_limit=1"),
}  # fmt: skip


def test_what_is_refused_of_memory(tmp_path: Path) -> None:
    compare("train/memory", refusals(tmp_path, MEMORY_REFUSALS))


def test_models_without_layers_or_parts_are_refused_when_they_are_built(tmp_path: Path) -> None:
    table = ("model=import", "model.target=torch.nn.Embedding", "model.num_embeddings=257")
    flags = (*table, "model.embedding_dim=257", "data.held_out=0.2")
    with refused():
        build_components(small_job(tmp_path, *flags, FULL))
