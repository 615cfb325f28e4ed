"""`torchrun -m setpoint train` in its common forms, and what happens to its ranks."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ..support.ranks import free_port
from ..train.small import events
from .test_faults import saved_step
from .test_launch import Launched, folder, kill_rank, the_run, words

__all__ = ["folder"]
pytestmark = pytest.mark.slow


class Agent(Launched):
    """torchrun, whose output goes into a file."""

    command = ("-m", "torch.distributed.run")


def started(folder: Path, *options: str, more: tuple[str, ...] = ()) -> Agent:
    """An agent of two ranks, which train without an end."""
    job = ("-m", "setpoint", "train", *words("--evaluation=null", *more, duration=10**6))
    return Agent(folder, "--nproc-per-node", "2", *options, *job)


def test_killed_ranks_start_again_and_signals_stop_all_of_them(folder: Path) -> None:
    """On gloo, which torch alone cannot restart."""
    agent = started(folder, "--standalone", "--max-restarts", "2")
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
        ("--optimizer.lr=1e30", "(not finite)", 1),  # while the ranks train
        ("--model.heads=3", "cannot be divided among 3 heads", 2),  # before they have met
    ],
)
def test_what_all_ranks_are_refused_is_said_once_and_last(
    folder: Path, more: str, said: str, status: int
) -> None:
    """In the report of torchrun, below its own traceback; on a static port."""
    agent = started(folder, "--master-port", str(free_port()), more=(more,))
    assert agent.end() == 1
    report = agent.text.partition("Root Cause")[2]
    assert agent.text.count(said) == 1 == report.count(said), agent.text
    assert f"exitcode  : {status} " in report
    assert "setpoint/" not in report.partition("traceback :")[2]


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
