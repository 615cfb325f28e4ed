"""The options of groups of parameters: which an optimizer has, and what they are read as."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from setpoint.config import (
    RUNTIME,
    Config,
    ConfigError,
    FieldInfo,
    ImportedComponent,
    Invalid,
    Origin,
    Problem,
    did_you_mean,
    resolve,
)
from setpoint.config.components.arguments import converted_argument, parameters_of, wrong_arguments
from setpoint.config.values.origin import DEFAULT
from setpoint.optim.section import Group, OptimizerConfig
from setpoint.shapes.parameter import is_pattern

OWN = {
    "lr": "lr_multiplier, a multiple of the others' rate",
    "weight_decay": "weight_decay_multiplier, a multiple of the others' decay",
    "params": "pattern, which says what parameters it has",
    "name": "pattern, which names the group as well",
    "lr_multiplier": "lr_multiplier, beside the options",
    "weight_decay_multiplier": "weight_decay_multiplier, beside the options",
}
"""What a group says by fields of its own, and how."""


def known_options(config: OptimizerConfig) -> dict[str, FieldInfo]:
    """The fields of an optimizer that may differ between groups.

    Returns:
        fields by name: all that only this variant has, but for those that say how or where it
        is computed, and those that hold for all groups together.
    """
    shared = OptimizerConfig.__setpoint__.fields
    return {
        name: info
        for name, info in type(config).__setpoint__.fields.items()
        if name not in shared and name not in config.whole and info.role is not RUNTIME
    }


def read_options(config: OptimizerConfig, group: Group) -> dict[str, Any]:
    """Read what a group sets, as the optimizer's own fields would.

    Raises:
        Invalid: an option that there is not, or a value that it does not take; it leads to the
            option.
    """
    given = group.options.dump()
    if isinstance(config, ImportedComponent):
        return _read_arguments(config, given)
    return {name: _read_option(config, name, value) for name, value in given.items()}


def _read_option(config: OptimizerConfig, name: str, value: object) -> Any:
    known = known_options(config)
    try:
        if name in known:
            return known[name].read(value, Origin(DEFAULT))
        tag = type(config).__setpoint__.tag
        if name in type(config).__setpoint__.fields:
            raise Invalid(f"is the same for all groups of type = {tag}", tuple(sorted(known)))
        message = f"type = {tag} has no option {name!r} for a group"
        raise Invalid(message, tuple(sorted(known)), hint=did_you_mean(name, list(known)))
    except Invalid as error:
        raise error.inside(name) from None


def _read_arguments(config: ImportedComponent, given: dict[str, Any]) -> dict[str, Any]:
    """What the target of an imported optimizer makes of the options."""
    target = config.target.load()
    for error in wrong_arguments(target, str(config.target), given, (), config.runtime_arguments):
        if error.at[0] in given:  # what is missing is the optimizer's own affair
            raise error
    parameters = parameters_of(target) or {}
    return {
        name: converted_argument(parameters[name], value) if name in parameters else value
        for name, value in given.items()
    }


def group_problems(config: OptimizerConfig) -> Iterator[Problem]:
    """Look for groups that say what cannot be, or nothing at all.

    Returns:
        the problems; those of the options of an imported optimizer are found by
        `option_problems`, which imports it.
    """
    for index, group in enumerate(config.groups):
        path = f"groups.{index}"
        last = index + 1 == len(config.groups)
        # A pattern that is none has a problem of its own.
        if group.changes_nothing and last and is_pattern(group.pattern):
            yield Problem(
                f"{path}.pattern",
                "has no effect: the group sets nothing, and no group comes after it from which it "
                "could keep its parameters",
                hint="Give it a lr_multiplier, a weight_decay_multiplier or options, or remove it.",
            )
        if group.weight_decay_multiplier not in (None, 0, 1) and not config.weight_decay:
            yield Problem(
                f"{path}.weight_decay_multiplier",
                "has no effect: any multiple of weight_decay = 0 is 0",
                also=("weight_decay",),
                hint="Remove it.",
            )
        for name in group.options.dump():
            if name in OWN:
                message = f"is no option: a group sets it by {OWN[name]}"
                yield Problem(f"{path}.options.{name}", message)
    if not isinstance(config, ImportedComponent):
        yield from option_problems(config)


def option_problems(config: OptimizerConfig) -> Iterator[Problem]:
    """Read the options of all groups and report what is wrong with them.

    Arguments:
        config: the section, with every value determined; the target of an imported one is loaded.
    """
    for index, group in enumerate(config.groups):
        path = f"groups.{index}.options"
        values: dict[str, Any] = {}
        wrong = False
        for name, value in group.options.dump().items():
            if name in OWN:
                continue
            alone = Group(pattern=group.pattern, options=cast(Any, {name: value}))
            try:
                values |= read_options(config, alone)
            except Invalid as error:
                wrong = True
                for part in error.parts:
                    at = ".".join(map(str, part.at))
                    yield Problem(f"{path}.{at}", part.message, valid=part.valid, hint=part.hint)
        if values and not wrong and not isinstance(config, ImportedComponent):
            yield from _between(config, path, values)


def _between(config: OptimizerConfig, path: str, values: dict[str, Any]) -> Iterator[Problem]:
    """What the optimizer's own checks say of the options of a group together."""
    twin: Config = config.evolve(groups=(), no_decay=(), no_decay_patterns=(), **values)
    try:
        resolve(twin)
    except ConfigError as error:
        for problem in error.problems:
            if problem.path in values:
                yield Problem(
                    f"{path}.{problem.path}",
                    problem.message,
                    valid=problem.valid,
                    hint=problem.hint,
                )
