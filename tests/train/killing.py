"""Points at which a process is killed: changes of files of a run, updates, evaluations, merges.

    python killing.py KIND COUNT ARGUMENTS...      runs `setpoint ARGUMENTS` up to that point

It knows no function of the trainer's but for merges of adapters, where it is killed between two
matrices: what Python and torch tell of themselves is enough.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
EVENTS = {
    "open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link",
    "os.symlink", "os.chmod", "os.utime",
}  # fmt: skip
# "time" is a signal from outside, at any moment; "merge" is for jobs with merges, and not in "any".
KINDS = ("update", "save", "record", "evaluate", "any", "time")


def kind_of(path: str) -> str:
    """The kind of point that a change of a file is.

    Arguments:
        path: of a file of a run.

    Returns:
        a kind.
    """
    if f"{os.sep}checkpoints" in path:
        return "save"
    return "record" if Path(path).name.startswith(("config.", "origins.")) else "any"


def die() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(folder: Path, kind: str, count: int, happens: Callable[[], object] = die) -> None:
    """Kill this process at the n-th point of a kind, or let something else happen there.

    Arguments:
        folder: changes of files below it are points; the process dies before them.
        kind: one of `KINDS`, or "merge"; "any" counts all of the first.
        count: n, from 1.
    """
    left = count
    opened: str | None = None
    inside = str(folder) + os.sep

    def reached(what: str) -> None:
        nonlocal left
        if kind in ("any", what):
            left -= 1
            if left == 0:
                happens()

    def changed(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS or not isinstance(arguments[0], str | os.PathLike):
            return
        if event == "open" and not (arguments[2] or 0) & WRITING:
            return
        nonlocal opened
        path = os.path.abspath(os.fspath(arguments[0]))
        # `open` is told of before its `opener` is, which opens the same file by `os.open`.
        is_opener = event == "open" and arguments[1] is None and path == opened
        opened = path if event == "open" else None
        if path.startswith(inside) and not is_opener:
            reached(kind_of(path[len(inside) :]))

    def called(module: torch.nn.Module, _: object) -> None:
        if not module.training and not torch.is_grad_enabled():
            reached("evaluate")

    if kind == "merge":
        from setpoint.train.build import adapter

        fill_by = adapter.fill_by

        def filled(*arguments: Any) -> None:
            reached("merge")
            fill_by(*arguments)

        adapter.fill_by = filled
    sys.addaudithook(changed)
    register_optimizer_step_post_hook(lambda *_: reached("update"))
    torch.nn.modules.module.register_module_forward_pre_hook(called)


if __name__ == "__main__":
    from setpoint.cli.main import main

    kind, count, *arguments = sys.argv[1:]
    die_at(Path("runs").absolute(), kind, int(count))
    sys.exit(main(arguments))
