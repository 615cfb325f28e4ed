"""Experts on several ranks give what a loop over rows gives on one, in fp64, with all gradients."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from ...conftest import ROOT


def test_two_ranks_divide_the_experts(run_module: Callable[[str], None]) -> None:
    run_module("tests.model.moe.dispatch_ranks")


@pytest.mark.slow
def test_four_ranks_divide_the_experts() -> None:
    command = [sys.executable, "-m", "tests.model.moe.dispatch_ranks", "4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
