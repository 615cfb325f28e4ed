"""The entry point: dispatch to commands, errors, exit status, and broken pipes."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import EIO, ENAMETOOLONG, ENOSPC
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING

from setpoint.resilience.signals import INTERRUPTED, NAMES, PREEMPT, SAVE, StopRequest
from setpoint.version import VERSION

if TYPE_CHECKING:
    from types import TracebackType

    from setpoint.cli.options import Command
    from setpoint.config import SetpointError

COMMANDS = {
    "train": ("train", "train a model, or resume a run"),
    "launch": ("train", "train on the nodes of a cluster: Slurm, Kubernetes"),
    "check": ("check", "verify a configuration without running it"),
    "plan": ("plan", "find the fastest parallel layouts of a job for N GPUs"),
    "show": ("show", "print the resolved configuration"),
    "why": ("show", "show where a value comes from"),
    "diff": ("show", "compare configurations, runs, checkpoints or revisions"),
    "list": ("list", "list presets, modifiers, variants and fields"),
    "schedule": ("plan", "draw the learning rate of a configuration"),
    "verify": ("reproduce", "train some steps of a run again and compare them with the record"),
    "rerun": ("reproduce", "train a run again in a new directory and compare the two"),
    "sweep": ("sweep", "train a grid, random points or a search, all checked first"),
    "compare": ("compare", "show runs side by side"),
    "report": ("compare", "write an HTML file about runs: curves, configuration, differences"),
    "replay": ("reproduce", "run a step of a run again, with statistics of each module"),
    "fingerprint": ("show", "print the hash of all identity fields"),
    "schema": ("list", "print the JSON Schema of configuration files, for editors"),
    "migrate": ("migrate", "update files and records to the current schema"),
    "import": ("infer", "print the configuration of a pretrained model"),
    "convert": ("migrate", "convert a configuration file of another system"),
    "infer": ("infer", "run an inference job: evaluate, generate, export"),
    "generate": ("infer", "generate text with a trained model"),
    "evaluate": ("infer", "evaluate a trained model on text"),
    "export": ("infer", "export the weights of a run as a Hugging Face model"),
    "watch": ("runs", "show a run in the terminal while it trains"),
    "runs list": ("runs", "list runs: filter by any field or metric, sort"),
    "runs goodput": ("runs", "show where the time of runs went"),
    "runs tag": ("runs", "tag runs"),
    "runs note": ("runs", "write a note to a run"),
    "runs archive": ("runs", "hide runs from lists"),
    "runs verify": ("runs", "verify the records of runs"),
    "checkpoint list": ("checkpoint", "list the checkpoints of a run"),
    "checkpoint convert": ("checkpoint", "write a checkpoint in another layout"),
    "checkpoint import": ("checkpoint", "import a checkpoint of another system"),
    "checkpoint verify": ("checkpoint", "compare every byte of checkpoints with their checksums"),
    "checkpoint diff": ("checkpoint", "compare tensors, state and configuration of checkpoints"),
    "checkpoint prune": (
        "checkpoint",
        "print which checkpoints retention would remove, or remove them",
    ),
    "data inspect": ("data", "print rows of the training data as text, with tokens and masks"),
    "data stats": ("data", "print lengths, tokens, shares and duplicates of the data"),
    "data prepare": ("data", "tokenize the data of a configuration into memory-mapped shards"),
    "data push": ("data", "push prepared data to a data set of the Hugging Face hub"),
    "tokenizer train": ("data", "train a BPE tokenizer on the texts of a configuration"),
    "completion": ("complete", "print the completion script for a shell"),
}
"""All commands: the chapter, which is a module of this package, and the line of the overview. To
add one, add it here and write a function under `@Command(...)` in its chapter."""
ON_RANKS = ("train", "infer", "generate", "evaluate", "export")
"""Commands that run on several ranks."""
GROUPS = frozenset(name.partition(" ")[0] for name in COMMANDS if " " in name)
"""First words of two-word commands."""
OTHER_WORDS = {
    "chat": "generate RUN --chat", "continue": "train RUN", "finetune": "train SOURCE",
    "init": "show tiny --minimal", "ls": "runs list", "merge": "export RUN DIRECTORY",
    "plot": "compare RUN... --plot FILE", "resume": "train RUN", "run": "train SOURCE",
    "sample": "generate RUN", "tokenize": "data prepare SOURCE", "tune": "sweep SOURCE",
}  # fmt: skip
"""Commands of other programs, and what does the same here."""
FAILED, WRONG = 1, 2
QUIT = "quit in the debugger"
TRACEBACK = "--traceback"
"""The option that prints all frames of a traceback."""
STATUSES = {
    0: "done",
    1: "failed, or output closed early; `diff`, `verify`, `rerun`: different; `* verify`: damaged",
    2: "the configuration or the arguments are wrong",
    75: "`train`, `sweep`: stopped by SIGTERM, SIGUSR1, a time limit or a stop file; all is saved",
    130: "interrupted by Ctrl-C",
    143: "stopped by SIGTERM; of `train`: steps after the last checkpoint are lost",
}
INSTALL = "this needs the package {!r}: install PyTorch first, then 'setpoint[train]'"
THRESHOLDS = gc.get_threshold()
RARELY = (100_000, *THRESHOLDS[1:])
"""Thresholds of the garbage collector while a configuration is composed."""


def joined(words: Sequence[str]) -> list[str]:
    """Join the two words of a command such as `data inspect`."""
    if words and words[0] in GROUPS and len(words) > 1 and not words[1].startswith("-"):
        return [f"{words[0]} {words[1]}", *words[2:]]
    return list(words)


def command_of(name: str) -> Command:
    """Import the chapter that contains a command, and return the command."""
    from setpoint.cli.options import Command

    module = import_module(f"setpoint.cli.{COMMANDS[name][0]}")
    return next(
        value
        for value in vars(module).values()
        if isinstance(value, Command) and value.name == name
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; `arguments` are the words after `setpoint`, by default the process's."""
    is_process = arguments is None
    words = list(sys.argv[1:] if arguments is None else arguments)
    if is_process:
        show_users_frames(program=True)
    # Before any other import, since imports take long enough for a Ctrl-C.
    stop = StopRequest()
    stop.owns_process = True
    stop.resumable = words[:1] in (["train"], ["sweep"])  # nothing can be lost yet
    if is_process:
        stop.began = _process_start()
    try:
        with stop:
            status = guarded(lambda: _dispatch(words), words)
            if "RANK" in os.environ:
                from setpoint.parallel.rank import leave

                leave(status)
    except KeyboardInterrupt as error:
        # Between two of the lines above.
        return interrupted(error)
    if is_process:
        _prepare_exit(status)
    return status


