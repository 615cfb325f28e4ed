"""Trackers of other projects, each driven in its local form and read back with its own reader."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import sqlite3
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any, ClassVar

import pytest

from setpoint.config import ConfigError, RunError, resolve, verify
from setpoint.track.config import (
    Aim,
    Comet,
    Mlflow,
    ServiceConfig,
    TensorBoard,
    Tracking,
    Trackio,
    Wandb,
)
from setpoint.track.run_directory import RunDirectory
from setpoint.track.services import _aim_name
from setpoint.track.trackers import Background, RunFacts, Tracker, _driven

from ..support.snapshots import refused

WAIT = 300.0
"""Seconds that a busy machine may need."""
CONFIG = {"optimizer": {"lr": 0.1, "betas": [0.9, 0.95]}, "name": "tiny"}
FACTS = RunFacts(
    "0123456789abcdef" * 2,
    "tiny-1234",
    "exp",
    "1234",
    CONFIG,
    {"optimizer.lr": "flag"},
    {"python": "3", "data": {"files": [["a.txt", 1, "0" * 64]] * 20}},
    description="why",
)


def row(step: int, loss: float) -> dict[str, Any]:
    return {"kind": "train", "time": "2026-11-23", "step": step, "loss": loss, "mfu": None}


def build(config: ServiceConfig, run: RunDirectory) -> Background:
    """The tracker of a service in its thread."""
    tracker = _driven(str(type(config).__setpoint__.tag), config, config.build(run_directory=run))
    assert isinstance(tracker, Background)
    return tracker


def train(config: ServiceConfig, path: Path, step: int, *rows: dict[str, Any]) -> None:
    """A session that goes on at a step; it must come to its end without a word."""
    lines: list[str] = []
    config = resolve(config)
    with RunDirectory.create(path) as run:
        tracker = build(config, run)
        tracker.describe(replace(FACTS, session=1 if not step else 2))
        tracker.open(step, {}, lines.append)
        for each in rows:
            tracker.write(each)
        tracker.close()
    assert lines == []


FIRST = (row(1, 3.0), row(2, 2.0), row(3, 1.5))
SECOND = (row(3, 1.5), {"kind": "evaluation", "step": 3, "held_out_loss": 4.0})


def two_sessions(config: ServiceConfig, path: Path, pause: float = 0.0) -> None:
    """Three steps, of which the last is lost, and comes again."""
    train(config, path, 0, *FIRST)
    time.sleep(pause)
    train(config, path, 2, *SECOND)


def test_tensorboard(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    two_sessions(TensorBoard(directory=str(tmp_path / "events"), patience=WAIT), tmp_path / "run")
    found = events.EventAccumulator(str(tmp_path / "events")).Reload()
    assert [(e.step, e.value) for e in found.Scalars("train/loss")] == [
        (1, 3.0),
        (2, 2.0),
        (3, 1.5),
    ]
    assert [(e.step, e.value) for e in found.Scalars("evaluation/held_out_loss")] == [(3, 4.0)]
    assert "0.95" in found.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()


def log_records(content: bytes) -> list[bytes]:
    """The records of a file of W&B's, which are LevelDB's: blocks of 32 KiB with pieces of them."""
    at, found, parts = 7, list[bytes](), list[bytes]()
    while at + 7 <= len(content):
        if (left := -at % 32768) and left < 7:
            at += left
            continue
        size, kind = struct.unpack_from("<HB", content, at + 4)
        parts.append(content[at + 7 : at + 7 + size])
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            found.append(b"".join(parts))
            parts.clear()
    return found


@pytest.mark.slow
def test_wandb(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    records = importlib.import_module("wandb.proto.wandb_internal_pb2")
    config = Wandb(
        project="p", entity="team", group="g", name="n", job_type="j", tags=("a", "b"),
        mode="offline", directory=str(tmp_path / "first"), patience=WAIT, run_id="known",
    )  # fmt: skip
    train(config, tmp_path / "run", 0, *FIRST)
    # In another folder: its folders are called by the second of their start.
    config.directory = str(tmp_path / "second")
    train(config, tmp_path / "run", 2, *SECOND)
    rows: list[dict[str, Any]] = []
    run: Any = None
    for path in sorted(tmp_path.glob("*/wandb/offline-run-*/*.wandb")):
        ends, found = time.monotonic() + 60, list[Any]()
        # Its own process writes the end of the file when `finish` has returned.
        while not any(each.HasField("exit") for each in found) and time.monotonic() < ends:
            found = [records.Record.FromString(each) for each in log_records(path.read_bytes())]
        for record in found:
            if record.HasField("run"):
                run = record.run
            if record.HasField("history"):
                named = {
                    i.key or i.nested_key[0]: json.loads(i.value_json) for i in record.history.item
                }
                rows.append({k: v for k, v in named.items() if not k.startswith("_")})
    assert (run.run_id, run.project, run.entity, run.run_group) == ("known", "p", "team", "g")
    assert (run.display_name, run.job_type, [*run.tags], run.notes) == ("n", "j", ["a", "b"], "why")
    sent = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert sent["optimizer"] == CONFIG["optimizer"] and sent["setpoint"]["fingerprint"] == "1234"
    assert rows == [
        {"train/loss": 3.0, "step": 1, "session": 1},
        {"train/loss": 2.0, "step": 2, "session": 1},
        {"train/loss": 1.5, "step": 3, "session": 1},
        {"train/loss": 1.5, "step": 3, "session": 2},
        {"evaluation/held_out_loss": 4.0, "step": 3, "session": 2},
    ]
    assert not list(tmp_path.glob("*/wandb/offline-run-*/files/*.patch"))


@pytest.mark.slow  # takes seconds to import
@pytest.mark.filterwarnings("ignore")  # of its own
def test_mlflow(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    config = Mlflow(uri=uri, experiment="e", name="n", tags={"team": "t"}, patience=WAIT)
    two_sessions(config, tmp_path / "run")
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("e").experiment_id])
    assert run.info.run_name == "n" and run.info.status == "FINISHED"
    assert run.data.tags["team"] == "t" and run.data.tags["setpoint.fingerprint"] == "1234"
    assert run.data.params["optimizer.lr"] == "0.1"
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert sorted((m.step, m.value) for m in history) == [(1, 3.0), (2, 2.0), (3, 1.5), (3, 1.5)]
    of_row = {m.timestamp: m.value for m in client.get_metric_history(run.info.run_id, "session")}
    assert sorted(of_row[m.timestamp] for m in history) == [1, 1, 1, 2]
    assert run.data.tags["mlflow.note.content"] == "why"
    # Another run directory takes up the same run by its id.
    train(Mlflow(uri=uri, run_id=run.info.run_id, patience=WAIT), tmp_path / "b", 3, row(4, 1.0))
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert max(m.step for m in history) == 4


class WandbServer(ThreadingHTTPServer):
    """As much of W&B's as a run needs to begin, and then what goes wrong.

    Arguments:
        fault: `silent` answers nothing, `hangs` no rows, `dies` is gone when the first rows come.
    """

    def __init__(self, fault: str) -> None:
        super().__init__(("127.0.0.1", 0), WandbRequest)
        self.fault, self.ended, self.asked = fault, Event(), list[str]()


class WandbRequest(BaseHTTPRequestHandler):
    server: WandbServer  # pyright: ignore[reportIncompatibleVariableOverride]
    run: ClassVar = {
        "id": "r", "name": "r", "displayName": "r", "config": "{}", "historyLineCount": 0,
        "project": {"id": "p", "name": "setpoint", "entity": {"id": "e", "name": "me"}},
    }  # fmt: skip
    answer: ClassVar = {
        "viewer": {"id": "1", "entity": "me", "username": "me", "flags": "{}"},
        "upsertBucket": {"bucket": run, "inserted": True},
        "createRunFiles": {"runID": "r", "uploadHeaders": [], "files": []},
    }

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.asked.append(self.path)
        if self.server.fault == "silent" or "file_stream" in self.path:
            if self.server.fault == "dies":
                Thread(target=self.server.shutdown).start()
                self.server.socket.close()
            else:
                self.server.ended.wait()
            return
        data = {} if b"RunResumeStatus" in body else self.answer
        text = json.dumps({"data": data}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.mark.slow  # three processes that train
@pytest.mark.parametrize("fault", ["silent", "hangs", "dies"])
def test_a_run_ends_whatever_wandbs_server_does(tmp_path: Path, fault: str) -> None:
    """With all rows, in time and in order, also what wandb does when Python exits."""
    pytest.importorskip("wandb")
    server = WandbServer(fault)
    serving = Thread(target=server.serve_forever)
    serving.start()
    command = ["train", "tiny", "--with", "smoke(steps=4)", "--tracking.every", "1"]
    command += ["--tracking.trackers.append", "{type=wandb, patience=4}", "--name", "run"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "setpoint", *command],
            cwd=tmp_path,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "WANDB_BASE_URL": f"http://127.0.0.1:{server.server_address[1]}",
                "WANDB_API_KEY": "0123456789abcdefdeadbeef0123456789abcdef",
            },
            capture_output=True,
            text=True,
            timeout=80,  # wandb itself would wait for 90 s at first, and without end later
        )
    finally:
        server.ended.set()
        server.shutdown()
        serving.join()
        server.server_close()
    assert done.returncode == 0 and "Traceback" not in done.stdout + done.stderr
    assert "tracker wandb did not receive its rows within 4 s: " in done.stdout
    assert any("file_stream" in path for path in server.asked) == (fault != "silent")
    (run,) = (tmp_path / "runs").iterdir()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "train"] == [1, 2, 3, 4]
    if fault != "silent":  # what `wandb sync` sends later
        assert list(run.glob("logs/wandb/run-*/*.wandb"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_aim(tmp_path: Path) -> None:
    aim = pytest.importorskip("aim")
    repo = str(tmp_path / "repo")
    config = Aim(
        repo=repo, experiment="e", name="n", tags=("a",), system_interval=None, patience=WAIT
    )
    # Within one process Aim remembers for half a second which runs there are.
    two_sessions(config, tmp_path / "run", pause=0.6)
    there = aim.Repo(repo)
    (name,) = there.list_all_runs()
    importlib.import_module("aim.sdk.index_manager").RepoIndexManager(there).index(name)
    run = there.get_run(name)
    assert (run.name, run.experiment) == ("n", "e")
    assert run["config", "optimizer", "lr"] == 0.1
    metric = run.get_metric(
        "loss", importlib.import_module("aim.storage.context").Context({"subset": "train"})
    )
    steps, (values, *_) = metric.data.numpy()
    assert [*zip(steps.tolist(), values.tolist(), strict=True)] == [(1, 3.0), (2, 2.0), (3, 1.5)]
    assert run.description == "why"
    # Another run directory takes up the same run by its hash.
    config = Aim(repo=repo, run_id=name, system_interval=None, patience=WAIT)
    train(config, tmp_path / "other", 3, row(4, 1.0))
    assert [*aim.Repo(repo).list_all_runs()] == [name]


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    config = Trackio(
        project="p", name="n", group="g", directory=str(tmp_path / "trackio"), patience=WAIT
    )
    two_sessions(config, tmp_path / "run")
    with sqlite3.connect(tmp_path / "trackio" / "p.db") as database:
        found = database.execute("select run_name, step, metrics from metrics").fetchall()
    rows = [(name, step, json.loads(metrics)) for name, step, metrics in found]
    losses = [(step, each["train/loss"], each["session"]) for _, step, each in rows
              if "train/loss" in each]  # fmt: skip
    assert losses == [(1, 3.0, 1), (2, 2.0, 1), (3, 1.5, 1), (3, 1.5, 2)]
    assert {name for name, _, _ in rows} == {"n-01234567"}
    config = Trackio(project="p", run_id="n-01234567", directory=config.directory, patience=WAIT)
    train(config, tmp_path / "other", 3, row(4, 1.0))
    with sqlite3.connect(tmp_path / "trackio" / "p.db") as database:
        found = database.execute("select distinct run_name from metrics").fetchall()
    assert found == [("n-01234567",)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_comet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("comet_ml")
    config = Comet(
        project="p",
        name="n",
        tags=("a",),
        mode="offline",
        directory=str(tmp_path / "c"),
        patience=WAIT,
    )
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")
    git = ("git", "-c", "user.name=n", "-c", "user.email=e")
    (tmp_path / "code" / "a.py").write_text("1")
    for words in (("init",), ("add", "."), ("commit", "-m", "first")):
        subprocess.run((*git, *words), check=True, capture_output=True)
    (tmp_path / "code" / "a.py").write_text("key = 'sk-hidden'")
    two_sessions(config, tmp_path / "run")
    messages: list[dict[str, Any]] = []
    names: list[str] = []
    for path in sorted((tmp_path / "c").glob("*/*.zip")):
        with zipfile.ZipFile(path) as archive, archive.open("messages.json") as file:
            names += archive.namelist()
            messages += [json.loads(line) for line in io.TextIOWrapper(file)]
    metrics = [m["payload"] for m in messages if m["type"] == "metric_msg"]
    losses = [(m["metric"]["step"], m["metric"]["metricValue"]) for m in metrics
              if m["metric"]["metricName"] == "train/loss"]  # fmt: skip
    assert losses == [(1, 3.0), (2, 2.0), (3, 1.5), (3, 1.5)]
    # What it would record of the repository holds what our record hides.
    assert not {"git_metadata", "git_patch"} & {m["type"] for m in messages}
    assert not [name for name in names if "patch" in name]
    # The environment is whole in a file, and lists of thousands of documents nowhere else.
    text = json.dumps(messages)
    assert "environment.python" in text and "environment.data.files" not in text
    assert "environment.json" in text


def test_a_package_that_is_missing_is_refused_with_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused(ConfigError):
        resolve(Tracking(trackers=(Wandb(),)))


class Recorded:
    """A module, or anything from it, that writes down how it is called."""

    def __init__(self, calls: list[str], path: str) -> None:
        vars(self).update({"": (calls, path)})

    def _said(self, what: str) -> Recorded:
        calls, path = vars(self)[""]
        calls.append(path + what)
        return Recorded(calls, f"{path}()")

    def __setattr__(self, name: str, value: Any) -> None:
        self._said(f".{name} = {value!r}")

    def __getattr__(self, name: str) -> Recorded:
        calls, path = vars(self)[""]
        return Recorded(calls, f"{path}.{name}")

    def __call__(self, *given: Any, **named: Any) -> Recorded:
        return self._said(f"{given}{named}")

    def __setitem__(self, key: Any, value: Any) -> None:
        self._said(f"[{key!r}] = {value!r}")

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Recorded]:
        return iter(())

    def __repr__(self) -> str:
        return vars(self)[""][1]


OTHERS: dict[type[ServiceConfig], dict[str, Any]] = {
    TensorBoard: {"directory": "d", "flush_every": 3.0},
    Wandb: {
        "project": "x", "entity": "x", "group": "x", "name": "x", "job_type": "x", "tags": ("x",),
        "run_id": "x", "mode": "offline", "directory": "d",
    },
    Mlflow: {"uri": "x", "experiment": "x", "name": "x", "tags": {"x": "y"}, "run_id": "x"},
    Aim: {
        "repo": "d", "experiment": "x", "name": "x", "tags": ("x",), "system_interval": 3.0,
        "system_parameters": False, "terminal": True, "run_id": "x",
    },
    Trackio: {
        "project": "x", "name": "x", "group": "x", "space": "x/y", "directory": "d", "run_id": "x",
    },
    Comet: {
        "workspace": "x", "project": "x", "name": "x", "tags": ("x",), "mode": "online",
        "directory": "d", "run_id": "x" * 32,
    },
}  # fmt: skip
"""Another value for each field; `queue`, `patience` and `required` are those of every service."""


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.__name__)
def test_every_field_description_and_session_reaches_the_service(
    kind: type[ServiceConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that come again after a rollback are of a session of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    facts = replace(FACTS, session=5, description="of the run in words")

    def calls(**options: Any) -> tuple[list[str], str | None]:
        found: list[str] = []
        with RunDirectory.create(tmp_path / "run") as run, monkeypatch.context() as patch:
            config = resolve(kind(**{**usual, **options}))
            tracker: Tracker = config.build(run_directory=run)
            patch.setattr(importlib, "import_module", lambda name: Recorded(found, name))
            tracker.describe(facts)
            tracker.open(0, {"id": FACTS.run_id}, lambda _: None)
            tracker.write(row(3, 3.0))
            tracker.rewind(2, {}, lambda _: None)
            tracker.write(row(3, 3.0))
            tracker.close()
        return found, os.environ.get("TRACKIO_DIR")

    of_all = {"queue", "patience", "required"}
    assert {*OTHERS[kind], *of_all} == {*kind.__setpoint__.fields} - {"type"}
    # Only archives have a directory.
    usual = {"mode": "offline"} if kind is Comet else {}
    before = calls()
    for name, value in OTHERS[kind].items():
        assert calls(**{name: value}) != before, name
    assert any("of the run in words" in call for call in before[0])
    said = [int(n) for call in before[0] for n in re.findall(r"'session'(?:: |, )(\d+)", call)]
    assert said == ([] if kind in (TensorBoard, Aim) else [5, 6])


def test_the_name_of_a_run_of_aim_is_read_from_whatever_is_there(tmp_path: Path) -> None:
    path, link, pipe = (tmp_path / name for name in ("aim-run", "link", "pipe"))
    link.symlink_to(path)
    os.mkfifo(pipe)  # whose reader would wait for ever
    for content in (b"1f0c-x", b"a" * 501, b"../../other", b"\xff", b""):
        path.write_bytes(content)
        name = "1f0c-x" if content == b"1f0c-x" else None
        assert [_aim_name(each) for each in (path, link, pipe, tmp_path)] == [name, *[None] * 3]


def test_aim_needs_an_old_setuptools_for_its_list_of_packages_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name != "pkg_resources" or None)
    resolve(Aim(system_parameters=False))
    with refused(ConfigError):
        resolve(Aim())


def test_the_queue_and_the_patience_are_those_of_the_section(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run") as run:
        tracker = build(resolve(TensorBoard(queue=3, patience=0.5)), run)
        assert (tracker.limit, tracker.patience) == (3, 0.5)
        folder = tmp_path / "file"
        folder.write_text("")  # no event file can be made in it
        config = resolve(TensorBoard(directory=str(folder), required=True, patience=WAIT))
        tracker = build(config, run)
        tracker.describe(FACTS)
        with refused(RunError):
            tracker.open(0, {}, lambda _: None)
        tracker.close()


def test_wandb_without_a_login_is_said_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_CONFIG_DIR", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org:8080")

    def found(**given: Any) -> list[str]:
        answer = verify(resolve(Wandb(**given)), ["files"])
        return [type(each).__name__ for each in (*answer.problems, *answer.cautions)]

    assert found() == ["Caution"] and found(required=True) == ["Problem"]
    assert found(mode="offline", required=True) == []
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine api.wandb.ai login user password 0\n")
    assert found() == ["Caution"]
    netrc.write_text("machine wandb.example.org:8080 login user password 0\n")
    assert found() == []
    netrc.unlink()
    monkeypatch.setenv("WANDB_API_KEY", "0")
    assert found() == []
