from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest

from setpoint.config import RunError
from setpoint.track.progress import LineProgress, LoggedProgress, Reading

from ..checkpoint.disk import Operation, watched


def test_lines_are_shown_and_kept(tmp_path: Path) -> None:
    shown = io.StringIO()
    progress = LoggedProgress(LineProgress(20, shown), tmp_path / "rank-0.log", 20)
    with progress:
        progress.show(Reading(step=10, loss=2.5))
        progress.note("saved")
    progress.close()
    assert shown.getvalue() == "step 10/20  loss 2.5000\nsaved\n"
    kept = [line.split(" ", 1) for line in (tmp_path / "rank-0.log").read_text().splitlines()]
    assert [text for _, text in kept] == shown.getvalue().splitlines()
    assert all(time.endswith("Z") for time, _ in kept)


def test_a_second_session_adds_to_the_file(tmp_path: Path) -> None:
    for text in ("first", "second"):
        progress = LoggedProgress(LineProgress(None, io.StringIO()), tmp_path / "log", None)
        progress.note(text)
        progress.close()
    assert [line.split(" ", 1)[1] for line in (tmp_path / "log").read_text().splitlines()] == [
        "first",
        "second",
    ]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"cannot be written: Is a directory"):
        LoggedProgress(LineProgress(None, io.StringIO()), tmp_path, None)


class Gone(LineProgress):
    def show(self, reading: Reading) -> None:
        raise BrokenPipeError


def test_a_reader_that_leaves_does_not_end_the_run(tmp_path: Path) -> None:
    progress = LoggedProgress(Gone(None, io.StringIO()), tmp_path / "log", None)
    progress.show(Reading(step=1))
    progress.show(Reading(step=2))
    progress.close()
    assert len((tmp_path / "log").read_text().splitlines()) == 2


def test_a_line_that_was_refused_is_no_second_error(tmp_path: Path) -> None:
    """Closing the file would write it once more, and hide what has ended the run."""
    full = [False]

    def refused(operation: Operation) -> None:
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with watched(tmp_path, before=refused):
        progress = LoggedProgress(LineProgress(None, io.StringIO()), tmp_path / "log", None)
        full[0] = True
        with pytest.raises(RunError, match="log cannot be written: No space left on device"):
            progress.note("a line")
        progress.close()
