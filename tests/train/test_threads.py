"""Waiting threads are told to sleep, unless somebody has said otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def policy_after(program: str, setting: str | None) -> str:
    """What the variable is in a process that runs a program."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if setting is not None:
        environment["OMP_WAIT_POLICY"] = setting
    program = (
        f"import os, sys\n{program}\nfrom setpoint.train import prepare_threads\n"
        "prepare_threads()\nprint(os.environ.get('OMP_WAIT_POLICY'))"
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
    assert policy_after(before, setting) == after


# Prints what the variable is at the moment when torch is imported, and ends there.
AT_IMPORT = """
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print("torch:", os.environ.get("OMP_WAIT_POLICY"), flush=True)
            os._exit(0)
sys.meta_path.insert(0, Finder())
"""
SMALL = ["tiny", "--with", "smoke(steps=1)", "--checkpoint.resume", "never"]
CHECKED = ["tiny", "--using", "torch", "--compile.backend", "eager"]
ENTRIES = {
    "train": f"from setpoint.cli.main import main; main(['train', *{SMALL}])",
    "check": f"from setpoint.cli.main import main; main(['check', *{CHECKED}])",
    "infer": "import setpoint.cli.infer, setpoint.infer.inference",
    "generate": "import setpoint.cli.infer, setpoint.infer.continuation",
    "export": "import setpoint.cli.infer, setpoint.infer.exporting",
    "a program that trains": "from setpoint.train.run import train",
    "a program that builds the parts": "import setpoint.train.build.components",
    "a program that infers": "from setpoint.infer.inference import infer",
    "a program that loads weights": "import setpoint.infer.loaded_model",
    "a preset that is trained": "import setpoint.presets.tiny, torch",
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_threads_sleep_before_torch_is_imported(entry: str, tmp_path: Path) -> None:
    """Trap: spinning threads make training beside another process 25 times slower or worse."""
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    words = [sys.executable, "-c", f"{AT_IMPORT}\n{ENTRIES[entry]}"]
    done = subprocess.run(
        words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "torch: PASSIVE", done.stderr
