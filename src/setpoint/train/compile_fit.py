"""What torch.compile needs of the other sections, as far as the configuration tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from setpoint.config import Problem

if TYPE_CHECKING:
    from setpoint.train.config import Job

MEASURES = frozenset(
    {
        "max_autotune",
        "max_autotune_gemm",
        "max_autotune_pointwise",
        "coordinate_descent_tuning",
        "triton.autotune_pointwise",
        "triton.autotune_cublasLt",
        "triton.multi_kernel",
    }
)
"""Options of inductor that time kernels and take the fastest."""


def compile_problems(job: Job) -> Iterator[Problem]:
    """Look for what torch.compile cannot do with this job."""
    section = job.compile
    assert section is not None
    if section.mode == "reduce-overhead" and job.parallel.device == "cpu":
        yield Problem(
            "compile.mode",
            "has no effect: reduce-overhead records graphs of a GPU, and the device is cpu",
            valid=("null", "default"),
            also=("parallel.device",),
        )
    dropped = [name for name in ("dropout", "attention_dropout") if getattr(job.model, name, 0)]
    if section.backend == "eager" and job.memory.activation_checkpointing is not None and dropped:
        # Measured: gradients off by half to all of their size, and no error.
        yield Problem(
            "compile.backend",
            "eager gives wrong gradients with activation checkpointing and dropout: what is "
            "recomputed drops other activations than the forward pass did",
            valid=("inductor", "aot_eager"),
            also=("memory.activation_checkpointing", *(f"model.{name}" for name in dropped)),
        )
    if job.deterministic:
        yield from _measuring(section.mode, section.options.dump())


def _measuring(mode: str | None, options: Mapping[str, Any]) -> Iterator[Problem]:
    """What chooses kernels by their times, which no two runs have in common."""
    why = "takes the kernel that was fastest, which is another one in another run"
    if mode is not None and mode.startswith("max-autotune"):
        yield Problem(
            "compile.mode",
            why,
            valid=("null", "default", "reduce-overhead"),
            also=("deterministic",),
        )
    for name in sorted(_switched_on(options)):
        if name in MEASURES:
            yield Problem(f"compile.options.{name}", why, valid=("false",), also=("deterministic",))


def _switched_on(options: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from _switched_on(value, f"{before}{key}.")
        elif value:
            yield before + key


def machine_problems(job: Job) -> Iterator[Problem]:
    """Look for what torch.compile needs of this machine.

    Arguments:
        job: the configuration, with every value determined; it compiles.

    Returns:
        the problems; none where the device is missing, which is a problem of its own.
    """
    import torch

    from setpoint.compile.known import machine_problems as missing

    section, device = job.compile, job.parallel.device
    assert section is not None
    has_gpu = torch.cuda.is_available()
    if device == "auto":
        device = "cuda" if has_gpu else "cpu"
        if device == "cpu" and section.mode == "reduce-overhead":
            yield Problem(
                "compile.mode",
                "has no effect: reduce-overhead records graphs of a GPU, and there is none",
                valid=("null", "default"),
            )
    if device == "cpu" or has_gpu:
        yield from missing(section, device)
