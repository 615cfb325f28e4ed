"""`REV:preset`, `REV:path/file.toml`: the configuration as of a git revision.

The revision is written to a temporary folder. A separate process, which imports Setpoint from there
if the revision contains Setpoint's sources, writes the record to compare or use. The repository is
only read: its index and working tree are not changed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from setpoint.config import CONFIG, ORIGINS, ConfigError, RunError, SetpointError, nearest
from setpoint.config.files.file_document import names_file
from setpoint.config.layers.presets import presets

if TYPE_CHECKING:
    import subprocess

TIMEOUT = 120.0
"""Timeout of the code of a revision in seconds."""
GIT_TIMEOUT = 60.0
"""Timeout of a git command in seconds."""
SHORT = 7
"""Digits of a commit in an origin, as git shows them."""
PLACED = ("preset", "modifier", "file")
"""The layers whose places, such as `presets/tiny.py:20`, are those of the revision's own files."""
ERROR = "error.txt"
WRITER = """
import json, os, sys
from importlib import import_module
request = json.loads(sys.argv[1])

def write(name, text):
    with open(os.path.join(request["folder"], name), "w", encoding="utf-8") as file:
        file.write(text)

try:
    for name in request["imports"]:
        import_module(name)
    import_module("setpoint.presets")
    root = import_module("setpoint.train.config").Job
    setpoint = import_module("setpoint")
    record = setpoint.record_files(setpoint.compose(root, request["source"]).resolve())
    for name, text in record.items():
        write(name, text)
except BaseException as error:
    is_known = "SetpointError" in {kind.__name__ for kind in type(error).__mro__}
    write("error.txt", str(error) if is_known else f"{type(error).__name__}: {error}")
    sys.exit(1)
"""
"""The program that writes the record: `setpoint` in it is the revision's, and it uses names that
users import, which are the same in every revision."""


class Revision(NamedTuple):
    """A commit of a repository, and the requested source.

    Arguments:
        start: the working folder relative to the top folder; empty at the top, and in another
            repository.
        what: a path, a preset or `module:function`.
    """

    repository: str
    commit: str
    start: str
    what: str


@contextmanager
def record_at_revision(name: str, inner: str, imports: Sequence[str]) -> Iterator[str]:
    """Make the record of `NAME:WHAT`, and remove it afterwards."""
    import tempfile

    source = f"{name}:{inner}"
    revision = find_revision(name, inner, imports)
    with tempfile.TemporaryDirectory(prefix="setpoint-") as scratch:
        tree, folder = os.path.join(scratch, "tree"), os.path.join(scratch, "record")
        os.mkdir(tree)
        os.mkdir(folder)
        extract(revision.repository, revision.commit, tree)
        try:
            start, inner = _locate(tree, revision, source)
            if os.path.isfile(os.path.join(start, inner, CONFIG)):
                folder = os.path.join(start, inner)  # a run whose record is under version control
            else:
                request = {"source": inner, "imports": list(imports), "folder": folder}
                _write_record(
                    request, tree, start, f"{source}, at commit {revision.commit[:SHORT]}"
                )
                _name_commit(os.path.join(folder, ORIGINS), revision.commit)
            yield folder
        except ConfigError as error:
            for problem in error.problems:
                problem.origin = problem.origin and problem.origin.replace(folder, source)
            raise ConfigError(error.problems) from None
        except SetpointError as error:
            message = str(error).replace(folder, source).replace(tree + os.sep, "")
            raise SetpointError(message) from None


