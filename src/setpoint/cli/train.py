"""`setpoint train` and `launch`: train or resume, here or on the nodes of a cluster."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from setpoint.checkpoint.folder import list_checkpoints
from setpoint.cli.main import TRACEBACK, Loading
from setpoint.cli.options import COMMON, Arguments, Command, Option
from setpoint.cli.ranks import NPROC, adopt_launcher, note, refuse_nproc
from setpoint.cli.source import (
    CHECKPOINT,
    checkpoint_and_run,
    kind_of,
    open_source,
    run_directory_given,
    variables_of,
)
from setpoint.config import (
    Composition,
    ConfigError,
    Origin,
    Problem,
    RunError,
    SetpointError,
    cautions_of,
)
from setpoint.config.values.origin import COMMAND_LINE
from setpoint.parallel.rank import FOLDER, own_rank, require_launch
from setpoint.plan.preflight import Preflight, preflight
from setpoint.resilience.signals import active
from setpoint.track.run_directory import hint_of_start, refuse_linked_folders
from setpoint.train.build.assets import fallback_files
from setpoint.train.config import Job
from setpoint.train.run_name import draw_seed, find_run, is_drawn, run_directory_of
from setpoint.train.run_status import stop_message, watch_stops

if TYPE_CHECKING:
    from setpoint.cluster.job_script import JobRequest

RENDEZVOUS = {"--rdzv-endpoint": "HOST:PORT", "--rdzv-id": "ID"}


class CheckedJob(NamedTuple):
    """A job that has been checked.

    Arguments:
        place: the run directory.
        given: the run directory named by SOURCE, or None.
        start: the ranks to start; None if this process trains.
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


@Command(
    "train SOURCE [OVERRIDES]",
    Option("--dry-run", "Check, load and build everything; train and write nothing."),
    NPROC,
    Option("--nnodes N|MIN:MAX", "Number of nodes; run this on each.", requires="--nproc"),
    Option("--rdzv-endpoint HOST:PORT", "Rendezvous address: a node and a free port."),
    Option("--rdzv-id ID", "Rendezvous id, the same on all nodes."),
    Option("--max-restarts N", "Restarts if a rank dies or hangs.", at_least=0, requires="--nproc"),
    Option("--until N", "Stop after step N; without it the run resumes.", excludes="--dry-run"),
    Option(TRACEBACK, "Print full tracebacks, with Setpoint's own frames."),
    Option("--accept PATH,...", "Resume although these fields or sections differ.", True),
    *COMMON,
)
def train_command(arguments: Arguments) -> int:
    """Train a model, or resume a run.

    The run directory workspace/experiment/name-fingerprint holds the record and the checkpoints.
    Repeating the command resumes a stopped or killed run exactly from its latest valid checkpoint.
    Changing an identity field, one that affects training, starts a new run. `setpoint train
    RUN_DIRECTORY` resumes that run, and refuses if an identity field differs from its record,
    unless --accept names the field. The number of ranks comes from the launcher (WORLD_SIZE) or
    from --nproc, which starts them.

    Ctrl-C saves a checkpoint and exits with status 130; SIGTERM, SIGUSR1, SIGHUP, a time limit
    (resilience.time_limit), the end of a Slurm job and a file STOP in the run directory with 75.
    The same command resumes. A second Ctrl-C, the same signal again after 2 seconds, or a step
    longer than resilience.grace_period ends the process without saving (status 130 or 143); the
    latest checkpoint stays.

    Examples:
        setpoint train tiny  train the preset tiny
        setpoint train tiny --optimizer.lr 1e-3  change one field
        setpoint train tiny --with smoke  a few steps only
        setpoint train tiny --dry-run  build everything, train nothing
        setpoint train tiny --until 100  the first 100 steps, with a checkpoint
        setpoint train runs/tiny-3fa94c21  resume a run
        setpoint train exp.toml --name second  a file of your own, under another name
        setpoint train runs/tiny-3fa94c21 --accept optimizer  resume with a changed optimizer
    """
    stop = active()
    if stop is not None:
        # Nothing can be lost yet, so the same command resumes in any case.
        stop.resumable = True
        stop.outlook = lambda: "nothing was trained"
    require_launch()
    plan = plan_run(arguments)
    return _train(plan, arguments) if plan.start is None else _launch(plan, plan.start, arguments)


