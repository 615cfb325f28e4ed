"""`setpoint plan` from the command line."""

from __future__ import annotations

import json

from ..support.snapshots import compare
from .conftest import CommandLine

SMALL = "plan small.toml --gpu h100 --world-size 4 --batch.global_size 16"
FREE = "--batch.micro_size 1 --top 3"


def test_the_best_are_overrides_that_resolve(cli: CommandLine) -> None:
    found = json.loads(cli.ok(f"{SMALL} {FREE} --json"))
    assert found["fixed"] == {"micro_size": 1}
    assert len(found["best"]) == 3
    seconds = [each["seconds"] for each in found["best"]]
    assert seconds == sorted(seconds)
    flags = " ".join(f"'{each}'" for each in found["best"][0]["overrides"])
    line = f"check small.toml --world-size 4 --batch.global_size 16 --batch.micro_size 1 {flags}"
    checked = json.loads(cli.ok(f"{line} --plan --gpu h100 --json"))
    assert checked["expected"]["seconds"] == seconds[0]


def test_what_people_see(cli: CommandLine) -> None:
    out = cli.ok(f"{SMALL} {FREE} --price 2")
    assert "fixed: micro_size = 1" in out
    assert "topologies timed" in out and "GPU-hours" in out and "\n1: --" in out


def test_bad_input_is_answered_in_words(cli: CommandLine) -> None:
    lines = [
        "plan small.toml --world-size 4",
        "plan small.toml --gpu h100",
        "plan small.toml --gpu h100 --world-size 1",
        f"{SMALL} --memory 0",
        "plan small.toml --gpu h10 --world-size 4",
        f"{SMALL} --memory 100GiB",
        f"{SMALL} --memory lots",
        f"{SMALL} --parallel.shard 3",
        f"{SMALL} --duration '1e-6 s'",
        "plan tiny --gpu h100 --world-size 6 --batch.global_size 7 --parallel.shard 6",
        f"{SMALL} --adapter lora",
    ]
    answers = [cli(line) for line in lines]
    assert all(answer.status == 2 for answer in answers), answers
    texts = (
        f"$ setpoint {line}\n{answer.err}" for line, answer in zip(lines, answers, strict=True)
    )
    compare("cli/plan_refused", "\n".join(texts))


def test_where_nothing_fits_it_says_by_how_much_and_what_would(cli: CommandLine) -> None:
    text = cli.refused(f"{SMALL} --memory 100KiB")
    assert "no layout of 4 ranks fits into 100 KiB: the smallest needs" in text
    assert "KiB too much (weights" in text and "\nIt is: --parallel.pipeline=" in text
    assert "to reduce the largest part, " in text
