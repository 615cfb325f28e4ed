"""What may differ between a run's record and today's configuration, and what `--accept` names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from setpoint.config import (
    BUDGET,
    DERIVED,
    IDENTITY,
    Difference,
    SetpointError,
    all_fields,
    leaves,
    nearest,
    within,
)
from setpoint.train.config import Job
from setpoint.train.record.refusal import plain

CHANGES = ("gone", "new", "changed")


@dataclass(frozen=True, slots=True)
class Accepted:
    """What differs from the record, and may.

    Arguments:
        differences: longer budgets, run-time settings, and identity fields as far as they were
            accepted by name.
        notes: what has changed since the record's schema.
        data: for each side of the data whose documents differ, how many and which.
    """

    differences: list[Difference]
    idle: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    data: tuple[dict[str, Any], ...] = ()

    @property
    def learned(self) -> bool:
        """Whether an identity field or the data differs."""
        return bool(self.data) or any(item.role is IDENTITY for item in self.differences)

    def has(self, path: str) -> bool:
        """Whether a field, or one inside a section, differs."""
        return any(within(item.path, path) for item in self.differences)


def split_paths(accept: Sequence[str]) -> list[str]:
    """Read the values of `--accept`, each of which may name several paths between commas."""
    return [part for text in accept for part in text.split(",")]


def accepted_path(path: str, job: Job, found: Sequence[Difference]) -> str:
    """Read a path to accept, in one spelling.

    Raises:
        SetpointError: it is neither a field nor a section.
    """
    whole = path.strip().replace("-", "_")
    declared = [name for name, _ in all_fields(Job)]
    here = [leaf.key for leaf in leaves(job)] + [item.path for item in found]
    present = {*here, *(key.rpartition(".")[0] for key in here)} - {""}
    known = {*declared, *present}
    if whole in known:
        return whole
    # Other variants have fields that are no part of this run.
    close = nearest(whole, sorted(present), 1)
    if not close:
        words = {name.rpartition(".")[2]: name for name in reversed([*here, *declared])}
        close = [words[word] for word in nearest(whole.rpartition(".")[2], words, 1)]
    hint = f" Did you mean {close[0]}?" if close else ""
    raise SetpointError(f"--accept {path}: the configuration has no such field or section.{hint}")


def refuse_renaming(folder: str, accepted: Accepted) -> None:
    """Refuse to give a run another name or place while its directory is given as well.

    Arguments:
        accepted: what `check_contract` returned.

    Raises:
        SetpointError: naming the field, which would have no effect.
    """
    for item in accepted.differences:
        if item.path in ("name", "experiment", "workspace"):
            raise SetpointError(
                f"{item.path} = {item.right!r} ({item.right_origin}) has no effect: the run is "
                f"that of {folder}. Leave it out, or train a preset or file under the new name"
            )


def describe_accepted(accepted: Accepted) -> list[str]:
    """The accepted differences as lines for people.

    Arguments:
        accepted: what `check_contract` returned.

    Returns:
        a line for each identity field and for each budget, one for all settings of the
        run time together, and one for each path under which there was nothing to accept.
    """
    lines = list(accepted.notes)
    runtime: list[str] = []
    for item in accepted.differences:
        change = f"{item.path}: {plain(item.left)} -> {plain(item.right)}"
        if item.role is IDENTITY:
            origin = f" ({_whence(item.right_origin)})" if item.right_origin else ""
            lines.append(f"accepted by --accept: {change}{origin}")
        elif item.role is BUDGET:
            lines.append(f"accepted: {change} ({_whence(item.right_origin)})")
        else:
            runtime.append(change)
    lines += [f"accepted by --accept: {describe_data(side)}" for side in accepted.data]
    if runtime:
        lines.append(f"run-time settings that changed: {', '.join(runtime)}")
    return lines + describe_idle(accepted)


def describe_data(side: Mapping[str, Any]) -> str:
    """Format the documents in which a side of the data differs.

    Arguments:
        side: an entry of `Accepted.data`.
    """
    found = [f"{len(side[kind])} {kind}" for kind in CHANGES if side[kind]]
    names = [f"{name} ({kind})" for kind in CHANGES for name in side[kind]]
    shown = ", ".join(names[:5]) + (f", and {len(names) - 5} more" if len(names) > 5 else "")
    return f"documents of {side['side']}: {', '.join(found) or 'other tokens'}" + (
        f": {shown}" if names else ""
    )


def describe_idle(accepted: Accepted) -> list[str]:
    """The paths under which there was nothing to accept, as lines for people.

    Arguments:
        accepted: what `check_contract` returned.
    """
    return [f"--accept {path}: nothing differs there from the record" for path in accepted.idle]


def _whence(origin: str) -> str:
    """An origin after `from`; what is derived says itself from what."""
    return origin if origin.startswith(DERIVED) else f"from {origin}"
