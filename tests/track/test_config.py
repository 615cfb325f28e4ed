"""The section `[tracking]` through the real kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from setpoint.config import RUNTIME, SetpointError, resolve
from setpoint.config.composition import compose
from setpoint.config.resolving.checks import verify
from setpoint.editor_schema.help import field_help
from setpoint.track.config import Jsonl, TrackerConfig, Tracking
from setpoint.track.jsonl import JsonlTracker, read_jsonl
from setpoint.track.run_directory import RunDirectory
from setpoint.units import Period


def test_defaults() -> None:
    section = resolve(Tracking())
    assert section.every == Period("10 steps")
    assert section.progress == "auto"
    assert [type(tracker) for tracker in section.trackers] == [Jsonl]


def test_each_field_has_help_and_is_runtime() -> None:
    for name, info in Tracking.__setpoint__.fields.items():
        assert field_help(Tracking, name)
        assert (info.role or Tracking.__setpoint__.role) is RUNTIME


def test_values_from_data() -> None:
    section = Tracking()
    section.every = "30 s"  # type: ignore[assignment]
    section.trackers = ({"type": "jsonl"},)  # type: ignore[assignment]
    section.progress = "lines"
    resolved = resolve(section)
    assert (resolved.every.count, resolved.every.unit) == (30.0, "seconds")
    assert [type(each) for each in resolved.trackers] == [Jsonl]
    for name, value in (("progress", "bars"), ("every", "0 steps"), ("trackers", [{"type": "x"}])):
        with pytest.raises(SetpointError):
            setattr(section, name, value)


def test_two_writers_of_one_file_are_refused() -> None:
    section = Tracking(trackers=(Jsonl(), Jsonl()))
    with pytest.raises(SetpointError, match=r"trackers\.1(.|\n)*as tracker 0 does"):
        resolve(section)
    assert resolve(Tracking(trackers=())).trackers == ()


def test_trackers_that_leave_metrics_jsonl_out_are_cautioned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    family = TrackerConfig.__setpoint__
    monkeypatch.setattr(family, "variants", dict(family.variants))

    class Own(TrackerConfig, type="own_tracker"):
        pass

    def cautions(*trackers: TrackerConfig) -> list[str]:
        return [each.code for each in verify(resolve(Tracking(trackers=trackers))).cautions]

    assert cautions(Own()) == ["no-metrics-file"]
    assert cautions(Own(), Jsonl()) == cautions() == []
    section = resolve(Tracking(trackers=(Own(),)))
    (caution,) = verify(section).cautions
    typed = caution.hint.partition("with --tracking.")[2].rstrip(".").split()
    composed = compose(Tracking, section, flags=[f"--{typed[0]}", typed[1]]).resolve()
    assert [type(each) for each in composed.trackers] == [Own, Jsonl]


def test_build(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as run:
        writers = [t.build(run_directory=run) for t in resolve(Tracking()).trackers]
        assert [type(writer) for writer in writers] == [JsonlTracker]
        writers[0].open(0, {}, lambda line: None)
        writers[0].write({"step": 1})
        assert read_jsonl(run.metrics) == [{"step": 1}]


def test_it_imports_nothing_heavy() -> None:
    code = (
        "import sys; import setpoint.track.config, setpoint.checkpoint.config; "
        "print(*[m for m in ('torch', 'numpy', 'rich', 'ruamel') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