def find_revision(name: str, inner: str, imports: Sequence[str]) -> Revision:
    """Find the commit in the working folder's repository, or in Setpoint's own checkout."""
    if inner.startswith("//"):
        raise SetpointError(
            f"{name}:{inner} is a URL, but a source must be on this machine.\nValid: a copy of the "
            "file or directory; `setpoint checkpoint list` and `verify`, and checkpoint.load of a "
            "new run, take the URL of a run"
        )
    try:
        folder = os.getcwd()
    except OSError as error:
        raise SetpointError(
            f"{name}:{inner}: the working folder cannot be read: {error.strerror}"
        ) from None
    is_preset = not _is_path(inner) and ":" not in inner
    repository = repository_of(folder)
    commit = repository and commit_of(repository, name)
    if repository and commit:
        start = os.path.relpath(os.path.realpath(folder), os.path.realpath(repository))
        revision = Revision(repository, commit, "" if start == os.curdir else start, inner)
        # The history of Setpoint's presets is in Setpoint's own checkout.
        function = presets.get(inner.partition("(")[0].replace("_", "-"))
        is_built_in = (
            not imports if function is None else function.__module__.startswith("setpoint.")
        )
        if not (is_preset and is_built_in):
            return revision
        if {"src/setpoint/__init__.py", "setpoint/__init__.py"} & {*files_at(repository, commit)}:
            return revision
    checkout = repository_of(os.path.dirname(os.path.abspath(__file__))) if is_preset else None
    checkout_commit = commit_of(checkout, name) if checkout and checkout != repository else None
    if checkout and checkout_commit:
        return Revision(checkout, checkout_commit, "", inner)
    if repository and commit:
        where = f"its own checkout {checkout} does not have it"
        raise SetpointError(
            f"{name}:{inner}: the repository {repository} does not contain Setpoint at {name}, so "
            f"this preset has no history there, and Setpoint cannot run from that revision: "
            f"{where if checkout else 'it has no checkout'}"
        )
    where = "a repository around the working folder" if repository is None else repository
    where += ", nor of Setpoint's own checkout" if checkout and checkout != repository else ""
    reason = f"there is no such file, and {name!r} is neither a module nor a revision of {where}"
    names = [word for root in (repository, checkout) if root for word in branches_and_tags(root)]
    close = nearest(name, names, 1)
    meant = f". Did you mean {close[0]}?" if close else ""
    if names_file(inner) and not close:
        from setpoint.interop.dialect import DIALECTS

        meant = f". Valid before a file from another system: {', '.join(DIALECTS)}"
    raise SetpointError(f"{name}:{inner}: {reason}{meant}")


def _is_path(source: str) -> bool:
    """True for a file or folder, False for a preset or function."""
    source = source.partition("(")[0]
    return "." in source or "/" in source


def _locate(tree: str, revision: Revision, source: str) -> tuple[str, str]:
    """The working folder within a commit, and the path or name from there."""
    start, inner = os.path.join(tree, revision.start), revision.what
    start = start if os.path.isdir(start) else tree
    if not _is_path(inner):
        return start, inner
    # The working folder may be missing in the commit, and git itself reads REV:path from the top.
    from_top = os.path.normpath(os.path.join(revision.start, inner))
    for folder, path in ((start, inner), (tree, from_top), (tree, inner)):
        full = os.path.normpath(os.path.join(folder, path))
        if full.startswith(tree + os.sep) and os.path.exists(full):
            return folder, path
    paths = files_at(revision.repository, revision.commit)
    if from_top in paths:
        raise SetpointError(
            f"{source}: {inner} is a link in commit {revision.commit[:SHORT]}, which leads to no "
            "file of that commit"
        )
    files = [path for path in paths if names_file(path)]
    by_name = {os.path.basename(path): path for path in files}
    close = nearest(from_top, files, 2, likeness=0.75)
    close += [by_name[name] for name in nearest(os.path.basename(inner), by_name, 2)]
    close = [os.path.relpath(path, revision.start or os.curdir) for path in dict.fromkeys(close)]
    meant = f" Did you mean {' or '.join(close[:3])}?" if close else ""
    where = f", neither below {revision.start} nor from the top" if revision.start else ""
    raise SetpointError(
        f"{source}: commit {revision.commit[:SHORT]} has no file {inner}{where}.{meant}"
    )


