"""The steps of a dry run, taken in earnest."""

from setpoint.parallel.world import World
from setpoint.plan import dry_run
from setpoint.plan.dry_run import DryRun
from setpoint.plan.meter import Meter, metering
from setpoint.plan.workload import vocabulary_of
from setpoint.train.build.components import Components, build_trained
from setpoint.train.config import Job


def measured_run(job: Job, world: World) -> DryRun:
    """Take the steps as this rank of those there are, with random weights."""
    meter = Meter(dry_run._naming(world))
    with metering(meter):
        components = build_trained(job, Components(world), vocabulary_of(job))
        found = dry_run._measured(job, world, components, meter, is_fake=False, all_layers=True)
    return dry_run._run_of(world, found, 0.0)
