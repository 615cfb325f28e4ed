from __future__ import annotations

import os
import subprocess
import sys

import pytest

from setpoint.profile.profiler import CHATTER, without_chatter


def test_only_the_profilers_lines_are_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    with without_chatter():
        os.write(2, CHATTER + b"2026-11-22 profiler_start\n")
        print("from Python", file=sys.stderr)
        os.write(2, b"from a library\n")
        print("to standard output")
    print("after", file=sys.stderr)
    out, error = capfd.readouterr()
    assert out == "to standard output\n"
    assert error == "from Python\nfrom a library\nafter\n"


def test_what_was_printed_is_there_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError), without_chatter():
        os.write(2, b"why\n")
        raise ValueError
    assert capfd.readouterr().err == "why\n"


def test_without_standard_error() -> None:
    code = (
        "import os\nfrom setpoint.profile.profiler import without_chatter\nos.close(2)\n"
        "with without_chatter():\n    print('ran')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "ran\n"
