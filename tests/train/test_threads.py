"""Waiting threads sleep, unless OMP_WAIT_POLICY is set."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from setpoint.train import prepare_threads


@pytest.mark.parametrize(
    ("has_torch", "setting", "after"),
    [
        (False, None, "PASSIVE"),
        (False, "ACTIVE", "ACTIVE"),
        # It would be read no more, and children would inherit it for nothing.
        (True, None, None),
    ],
)
def test_the_policy(
    monkeypatch: pytest.MonkeyPatch, has_torch: bool, setting: str | None, after: str | None
) -> None:
    monkeypatch.setitem(sys.modules, "torch", sys)
    if not has_torch:
        monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setenv("OMP_WAIT_POLICY", setting or "")
    if setting is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    prepare_threads()
    assert os.environ.get("OMP_WAIT_POLICY") == after


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
    "a program that trains": "from setpoint.train.run import train",
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
