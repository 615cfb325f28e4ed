"""`setpoint train`: train or resume."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from setpoint.checkpoint.folder import list_checkpoints
from setpoint.cli.main import TRACEBACK, Loading
from setpoint.cli.options import COMMON, SOURCE_HELP, Arguments, Command, Option
from setpoint.cli.ranks import NPROC, adopt_launcher, note, refuse_nproc
from setpoint.cli.source import (
    CHECKPOINT,
    checkpoint_and_run,
    kind_of,
    open_source,
    run_directory_given,
    variables_of,
)
from setpoint.config import Composition, ConfigError, Origin, Problem, SetpointError, cautions_of
from setpoint.config.values.origin import COMMAND_LINE
from setpoint.parallel.rank import FOLDER, own_rank, require_launch
from setpoint.plan.preflight import Preflight, preflight
from setpoint.resilience.signals import active
from setpoint.sweep.record import is_point
from setpoint.track.run_directory import refuse_linked_folders
from setpoint.train.build.companions import fallback_files
from setpoint.train.config import Job
from setpoint.train.run_name import draw_seed, find_run, is_drawn, run_directory_of
from setpoint.train.run_status import command_again, stop_message
from setpoint.train.session_limits import watch_limits

NNODES = Option(
    "--nnodes",
    "Number of nodes; run this command on each.",
    "N|MIN:MAX",
    requires=(NPROC.name,),
)
ENDPOINT = Option("--rdzv-endpoint", "Rendezvous address: a node and a free port.", "HOST:PORT")
RUN_ID = Option("--rdzv-id", "Rendezvous id, the same on all nodes.", "ID")
DRY_RUN = Option("--dry-run", "Check, load and build everything; train and write nothing.")
UNTIL = Option(
    "--until",
    "Stop after this step; the same command without it resumes.",
    "STEP",
    type=int,
    excludes=(DRY_RUN.name,),
)
RESTARTS = Option(
    "--max-restarts",
    "Start all ranks again if one is killed or hangs.",
    "N",
    type=int,
    at_least=0,
    requires=(NPROC.name,),
)
COMMAND = Command(
    "train",
    "SOURCE [OVERRIDES]",
    "Train a model, with checkpoints and a record in the run directory\n"
    "workspace/experiment/name-fingerprint. The same command again resumes a stopped or killed\n"
    "run exactly from its latest valid checkpoint. A change of any identity field, one that\n"
    "affects training, makes a new run. `setpoint train RUN_DIRECTORY` resumes that run, and\n"
    "refuses if an identity field differs from its record, unless --accept names it. The number\n"
    "of ranks comes from the launcher (WORLD_SIZE), or from --nproc, which starts them.\n"
    "\n"
    "Ctrl-C saves a checkpoint and exits with status 130; SIGTERM, SIGUSR1, SIGHUP, a time limit\n"
    "(resilience.time_limit), the end of a Slurm job and a file STOP in the run directory with\n"
    "75. The same command resumes. A second Ctrl-C, the same signal after 2 seconds, or\n"
    "resilience.grace_period running out, exits without saving (status 130 or 143); the latest\n"
    "checkpoint stays.\n" + SOURCE_HELP,
    [
        DRY_RUN,
        NPROC,
        NNODES,
        ENDPOINT,
        RUN_ID,
        RESTARTS,
        UNTIL,
        Option(TRACEBACK, "Print all frames of an error, Setpoint's own included."),
        Option("--accept", "Resume although these fields or sections differ.", "PATH,...", True),
        *COMMON,
    ],
    [
        ("setpoint train tiny", "train the preset tiny"),
        ("setpoint train tiny --optimizer.lr 1e-3", "change one knob"),
        ("setpoint train tiny --with smoke", "only a few steps"),
        ("setpoint train tiny --dry-run", "what it would do"),
        ("setpoint train tiny --until 100", "only the first 100 steps, with a checkpoint"),
        ("setpoint train runs/tiny-3fa94c21", "resume a run"),
        ("setpoint train exp.toml --name second", "a file of your own, under another name"),
        ("setpoint train runs/tiny-3fa94c21 --accept optimizer", "with a changed optimizer"),
    ],
)


class Plan(NamedTuple):
    """A job that has been checked.

    Arguments:
        place: the run directory.
        given: the run directory where it is named by SOURCE, and None otherwise.
        start: the ranks to start; None where this process trains.
    """

    job: Job
    place: str
    given: str | None
    report: Preflight
    start: Start | None


class Start(NamedTuple):
    """The ranks to start: `ranks` on each of `least` to `most` nodes, and the restarts of all."""

    ranks: int
    least: int
    most: int
    restarts: int


@COMMAND
def run(arguments: Arguments) -> int:
    """Resolve, check, train, and print the summary."""
    stop = active()
    if stop is not None:
        # Nothing can be lost yet, so that the same command goes on in any case.
        stop.resumable = True
        stop.outlook = lambda: "nothing was trained"
    require_launch()
    plan = plan_run(arguments)
    return _train(plan, arguments) if plan.start is None else _launch(plan, plan.start, arguments)


def plan_run(arguments: Arguments) -> Plan:
    """Resolve and check.

    Raises:
        ConfigError: with all problems.
        SetpointError: for arguments that are wrong.
    """
    source = arguments.positional[0]
    composition = open_source(source, arguments)
    refuse_checkpoint(source)
    start = _ranks_to_start(arguments, composition)
    adopt_launcher(composition)
    if start is not None and start.most > 1 and composition.draft.seed is None:
        raise SetpointError(
            "seed = null: each node would draw another seed.\nValid: a number, the same on all"
        )
    draw_seed(composition.draft)
    job = composition.resolve()
    given = run_directory_given(source)
    if given is None and is_point(source):
        given = run_directory_of(job)  # beside it lie runs that may differ in length alone
    report = preflight(job)
    problems = report.problems
    # The main rank looks at other records for all, unless files that a run has kept may be needed.
    looks = own_rank() == 0 or bool(problems)
    place = given or (find_run(job) if looks else run_directory_of(job))
    if any(map(_is_of_pretrained, problems)) and list_checkpoints(Path(place, "checkpoints")):
        # It goes on with weights of its own, wherever those that it started from are now.
        problems = [problem for problem in problems if not _is_of_pretrained(problem)]
    if problems:
        kept = fallback_files(job, place).fields
        problems = [problem for problem in problems if problem.path not in kept]
    if problems:
        if given is not None:
            _add_moved_data_hint(problems, arguments)
        raise ConfigError(problems)
    if start is not None:
        _refuse_other_numbers(start, composition)
    return Plan(job, place, given, report, start)


def _launch(plan: Plan, start: Start, arguments: Arguments) -> int:
    """Start the ranks, which run this command."""
    job, place, stop = plan.job, plan.place, active()
    more = ["--seed", str(job.seed)] * is_drawn(job)
    more += [name for name in (DRY_RUN.name, TRACEBACK) if arguments.has(name)]
    until = arguments.value(UNTIL.name)
    more += [] if until is None else [UNTIL.name, until]
    words = words_of(arguments, arguments.values("--accept"), more)
    with Loading():
        from setpoint.parallel.launcher import Nodes, launch
    if os.path.isdir(place):  # the launcher writes to its logs
        refuse_linked_folders(Path(place))
    nodes = None
    if start.most > 1:
        endpoint, run_id = arguments.value(ENDPOINT.name), arguments.value(RUN_ID.name)
        assert endpoint is not None and run_id is not None
        nodes = Nodes(start.least, start.most, endpoint, run_id, job.parallel.timeout)
    if stop is not None:  # while nodes wait for each other, the launcher answers signals
        stop.outlook = lambda: stop_message(Path(place, "checkpoints"), since=-1)
    grace = job.resilience.grace_period
    return launch(words, start.ranks, Path(place, "logs"), nodes, start.restarts, grace, note)


def _train(plan: Plan, arguments: Arguments) -> int:
    """Train in this process, or build everything for a dry run."""
    job, place, stop = plan.job, Path(plan.place), active()
    if stop is not None:
        checkpoints, again = place / "checkpoints", command_again(job, place)
        stop.outlook = lambda: stop_message(checkpoints, again=again)
        stop.watch()
        watch_limits(stop, job, place)
    if job.tracking.progress != "none" and own_rank() == 0:
        # Importing torch takes seconds.
        count = plan.report.facts.get("parameters")
        size = f"{count:,} parameters, " if isinstance(count, int) else ""
        print(f"{plan.place}: {size}{job.duration}", flush=True)
        for caution in plan.report.cautions:
            if caution not in cautions_of(job):  # which the run shows and records
                print(f"caution: {caution.line()}", flush=True)
    try:
        with Loading():
            from setpoint.track.console import print_table
            from setpoint.train.refusal import ContractRefused
            from setpoint.train.run import rehearse, train
    except ModuleNotFoundError as error:
        raise SetpointError(
            f"training needs the package {error.name!r}: install PyTorch first, then "
            f"'setpoint[train]'"
        ) from None
    accept = arguments.values("--accept")
    try:
        if arguments.has(DRY_RUN.name):
            rows = rehearse(job, plan.given, accept)
            if own_rank() == 0:
                print_table(f"{job.name}: {plan.place}", rows)
            return 0
        outcome = train(job, plan.given, accept, until=arguments.integer(UNTIL.name))
    except ContractRefused as error:
        if not error.command:
            raise
        command = variables_of(job) + _typed_again(arguments, error.paths)
        raise SetpointError(str(error).replace(error.command, command)) from None
    if own_rank() == 0:
        from setpoint.train.finish import print_summary

        print_summary(outcome)
    return outcome.status


def _typed_again(arguments: Arguments, accept: Sequence[str], overrides: Sequence[str] = ()) -> str:
    """The command as it was typed, with more overrides, and more to accept."""
    accept = [*arguments.values("--accept"), *accept]
    more = ["--config-from-stdin"] * arguments.has("--config-from-stdin")
    for option in (NPROC, NNODES, ENDPOINT, RUN_ID, RESTARTS, UNTIL):
        value = arguments.value(option.name)
        if value is None and option is NPROC and FOLDER in os.environ:
            # Its launcher was given it, and starts ranks without.
            value = os.environ.get("LOCAL_WORLD_SIZE")
        more += [] if value is None else [option.name, value]
    return shlex.join(["setpoint", *words_of(arguments, accept, [*more, *overrides])])


def words_of(arguments: Arguments, accept: Sequence[str], more: Sequence[str] = ()) -> list[str]:
    """The words of a command that trains what was typed.

    Arguments:
        accept: what may differ from the record.
        more: further words.
    """
    words = ["train", arguments.positional[0], *arguments.overrides]
    for name in ("--import", "--with", "--file"):
        for value in arguments.values(name):
            words += [name, value]
    return [*words, *more, *(["--accept", ",".join(accept)] if accept else [])]


def _ranks_to_start(arguments: Arguments, composition: Composition[Job]) -> Start | None:
    """Take the number of ranks from --nproc and --nnodes.

    Returns:
        None for this process alone.

    Raises:
        SetpointError: a launcher has started this process already, an option has no effect or
            lacks another one, or what comes from standard input would not reach the ranks.
    """
    ranks, given = arguments.integer("--nproc"), arguments.value(NNODES.name)
    least, most = _nodes(arguments)
    restarts = arguments.integer(RESTARTS.name)
    total = (ranks or 1) * most
    for option in (ENDPOINT, RUN_ID):
        if most > 1 and not arguments.has(option.name):
            raise SetpointError(
                f"--nnodes {given} needs {option.name} {option.metavar}, the same on all of them"
            )
        if most == 1 and arguments.has(option.name):
            raise SetpointError(f"{option.name} has no effect on one node (--nnodes)")
    if restarts and total == 1:
        raise SetpointError("--max-restarts has no effect for one rank: run the command again")
    if ranks is None:
        return None
    refuse_nproc(arguments, ranks)
    origin = "--nproc" if given is None else "--nproc * --nnodes"
    composition.draft.parallel.set_field("world_size", total, Origin(COMMAND_LINE, origin))
    return Start(ranks, least, most, restarts or 0) if total > 1 else None


def _nodes(arguments: Arguments) -> tuple[int, int]:
    """The least and the greatest number of nodes.

    Raises:
        SetpointError: that is no number, nor two in their order.
    """
    text = arguments.value(NNODES.name) or "1"
    least, colon, most = text.partition(":")
    try:
        limits = int(least), int(most if colon else least)
    except ValueError:
        limits = 0, 0
    if not 1 <= limits[0] <= limits[1]:
        raise SetpointError(
            f"{NNODES.name} {text} is no number of nodes.\nValid: a number, as 4, or the least "
            f"and the most at a time, as 1:4"
        )
    return limits


def _refuse_other_numbers(start: Start, composition: Composition[Job]) -> None:
    """Refuse a range of nodes where a run would end because one comes or goes.

    Raises:
        SetpointError: the configuration does not go with a number of nodes in between.
    """
    refused: dict[int, ConfigError] = {}
    for nodes in range(start.least, start.most):
        size = Origin(COMMAND_LINE, f"--nproc * {nodes} of --nnodes")
        composition.draft.parallel.set_field("world_size", nodes * start.ranks, size)
        try:
            problems = preflight(composition.resolve(), ()).problems
        except ConfigError as error:
            problems = list(error.problems)
        if problems:
            refused[nodes] = ConfigError(problems)
    if not refused:
        return
    fits = [str(n) for n in range(start.least, start.most + 1) if n not in refused]
    nodes, error = next(iter(refused.items()))
    raise SetpointError(
        f"{NNODES.name} {start.least}:{start.most}: the run could not go on with {nodes} of the "
        f"nodes, which have {nodes * start.ranks} ranks:\n{error}\n"
        f"It can with {', '.join(fits)} of them.\nValid: a range of these, or sizes that each "
        f"number of ranks divides"
    )


def _add_moved_data_hint(problems: Sequence[Problem], arguments: Arguments) -> None:
    """Add the command that resumes a run whose text files have been moved to the problems."""
    for problem in problems:
        head, paths, _ = problem.path.partition(".paths")
        if paths and head.startswith("data."):
            command = _typed_again(arguments, [head + paths], [f"--{head}{paths}", "NEW"])
            problem.hint += f" If the files were moved to NEW: {command}"


def _is_of_pretrained(problem: Problem) -> bool:
    """True for a problem of the weights that a fresh run starts from."""
    texts = (problem.path, *problem.also)
    return any(text.partition(" ")[0] == "model.pretrained" for text in texts)


def refuse_checkpoint(source: str) -> None:
    """Refuse a checkpoint, since a run resumes at its newest one.

    Raises:
        SetpointError: the source is a checkpoint.
    """
    if kind_of(source) != CHECKPOINT:
        return
    directory, folder = checkpoint_and_run(source)
    raise SetpointError(
        f"{source} is a checkpoint. `setpoint train {folder}` resumes its run, at the newest "
        f"one; `setpoint train {os.path.join(directory, 'config.toml')} --name NAME` trains its "
        f"configuration as a run of its own"
    )
