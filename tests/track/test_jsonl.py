"""Rows of metrics: exact, whole, and back to an offset."""

import json
import math
import os
import resource
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.config import RunError
from setpoint.track.config import Jsonl
from setpoint.track.jsonl import JsonlTracker, JsonlWriter, read_jsonl
from setpoint.track.run_directory import RunDirectory

from ..support.snapshots import refused

# Newer Pythons warn of forks beside threads; these children start none and end with _exit.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@settings(max_examples=50, deadline=None)
@given(values=st.lists(st.floats(), max_size=8))
def test_floats_are_exact(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    path = tmp_path_factory.mktemp("jsonl") / "metrics.jsonl"
    with JsonlWriter(path) as writer:
        for value in values:
            writer.write({"loss": value, "nested": {"list": [value]}})
    rows = read_jsonl(path)
    assert len(rows) == len(values)
    for row, value in zip(rows, values, strict=True):
        for read in (row["loss"], row["nested"]["list"][0]):
            if math.isnan(value):
                assert math.isnan(read)
            else:
                assert struct.pack("d", read) == struct.pack("d", value)


def test_every_json_reader_can_read_it(tmp_path: Path) -> None:
    with JsonlWriter(tmp_path / "m.jsonl") as writer:
        writer.write({"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.1 + 0.2})
    text = (tmp_path / "m.jsonl").read_text()
    assert text == '{"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 0.30000000000000004}\n'

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    json.loads(text, parse_constant=refuse)


def test_back_to_an_offset(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    offsets = [0]
    with JsonlWriter(path) as writer:
        for step in range(5):
            writer.write({"step": step})
            offsets.append(writer.offset)
    with JsonlWriter(path) as writer:
        assert writer.offset == offsets[5]
        writer.truncate(offsets[3])
        writer.write({"step": "new"})
    assert [row["step"] for row in read_jsonl(path)] == [0, 1, 2, "new"]
    with JsonlWriter(path) as writer:
        writer.truncate(0)
    assert read_jsonl(path) == []


def test_offsets_of_another_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with JsonlWriter(path) as writer:
        writer.write({"step": 1})
        with refused(RunError):
            writer.truncate(13)
        with refused(RunError):
            writer.truncate(5)
    assert read_jsonl(path) == [{"step": 1}]


@pytest.mark.parametrize("torn", [b'{"step": 2', b"\x00" * 200_000, b""])
def test_a_torn_last_line_is_dropped(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n' + torn)
    assert read_jsonl(path) == [{"step": 1}]
    with JsonlWriter(path) as writer:
        assert writer.offset == 12
        writer.write({"step": 2})
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}]


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    for line in (b"[1]", b"{1}", b"\xff"):
        path.write_bytes(b'{"step": 1}\n' + line + b"\n")
        with refused():
            read_jsonl(path)


def test_what_json_cannot_hold_writes_nothing(tmp_path: Path) -> None:
    with JsonlWriter(tmp_path / "m.jsonl") as writer:
        with pytest.raises(TypeError):
            writer.write({"loss": object()})
        assert writer.offset == 0
    assert (tmp_path / "m.jsonl").read_bytes() == b""


def test_a_full_disk_leaves_whole_rows(tmp_path: Path) -> None:
    """In a child, under a limit that cuts the third row in its middle."""
    path = tmp_path / "m.jsonl"
    reader, pipe = os.pipe()
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30, resource.RLIM_INFINITY))
        writer = JsonlWriter(path)
        try:
            for step in range(9):
                writer.write({"step": step})
        except RunError as error:
            os.write(pipe, str(error).encode())
        os._exit(0)
    os.close(pipe)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as told:
        assert told.read() == f"{path} cannot be written: File too large"
    assert path.read_bytes() == b'{"step": 0}\n{"step": 1}\n'


def test_unwritable(tmp_path: Path) -> None:
    with refused():
        JsonlWriter(tmp_path / "none" / "m.jsonl")
    with refused():
        read_jsonl(tmp_path / "none")


def test_the_tracker_is_built_from_its_section(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as run:
        tracker, notes = JsonlTracker(Jsonl(), run_directory=run), list[str]()
        tracker.open(0, {}, notes.append)
        tracker.write({"step": 1})
        state = tracker.state_dict()
        tracker.write({"step": 2})
        tracker.close()
        assert read_jsonl(run.metrics) == [{"step": 1}, {"step": 2}] and not notes
        again = JsonlTracker(Jsonl(), run_directory=run)
        again.open(1, state, notes.append)
        again.close()
        assert read_jsonl(run.metrics) == [{"step": 1}] and not notes
        short = JsonlTracker(Jsonl(), run_directory=run)
        short.open(5, {"offset": 1000}, notes.append)
        short.close()
        assert notes == [f"{run.metrics} has no rows of steps before 5"]
