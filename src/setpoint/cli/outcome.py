"""How every command ends: errors in words, exit statuses, and output whose reader is gone."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from errno import EIO, ENOSPC
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from setpoint.cli.options import Command
    from setpoint.config import SetpointError

COMMANDS = {
    "train": "train a model, or resume a run",
    "launch": "train on machines of a cluster: Slurm, Kubernetes",
    "check": "verify a configuration without running it",
    "plan": "find the fastest parallel layouts of a job for N GPUs",
    "show": "print the resolved configuration",
    "why": "show where a value comes from",
    "diff": "compare configurations, runs, checkpoints or revisions",
    "list": "list presets, modifiers, variants and fields",
    "schedule": "draw the learning rate of a configuration",
    "verify": "train a stretch of a run again and compare it with the record",
    "rerun": "train a run again in a new directory and compare the two",
    "sweep": "train many points, all checked first",
    "compare": "show runs side by side",
    "report": "write an HTML file about runs: curves, configuration, differences",
    "replay": "run a step of a run again, with statistics of each module",
    "fingerprint": "print the hash of all identity fields",
    "schema": "print the JSON Schema of configuration files, for editors",
    "migrate": "bring files and records of older versions up to date",
    "import": "print the configuration of a pretrained model",
    "infer": "run an inference job: evaluate, generate, export",
    "generate": "generate text with a trained model",
    "evaluate": "evaluate a trained model on text",
    "export": "export the weights of a run as a Hugging Face model",
    "watch": "show a run in the terminal while it trains",
    "runs list": "list runs: filter by any field or metric, sort",
    "runs goodput": "show where the time of runs went",
    "runs tag": "tag runs",
    "runs note": "write a note to a run",
    "runs archive": "hide runs from lists",
    "runs verify": "verify the records of runs",
    "checkpoint list": "list the checkpoints of a run",
    "checkpoint convert": "write a checkpoint in another layout, or for transformers",
    "checkpoint verify": "compare every byte of checkpoints with their checksums",
    "checkpoint diff": "compare the tensors, state and configuration of two checkpoints",
    "checkpoint prune": "print which checkpoints retention would remove, or remove them",
    "data inspect": "print rows of the training data as text, with tokens and masks",
    "data stats": "print lengths, tokens, shares and duplicates of the data",
    "data prepare": "tokenize the data of a configuration into shards that are mapped",
    "data push": "push prepared data to a data set of the Hugging Face hub",
    "tokenizer train": "train a BPE tokenizer on the texts of a configuration",
    "completion": "print the completion script for a shell",
}
CHAPTERS: dict[str, str] = {}
"""The modules of commands that are not in one of their own."""
LONG = frozenset(
    (
        *("train", "verify", "rerun", "replay", "sweep", "migrate", "import", "infer"),
        *("generate", "evaluate", "export", "compare", "report", "checkpoint convert"),
        *("checkpoint verify", "checkpoint diff", "checkpoint prune", "data prepare"),
        *("data push", "data inspect", "data stats", "tokenizer train"),
    )
)
"""The commands that do more than put a configuration together and print something."""
ON_RANKS = ("train", "infer", "generate", "evaluate", "export")
"""The commands that several ranks run together."""
GROUPS = frozenset(name.partition(" ")[0] for name in COMMANDS if " " in name)
"""First words of the commands that have two."""
FAILED, WRONG, INTERRUPTED = 1, 2, 130
QUIT = "quit in the debugger"
TRACEBACK = "--traceback"
"""The option that prints all frames of a traceback."""
STATUSES = {
    0: "done",
    1: "failed; for `diff`, `verify`, `rerun`: something differs; for `checkpoint verify` and "
    "`runs verify`: damaged",
    2: "the configuration or the arguments are wrong",
    75: "`train`, `sweep`: stopped by SIGTERM, SIGUSR1, a time limit or a stop file; all is saved",
    130: "interrupted by Ctrl-C",
    143: "stopped by SIGTERM; of `train`: steps after the last checkpoint are lost",
}


def joined(words: Sequence[str]) -> list[str]:
    """The words of a command line, with the two of a command such as `data inspect` as one."""
    if words and words[0] in GROUPS and len(words) > 1 and not words[1].startswith("-"):
        return [f"{words[0]} {words[1]}", *words[2:]]
    return list(words)


def command_of(name: str) -> Command:
    """Import the chapter of a command, and return the command.

    A chapter is the module in `CHAPTERS`, or the one with the name of the command.
    """
    from setpoint.cli.options import Command

    module = import_module(f"setpoint.cli.{CHAPTERS.get(name, name.replace(' ', '_'))}")
    return next(
        value
        for value in vars(module).values()
        if isinstance(value, Command) and value.name == name
    )


class Uncollected:
    """No garbage collection while a configuration is put together: it would find nothing.

    Arguments:
        words: of the command line; a command that does long work keeps its collections.
    """

    __slots__ = ("_was_on",)

    def __init__(self, words: Sequence[str] = ()) -> None:
        self._was_on = gc.isenabled() and not LONG.intersection(joined(words)[:1])

    def __enter__(self) -> None:
        if self._was_on:
            gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_on:
            gc.enable()


class Loading:
    """No garbage collection while torch is imported, and none of what it leaves afterwards.

    Its hundreds of thousands of objects stay until the end. Neither full collections nor the end of
    the process need to look at them again. A process that has torch already is left as it is.
    """

    __slots__ = ("_counts", "_was_on")

    def __enter__(self) -> None:
        self._counts, self._was_on = "torch" not in sys.modules, gc.isenabled()
        if self._counts:
            gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._counts:
            gc.freeze()
            if self._was_on:
                gc.enable()


def guarded(command: Callable[[], int], words: Sequence[str]) -> int:
    """Run a command whose errors become words and an exit status."""
    from setpoint.config import SetpointError

    if TRACEBACK in words:
        from setpoint.config import show_all_frames

        show_all_frames(True)
    _open_closed_streams()
    if isinstance(sys.stdout, TextIOWrapper):
        # A terminal that cannot show a character gets its escape rather than no answer at all.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = command()
        sys.stdout.flush()
        return status
    except SetpointError as error:
        if _was_quit(error):
            return interrupted(KeyboardInterrupt(QUIT))
        report(error, for_machines="--json" in words and _speaks_json(joined(words)[0]))
        return error.status
    except KeyboardInterrupt as error:
        return interrupted(error)
    except BrokenPipeError:
        # The reader of our output has left, as `| head` does; Python must not complain at exit.
        _abandon_output()
        return FAILED
    except OSError as error:
        if error.errno not in (ENOSPC, EIO):
            raise
        _abandon_output()
        print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        return FAILED
    except Exception as error:
        if not _was_quit(error):
            raise
        return interrupted(KeyboardInterrupt(QUIT))


def _was_quit(error: Exception) -> bool:
    from setpoint.config import was_quit

    return was_quit(error)


def show_users_frames(program: bool = False) -> None:
    """Print tracebacks of exceptions in the user's code without the frames that lead to it.

    Nothing is caught: only `sys.excepthook` is replaced, and only Python's own, so that debuggers
    and hooks of others see what they always do.
    """
    if sys.excepthook is not sys.__excepthook__:
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        from setpoint.config import log_of, users_traceback

        if "RANK" in os.environ:
            from setpoint.parallel.rank import has_left_error

            if has_left_error():
                return
        text = users_traceback(error, program) if isinstance(error, Exception) else ""
        if log := log_of(error):
            print(all_frames_in(log), file=sys.stderr)
        if text:
            print(text, file=sys.stderr)
        else:
            sys.__excepthook__(kind, error, trace)

    sys.excepthook = hook


def all_frames_in(log: str) -> str:
    """A line that names the log with the whole traceback of an error."""
    return f"All frames of the traceback are in {log}; setpoint train ... {TRACEBACK} prints them."


def interrupted(error: KeyboardInterrupt) -> int:
    """Say that the command was interrupted; its exit status."""
    print(str(error) or "interrupted", file=sys.stderr)
    status = getattr(error, "status", INTERRUPTED)
    if "RANK" in os.environ:
        from setpoint.parallel.rank import leave

        leave(status)
    return status


def report(error: SetpointError, for_machines: bool = False) -> None:
    """Say what is wrong: in words on standard error, and as JSON on standard output if asked."""
    from setpoint.cli.output import styled
    from setpoint.config import log_of, traceback_to_show

    if for_machines:
        import json

        problems = [problem.to_json() for problem in getattr(error, "problems", ())]
        answer = {"ok": False, "status": error.status, "error": str(error), "problems": problems}
        _print_or_abandon(json.dumps(answer, indent=2))
    else:
        _print_or_abandon()
    # Of a rank, its launcher prints the traceback.
    traced = getattr(error, "rank_traceback", "") or traceback_to_show(error)
    if "RANK" in os.environ:
        from setpoint.cli.rank_errors import is_said_elsewhere

        if is_said_elsewhere(error, traced):
            return
    if traced:
        print(f"{traced}\n", file=sys.stderr)
        if log := log_of(error):
            print(all_frames_in(log), file=sys.stderr)
    print(f"{styled('error:', '1;31', sys.stderr)} {error}", file=sys.stderr)


def _print_or_abandon(*lines: str) -> None:
    """Print lines and what waits in the buffer, unless the reader of standard output has left."""
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:
        _abandon_output()


def _speaks_json(name: str) -> bool:
    if name not in COMMANDS:
        return False
    return any(option.name == "--json" for option in command_of(name).options)


def _open_closed_streams() -> None:
    """Let what is printed go nowhere where standard output or error is closed, as after `>&-`.

    The exit status still answers, and a run is trained all the same.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it stays open until the end
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _abandon_output() -> None:
    """Let what is still in the buffer of standard output go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
