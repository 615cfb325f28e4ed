"""`REV:preset`, `REV:path/file.toml`: the configuration as a git revision makes it.

The revision is written into a temporary folder, and a process of its own, which imports Setpoint
from there if the revision holds Setpoint's sources, writes the record that is then compared or
used. The repository is only read.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from setpoint.config import (
    CONFIG,
    HEADER,
    IDENTITY,
    ORIGINS,
    Config,
    ConfigError,
    SetpointError,
    all_fields,
    narrower,
    recorded_fingerprint,
)

from . import git, replay
from .locate import SHORT, Revision, find_revision, place_in

TIMEOUT = 120.0  # seconds that the code of a revision may take
PLACED = ("preset", "modifier", "file")
"""The layers whose places, such as `presets/tiny.py:20`, are those of the revision's own files."""


@contextmanager
def record_at_revision(source: str, root: type[Config], imports: Sequence[str]) -> Iterator[str]:
    """Make the record of a source at a revision, and remove it afterwards.

    Arguments:
        source: `REV:WHAT`.

    Raises:
        SetpointError: if there is no such repository, revision or file, or the code of that
            revision fails; also around whatever reads the record.
    """
    import tempfile

    found = find_revision(source, imports)
    with tempfile.TemporaryDirectory(prefix="setpoint-") as scratch:
        tree, folder = os.path.join(scratch, "tree"), os.path.join(scratch, "record")
        os.mkdir(tree)
        os.mkdir(folder)
        git.extract(found.repository, found.commit, tree)
        try:
            start, what = place_in(tree, found, source)
            if os.path.isfile(os.path.join(start, what, CONFIG)):
                folder = os.path.join(start, what)  # a run whose record is under version control
            else:
                _replay(found, tree, start, what, folder, source, imports)
                _amend(folder, found.commit, root)
            yield folder
        except ConfigError as error:
            for problem in error.problems:
                problem.origin = problem.origin and problem.origin.replace(folder, source)
            raise ConfigError(error.problems) from None
        except SetpointError as error:
            words = str(error).replace(folder, source).replace(tree + os.sep, "")
            raise SetpointError(words) from None


def _replay(
    found: Revision,
    tree: str,
    start: str,
    what: str,
    folder: str,
    source: str,
    imports: Sequence[str],
) -> None:
    """Let the code of the revision write the record."""
    today = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
    own = os.environ.get("PYTHONPATH")
    # The last is for a revision that holds no Setpoint: today's code reads it then.
    paths = [start, os.path.join(tree, "src"), tree, *([own] if own else []), today]
    settings = {name: value for name, value in os.environ.items() if "SETPOINT__" not in name}
    settings["PYTHONPATH"] = os.pathsep.join(paths)
    settings["PYTHONDONTWRITEBYTECODE"] = "1"
    request = json.dumps({"source": what, "imports": list(imports), "folder": folder})
    words = [sys.executable, "-P", os.path.abspath(replay.__file__), request]
    status, errors = _run(words, start, settings, source)
    if status == 0:
        return
    error_file = os.path.join(folder, replay.ERROR)
    if os.path.isfile(error_file):
        with open(error_file, encoding="utf-8") as file:
            reason = file.read().replace(tree + os.sep, "")
    else:
        reason = (errors.strip().splitlines() or [f"it ended with status {status}"])[-1]
    raise SetpointError(f"{source}, at commit {found.commit[:SHORT]}: {reason}")


def _run(words: list[str], folder: str, settings: dict[str, str], source: str) -> tuple[int, str]:
    with subprocess.Popen(
        words,
        cwd=folder,
        env=settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
        errors="replace",
    ) as process:
        try:
            _, errors = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            raise SetpointError(
                f"{source}: the code of that revision did not end within {TIMEOUT:g} seconds"
            ) from None
        finally:
            if process.poll() is None:
                # Too late, or Ctrl-C: it ends with us, and whatever it has started as well.
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, errors


def _amend(folder: str, commit: str, root: type[Config]) -> None:
    """Say in each origin which commit it is of, and add what the answer of `show` lacks."""
    path = os.path.join(folder, ORIGINS)
    chains: dict[str, dict[str, Any]] = _load(path)
    for entry in chains.values():
        for layer in entry["layers"]:
            if layer["layer"] in PLACED:
                layer["origin"] += f" at {commit[:SHORT]}"
    if any("role" not in entry for entry in chains.values()):
        for key, entry in chains.items():
            entry["role"] = _role_of(root, key)
        config = _load(os.path.join(folder, CONFIG))
        config[HEADER]["fingerprint"] = recorded_fingerprint(chains)
        _dump(os.path.join(folder, CONFIG), config)
    _dump(path, chains)


def _load(path: str) -> Any:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def _dump(path: str, data: object) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file)


def _role_of(root: type[Config], key: str) -> str:
    """The role that a path has today; identity for what there is no longer."""
    known = dict(all_fields(root))
    role, path = IDENTITY, ""
    for part in key.split("."):
        if part.isdecimal():
            continue
        path = f"{path}.{part}" if path else part
        info = known.get(path)
        role = narrower(role, (info and info.role) or IDENTITY)
    return role.name
