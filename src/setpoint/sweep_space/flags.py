"""The axes of a sweep among the overrides of its command line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from setpoint.config import Invalid, SetpointError
from setpoint.config.layers.flags import Flag, read_flags
from setpoint.config.layers.presets import modifiers as known_modifiers
from setpoint.config.schema.tree import classes_at, field_of
from setpoint.config.values.node import Node
from setpoint.sweep_space.distribution import Drawn, is_call, misspelt_call
from setpoint.sweep_space.setting import (
    SOURCE,
    WITH,
    Setting,
    axis_origin,
    path_of,
    point_value,
    split_points,
)
from setpoint.sweep_space.space import Axis


class CommandLine:
    """A command line, with its axes apart from the overrides that have one value.

    Arguments:
        source: the source; None where it is an axis.
        modifiers: in order; None stands for the axis of modifiers.
        flags: in order; a path stands for the axis of that field.
    """

    def __init__(self) -> None:
        self.source: str | None = None
        self.modifiers: list[str | None] = []
        self.flags: list[Flag | tuple[str, ...]] = []
        self.axes: list[Axis] = []
        self.drawn: dict[tuple[str, ...], tuple[Drawn, str]] = {}

    @property
    def fixed(self) -> dict[tuple[str, ...], str]:
        """The fields that have one value, with the override as typed."""
        return {path_of(".".join(f.path)): f.label for f in self.flags if isinstance(f, Flag)}

    def flags_of(self, chosen: Mapping[tuple[str, ...], Setting]) -> list[Flag]:
        """The overrides of one point.

        Returns:
            what files set first, then the overrides in the order in which they were typed.
        """
        here = {entry for entry in self.flags if isinstance(entry, tuple)}
        others = [item.flag() for path, item in chosen.items() if path not in here]
        typed = [
            entry if isinstance(entry, Flag) else chosen[entry].flag()
            for entry in self.flags
            if isinstance(entry, Flag) or entry in chosen
        ]
        return [*others, *typed]


def read_command_line(
    root: type[Node], source: str, modifiers: Sequence[str], tokens: Sequence[str]
) -> CommandLine:
    """Tell the axes of a command line from its overrides.

    Arguments:
        modifiers: each `--with` as typed.

    Raises:
        SetpointError: if an override cannot be read, or a field is varied twice.
    """
    line = CommandLine()
    # A file may have a comma in its name.
    sources = [source] if os.path.exists(source) else split_points(source)
    if len(sources) == 1:
        line.source = source
    else:
        _add_axis(line, (SOURCE,), sources, "SOURCE")
    for text in modifiers:
        parts = split_points(text)
        drawn = is_call(text) and text.partition("(")[0].strip() not in known_modifiers
        if len(parts) == 1 and not drawn:
            line.modifiers.append(text)
            continue
        if None in line.modifiers:
            raise SetpointError("--with lists values twice; give all of them in one place")
        line.modifiers.append(None)
        if drawn:
            _add_drawn(line, (WITH,), Flag((WITH,), text, "--with"))
        else:
            _add_axis(line, (WITH,), parts, "--with")
    for flag in read_flags(root, tokens):
        parts = split_points(flag.text)
        path = path_of(".".join(flag.path))
        if len(parts) > 1:
            _refuse_bare_lists(root, flag, parts)
            line.flags.append(path)
            _add_axis(line, path, parts, flag.label)
        elif is_call(flag.text):
            line.flags.append(path)
            _add_drawn(line, path, flag)
        else:
            line.flags.append(flag)
    _refuse_fixed(line)
    return line


def _add_axis(line: CommandLine, path: tuple[str, ...], parts: list[str], label: str) -> None:
    if any(axis.path == path for axis in line.axes):
        raise SetpointError(f"{label} lists values twice; give all of them in one place")
    try:
        values = [point_value(part) for part in parts]
    except SetpointError as error:
        raise SetpointError(f"{label} {','.join(parts)}: {error}") from None
    line.axes.append(Axis(path, values, axis_origin(label)))


def _add_drawn(line: CommandLine, path: tuple[str, ...], flag: Flag) -> None:
    if path in line.drawn:
        raise SetpointError(f"{flag.label} is given two distributions; leave one of them out")
    try:
        line.drawn[path] = (Drawn.read(flag.text), flag.label)
    except Invalid as error:
        raise SetpointError(f"{flag.label} {flag.text}: {explain(error)}") from None


def explain(error: Invalid) -> str:
    """The problems of a value that no field has, on one line."""
    reasons: list[str] = []
    for part in error.parts:
        at = ".".join(map(str, part.at))
        valid = f"; valid: {', '.join(part.valid)}" if part.valid else ""
        reasons.append(f"{at} {part.message}{valid}".strip())
    return "; ".join(reasons)


def refuse_misspelt_distributions(line: CommandLine) -> None:
    """Refuse an override that looks like a distribution, where some are to be drawn.

    Raises:
        SetpointError: with the distribution that may have been meant.
    """
    for flag in line.flags:
        if isinstance(flag, Flag):
            meant = misspelt_call(flag.text)
            if meant:
                raise SetpointError(f"{flag.label} {flag.text} is no distribution. {meant}")


def _refuse_fixed(line: CommandLine) -> None:
    """A field that is varied and fixed as well would make an axis without effect."""
    fixed = line.fixed
    for path in [*(axis.path for axis in line.axes), *line.drawn]:
        if path in fixed:
            raise SetpointError(
                f"{'.'.join(path)} is varied and is set to one value as well ({fixed[path]}); "
                f"leave one of them out"
            )


def _refuse_bare_lists(root: type[Node], flag: Flag, parts: list[str]) -> None:
    """`--optimizer.betas 0.9,0.95` means one list elsewhere, and would be two points here."""
    names = path_of(".".join(flag.path))
    found = [field_of(owner, names[-1]) for owner in classes_at(root, names[:-1])]
    kinds = [info.type for info in found if info is not None]
    # Where a text or data may stand as well, items without brackets are no list.
    if not kinds or not all(kind.lists_items(",") for kind in kinds):
        return
    if all(part[:1] in ("[", "{", "") or part == "null" or "${" in part for part in parts):
        return
    text = ",".join(parts)
    raise SetpointError(
        f"{flag.label} {text}: a comma separates points, and this field is a list; write each "
        f"list in brackets: {flag.label} '[{text}]' is one list, and "
        f"{flag.label} '[{parts[0]}],[{parts[1]}]' is two points"
    )
