"""What shows a run to others while it runs: alerts, the endpoint for Prometheus, system samples."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from setpoint.config import fingerprint
from setpoint.parallel.world import World
from setpoint.track.progress import Progress
from setpoint.track.run_directory import RunDirectory
from setpoint.track.trackers import Trackers
from setpoint.train.config import Job

if TYPE_CHECKING:
    from setpoint.track.alerts import Alerts
    from setpoint.track.system import SystemSampler


def alerts_of(
    job: Job, world: World, run: Path, shown: Progress
) -> AbstractContextManager[Alerts | None]:
    """Open the alerts of a job, on its main rank.

    Raises:
        SetpointError: an address is not where its reference says.
    """
    if not job.tracking.alerts or not world.is_main:
        return nullcontext()
    from setpoint.track.alerts import Alerts

    facts = {"run": run.name, "fingerprint": fingerprint(job)}
    return Alerts(job.tracking.alerts, run, facts, shown.note)


def serve(job: Job, world: World, trackers: Trackers, shown: Progress) -> None:
    """Listen for Prometheus, on the main rank.

    Raises:
        SetpointError: it cannot listen there; on all ranks.
    """
    section = job.tracking.prometheus
    if section is None:
        return

    def begin() -> None:
        from setpoint.track.prometheus import PrometheusTracker

        tracker = PrometheusTracker(section)
        trackers.opened["prometheus"] = tracker
        shown.note(f"metrics for Prometheus: http://{section.address}:{tracker.port}/metrics")

    world.on_main(begin)


def sampling(
    job: Job, world: World, run: RunDirectory, shown: Progress
) -> AbstractContextManager[SystemSampler | None]:
    """Open what samples the use of the machine, on the ranks that do."""
    section = job.tracking.system
    if section is None or not (world.is_main or section.ranks == "all"):
        return nullcontext()
    import torch

    from setpoint.track.system import SystemSampler

    gpu = None
    if world.device.type == "cuda":
        gpu = f"GPU-{torch.cuda.get_device_properties(world.device).uuid}"
    name = "system.jsonl" if section.ranks == "main" else f"system-rank-{world.rank}.jsonl"
    return SystemSampler(section.every, run.logs / name, run.path, gpu, shown.note)
