"""The steps of a dry run, taken in earnest."""

from __future__ import annotations

from setpoint.dry_run import step
from setpoint.dry_run.meter import Meter, metering
from setpoint.dry_run.step import DryRun
from setpoint.parallel.world import World
from setpoint.plan.groups import vocabulary_of
from setpoint.train.build.components import Components, build_trained
from setpoint.train.config import Job


def measured_run(job: Job, world: World) -> DryRun:
    """Take the steps as this rank of those there are, with random weights."""
    meter = Meter(step._naming(world))
    with metering(meter):
        components = build_trained(job, Components(world), vocabulary_of(job))
        found = step._measured(job, world, components, meter, is_fake=False, whole=True)
    return step._run_of(world, found, 0.0)