def plan_run(arguments: Arguments) -> CheckedJob:
    """Resolve and check."""
    source = arguments.positional[0]
    composition = open_source(source, arguments)
    refuse_checkpoint(source)
    start = _ranks_to_start(arguments, composition)
    adopt_launcher(composition)
    if start is not None and start.most > 1 and composition.draft.seed is None:
        raise SetpointError(
            "seed = null: each node would draw a different seed.\n"
            "Valid: a number, the same on all nodes"
        )
    draw_seed(composition.draft)
    job = composition.resolve()
    given = run_directory_given(source)
    if given is None and os.path.isdir(source):
        from setpoint.checkpoint.places import is_point

        if is_point(source):
            given = run_directory_of(job)  # runs next to it may differ only in duration
    report = preflight(job)
    problems = report.problems
    # The main rank checks the other records for all, unless files kept by a run may be needed.
    looks = own_rank() == 0 or bool(problems)
    place = given or (find_run(job) if looks else run_directory_of(job))
    if any(map(_is_of_pretrained, problems)) and list_checkpoints(Path(place, "checkpoints")):
        # It resumes with its own weights, even if the initial ones have moved.
        problems = [problem for problem in problems if not _is_of_pretrained(problem)]
    if problems:
        kept = fallback_files(job, place).fields
        problems = [problem for problem in problems if problem.path not in kept]
    if problems:
        for problem in problems if given is not None else ():
            hint = hint_of_start(Path(place), problem)
            problem.hint = f"{problem.hint} {hint}".strip()
            head, paths, _ = problem.path.partition(".paths")
            if paths and head.startswith("data."):
                command = _typed_again(arguments, [head + paths], [f"--{head}{paths}", "NEW"])
                problem.hint += f" If the files were moved to NEW: {command}"
        raise ConfigError(problems)
    if start is not None:
        _refuse_other_numbers(start, composition)
    return CheckedJob(job, place, given, report, start)


def _launch(plan: CheckedJob, start: Start, arguments: Arguments) -> int:
    """Start the ranks, which run this command."""
    job, place, stop = plan.job, plan.place, active()
    more = ["--seed", str(job.seed)] * is_drawn(job)
    more += [name for name in ("--dry-run", TRACEBACK) if arguments.has(name)]
    until = arguments.value("--until")
    more += [] if until is None else ["--until", until]
    words = words_of(arguments, arguments.values("--accept"), more)
    with Loading():
        from setpoint.parallel.launcher import Nodes, launch
    if os.path.isdir(place):  # the launcher writes to its logs
        refuse_linked_folders(Path(place))
    nodes = None
    if start.most > 1:
        endpoint, run_id = arguments.value("--rdzv-endpoint"), arguments.value("--rdzv-id")
        assert endpoint is not None and run_id is not None
        nodes = Nodes(start.least, start.most, endpoint, run_id, job.parallel.timeout)
    if stop is not None:  # while nodes wait for each other, the launcher handles signals
        stop.outlook = lambda: stop_message(Path(place, "checkpoints"), since=-1)
    grace = job.resilience.grace_period
    return launch(words, start.ranks, Path(place, "logs"), nodes, start.restarts, grace, note)


