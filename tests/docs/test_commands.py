"""Runs what the documentation shows.

A `console` block is a row of `$ command` lines with the output that follows; `...` in a shown
line stands for anything, and a line of only `...` for any lines. `# exit N` says the status. The
toml and yaml blocks of a page are written to the file that their first line names, as are Python
blocks that begin with the name of one; the other Python blocks run in order, as one module.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def is_file(python: str) -> bool:
    return python.startswith("# ") and python.splitlines()[0].endswith(".py")


def pattern(lines: list[str]) -> re.Pattern[str]:
    parts = []
    for line in lines:
        if line == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(r"[^\n]*".join(re.escape(part) for part in line.split("...")) + r" *\n")
    return re.compile("".join(parts))


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "COLUMNS": "200", "OMP_WAIT_POLICY": "PASSIVE"}
    words = shlex.split(command)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    assert words[0] == "setpoint", f"only setpoint is run here: {command}"
    return subprocess.run(
        [sys.executable, "-m", "setpoint.cli.main", *words[1:]],
        cwd=folder,
        env=variables,
        text=True,
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
            found.append((command.strip(), int(note) if note else 0, []))
        else:
            found[-1][2].append(line)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    for language in ("toml", "yaml", "python"):
        for text in blocks(page, language):
            first = text.splitlines()[0]
            if language == "python" and not is_file(text):
                continue
            assert first.startswith("# "), f"{page.name}: name the file in the block's first line"
            (tmp_path / first[2:]).write_text(text)
    for text in blocks(page, "console"):
        for command, status, lines in shown_commands(text):
            if command == "setpoint train tiny --optimizer.lr 1e-3":
                command += " --with 'smoke(steps=2)'"  # the page means the whole minute
            done = run(command, tmp_path)
            assert done.returncode == status, f"{command}\n{done.stdout}"
            if lines:
                assert pattern(lines).match(done.stdout), f"{command}\n{done.stdout}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    source = "\n".join(text for text in blocks(page, "python") if not is_file(text))
    if not source:
        pytest.skip("no Python on this page")
    script = tmp_path / "page.py"
    script.write_text(source)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
