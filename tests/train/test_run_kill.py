"""Exact resume: runs killed at random moments equal the run that nothing interrupted."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .commands import ENVIRONMENT, Command, Commands
from .small import assert_same_run, essence, events, rows, snapshot, write_config

# What tells of every session, also of one that changed nothing.
GROWING = ("events.jsonl", "logs/rank-0.log")

FORMATS = ("fp32", "bf16")


def the_run(folder: Path) -> Path | None:
    found = sorted((folder / "runs").glob("small-*"))
    return found[0] if found else None


def wait_until(process: Command, condition: Callable[[], bool]) -> None:
    while process.running and not condition():
        time.sleep(0.0005)


def size_of(folder: Path, name: str) -> int:
    run = the_run(folder)
    try:
        return (run / name).stat().st_size if run else 0
    except FileNotFoundError:
        return 0


def is_saving(folder: Path) -> bool:
    run = the_run(folder)
    return run is not None and any((run / "checkpoints").glob("step-*.tmp-*"))


def is_judging(folder: Path) -> bool:
    """Whether the last row is the one after which the evaluation of a third step comes."""
    run = the_run(folder)
    try:
        lines = (run / "metrics.jsonl").read_bytes().splitlines() if run else []
    except FileNotFoundError:
        return False
    return bool(lines) and any(
        lines[-1].startswith(b'{"kind": "train", "step": %d,' % step) for step in range(3, 300, 3)
    )


def kill_at_random(process: Command, folder: Path, chance: random.Random, moment: str) -> None:
    """Kill a run at a moment of a kind: while it starts, trains, saves, or judges."""
    if moment == "start":
        time.sleep(chance.uniform(0.0, 0.15))
    else:
        # A few rows on, so that what has been won back is lost again.
        before = size_of(folder, "metrics.jsonl")
        further = before + chance.randint(1, 6) * 300
        wait_until(process, lambda: size_of(folder, "metrics.jsonl") >= further)
    if moment == "save":
        wait_until(process, lambda: is_saving(folder))
        time.sleep(chance.uniform(0.0, 0.01))
    elif moment == "judge":
        wait_until(process, lambda: is_judging(folder))
        time.sleep(chance.uniform(0.0, 0.002))
    elif moment == "train":
        time.sleep(chance.uniform(0.0, 0.02))
    process.signal(signal.SIGKILL)


def kill_and_go_on(commands: Commands, tmp_path: Path, kills: int, *flags: str) -> None:
    """Train one run in peace and one with kills, and compare them."""
    oracle, broken = tmp_path / "oracle", tmp_path / "broken"
    for folder in (oracle, broken):
        folder.mkdir()
        write_config(folder)
    words = ("train", "small.toml", *flags)
    status, output = commands.run(oracle, *words)
    assert status == 0, output
    chance = random.Random(f"{kills}/{flags}")
    moments = itertools.cycle(("start", "train", "save", "judge"))
    killed = 0
    while killed < kills:
        process = commands.start(broken, *words)
        kill_at_random(process, broken, chance, next(moments))
        status = process.wait()
        assert status in (0, -signal.SIGKILL), process.output.read_text()
        killed += status == -signal.SIGKILL
        run = the_run(broken)
        if run is None or not (run / "metrics.jsonl").exists():
            continue
        if status == 0:
            # It was faster than the killer: compare, and begin again.
            expected = the_run(oracle)
            assert expected is not None
            assert_same_run(run, expected)
            run.rename(broken / f"finished-{killed}-{time.monotonic_ns()}")
    status, output = commands.run(broken, *words)
    assert status == 0, output
    run, expected = the_run(broken), the_run(oracle)
    assert run is not None
    assert expected is not None
    assert_same_run(run, expected)
    assert run.name == expected.name


@pytest.mark.parametrize(("compute", "deterministic"), [("fp32", "false"), ("bf16", "true")])
def test_killed_runs_equal_the_uninterrupted_one(
    commands: Commands, tmp_path: Path, compute: str, deterministic: str
) -> None:
    kill_and_go_on(
        commands,
        tmp_path,
        6,
        f"--precision.compute={compute}",
        f"--deterministic={deterministic}",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compute", "deterministic"), list(itertools.product(FORMATS, ("false", "true")))
)
def test_many_kills(commands: Commands, tmp_path: Path, compute: str, deterministic: str) -> None:
    kill_and_go_on(
        commands,
        tmp_path,
        45,
        f"--precision.compute={compute}",
        f"--deterministic={deterministic}",
        "--duration=250 steps",
    )


def test_the_installed_command_goes_on_where_it_was_killed(
    commands: Commands, tmp_path: Path
) -> None:
    """As the tests above, without a fork anywhere: `python -m setpoint.cli.main`, thrice."""
    words = [sys.executable, "-m", "setpoint.cli.main", "train", "small.toml"]
    broken, oracle = tmp_path / "broken", tmp_path / "oracle"
    for folder in (broken, oracle):
        folder.mkdir()
        write_config(folder)
    environment = {**os.environ, **ENVIRONMENT}
    with subprocess.Popen(words, cwd=broken, env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and size_of(broken, "metrics.jsonl") < 3000:
            time.sleep(0.001)
        process.kill()
    run = the_run(broken)
    assert run is not None
    lost = rows(run)[-1]["step"]
    assert lost < 30, "it was killed before its end"
    done = subprocess.run(words, cwd=broken, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (resume,) = events(run, "resume")
    assert 0 < resume["step"] <= lost
    assert f"resuming {Path('runs') / run.name} at step {resume['step']}" in done.stdout
    assert commands.run(oracle, "train", "small.toml")[0] == 0
    expected = the_run(oracle)
    assert expected is not None
    assert_same_run(run, expected)


def test_the_comparison_sees_a_lost_dropout_mask(commands: Commands, tmp_path: Path) -> None:
    """The tests above prove something: with another state of the generator all losses differ."""
    write_config(tmp_path)
    assert commands.run(tmp_path, "train", "small.toml", "--duration=8 steps")[0] == 0
    run = the_run(tmp_path)
    assert run is not None
    first = essence(run)
    assert first["latest rng.safetensors"] != first["best rng.safetensors"] or (
        first["latest"] == first["best"]
    )
    losses = [row["loss"] for row in first["rows"] if row["kind"] == "train"]
    assert len(set(losses)) == len(losses) == 8


def test_a_second_start_of_a_finished_run_changes_nothing_that_was_learned(
    commands: Commands, tmp_path: Path
) -> None:
    write_config(tmp_path)
    words = ("train", "small.toml", "--duration=5 steps")
    assert commands.run(tmp_path, *words)[0] == 0
    run = the_run(tmp_path)
    assert run is not None
    before = {name: data for name, data in snapshot(run).items() if name not in GROWING}
    status, output = commands.run(tmp_path, *words)
    assert status == 0
    assert "is finished at step 5" in output
    after = {name: data for name, data in snapshot(run).items() if name not in GROWING}
    assert after == before
