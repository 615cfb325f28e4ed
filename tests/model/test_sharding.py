"""The model taken apart by PyTorch's own engines gives what it gives whole."""

import os
import subprocess
import sys
from pathlib import Path


def test_two_ranks_hold_their_own_shards_and_compute_the_same():
    """Trap: on the CPU torch's own random init gives every rank the same shard."""
    script = Path(__file__).with_name("sharded_ranks.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
