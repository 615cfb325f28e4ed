"""One session of a run, as a launcher starts it: ranks that run `setpoint train`.

Ranks are forks of this process, which has imported torch, and run the command itself; so exit
statuses and messages are those that users see.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path

import torch

from setpoint.checkpoint.folder import list_checkpoints, read_pointer, unfinished
from setpoint.checkpoint.loading import verify_directory
from setpoint.cli.main import main

from ...support.ranks import free_port

LONGEST = 60.0
"""Seconds in which ranks end after one of them has died or hangs."""
GRACE = 2.0
"""Seconds after which a launcher kills a rank that goes on where the others have ended."""
TRACE = "Traceback (most recent call last)"
LOST = re.compile("lost its connection to the others|did not connect to the others")
TEMPORARY = re.compile(r"\.tmp-?[0-9]*$|\.partial$")
HIT = "hit"

Within = Callable[[ExitStack, int], object]
"""Prepares a rank, which is given with the exits of its session."""


class Session:
    """Ranks of one command.

    Arguments:
        folder: the working directory, with `small.toml`.
        size: how many ranks.
        words: of the command.
        within: prepares each rank, before the command begins.
        stopped: called with this where the only rank has stopped itself, which goes on then.
        may_hang: ranks that need not end by themselves once the others have.
    """

    def __init__(
        self,
        folder: Path,
        size: int,
        words: list[str],
        within: Within = lambda stack, rank: None,
        stopped: Callable[[Session], object] = lambda session: None,
        may_hang: Collection[int] = (),
        name: str = "",
    ) -> None:
        self.folder, self.size, self.words = folder, size, words
        self.within, self.stopped, self.name = within, stopped, name
        self.may_hang = may_hang
        self.codes: dict[int, int] = {}
        self.port = free_port()
        for old in folder.glob(f"output{name}-*.txt"):
            old.unlink()
        self.pids = [self._start(rank) for rank in range(size)]

    @property
    def printed(self) -> str:
        """What all ranks have printed."""
        found = sorted(self.folder.glob(f"output{self.name}-*.txt"))
        return "".join(path.read_text(errors="replace") for path in found)

    def _start(self, rank: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        status = 70
        try:
            with (self.folder / f"output{self.name}-{rank}.txt").open("w") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
            torch.set_num_threads(1)
            os.chdir(self.folder)
            if self.size > 1:
                os.environ |= {
                    "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.size),
                    "MASTER_ADDR": "localhost", "MASTER_PORT": str(self.port),
                }  # fmt: skip
            with ExitStack() as stack:
                self.within(stack, rank)
                status = main(self.words)
        except BaseException:
            status = 70
            traceback.print_exc()
        finally:
            os._exit(status)

    def wait(self) -> None:
        """Wait for all ranks; one that hangs is killed after the others have ended.

        Raises:
            AssertionError: some do not end in time.
        """
        left, hangs, deadline = dict(enumerate(self.pids)), set[int](), float("inf")
        since = 0.0
        while left:
            for rank, pid in list(left.items()):
                ended, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
                if not ended:
                    continue
                if os.WIFSTOPPED(status):
                    if self.size == 1:
                        self.stopped(self)
                        os.kill(pid, signal.SIGCONT)
                        continue
                    hangs.add(rank)
                else:
                    self.codes[rank] = os.waitstatus_to_exitcode(status)
                    del left[rank]
                if rank in hangs or self.codes[rank]:
                    deadline = min(deadline, time.monotonic() + LONGEST)
            if left.keys() <= {*self.may_hang} and self.codes:
                since = since or time.monotonic()
                hangs |= left.keys() if time.monotonic() > since + GRACE else set()
            if left and left.keys() <= hangs:
                for rank in left:
                    os.kill(left[rank], signal.SIGKILL)
            if time.monotonic() > deadline:
                for pid in left.values():
                    os.kill(pid, signal.SIGKILL)
                raise AssertionError(f"ranks {list(left)} have not ended: {self.printed}")
            time.sleep(0.005)


def the_run(folder: Path) -> Path | None:
    """The only run of a folder; None before its record is written."""
    found = list((folder / "runs").glob("small-*"))
    assert len(found) <= 1, found
    return found[0] if found and (found[0] / "config.json").exists() else None


def newest_whole(folder: Path) -> int:
    """The step of the newest checkpoint, where all that are there are whole; -1: there is none.

    Raises:
        AssertionError: one is damaged, a pointer names none, or one is gone that was saved.
    """
    run = the_run(folder)
    if run is None:
        return -1
    there = list_checkpoints(run / "checkpoints")
    for directory in there.values():
        verify_directory(directory)
    newest = max(there, default=-1)
    if (latest := read_pointer(run / "checkpoints", "latest")) is not None:
        assert latest in there
    log = run / "events.jsonl"
    lines = log.read_bytes().split(b"\n")[:-1] if log.exists() else []
    saved = [json.loads(line)["event"] == "save" for line in lines]
    assert newest >= 0 or not any(saved), "what was saved is gone"
    return newest


def assert_nothing_left(folder: Path) -> None:
    """No temporary file outlasts a session that has ended by itself."""
    run = the_run(folder)
    assert run is not None
    assert not unfinished(run / "checkpoints")
    left = [str(path) for path in run.rglob("*") if TEMPORARY.search(path.name)]
    assert not left, left