def _process_start() -> float:
    """Start time of this process (Unix time); the current time if the system does not report it."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])  # proc_pid_stat(5): starttime
        up = time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError, IndexError):
        return time.time()


def _prepare_exit(status: int) -> None:
    """Prepare a quick and silent exit."""
    for number in NAMES:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    for number in (SAVE, PREEMPT):  # there is nothing left to save or preempt
        signal.signal(number, signal.SIG_IGN)
    trackers = sys.modules.get("setpoint.track.trackers")
    saves = sys.modules.get("setpoint.files.threads")
    if (trackers and trackers.unfinished) or (saves and saves.is_any_busy()):
        # Their timeout has passed, and waiting would take longer.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    # At exit, Python would search all objects for cycles repeatedly, which takes a tenth of the
    # time of `setpoint check`.
    gc.freeze()


def _dispatch(words: list[str]) -> int:
    if "RANK" in os.environ:
        # A rank must end with its launcher, even during its start.
        from setpoint.parallel.rank import enter

        enter()
    if not words:
        print(_overview(), file=sys.stderr)
        return WRONG
    if words[0] == "help" and len(words) > 1:
        words = [*words[1:3], "--help"] if words[1] in GROUPS else [words[1], "--help"]
    if words[0] in ("--help", "-h", "help"):
        print(_overview())
        return 0
    if words[0] in ("--version", "-V"):
        print(f"setpoint {VERSION}")
        return 0
    if words[0] in GROUPS and all(word.startswith("-") for word in words[1:]):
        helps = {"--help", "-h"}.intersection(words)
        print(_overview(words[0]), file=sys.stdout if helps else sys.stderr)
        return 0 if helps else WRONG
    name, *rest = joined(words)
    if name == "__complete":
        return import_module("setpoint.cli.complete").complete(rest)
    if name not in COMMANDS:
        from setpoint.config import SetpointError, nearest

        later = next((word for word in rest if word in COMMANDS), "")
        if later and name.startswith("-"):
            raise SetpointError(f"the command must come first: setpoint {later} ... {name} ...")
        group, blank, word = name.rpartition(" ")
        before = group + blank
        words = [known.removeprefix(before) for known in COMMANDS if known.startswith(before)]
        close = nearest(word, words if group else [*words, "--help", "--version"], 1)
        meant = OTHER_WORDS.get(name) or (before + close[0] if close else "")
        first = dict.fromkeys(known.partition(" ")[0] for known in words)
        raise SetpointError(
            f"there is no command {name!r}."
            + f" Did you mean `setpoint {meant}`?" * bool(meant)
            + f" Commands{' of ' * bool(group)}{group}: {', '.join(first)}"
        )
    command = command_of(name)
    parsed = command.parse(rest)
    if parsed.has("--help"):
        from setpoint.cli.output import manual

        print(manual(command))
        return 0
    if "RANK" in os.environ and name not in ON_RANKS:
        from setpoint.parallel.rank import launched

        if launched() > 1:
            from setpoint.config import SetpointError

            *more, last = ON_RANKS
            raise SetpointError(
                f"setpoint {name} runs in one process, but a launcher started {launched()} "
                f"(WORLD_SIZE).\nValid: setpoint {name} without torchrun; {', '.join(more)} and "
                f"{last} run on several ranks"
            )
    return command.run(parsed)


def _overview(group: str | None = None) -> str:
    from setpoint.cli.output import bold

    start = "" if group is None else f"{group} "
    commands = [f"  {n:<20}{what}" for n, (_, what) in COMMANDS.items() if n.startswith(start)]
    lines = [bold(f"setpoint {start}COMMAND SOURCE [OVERRIDES]"), ""]
    if group is None:
        lines += ["Train models from one configuration that fully determines the run.", ""]
    lines += [bold("Commands"), *commands, ""]
    if group is None:
        lines += [
            bold("Examples"),
            "  setpoint train tiny                          train the preset tiny",
            "  setpoint train tiny --optimizer.lr 1e-3      change one field",
            "  setpoint why optimizer.lr tiny               print where a value comes from",
            "  setpoint check exp.toml --world-size 1024    verify without running",
            "",
        ]
    lines.append(f"`setpoint {start}COMMAND --help` is the manual of a command.")
    if group is None:
        statuses = (f"  {status:<4}{meaning}" for status, meaning in STATUSES.items())
        lines += ["", bold("Exit status"), *statuses]
    return "\n".join(lines)


def has_torch() -> bool:
    """True if PyTorch is installed; does not import it."""
    if "torch" in sys.modules:
        return sys.modules["torch"] is not None
    # Like `importlib.util.find_spec`, whose import takes time.
    return any(finder.find_spec("torch", None) is not None for finder in sys.meta_path)


class Loading:
    """Context for importing torch; raises a `SetpointError` if it is missing.

    Garbage collection is off within the block, and afterwards skips the hundreds of thousands of
    new objects, which live until the end. The context does nothing if torch is already imported.
    """

    def __enter__(self) -> None:
        self._is_first = "torch" not in sys.modules
        if self._is_first:
            gc.disable()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        gc.set_threshold(*THRESHOLDS)
        if self._is_first:
            gc.freeze()
            gc.enable()
        if isinstance(error, ModuleNotFoundError):
            from setpoint.config import SetpointError

            raise SetpointError(INSTALL.format(error.name)) from None


def guarded(command: Callable[[], int], words: Sequence[str]) -> int:
    """Run a command, and turn its errors into messages and an exit status."""
    from setpoint.config import SetpointError

    if TRACEBACK in words:
        from setpoint.config.values.user_code import show_all_frames

        show_all_frames(True)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as after `>&-`: discard output
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open until the end
    if isinstance(sys.stdout, TextIOWrapper):
        # Escape characters that the terminal cannot show, to avoid an error.
        sys.stdout.reconfigure(errors="backslashreplace")
    gc.set_threshold(*RARELY)
    try:
        try:
            status = command()
        except OSError as error:
            if error.errno != ENAMETOOLONG or error.filename is None:
                raise
            from setpoint.config import for_error

            name = for_error(os.fsdecode(error.filename))
            raise SetpointError(f"{name}: not a valid file name") from error
        sys.stdout.flush()
        return status
    except SetpointError as error:
        if _was_quit(error):
            return interrupted(KeyboardInterrupt(QUIT))
        with suppress(OSError):  # standard error is closed, or its disk full
            name = joined(words)[0] if words else ""
            is_json = "--json" in words and name in COMMANDS
            options = command_of(name).options if is_json else []
            report(error, for_machines=any(option.name == "--json" for option in options))
        return error.status
    except KeyboardInterrupt as error:
        return interrupted(error)
    except BrokenPipeError:
        # The reader has closed the pipe, as in `| head`; Python must not complain at exit.
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
    finally:
        gc.set_threshold(*THRESHOLDS)


def _was_quit(error: Exception) -> bool:
    from setpoint.config.values.user_code import was_quit

    return was_quit(error)


def show_users_frames(program: bool = False) -> None:
    """Print tracebacks of exceptions in user code without the frames that lead to it.

    Nothing is caught: only Python's own `sys.excepthook` is replaced, so debuggers and other hooks
    work as usual.
    """
    if sys.excepthook is not sys.__excepthook__:
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        from setpoint.config import log_of
        from setpoint.config.values.user_code import users_traceback

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
    """A line that names the log containing the whole traceback of an error."""
    return f"All frames of the traceback are in {log}; setpoint train ... {TRACEBACK} prints them."


def interrupted(error: KeyboardInterrupt) -> int:
    """Print that the command was interrupted, and return its exit status."""
    print(str(error) or "interrupted", file=sys.stderr)
    status = getattr(error, "status", INTERRUPTED)
    if "RANK" in os.environ:
        from setpoint.parallel.rank import leave

        leave(status)
    return status


def report(error: SetpointError, for_machines: bool = False) -> None:
    """Print an error to standard error, or as JSON to standard output if requested."""
    from setpoint.cli.output import json_text, styled
    from setpoint.config import log_of, traceback_to_show

    if for_machines:
        problems = [problem.to_json() for problem in getattr(error, "problems", ())]
        answer = {"ok": False, "status": error.status, "error": str(error), "problems": problems}
        _print_or_abandon(json_text(answer))
    else:
        _print_or_abandon()
    # The launcher prints the traceback of a rank.
    traced = getattr(error, "rank_traceback", "") or traceback_to_show(error)
    if "RANK" in os.environ and is_said_elsewhere(error, traced):
        return
    if traced:
        print(f"{traced}\n", file=sys.stderr)
        if log := log_of(error):
            print(all_frames_in(log), file=sys.stderr)
    print(f"{styled('error:', '1;31', sys.stderr)} {error}", file=sys.stderr)


def _print_or_abandon(*lines: str) -> None:
    """Print lines and flush, unless standard output is closed."""
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except OSError:
        _abandon_output()


def _abandon_output() -> None:
    """Discard the buffer of standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_said_elsewhere(error: SetpointError, traced: str = "") -> bool:
    """Report an error to the launcher; True if this process has nothing left to print."""
    from setpoint.parallel.rank import (
        end_after_first,
        is_reported_first,
        launched,
        leave,
        own_rank,
        wait_until_reported,
    )

    if launched() == 1:  # a launcher with one remaining rank
        from setpoint.config import log_of

        return leave(error.status, str(error), more={"traceback": traced, "log": log_of(error)})
    from setpoint.parallel.process_group import LostRanks
    from setpoint.parallel.rank import facts_of
    from setpoint.parallel.world import RemoteRankError

    if isinstance(error, RemoteRankError):
        wait_until_reported()
        leave(error.status)
        return True
    if is_reported_first(str(error)):
        leave(error.status, instead=True)
        end_after_first()
        return True
    if leave(error.status, str(error), isinstance(error, LostRanks), facts_of(error)):
        return True
    if own_rank():
        print(f"rank {own_rank()}: ", end="", file=sys.stderr)
    return False
