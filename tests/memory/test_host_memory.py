import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from setpoint.memory import host_memory
from setpoint.memory.host_memory import retain_freed_memory

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("membership", "file"),
    [
        ("0::/jobs/mine\n", "jobs/memory.max"),
        ("9:cpu:/x\n4:memory:/jobs/mine\n0::/\n", "memory/jobs/mine/memory.limit_in_bytes"),
    ],
    ids=["version 2, of the group above", "version 1"],
)
def test_the_lowest_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, membership: str, file: str
) -> None:
    (tmp_path / "cgroup").write_text(membership)
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nSwapTotal:       2 kB\n")
    monkeypatch.setattr(host_memory, "CGROUPS", tmp_path)
    monkeypatch.setattr(host_memory, "MEMBERSHIP", tmp_path / "cgroup")
    monkeypatch.setattr(host_memory, "SWAP", tmp_path / "meminfo")
    assert host_memory.machine_memory() == PHYSICAL + 2048
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("max\n")
    assert host_memory.machine_memory() == PHYSICAL + 2048
    (tmp_path / file).write_text("1000000\n")
    assert host_memory.machine_memory() == 1000000 + 2048


def test_other_systems_have_no_such_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "MEMBERSHIP", tmp_path / "cgroup")
    monkeypatch.setattr(host_memory, "SWAP", tmp_path / "meminfo")
    assert host_memory.machine_memory() == PHYSICAL


# Prints the MiB that stay resident after 120 were taken and freed: within the context and after.
PROGRAM = """
import ctypes, os, sys
from contextlib import nullcontext
from setpoint.memory.host_memory import retain_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20
size, before = 30 * 2**20, resident()
with retain_freed_memory() if sys.argv[1] == "true" else nullcontext():
    blocks = [libc.malloc(size) for _ in range(4)]
    for block in blocks:
        libc.memset(block, 1, size)
    for block in blocks:
        libc.free(block)
    print(resident() - before)
print(resident() - before)
"""


def left_after(wanted: str, **variables: str) -> list[int]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    words = [sys.executable, "-c", PROGRAM, wanted]
    done = subprocess.run(words, env=environment | variables, capture_output=True, check=True)
    return [int(line) for line in done.stdout.split()]


@pytest.mark.skipif(host_memory._glibc() is None, reason="the C library is not glibc")
def test_freed_memory_stays_until_the_end_and_goes_back_then() -> None:
    kept, after = left_after("true")
    assert kept >= 119 and after < 10
    assert max(left_after("false")) < 10


@pytest.mark.parametrize(
    ("name", "value"),
    [("MALLOC_TRIM_THRESHOLD_", "131072"), ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=99")],
)
def test_settings_of_the_user_hold(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(host_memory, "_glibc", lambda: pytest.fail("the C library was looked for"))
    with retain_freed_memory():
        pass


@pytest.mark.parametrize("names", [{}, {host_memory.GLIBC: 2}])
def test_another_c_library_is_left_alone(
    names: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any) -> Any:
        raise OSError("there is none of that name")

    for variable in (*host_memory.MALLOC_VARIABLES, "GLIBC_TUNABLES"):
        monkeypatch.delenv(variable, raising=False)
    # macOS and musl do not know the name, or have no value for it.
    monkeypatch.setattr(os, "confstr_names", names)
    monkeypatch.setattr(os, "confstr", lambda name: None)
    monkeypatch.setattr(ctypes, "CDLL", load)
    with retain_freed_memory():
        pass
