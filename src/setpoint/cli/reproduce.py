"""`setpoint verify`, `rerun` and `replay`: retraining steps of a run, and comparing them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.cli.main import FAILED, Loading
from setpoint.cli.options import IMPORT, JSON, Arguments, Command, Option
from setpoint.cli.output import emit, hidden, table
from setpoint.cli.ranks import note
from setpoint.cli.runs import run_directories
from setpoint.cli.source import open_source, prepare, run_directory_given, run_path
from setpoint.config import CONFIG, SetpointError, load_record, plural, resolve
from setpoint.config.words.errors import printable
from setpoint.ops.proof import Seal, record_problems, verify_chain
from setpoint.parallel.config import Parallel
from setpoint.track.jsonl import plain_numbers
from setpoint.track.run_directory import RunDirectory, not_a_run
from setpoint.train.config import Job

if TYPE_CHECKING:
    from setpoint.ops.replay import Replayed
    from setpoint.profile.modules import ModuleFigures
    from setpoint.runs.reproduction import Comparison, StepRange

MAX_DIFFERENCES = 10
"""Differences of each kind that are printed."""
MAX_ROWS = 60
"""Rows of `replay` that are printed without --all."""
KINDS = {"output": "output", "output_grad": "its gradient",
         "weight": "weights", "weight_grad": "their gradient"}  # fmt: skip
FIRST = {
    "weight": "first weight",
    "output": "first output",
    "output_grad": "first gradient of an output",
    "weight_grad": "first gradient of a weight",
}
TOLERANCE = Option(
    "--tolerance SHARE", "Allowed relative difference; default: 0.", type=float, below=1
)
SHARED_HELP = """
The result is compared with every metric of the record but timings, and with the weights of the
last checkpoint. On a CPU with the same packages and code the results are bit-identical. In another
environment, whose differences are printed, they may not be; --tolerance allows for that. The
recorded configuration is used without tracking services, uploads, alerts and compilation; modules
are imported only with --import. The training data must be available. The exit status is 0 if
everything is equal, and 1 if not."""


@Command(
    "verify RUN",
    Option("--steps A:B", "Train these steps again; A is 0 or a kept checkpoint."),
    TOLERANCE,
    IMPORT,
    JSON,
    about=SHARED_HELP,
)
def verify(arguments: Arguments) -> int:
    """Train some steps of a run again and compare them with the record.

    The steps are trained in a temporary directory from a saved checkpoint, by default from the
    second-to-last checkpoint to the last; the run is only read. The recorded configuration and the
    chain of hashes are verified as well (`setpoint runs verify`).

    Examples:
        setpoint verify runs/tiny-3fa94c21  the steps between the last two checkpoints
        setpoint verify runs/tiny-3fa94c21 --steps 0:100  the first 100 steps
    """
    (path,) = run_directories(arguments.positional, arguments)
    steps = _steps(arguments.value("--steps"))
    prepare(arguments)
    seal = verify_chain(path)
    seal.problems[:0] = record_problems(path)
    with Loading():
        from setpoint.runs import reproduction
    steps = reproduction.choose_steps(path, steps)
    job, flags = reproduction.recorded_job(steps.record, ["tracking.progress=none"])
    recorded = reproduction.environment_at(path, steps.first)
    differences = reproduction.environment_differences(recorded, reproduction.environment_now(job))
    note(f"training steps {steps.first} to {steps.last} of {path} again")
    with tempfile.TemporaryDirectory(prefix="setpoint-verify-") as scratch:
        folder = Path(scratch, path.resolve().name)
        reproduction.prepare_directory(path, steps, folder)
        result = _train_again(arguments, path, folder, steps, job, flags, "nothing is compared")
    if isinstance(result, int):
        return result
    result.environment = differences
    return 0 if _print_comparison(path, result, seal, arguments) else FAILED


def _steps(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,15}):(\d{1,15})", text)
    if match is None:
        raise SetpointError(f"--steps {text} is not a range of steps.\nValid: A:B, such as 100:200")
    return int(match[1]), int(match[2])


@Command(
    "rerun RUN",
    Option("--output DIRECTORY", "The new run directory; default: RUN-rerun."),
    Option("--allow-differences", "Train although code, packages or machine differ."),
    TOLERANCE,
    IMPORT,
    JSON,
    about=SHARED_HELP,
)
def rerun(arguments: Arguments) -> int:
    """Train a run again in a new directory, from its first step to its last, and compare the two.

    If the code revision, uncommitted changes, packages, Python, PyTorch, processor or fingerprint
    differ from the record, the differences are printed and nothing is trained, unless
    --allow-differences is given. The same command resumes an interrupted rerun.

    Examples:
        setpoint rerun runs/tiny-3fa94c21 --output again  into the directory again
        setpoint rerun runs/tiny-3fa94c21 --allow-differences  with other packages
    """
    (path,) = run_directories(arguments.positional, arguments)
    output = Path(arguments.value("--output") or f"{path}-rerun")
    if output.resolve() == path.resolve():
        raise SetpointError(f"--output {output} is the run itself, which must not be changed")
    if output.exists() and not output.is_dir():
        raise SetpointError(f"--output {output} is a file; give a directory")
    load_record(Job, str(path))  # as it was written
    prepare(arguments)
    with Loading():
        from setpoint.runs import reproduction
    steps = reproduction.choose_steps(path, (0, reproduction.last_step(path)))
    quiet = ["tracking.progress=none"] if arguments.has("--json") else []
    job, flags = reproduction.recorded_job(steps.record, quiet)
    recorded, today = reproduction.environment_at(path, 0), reproduction.environment_now(job)
    differences = reproduction.fingerprint_differences(path, job)
    differences += reproduction.environment_differences(recorded, today)
    if differences and not arguments.has("--allow-differences"):
        lines = "\n  ".join(differences)
        raise SetpointError(
            f"{path} was trained in another environment:\n  {lines}\n"
            f"Valid: the same environment, or --allow-differences, which trains with the current "
            f"one"
        )
    if (output / CONFIG).exists():
        if not reproduction.is_rerun(output, path):
            raise SetpointError(
                f"--output {output} is a run that this command did not train; give a new directory"
            )
    else:
        if output.exists() and any(output.iterdir()):
            raise SetpointError(f"{output} is not empty; give another --output")
        reproduction.prepare_directory(path, steps, output, today)
    result = _train_again(arguments, path, output, steps, job, flags, "the same command resumes")
    if isinstance(result, int):
        return result
    result.environment = differences
    is_equal = _print_comparison(path, result, None, arguments, output=str(output))
    return 0 if is_equal else FAILED


def _train_again(
    arguments: Arguments, run: Path, folder: Path, steps: StepRange, job: Job,
    flags: list[str], then: str,
) -> Comparison | int:  # fmt: skip
    """Retrain steps and compare them; return the exit status if stopped."""
    from setpoint.runs import reproduction

    threads = reproduction.threads_of(reproduction.environment_at(run, steps.first))
    imports = arguments.values("--import")
    try:
        status = reproduction.train_again(job, flags, folder, steps.last, imports, threads)
    except SetpointError as error:  # names the run, without advice on resuming
        reason = str(error).replace(str(folder), str(run)).partition("\n")[0]
        raise SetpointError(f"{run} cannot be trained again: {reason}") from None
    if status:
        note(f"stopped before step {steps.last}: {then}")
        return status
    # Without a tolerance every bit is compared.
    tolerance = arguments.number("--tolerance") or None
    return reproduction.compare_with_record(run, folder, steps, tolerance)


def _print_comparison(
    run: Path, result: Comparison, seal: Seal | None, arguments: Arguments, **more: Any
) -> bool:
    """Print the result, and that of the hash chain if verified; True if everything is equal."""
    problems = [] if seal is None else seal.problems
    is_equal = result.is_equal and not problems
    facts = {
        "run": str(run),
        "equal": is_equal,
        **more,
        **asdict(result),
        "differences": [plain_numbers(difference._asdict()) for difference in result.differences],
        "problems": problems,
    }
    lines = [*_lines(run, result), *(f"  {problem}" for problem in problems)]
    emit(arguments, facts, printable("\n".join(lines)))  # a record may contain anything
    return is_equal


def _lines(run: Path, result: Comparison) -> Iterator[str]:
    bits = "equal bit for bit"
    if result.tolerance is not None:
        bits = f"equal within {result.tolerance:g}"
    steps = f"{run}: steps {result.first} to {result.last} trained again"
    if result.is_equal:
        compared = f"{plural(result.rows, 'row')} of metrics"
        if result.weights is not None:
            compared += " and the weights"
        digest = "" if result.digest is None else f", BLAKE3 {result.digest.digest}"
        yield f"{steps}: {compared} are {bits}{digest * (result.weights is not None)}"
    else:
        yield f"{steps}: not {bits}"
        yield from _first([difference.line() for difference in result.differences], "metrics")
        yield from _first(result.weights or [], "tensors")
    yield from (f"  note: {text}" for text in result.notes)
    yield from (f"  note: {text}" for text in result.environment)


def _first(lines: list[str], kind: str) -> Iterator[str]:
    yield from (f"  {line}" for line in lines[:MAX_DIFFERENCES])
    if len(lines) > MAX_DIFFERENCES:
        yield f"  and {len(lines) - MAX_DIFFERENCES:,} more {kind}; --json prints all"


@Command(
    "replay RUN STEP",
    Option("--from-data", "Read the batch from the data, even if the run kept it."),
    Option("--all", f"Print all rows; default: at most {MAX_ROWS}."),
    JSON,
    IMPORT,
)
def replay(arguments: Arguments) -> int:
    """Run a step of a run again on one process, and print statistics of each module.

    The statistics are the minimum, maximum, mean, root mean square and non-finite share of outputs,
    weights and their gradients. The first module with a non-finite output is named, as is the
    operation whose gradient is NaN (PyTorch's anomaly detection). Loss and gradient norm are
    compared with the record. Nothing is written.

    The step is reached by training from the newest earlier checkpoint, on the recorded batches. A
    step with a non-finite loss or a loss spike uses the batch that the run has kept
    (resilience.bad_batches). The model is not compiled.

    Examples:
        setpoint replay runs/tiny-3fa94c21 1207  where its loss became NaN
        setpoint replay runs/tiny-3fa94c21 1200 --json  any other step, for a program
    """
    source, text = arguments.positional
    source = run_path(source, arguments)
    folder = run_directory_given(source)
    if folder is None:
        raise not_a_run(source)
    if not text.isdecimal():
        raise SetpointError(f"{text} is not a step.\nValid: a number, from 1")
    job = for_one_process(open_source(source, arguments, overrides=False).resolve())
    directory = RunDirectory(Path(folder), None, is_new=False)
    with Loading():
        from setpoint.ops.replay import replay as replay_step
    notes: list[str] = []
    done = replay_step(job, directory, int(text), arguments.has("--from-data"), notes.append)
    most = None if arguments.has("--all") else MAX_ROWS
    emit(
        arguments,
        lambda: plain_numbers(_facts(done, folder, notes)),
        lambda: "\n".join(_page(done, folder, most)),
        notes,
    )
    return 0


def for_one_process(job: Job) -> Job:
    """The job for one process, with the micro-batches of all ranks in sequence, not compiled."""
    ranks = job.parallel.data_ranks
    draft = job.evolve(parallel=Parallel(device=job.parallel.device), compile=None)
    draft.batch.accumulation = job.batch.global_size // job.batch.micro_size
    assert draft.batch.accumulation == job.batch.accumulation * ranks
    return resolve(draft)


def _page(done: Replayed, folder: str, most: int | None) -> list[str]:
    between = done.step - 1 - done.start
    reached = f"from the checkpoint of step {done.start}" if done.start else "from the start"
    more = f", {plural(between, 'step')} trained on the way" if between else ""
    batch = "the batch kept by the run" if done.is_kept else "the batch read from the data"
    lines = [f"{folder}: step {done.step} {reached}{more}, with {batch}"]
    for name, title in (("loss", "loss"), ("grad_norm", "gradient norm")):
        now = getattr(done.numbers, name)
        lines.append(f"{title}: {now!r}{_compared(now, done, name)}")
    if done.unrecorded:
        lines.append(f"step {done.step} has no row in the record: {done.unrecorded}")
    lines += [
        f"{first} that is not finite: {_named(done, done.first[kind])}"
        for kind, first in FIRST.items()
        if kind in done.first
    ]
    if done.anomaly is not None:
        lines += [f"anomaly: {done.anomaly.error}", *done.anomaly.forward.splitlines()]
    rows = [row for figures in done.modules for row in _rows(figures)]
    headings = ("module", "", "min", "max", "mean", "rms", "not finite")
    return [*lines, table(rows[:most], headings), *hidden(rows, most)]


def _compared(now: float, done: Replayed, name: str) -> str:
    if done.recorded is None:
        return ""
    before = getattr(done.recorded, name)
    if now == before or (now != now and before != before):
        return ", as recorded"
    return f", recorded {before!r}: {abs(now - before) / abs(before):.2g} of it apart"


def _named(done: Replayed, name: str) -> str:
    (kind,) = (figures.kind for figures in done.modules if figures.name == name)
    return f"{name} ({kind})" if name else kind


def _rows(module: ModuleFigures) -> list[list[str]]:
    rows: list[list[str]] = []
    for kind, shown in KINDS.items():
        if kind not in module.tallies:
            continue
        figures = module.tallies[kind].to_json()
        numbers = [figures[name] for name in ("min", "max", "mean", "rms")]
        texts = ["" if value is None else f"{value:.4g}" for value in numbers]
        bad = figures["non_finite"]
        rows.append([module.name or module.kind, shown, *texts, f"{bad:.2%}" if bad else "0"])
    return rows


def _facts(done: Replayed, folder: str, notes: list[str]) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "run": folder,
        "step": done.step,
        "checkpoint": done.start,
        "batch": "kept" if done.is_kept else "data",
        "found": asdict(done.numbers),
        "recorded": done.recorded and asdict(done.recorded),
        "unrecorded": done.unrecorded,
        "first_non_finite": done.first,
        "anomaly": done.anomaly and asdict(done.anomaly),
        "modules": [
            {
                "name": module.name,
                "type": module.kind,
                **{str(kind): tally.to_json() for kind, tally in module.tallies.items()},
            }
            for module in done.modules
        ],
        "notes": notes,
    }
