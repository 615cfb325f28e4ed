"""What Setpoint asks git for. Nothing here changes a repository, its index or its working tree."""

from __future__ import annotations

import os
import subprocess
import tarfile

from setpoint.config import SetpointError

TIMEOUT = 60.0  # seconds for one answer


def repository_of(folder: str) -> str | None:
    """The repository that a folder lies in.

    Returns:
        the top folder of its working tree, or None.

    Raises:
        SetpointError: if git is missing, or refuses to look at the repository.
    """
    done = _git(folder, "rev-parse", "--show-toplevel")
    if done.returncode == 0:
        return _text(done.stdout)
    words = _text(done.stderr)
    if "not a git repository" in words or "must be run in a work tree" in words:
        return None
    raise SetpointError(f"git refuses to read the repository of {folder}: {words}")


def commit_of(repository: str, revision: str) -> str | None:
    """The commit that a revision names.

    Arguments:
        revision: a branch, a tag, a hash, or anything else that git understands.

    Returns:
        the whole hash, or None if git does not know it.
    """
    if revision.startswith("-") or "\0" in revision:
        return None
    named = f"{revision}^{{commit}}"
    done = _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", named)
    return _text(done.stdout) if done.returncode == 0 else None


def branches_and_tags(repository: str) -> list[str]:
    """The names that people give to revisions."""
    names = ("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags")
    done = _git(repository, *names)
    return _text(done.stdout).splitlines() if done.returncode == 0 else []


def files_at(repository: str, commit: str) -> list[str]:
    """The files of a commit."""
    done = _git(repository, "ls-tree", "-r", "-z", "--name-only", "--full-tree", commit)
    _expect(done, f"list the files of {commit}")
    return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]


def extract(repository: str, commit: str, folder: str) -> None:
    """Write the files of a commit into a folder of its own.

    Raises:
        SetpointError: if git or the disk refuses.
    """
    archive = f"{folder}.tar"
    try:
        done = _git(repository, "archive", "--format=tar", f"--output={archive}", commit)
        _expect(done, f"read the files of {commit}")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter=_inside)
    except OSError as error:
        raise SetpointError(
            f"the files of {commit} cannot be written to {folder}: {error.strerror}"
        ) from None
    finally:
        if os.path.exists(archive):
            os.unlink(archive)


def _inside(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Leave out what would lead outside of the folder, as a link to `/etc` does."""
    try:
        return tarfile.data_filter(member, folder)
    except tarfile.FilterError:
        return None


def _git(folder: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    # Neither a lock on the index nor a question at the terminal; messages in one language.
    quiet = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        return subprocess.run(
            ["git", "-C", folder, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, **quiet},
            timeout=TIMEOUT,
            check=False,
        )
    except FileNotFoundError:
        raise SetpointError("a revision is read with git, which is not installed") from None
    except subprocess.TimeoutExpired:
        raise SetpointError(
            f"git {arguments[0]} in {folder} did not end within {TIMEOUT:g} seconds"
        ) from None
    except OSError as error:
        raise SetpointError(f"git cannot be run: {error.strerror}") from None


def _expect(done: subprocess.CompletedProcess[bytes], what: str) -> None:
    if done.returncode:
        raise SetpointError(f"git cannot {what}: {_text(done.stderr)}")


def _text(data: bytes) -> str:
    return os.fsdecode(data).strip()
