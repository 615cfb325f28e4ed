"""The entry point: finds the command, runs it, and gives the exit status.

0 done; 1 failed or, for `diff`, different; 2 the configuration or the arguments are wrong;
75 stopped by preemption with nothing lost; 130 interrupted; 143 stopped by SIGTERM otherwise.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Sequence

from setpoint import __version__
from setpoint.cli.outcome import (
    COMMANDS,
    GROUPS,
    ON_RANKS,
    STATUSES,
    WRONG,
    Uncollected,
    command_of,
    guarded,
    interrupted,
    joined,
    show_users_frames,
)
from setpoint.resilience.signals import NAMES, PREEMPT, SAVE, StopRequest


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Arguments:
        arguments: the words after `setpoint`; those of the process if None.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        show_users_frames(program=True)
    # Before anything else is imported, which takes time enough for Ctrl-C.
    stop = StopRequest()
    stop.owns_process = True
    stop.resumable = words[:1] in (["train"], ["sweep"])  # nothing can be lost yet
    if arguments is None:
        stop.began = _process_began()
    try:
        with stop, Uncollected(words):
            status = guarded(lambda: _dispatch(words), words)
            if "RANK" in os.environ:
                from setpoint.parallel.rank import leave

                leave(status)
    except KeyboardInterrupt as error:
        # Between two lines of the above.
        return interrupted(error)
    if arguments is None:
        # The answer is given; what is left to be tidied up may be cut short without a word.
        for number in NAMES:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        for number in (SAVE, PREEMPT):  # there is nothing left to save, nor to be ended by it
            signal.signal(number, signal.SIG_IGN)
    trackers = sys.modules.get("setpoint.track.trackers")
    saves = sys.modules.get("setpoint.files.threads")
    is_left = (trackers and trackers.unfinished) or (saves and saves.is_any_busy())
    if arguments is None and is_left:
        # They have had their time, and would take more of it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    if arguments is None and "torch" not in sys.modules:
        # The process ends now. On its way out Python would search all objects for cycles, again
        # and again, which takes a tenth of the time of `setpoint check`.
        gc.freeze()
    return status


def _process_began() -> float:
    """When this process began, in seconds since 1970; now where the system does not say it."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])  # proc_pid_stat(5): starttime
        up = time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError, IndexError):
        return time.time()


def _dispatch(words: list[str]) -> int:
    if "RANK" in os.environ:
        # A rank ends with its launcher also while it starts.
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
        print(f"setpoint {__version__}")
        return 0
    if words[0] in GROUPS and all(word.startswith("-") for word in words[1:]):
        helps = {"--help", "-h"}.intersection(words)
        print(_overview(words[0]), file=sys.stdout if helps else sys.stderr)
        return 0 if helps else WRONG
    name, *rest = joined(words)
    if name == "__complete":
        from setpoint.cli.complete import run

        return run(rest)
    if name not in COMMANDS:
        from setpoint.config import SetpointError, did_you_mean

        meant = did_you_mean(name, [*COMMANDS, "--help", "--version"], " ")
        raise SetpointError(f"there is no command {name!r}.{meant} Commands: {', '.join(COMMANDS)}")
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

            *others, last = ON_RANKS
            raise SetpointError(
                f"setpoint {name} runs in one process, and a launcher has started {launched()} "
                f"(WORLD_SIZE).\nValid: setpoint {name} without torchrun; {', '.join(others)} and "
                f"{last} run on several ranks"
            )
    return command.run(parsed)


def _overview(group: str | None = None) -> str:
    from setpoint.cli.output import bold

    if group is not None:
        within = {name: what for name, what in COMMANDS.items() if name.startswith(f"{group} ")}
        return "\n".join(
            [
                bold(f"setpoint {group} COMMAND SOURCE [OVERRIDES]"),
                "",
                bold("Commands"),
                *(f"  {name:<20}{what}" for name, what in within.items()),
                "",
                f"`setpoint {group} COMMAND --help` is the manual of a command.",
            ]
        )
    lines = [
        bold("setpoint COMMAND SOURCE [OVERRIDES]"),
        "",
        "Train models from one configuration that fully determines the run.",
        "",
        bold("Commands"),
        *(f"  {name:<20}{what}" for name, what in COMMANDS.items()),
        "",
        bold("Examples"),
        "  setpoint train tiny                          train the preset tiny",
        "  setpoint train tiny --optimizer.lr 1e-3      change one knob",
        "  setpoint why optimizer.lr tiny               say where a value comes from",
        "  setpoint check exp.toml --world-size 1024    verify without running",
        "",
        "`setpoint COMMAND --help` is the manual of a command.",
        "",
        bold("Exit status"),
        *(f"  {status:<4}{meaning}" for status, meaning in STATUSES.items()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
