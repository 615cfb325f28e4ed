"""`environment.json`: code revision, packages, machine and variables of a run."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from .redact import (
    hide_secrets,
    is_secret_name,
    redact_command,
    without_secrets,
    without_values,
)

# Variables that affect how the machine computes, or identify a process of a job.
_PREFIXES = (
    "CUDA_", "CUBLAS_", "FSDP_", "GLOO_", "GOMP_", "KMP_", "MASTER_", "MKL_", "NCCL_", "NVIDIA_",
    "OMP_", "OPENBLAS_", "PYTORCH_", "SLURM_JOB_", "TORCH",
)  # fmt: skip
_NAMES = frozenset(
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE", "GROUP_RANK", "PYTHONHASHSEED",
     "LD_PRELOAD", "MALLOC_CONF", "VIRTUAL_ENV")
)  # fmt: skip

_HEADER = re.compile(r"^(Name|Version): *(.*?)\s*$", re.MULTILINE)
_PACKAGE = Path(__file__).resolve().parent


def environment(
    *,
    directory: Path | None = None,
    arguments: Sequence[str] | None = None,
    secrets: Iterable[str] = (),
) -> dict[str, Any]:
    """Collect the environment of this process; never fails.

    Devices and threads are recorded only if the process has imported torch.

    Arguments:
        directory: the directory of the user's code; the working directory by default.
        arguments: the command line; `sys.argv` by default. Secrets are hidden.
        secrets: values to hide everywhere, in addition to those in environment variables.

    Returns:
        JSON data. Unreadable entries are None, with the reason in `unread`.
    """
    unread: dict[str, str] = {}

    def attempt(key: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except Exception as error:  # no error here may stop a run
            unread[key] = f"{type(error).__name__}: {error}"
            return None

    sections: dict[str, Callable[[], Any]] = {
        "time": lambda: datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "command": lambda: redact_command(sys.argv if arguments is None else arguments),
        "directory": lambda: str(directory or Path.cwd()),
        "code": lambda: _code(directory or Path.cwd()),
        "python": lambda: {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
        },
        "packages": lambda: dict(_packages()),
        "system": lambda: {"platform": platform.platform(), "host": socket.gethostname()},
        "processor": _processor,
        "memory_bytes": lambda: os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "torch": _torch,
        "threads": _threads,
        "world": _world,
        "variables": _variables,
    }
    record = {key: attempt(key, read) for key, read in sections.items()}
    return without_values({**record, "unread": without_secrets(unread)}, secrets)


def _code(directory: Path) -> dict[str, Any]:
    """The user's repository, and Setpoint's if it is a different one."""
    user = code_revision(directory)
    if user["root"] is not None and _PACKAGE.is_relative_to(Path(user["root"]).resolve()):
        return {"user": user, "setpoint": "the same repository"}
    return {"user": user, "setpoint": dict(_own_code())}


# The imports of a process stay the same while it runs, so this and the packages are read once.
@cache
def _own_code() -> dict[str, Any]:
    return code_revision(_PACKAGE)


@cache
def _packages() -> dict[str, str]:
    packages: dict[str, str] = {}
    for distribution in metadata.distributions():
        # `distribution.metadata` also parses long descriptions, which takes five times as long.
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
        head = dict(_HEADER.findall(text.partition("\n\n")[0]))
        # The metadata of a broken installation can lack its name or version.
        packages[head.get("Name", "None")] = head.get("Version", "None")
    return dict(sorted(packages.items(), key=lambda item: item[0].lower()))


def _processor() -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        lines = listing.read_text(errors="replace").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        model = names[0] if names else model
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {"model": model, "cores": os.cpu_count(), "usable_cores": usable}


def _torch() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None:
        return {"version": metadata.version("torch"), "imported": False}
    cuda = torch.cuda.is_available()
    properties = map(
        torch.cuda.get_device_properties, range(torch.cuda.device_count() if cuda else 0)
    )
    return {
        "version": torch.__version__,
        "imported": True,
        "git_revision": torch.version.git_version,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "devices": [{"name": p.name, "memory_bytes": p.total_memory} for p in properties],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }


def _threads() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    return {
        "torch": torch.get_num_threads() if torch else None,
        "torch_interop": torch.get_num_interop_threads() if torch else None,
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "python": threading.active_count(),
    }


def _world() -> dict[str, int]:
    return {
        "rank": int(os.environ.get("RANK", "0")),
        "size": int(os.environ.get("WORLD_SIZE", "1")),
        "local_size": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    }


def _variables() -> dict[str, str]:
    return {
        name: hide_secrets(value)
        for name, value in sorted(os.environ.items())
        if (name.startswith(_PREFIXES) or name in _NAMES) and not is_secret_name(name)
    }


_SECONDS = 10
_DIFF_BYTES = 1 << 20
_UNTRACKED = 200


def code_revision(directory: Path) -> dict[str, Any]:
    """The state of the git repository of a directory.

    Returns:
        `root`, `revision`, `branch`, `remote`, `dirty`, `diff` (against the revision, tracked files
        only), `untracked` (names). Unreadable entries are None, with the reason in `unread`; a diff
        beyond 1 MiB is truncated, with its full size and SHA-256 in `unread`.
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
            unread["diff"] = f"truncated: it has {len(diff)} bytes with the SHA-256 {digest}"
        record["diff"] = hide_secrets(diff[:_DIFF_BYTES].decode("utf-8", "replace"))
    return {**record, "unread": unread}


class _GitError(Exception):
    """git failed or is not installed."""


def _git(directory: Path, *arguments: str) -> bytes:
    # Reading must not touch the repository: no lock files, helpers or prompts.
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
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise _GitError(lines[0] if lines else "there is none")
    return done.stdout
