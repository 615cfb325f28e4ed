"""The model taken apart by PyTorch's own engines gives what it gives whole."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_two_ranks_hold_their_own_shards_and_compute_the_same():
    """Trap: on the CPU torch's own random init gives every rank the same shard."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.model.sharded_ranks"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr


def test_weights_do_not_depend_on_ranks_and_dropout_does():
    """Trap: shards and masks that are the same on every rank."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.model.initialized_ranks"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
