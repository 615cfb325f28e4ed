"""Run by test_torture.py: runs that are disturbed again and again, and compared in the end.

    campaign.py FOLDER STORY RANKS SEED FAULTS

Each fault of FAULTS (classes of faults.py, separated by commas) happens to a session of its own,
in the order given; then a session that nothing disturbs ends the run, which is compared with one
that nothing has disturbed. It prints one line of JSON: how often each fault has happened, how many
sessions have ended as they should, and how many states were compared.
"""

import json
import os
import random
import signal
import sys
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch._dynamo  # which DDP imports, and takes a second
import torch.distributed.checkpoint.default_planner  # noqa: F401

from setpoint.files import atomic

from ...train.killing import die_at
from ...train.poison import Poisoned
from ...train.small import assert_same_run, essence, write_config
from . import faults
from .faults import Damaged, Fault, with_objective
from .session import HIT, TRACE, Session, assert_nothing_left, newest_whole, the_run

COMMON = (
    "schedule={type=constant, warmup=2}", "evaluation.every=2 steps",
    "checkpoint.every=3 steps", "batch.micro_size=1", "batch.global_size=4",
    "parallel.timeout=10", "parallel.step_timeout=3",
)  # fmt: skip
SHARD = "parallel.shard=-1"
LONGEST = 5
"""Steps of a session that is to be disturbed; then it is stopped."""
BAD = (3, 4)
"""Batches of the data whose loss is NaN in the stories that go on without them."""
STORIES: dict[str, tuple[str, ...]] = {
    "fail": (),
    "fail, async": ("checkpoint.mode=async", "checkpoint.every=2 steps"),
    "fail, workers": ("data.loader.workers=1", "data.loader.timeout=3", "data.loader.prefetch=2"),
    "skip": ("resilience.non_finite=skip",),
    "skip, async, workers": (
        "resilience.non_finite=skip", "checkpoint.mode=async", "data.loader.workers=1",
        "data.loader.timeout=3",
    ),
    "rollback": ("resilience.non_finite=rollback", "checkpoint.every=2 steps"),
    "fail, tracker": ("tracking.trackers=[jsonl, remote-of-torture]",),
}  # fmt: skip


class Campaign:
    """Runs of one story.

    Arguments:
        folder: empty.
        size: how many ranks.
        seed: of what chance decides.
        sessions: that are disturbed, for which the run is long enough.
    """

    def __init__(self, folder: Path, story: str, size: int, seed: int, sessions: int) -> None:
        self.folder, self.story, self.size = folder, story, size
        self.chance = random.Random(f"{story} {size} {seed}")
        length = f"duration={LONGEST * sessions + 4} steps"
        flags = [length, *COMMON, *STORIES[story], *([SHARD] if size > 1 else [])]
        self.words = ["train", "small.toml", *(f"--{flag}" for flag in flags)]
        if "tracker" in story:
            self.words += ["--import", "tests.long.torture.tracker"]
        self.counts: Counter[str] = Counter()
        self.survived = self.compared = 0
        self.whole = self._begin("whole")
        self._undisturbed(self.whole)

    def _begin(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir()
        write_config(folder, without=("accumulation",))
        return folder

    def _within(self, stack: ExitStack, rank: int) -> None:
        """The bad batches of a story are part of its data."""
        del stack
        if not self.story.startswith("fail") and rank == self.size - 1:
            with_objective(lambda parts: Poisoned(parts, BAD))

    def _undisturbed(self, folder: Path) -> None:
        session = Session(folder, self.size, self.words, self._within)
        session.wait()
        assert set(session.codes.values()) == {0}, session.printed
        assert TRACE not in session.printed, session.printed
        assert_nothing_left(folder)
        newest_whole(folder)

    def run(self, name: str, kinds: list[type[Fault]]) -> None:
        """Disturb a run by faults, one after the other, end it, and compare it."""
        folder, newest = self._begin(name), -1
        for kind in kinds:
            (folder / HIT).unlink(missing_ok=True)
            fault = kind(folder, self.size, self.chance)
            fault.before()

            def within(stack: ExitStack, rank: int, fault: Fault = fault) -> None:
                self._within(stack, rank)
                if rank == 0:  # something is to be left for the faults that follow
                    stop = partial(os.kill, os.getpid(), signal.SIGTERM)
                    die_at(folder / "runs", "update", LONGEST, stop)
                fault.within(stack, rank)

            may_hang = [fault.victim] if fault.may_hang else []
            session = Session(folder, self.size, self.words, within, fault.stopped, may_hang)
            session.wait()
            fault.after()
            fault.judge(session)
            found = newest_whole(folder)
            assert found >= newest or isinstance(fault, Damaged), (found, newest)
            newest = found
            self.counts[kind.__name__] += fault.has_happened
            self.survived += fault.has_happened
        self._undisturbed(folder)
        ours, theirs = the_run(folder), the_run(self.whole)
        assert ours is not None and theirs is not None
        assert_same_run(ours, theirs)
        self.compared += len(essence(ours))


def main(folder: Path, story: str, size: int, seed: int, kinds: str) -> dict[str, object]:
    """Run one campaign.

    Returns:
        what happened, how much of it was survived, and how many states were compared.
    """
    chosen = [getattr(faults, name) for name in kinds.split(",")]
    campaign = Campaign(folder, story, size, seed, len(chosen))
    campaign.run("broken", chosen)
    return {
        "faults": dict(campaign.counts),
        "survived": campaign.survived,
        "compared": campaign.compared,
    }


if __name__ == "__main__":
    os.fsync = lambda descriptor: None
    atomic.PAUSE = 0.0
    place, story, size, seed, kinds = sys.argv[1:]
    print(json.dumps(main(Path(place), story, int(size), int(seed), kinds)))
