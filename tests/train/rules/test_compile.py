"""What torch.compile needs of other sections and of the machine, said before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from setpoint.compile import checks
from setpoint.config import ConfigError
from setpoint.config.resolving.checks import verify
from setpoint.train.run import train

from ...support.snapshots import compare
from ..small import small_job

COMPILED = "compile={}"
REFUSED: dict[str, tuple[str, ...]] = {
    "graphs of a GPU on a CPU": ("compile.mode=reduce-overhead", "parallel.device=cpu"),
    "measured kernels": ("compile.mode=max-autotune", "deterministic=true"),
    "measured kernels without graphs": (
        "compile.mode=max-autotune-no-cudagraphs", "deterministic=true",
    ),
    "options that measure": (
        "compile.options={max_autotune: true, triton: {autotune_cublasLt: true, cudagraphs: true}}",
        "deterministic=true",
    ),
    "activations that are dropped twice": (
        "compile.backend=eager", "model.dropout=0.1", "memory.activation_checkpointing=full",
    ),
    "a limit of nothing": ("compile.recompile_limit=0",),
    "another system's name": ("compile.memory_policy=default",),
    "a switch": ("compile.enable=true",),
    "a slip": ("compile.mode=max-autotun",),
}  # fmt: skip


def test_what_is_refused(tmp_path: Path) -> None:
    text: list[str] = []
    for name, flags in REFUSED.items():
        with pytest.raises(ConfigError) as caught:
            small_job(tmp_path, COMPILED, *flags)
        text.append(f"{name}:\n{str(caught.value).replace(str(tmp_path), '')}")
    compare("train/compile", "\n\n".join(text))


@pytest.mark.parametrize(
    "flags",
    [
        ("compile.mode=max-autotune",),
        ("compile.options.max_autotune=true",),
        ("compile.options={max_autotune: false}", "deterministic=true"),
        ("compile.mode=reduce-overhead", "deterministic=true"),
        ("compile.backend=eager", "model.dropout=0", "memory.activation_checkpointing=full"),
        ("compile.backend=aot_eager", "model.dropout=0.1", "memory.activation_checkpointing=full"),
    ],
)
def test_what_is_taken(tmp_path: Path, flags: tuple[str, ...]) -> None:
    assert small_job(tmp_path, COMPILED, *flags)


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
    with pytest.raises(ConfigError, match=r"compile\.backend(.|\n)*needs a C\+\+ compiler"):
        train(job)
    assert not (tmp_path / "runs").exists()


def test_graphs_of_a_gpu_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    job = small_job(tmp_path, COMPILED, "compile.mode=reduce-overhead")
    problems = {problem.path: problem.message for problem in verify(job, {"torch"}).problems}
    assert "sees no GPU" in problems["compile.mode"]
