"""`setpoint launch`: the same training on the nodes of a cluster, by its scheduler."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

from setpoint.cli.options import COMMON, SOURCE_HELP, Arguments, Command, Option
from setpoint.cli.source import open_source, run_directory_given, variables_of
from setpoint.cli.train import NNODES, NPROC, RESTARTS, refuse_checkpoint, words_of
from setpoint.cluster.kubernetes import manifest
from setpoint.cluster.request import Request
from setpoint.cluster.slurm import batch_script, seconds_of, submit
from setpoint.config import Composition, ConfigError, Need, Origin, SetpointError
from setpoint.config.values.origin import COMMAND_LINE
from setpoint.plan.preflight import preflight
from setpoint.train.config import Job
from setpoint.train.run_name import draw_seed, find_run, is_drawn

SLURM = Option("--slurm", "Write a batch script of Slurm and submit it.")
KUBERNETES = Option("--kubernetes", "Print a manifest of Kubernetes.", excludes=(SLURM.name,))
OF_SLURM, OF_KUBERNETES = (SLURM.name,), (KUBERNETES.name,)
PRINT = Option("--print", "Slurm: print the script; write and submit nothing.", requires=OF_SLURM)
KIND = Option(
    "--kind",
    "Kubernetes: pytorchjob (default) or jobset.",
    "KIND",
    choices=("pytorchjob", "jobset"),
    requires=OF_KUBERNETES,
)
NODES = Option(NNODES.name, "Number of nodes; default 1.", "N", type=int)
RANKS = Option(NPROC.name, "Ranks on each node, with a GPU each unless on CPU.", "N", type=int)
CPUS = Option("--cpus", "CPU cores for each rank.", "N", type=int)
TIME = Option("--time", "Slurm: time limit, as 24:00:00.", "TIME", requires=OF_SLURM)
LIMITS = (
    TIME,
    Option("--partition", "Slurm: partition.", "NAME", requires=OF_SLURM),
    Option("--account", "Slurm: account.", "NAME", requires=OF_SLURM),
    Option("--qos", "Slurm: quality of service.", "NAME", requires=OF_SLURM),
)
SBATCH = Option(
    "--sbatch", "Slurm: another option of sbatch, as --mem=0.", "OPTION", True, requires=OF_SLURM
)
NAMESPACE = Option("--namespace", "Kubernetes: namespace.", "NAME", requires=OF_KUBERNETES)
IMAGE = Option("--image", "Container image (Slurm: by pyxis).", "IMAGE")
VOLUME = Option(
    "--volume", "Folder, or claim, to mount in the image.", "NAME:PATH", True, requires=("--image",)
)
SETUP = Option("--setup", "Line of shell before the command.", "LINE", True)
AGAIN = Option(
    RESTARTS.name, "Start the ranks (Kubernetes: pods) again so often.", "N", type=int, at_least=0
)
COMMAND = Command(
    "launch",
    "SOURCE [OVERRIDES]",
    "Train on the nodes of a cluster. The configuration is checked for all its ranks first: what\n"
    "`check` refuses is not queued. Each node runs `setpoint train ... --nproc N`.\n"
    "\n"
    "--slurm writes WORKSPACE/NAME-FINGERPRINT.sbatch and submits it. Before the time is over,\n"
    "and where it is preempted, the run saves a checkpoint and the job is queued again.\n"
    "--kubernetes prints a manifest for `kubectl apply -f -`; SOURCE, the data and the workspace\n"
    "lie in the image or in a volume.\n" + SOURCE_HELP,
    [
        SLURM,
        KUBERNETES,
        NODES,
        RANKS,
        CPUS,
        *LIMITS,
        SBATCH,
        PRINT,
        KIND,
        NAMESPACE,
        IMAGE,
        VOLUME,
        SETUP,
        AGAIN,
        *COMMON,
    ],
    [
        ("setpoint launch exp.toml --slurm --nproc 8 --time 24:00:00", "one node of 8 GPUs"),
        ("setpoint launch exp.toml --slurm --nnodes 4 --nproc 8 --print", "look at it first"),
        ("setpoint launch exp.toml --kubernetes --nproc 8 --image train:1", "for kubectl apply"),
    ],
)
TIME_FORMAT = re.compile(r"\d+(-\d+(:\d+){0,2}|(:\d+){0,2})")


@COMMAND
def run(arguments: Arguments) -> int:
    """Check, then write and submit, or print."""
    by_slurm = _refuse_options(arguments)
    source = arguments.positional[0]
    nodes = arguments.integer(NODES.name) or 1
    ranks = arguments.integer(RANKS.name) or 1
    composition = open_source(source, arguments)
    refuse_checkpoint(source)
    job, more = _job_for(composition, nodes, ranks, files=by_slurm)
    place = run_directory_given(source) or find_run(job)
    request = Request(
        name=os.path.basename(os.path.abspath(place)),
        words=words_of(arguments, (), more)[1:],
        variables=variables_of(job),
        nodes=nodes,
        ranks=ranks,
        has_gpus=job.parallel.device != "cpu",
        cpus=arguments.integer(CPUS.name),
        image=arguments.value(IMAGE.name),
        volumes=_volumes(arguments, by_slurm),
        setup=arguments.values(SETUP.name),
        restarts=arguments.integer(AGAIN.name),
        grace=job.resilience.grace_period,
        interpreter=sys.executable,
    )
    if by_slurm:
        return _by_slurm(arguments, request, place)
    import json
    from io import StringIO

    from ruamel.yaml import YAML

    found = manifest(request, arguments.value(KIND.name) or "pytorchjob",
                     arguments.value(NAMESPACE.name))  # fmt: skip
    writer, text = YAML(), StringIO()
    writer.width = 10**6
    writer.dump(json.loads(json.dumps(found)), text)  # without the anchors of what is shared
    print(text.getvalue(), end="")
    return 0


def _by_slurm(arguments: Arguments, request: Request, place: str) -> int:
    time = arguments.value(TIME.name)
    if time is not None and 0 < seconds_of(time) <= request.notice:
        raise SetpointError(
            f"--time {time} is {seconds_of(time)} s, and the job must hear {request.notice} s "
            f"before its end that it stops: it would only be put back into the queue.\n"
            f"Valid: a longer time, or a shorter resilience.grace_period, which is "
            f"{request.grace:g} s"
        )
    limits = {option.name[2:]: arguments.value(option.name) for option in LIMITS}
    script = batch_script(
        request,
        os.getcwd(),
        os.path.abspath(f"{place}.slurm-%j.out"),
        {name: value for name, value in limits.items() if value is not None},
        arguments.values(SBATCH.name),
    )
    if arguments.has(PRINT.name):
        print(script, end="")
        return 0
    path = f"{place}.sbatch"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(script)
    except OSError as error:
        raise SetpointError(f"{path} cannot be written: {error.strerror}") from error
    number = submit(path)
    print(f"submitted job {number}: {path}, its output {place}.slurm-{number}.out")
    return 0


def _job_for(
    composition: Composition[Job], nodes: int, ranks: int, files: bool
) -> tuple[Job, Sequence[str]]:
    """Check a job for all its ranks.

    Arguments:
        files: whether the cluster sees the files that this machine does.

    Returns:
        it, and further words of the command that trains it.

    Raises:
        ConfigError: what `check` refuses.
    """
    origin = Origin(COMMAND_LINE, f"{RANKS.name} * {NODES.name}")
    composition.draft.parallel.set_field("world_size", nodes * ranks, origin)
    draw_seed(composition.draft)
    job = composition.resolve()
    able: tuple[Need, ...] = ("files",) if files else ()
    if problems := preflight(job, able).problems:
        raise ConfigError(problems)
    # All nodes, and all runs of the job, have the same seed.
    return job, ["--seed", str(job.seed)] if is_drawn(job) else []


def _refuse_options(arguments: Arguments) -> bool:
    """Refuse options that are missing or wrong.

    Returns:
        True if the scheduler is Slurm.
    """
    by_slurm = arguments.has(SLURM.name)
    if not by_slurm and not arguments.has(KUBERNETES.name):
        raise SetpointError(
            "`setpoint launch` needs one of --slurm and --kubernetes; `setpoint train ... --nproc "
            "N` trains on this machine"
        )
    if arguments.has("--config-from-stdin") or "-" in arguments.positional:
        raise SetpointError(
            "standard input does not reach the nodes of a cluster: save the configuration in a file"
        )
    time = arguments.value(TIME.name)
    if time is not None and not TIME_FORMAT.fullmatch(time):
        raise SetpointError(
            f"--time {time} is no time of Slurm.\nValid: minutes, hours:minutes:seconds as "
            f"24:00:00, or days-hours as 2-12"
        )
    if not by_slurm and not arguments.has(IMAGE.name):
        raise SetpointError("--kubernetes needs --image IMAGE, one with Setpoint and PyTorch")
    return by_slurm


def _volumes(arguments: Arguments, by_slurm: bool) -> list[tuple[str, str]]:
    volumes: list[tuple[str, str]] = []
    for text in arguments.values(VOLUME.name):
        name, _, path = text.rpartition(":")
        if not name or not path.startswith("/"):
            what = "/folder" if by_slurm else "claim"
            raise SetpointError(f"--volume {text} is no {what}:/path, as {what}:/data")
        volumes.append((name, path))
    return volumes
