"""`setpoint verify`: whether a run is what its record says, by training a stretch of it again."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from setpoint.cli.again import SHARED_HELP, TOLERANCE, print_comparison, refusing, tolerance_of
from setpoint.cli.main import FAILED, Loading
from setpoint.cli.options import IMPORT, JSON, Arguments, Command, Option, refuse_overrides
from setpoint.cli.runs import run_directories
from setpoint.cli.source import prepare
from setpoint.config import SetpointError
from setpoint.ops.proof import record_problems, verify_chain

STEPS = Option("--steps", "Train these steps again; A is 0 or a kept checkpoint.", "A:B")
COMMAND = Command(
    "verify",
    "RUN",
    "Train a stretch of a run again, from a kept checkpoint and in a temporary directory, and\n"
    "compare it with the record. The run is only read. By default the stretch is that from the\n"
    "last kept checkpoint but one to the last. That the configuration is as it was written, and\n"
    "the chain of hashes, are verified, too (`setpoint runs verify`).\n" + SHARED_HELP,
    [STEPS, TOLERANCE, IMPORT, JSON],
    [
        ("setpoint verify runs/tiny-3fa94c21", "the steps between the last two checkpoints"),
        ("setpoint verify runs/tiny-3fa94c21 --steps 0:100", "the first 100 steps"),
    ],
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Train, compare and print.

    Returns:
        the exit status: 1 where something differs, or that of a stop by a signal.
    """
    refuse_overrides(arguments)
    (path,) = run_directories(arguments.positional)
    steps, tolerance = _steps(arguments), tolerance_of(arguments)
    prepare(arguments)
    seal = verify_chain(path)
    seal.problems[:0] = record_problems(path)
    with Loading():
        from setpoint.runs import again
    stretch = again.choose_stretch(path, steps)
    job, flags = again.recorded_job(stretch.record, ["tracking.progress=none"])
    recorded = again.environment_at(path, stretch.first)
    differs = again.environment_differences(recorded, again.environment_now(job))
    print(
        f"training steps {stretch.first} to {stretch.last} of {path} again",
        file=sys.stderr,
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="setpoint-verify-") as scratch:
        folder = Path(scratch, path.resolve().name)
        again.prepare_directory(path, stretch, folder)
        imports = arguments.options.get(IMPORT.name, [])
        threads = again.threads_of(recorded)
        with refusing(path, folder):
            status = again.train_again(job, flags, folder, stretch.last, imports, threads)
        if status:
            print(f"stopped before step {stretch.last}: nothing is compared", file=sys.stderr)
            return status
        found = again.compare_with_record(
            path, folder, stretch.first, stretch.last, stretch.end, tolerance
        )
    found.environment = differs
    return 0 if print_comparison(path, found, seal, arguments) else FAILED


def _steps(arguments: Arguments) -> tuple[int, int] | None:
    text = arguments.value(STEPS.name)
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,15}):(\d{1,15})", text)
    if found is None:
        raise SetpointError(
            f"{STEPS.name} {text} is no stretch of steps.\nValid: two numbers of steps, as 100:200"
        )
    return int(found[1]), int(found[2])
