"""`setpoint train --nproc`: one run of several ranks, and how it ends."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from setpoint.checkpoint.manifest import read_manifest, verify
from setpoint.cli.main import main
from setpoint.config import RunError
from setpoint.parallel import launcher
from setpoint.parallel.launcher import LocalRanks, Nodes
from setpoint.parallel.rank import PREFIX, REPORT, ask, is_reported_first, leave, reports_in

from ..support.forks import ENVIRONMENT, Forks, is_running
from ..support.ranks import free_port
from ..support.snapshots import compare_message
from ..train.small import events, rows, snapshot, write_config


class Launched:
    """A launcher whose output goes into a file."""

    command = ("-m", "setpoint", "train")

    def __init__(
        self, folder: Path, *words: str, name: str = "output", forks: Forks | None = None
    ) -> None:
        self.output = folder / f"{name}.txt"
        python = sys.executable if forks is None else f"{forks.programs}/python"
        command = [python, *self.command, *words]
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                command, cwd=folder, stdout=file, stderr=file, env={**os.environ, **ENVIRONMENT}
            )

    def until(self, text: str) -> None:
        """Wait for a text in the output."""
        self.wait_for(lambda: text in self.text)

    def wait_for(self, there: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 120
        while not there():
            assert self.process.poll() is None and time.monotonic() < deadline, self.text
            time.sleep(0.05)

    @property
    def text(self) -> str:
        return self.output.read_text()

    def end(self) -> int:
        return self.process.wait(timeout=120)


def processes_of(folder: Path) -> list[int]:
    """The processes that work in a folder, other than this one."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if (entry / "cwd").resolve() == folder.resolve():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where a job is trained, of which nothing is left running."""
    write_config(tmp_path, without=("accumulation",))
    yield tmp_path
    deadline = time.monotonic() + 20
    while processes_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = processes_of(tmp_path)
    for each in left:
        os.kill(each, signal.SIGKILL)
    assert not left


def words(*more: str, duration: int = 30) -> list[str]:
    common = ("model.dropout=0", "evaluation.sequences=4", "checkpoint.every=4 steps")
    flags = [f"--{flag}" for flag in (*common, f"duration={duration} steps")]
    schedule = "--schedule={type: constant}"
    return ["small.toml", *flags, schedule, "--batch.micro_size=1", *more]


def the_run(folder: Path, name: str = "small") -> Path:
    (run,) = (folder / "runs").glob(f"{name}-*")
    return run


def losses(folder: Path, name: str) -> list[float]:
    return [row["loss"] for row in rows(the_run(folder, name)) if row["kind"] == "train"]


def test_a_run_goes_on_with_other_ranks(folder: Path, forks: Forks) -> None:
    """Two shards, then one rank: one run."""
    whole = words("--name=alone", "--batch.accumulation=4", duration=12)
    many = words("--name=many", "--batch.global_size=4", duration=6)
    for given in (whole, [*many, "--nproc", "2", "--parallel.shard=-1"]):
        run = Launched(folder, *given, forks=forks)
        assert run.end() == 0, run.text
    # Ranks speak with one voice.
    assert run.text.count("held-out loss  ") == 1
    # The record names two ranks, which were those of its launcher.
    run = Launched(folder, str(the_run(folder, "many")), "--duration=12 steps", forks=forks)
    assert run.end() == 0, run.text
    assert losses(folder, "many") == pytest.approx(losses(folder, "alone"), rel=1e-5)


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 75), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
)
def test_all_ranks_stop_at_the_same_step_and_save_once(
    folder: Path, forks: Forks, number: signal.Signals, status: int
) -> None:
    given = (*words("--checkpoint.every=never", duration=10**6), "--nproc", "2")
    run = Launched(folder, *given, forks=forks)
    run.until("step 3/")
    (log,) = (folder / "runs").glob("*/events.jsonl")
    run.process.send_signal(signal.SIGUSR2)  # all ranks save, and go on
    run.wait_for(lambda: '"save"' in log.read_text())
    run.process.send_signal(number)
    assert run.end() == status, run.text
    first, last = (event["step"] for event in events(log.parent, "save"))
    (end,) = events(log.parent, "end")
    assert 3 <= first <= last == end["step"]
    files = verified_files(log.parent / "checkpoints" / f"step-{first:08d}")
    assert "model-00001-of-00002.safetensors" in files and "state.json" in files


