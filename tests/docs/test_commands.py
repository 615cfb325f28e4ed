"""Runs what the documentation shows.

A `console` block is a row of `$ command` lines with the output that follows; `...` in a shown
line stands for anything, and a line of only `...` for any lines. `# exit N` says the status, and
`# needs NAME` that a command is run where an optional package is installed. The
toml, yaml and json blocks of a page are written to the file that their first line names, as are
Python blocks that begin with the name of one; the other Python blocks run in order, as one module.
Pages of a folder also have the files that the folder's README shows; the package of a page that
shows a pyproject.toml counts as installed. Runs of a few steps (`smoke`) read short sequences if
the page says nothing of their length.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ..support.forks import SETPOINT, Forks

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.documentation
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in DOCS.rglob("*.md") if DOCS / "decisions" not in page.parents),
]
# Run as readers run them: a page that trains, and one that does not.
REAL = ("docs/determinism", "docs/config/compose")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"(?:#|//) ([\w./-]+\.\w+)$")
FOR_SHELLS = re.compile(r"[^\w\s./,:=+@%'\"-]")
"""What a shell may do more with than divide words."""
PROGRAMS = ("setpoint", "python", "printf")
NOT_HERE = -1
"""In place of the status of a command whose package is not installed."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT).with_suffix(""))


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def file_name(text: str) -> str | None:
    """The file that a block's first line names."""
    found = FILE_NAME.match(text.partition("\n")[0])
    return found[1] if found else None


def pattern(lines: list[str]) -> re.Pattern[str]:
    parts = []
    for line in lines:
        if line == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(r"[^\n]*".join(re.escape(part) for part in line.split("...")) + r" *\n")
    return re.compile("".join(parts))


def write_files(page: Path, folder: Path) -> None:
    """Write what the page, and the README of its folder, show as files."""
    beside = page.with_name("README.md")
    for source in [page] if page == beside or not beside.is_file() else [beside, page]:
        for language in ("toml", "yaml", "json", "python", "text"):
            for text in blocks(source, language):
                name = file_name(text)
                if name is None:
                    where = f"{name_of(source)}: no file name in {text!r}"
                    assert language in ("python", "text"), where
                    continue
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                # JSON has no comments, so the name is not part of it.
                path.write_text(text.partition("\n")[2] if language == "json" else text)
                if name == "pyproject.toml":
                    install(tomllib.loads(text)["project"], folder)


def install(project: dict[str, Any], folder: Path) -> None:
    """Make a page's package look installed, as far as entry points go."""
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    name, version = project["name"], project["version"]
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n{key} = {value}" for group, keys in groups for key, value in keys.items()]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def run(command: str, folder: Path, forks: Forks | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command as a reader types it, with the installed `setpoint` and this Python.

    Arguments:
        command: the line.
        folder: the working directory.
        forks: starts the programs; they are processes that import all they need if None.
    """
    bare = re.sub(r"^(\w+=\S+ )*", "", command)
    assert bare.startswith(PROGRAMS), f"not run here: {command}"
    variables = {k: v for k, v in os.environ.items() if not k.startswith("SETPOINT_")}
    variables |= {"COLUMNS": "100", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    if (folder / "pyproject.toml").is_file():
        variables["PYTHONPATH"] = str(folder)
    programs = forks.programs if forks is not None else Path(sys.executable).parent
    variables["PATH"] = f"{programs}:{os.environ['PATH']}"
    if forks is not None and command.startswith("setpoint ") and not FOR_SHELLS.search(command):
        words = [SETPOINT, *shlex.split(command)[1:]]
        return subprocess.CompletedProcess(words, *forks.run(words, folder, variables))
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=variables,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
        check=False,
    )


def shown_commands(text: str) -> list[tuple[str, int, list[str]]]:
    found: list[tuple[str, int, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            command, _, note = line[2:].partition("  # exit ")
            command, _, package = command.partition("  # needs ")
            status = int(note) if note else 0
            if package and find_spec(package) is None:
                status = NOT_HERE
            found.append((command.strip(), status, []))
        else:
            found[-1][2].append(line)
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path, forks: Forks) -> None:
    write_files(page, tmp_path)
    by = None if name_of(page) in REAL else forks
    told = "sequence_length" in page.read_text()
    short = "" if told else "SETPOINT__BATCH__SEQUENCE_LENGTH=32 "
    for text in blocks(page, "console"):
        for command, status, lines in shown_commands(text):
            if status == NOT_HERE:
                continue
            if command == "setpoint train tiny --optimizer.lr 1e-3":
                command += " --with 'smoke(steps=2)'"  # the page means the whole minute
            if "train tiny" in command and "smoke" in command:
                command = short + command
            if "train compile.toml" in command:  # Inductor takes seconds and has tests of its own
                command = f"SETPOINT__COMPILE__BACKEND=eager {command}"
            done = run(command, tmp_path, by)
            assert done.returncode == status, f"{command}\n{done.stdout}"
            if lines:
                assert pattern(lines).match(done.stdout), f"{command}\n{done.stdout}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_blocks_run(page: Path, tmp_path: Path, forks: Forks) -> None:
    source = "\n".join(text for text in blocks(page, "python") if file_name(text) is None)
    if not source:
        pytest.skip("no Python on this page")
    write_files(page, tmp_path)
    script = tmp_path / "page.py"
    script.write_text(source)
    status, output = forks.run([str(script)], tmp_path)
    assert status == 0, output
