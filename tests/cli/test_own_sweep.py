"""A script with a root of its own sweeps and completes like `setpoint`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = """\
#!{python}
import sys

import setpoint as sp


class Solver(sp.Config):
    pass


class Euler(Solver, type="euler"):
    step: float = sp.field(default=0.1, gt=0)


class Midpoint(Solver, type="midpoint"):
    pass


class Job(sp.Config):
    size: int = sp.field(default=8, ge=1)
    solver: Solver = sp.field(factory=Euler)


@sp.preset
def large(size: int = 100) -> Job:
    return Job(size=size)


def main(job: Job) -> None:
    print("size", job.size)
    if job.size == 13:
        sys.exit("bad luck")


if __name__ == "__main__":
    sp.run(Job, main)
"""
Call = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def script(tmp_path: Path) -> Call:
    """Runs `python work.py` in a folder of its own; status, output and errors."""
    (tmp_path / "work.py").write_text(SCRIPT.format(python=sys.executable))

    def call(line: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "work.py", *shlex.split(line)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    return call


def test_a_sweep_runs_each_point_once(script: Call, tmp_path: Path) -> None:
    status, out, _ = script("sweep large --size 9,13 --solver.step 0.1,0.2 --jobs 2")
    assert status == 1 and "2 finished; 2 failed" in out and "bad luck" in out
    folder = tmp_path / "sweeps" / "work-large"
    record = json.loads((folder / "sweep.json").read_text())
    assert {point["name"]: point["status"] for point in record["points"]} == {
        "size=9,step=0.1": "finished",
        "size=9,step=0.2": "finished",
        "size=13,step=0.1": "failed",
        "size=13,step=0.2": "failed",
    }
    log = folder / "points" / "size=9,step=0.1" / "output.log"
    assert log.read_text() == "size 9\n"
    status, out, _ = script("sweep large --size 9,10 --solver.step 0.1,0.2")
    assert status == 0 and "2 of them finished before" in out
    assert log.read_text() == "size 9\n"


def test_nothing_starts_if_a_point_is_wrong(script: Call, tmp_path: Path) -> None:
    status, _, error = script("sweep --size 4,-1")
    assert status == 2 and "size = -1" in error and "nothing was started" in error
    assert not (tmp_path / "sweeps").exists()


def test_a_search_is_refused(script: Call, tmp_path: Path) -> None:
    (tmp_path / "search.toml").write_text(
        '[sweep.search]\ntrials = 2\n[sweep.search.axes]\nsize = "integer(1, 9)"\n'
    )
    status, _, error = script("sweep search.toml")
    assert status == 2 and "does not report" in error


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("1 sw", {"sweep"}),
        ("1 lar", {"large"}),
        ("1 --so", {"--solver", "--solver.step"}),
        ("2 large --solver=m", {"midpoint"}),
        ("3 why size la", {"large"}),
        ("3 sweep --solver euler,m", {"euler,midpoint"}),
    ],
)
def test_completion(script: Call, words: str, expected: set[str]) -> None:
    status, out, error = script(f"__complete {words}")
    found = {line.rpartition("=")[2] for line in out.splitlines()}
    assert (status, error) == (0, "") and found == expected


def test_bash_completes_the_script(script: Call, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    (tmp_path / "work.py").chmod(0o755)
    program = f"{script('completion bash')[1]}\n" + (
        'COMP_WORDS=(./work.py fing) COMP_CWORD=1; _work_py; echo "${COMPREPLY[@]}"; complete -p'
    )
    done = subprocess.run(
        [bash, "-c", program], cwd=tmp_path, capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.stdout.splitlines()[0] == "fingerprint"
    assert "-F _work_py work.py" in done.stdout