def test_one_rank_is_asked_to_save_and_all_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others hear of a save in the step that it is made after; each by itself might later."""
    sent: list[tuple[int, int]] = []

    def kill(pid: int, number: int) -> None:
        if pid == 10:
            raise ProcessLookupError
        sent.append((pid, number))

    monkeypatch.setattr("os.kill", kill)
    for local in range(3):
        (tmp_path / f"pid-{local}").write_text(str(10 + local))
    ask(tmp_path, signal.SIGUSR2)
    assert sent == [(11, signal.SIGUSR2)] and not (tmp_path / "signal").exists()
    ask(tmp_path, signal.SIGTERM)
    assert sent[1:] == [(11, signal.SIGTERM), (12, signal.SIGTERM)]


def verified_files(directory: Path) -> set[str]:
    manifest = read_manifest(directory)
    verify(directory, manifest, manifest.files)
    return set(manifest.files)


def ranks_of(folder: Path, launcher: int, rank: int) -> list[int]:
    """The process of a rank, by its note; of torchrun, which keeps none, by its variables."""
    found = [pid for pid in processes_of(folder) if pid != launcher]
    for pid in (launcher, *found):  # a launcher may be a fork of its program
        for note in Path(tempfile.gettempdir()).glob(f"{PREFIX}{pid}-*/pid-{rank}"):
            noted = note.read_text()
            return [pid for pid in found if str(pid) == noted]
    variables = {pid: Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in found}
    return [pid for pid, given in variables.items() if b"RANK=%d" % rank in given]


def kill_rank(folder: Path, launcher: int, rank: int) -> None:
    """Kill a rank, without a chance to say anything."""
    for pid in ranks_of(folder, launcher, rank):
        os.kill(pid, signal.SIGKILL)


def test_ranks_start_again_where_one_is_killed_and_then_end_by_name(
    folder: Path, forks: Forks
) -> None:
    chatty = "import os; print('hello from', os.environ.get('RANK'), flush=True)\n"
    (folder / "chatty.py").write_text(chatty)
    given = (*words(duration=10**6), "--nproc", "2", "--max-restarts", "1", "--import", "chatty")
    run = Launched(folder, *given, forks=forks)
    run.until("step 5/")
    kill_rank(folder, run.process.pid, 1)
    run.until("resuming")
    assert "rank 1 ended without a message" in run.text
    assert "restart 1 of 1" in run.text and "hello from 1" not in run.text
    (log,) = (folder / "runs").glob("*/logs/ranks.log")
    run.wait_for(lambda: log.read_text().count("[rank 1] hello from 1\n") == 2)
    run.wait_for(lambda: ranks_of(folder, run.process.pid, 1))
    kill_rank(folder, run.process.pid, 1)
    assert run.end() == 1
    last = run.text.strip().splitlines()[-1]
    assert last.startswith("error: rank 1 ended by signal SIGKILL"), run.text
    assert last.endswith(f"its output is in {log.relative_to(folder)}")


@pytest.mark.slow
def test_two_machines_stop_together(folder: Path) -> None:
    place = ("--rdzv-endpoint", f"localhost:{free_port()}", "--rdzv-id", "job-1")
    given = (*words("--checkpoint.every=never", duration=10**6), "--nproc", "1", "--nnodes", "2")
    nodes = [Launched(folder, *given, *place, name=f"node-{n}") for n in range(2)]
    nodes[0].wait_for(lambda: any("step 3/" in node.text for node in nodes))
    nodes[1].process.send_signal(signal.SIGTERM)
    assert [node.end() for node in nodes] == [75, 75], [node.text for node in nodes]
    kinds = [event["event"] for event in events(the_run(folder))]
    assert kinds.count("save") == 1 == kinds.count("end")


def test_a_stop_while_machines_wait_for_each_other_ends_the_launcher(
    folder: Path, forks: Forks
) -> None:
    port = free_port()
    meeting = ("--nnodes", "2", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "job-2")
    run = Launched(folder, *words(), "--nproc", "1", *meeting, forks=forks)

    def listens() -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("localhost", port)) == 0

    run.wait_for(listens)
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 75
    said = "stopped by SIGTERM: nothing was trained; the same command starts over\n"
    assert run.text == said and not (folder / "runs").exists()


def test_the_machine_at_the_endpoint_is_waited_for_as_long_as_the_others() -> None:
    """By default torch waits a minute for it, however long the others are waited for."""
    port = free_port()
    nodes = Nodes(2, 2, f"node-0:{port}", "job-3", timeout=2)
    began = time.monotonic()
    with pytest.raises(RunError) as failed:
        launcher.launch(["train"], 1, nodes=nodes)
    assert time.monotonic() - began < 20
    said = f"fewer than 2 nodes connected to node-0:{port} within parallel.timeout = 2 s: "
    assert str(failed.value).startswith(said)


@pytest.mark.parametrize(
    "words",
    [
        "--nnodes 2",
        "--nproc 2 --nnodes 2",
        "--nproc 2 --rdzv-id a",
        "--nproc 1 --max-restarts 1",
        "--nproc 2 --nnodes 2 --rdzv-endpoint a:1 --rdzv-id a --seed null",
        "--nproc 2 --nnodes 2 --rdzv-endpoint a:99999 --rdzv-id a",
    ],
)
def test_options_without_effect_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "tiny", *words.split()]) in (1, 2)
    compare_message(capsys.readouterr().err)


def test_a_log_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    log = tmp_path / "ranks.log"
    log.mkdir()
    said: list[str] = []
    ranks = LocalRanks(tmp_path, 3, log, 0, said.append)
    files = ranks.reify({local: {"RANK": str(local)} for local in range(3)})
    for local in (1, 2):
        Path(files.stdouts[local]).write_text("a\n")
    ranks.close()
    assert said == [f"{log} cannot be written: Is a directory"]


# A launcher and its rank, as far as they know of each other.
LAUNCHER = """\
import os, subprocess, sys
place = os.environ["SETPOINT_RANKS"] = f"setpoint-ranks-{os.getpid()}-a"
os.mkdir(place)
rank = "import time; from setpoint.parallel.rank import enter; enter(); time.sleep(90)"
subprocess.run([sys.executable, "-c", rank])
"""


def test_a_rank_ends_with_its_launcher(tmp_path: Path) -> None:
    place = {"SETPOINT_RANKS": "", "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}
    command = [sys.executable, "-c", LAUNCHER]
    launcher = subprocess.Popen(command, env={**os.environ, **place}, cwd=tmp_path)
    note = tmp_path / f"{PREFIX}{launcher.pid}-a" / "pid-1"
    ends = time.monotonic() + 60
    while not note.exists():
        assert launcher.poll() is None and time.monotonic() < ends
        time.sleep(0.02)
    rank = int(note.read_text())
    launcher.kill()
    launcher.wait()
    while is_running(rank):
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_a_rank_whose_launcher_has_left_nothing_ends(tmp_path: Path) -> None:
    """The next launcher has removed the folder of one that was killed while its ranks started."""
    place = {"SETPOINT_RANKS": str(tmp_path / "gone"), "WORLD_SIZE": "2", "RANK": "1"}
    rank = "from setpoint.parallel.rank import enter; enter()"
    ended = subprocess.run([sys.executable, "-c", rank], env={**os.environ, **place}, check=False)
    assert ended.returncode == -signal.SIGTERM


def test_what_all_ranks_are_refused_is_said_once(folder: Path, forks: Forks) -> None:
    given = (*words("--optimizer.lr=1e30", duration=200), "--nproc", "2")
    run = Launched(folder, *given, forks=forks)
    assert run.end() == 1
    assert run.text.count("error: ") == 1 and "(not finite)" in run.text, run.text
    assert len(events(the_run(folder), "fault")) == 1


def test_a_first_start_that_is_refused_leaves_nothing(folder: Path, forks: Forks) -> None:
    """By the main rank, when all of them have files in the run directory."""
    before = snapshot(folder)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"--tracking.trackers=[{{type: prometheus, port: {taken.getsockname()[1]}}}]"
        heart = "--resilience.heartbeat.every=0.01"
        run = Launched(folder, *words(port, heart), "--nproc", "2", forks=forks)
        assert run.end() == 2
    assert run.text.count("error: ") == 1 and "Address already in use" in run.text, run.text
    run.output.unlink()
    assert snapshot(folder) == before


# The main rank is refused its directory, and is slow to end then, as on a busy machine.
SLOW = """\
import os, time
from torch import distributed
from setpoint.config import SetpointError
from setpoint.track.run_directory import RunDirectory