def _train(plan: CheckedJob, arguments: Arguments) -> int:
    """Train in this process, or build everything for a dry run."""
    job, place, stop = plan.job, Path(plan.place), active()
    if stop is not None:
        watch_stops(stop, job, place)
    if job.tracking.progress != "none" and own_rank() == 0:
        # Importing torch takes seconds.
        count = plan.report.facts.get("parameters")
        size = f"{count:,} parameters, " if isinstance(count, int) else ""
        print(f"{plan.place}: {size}{job.duration}", flush=True)
        for caution in plan.report.cautions:
            if caution not in cautions_of(job):  # the run shows and records those
                print(f"caution: {caution.line()}", flush=True)
    with Loading():
        from setpoint.track.console import print_table
        from setpoint.train.contract import ContractRefused
        from setpoint.train.run import rehearse, train
    accept = arguments.values("--accept")
    try:
        if arguments.has("--dry-run"):
            rows = rehearse(job, plan.given, accept)
            if own_rank() == 0:
                print_table(f"{job.name}: {plan.place}", rows)
            return 0
        outcome = train(
            job, directory=plan.given, accept=accept, until=arguments.integer("--until")
        )
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
    """Rebuild the typed command with further overrides and accepted fields."""
    accept = [*arguments.values("--accept"), *accept]
    more = ["--config-from-stdin"] * arguments.has("--config-from-stdin")
    for name in ("--nproc", "--nnodes", *RENDEZVOUS, "--max-restarts", "--until"):
        value = arguments.value(name)
        if value is None and name == "--nproc" and FOLDER in os.environ:
            # The option was for the launcher, whose ranks run without it.
            value = os.environ.get("LOCAL_WORLD_SIZE")
        more += [] if value is None else [name, value]
    return shlex.join(["setpoint", *words_of(arguments, accept, [*more, *overrides])])


def words_of(arguments: Arguments, accept: Sequence[str], more: Sequence[str] = ()) -> list[str]:
    """Words that repeat the typed training command, with further ones added."""
    words = ["train", arguments.positional[0], *arguments.overrides]
    for name in ("--import", "--with", "--file"):
        words += [word for value in arguments.values(name) for word in (name, value)]
    return [*words, *more, *(["--accept", ",".join(accept)] if accept else [])]


def _ranks_to_start(arguments: Arguments, composition: Composition[Job]) -> Start | None:
    """Take the number of ranks from --nproc and --nnodes; None for this process alone."""
    ranks, given = arguments.integer("--nproc"), arguments.value("--nnodes")
    least, most = _nodes(arguments)
    restarts = arguments.integer("--max-restarts")
    total = (ranks or 1) * most
    for name, metavar in RENDEZVOUS.items():
        if most > 1 and not arguments.has(name):
            raise SetpointError(f"--nnodes {given} needs {name} {metavar}, the same on all nodes")
        if most == 1 and arguments.has(name):
            raise SetpointError(f"{name} has no effect on one node (--nnodes)")
    if restarts and total == 1:
        raise SetpointError("--max-restarts has no effect for one rank: run the command again")
    if ranks is None:
        return None
    refuse_nproc(arguments, ranks)
    origin = "--nproc" if given is None else "--nproc * --nnodes"
    composition.draft.parallel.set_field("world_size", total, Origin(COMMAND_LINE, origin))
    return Start(ranks, least, most, restarts or 0) if total > 1 else None


def _nodes(arguments: Arguments) -> tuple[int, int]:
    """The minimum and maximum number of nodes."""
    text = arguments.value("--nnodes") or "1"
    parts = text.split(":")
    limits = [int(part) for part in parts if part.isascii() and part.isdecimal()]
    if not 0 < len(parts) == len(limits) <= 2 or not 1 <= limits[0] <= limits[-1]:
        raise SetpointError(
            f"--nnodes {text} is not a number of nodes.\nValid: a number, such as 4, or a "
            f"minimum and a maximum, such as 1:4"
        )
    return limits[0], limits[-1]


def _refuse_other_numbers(start: Start, composition: Composition[Job]) -> None:
    """Refuse a range of nodes if the run cannot continue with a different number of nodes."""
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
        f"--nnodes {start.least}:{start.most}: the run could not continue with {nodes} of the "
        f"nodes, which have {nodes * start.ranks} ranks:\n{error}\n"
        f"It could continue with {', '.join(fits)} nodes.\n"
        f"Valid: a range of these, or sizes that each number of ranks divides"
    )


