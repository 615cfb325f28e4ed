"""Write the table of faults of checkpoints: `python -m tests.checkpoint.reliability`.

It is in docs/reference/tested-faults.md. The command tries all faults, which takes
minutes, and counts them; words after the command choose rows. The slow tests try them as well, and
fail where there are fewer than the page says.
"""

import functools
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..support.forks import forked, shared
from ..train.test_killed_anywhere import KILLS_OF_EACH, STORIES
from .crashed import (
    ACTIONS,
    CODES,
    clocks_that_go_back,
    crash_everywhere,
    fail_everywhere,
    reads_that_fail,
    record,
    short_writes,
)

PAGE = Path(__file__).parents[2] / "docs/reference/tested-faults.md"
KILLS_OF_RANKS = 50
"""Of each piece of a story of several ranks: they take one to two minutes."""
SEEDS = range(4)
"""Of the pieces of such a story."""
TABLE = re.compile(r"(<!-- faults -->\n).*?(<!-- end -->)", re.DOTALL)
ROW = re.compile(r"^\| ([^|]+) \| (\d+) \| (\d+) \|", re.MULTILINE)


class Fault(NamedTuple):
    """A row of the table.

    Arguments:
        pieces: they try it in every way, each in an empty folder, and say in how many.
    """

    name: str
    ranks: int
    outcome: str
    pieces: Sequence[Callable[[Path], int]]


def crashes(folder: Path) -> int:
    """States after a crash of one process, and after another one while they are repaired."""
    total = 0
    for name, action in ACTIONS.items():
        found = crash_everywhere(record(action, folder / name), folder / "trial", every=True)
        total += found["states"] + found["repairs"]
    return total


def failures(goes_on: bool) -> Callable[[Path], int]:
    """Operations of one process that fail, with each code."""

    def count(folder: Path) -> int:
        recorded = {name: record(action, folder / name) for name, action in ACTIONS.items()}
        return sum(
            fail_everywhere(each, folder / "trial", code, goes_on)
            for each in recorded.values()
            for code in CODES.values()
        )

    return count


def of_ranks(kind: str, ranks: int, stride: int, *keys: str) -> Callable[[Path], int]:
    """What `crashed_ranks` counts."""

    def count(folder: Path) -> int:
        words = (kind, str(folder), str(ranks), str(stride))
        found = json.loads(forked("tests.checkpoint.crashed_ranks", *words).splitlines()[-1])
        return sum(found[key] for key in keys or found)

    return count


def kills(ranks: int, story: str) -> list[Callable[[Path], int]]:
    """Kills of a rank in runs that equal the undisturbed one."""

    def count(seed: int, folder: Path) -> int:
        words = map(str, (folder, ranks, KILLS_OF_RANKS, story, seed))
        return sum(json.loads(forked("tests.parallel.killed_ranks", *words)).values())

    return [functools.partial(count, seed) for seed in SEEDS]


def kills_of_stories(folder: Path) -> int:
    """Those of tests/train/test_killed_anywhere.py, which counts them itself."""
    del folder
    return KILLS_OF_EACH * len(STORIES)


WHOLE = "old or new, whole"
REFUSED = "refused, nothing lost"
ENDED = "the others end; old or new, whole"
SKIPPED = "named and skipped by all ranks"
SAME = "the same, bit for bit"
FAULTS = [
    Fault("kill or power cut after any operation", 1, WHOLE, [crashes]),
    Fault("kill or power cut after any operation", 2, WHOLE,
          [of_ranks("power", 2, 1, "states", "repairs")]),
    Fault("kill or power cut after any operation", 4, WHOLE,
          [of_ranks("power", 4, 2, "states", "repairs")]),
    Fault("one operation fails: disk full, I/O error, read-only", 1, REFUSED, [failures(False)]),
    Fault("all operations fail from one on", 1, REFUSED, [failures(True)]),
    Fault("each write takes half of its data", 1, "as without", [short_writes]),
    Fault("clock and file times go back", 1, "as without", [clocks_that_go_back]),
    Fault("the disk is full for one rank", 2, REFUSED, [of_ranks("fails", 2, 1)]),
    Fault("the disk is full for one rank", 4, REFUSED, [of_ranks("fails", 4, 3)]),
    Fault("one rank is killed in a save", 2, ENDED, [of_ranks("dies", 2, 1)]),
    Fault("one rank is killed in a save", 4, ENDED, [of_ranks("dies", 4, 5)]),
    Fault("a file is changed, cut, missing or unreadable", 2, SKIPPED,
          [of_ranks("damage", 2, 1)]),
    Fault("a file is changed, cut, missing or unreadable", 4, SKIPPED,
          [of_ranks("damage", 4, 1)]),
    Fault("a read fails while parts are copied into a model", 1, "read again, or refused in words",
          [reads_that_fail]),
    Fault("a run is killed, jobs of all kinds", 1, SAME, [kills_of_stories]),
    Fault("a rank of a run is killed, replicas", 2, SAME, kills(2, "replicate")),
    Fault("a rank of a run is killed, shards", 2, SAME, kills(2, "shard")),
    Fault("a rank of a run is killed, saves in the background", 2, SAME,
          kills(2, "shard, async")),
    Fault("a rank of a run is killed, divided matrices", 2, SAME, kills(2, "tensor")),
    Fault("a rank of a run is killed, shards and replicas", 4, SAME, kills(4, "shard, replicate")),
]  # fmt: skip


def counts_in(page: str) -> dict[tuple[str, int], int]:
    """The numbers of cases in the table of a page."""
    (table,) = (match[0] for match in TABLE.finditer(page))
    return {(name, int(ranks)): int(count) for name, ranks, count in ROW.findall(table)}


def with_table(page: str, counts: Mapping[tuple[str, int], int]) -> str:
    """A page with another table."""
    rows = [
        f"| {name} | {ranks} | {counts.get((name, ranks), 0)} | {outcome} |"
        for name, ranks, outcome, _ in FAULTS
    ]
    head = ["| fault | ranks | cases | outcome |", "|---|---|---|---|"]
    return TABLE.sub(lambda match: "\n".join([match[1].strip(), *head, *rows, match[2]]), page)


def main(chosen: list[str]) -> None:
    """Count, and write the page."""
    os.fsync = lambda descriptor: None
    for fault in FAULTS:
        if chosen and not any(word in f"{fault.name} {fault.ranks}" for word in chosen):
            continue
        count = 0
        for piece in fault.pieces:
            with tempfile.TemporaryDirectory() as folder:
                count += piece(Path(folder))
        print(f"{fault.name}, {fault.ranks} ranks: {count}", flush=True)
        page = PAGE.read_text(encoding="utf-8")
        counts = {**counts_in(page), (fault.name, fault.ranks): count}
        PAGE.write_text(with_table(page, counts), encoding="utf-8")
    shared().close()


if __name__ == "__main__":
    main(sys.argv[1:])
