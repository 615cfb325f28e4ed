"""Scripts that start a job on a cluster: the request, Slurm's sbatch, a Kubernetes manifest."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

from setpoint.config import RunError, SetpointError

MARGIN = 60
"""Seconds added to the grace period, in which a running save is finished."""


class JobRequest(NamedTuple):
    """A job on nodes of a cluster, with one launcher per node.

    Arguments:
        name: name for people and the scheduler.
        words: arguments of `setpoint train`, without the number of ranks and nodes.
        variables: assignments of environment variables before the command; may be empty.
        nodes: number of nodes.
        ranks: number of ranks per node.
        has_gpus: whether each rank has a GPU.
        cpus: cores per rank; None: the scheduler's default.
        image: the container image; None: the node's own files.
        volumes: mounted volumes with their paths in the image.
        setup: shell lines before the command.
        restarts: maximum number of restarts of the ranks.
        grace: seconds for a stop, as `resilience.grace_period`.
        interpreter: Python interpreter without an image.
    """

    name: str
    words: Sequence[str]
    variables: str
    nodes: int
    ranks: int
    has_gpus: bool
    cpus: int | None = None
    image: str | None = None
    volumes: Sequence[tuple[str, str]] = ()
    setup: Sequence[str] = ()
    restarts: int | None = None
    grace: float = 120.0
    interpreter: str = "python"

    @property
    def notice(self) -> int:
        """Seconds between the warning signal and the end of the job."""
        return ceil(self.grace) + MARGIN

    def command(self, endpoint: str, run_id: str, restarts: bool = True) -> str:
        """The shell command that each node runs.

        Arguments:
            endpoint, run_id: shell words, with variables.
            restarts: whether the launcher itself restarts ranks.
        """
        python = "python" if self.image is not None else shlex.quote(self.interpreter)
        words = f"exec env {self.variables}{python} -m setpoint train {shlex.join(self.words)}"
        words += f" --nproc {self.ranks}"
        if self.nodes > 1:
            words += f" --nnodes {self.nodes} --rdzv-endpoint {endpoint} --rdzv-id {run_id}"
        if restarts and self.restarts is not None:
            words += f" --max-restarts {self.restarts}"
        return words


def seconds_of(time: str) -> int:
    """Convert M, M:S, H:M:S, D-H, D-H:M or D-H:M:S of Slurm to seconds; 0: unlimited."""
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash or len(parts) == 3:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    else:
        hours, minutes, seconds = [0, *parts, 0][:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def batch_script(
    request: JobRequest,
    folder: str,
    output: str,
    limits: Mapping[str, str],
    more: Sequence[str] = (),
) -> str:
    """Write the script of a job: one task per node, which starts the ranks there.

    A stop that has saved everything (status 75) requeues the job; its next run resumes. Slurm
    announces the end of the time limit with SIGTERM to the tasks, as does a preemption.

    Arguments:
        folder: working directory of the command.
        output: file of the output; `%j` stands for the number of the job.
        limits: options of sbatch by name, such as `time` and `partition`.
        more: further options, as written after `#SBATCH`.
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
    # Run by `srun bash -c`, which also has the variables of the job.
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
    """Submit a script, and return the job number.

    Raises:
        SetpointError: there is no Slurm on this machine.
        RunError: Slurm refuses the job; the error includes its message.
    """
    import subprocess  # slow to import, and not needed to print a script

    try:
        done = subprocess.run(
            ["sbatch", "--parsable", path], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise SetpointError(
            f"there is no command sbatch on this machine; {path} was written, and can be "
            f"submitted on a Slurm cluster with `sbatch {shlex.quote(path)}`"
        ) from None
    if done.returncode:
        raise RunError(f"sbatch rejected {path}: {done.stderr.strip() or done.stdout.strip()}")
    # With several clusters: number;cluster.
    return done.stdout.strip().partition(";")[0]


PORT = 29400
"""The rendezvous port, that of torchrun."""
RESTARTS = 10
"""The number of restarts of failed pods; one that was preempted has failed, too."""
LONGEST = 40
"""Characters of a name, to which Kubernetes adds those of pods, 63 in all."""


def manifest(request: JobRequest, kind: str, namespace: str | None = None) -> dict[str, Any]:
    """Describe a job with one pod per node, as a `pytorchjob` or `jobset`.

    Without a namespace that of the kubectl context applies.
    """
    name = name_of(request.name)
    meta = {"name": name} | ({} if namespace is None else {"namespace": namespace})
    restarts = RESTARTS if request.restarts is None else request.restarts
    if kind == "pytorchjob":
        # The operator names variables as torchrun does for ranks, but a pod is not a rank.
        unset = "unset RANK WORLD_SIZE\n"
        pod = _pod(request, f'"$MASTER_ADDR:{PORT}"', unset, "pytorch")
        replica = {"restartPolicy": "OnFailure", "template": {"spec": pod}}
        replicas = {"Master": {"replicas": 1, **replica}}
        if request.nodes > 1:
            replicas["Worker"] = {"replicas": request.nodes - 1, **replica}
        policy = {"cleanPodPolicy": "Running", "backoffLimit": restarts}
        spec: dict[str, Any] = {"runPolicy": policy, "pytorchReplicaSpecs": replicas}
        return {
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": meta, "spec": spec
        }  # fmt: skip
    first = f"{name}-node-0-0.{name}"
    pod = {**_pod(request, f"{first}:{PORT}", "", "train"), "restartPolicy": "Never"}
    job = {
        "parallelism": request.nodes,
        "completions": request.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": meta,
        "spec": {
            "failurePolicy": {"maxRestarts": restarts},
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}],
        },
    }


def name_of(text: str) -> str:
    """A valid Kubernetes name: lowercase, digits and hyphens, a letter first."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    named = plain if plain[:1].isalpha() else f"run-{plain}"
    # The fingerprint at the end tells runs apart.
    return named if len(named) <= LONGEST else f"{named[: LONGEST - 9].strip('-')}-{named[-8:]}"


def _pod(request: JobRequest, endpoint: str, before: str, container: str) -> dict[str, Any]:
    lines = [*request.setup, request.command(endpoint, name_of(request.name), False)]
    limits: dict[str, Any] = {}
    if request.has_gpus:
        limits["nvidia.com/gpu"] = request.ranks
    if request.cpus is not None:
        limits["cpu"] = request.cpus * request.ranks
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    for number, (claim, path) in enumerate(request.volumes):
        mounts.append({"name": f"volume-{number}", "mountPath": path})
        source = {"persistentVolumeClaim": {"claimName": claim}}
        volumes.append({"name": f"volume-{number}", **source})
    return {
        "terminationGracePeriodSeconds": request.notice,
        "containers": [
            {
                "name": container,
                "image": request.image,
                "command": ["bash", "-c", before + "\n".join(lines)],
                **({"resources": {"limits": limits}} if limits else {}),
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }
