"""Lines in a pipe, a bar on a terminal."""

import errno
import io
import math
import os
import pdb
from bdb import BdbQuit
from pathlib import Path

import pytest

from setpoint.config import RunError
from setpoint.track.console import is_terminal, print_table, short_count, short_time
from setpoint.track.progress import (
    BarProgress,
    LineProgress,
    LoggedProgress,
    Progress,
    Reading,
    make_progress,
    make_work_progress,
)

from ..checkpoint.disk import Operation, watched
from ..support.snapshots import refused


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


FULL = Reading(20, 2.8125, 16_149.0, 42.4, 0.312, 0.0667)


def test_lines() -> None:
    stream = io.StringIO()
    with make_progress("auto", total_steps=300, stream=stream) as progress:
        assert isinstance(progress, LineProgress)
        progress.advance(19)
        progress.show(FULL)
        progress.note("saved step-00000020")
        progress.show(Reading(40))
    assert stream.getvalue() == (
        "step 20/300  loss 2.8125  16.1k tokens/s  MFU 31.2%  0:42 left\n"
        "saved step-00000020\n"
        "step 40/300\n"
    )


def test_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    make_progress("lines", total_steps=None, stream=stream).show(Reading(5, 1.0))
    assert stream.getvalue() == "step 5  loss 1.0000\n"
    with make_progress("bar", total_steps=3, stream=stream) as forced:
        forced.show(Reading(3))
    assert "step 3/3" in stream.getvalue()
    terminal = Terminal()
    with make_progress("none", total_steps=3, stream=terminal) as progress:
        progress.show(FULL)
        progress.note("x")
        progress.advance(1)
    assert terminal.getvalue() == "" and type(progress) is Progress
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_progress("auto", total_steps=3, stream=Terminal()), LineProgress)


@pytest.mark.parametrize("total", [300, None])
def test_bar(total: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with make_progress("auto", total_steps=total, stream=stream) as progress:
        progress.show(Reading(10, 3.5))
        progress.note("saved [step-00000010]")
        progress.show(FULL)
        progress.advance(21)
        progress.advance(22)
    progress.stop()
    text = stream.getvalue()
    assert "saved [step-00000010]" in text
    assert "loss 2.8125  16.1k tokens/s  MFU 31.2%  0:42 left" in text
    assert ("step 21/300" if total else "step 21") in text
    # The cursor is hidden while the bar is drawn, and shown again at the end.
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1


def test_a_line_every_few_seconds_of_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 5.0, 9.9, 10.0, 14.9, 15.0, 16.0, 20.0, 21.0])
    monkeypatch.setattr("setpoint.track.progress.time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    progress = make_progress("lines", total_steps=3, stream=stream)
    for done in range(0, 4000, 500):
        progress.work("evaluating held_out, sequences", done, 3500)
    progress.work("evaluating held_out, sequences", 0, 3500)  # another one, which begins
    assert stream.getvalue() == (
        "evaluating held_out, sequences: 1.50k/3.50k (43%), 150/s, 0:13 left\n"
        "evaluating held_out, sequences: 2.50k/3.50k (71%), 167/s, 0:06 left\n"
    )


def test_a_bar_for_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    progress = make_progress("auto", total_steps=30, stream=stream)
    progress.work("reading documents", 1, None)  # before training has begun
    progress.work("tokenizing train, bytes", 0, 4000)
    with progress:
        progress.work("tokenizing train, bytes", 4000, 4000)
        progress.show(Reading(10, 3.5))
    text = stream.getvalue()
    assert "tokenizing train, bytes" in text
    assert text.rindex("tokenizing") < text.index("step 10/30")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1


def test_the_work_of_a_command_is_a_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with make_work_progress(stream) as progress:
        progress.work("evaluating web, sequences", 0, 4)
        progress.work("evaluating web, sequences", 2, 4, now=True)
        progress.work("evaluating web, sequences", 4, 4)
    assert stream.getvalue() == (
        "\revaluating web, sequences: 0/4 (0%)\x1b[K\revaluating web, sequences: 2/4 (50%)\x1b[K"
        "\r\x1b[K"
    )


def test_the_bar_leaves_the_terminal_to_pdb() -> None:
    """Whatever is drawn over a line that is being typed cannot be read."""
    stream, seen = io.StringIO(), list[bool]()
    bar = BarProgress(10, stream)

    def stop_in(commands: str) -> None:
        debugger = pdb.Pdb(stdin=io.StringIO(commands), stdout=io.StringIO(), nosigint=True)
        debugger.set_trace()
        seen.append(bar._bar.live.is_started)

    bar.start()
    try:
        stop_in("seen.append(bar._bar.live.is_started)\nbar.work('w', 1, 2, now=True)\nc\n")
        assert seen == [False, True]
        assert "w" in stream.getvalue()
        with pytest.raises(BdbQuit):
            stop_in("q\n")
        assert not bar._bar.live.is_started
    finally:
        bar.stop()
    seen.clear()
    stop_in("seen.append(bar._bar.live.is_started)\nc\n")
    assert seen == [False, False]


def test_lines_are_shown_and_kept(tmp_path: Path) -> None:
    """A second session adds to the file."""
    shown = io.StringIO()
    for step in (10, 20):
        progress = LoggedProgress(LineProgress(20, shown), tmp_path / "rank-0.log", 20)
        with progress:
            progress.show(Reading(step=step, loss=2.5))
            progress.note("saved")
        progress.close()
    assert shown.getvalue() == "step 10/20  loss 2.5000\nsaved\nstep 20/20  loss 2.5000\nsaved\n"
    kept = [line.split(" ", 1) for line in (tmp_path / "rank-0.log").read_text().splitlines()]
    assert [text for _, text in kept] == shown.getvalue().splitlines()
    assert all(time.endswith("Z") for time, _ in kept)


class Gone(LineProgress):
    def show(self, reading: Reading) -> None:
        raise BrokenPipeError


def test_a_reader_that_leaves_does_not_end_the_run(tmp_path: Path) -> None:
    progress = LoggedProgress(Gone(None, io.StringIO()), tmp_path / "log", None)
    progress.show(Reading(step=1))
    progress.show(Reading(step=2))
    progress.close()
    assert len((tmp_path / "log").read_text().splitlines()) == 2


def test_a_file_that_cannot_be_written_is_named_once(tmp_path: Path) -> None:
    """Closing it would write the line once more, and hide what has ended the run."""
    full = [False]

    def fail(operation: Operation) -> None:
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with refused(RunError):
        LoggedProgress(LineProgress(None, io.StringIO()), tmp_path, None)
    with watched(tmp_path, before=fail):
        progress = LoggedProgress(LineProgress(None, io.StringIO()), tmp_path / "log", None)
        full[0] = True
        with refused(RunError):
            progress.note("a line")
        progress.close()


# The table at the end.


ROWS = [("unigram", "4.81"), ("this model", "2.05", "best")]


def test_a_pipe_gets_plain_text() -> None:
    stream = io.StringIO()
    print_table("Held-out text", ROWS, columns=("", "bits per byte"), stream=stream)
    assert stream.getvalue() == (
        "Held-out text\n"
        "              bits per byte\n"
        "  unigram     4.81\n"
        "  this model  2.05           best\n"
    )


def test_a_terminal_gets_a_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    print_table("Held-out text", [("a [b]", "1"), ("c", "2", "3")], columns=("x",), stream=stream)
    text = stream.getvalue()
    assert "Held-out text" in text and "a [b]" in text and "┃" in text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"), (7, "7"), (950, "950"), (999, "999"), (999.6, "1.00k"), (1000, "1.00k"),
        (16_149, "16.1k"), (99_960, "100k"), (999_499, "999k"), (999_600, "1.00M"),
        (1_250_000, "1.25M"), (2e15, "2000T"), (0.5, "0.5"), (12.345, "12.3"), (-1500, "-1.50k"),
        (math.inf, "inf"),
    ],
)  # fmt: skip
def test_counts(count: float, text: str) -> None:
    assert short_count(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"), (42.4, "0:42"), (59.6, "1:00"), (3599.7, "1:00:00"), (3909, "1:05:09"),
        (3 * 86400 + 4 * 3600, "3d 4:00:00"), (86400 + 5, "1d 0:00:05"), (-1, "0:00"),
        (math.inf, "?"), (math.nan, "?"),
    ],
)  # fmt: skip
def test_times(seconds: float, text: str) -> None:
    assert short_time(seconds) == text


def test_a_closed_stream_is_no_terminal() -> None:
    stream = io.StringIO()
    assert not is_terminal(stream)
    stream.close()
    assert not is_terminal(stream)
