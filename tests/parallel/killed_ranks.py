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

import torch._dynamo  # which DDP imports, and takes a second
import torch.distributed.checkpoint.default_planner  # noqa: F401

from ..checkpoint.disk import Operation, meetings
from ..long.torture.session import LOST, Session, the_run
from ..train.effects.checkpoint_fields import late_copies
from ..train.killing import die, die_at
from ..train.small import assert_same_run, write_config

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


class Killed:
    """Runs of a story in folders, each begun by `begin`.

    Arguments:
        size: how many ranks.
    """

    def __init__(self, size: int, story: str) -> None:
        self.size = size
        flags = (*COMMON, *STORIES[story])
        self.words = ["train", "small.toml", *(f"--{flag}" for flag in flags)]
        self.saves_late = "checkpoint.mode=async" in flags

    def begin(self, folder: Path) -> Path:
        folder.mkdir()
        write_config(folder, without=("accumulation",))
        return folder

    def undisturbed(self, folder: Path) -> None:
        session = Session(folder, self.size, self.words)
        session.wait()
        assert set(session.codes.values()) == {0}, session.printed

    def kill(self, folder: Path, victim: int, kind: str, count: int, after: float) -> bool:
        """Start all ranks and kill one.

        Arguments:
            after: seconds after which it is killed from outside, of the kind `time`.

        Returns:
            whether it got so far.
        """

        def within(stack: ExitStack, rank: int) -> None:
            # Without it such small copies are there long before a kill.
            if self.saves_late and count % 2:
                stack.enter_context(late_copies())
            if rank == victim and kind == "start":
                die()
            elif rank == victim and kind == "collective":
                stack.enter_context(meetings(None, at_collective(count), rank))
            elif rank == victim and kind != "time":
                die_at(folder / "runs", kind, count)

        # The others may wait for one that has not started until a launcher kills them.
        others = {*range(self.size)} - {victim}
        may_hang = others if kind in ("start", "time") else set[int]()
        session = Session(folder, self.size, self.words, within, may_hang=may_hang)
        if kind == "time":
            time.sleep(after)
            os.kill(session.pids[victim], signal.SIGKILL)
        session.wait()
        codes, said = session.codes, session.printed
        was_killed = codes.pop(victim) == -signal.SIGKILL
        ended = {code for code in codes.values() if code != -signal.SIGKILL}
        assert ended <= ({0, 1} if was_killed else {0}), (codes, said)
        assert 1 not in ended or LOST.search(said), said
        return was_killed


def main(folder: Path, size: int, kills: int, story: str, seed: str = "0") -> Counter[str]:
    """Compare runs with some kills each with one without."""
    chance, runs = random.Random(f"{story} {size} {seed}"), Killed(size, story)
    whole = runs.begin(folder / "whole")
    began = time.monotonic()
    runs.undisturbed(whole)
    length = time.monotonic() - began
    done: Counter[str] = Counter()
    kinds: list[str] = []
    for chain in range(10**6):
        if done.total() >= kills:
            break
        broken = runs.begin(folder / str(chain))
        left = kills - done.total()
        for _ in range(left if left <= 3 else min(chance.randint(3, 6), left)):
            kinds = kinds or chance.sample(sorted(COUNTS), len(COUNTS))
            kind, victim = kinds.pop(), chance.randrange(size)
            victim = victim if COUNTS[kind][1] else 0
            count = chance.randint(1, COUNTS[kind][victim > 0])
            after = chance.uniform(0, length) if kind == "time" else 0.0
            done[kind] += runs.kill(broken, victim, kind, count, after)
        runs.undisturbed(broken)
        ours, theirs = the_run(broken), the_run(whole)
        assert ours is not None and theirs is not None
        assert_same_run(ours, theirs)
        shutil.rmtree(broken)
    assert kills < 50 or (done.keys() == COUNTS.keys() and all(done.values())), done
    return done


if __name__ == "__main__":
    os.fsync = lambda descriptor: None
    place, size, kills, *story = sys.argv[1:]
    print(json.dumps(main(Path(place), int(size), int(kills), *story)))
