"""A process that takes a run directory and waits; run by the tests.

Usage: `python locking.py PATH`. It prints `locked` or the error, and ends when its input does.
"""

import sys

from setpoint.config import SetpointError
from setpoint.track.run_directory import RunDirectory

if __name__ == "__main__":
    try:
        run = RunDirectory.create(sys.argv[1])
    except SetpointError as error:
        print(f"refused: {error}", flush=True)
    else:
        print("locked", flush=True)
    sys.stdin.read()