def refuse(path):
    raise SetpointError("the directory is refused")

def slowly(end=distributed.destroy_process_group):
    time.sleep(1)
    end()

if os.environ.get("RANK") == "0":
    RunDirectory.create = refuse
    distributed.destroy_process_group = slowly
"""


def test_the_error_of_the_main_rank_is_shown_whichever_rank_ends_first(
    folder: Path, forks: Forks
) -> None:
    """The launcher ends all ranks as soon as one has ended."""
    (folder / "slow.py").write_text(SLOW)
    run = Launched(folder, *words(), "--nproc", "2", "--import", "slow", forks=forks)
    assert run.end() == 2, run.text
    assert run.text.splitlines()[-1] == "error: the directory is refused", run.text


# A stop that one rank alone hears of, before the ranks agree on stops after steps.
ALONE = """\
import os, signal, time
import setpoint.train.run as running

def build(*given, real=running.build_components):
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(60)

if os.environ.get("RANK") == "0":
    running.build_components = build
"""


def test_ranks_that_lose_one_that_was_stopped_are_stopped_as_well(
    folder: Path, forks: Forks
) -> None:
    (folder / "alone.py").write_text(ALONE)
    given = (*words(), "--nproc", "2", "--max-restarts", "1", "--import", "alone")
    run = Launched(folder, *given, forks=forks)
    assert run.end() == 75, run.text
    assert "error" not in run.text and "starting the ranks again" not in run.text


def test_what_ranks_of_torchrun_say_alike_is_reported_by_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("setpoint.parallel.rank.PATIENCE", 0.1)
    monkeypatch.setenv("WORLD_SIZE", "3")
    texts = {"1": "a field is wrong", "0": "a field is wrong", "2": "something else"}

    def report(local: str, *given: Any, **more: Any) -> ProcessFailure:
        """How torchrun reads what a rank has left."""
        path = tmp_path / local / "error.json"
        for name, value in {"RANK": local, "LOCAL_RANK": local, REPORT: str(path)}.items():
            monkeypatch.setenv(name, value)
        path.parent.mkdir(exist_ok=True)
        assert leave(2, *given, **more)
        return ProcessFailure(int(local), 1, 2, str(path))

    failures: dict[int, ProcessFailure] = {}
    for local, text in texts.items():
        failures[int(local)] = report(local, text)
        # Rank 1 is first, and cannot know what the others will say.
        assert not is_reported_first(text)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert is_reported_first(texts["1"])
    failures[1] = report("1", instead=True)
    shown = str(ChildFailedError("setpoint", failures))
    assert shown.count("a field is wrong") == 1 == shown.count("something else")
    assert "a field is wrong" in shown.partition("Root Cause")[2]
    # What is reported first counts, and the loss of others is not a cause.
    report("2", "another thing")
    assert [each.error for each in reports_in(tmp_path)] == [texts["0"], texts["2"], ""]


def test_what_a_killed_launcher_has_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    names = [f"{PREFIX}{os.getpid()}-a", f"{PREFIX}other", f"{PREFIX}{ended.pid}-a"]
    for name in names:
        (tmp_path / name).mkdir()
    launcher.clear_dead()
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(names[:2])


@pytest.mark.slow
def test_a_rank_that_does_not_answer_is_named(folder: Path) -> None:
    limit = ("--parallel.step_timeout=10", "--parallel.timeout=20")
    run = Launched(folder, *words(*limit, duration=10**6), "--nproc", "2")
    run.until("step 5/")
    for pid in ranks_of(folder, run.process.pid, 1):
        os.kill(pid, signal.SIGSTOP)  # nothing of it runs, not even its signal handlers
    assert run.end() == 1
    last = run.text.strip().splitlines()[-1]
    assert last.startswith(
        "error: no answer from rank 1: rank 0 lost its connection to the others: Timed out"
    )
    (log,) = (folder / "runs").glob("*/logs/ranks.log")
    assert "[rank 0] error: rank 0 lost its connection to the others" in log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "wait"), [(signal.SIGTERM, 2.0), (signal.SIGINT, 0.0), (signal.SIGKILL, 2.0)]
)
def test_a_stop_while_ranks_start_leaves_none_behind(
    folder: Path, number: signal.Signals, wait: float
) -> None:
    run = Launched(folder, *words(duration=10**6), "--nproc", "2")
    run.wait_for(lambda: len(processes_of(folder)) == 3)
    time.sleep(wait)
    run.process.send_signal(number)
    expected = {signal.SIGTERM: (75, 143), signal.SIGINT: (130,), signal.SIGKILL: (-9,)}
    assert run.end() in expected[number], run.text
    assert "Traceback" not in run.text
