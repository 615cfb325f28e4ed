"""Faults that happen to one session of a run, with how that session may end.

Each is drawn anew for a session: where it happens is chance.
"""

import errno
import math
import multiprocessing
import os
import random
import resource
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

import setpoint.train.run as running
from setpoint.checkpoint.folder import list_checkpoints
from setpoint.track import trackers

from ...checkpoint.crashed import Failing
from ...checkpoint.disk import Operation, meetings, watched
from ...parallel.killed_ranks import at_collective
from ...train.killing import die_at
from . import PORT
from .session import HIT, LOST, TRACE, Session, the_run

# Of each kind, about so many are in a session.
POINTS = {"update": 6, "save": 40, "record": 6, "evaluate": 20, "any": 80}
COLLECTIVES = 40
BYTE = b"\0"
STOPPED = frozenset({75})
"""How a session ends whose fault does not end it."""


class Fault:
    """Happens to one rank of a session.

    Arguments:
        victim: the rank.
        folder: of the run's folder; the file `hit` there says that it has happened.

    Attributes:
        name: as the table says it.
        sizes: with how many ranks it is tried.
        ends: statuses with which ranks may end by themselves where it has happened.
        may_hang: whether the victim may hang where the others have ended; launchers kill it.
        cause: what they say then where they fail.
        story: what a job needs for it; empty if any will do.
    """

    name: str
    may_hang = False
    sizes: tuple[int, ...] = (1, 2)
    ends: frozenset[int] = frozenset({0})
    cause = ""
    story = ""
    outcome = "as without"

    def __init__(self, folder: Path, size: int, chance: random.Random) -> None:
        self.folder, self.size, self.chance = folder, size, chance
        self.victim = chance.randrange(size)
        self.draw()

    def draw(self) -> None:
        """Choose where it happens."""

    def before(self) -> None:
        """Called before the ranks start."""

    def within(self, stack: ExitStack, rank: int) -> None:
        """Prepare a rank, in its process."""

    def stopped(self, session: Session) -> None:
        """Called where the only rank has stopped."""

    def after(self) -> None:
        """Called when all ranks have ended."""

    @property
    def has_happened(self) -> bool:
        """Whether it was not too late for it."""
        return (self.folder / HIT).exists()

    def happens(self) -> None:
        """Note that it happens now."""
        (self.folder / HIT).touch()

    def judge(self, session: Session) -> None:
        """Compare the end of a session with what is promised.

        Raises:
            AssertionError: it has ended otherwise, or without a word.
        """
        said, codes = session.printed, session.codes
        told = f"{self.name}: {codes}\n{said}"
        assert TRACE not in said, told
        if not self.has_happened:
            assert set(codes.values()) in ({0}, STOPPED), told
            return
        for rank, code in codes.items():
            killed = rank == self.victim and code == -signal.SIGKILL
            assert killed or code in self.ends | STOPPED, told
        # Who is killed says nothing; who is left names the cause.
        if any(code > 0 and code not in STOPPED for code in codes.values()):
            assert self.cause in said or LOST.search(said), told
            assert "the output cannot be written" not in said, told


class AtPoint(Fault):
    """Something that happens at a point of a session."""

    kind = ""

    def draw(self) -> None:
        if self.kind == "update":  # whatever is left of the run, these are in it
            self.count = self.chance.randint(1, 3)
            return
        kinds = sorted(POINTS) + ["collective"] * (self.size > 1)
        self.kind = self.chance.choice(kinds)
        if self.kind in ("save", "record") and self.chance.random() < 0.75:
            self.victim = 0  # which does nearly all of it
        self.count = self.chance.randint(1, POINTS.get(self.kind, COLLECTIVES))

    def within(self, stack: ExitStack, rank: int) -> None:
        if rank != self.victim:
            return

        def act() -> None:
            self.happens()
            self.strike()

        if self.kind == "collective":
            stack.enter_context(meetings(None, at_collective(self.count, act), rank))
        else:
            die_at(self.folder / "runs", self.kind, self.count, act)

    def strike(self) -> None:
        """What happens, in the process of the victim."""
        raise NotImplementedError


