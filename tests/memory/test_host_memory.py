from __future__ import annotations

import os
from pathlib import Path

import pytest

from setpoint.memory import host_memory

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
