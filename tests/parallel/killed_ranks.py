"""Run by test_checkpoints_of_ranks.py: a run, of which one rank is killed again and again.

    killed_ranks.py FOLDER RANKS KILLS STORY [SEED]

The others end by themselves, all start again, and in the end the run is compared with one that
nothing disturbed. It prints one line of JSON: how many kills of each kind there were.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
import torch._dynamo  # which DDP imports, and takes a second
import torch.distributed.checkpoint.default_planner

from setpoint.config import SetpointError
from setpoint.train.run import train

from ..checkpoint.disk import Operation, meetings
from ..support.ranks import free_port, launched
from ..train.effects.checkpoint_fields import late_copies
from ..train.killing import die, die_at
from ..train.small import assert_same_run, small_job

STORIES = {
    "replicate": (),
    "shard": ("parallel.shard=-1",),
    "shard, async": ("parallel.shard=-1", "checkpoint.mode=async", "checkpoint.every=2 steps"),
    "shard, replicate": ("parallel.shard=2", "parallel.replicate=2"),
    "tensor": ("parallel.tensor=2", "parallel.shard=-1"),
}
COMMON = (
    "duration=8 steps", "schedule={type=constant, warmup=2}", "evaluation.every=2 steps",
    "checkpoint.every=3 steps", "batch.micro_size=1", "batch.global_size=4",
    "parallel.timeout=30", "parallel.step_timeout=30",
)  # fmt: skip
# Of each kind, so many are in most sessions, of the main rank and of another; 0: there are none.
COUNTS = {
    "start": (1, 1), "collective": (40, 40), "update": (5, 5), "evaluate": (20, 20),
    "save": (40, 4), "record": (6, 0), "any": (80, 20), "time": (1, 1),
}  # fmt: skip
LONGEST = 60.0
"""Seconds in which the other ranks end, those included that wait for one in vain."""
GRACE = 2.0
"""Seconds after which those that may wait for one to start are killed, as a launcher does."""


def at_collective(count: int, happens: Callable[[], object] = die) -> Callable[[Operation], None]:
    """Kill this process before or after its n-th collective of those that exchange objects."""
    left = count

    def reached(operation: Operation) -> None:
        nonlocal left
        del operation
        left -= 1
        if not left:
            happens()

    return reached


class Session:
    """Ranks that train, from their start to the end of the last one.

    Arguments:
        folder: of the job.
        flags: of the job.
        victim, kind, count: which rank is killed, and where.
    """

    def __init__(
        self, folder: Path, size: int, flags: tuple[str, ...], victim: int, kind: str, count: int
    ) -> None:
        self.folder, self.size = folder, size
        # Once for all ranks: a file that each of them writes may be read while it is half there.
        self.job = small_job(
            folder, *COMMON, f"parallel.world_size={size}", *flags, without=("accumulation",)
        )
        self.victim, self.kind, self.count = victim, kind, count
        self.may_not_meet = kind in ("start", "time")
        # Without it such small copies are there long before a kill.
        self.saves_late = victim >= 0 and "checkpoint.mode=async" in flags and count % 2 == 1
        self.port = free_port()
        self.pids = [self._start(rank) for rank in range(size)]

    def _start(self, rank: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            with (self.folder / f"output-{rank}.txt").open("w") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                self._train(rank)
            status = 0
        except SetpointError as error:
            (self.folder / f"error-{rank}.txt").write_text(str(error))
        except BaseException:
            import traceback

            traceback.print_exc()
            status = 2
        finally:
            os._exit(status)

    def _train(self, rank: int) -> None:
        torch.set_num_threads(1)
        launched(rank, self.size, self.port)
        with ExitStack() as within:
            if self.saves_late:
                within.enter_context(late_copies())
            if rank == self.victim and self.kind == "start":
                os.kill(os.getpid(), signal.SIGKILL)
            elif rank == self.victim and self.kind == "collective":
                within.enter_context(meetings(None, at_collective(self.count), rank))
            elif rank == self.victim and self.kind != "time":
                die_at(self.folder / "runs", self.kind, self.count)
            train(self.job)

    def end(self, after: float | None = None) -> bool:
        """Wait for all ranks."""
        if after is not None:
            time.sleep(after)
            os.kill(self.pids[self.victim], signal.SIGKILL)
        codes = dict.fromkeys(range(self.size), 0)
        left, deadline = dict(enumerate(self.pids)), float("inf")
        while left:
            for rank, pid in list(left.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[rank] = os.waitstatus_to_exitcode(status)
                    del left[rank]
                    if rank == self.victim and codes[rank]:
                        deadline = time.monotonic() + (GRACE if self.may_not_meet else LONGEST)
            if time.monotonic() > deadline:
                assert self.may_not_meet, f"ranks {list(left)} have not ended"
                for pid in left.values():
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        was_killed = codes.get(self.victim) == -signal.SIGKILL
        for rank, code in codes.items():
            said = self.folder / f"error-{rank}.txt"
            if code and rank != self.victim and code != -signal.SIGKILL:
                assert was_killed and code == 1, (self.folder / f"output-{rank}.txt").read_text()
                text = said.read_text()
                assert f"rank {rank}" in text and ("lost its connection to the others" in text
                    or "did not connect to the others" in text), text  # fmt: skip
            said.unlink(missing_ok=True)
        return was_killed


def the_run(folder: Path) -> Path:
    (run,) = (folder / "runs").glob("small-*")
    return run


def main(folder: Path, size: int, kills: int, story: str, seed: str = "0") -> Counter[str]:
    """Compare runs with some kills each with one without."""
    chance, flags = random.Random(f"{story} {size} {seed}"), STORIES[story]
    whole = folder / "whole"
    whole.mkdir()
    began = time.monotonic()
    assert not Session(whole, size, flags, -1, "none", 0).end()
    length = time.monotonic() - began
    done: Counter[str] = Counter()
    kinds: list[str] = []
    for chain in range(10**6):
        if done.total() >= kills:
            break
        broken = folder / str(chain)
        broken.mkdir()
        left = kills - done.total()
        for _ in range(left if left <= 3 else min(chance.randint(3, 6), left)):
            kinds = kinds or chance.sample(sorted(COUNTS), len(COUNTS))
            kind, victim = kinds.pop(), chance.randrange(size)
            victim = victim if COUNTS[kind][1] else 0
            count = chance.randint(1, COUNTS[kind][victim > 0])
            session = Session(broken, size, flags, victim, kind, count)
            done[kind] += session.end(chance.uniform(0, length) if kind == "time" else None)
        assert not Session(broken, size, flags, -1, "none", 0).end()
        assert_same_run(the_run(broken), the_run(whole))
        shutil.rmtree(broken)
    assert kills < 50 or (done.keys() == COUNTS.keys() and all(done.values())), done
    return done


if __name__ == "__main__":
    os.fsync = lambda descriptor: None
    place, size, kills, *story = sys.argv[1:]
    print(json.dumps(main(Path(place), int(size), int(kills), *story)))
