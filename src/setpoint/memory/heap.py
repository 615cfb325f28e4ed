"""Freed CPU memory stays in the process, so that it is not faulted in again in each step."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

# Of malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
MMAP_THRESHOLD_MAX = 4 * 2**20 * ctypes.sizeof(ctypes.c_long)
"""The most that glibc takes: a larger block is always a mapping of its own."""
NEVER = -1
GLIBC = "CS_GNU_LIBC_VERSION"
VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")


@contextmanager
def keep_freed(wanted: bool) -> Iterator[None]:
    """Let the C library keep freed memory for reuse, where it is glibc and the user set nothing.

    By itself glibc returns the top of the heap to the system whenever a step has freed its
    activations, and the next step takes it again, page by page.

    Returns:
        a context, after which what is free is returned to the system. The thresholds cannot be
        read, so they are left where glibc's own adjustment ends at most.
    """
    libc = _glibc() if wanted and not _is_set() else None
    if libc is None:
        yield
        return
    libc.mallopt(MMAP_THRESHOLD, MMAP_THRESHOLD_MAX)
    libc.mallopt(TRIM_THRESHOLD, NEVER)
    try:
        yield
    finally:
        libc.mallopt(TRIM_THRESHOLD, 2 * MMAP_THRESHOLD_MAX)
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """The C library of this process, where that is glibc; elsewhere nothing is to be set."""
    if GLIBC not in os.confstr_names or not (os.confstr(GLIBC) or "").startswith("glibc"):
        return None
    return ctypes.CDLL(None)


def _is_set() -> bool:
    """Whether the user has set these thresholds in the environment."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc." in tunables or any(name in os.environ for name in VARIABLES)
