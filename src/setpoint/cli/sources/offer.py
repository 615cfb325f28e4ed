"""The sources that completion offers: what lies near the working folder, and revisions."""

from __future__ import annotations

import os
from collections.abc import Iterator

from setpoint.config import SUFFIXES, SetpointError, presets

from .kind import split_revision

CHECKPOINTS = "checkpoints"


def offer(current: str) -> Iterator[str]:
    """Sources that may be meant, beside presets.

    Returns:
        files, run directories, checkpoints of a run that is typed, branches and tags with a colon,
        and what there is behind the colon.
    """
    yield from files()
    for folder, folders, names in os.walk("runs"):
        if "config.json" in names:
            folders.clear()
            yield folder
            if current.startswith(folder + os.sep):
                yield from _checkpoints(folder)
    if current and not current.startswith((os.curdir, os.sep)):
        try:
            yield from _revisions(current)
        except SetpointError:  # no git, or a repository that it does not read
            return


def sweeps() -> Iterator[str]:
    """Folders of sweeps, which `compare` takes."""
    for folder, folders, names in os.walk("runs"):
        if "sweep.json" in names:
            folders.clear()
            yield folder
        elif "config.json" in names:
            folders.clear()


def files() -> Iterator[str]:
    """Configuration files in the working folder; the shells complete those further away."""
    try:
        names = sorted(os.listdir("."))
    except OSError:  # the working folder is gone: there is nothing to offer
        return
    yield from (name for name in names if name.endswith(SUFFIXES) and os.path.isfile(name))


def _checkpoints(run: str) -> Iterator[str]:
    folder = os.path.join(run, CHECKPOINTS)
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    known = (name for name in names if name in ("latest", "best") or name.startswith("step-"))
    yield from (os.path.join(folder, name) for name in known if "." not in name)


def _revisions(current: str) -> Iterator[str]:
    from . import git

    try:
        here = os.getcwd()
    except OSError:
        return
    repository = git.repository_of(here)
    if repository is None:
        return
    parts = split_revision(f"{current}_")  # so that there is something behind the colon
    if parts is None:
        yield from (f"{name}:" for name in git.branches_and_tags(repository))
        return
    name = parts[0]
    commit = git.commit_of(repository, name)
    if commit is None:
        return
    yield from (f"{name}:{preset}" for preset in presets)
    for path in git.files_at(repository, commit):
        if path.endswith(SUFFIXES):
            seen = os.path.relpath(os.path.join(os.path.realpath(repository), path), here)
            yield f"{name}:{path if seen.startswith(os.pardir) else seen}"
