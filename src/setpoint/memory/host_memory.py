"""Host memory: a process's limit, and freed memory that it retains."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
SWAP = Path("/proc/meminfo")
# Parameters of mallopt, from malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
MMAP_THRESHOLD_MAX = 4 * 2**20 * ctypes.sizeof(ctypes.c_long)
"""Maximum in glibc: larger blocks are always separate mappings."""
NEVER = -1
GLIBC = "CS_GNU_LIBC_VERSION"
MALLOC_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")


def machine_memory() -> int:
    """Memory limit of a process, in bytes, above which the kernel kills it.

    Returns:
        physical memory, or the limit of a control group of the process if that is lower, plus swap.
    """
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_limits()]) + _swap()


def _limits() -> Iterator[int]:
    """The limits of the control groups, version 1 or 2, from the process's own group upwards."""
    for line in _text(MEMBERSHIP).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root, name = CGROUPS, "memory.max"
        if controllers:
            root, name = CGROUPS / "memory", "memory.limit_in_bytes"
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            limit = _text(folder / name).strip()
            if limit.isdecimal():
                yield int(limit)
            if folder == root:
                break


def _swap() -> int:
    for line in _text(SWAP).splitlines():
        if line.startswith("SwapTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def _text(file: Path) -> str:
    """The text of a kernel file; empty if absent, as on other systems."""
    try:
        return file.read_text()
    except OSError:
        return ""


@contextmanager
def retain_freed_memory() -> Iterator[None]:
    """Make glibc keep freed memory for reuse, unless the user has configured it.

    By default glibc returns the top of the heap to the system whenever a step has freed its
    activations, and the next step allocates it again, page by page.

    Returns:
        a context; on exit, free memory is returned to the system. The thresholds cannot be read, so
        they are left at the maximum of glibc's own adjustment.
    """
    libc = None if _is_set() else _glibc()
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
    """Load the C library of this process; None if it is not glibc."""
    if GLIBC not in os.confstr_names or not (os.confstr(GLIBC) or "").startswith("glibc"):
        return None
    return ctypes.CDLL(None)


def _is_set() -> bool:
    """True if the user has set these thresholds in the environment."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc." in tunables or any(name in os.environ for name in MALLOC_VARIABLES)
