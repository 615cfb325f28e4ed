"""How much memory processes on this machine may take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
SWAP = Path("/proc/meminfo")


def machine_memory() -> int:
    """Count the bytes that a process may take before the kernel kills it.

    Returns:
        physical memory, or the lower limit of a control group that the process is in, and swap.
    """
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_limits()]) + _swap()


def _limits() -> Iterator[int]:
    """The limits of the control groups, of version 1 or 2, from the process's own upwards."""
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
    """What a file of the kernel says; nothing where there is none, as on other systems."""
    try:
        return file.read_text()
    except OSError:
        return ""
