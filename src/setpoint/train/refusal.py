"""Error text of a refused resume: both values, their origins, and the command to type."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from setpoint.config import ABSENT, DERIVED, MINIMAL, SetpointError
from setpoint.config.record.record import Difference
from setpoint.train.run_status import FINISHED, lengthened_from, run_status

MANY = 8
"""Number of values above which the suggested command accepts their sections."""

RULE = r"optimizer\.(groups(\.\d+(\.pattern)?)?|no_decay|no_decay_patterns|adamw_patterns)(\.\d+)?"
"""The fields that assign parameters to optimizer groups."""


class ContractRefused(SetpointError):
    """A refused resume that `--accept` would let pass.

    Arguments:
        command: resumes the run with `--accept`; the command line adds what was typed.
    """

    def __init__(self, message: str, command: str, paths: Sequence[str]) -> None:
        super().__init__(message)
        self.command = command
        self.paths = tuple(paths)


class ShorterDuration(SetpointError):
    """A duration that is shorter than that of the run in its directory."""


def shorter(folder: str, item: Difference, given: bool) -> str:
    """Error text for a shorter duration: progress of the run, and the command to type instead."""
    run = shlex.quote(folder)
    anew = "the same command with --name NAME"
    if given:
        file = shlex.quote(str(Path(folder, MINIMAL)))
        anew = f"setpoint train {file} --duration {_typed(item.right)} --name NAME"
    begun = lengthened_from(folder, item.left)
    was = "" if begun is None else f", lengthened from {begun}"
    there = run_status(folder)
    if there.startswith(FINISHED):
        then = f"  {folder} {there}; nothing is left to train.\n"
    else:
        then = f"  {folder} {there}.\n  To resume it: setpoint train {run}\n"
    return (
        f"{folder} cannot be resumed: a budget may grow, not shrink\n\n"
        f"  duration\n"
        f"    saved      {_side(item.left, item.left_origin)}{was}\n"
        f"    requested  {_side(item.right, item.right_origin)}\n\n"
        f"{then}"
        f"  To train the shorter one anew: {anew}"
    )


def identity_refusal(
    folder: str,
    refused: list[Difference],
    late: list[Difference],
    given: bool,
    reshaped: str | None = None,
    moved: Sequence[str] = (),
    longer: Sequence[Difference] = (),
) -> SetpointError:
    """Error for a resume with other identity values, with the command to type instead.

    Arguments:
        late: the differences in fields used only at the start of a run.
        given: True if the run directory was named, rather than found by the fingerprint.
        reshaped: misfit of the checkpoints' weights and the model; None where they may fit.
        moved: fields that change the order of the rows.
        longer: budget differences, which are allowed.
    """
    lines = [
        f"{folder} cannot be resumed: {len(refused)} identity value{'s' * (len(refused) != 1)} "
        f"differ{'s' * (len(refused) == 1)} from its record",
        "",
    ]
    for item in (*longer, *refused):
        lines.append(f"  {item.path}" + " (may be raised on resume)" * (item in longer))
        lines.append(f"    saved      {_side(item.left, item.left_origin)}")
        lines.append(f"    requested  {_side(item.right, item.right_origin)}")
    run = shlex.quote(folder)
    lines.append("")
    if given:
        lines.append(
            "  Take the change back, or train it as a run of its own from a preset or file."
        )
    else:
        lines.append(f"  To resume it as it was saved: setpoint train {run}")
        lines.append("  To train a new run: the same command with --name NAME")
    paths, command = _accepting(refused), ""
    reason = _reason_not_acceptable(refused, late)
    if reshaped is not None:
        reason = f"the checkpoints hold weights of another shape: {reshaped}"
    elif reason is None and moved:
        reason = f"the run has a checkpoint, {other_rows(moved)}"
    if reason is not None:
        lines.append(f"  --accept does not help: {reason}.")
        lines += [f"  {from_these_weights(folder)}"] * bool(moved)
    else:
        # The command line adds what was typed beside a directory.
        typed = () if given else (*longer, *refused)
        changes = [item for item in typed if not item.right_origin.startswith(DERIVED)]
        words = [f"--{item.path} {_typed(item.right)}" for item in changes]
        command = " ".join([f"setpoint train {run}", *words, f"--accept {','.join(paths)}"])
        lines.append(f"  To resume this run all the same: {command}")
    if any(item.path == "schedule.evaluated_on" for item in refused):
        lines.append(
            "  schedule.evaluated_on follows from the section evaluation: a plateau schedule sets "
            "the rate by what is evaluated, and how often."
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
    """End of a sentence on a checkpoint whose data position no longer counts the same rows."""
    one = len(paths) == 1
    return (
        f"whose data position counts rows, and {' and '.join(paths)} "
        f"{'changes' if one else 'change'} the rows"
    )


def from_these_weights(folder: str) -> str:
    """Sentence on training the weights of a run with other rows."""
    option = shlex.join(["--model.pretrained", folder])
    return f"To train these weights with other rows: a run of its own with {option}"


def _reason_not_acceptable(refused: list[Difference], late: list[Difference]) -> str | None:
    """Reason why `--accept` cannot resume a run with these differences; None if it can."""
    paths = [item.path for item in refused]
    if late:
        names = " and ".join(item.path for item in late)
        return f"{names} {'are' if len(late) > 1 else 'is'} used at the start of a run only"
    if "optimizer.type" in paths or "optimizer.target" in paths:
        return "the checkpoints hold the state of another optimizer"
    if any(re.fullmatch(RULE, path) for path in paths):
        return "the checkpoints hold the state of other groups of parameters"
    return None


def _accepting(refused: list[Difference]) -> list[str]:
    """Paths to accept: of the values, or of their sections if there are many."""
    paths = [item.path for item in refused]
    if len(paths) > MANY:
        paths = list(dict.fromkeys(path.partition(".")[0] for path in paths))
    return paths


def _typed(value: object) -> str:
    """A value as typed after a flag."""
    if value is ABSENT:
        return "null"
    return shlex.quote(value if isinstance(value, str) else json.dumps(value))


def _side(value: object, origin: str) -> str:
    text = "(absent)" if value is ABSENT else repr(value)
    return f"{text} ({origin})" if origin else text


def plain(value: object) -> str:
    """A value in a sentence."""
    return "null" if value is None or value is ABSENT else str(value)
