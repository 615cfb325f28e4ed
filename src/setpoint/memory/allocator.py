"""Settings of PyTorch's caching allocator of GPU memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOMEM
from typing import Any, cast

import torch

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


@contextmanager
def expandable_segments(wanted: bool) -> Iterator[None]:
    """Let segments of GPU memory grow, where the environment has no settings of the allocator.

    Settings would replace those of the environment, which are the user's.

    Returns:
        a context, after which segments are of fixed sizes again, as by default.
    """
    if not wanted or any(os.environ.get(name) for name in VARIABLES):
        yield
        return
    # Only environment variables are public, and PyTorch may have read these when it was imported.
    setting = cast("Any", torch._C)._accelerator_setAllocatorSettings
    setting("expandable_segments:True")
    try:
        yield
    finally:
        setting("expandable_segments:False")


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory does not suffice."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == ENOMEM  # of a process or a mapping
    # The CPU's allocator has no class of its own, nor has memory that processes share or that is
    # page-locked, and a size can overflow before it is asked.
    words = (
        "can't allocate memory",
        "Cannot allocate memory",
        "CUDA error: out of memory",
        "not enough memory",
        "Storage size calculation overflowed",
    )
    return isinstance(error, RuntimeError) and any(text in str(error) for text in words)
