"""The long form, `make torture`: `python -m tests.long.torture.table [--rounds N] [--seed N]`.

Each round runs every campaign with another seed; with the counts of all rounds the table of
docs/reference/tested-faults.md is written.
"""

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from ...support.forks import forked, shared
from .faults import FAULTS, Fault

PAGE = Path(__file__).parents[3] / "docs/reference/tested-faults.md"
TABLE = re.compile(r"(<!-- torture -->\n).*?(<!-- end -->)", re.DOTALL)
ROW = re.compile(r"^\| ([^|]+) \| (\d+|-) \| (\d+|-) \|", re.MULTILINE)
TOTAL = re.compile(r"\*\*(\d+) faults\*\*, (\d+) survived; (\d+) states")
LENGTH = 7
"""Faults of a campaign."""

CAMPAIGNS = [
    ("fail, workers", 1, 2), ("fail, async", 1, 1), ("rollback", 1, 1), ("skip", 1, 1),
    ("skip, async, workers", 1, 1), ("fail, tracker", 1, 1),
    ("fail, workers", 2, 1), ("fail, async", 2, 1), ("rollback", 2, 1), ("skip", 2, 1),
    ("fail, tracker", 2, 1),
]  # fmt: skip
"""Story, ranks, and how often a round has it."""


def fitting(story: str, ranks: int) -> list[type[Fault]]:
    """The faults that a story can have."""
    has = set(story.split(", "))
    return [f for f in FAULTS if ranks in f.sizes and (not f.story or f.story in has)]


def counts_in(page: str) -> dict[tuple[str, int], int]:
    """How often each fault has happened, with how many ranks, by the table of a page."""
    (table,) = (match[0] for match in TABLE.finditer(page))
    return {
        (name, ranks): int(count)
        for name, *counts in ROW.findall(table)
        for ranks, count in zip((1, 2), counts, strict=True)
        if count != "-"
    }


def with_table(
    page: str, counts: Mapping[tuple[str, int], int], totals: tuple[int, int] | None = None
) -> str:
    """A page with another table.

    Arguments:
        totals: sessions that ended as promised, and states compared; those of the page if None.
    """
    if totals is None:
        found = TOTAL.search(page)
        assert found is not None
        totals = int(found[2]), int(found[3])
    rows = [
        " | ".join(
            [
                f"| {fault.name}",
                *(str(counts.get((fault.name, n), 0)) if n in fault.sizes else "-" for n in (1, 2)),
                f"{fault.outcome} |",
            ]
        )
        for fault in FAULTS
    ]
    head = ["| fault | 1 rank | 2 ranks | the session, and the next one |", "|---|---|---|---|"]
    said = (
        f"**{sum(counts.values())} faults**, {totals[0]} survived; {totals[1]} states compared "
        "with those of undisturbed runs, all equal."
    )
    text = "\n".join([*head, *rows, "", said])
    return TABLE.sub(lambda match: f"{match[1]}{text}\n{match[2]}", page)


def main(words: list[str]) -> int:
    """Run the rounds; 1 if a campaign has failed."""
    parser = argparse.ArgumentParser(prog="make torture")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    names = {fault.__name__: fault.name for fault in FAULTS}
    counts: Counter[tuple[str, int]] = Counter()
    survived = compared = failed = 0
    began = time.monotonic()
    for seed in range(options.seed, options.seed + options.rounds):
        for story, ranks, times in CAMPAIGNS:
            chance = random.Random(f"{story} {ranks} {seed}")
            for number in range(times):
                kinds = fitting(story, ranks)
                chosen = chance.sample(kinds, min(LENGTH, len(kinds)))
                # What only one story can have is always among them.
                special = [f for f in kinds if f.story and f not in chosen]
                chosen += special
                chance.shuffle(chosen)
                line = ",".join(each.__name__ for each in chosen)
                given = (story, str(ranks), str(seed * 10 + number), line)
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        printed = forked("tests.long.torture.campaign", folder, *given)
                    except AssertionError as error:
                        failed += 1
                        print(
                            f"FAILED: tests.long.torture.campaign FOLDER {given}\n{error}",
                            flush=True,
                        )
                        continue
                found = json.loads(printed.splitlines()[-1])
                for name, count in found["faults"].items():
                    counts[names[name], ranks] += count
                survived += found["survived"]
                compared += found["compared"]
                print(f"{story}, {ranks} ranks: {found}", flush=True)
    minutes = (time.monotonic() - began) / 60
    print(
        f"{sum(counts.values())} faults injected, {survived} survived, {compared} states compared, "
        f"{failed} campaigns failed, in {minutes:.1f} minutes"
    )
    if not failed:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(with_table(page, counts, (survived, compared)), encoding="utf-8")
    shared().close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