def _write_record(request: dict[str, object], tree: str, start: str, title: str) -> None:
    """Run the code of the revision to write the record into a folder."""
    import subprocess

    today = os.path.abspath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir))
    python_path = os.environ.get("PYTHONPATH")
    # The last path is for a revision without Setpoint, which today's code reads.
    paths = [start, os.path.join(tree, "src"), tree, *([python_path] if python_path else []), today]
    environment = {name: value for name, value in os.environ.items() if "SETPOINT__" not in name}
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    with subprocess.Popen(
        [sys.executable, "-P", "-c", WRITER, json.dumps(request)],
        cwd=start,
        env=environment,
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
            source = title.partition(",")[0]
            raise SetpointError(
                f"{source}: that revision's code did not finish within {TIMEOUT:g} seconds"
            ) from None
        finally:
            if process.poll() is None:
                # Timeout or Ctrl-C: end the process and its children.
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode == 0:
        return
    error_file = os.path.join(str(request["folder"]), ERROR)
    if os.path.isfile(error_file):
        with open(error_file, encoding="utf-8") as file:
            reason = file.read().replace(tree + os.sep, "")
    else:
        lines = errors.strip().splitlines()
        reason = lines[-1] if lines else f"it ended with status {process.returncode}"
    raise SetpointError(f"{title}: {reason}")


def _name_commit(path: str, commit: str) -> None:
    """Add the commit to each origin that is a location in its files."""
    with open(path, encoding="utf-8") as file:
        chains = json.load(file)
    for entry in chains.values():
        for layer in entry["layers"]:
            if layer["layer"] in PLACED:
                layer["origin"] += f" at {commit[:SHORT]}"
    with open(path, "w", encoding="utf-8") as file:
        json.dump(chains, file)


def repository_of(folder: str) -> str | None:
    """The top folder of the working tree that contains a folder; None outside of repositories."""
    done = _git(folder, "rev-parse", "--show-toplevel")
    if done.returncode == 0:
        return _text(done.stdout)
    message = _text(done.stderr)
    if "not a git repository" in message or "must be run in a work tree" in message:
        return None
    raise SetpointError(f"git cannot read the repository of {folder}: {message}")


def commit_of(repository: str, revision: str) -> str | None:
    """The full hash of the commit named by a branch, tag or hash; None for anything else."""
    if revision.startswith("-") or "\0" in revision:
        return None
    name = f"{revision}^{{commit}}"
    done = _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", name)
    return _text(done.stdout) if done.returncode == 0 else None


def branches_and_tags(repository: str) -> list[str]:
    """The names of branches and tags."""
    command = ("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags")
    done = _git(repository, *command)
    return _text(done.stdout).splitlines() if done.returncode == 0 else []


def files_at(repository: str, commit: str) -> list[str]:
    """The files of a commit."""
    done = _git(repository, "ls-tree", "-r", "-z", "--name-only", "--full-tree", commit)
    if done.returncode:
        raise SetpointError(f"git cannot list the files of {commit}: {_text(done.stderr)}")
    return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]


def extract(repository: str, commit: str, folder: str) -> None:
    """Write the files of a commit into a folder, without links that lead out of it."""
    import tarfile

    def filter_member(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
        try:
            return tarfile.data_filter(member, folder)
        except tarfile.FilterError:
            return None

    archive = f"{folder}.tar"
    try:
        done = _git(repository, "archive", "--format=tar", f"--output={archive}", commit)
        if done.returncode:
            raise SetpointError(f"git cannot read the files of {commit}: {_text(done.stderr)}")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter=filter_member)
    except OSError as error:
        raise RunError(
            f"the files of {commit} cannot be written to {folder}: {error.strerror}"
        ) from None
    finally:
        if os.path.exists(archive):
            os.unlink(archive)


def _git(folder: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    import subprocess

    # Neither lock the index nor prompt at the terminal; messages in one language.
    quiet = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        return subprocess.run(
            ["git", "-C", folder, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, **quiet},
            timeout=GIT_TIMEOUT,
            check=False,
        )
    except FileNotFoundError:
        raise SetpointError("reading a revision needs git, which is not installed") from None
    except subprocess.TimeoutExpired:
        raise SetpointError(
            f"git {arguments[0]} in {folder} did not finish within {GIT_TIMEOUT:g} seconds"
        ) from None
    except OSError as error:
        raise SetpointError(f"git cannot be run: {error.strerror}") from None


def _text(data: bytes) -> str:
    return os.fsdecode(data).strip()
