"""Waiting threads are told to sleep, unless somebody has said otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def policy_after(program: str, setting: str | None) -> str:
    """What the variable is in a process that runs a program."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if setting is not None:
        environment["OMP_WAIT_POLICY"] = setting
    program = (
        "import os, sys\nfrom setpoint.train.threads import prepare_threads\n"
        f"{program}\nprint(os.environ.get('OMP_WAIT_POLICY'))"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("before", "setting", "after"),
    [
        ("", None, "PASSIVE"),
        ("", "ACTIVE", "ACTIVE"),
        # It would be read no more, and children would inherit it for nothing.
        ("sys.modules['torch'] = sys", None, "None"),
    ],
)
def test_the_policy(before: str, setting: str | None, after: str) -> None:
    assert policy_after(f"{before}\nprepare_threads()", setting) == after
