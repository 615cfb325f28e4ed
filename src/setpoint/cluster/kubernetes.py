"""Manifests of Kubernetes: a PyTorchJob of the Kubeflow Trainer, or a JobSet."""

from __future__ import annotations

import re
from typing import Any

from setpoint.cluster.request import Request

PORT = 29400
"""The rendezvous port, that of torchrun."""
RESTARTS = 10
"""The number of restarts of failed pods; one that was preempted has failed, too."""
LONGEST = 40
"""Characters of a name, to which Kubernetes adds those of pods, 63 in all."""


def manifest(request: Request, kind: str, namespace: str | None = None) -> dict[str, Any]:
    """Describe a job, one pod on each node.

    Arguments:
        kind: `pytorchjob` or `jobset`.
        namespace: None for that of the context of kubectl.

    Returns:
        the manifest, to be written as YAML or JSON.
    """
    name = name_of(request.name)
    meta = {"name": name} | ({} if namespace is None else {"namespace": namespace})
    restarts = RESTARTS if request.restarts is None else request.restarts
    if kind == "pytorchjob":
        # The operator names variables as torchrun does for ranks, and a pod is none.
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
    """A name that Kubernetes takes: lower case, digits and hyphens, a letter first."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    named = plain if plain[:1].isalpha() else f"run-{plain}"
    # The fingerprint at the end tells runs apart.
    return named if len(named) <= LONGEST else f"{named[: LONGEST - 9].strip('-')}-{named[-8:]}"


def _pod(request: Request, endpoint: str, before: str, container: str) -> dict[str, Any]:
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
