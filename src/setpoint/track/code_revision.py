"""Which code ran: the git revision of a directory, and what differed from it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

from .redact import hide_secrets

_SECONDS = 10
_DIFF_BYTES = 1 << 20
_UNTRACKED = 200


def code_revision(directory: Path) -> dict[str, Any]:
    """The state of the git repository that a directory is in.

    Returns:
        `root`, `revision`, `branch`, `remote`, `dirty`, `diff` (against the revision, tracked files
        only), `untracked` (names). What cannot be read is None, and `unread` says why; a diff
        beyond 1 MiB is cut, with its full size and SHA-256 in `unread`.
    """
    record: dict[str, Any] = dict.fromkeys(
        ("root", "revision", "branch", "remote", "dirty", "diff", "untracked")
    )
    unread: dict[str, str] = {}
    try:
        record["root"] = _git(directory, "rev-parse", "--show-toplevel").decode().strip()
    except _GitError as error:
        return {**record, "unread": {"root": str(error)}}
    root = Path(record["root"])

    def attempt(key: str, *arguments: str) -> bytes | None:
        try:
            return _git(root, *arguments)
        except _GitError as error:
            unread[key] = str(error)
            return None

    for key, arguments in (
        ("revision", ("rev-parse", "HEAD")),
        ("branch", ("symbolic-ref", "--short", "HEAD")),
        ("remote", ("config", "--get", "remote.origin.url")),
    ):
        answer = attempt(key, *arguments)
        if answer is not None:
            record[key] = hide_secrets(answer.decode("utf-8", "replace").strip())
    status = attempt("dirty", "status", "--porcelain", "-z", "--untracked-files=all")
    if status is not None:
        entries = [e for e in status.decode("utf-8", "replace").split("\0") if e]
        untracked = [entry[3:] for entry in entries if entry.startswith("?? ")]
        record["dirty"] = bool(entries)
        record["untracked"] = untracked[:_UNTRACKED]
        if len(untracked) > _UNTRACKED:
            unread["untracked"] = f"{len(untracked)} files, the first {_UNTRACKED} are named"
    diff = attempt("diff", "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv")
    if diff is not None:
        if len(diff) > _DIFF_BYTES:
            digest = hashlib.sha256(diff).hexdigest()
            unread["diff"] = f"cut: it has {len(diff)} bytes with the SHA-256 {digest}"
        record["diff"] = hide_secrets(diff[:_DIFF_BYTES].decode("utf-8", "replace"))
    return {**record, "unread": unread}


class _GitError(Exception):
    """git said no, or is not there."""


def _git(directory: Path, *arguments: str) -> bytes:
    # Reading must not touch the repository: no lock files, no helpers, no questions.
    environment = {
        **os.environ,
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    options = ("-c", "core.fsmonitor=false", "-c", "color.ui=never", "-c", "core.quotePath=false")
    try:
        done = subprocess.run(
            ["git", *options, *arguments],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        missing = "git is not installed" if directory.is_dir() else "the directory does not exist"
        raise _GitError(missing) from error
    except subprocess.TimeoutExpired as error:
        raise _GitError(f"git took longer than {_SECONDS} s") from error
    except OSError as error:
        raise _GitError(f"git cannot be run: {error.strerror}") from error
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise _GitError(words[0] if words else "there is none")
    return done.stdout
