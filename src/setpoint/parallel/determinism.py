"""Deterministic operations, for as long as a job needs them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from setpoint.config import RunError, SetpointError
from setpoint.parallel.workspace import VARIABLE, WORKSPACES

WORDS = re.compile(r"(\S+) does not have a deterministic implementation")
"""What PyTorch says of an operation that has none, or whose backward pass has none."""


@contextmanager
def determinism(required: bool) -> Iterator[None]:
    """Make PyTorch use deterministic operations only, and fail where it has none; or not.

    The kernels of flash attention and of memory-efficient attention, and the package flash-attn
    as Setpoint calls it, take their deterministic backward passes then, and inductor chooses no
    kernel by how long it takes.

    Returns:
        a context, after which all is as it was before.

    Raises:
        RunError: in place of what PyTorch raises at an operation that has no deterministic form.
    """
    if not required:
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(_variable())
        # The fastest algorithm is not the same in each run.
        stack.enter_context(_attribute(torch.backends.cudnn, "benchmark", False))
        stack.enter_context(_attribute(torch.backends.cudnn, "deterministic", True))
        # Sums in fewer bits come out differently where they are split differently.
        matmul = torch.backends.cuda.matmul
        for name in ("bf16", "fp16"):
            name = f"allow_{name}_reduced_precision_reduction"
            stack.enter_context(_attribute(matmul, name, False))
        stack.enter_context(_full_precision())
        # Memory that nothing was written to holds what happened to lie there.
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
    """Say which operation cannot be deterministic.

    Returns:
        an error that says what to change; None for errors of other kinds.
    """
    found = None if isinstance(error, SetpointError) else WORDS.search(str(error))
    if found is None:
        return None
    return RunError(
        f"deterministic = true: PyTorch has no deterministic form of {found[1]} on this device, "
        f"forward or backward. Choose a model, a loss or an optimizer that does without it, or "
        f"set deterministic = false"
    )


@contextmanager
def _variable() -> Iterator[None]:
    """What cuBLAS reads when it is first used; a value of the user's that will do is left alone."""
    before = os.environ.get(VARIABLE)
    if before not in WORKSPACES:
        os.environ[VARIABLE] = WORKSPACES[0]
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


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
    """No TF32, in matrix products or convolutions."""
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
