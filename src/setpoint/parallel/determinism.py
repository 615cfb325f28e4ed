"""Reproducibility: seeds of all generators, and deterministic operations while a job runs."""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy
import torch

from setpoint.config import RunError, SetpointError
from setpoint.parallel.config import CUBLAS_VARIABLE, CUBLAS_WORKSPACES

WORDS = re.compile(r"(\S+) does not have a deterministic implementation")
"""PyTorch's error for an operation without a deterministic forward or backward pass."""


@contextmanager
def determinism(required: bool) -> Iterator[None]:
    """Switch deterministic operations of PyTorch on or off; an operation without one is an error.

    Flash attention, memory-efficient attention and the package flash-attn then use their
    deterministic backward passes, and inductor does not autotune kernels by run time.

    Returns:
        a context that restores the previous settings at its end.

    Raises:
        RunError: replaces PyTorch's error for an operation without a deterministic implementation.
    """
    if not required:
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(_workspace())
        # The fastest algorithm may differ between runs.
        stack.enter_context(_attribute(torch.backends.cudnn, "benchmark", False))
        stack.enter_context(_attribute(torch.backends.cudnn, "deterministic", True))
        # Sums in fewer bits depend on how they are split.
        matmul = torch.backends.cuda.matmul
        for name in ("bf16", "fp16"):
            name = f"allow_{name}_reduced_precision_reduction"
            stack.enter_context(_attribute(matmul, name, False))
        stack.enter_context(_full_precision())
        # Uninitialized memory has arbitrary content.
        settings: Any = torch.utils.deterministic
        stack.enter_context(_attribute(settings, "fill_uninitialized_memory", True))
        stack.enter_context(_algorithms())
        try:
            yield
        except Exception as error:
            explained = explain(error)
            if explained is None:
                raise
            raise explained from error


def explain(error: Exception) -> RunError | None:
    """Name the operation that cannot be deterministic.

    Returns:
        an error with advice; None for other errors.
    """
    match = None if isinstance(error, SetpointError) else WORDS.search(str(error))
    if match is None:
        return None
    return RunError(
        f"deterministic = true: PyTorch has no deterministic implementation of {match[1]} on this "
        f"device, forward or backward. Choose a model, a loss or an optimizer that does not use "
        f"it, or set deterministic = false"
    )


@contextmanager
def _workspace() -> Iterator[None]:
    """Set the cuBLAS workspace variable, read at first use, unless it is already deterministic."""
    before = os.environ.get(CUBLAS_VARIABLE)
    if before not in CUBLAS_WORKSPACES:
        os.environ[CUBLAS_VARIABLE] = CUBLAS_WORKSPACES[0]
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(CUBLAS_VARIABLE, None)
        else:
            os.environ[CUBLAS_VARIABLE] = before


@contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Disable TF32 in matrix products and convolutions."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with _attribute(torch.backends.cudnn, "allow_tf32", False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _algorithms() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=only_warns)


# PyTorch accepts 64 bits, Python any number and NumPy's global generator 32 bits.
BITS = 63


def seed_everything(seed: int, rank: int = 0) -> None:
    """Seed the global generators of Python, NumPy and torch, including those of GPUs.

    Arguments:
        rank: the rank, as ranks draw different numbers for dropout. Values that must be equal on
            all ranks, such as initial weights, use separate generators.
    """
    seed = rank_seed(seed, rank)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Seed the generators of `seed_everything` before a step.

    The random numbers of a step, such as dropout masks, then do not depend on earlier draws, in
    this session or a previous one, so checkpoints need no generator state.

    Arguments:
        step: number of completed steps.
        rank: index among the ranks with different data; ranks with parts of one model share it.
    """
    step_seed = hashed(f"{seed}/rank {rank}/step {step}")
    random.seed(step_seed)
    numpy.random.seed(step_seed % 2**32)
    # torch.manual_seed takes a quarter of a millisecond if no GPU is in use.
    torch.default_generator.manual_seed(step_seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(step_seed)


def rank_seed(seed: int, rank: int) -> int:
    """Seed of a rank: the job's seed on rank 0, a hash of seed and rank on the others.

    seed + rank would make rank 1 of a job equal to rank 0 of the job with the next seed.
    """
    return seed if rank == 0 else hashed(f"{seed}/rank {rank}")


def hashed(text: str) -> int:
    """Seed from a text: the first 63 bits of its SHA-256."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> (64 - BITS)
