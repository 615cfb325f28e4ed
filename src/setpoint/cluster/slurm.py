"""Batch scripts of Slurm, and their submission."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from setpoint.cluster.request import Request
from setpoint.config import RunError, SetpointError


def seconds_of(time: str) -> int:
    """The seconds of a time as Slurm writes it; 0: without a limit.

    Arguments:
        time: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S.
    """
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash or len(parts) == 3:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    else:
        hours, minutes, seconds = [0, *parts, 0][:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def batch_script(
    request: Request, folder: str, output: str, limits: Mapping[str, str], more: Sequence[str] = ()
) -> str:
    """Write the script of a job: one task on each node, which starts the ranks there.

    A stop that has saved everything (status 75) puts the job back into the queue; its next run
    resumes. Slurm announces the end of the time by SIGTERM to the tasks, and so does a preemption.

    Arguments:
        folder: where the command runs.
        output: file of what is printed; `%j` stands for the number of the job.
        limits: options of sbatch by their names, such as `time` and `partition`.
        more: further options, as they stand behind `#SBATCH`.
    """
    options = {
        "job-name": request.name,
        "nodes": str(request.nodes),
        "ntasks-per-node": "1",
        "output": output,
        "open-mode": "append",
        "signal": f"TERM@{request.notice}",
    }
    if request.has_gpus:
        options["gpus-per-node"] = str(request.ranks)
    if request.cpus is not None:
        options["cpus-per-task"] = str(request.cpus * request.ranks)
    lines = [f"--{name}={value}" for name, value in {**options, **limits}.items()]
    srun = ["srun", "--kill-on-bad-exit=0"]
    if request.cpus is not None:
        srun.append(f"--cpus-per-task={request.cpus * request.ranks}")
    if request.image is not None:
        mounts = [(folder, folder), *request.volumes]
        srun += [
            f"--container-image={shlex.quote(request.image)}",
            f"--container-mounts={shlex.quote(','.join(f'{at}:{to}' for at, to in mounts))}",
            f"--container-workdir={shlex.quote(folder)}",
        ]
    # What `srun bash -c` runs: variables of the job are known there, too.
    inner = request.command('"$SETPOINT_ENDPOINT"', '"$SETPOINT_JOB"')
    meeting = [
        "# Rendezvous: the first node, at a port of this job.",
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        'export SETPOINT_ENDPOINT="$first:$((20000 + SLURM_JOB_ID % 20000))"',
        'export SETPOINT_JOB="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"',
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {line}" for line in [*lines, "--requeue", *more]),
            "",
            f"cd {shlex.quote(folder)} || exit 1",
            *request.setup,
            "",
            *(meeting if request.nodes > 1 else []),
            "trap : TERM  # the tasks get it as well, and this script waits for them",
            f"{' '.join(srun)} bash -c {shlex.quote(inner)}",
            "status=$?",
            'if [ "$status" -eq 75 ]; then  # stopped with everything saved',
            '    scontrol requeue "$SLURM_JOB_ID"',
            "fi",
            'exit "$status"',
            "",
        ]
    )


def submit(path: str) -> str:
    """Submit a script.

    Returns:
        the number of the job.

    Raises:
        SetpointError: there is no Slurm on this machine.
        RunError: Slurm refuses the job, with what it says.
    """
    import subprocess  # slow to import, and printing a script takes none of it

    try:
        done = subprocess.run(
            ["sbatch", "--parsable", path], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise SetpointError(
            f"there is no command sbatch on this machine; {path} is written, and can be submitted "
            f"where Slurm is, with `sbatch {shlex.quote(path)}`"
        ) from None
    if done.returncode:
        raise RunError(f"sbatch has refused {path}: {done.stderr.strip() or done.stdout.strip()}")
    # With several clusters: number;cluster.
    return done.stdout.strip().partition(";")[0]