def _is_of_pretrained(problem: Problem) -> bool:
    """True for a problem with the weights from which a new run starts."""
    texts = (problem.path, *problem.also)
    return any(text.partition(" ")[0] == "model.pretrained" for text in texts)


def refuse_checkpoint(source: str) -> None:
    """Refuse a checkpoint, because a run resumes from its newest one."""
    if kind_of(source) != CHECKPOINT:
        return
    directory, folder = checkpoint_and_run(source)
    raise SetpointError(
        f"{source} is a checkpoint. `setpoint train {folder}` resumes the run from its newest "
        f"one; `setpoint train {os.path.join(directory, 'config.toml')} --name NAME` trains its "
        f"configuration as a separate run"
    )


TIME_FORMAT = re.compile(r"\d+(-\d+(:\d+){0,2}|(:\d+){0,2})")


@Command(
    "launch SOURCE [OVERRIDES]",
    Option("--slurm", "Write a batch script of Slurm and submit it."),
    Option(
        "--kubernetes", "Print a manifest of Kubernetes.", requires="--image", excludes="--slurm"
    ),
    Option("--nnodes N", "Number of nodes; default 1."),
    Option("--nproc N", "Ranks on each node, with a GPU each unless on CPU."),
    Option("--cpus N", "CPU cores for each rank."),
    Option("--time TIME", "Slurm: time limit, such as 24:00:00.", requires="--slurm"),
    Option("--partition NAME", "Slurm: partition.", requires="--slurm"),
    Option("--account NAME", "Slurm: account.", requires="--slurm"),
    Option("--qos NAME", "Slurm: quality of service.", requires="--slurm"),
    Option("--sbatch OPTION", "Slurm: sbatch option, such as --mem=0.", True, requires="--slurm"),
    Option("--print", "Slurm: print the script; write and submit nothing.", requires="--slurm"),
    Option("--kind pytorchjob|jobset", "Kubernetes: kind.", requires="--kubernetes"),
    Option("--namespace NAME", "Kubernetes: namespace.", requires="--kubernetes"),
    Option("--image IMAGE", "Container image (Slurm: by pyxis)."),
    Option("--volume NAME:PATH", "Folder or claim to mount.", True, requires="--image"),
    Option("--setup LINE", "Shell command to run first.", True),
    Option("--max-restarts N", "Restarts of ranks (Kubernetes: pods).", at_least=0),
    *COMMON,
)
def launch_command(arguments: Arguments) -> int:
    """Train on the nodes of a cluster.

    The configuration is checked for all ranks first, so a configuration that `check` refuses is
    never queued. Each node runs `setpoint train ... --nproc N`.

    --slurm writes WORKSPACE/NAME-FINGERPRINT.sbatch and submits it. Before the time limit, and on
    preemption, the run saves a checkpoint and the job is requeued. --kubernetes prints a manifest
    for `kubectl apply -f -`; SOURCE, the data and the workspace must be in the image or in a
    volume.

    Examples:
        setpoint launch exp.toml --slurm --nproc 8 --time 24:00:00  one node with 8 GPUs
        setpoint launch exp.toml --slurm --nnodes 4 --nproc 8 --print  print the batch script only
        setpoint launch exp.toml --kubernetes --nproc 8 --image train:1  a manifest for kubectl
    """
    from setpoint.cluster.job_script import JobRequest, manifest

    by_slurm = _refuse_options(arguments)
    source = arguments.positional[0]
    nodes = arguments.integer("--nnodes") or 1
    ranks = arguments.integer("--nproc") or 1
    composition = open_source(source, arguments)
    refuse_checkpoint(source)
    origin = Origin(COMMAND_LINE, "--nproc * --nnodes")
    composition.draft.parallel.set_field("world_size", nodes * ranks, origin)
    draw_seed(composition.draft)
    job = composition.resolve()
    # Pods have different files than this machine.
    if problems := preflight(job, ("files",) if by_slurm else ()).problems:
        raise ConfigError(problems)
    # All nodes, and all runs of the job, share a seed.
    more = ["--seed", str(job.seed)] * is_drawn(job)
    place = run_directory_given(source) or find_run(job)
    request = JobRequest(
        name=os.path.basename(os.path.abspath(place)),
        words=words_of(arguments, (), more)[1:],
        variables=variables_of(job),
        nodes=nodes,
        ranks=ranks,
        has_gpus=job.parallel.device != "cpu",
        cpus=arguments.integer("--cpus"),
        image=arguments.value("--image"),
        volumes=_volumes(arguments, by_slurm),
        setup=arguments.values("--setup"),
        restarts=arguments.integer("--max-restarts"),
        grace=job.resilience.grace_period,
        interpreter=sys.executable,
    )
    if by_slurm:
        return _by_slurm(arguments, request, place)
    import json
    from io import StringIO

    from ruamel.yaml import YAML

    job_manifest = manifest(request, arguments.value("--kind") or "pytorchjob",
                     arguments.value("--namespace"))  # fmt: skip
    writer, text = YAML(), StringIO()
    writer.width = 10**6
    writer.dump(json.loads(json.dumps(job_manifest)), text)  # without anchors for shared values
    print(text.getvalue(), end="")
    return 0


