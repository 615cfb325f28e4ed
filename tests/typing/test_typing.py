"""Type checkers see what a user's project gets wrong, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).with_name("sample.py")
SOURCE = Path(__file__).resolve().parents[2] / "src"
# What mypy knows of Setpoint is kept from one run of the tests to the next.
CACHE = SOURCE.parent / ".pytest_cache" / "mypy-strict"
LINES = SAMPLE.read_text(encoding="utf-8").splitlines()
MISTAKES = {number for number, line in enumerate(LINES, start=1) if "  # MISTAKE:" in line}
# Before Python 3.13 checkers make no `__replace__` from the fields of a class, and see less of
# `evolve`: pyright nothing in classes with required fields, mypy nothing at all.
EVOLVE = {number for number in MISTAKES if ".evolve(" in LINES[number - 1]}
REQUIRED = {number for number in EVOLVE if "required field" in LINES[number - 1]}


def pyright(version: str, folder: Path) -> set[int]:
    """The lines of the sample in which pyright in strict mode finds an error."""
    settings = {
        "include": ["sample.py"],
        "extraPaths": [str(SOURCE)],
        "typeCheckingMode": "strict",
        "pythonVersion": version,
    }
    (folder / "sample.py").write_text(SAMPLE.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "-p", str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert all(item["file"].endswith("sample.py") for item in found), done.stdout
    return {item["range"]["start"]["line"] + 1 for item in found}


def mypy(version: str, folder: Path) -> set[int]:
    """The lines of the sample in which mypy in strict mode finds an error."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--follow-imports=silent",
            f"--python-version={version}",
            f"--cache-dir={CACHE}",
            str(SAMPLE),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=folder,
        env={"MYPYPATH": str(SOURCE), "PATH": "/usr/bin:/bin"},
    )
    found = re.findall(r"^(.*?):(\d+): error:", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    assert all(name.endswith("sample.py") for name, _ in found), done.stdout
    return {int(line) for _, line in found}


def test_the_sample_has_mistakes() -> None:
    assert len(MISTAKES) == 24
    assert len(EVOLVE) == 3
    assert len(REQUIRED) == 1


@pytest.mark.parametrize("checker", [pyright, mypy])
def test_exactly_the_planted_mistakes_are_found(checker: object, tmp_path: Path) -> None:
    assert callable(checker)
    assert checker("3.13", tmp_path) == MISTAKES


@pytest.mark.slow
def test_what_older_versions_see(tmp_path: Path) -> None:
    assert pyright("3.11", tmp_path) == MISTAKES - REQUIRED
    assert mypy("3.11", tmp_path) == MISTAKES - EVOLVE
