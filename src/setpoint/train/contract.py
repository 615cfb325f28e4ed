"""The resume contract: what may differ between a run's record and today's configuration."""

from __future__ import annotations

from setpoint.config import BUDGET, IDENTITY, Duration, SetpointError
from setpoint.config.difference import ABSENT, Difference
from setpoint.config.record import recorded_differences
from setpoint.train.config import Job


def check_contract(folder: str, job: Job) -> list[Difference]:
    """Compare a run's record with today's configuration, field by field under each role.

    Arguments:
        folder: the run directory.
        job: today's resolved configuration.

    Returns:
        the differences that are accepted: longer budgets and run-time settings.

    Raises:
        SetpointError: with the differences, if an identity field differs or the budget shrinks.
    """
    found = recorded_differences(folder, job)
    for item in found:
        if item.path == "duration" and _shrinks(item.left, job):
            before = _side(item.left, item.left_origin)
            today = _side(item.right, item.right_origin)
            raise SetpointError(
                f"{folder} cannot be resumed: its duration was {before} and is now {today}; a "
                f"budget may grow, not shrink. Ctrl-C stops a run early, with a checkpoint saved"
            )
    refused = [difference for difference in found if difference.role is IDENTITY]
    if refused:
        lines = [
            f"{folder} cannot be resumed: {len(refused)} value{'s' * (len(refused) != 1)} of what "
            f"is learned differ from its record",
            "",
        ]
        for item in refused:
            lines.append(f"  {item.path}")
            lines.append(f"    recorded  {_side(item.left, item.left_origin)}")
            lines.append(f"    today     {_side(item.right, item.right_origin)}")
        lines += [
            "",
            "  Take the change back, or train it as a run of its own from a preset or file.",
        ]
        if any(item.path == "schedule.horizon_steps" for item in refused):
            recorded = next(i.left for i in refused if i.path == "schedule.horizon_steps")
            lines.append(
                f"  To go on along the recorded learning-rate curve, add "
                f"--schedule.horizon_steps {recorded}."
            )
        raise SetpointError("\n".join(lines))
    return [difference for difference in found if difference.left is not ABSENT]


def refuse_renaming(folder: str, accepted: list[Difference]) -> None:
    """Refuse to give a run another name or place while its directory is given as well.

    Arguments:
        folder: the run directory.
        accepted: what `check_contract` returned.

    Raises:
        SetpointError: naming the field, which would have no effect.
    """
    for item in accepted:
        if item.path in ("name", "experiment", "workspace"):
            raise SetpointError(
                f"{item.path} = {item.right!r} ({item.right_origin}) has no effect: the run is "
                f"that of {folder}. Leave it out, or train a preset or file under the new name"
            )


def describe_accepted(accepted: list[Difference]) -> list[str]:
    """The accepted differences as lines for people.

    Arguments:
        accepted: what `check_contract` returned.

    Returns:
        one line for each budget that changed; settings of the run time go without saying.
    """
    return [
        f"{item.path}: {item.left} -> {item.right} (from {item.right_origin})"
        for item in accepted
        if item.role is BUDGET
    ]


def _shrinks(recorded: object, job: Job) -> bool:
    """Whether a limit is lower than it was; updates and tokens are the same thing, counted apart.

    A limit in a unit that the record does not know is one more way to end a session, and fine.
    """
    tokens_per_update = job.batch.global_size * job.batch.sequence_length
    before = _in_tokens(Duration.read(recorded), tokens_per_update)
    now = _in_tokens(job.duration, tokens_per_update)
    return any(now[unit] < before[unit] for unit in now if unit in before)


def _in_tokens(duration: Duration, tokens_per_update: int) -> dict[str, float]:
    limits: dict[str, float] = {}
    for limit in duration.limits:
        steps = limit.unit == "steps"
        unit = "tokens" if steps else limit.unit
        count = limit.count * tokens_per_update if steps else limit.count
        limits[unit] = min(count, limits.get(unit, count))
    return limits


def _side(value: object, origin: str) -> str:
    text = "(absent)" if value is ABSENT else repr(value)
    return f"{text} ({origin})" if origin else text
