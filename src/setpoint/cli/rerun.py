"""`setpoint rerun`: train a run again in a new directory, and compare the two."""

from __future__ import annotations

import sys
from pathlib import Path

from setpoint.cli.again import SHARED_HELP, TOLERANCE, print_comparison, refusing, tolerance_of
from setpoint.cli.main import FAILED, Loading
from setpoint.cli.options import IMPORT, JSON, Arguments, Command, Option, refuse_overrides
from setpoint.cli.runs import run_directories
from setpoint.cli.source import prepare
from setpoint.config import SetpointError, load_record
from setpoint.track.run_directory import CONFIG
from setpoint.train.config import Job

OUTPUT = Option("--output", "The new run directory; RUN-rerun without it.", "DIRECTORY")
ALLOW = Option("--allow-differences", "Train although code, packages or machine are others.")
COMMAND = Command(
    "rerun",
    "RUN",
    "Train a run again, from its first step to its last, in a directory of its own, and compare\n"
    "the two. Where the code revision, uncommitted changes, packages, Python, torch, processor or\n"
    "the fingerprint are not those of the record, they are printed and nothing is trained, unless\n"
    "--allow-differences is given. The same command resumes a rerun that was stopped.\n"
    + SHARED_HELP,
    [OUTPUT, ALLOW, TOLERANCE, IMPORT, JSON],
    [
        ("setpoint rerun runs/tiny-3fa94c21 --output again", "into the directory again"),
        ("setpoint rerun runs/tiny-3fa94c21 --allow-differences", "with other packages"),
    ],
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Compare the environments, train, compare the runs and print.

    Returns:
        the exit status: 1 where something differs, or that of a stop by a signal.
    """
    refuse_overrides(arguments)
    (path,) = run_directories(arguments.positional)
    tolerance = tolerance_of(arguments)
    output = Path(arguments.value(OUTPUT.name) or f"{path}-rerun")
    if output.resolve() == path.resolve():
        raise SetpointError(f"{OUTPUT.name} {output} is the run itself, which is only read")
    if output.exists() and not output.is_dir():
        raise SetpointError(f"{OUTPUT.name} {output} is a file; give a directory")
    load_record(Job, str(path))  # it is as it was written
    prepare(arguments)
    with Loading():
        from setpoint.runs import again
    stretch = again.choose_stretch(path, (0, again.last_step(path)))
    quiet = ["tracking.progress=none"] if arguments.has("--json") else []
    job, flags = again.recorded_job(stretch.record, quiet)
    recorded, today = again.environment_at(path, 0), again.environment_now(job)
    differs = again.fingerprint_differences(path, job)
    differs += again.environment_differences(recorded, today)
    if differs and not arguments.has(ALLOW.name):
        lines = "\n  ".join(differs)
        raise SetpointError(
            f"{path} was trained with something else than there is here:\n  {lines}\n"
            f"Valid: the same, or {ALLOW.name}, which trains with what is here"
        )
    if (output / CONFIG).exists():
        if not again.is_rerun(output, path):
            raise SetpointError(
                f"{OUTPUT.name} {output} is another run, which was not trained by this command; "
                f"give a new directory"
            )
    else:
        if output.exists() and any(output.iterdir()):
            raise SetpointError(f"{output} is not empty; give another {OUTPUT.name}")
        again.prepare_directory(path, stretch, output, today)
    imports = arguments.options.get(IMPORT.name, [])
    with refusing(path, output):
        threads = again.threads_of(recorded)
        status = again.train_again(job, flags, output, stretch.last, imports, threads)
    if status:
        print(
            f"stopped before step {stretch.last}: the same command goes on with it",
            file=sys.stderr,
        )
        return status
    found = again.compare_with_record(path, output, 0, stretch.last, stretch.end, tolerance)
    found.environment = differs
    equal = print_comparison(path, found, None, arguments, output=str(output))
    return 0 if equal else FAILED
