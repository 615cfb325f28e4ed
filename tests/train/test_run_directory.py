"""Files of a run directory, and refusals before anything is written."""

import json
import shutil
import socket
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from setpoint.config import SetpointError
from setpoint.config.composition import compose
from setpoint.train import resume
from setpoint.train.config import Job
from setpoint.train.run import train
from setpoint.train.run_name import identity_mark

from ..support.snapshots import refused
from .small import events, small_job, snapshot


def test_exactly_what_the_design_lists(tmp_path: Path) -> None:
    flags = ("duration=6 steps", "evaluation.every=2 steps", "tracking.report=true")
    job = small_job(tmp_path, *flags)
    run = train(job).directory
    names = {path.name for path in run.iterdir()}
    assert names == {
        ".lock", identity_mark(job), "config.json", "config.toml", "origins.json",
        "environment.json", "metrics.jsonl", "events.jsonl", "chain.jsonl", "report.html",
        "checkpoints", "logs",
        "traces",
    }  # fmt: skip
    checkpoints = {path.name for path in (run / "checkpoints").iterdir()}
    assert checkpoints == {"step-00000004", "step-00000006", "latest", "best"}
    files = {path.name for path in (run / "checkpoints/step-00000006").iterdir()}
    assert files == {
        "model.safetensors", "optimizer.safetensors", "state.json",
        "manifest.json", "config.json", "origins.json", "config.toml", "chain.txt",
    }  # fmt: skip
    for name in ("config.json", "origins.json", "config.toml"):
        assert (run / "checkpoints/step-00000006" / name).read_bytes() == (run / name).read_bytes()
    for path in run.rglob("*"):
        if path.is_file():
            assert not path.read_bytes().startswith((b"\x80", b"PK")), f"{path} is pickled"
    names = ["start", "memory", "save", "save", "end"]
    assert [event["event"] for event in events(run)] == names
    environment = json.loads((run / "environment.json").read_text())
    for side in ("train", "held_out"):
        data = environment["data"][side]
        assert len(data["files"]) == {"train": 36, "held_out": 4}[side]
        assert data["bytes"] == sum(size for _, size, _ in data["files"])


def test_the_minimal_file_repeats_the_run(tmp_path: Path) -> None:
    job = small_job(tmp_path, "duration=3 steps", "optimizer.lr=0.003")
    run = train(job).directory
    again = compose(Job, str(run / "config.toml"), flags=[f"workspace={tmp_path / 'b'}"]).resolve()
    other = train(again).directory
    assert other.name == run.name
    assert (run / "metrics.jsonl").read_bytes().count(b"\n") == 4
    model = "checkpoints/step-00000003/model.safetensors"
    assert (run / model).read_bytes() == (other / model).read_bytes()


def test_a_new_run_names_an_unfinished_one_of_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("duration=6 steps", "tracking.progress=lines")
    first = train(small_job(tmp_path, *flags), until=2).directory
    assert "this is a new run" not in capsys.readouterr().out
    train(small_job(tmp_path, *flags, "optimizer.lr=0.125"), directory=first.parent / "other")
    assert "this is a new run" not in capsys.readouterr().out
    train(small_job(tmp_path, *flags, "optimizer.lr=0.125", "seed=9"))
    assert (
        f"this is a new run: {first} is at step 2, and differs in seed 1234 -> 9, "
        f"optimizer.lr 0.01 -> 0.125\n"
    ) in capsys.readouterr().out
    train(small_job(tmp_path, *flags, "seed=10"))
    assert "this is a new run" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "held_out"),
    [(b"", 0.2), (b"good until \xff here", 0.2), (b"short", 0.95)],
    ids=["empty", "not UTF-8", "short"],
)
def test_bad_data_is_refused_and_nothing_is_written(
    tmp_path: Path, content: bytes, held_out: float
) -> None:
    for number in range(20):
        (tmp_path / f"{number}.txt").write_bytes(content)
    source = f'data.sources=[{{type=text, paths=["{tmp_path}/*.txt"]}}]'
    with refused() as caught:
        train(small_job(tmp_path, source, f"data.held_out={held_out}"))
    assert caught.value.status == 2
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("why", ["a port in use", "a checkpoint that does not fit", "Ctrl-C"])
def test_a_first_start_that_is_refused_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """By what is found out with the run directory open; one that is there and empty stays."""
    target = tmp_path / "runs" / "target"
    wider = small_job(tmp_path, "model.dim=32", "duration=1 steps")
    other = train(wider, directory=tmp_path / "other").directory
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flag, words = {
            "a port in use": (
                f"tracking.trackers=[{{type: prometheus, port: {taken.getsockname()[1]}}}]",
                "in use",
            ),
            "a checkpoint that does not fit": (f"checkpoint.load={other}", "does not fit"),
            "Ctrl-C": ("duration=1 steps", None),
        }[why]
        if why == "Ctrl-C":
            monkeypatch.setattr(resume, "states_of", MagicMock(side_effect=KeyboardInterrupt))
        for made in (False, True):
            if made:
                target.mkdir(parents=True)
            before = snapshot(tmp_path)
            with pytest.raises((SetpointError, KeyboardInterrupt), match=words):
                train(small_job(tmp_path, flag, "resilience.heartbeat={}"), directory=target)
            assert snapshot(tmp_path) == before


def test_stacks_of_ranks_stay_with_a_first_start_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is a fault, not a refusal, keeps its log."""
    stacks = tmp_path / "runs" / "hung" / "logs" / "rank-1.stacks"

    def hang(*given: object, **named: object) -> None:
        stacks.write_text("Thread 0x1")
        raise SetpointError("no answer from rank 1")

    monkeypatch.setattr(resume, "states_of", hang)
    with refused():
        train(small_job(tmp_path), directory=stacks.parents[1])
    assert stacks.exists()
    monkeypatch.setattr(resume, "states_of", MagicMock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        train(small_job(tmp_path), directory=tmp_path / "runs" / "other")
    assert (tmp_path / "runs" / "other" / "logs" / "rank-0.log").exists()


def test_ranks_that_nothing_has_started(tmp_path: Path) -> None:
    with refused():
        train(small_job(tmp_path, "parallel.world_size=2"))
    assert not (tmp_path / "runs").exists()