class Killed(AtPoint):
    """SIGKILL, as from the system where memory has run out, or a machine that is gone."""

    name = "a process is killed (SIGKILL)"
    ends = frozenset({1})
    outcome = "others end with 1; resumes"

    def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class KilledAnyTime(Fault):
    """SIGKILL from outside, at any moment."""

    name = "a process is killed from outside"
    ends = frozenset({0, 1})
    outcome = "others end with 1; resumes"

    def draw(self) -> None:
        self.after_seconds = self.chance.uniform(0.0, 0.8)

    def within(self, stack: ExitStack, rank: int) -> None:
        """Start a process that does it."""
        pid = os.getpid()
        if rank == self.victim and os.fork() == 0:
            time.sleep(self.after_seconds)
            if os.getppid() == pid:
                self.happens()
                os.kill(pid, signal.SIGKILL)
            os._exit(0)


class Hangs(AtPoint):
    """SIGSTOP: a rank that does not answer; alone it goes on later."""

    name = "a process hangs (SIGSTOP)"
    ends = frozenset({0, 1})
    outcome = "others end with 1 in time; resumes"

    def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class Preempted(AtPoint):
    """SIGTERM, as from a scheduler."""

    name = "a process is preempted (SIGTERM)"
    # 143: it has come before there was anything to save, or at the very end; 1: another rank, where
    # the signal has reached one that was not training yet, which launchers send to all.
    ends = frozenset({0, 1, 143})
    cause = "stop"
    outcome = "saved, 75; resumes"

    def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


class Second(AtPoint):
    """Another process starts the same run."""

    name = "two processes start one run"
    sizes = (1,)
    kind = "update"
    outcome = "the second is refused, 2"

    def strike(self) -> None:
        """Wait until the other one has tried."""
        os.kill(os.getpid(), signal.SIGSTOP)

    def stopped(self, session: Session) -> None:
        """Start it."""
        other = Session(self.folder, 1, session.words, name="-second")
        other.wait()
        told = other.printed
        assert other.codes == {0: 2}, told
        assert f"is in use by process {session.pids[0]}" in told, told


class Disk(Fault):
    """The disk fails a rank: once, or from then on."""

    name = "the disk is full, fails or is read-only"
    ends = frozenset({0, 1, 2})
    outcome = "1 or 2 with the file, or none needed; resumes"

    def draw(self) -> None:
        self.code = self.chance.choice([errno.ENOSPC, errno.EIO, errno.EROFS])
        self.cause = os.strerror(self.code)
        # So many there are at least; another rank does little but its part of a save.
        self.count = self.chance.randrange(10 if self.victim else 70)
        self.goes_on = self.chance.random() < 0.5

    def within(self, stack: ExitStack, rank: int) -> None:
        if rank != self.victim:
            return
        failing = Failing(self.count, self.code, self.goes_on)
        stack.callback(lambda: failing.has_failed and self.happens())
        stack.enter_context(watched(self.folder / "runs", before=failing, rank=rank))


class ShortWrites(Fault):
    """Each write takes half of what it is given."""

    name = "each write takes half of its data"

    def within(self, stack: ExitStack, rank: int) -> None:

        def half(operation: Operation) -> int:
            return (len(operation.data) + 1) // 2

        self.happens()
        stack.enter_context(watched(self.folder / "runs", before=half, rank=rank))


class Clock(Fault):
    """The clock jumps, for days in both directions, with each look at it."""

    name = "the clock jumps"

    def within(self, stack: ExitStack, rank: int) -> None:
        real = time.time
        time.time = lambda: real() + self.chance.uniform(-1e7, 1e7)
        self.happens()


class NotANumber(Fault):
    """The loss of one rank is NaN, once."""

    name = "NaN in the loss of one rank"
    ends = frozenset({1})
    cause = "the loss is nan"
    story = "fail"
    outcome = "all ranks end with 1; resumes"

    def draw(self) -> None:
        self.count = self.chance.randint(1, 12)

    def within(self, stack: ExitStack, rank: int) -> None:
        if rank == self.victim:
            with_objective(lambda components: Once(components.objective, self.count, self.happens))


class WorkerKilled(AtPoint):
    """SIGKILL of a process that reads data."""

    name = "a data worker is killed"
    ends = frozenset({1})
    cause = "by SIGKILL, which the system sends when it runs out of memory"
    story = "workers"
    kind = "update"
    outcome = "1 with the document; resumes"

    def strike(self) -> None:
        children = multiprocessing.active_children()
        assert children
        for child in children:
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            child.join()


class WorkerHangs(WorkerKilled):
    """SIGSTOP of a process that reads data."""

    name = "a data worker hangs"
    cause = "timeout: no rows came within"

    def strike(self) -> None:
        for child in multiprocessing.active_children():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGSTOP)