def _by_slurm(arguments: Arguments, request: JobRequest, place: str) -> int:
    from setpoint.cluster.job_script import batch_script, seconds_of, submit

    time = arguments.value("--time")
    if time is not None and 0 < seconds_of(time) <= request.notice:
        raise SetpointError(
            f"--time {time} is {seconds_of(time)} s, but the job is signalled {request.notice} s "
            f"before its end, so it would only be requeued.\n"
            f"Valid: a longer time, or a shorter resilience.grace_period, which is "
            f"{request.grace:g} s"
        )
    names = ("time", "partition", "account", "qos")
    limits = {name: value for name in names if (value := arguments.value(f"--{name}")) is not None}
    output = os.path.abspath(f"{place}.slurm-%j.out")
    script = batch_script(request, os.getcwd(), output, limits, arguments.values("--sbatch"))
    if arguments.has("--print"):
        print(script, end="")
        return 0
    path = f"{place}.sbatch"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(script)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from error
    number = submit(path)
    print(f"submitted job {number}: {path}, its output {place}.slurm-{number}.out")
    return 0


def _refuse_options(arguments: Arguments) -> bool:
    """Refuse options that are missing or invalid; True for Slurm."""
    by_slurm = arguments.has("--slurm")
    if not by_slurm and not arguments.has("--kubernetes"):
        raise SetpointError(
            "`setpoint launch` needs one of --slurm and --kubernetes; `setpoint train ... --nproc "
            "N` trains on this machine"
        )
    if arguments.has("--config-from-stdin") or "-" in arguments.positional:
        raise SetpointError(
            "standard input is not available on the nodes of a cluster: save the configuration in "
            "a file"
        )
    time = arguments.value("--time")
    if time is not None and not TIME_FORMAT.fullmatch(time):
        raise SetpointError(
            f"--time {time} is not a Slurm time.\nValid: minutes, hours:minutes:seconds as "
            f"24:00:00, or days-hours as 2-12"
        )
    return by_slurm


def _volumes(arguments: Arguments, by_slurm: bool) -> list[tuple[str, str]]:
    volumes: list[tuple[str, str]] = []
    for text in arguments.values("--volume"):
        name, _, path = text.rpartition(":")
        if not name or not path.startswith("/"):
            what = "/folder" if by_slurm else "claim"
            raise SetpointError(f"--volume {text} is not {what}:/path, such as {what}:/data")
        volumes.append((name, path))
    return volumes
