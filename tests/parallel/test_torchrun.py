"""`torchrun -m setpoint train` in its common forms, and what happens to its ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..support.ranks import free_port
from ..train.small import events
from .test_faults import saved_step
from .test_launch import Launched, folder, kill_rank, words

__all__ = ["folder"]
pytestmark = pytest.mark.slow


class Agent(Launched):
    """torchrun, whose output goes into a file."""

    command = ("-m", "torch.distributed.run")


def agents(folder: Path, count: int, *options: str, more: tuple[str, ...] = ()) -> list[Agent]:
    """Start agents of two ranks each, which train without an end."""
    job = ("-m", "setpoint", "train", *words("--evaluation=null", *more, duration=10**6))
    given = ("--nproc-per-node", "2", *options, *job)
    return [Agent(folder, *given, name=f"agent-{n}") for n in range(count)]


def any_says(running: list[Agent], text: str) -> Callable[[], bool]:
    return lambda: any(text in each.text for each in running)


def the_run(folder: Path) -> Path:
    (run,) = (folder / "runs").glob("small-*")
    return run


def test_killed_ranks_start_again_and_signals_stop_all_of_them(folder: Path) -> None:
    """On gloo, which torch alone cannot restart."""
    (agent,) = agents(folder, 1, "--standalone", "--max-restarts", "2")
    agent.until("step 9/")
    kill_rank(folder, agent.process.pid, 1)
    # A stop before the first step leaves at once.
    agent.wait_for(lambda: "/1000000  loss" in agent.text.partition("resuming")[2])
    agent.process.send_signal(signal.SIGTERM)
    assert agent.end() == 1  # whatever its ranks end with
    end = events(the_run(folder), "end")[-1]
    assert (end["status"], end["step"]) == (75, saved_step(the_run(folder)))


@pytest.mark.parametrize(
    ("more", "said", "status"),
    [
        ("--optimizer.lr=1e30", "which is not finite", 1),  # while the ranks train
        ("--model.heads=3", "cannot be divided among 3 heads", 2),  # before they have met
    ],
)
def test_what_all_ranks_are_refused_is_said_once_and_last(
    folder: Path, more: str, said: str, status: int
) -> None:
    """In the report of torchrun, below its own traceback; on a static port."""
    (agent,) = agents(folder, 1, "--master-port", str(free_port()), more=(more,))
    assert agent.end() == 1
    report = agent.text.partition("Root Cause")[2]
    assert agent.text.count(said) == 1 == report.count(said), agent.text
    assert f"exitcode  : {status} " in report
    assert "setpoint/" not in report.partition("traceback :")[2]


def test_agents_that_come_and_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two agents, then one, then two: the batch stays, and so does the run.

    With the store that torch's agents share a new agent waits for an address that is not told.
    """
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    place = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}")
    elastic = (*place, "--rdzv-id", "job", "--nnodes", "1:2", "--max-restarts", "3",
               "--rdzv-conf", "join_timeout=60,last_call_timeout=2")  # fmt: skip
    more = ("--batch.global_size=4", "--parallel.shard=-1")
    first, second = running = agents(folder, 2, *elastic, more=more)
    first.wait_for(any_says(running, "step 9/"))
    # The agent that keeps the store is the one that listens.
    holder = next(each for each in running if _listens(each.process.pid, place[-1]))
    other = second if holder is first else first
    other.process.kill()
    other.end()
    holder.wait_for(lambda: "resuming" in holder.text)
    (back,) = agents(folder, 1, *elastic, more=more)
    running = [holder, back]
    seen = sum(each.text.count("resuming") for each in running)
    holder.wait_for(lambda: sum(each.text.count("resuming") for each in running) > seen)
    holder.wait_for(lambda: any("data position" in each.text for each in running))
    for each in running:
        each.process.send_signal(signal.SIGTERM)
    for each in running:
        each.end()
    assert events(the_run(folder), "end")[-1]["status"] == 75


def _listens(pid: int, endpoint: str) -> bool:
    """Whether a process listens at a port of this machine."""
    port = int(endpoint.rpartition(":")[2])
    inodes = {
        line.split()[9]
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
    }
    links = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
    return any(f"socket:[{inode}]" in links for inode in inodes)


def test_ranks_that_srun_or_mpirun_starts(folder: Path) -> None:
    """Only the four variables of torch's documentation."""
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "setpoint", "train", *words(duration=8)]
    ranks = [
        subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **place, "RANK": str(n), "LOCAL_RANK": str(n)},
            stdout=subprocess.DEVNULL,
        )
        for n in range(2)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    assert events(the_run(folder), "end")[-1]["status"] == 0
