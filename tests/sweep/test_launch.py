"""The launcher with processes that only pretend: how many at a time, and how they end."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from setpoint.checkpoint.places import is_point
from setpoint.config import resolve
from setpoint.presets.tiny import tiny
from setpoint.report.goodput import FAILED, FINISHED, RUNNING, STOPPED
from setpoint.sweep.launch import Launcher, environment, train_command
from setpoint.sweep.run_sweep import sweep
from setpoint.sweep.sweep_record import WAITING, SweepTask
from setpoint.train.config import Job

from ..support.snapshots import refused
from .sample import FINISH, pretend, task_of


def test_points_run_a_number_at_a_time(tmp_path: Path) -> None:
    tasks = [task_of(tmp_path, seed) for seed in range(5)]
    most = 0

    def changed(task: SweepTask) -> None:
        nonlocal most
        most = max(most, sum(each.status == RUNNING for each in tasks))

    with Launcher(2, changed, pretend(FINISH + "time.sleep(0.2)")) as launcher:
        launcher.run(tasks)
    assert [task.status for task in tasks] == [FINISHED] * 5
    assert most == 2
    assert tasks[0].metrics == {"step": 10, "evaluation.held_out_loss": pytest.approx(0.0097)}
    assert all(is_point(task.folder) for task in tasks)


def test_a_log_that_is_a_link_is_not_written_to(tmp_path: Path) -> None:
    task, away = task_of(tmp_path, 1), tmp_path / "away"
    task.folder.mkdir(parents=True)
    task.log.symlink_to(away)
    launcher = Launcher(1, lambda _: None, pretend(FINISH))
    with (
        launcher,
        refused(),
    ):
        launcher.start(task)
    assert not away.exists()


def test_a_failed_point_does_not_stop_the_others(tmp_path: Path) -> None:
    tasks = [task_of(tmp_path, seed) for seed in range(4)]
    code = textwrap.dedent("""
        if SEED == 0:
            print("some line"); sys.exit("error: the disk is full")
        if SEED == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        if SEED == 2:
            sys.exit(75)
    """)
    with Launcher(1, lambda _: None, pretend(code + FINISH)) as launcher:
        launcher.run(tasks)
    assert [task.status for task in tasks] == [FAILED, FAILED, STOPPED, FINISHED]
    assert [task.exit_status for task in tasks] == [1, -signal.SIGSEGV, 75, 0]
    assert [task.reason for task in tasks] == [
        "the disk is full",
        "killed by SIGSEGV; nothing saved yet; the same command starts it over",
        "nothing saved yet; the same command starts it over",
        "",
    ]
    assert launcher.stopped is None


def test_the_reason_is_the_first_problem_of_the_last_attempt(tmp_path: Path) -> None:
    task = task_of(tmp_path, 1)
    report = (
        "error: 2 problems in the configuration\\n\\n  optimizer.lr = -1\\n    from a.toml:1:1\\n"
        "    is out of range: it must be > 0\\n\\n  seed = 3\\n    is wrong"
    )
    with Launcher(1, lambda _: None, pretend(f"sys.exit('{report}')")) as launcher:
        launcher.run([task])
    assert task.reason == (
        "optimizer.lr = -1: is out of range: it must be > 0 (2 problems in the configuration)"
    )
    with Launcher(1, lambda _: None, pretend("print('no error here'); sys.exit(3)")) as launcher:
        launcher.run([task])
    assert task.reason == "no error here"
    lines = task.log.read_text().splitlines()
    dated = [line for line in lines if line.startswith("--- started again 20")]
    assert len(dated) == 1 and lines[-2:] == [dated[0], "no error here"]


def test_a_signal_is_passed_on_and_nothing_more_starts(tmp_path: Path) -> None:
    tasks = [task_of(tmp_path, seed) for seed in range(3)]
    code = textwrap.dedent("""
        signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
        open(RUN.replace("/", "_"), "w").close()
        time.sleep(60)
    """)

    class Impatient(Launcher):
        def wait(self) -> list[SweepTask]:
            if len(list(tmp_path.glob("_*"))) == 2 and not self.stopped:
                os.kill(os.getpid(), signal.SIGINT)
            return super().wait()

    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        before = signal.getsignal(signal.SIGINT)
        with Impatient(2, lambda _: None, pretend(code)) as launcher:
            launcher.run(tasks)
    finally:
        os.chdir(here)
    assert [task.status for task in tasks] == [STOPPED, STOPPED, WAITING]
    assert launcher.stopped == 130
    assert signal.getsignal(signal.SIGINT) is before


def test_the_third_signal_kills(tmp_path: Path) -> None:
    task = task_of(tmp_path, 0)
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)"

    class Insisting(Launcher):
        def wait(self) -> list[SweepTask]:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().wait()

    with Insisting(1, lambda _: None, pretend(code)) as launcher:
        launcher.run([task])
    assert task.status == STOPPED and launcher.stopped == 75


def test_an_error_of_ours_leaves_no_process_behind(tmp_path: Path) -> None:
    task = task_of(tmp_path, 0)
    with (
        pytest.raises(RuntimeError),
        Launcher(1, lambda _: None, pretend("time.sleep(60)")) as launcher,
    ):
        launcher.start(task)
        (process,) = [process for process, _ in launcher._running.values()]
        raise RuntimeError
    assert process.poll() is not None


@pytest.mark.skipif(sys.platform != "linux", reason="the system has no such request")
def test_children_end_when_the_launcher_is_killed(tmp_path: Path) -> None:
    program = textwrap.dedent(f"""
        from pathlib import Path
        from tests.sweep.sample import pretend, task_of
        from setpoint.sweep.launch import Launcher
        task = task_of(Path({str(tmp_path)!r}), 0)
        code = "open({str(tmp_path / "pid")!r}, 'w').write(str(os.getpid()))\\ntime.sleep(60)"
        with Launcher(1, lambda _: None, pretend(code)) as launcher:
            launcher.run([task])
    """)
    root = str(Path(__file__).parents[2])
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])}
    launcher = subprocess.Popen([sys.executable, "-c", program], env=paths)
    pid = tmp_path / "pid"
    assert _until(lambda: pid.exists() and pid.read_text().isdigit())
    launcher.kill()
    launcher.wait()
    assert _until(lambda: not _alive(int(pid.read_text())))


def test_modules_that_the_user_named_are_imported_by_each_point(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def command(task: SweepTask, modules: Sequence[str]) -> list[str]:
        seen.append(train_command(task, modules))
        return [sys.executable, "-c", ""]

    with Launcher(1, lambda _: None, command, imports=["own", "other"]) as launcher:
        launcher.run([task_of(tmp_path, 0)])
    assert seen[0][-6:] == [
        "train",
        str(tmp_path / "sweep/points/seed=0"),
        "--import",
        "own",
        "--import",
        "other",
    ]


def test_the_environment_of_a_point() -> None:
    given = {"SETPOINT__SEED": "3", "PATH": "/bin"}
    assert environment(given, 1) == {"PATH": "/bin"}
    assert int(environment(given, 10_000)["OMP_NUM_THREADS"]) == 1
    assert environment({"OMP_NUM_THREADS": "7"}, 2) == {"OMP_NUM_THREADS": "7"}


def _until(condition: object, seconds: float = 20) -> bool:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(condition())


def _alive(pid: int) -> bool:
    try:
        # A process that has ended stays as a zombie until somebody asks for its status.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_classes_of_the_script_itself_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve(tiny())  # reads the annotations of all classes, in their own modules
    monkeypatch.setattr(Job, "__module__", "__main__")
    script = sys.modules["__main__"]
    for name in [name for name, module in sys.modules.items() if module is script]:
        if name != "__main__":  # given by a command line of a script in this process
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)  # of `python -m pytest`
    with refused():
        sweep("tiny", {"workspace": str(tmp_path)}, points={"grid": {"seed": [1, 2]}})
    assert not any(tmp_path.iterdir())  # nothing is written
