"""The resume contract: compares a run's record with the current configuration, by field role.

A refusal gives both values, their origins, and the command to type.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from setpoint.checkpoint.folder import list_checkpoints
from setpoint.config import (
    ABSENT,
    BUDGET,
    DERIVED,
    IDENTITY,
    MINIMAL,
    PROGRAM,
    SetpointError,
    all_fields,
    leaves,
    nearest,
    read_record,
    resolve,
)
from setpoint.config.record.record import Difference, changes_since_record
from setpoint.config.values.origin import COMMAND_LINE
from setpoint.config.words.names import within
from setpoint.data.config import BYTES_VOCABULARY
from setpoint.model.config import ModelConfig, TransformerConfig
from setpoint.model.parameters import parameters_of
from setpoint.precision.config import LossScale
from setpoint.train.config import BatchConfig, Job
from setpoint.train.run_status import FINISHED, lengthened_from, run_status
from setpoint.units import Duration

CHANGES = ("gone", "new", "changed")

MANY = 8
"""Number of values above which the suggested command accepts their sections."""

RULE = r"optimizer\.(groups(\.\d+(\.pattern)?)?|no_decay|no_decay_patterns|adamw_patterns)(\.\d+)?"
"""The fields that assign parameters to optimizer groups."""


class ContractRefused(SetpointError):
    """A refused resume that `--accept` would allow.

    Arguments:
        command: command that resumes the run with `--accept`; the command line adds the other words
            typed.
    """

    def __init__(self, message: str, command: str, paths: Sequence[str]) -> None:
        super().__init__(message)
        self.command = command
        self.paths = tuple(paths)


class ShorterDuration(SetpointError):
    """A duration that is shorter than the one recorded in the run's directory."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """Accepted differences from a record.

    Arguments:
        differences: raised budgets, run-time settings, and identity fields accepted by name.
        notes: changes since the record's schema.
        data: the differing documents, by split.
        added: identity fields that are newer than the record, at their defaults.
    """

    differences: list[Difference]
    idle: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    data: tuple[dict[str, Any], ...] = ()
    added: tuple[Difference, ...] = ()

    @property
    def learned(self) -> bool:
        """True if an identity field or the data differs."""
        return bool(self.data) or any(item.role is IDENTITY for item in self.differences)

    def has(self, path: str) -> bool:
        """True if a field, or any field inside a section, differs."""
        return any(within(item.path, path) for item in self.differences)


def split_paths(accept: Sequence[str]) -> list[str]:
    """Split the values of `--accept`, which may be comma-separated lists."""
    return [part for text in accept for part in text.split(",")]


def accepted_path(path: str, job: Job, differences: Sequence[Difference]) -> str:
    """Normalize a path given to `--accept`.

    Raises:
        SetpointError: there is no such field or section.
    """
    spelled = path.strip().replace("-", "_")
    declared = [name for name, _ in all_fields(Job)]
    keys = [leaf.key for leaf in leaves(job)] + [item.path for item in differences]
    present = {*keys, *(key.rpartition(".")[0] for key in keys)} - {""}
    known = {*declared, *present}
    if spelled in known:
        return spelled
    # Fields of other variants are not part of this run.
    close = nearest(spelled, sorted(present), 1)
    if not close:
        words = {name.rpartition(".")[2]: name for name in reversed([*keys, *declared])}
        close = [words[word] for word in nearest(spelled.rpartition(".")[2], words, 1)]
    hint = f" Did you mean {close[0]}?" if close else ""
    changed = [item.path for item in differences if item.role is IDENTITY]
    valid = f"fields that differ from the record: {', '.join(changed)}"
    sections = sorted({name.partition(".")[0] for name in present})
    raise SetpointError(
        f"--accept {path}: the configuration has no such field or section.{hint}\n"
        f"Valid: {valid if changed else 'a field or section such as ' + ', '.join(sections[:6])}"
    )


def refuse_renaming(folder: str, accepted: Accepted) -> None:
    """Refuse to rename or move a run whose directory was given.

    Arguments:
        accepted: the result of `check_contract`.

    Raises:
        SetpointError: names the field, which would have no effect.
    """
    for item in accepted.differences:
        if item.path in ("name", "experiment", "workspace"):
            raise SetpointError(
                f"{item.path} = {_value_text(item.right, item.right_origin)} has no effect: the "
                f"run is the one in {folder}. Remove it, or train a preset or file under the new "
                f"name"
            )


def describe_accepted(accepted: Accepted) -> list[str]:
    """The accepted differences as lines.

    Arguments:
        accepted: the result of `check_contract`.

    Returns:
        a line for each identity field and budget, one for all run-time settings, one for all fields
        that the record lacks, and one for each path without a difference.
    """
    lines = list(accepted.notes)
    runtime: list[str] = []
    for item in accepted.differences:
        change = f"{item.path}: {plain(item.left)} -> {plain(item.right)}"
        if item.role is IDENTITY:
            origin = f" ({_origin_text(item.right_origin)})" if item.right_origin else ""
            lines.append(f"accepted by --accept: {change}{origin}")
        elif item.role is BUDGET:
            lines.append(f"accepted: {change} ({_origin_text(item.right_origin)})")
        else:
            runtime.append(change)
    lines += [f"accepted by --accept: {describe_data(side)}" for side in accepted.data]
    if runtime:
        lines.append(f"run-time settings that changed: {', '.join(runtime)}")
    if accepted.added:
        values = ", ".join(f"{item.path} = {plain(item.right)}" for item in accepted.added)
        lines.append(f"newer than the record, at their defaults: {values}")
    return lines + describe_idle(accepted)


def describe_data(side: Mapping[str, Any], what: str = "documents") -> str:
    """Format the documents or input files in which a split of the data differs.

    Arguments:
        side: an entry of `Accepted.data`.
    """
    kinds = [kind for kind in CHANGES if side[kind]]
    names = [
        name if len(kinds) == 1 else f"{name} ({kind})" for kind in kinds for name in side[kind]
    ]
    counts = [f"{len(side[kind])} {kind}" for kind in kinds]
    shown = ", ".join(names[:5]) + (f", and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{what} of {side['side']}: {', '.join(counts) or 'other tokens'}" + (
        f": {shown}" if names else ""
    )


def describe_idle(accepted: Accepted) -> list[str]:
    """Lines about paths given to `--accept` that do not differ.

    Arguments:
        accepted: the result of `check_contract`.
    """
    return [f"--accept {path}: nothing there differs from the record" for path in accepted.idle]


def _origin_text(origin: str) -> str:
    """An origin preceded by `from`, unless it is a derivation."""
    return origin if origin.startswith(DERIVED) else f"from {origin}"


LOSS_SCALE = "precision.loss_scale.initial"
AT_START = (
    "model.pretrained",
    "model.init_std",
    "model.init_std_embedding",
    "model.init_std_output",
    "model.residual_init",
    "adapter.b_std",
    "checkpoint.load",
    "checkpoint.exclude",
    LOSS_SCALE,
)
"""Fields that are used only at the start of a run."""

ROWS = (
    "batch.sequence_length",
    "data.packing.method",
    "data.packing.too_long",
    "data.packing.group_size",
    "data.packing.length_buckets",
    "data.shuffle",
    "data.curriculum",
    "data.shuffle_buffer",
)
"""Fields and sections that determine the rows; the data position of a checkpoint is in rows."""
OF_ROWS = ("seed", "batch.sequence_length", "batch.global_size")
"""Fields outside of the section `data` that may affect rows."""


def check_contract(
    folder: str, job: Job, accept: Sequence[str] = (), given: bool = True
) -> Accepted:
    """Compare a run's record with the current configuration, field by field and by role.

    Arguments:
        accept: fields and sections whose identity fields may differ, as given to `--accept`.

    Raises:
        SetpointError: an identity field differs and is not accepted, the budget shrinks, or a path
            to accept is invalid.
    """
    differences, added, notes = changes_since_record(folder, job)
    paths = [accepted_path(path, job, differences) for path in accept]
    for item in differences:
        if item.path == "duration" and _shrinks(item.left, job):
            raise ShorterDuration(shorter(folder, item, given))
    identity = [difference for difference in differences if difference.role is IDENTITY]
    refused = [item for item in identity if not any(within(item.path, path) for path in paths)]
    has_checkpoints = bool(identity) and bool(list_checkpoints(Path(folder, "checkpoints")))
    obstacle = _obstacle(folder, job, identity) if has_checkpoints else None
    if refused or obstacle is not None:
        shown = refused if obstacle is None else identity
        if obstacle is None and has_checkpoints:
            obstacle = _other_optimizer(refused)
        longer = [item for item in differences if item.role is BUDGET]
        raise identity_refusal(folder, shown, given, obstacle, longer)
    kept = [item for item in differences if item.left is not ABSENT or item.role is IDENTITY]
    idle = [path for path in paths if not any(within(item.path, path) for item in identity)]
    new = [item for item in added if item.role is IDENTITY]
    return Accepted(kept, tuple(idle), tuple(notes), added=tuple(new))


def recorded_job(folder: str) -> Job:
    """The job in a record.

    Raises:
        SetpointError: the record cannot be read.
    """
    return resolve(read_record(Job, folder)[0])


def _obstacle(folder: str, job: Job, identity: Sequence[Difference]) -> str | None:
    """Reason why a run with checkpoints cannot be resumed even if the differences are accepted."""
    in_model = any(within(item.path, "model") for item in identity)
    saved = recorded_job(folder) if in_model or _row_paths(identity) else None
    shape = None if saved is None or not in_model else _other_shape(saved.model, job.model)
    if shape is not None:
        return f"the checkpoints have weights of another shape: {shape}."
    if late := [item.path for item in _too_late(identity)]:
        verb = "are" if len(late) > 1 else "is"
        return f"{' and '.join(late)} {verb} used at the start of a run only."
    if saved is not None and (moved := moved_rows(saved, job, identity)):
        option = shlex.join(["--model.pretrained", folder])
        return (
            f"the run has a checkpoint, {other_rows(moved)}.\n"
            f"  To train these weights with other rows: a separate run with {option}"
        )
    return None


def _other_optimizer(refused: Sequence[Difference]) -> str | None:
    """Reason why the optimizer state of the checkpoints does not match; None if it may match."""
    paths = [item.path for item in refused]
    if "optimizer.type" in paths or "optimizer.target" in paths:
        return "the checkpoints have the state of another optimizer."
    if any(re.fullmatch(RULE, path) for path in paths):
        return "the checkpoints have the state of other parameter groups."
    return None


def _other_shape(saved: ModelConfig, model: ModelConfig) -> str | None:
    """Name a weight of the checkpoints that does not match the current model; None if all match."""
    shapes: list[dict[str, tuple[int, ...]]] = []
    for config in (saved, model):
        if not isinstance(config, TransformerConfig) or not config.parameters_known:
            return None
        # A vocabulary size from the tokenizer is the same on both sides.
        shapes.append(
            {
                parameter.name: parameter.shape
                for parameter in parameters_of(config, BYTES_VOCABULARY)
            }
        )
    before, now = shapes
    for name in (*before, *now):
        left, right = before.get(name), now.get(name)
        if left is None:
            return f"{name} is not there"
        if left != right:
            today = "not in the model" if right is None else f"{' x '.join(map(str, right))} here"
            return f"{name} is {' x '.join(map(str, left))} there, and {today}"
    return None


def _row_paths(identity: Sequence[Difference]) -> list[str]:
    """The differing fields that may affect rows."""
    return [item.path for item in identity if within(item.path, "data") or item.path in OF_ROWS]


def moved_rows(saved: Job, job: Job, identity: Sequence[Difference]) -> list[str]:
    """The fields that change the order of rows, compared with a recorded job.

    Arguments:
        identity: the identity differences from the recorded job.
    """
    row_paths = _row_paths(identity)
    if not row_paths:
        return []
    moved = [field for field in ROWS if any(within(path, field) for path in row_paths)]
    moved += [
        item.path
        for item in identity
        if within(item.path, "data.sources")
        and item.path.endswith(".streaming")
        and (item.left is True) is not (item.right is True)  # false if the source is absent
    ]
    if job.data.packing.length_buckets and "batch.global_size" in row_paths:
        moved.append("batch.global_size")
    before, now = (
        config.seed if config.data.seed is None else config.data.seed for config in (saved, job)
    )
    if before != now:
        moved += [path for path in ("seed", "data.seed") if path in row_paths]
    if saved.data.is_mixture != job.data.is_mixture:
        moved += [path for path in row_paths if path.endswith(".weight")] or ["data.sources"]
    return moved


def refuse_resharding(folder: str, job: Job) -> None:
    """Refuse parallel degrees that differ from those of a recorded job.

    Raises:
        SetpointError: names the degrees that differ.
    """
    before, now = (
        {"world_size": parallel.world_size, **parallel.degrees}
        | {"expert": parallel.expert, "expert_tensor": parallel.expert_tensor}
        for parallel in (recorded_job(folder).parallel, job.parallel)
    )
    changes = [
        f"parallel.{axis} = {now[axis]}, not {before[axis]}"
        for axis in now
        if now[axis] != before[axis]
    ]
    if changes:
        raise SetpointError(
            f"{folder} was trained with other parallel degrees, and checkpoint.resharding = "
            f"refuse: {'; '.join(changes)}.\nValid: the same degrees, or checkpoint.resharding = "
            f"allow"
        )


def _too_late(identity: Sequence[Difference]) -> list[Difference]:
    """The differences that have no effect after a resume from a checkpoint."""
    formats_differ = any(item.path == "precision.compute" for item in identity)
    default = LossScale().initial

    def is_late(item: Difference) -> bool:
        sides = item.left, item.right
        if item.path != LOSS_SCALE:
            return ABSENT not in sides
        # Without the section the scale starts at the default; other formats have none.
        left, right = (default if side is ABSENT else side for side in sides)
        return not formats_differ and left != right

    return [item for item in identity if item.path in AT_START and is_late(item)]


def _shrinks(recorded: object, job: Job) -> bool:
    """True if a limit is lower than before; steps are converted to tokens.

    A limit in a unit that the record lacks is allowed.
    """
    before = _in_tokens(Duration.read(recorded), job.batch)
    now = _in_tokens(job.duration, job.batch)
    return any(now[unit] < before[unit] for unit in now if unit in before)


def _in_tokens(duration: Duration, batch: BatchConfig) -> dict[str, float]:
    limits: dict[str, float] = {}
    for limit in duration.limits:
        steps = limit.unit == "steps"
        unit = "tokens" if steps else limit.unit
        count = limit.count
        if steps:
            count = batch.sequences_before(int(count)) * batch.sequence_length
        limits[unit] = min(count, limits.get(unit, count))
    return limits


def shorter(folder: str, item: Difference, given: bool) -> str:
    """Error text for a shorter duration: progress of the run, and the command to use instead."""
    run = shlex.quote(folder)
    command = "the same command with --name NAME"
    if given:
        file = shlex.quote(str(Path(folder, MINIMAL)))
        command = f"setpoint train {file} --duration {_as_argument(item.right)} --name NAME"
    original = lengthened_from(folder, item.left)
    extended_from = "" if original is None else f", lengthened from {original}"
    status = run_status(folder)
    if status.startswith(FINISHED):
        advice = f"  {folder} {status}; nothing is left to train.\n"
    else:
        advice = f"  {folder} {status}.\n  To resume it: setpoint train {run}\n"
    return (
        f"{folder} cannot be resumed: a budget may grow, not shrink\n\n"
        f"  duration\n"
        f"    saved      {_value_text(item.left, item.left_origin)}{extended_from}\n"
        f"    requested  {_value_text(item.right, item.right_origin)}\n\n"
        f"{advice}"
        f"  To train the shorter one from the start: {command}"
    )


def identity_refusal(
    folder: str,
    refused: Sequence[Difference],
    given: bool,
    obstacle: str | None = None,
    longer: Sequence[Difference] = (),
) -> SetpointError:
    """Error for a resume with different identity values, with the command to use instead.

    Arguments:
        given: whether the run directory was given rather than found by fingerprint.
        obstacle: reason why `--accept` does not help, as a sentence; None if it does.
        longer: budget differences, which are allowed.
    """
    lines = [
        f"{folder} cannot be resumed: {len(refused)} identity value{'s' * (len(refused) != 1)} "
        f"differ{'s' * (len(refused) == 1)} from the record",
        "",
    ]
    for item in (*longer, *refused):
        lines.append(f"  {item.path}" + " (may be raised on resume)" * (item in longer))
        lines.append(f"    saved      {_value_text(item.left, item.left_origin)}")
        lines.append(f"    requested  {_value_text(item.right, item.right_origin)}")
    run = shlex.quote(folder)
    lines.append("")
    if given:
        file = shlex.quote(f"{folder}/config.toml")
        lines.append(f"  Undo the change, or train a separate run: the same command with {file}")
    else:
        lines.append(f"  To resume it as it was saved: setpoint train {run}")
        lines.append("  To train a new run: the same command with --name NAME")
    paths, command = _accept_paths(refused), ""
    if obstacle is not None:
        lines.append(f"  --accept does not help: {obstacle}")
    else:
        words: list[str] = []
        for item in (*longer, *refused):
            origin = item.right_origin
            is_typed = origin.startswith((f"{PROGRAM} (", COMMAND_LINE))
            if is_typed if given else not origin.startswith(DERIVED):
                words.append(f"--{item.path} {_as_argument(item.right)}")
        command = " ".join([f"setpoint train {run}", *words, f"--accept {','.join(paths)}"])
        lines.append(f"  To resume this run anyway: {command}")
    if any(item.path == "schedule.evaluated_on" for item in refused):
        lines.append(
            "  schedule.evaluated_on follows from the section evaluation: a plateau schedule "
            "depends on the evaluated data and the evaluation interval."
        )
    for item in refused:
        if item.path == "schedule.horizon" and isinstance(item.left, str | list):
            text = ", ".join(item.left) if isinstance(item.left, list) else item.left
            share = " --schedule.horizon_share null" * ("horizon_share" in item.right_origin)
            lines.append(
                "  To stay on the recorded learning-rate curve, add "
                f'--schedule.horizon "{text}"{share}.'
            )
    return ContractRefused("\n".join(lines), command, paths)


def other_rows(paths: Sequence[str]) -> str:
    """Ending of the message about a checkpoint whose data position refers to different rows."""
    single = len(paths) == 1
    return (
        f"whose data position counts rows, and {', '.join(paths)} "
        f"{'changes' if single else 'change'} the rows"
    )


def _accept_paths(refused: Sequence[Difference]) -> list[str]:
    """Paths to accept: the paths of the values or, if there are many, of their sections."""
    paths = [item.path for item in refused]
    if len(paths) > MANY:
        paths = list(dict.fromkeys(path.partition(".")[0] for path in paths))
    return paths


def _as_argument(value: object) -> str:
    """A value as typed after a flag."""
    if value is ABSENT:
        return "null"
    return shlex.quote(value if isinstance(value, str) else json.dumps(value))


def _value_text(value: object, origin: str) -> str:
    is_word = value is None or isinstance(value, bool)
    text = "(absent)" if value is ABSENT else plain(value) if is_word else repr(value)
    return f"{text} ({origin})" if origin else text


def plain(value: object) -> str:
    """A value as shown in a sentence."""
    if value is None or value is ABSENT:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