class Memory(AtPoint):
    """The system gives the process no more memory from some point on."""

    name = "no more memory (RLIMIT_AS)"
    may_hang = True
    ends = frozenset({0, 1})
    cause = "not enough memory"
    outcome = "1 with what helps, or none needed; resumes"

    def draw(self) -> None:
        super().draw()
        self.more = self.chance.choice([0, 0, 1 << 18, 1 << 20, 1 << 22])

    def within(self, stack: ExitStack, rank: int) -> None:
        """Let MKL allocate its work buffer, which it keeps, before there is no more memory.

        Where it cannot, its products come from other kernels, which round differently: seen with
        192 x 16 times 16 x 256, and with 16 x 64 times 64 x 256.
        """
        torch.ones(512, 512) @ torch.ones(512, 512)
        super().within(stack, rank)

    def strike(self) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + self.more
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


class Damaged(Fault):
    """A file of the newest checkpoint is changed between two sessions."""

    name = "a file of the newest checkpoint is damaged"
    outcome = "named and passed over; resumes from the one before"

    def before(self) -> None:
        run = the_run(self.folder)
        there = list_checkpoints(run / "checkpoints") if run else {}
        if len(there) < 2:
            return
        file = self.chance.choice(sorted(there[max(there)].iterdir()))
        whole = file.read_bytes()
        middle = self.chance.randrange(len(whole))
        match self.chance.choice(["flipped", "cut", "gone"]):
            case "flipped":
                changed = bytes([whole[middle] ^ 1 << self.chance.randrange(8)])
                file.write_bytes(whole[:middle] + changed + whole[middle + 1 :])
            case "cut":
                file.write_bytes(whole[:middle])
            case _:
                file.unlink()
        self.happens()

    def judge(self, session: Session) -> None:
        """It goes on from the one before, and says so."""
        super().judge(session)
        if self.has_happened:
            assert "is corrupt, skipping it" in session.printed, session.printed


class Torn(Fault):
    """Files that grow end in what a power cut makes of the last block."""

    name = "rows are torn by a power cut"

    def before(self) -> None:
        run = the_run(self.folder)
        files = [run / name for name in ("metrics.jsonl", "events.jsonl")] if run else []
        for file in files:
            if file.exists():
                torn = self.chance.choice([BYTE * 4096, b'{"kind": "train", "st', BYTE * 7])
                with file.open("ab") as end:
                    end.write(torn)
                self.happens()


class Silent(Fault):
    """A tracker's server takes connections and answers none."""

    name = "a tracker's server hangs"
    story = "tracker"

    def before(self) -> None:
        self.server = socket.socket()
        self.server.bind(("127.0.0.1", 0))
        self.server.listen(64)
        self.port = self.server.getsockname()[1]

    def within(self, stack: ExitStack, rank: int) -> None:
        os.environ[PORT] = str(self.port)
        defaults: Any = trackers.Background.__init__.__kwdefaults__
        defaults["patience"] = 0.2
        self.happens()

    def after(self) -> None:
        self.server.close()

    said = "did not receive its rows within"

    def judge(self, session: Session) -> None:
        """The run says what is lost, and ends as without."""
        super().judge(session)
        assert self.said in session.printed, session.printed


class Gone(Silent):
    """A tracker's server is not there."""

    name = "a tracker's server is gone"
    said = "failed: ConnectionRefusedError"

    def before(self) -> None:
        super().before()
        self.server.close()


def with_objective(changed: Callable[[Any], Any]) -> None:
    """Let trainings of this process have another objective."""
    build = running.build_components

    def built(*given: Any) -> Any:
        components = build(*given)
        components.objective = changed(components)
        return components

    running.build_components = built


class Once:
    """An objective whose n-th loss is not a number."""

    def __init__(self, inner: Any, count: int, happens: Callable[[], None]) -> None:
        self.inner, self.left, self.happens = inner, count, happens

    def share(self, *given: Any) -> Any:
        found = self.inner.share(*given)
        self.left -= 1
        if self.left:
            return found
        self.happens()
        return found._replace(loss=found.loss * math.nan, losses=found.losses * math.nan)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


FAULTS: tuple[type[Fault], ...] = (
    Killed, KilledAnyTime, Hangs, Preempted, Second, Disk, ShortWrites, Clock, NotANumber,
    WorkerKilled, WorkerHangs, Memory, Damaged, Torn, Silent, Gone,
)  # fmt: skip
