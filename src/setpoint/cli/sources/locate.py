"""Which commit of which repository `REV:WHAT` means, and where in it a path leads."""

from __future__ import annotations

import os
from collections.abc import Sequence

from setpoint.config import SUFFIXES, SetpointError, nearest, presets

from . import git
from .kind import split_revision

SHORT = 7  # digits of a commit in an origin, as git shows them


class Revision:
    """One commit of one repository, and what is asked of it.

    Arguments:
        below: the working folder as a path from the top folder; empty at the top, and in another
            repository.
    """

    def __init__(self, repository: str, commit: str, below: str, what: str) -> None:
        self.repository = repository
        self.commit = commit
        self.below = below
        self.what = what

    @property
    def names_path(self) -> bool:
        """Whether a file or folder is meant, not a preset or function."""
        what = self.what.partition("(")[0]
        return "." in what or "/" in what


def find_revision(source: str, imports: Sequence[str]) -> Revision:
    """The commit that is meant: of the working folder's repository, or of Setpoint's own checkout.

    Arguments:
        source: `REV:WHAT`.

    Raises:
        SetpointError: if no repository has it, in words that say what was tried.
    """
    parts = split_revision(source)
    assert parts is not None, "kind_of has split it"
    name, what = parts
    try:
        folder = os.getcwd()
    except OSError as error:
        raise SetpointError(
            f"{source}: the working folder cannot be read: {error.strerror}"
        ) from None
    here = git.repository_of(folder)
    commit = here and git.commit_of(here, name)
    if here and commit:
        below = os.path.relpath(os.path.realpath(folder), os.path.realpath(here))
        found = Revision(here, commit, "" if below == os.curdir else below, what)
        if found.names_path or ":" in what or not _is_ours(what, imports):
            return found
        if _sources_of_setpoint(git.files_at(here, commit)):
            return found
    own = None if _is_path(what) else git.repository_of(os.path.dirname(os.path.abspath(__file__)))
    own_commit = git.commit_of(own, name) if own and own != here else None
    if own and own_commit:
        return Revision(own, own_commit, "", what)
    if here and commit:
        where = f"its own checkout {own} does not know it" if own else "it has no checkout"
        raise SetpointError(
            f"{source}: the repository {here} holds no Setpoint at {name}, so that this preset has "
            f"no history there; and Setpoint itself does not run from that revision: {where}"
        )
    raise SetpointError(_unknown(source, name, here, own))


def _is_path(what: str) -> bool:
    return Revision("", "", "", what).names_path or ":" in what


def _is_ours(what: str, imports: Sequence[str]) -> bool:
    """Whether a preset is one of Setpoint's own, whose history is that of Setpoint's checkout."""
    function = presets.get(what.partition("(")[0].replace("_", "-"))
    if function is None:
        return not imports
    return function.__module__.partition(".")[0] == "setpoint"


def _unknown(source: str, name: str, here: str | None, own: str | None) -> str:
    """Why there is no such revision, and what else was tried."""
    tried: list[str] = []
    if all(word.isidentifier() for word in name.split(".")):
        tried.append(f"there is no module {name!r}")
    tried.append("there is no such file")
    if here is None:
        tried.append(f"the working folder lies in no git repository with a revision {name!r}")
    else:
        tried.append(f"{name!r} is no revision of the repository {here}")
    if own and own != here:
        tried[-1] += ", nor of Setpoint's own checkout"
    names = [word for root in (here, own) if root for word in git.branches_and_tags(root)]
    close = nearest(name, names, 1)
    meant = f". Did you mean {close[0]}?" if close else ""
    return f"{source}: {'; '.join(tried)}{meant}"


def _sources_of_setpoint(files: Sequence[str]) -> bool:
    return "src/setpoint/__init__.py" in files or "setpoint/__init__.py" in files


def place_in(tree: str, found: Revision, source: str) -> tuple[str, str]:
    """Where to work inside the files of a commit.

    Raises:
        SetpointError: if it is a path that the commit does not have.
    """
    start = os.path.join(tree, found.below)
    start = start if os.path.isdir(start) else tree
    if not found.names_path or _is_there(tree, start, found.what):
        return start, found.what
    # The working folder need not be among the files of the commit for a path to start from it.
    whole = os.path.normpath(os.path.join(found.below, found.what))
    if _is_there(tree, tree, whole):
        return tree, whole
    if _is_there(tree, tree, found.what):  # as git itself reads REV:path
        return tree, found.what
    raise SetpointError(_no_file(found, source))


def _is_there(tree: str, start: str, what: str) -> bool:
    """Whether a path leads to something among the files of the commit, and not out of them."""
    path = os.path.normpath(os.path.join(start, what))
    return path.startswith(tree + os.sep) and os.path.exists(path)


def _no_file(found: Revision, source: str) -> str:
    every = git.files_at(found.repository, found.commit)
    files = [name for name in every if name.endswith(SUFFIXES)]
    by_name = {os.path.basename(name): name for name in files}
    wanted = found.what
    close = nearest(os.path.normpath(os.path.join(found.below, wanted)), files, 2, likeness=0.75)
    close += [by_name[name] for name in nearest(os.path.basename(wanted), by_name, 2)]
    close = [os.path.relpath(name, found.below or os.curdir) for name in dict.fromkeys(close)]
    meant = f" Did you mean {' or '.join(close[:3])}?" if close else ""
    where = f", neither below {found.below} nor from the top" if found.below else ""
    return f"{source}: commit {found.commit[:SHORT]} has no file {wanted}{where}.{meant}"
