"""A disk that is really full: a small tmpfs, which is then made larger."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from setpoint.train.run import train
from tests.train.small import assert_same_run, small_job

from ...support.snapshots import refused


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Half a megabyte, where this process may mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting needs more rights")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_ends_a_run_in_words_and_a_larger_one_lets_it_go_on(
    disk: Path, tmp_path: Path
) -> None:
    keep = ("checkpoint.keep=null",)
    oracle = train(small_job(tmp_path / "whole", *keep)).directory
    for size in ("768k", "16m"):
        with refused():
            train(small_job(disk / "folder", *keep))
        subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)
    assert_same_run(train(small_job(disk / "folder", *keep)).directory, oracle)
