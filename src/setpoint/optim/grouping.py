"""Which parameter falls into which group, from names, shapes and kinds alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from setpoint.config import Invalid, Problem, SetpointError
from setpoint.optim.options import read_options
from setpoint.optim.section import Group, OptimizerConfig
from setpoint.shapes.parameter import Parameter, matches_nothing

FIRST = 3


class Gathered(NamedTuple):
    """Parameters that are trained alike.

    Arguments:
        name: by the rule that made it: the pattern, the algorithm, whether it decays, the rate.
        options: what else differs from the optimizer's own settings, by the names of its fields.
    """

    name: str
    parameters: list[Parameter]
    weight_decay: float
    lr_multiplier: float
    options: dict[str, Any]


def gather(config: OptimizerConfig, parameters: Iterable[Parameter]) -> list[Gathered]:
    """Put parameters into groups.

    The first `groups[i].pattern` that is found in a name takes it. Its rate is the product of the
    group's multiplier, of what `treatment` says and of what the model itself says; its decay is
    weight_decay times the group's multiplier, or else 0 for the kinds in no_decay and the names
    that no_decay_patterns are found in.

    Returns:
        the groups: what no pattern has taken first, then the groups in order, each with what
        decays before what does not, and no group without parameters. Without any rules these are
        "decay" and "no_decay".

    Raises:
        SetpointError: there are no parameters, a pattern matches nothing, or an option is wrong.
    """
    held = list(parameters)
    if not held:
        raise SetpointError(
            "there is nothing to train: all parameters are frozen; at least one must be trainable"
        )
    for problem in unmatched(config, held):
        raise SetpointError(in_words(config, problem))
    options = [_options(config, index, group) for index, group in enumerate(config.groups)]
    found: dict[tuple[Any, ...], Gathered] = {}
    for parameter in held:
        rule = rule_of(config, parameter.name)
        wanted = dict(config.treatment(parameter))
        rate = wanted.pop("lr_multiplier", 1.0) * parameter.rate
        algorithm = wanted.get("algorithm")
        if wanted.get("inputs_first"):
            algorithm = f"{algorithm} (in, out)"
        decays: bool | None = keeps_decaying(config, parameter)
        decay = config.weight_decay if decays else 0.0
        if rule is not None:
            group = config.groups[rule]
            rate *= group.lr_multiplier
            if group.weight_decay_multiplier is not None:
                decay, decays = config.weight_decay * group.weight_decay_multiplier, None
            wanted |= options[rule]
        place = -1 if rule is None else rule
        key = (place, decays is False, decay, rate, repr(sorted(wanted.items())))
        if key not in found:
            name = _title(config, rule, algorithm, decays, rate)
            found[key] = Gathered(name, [], decay, rate, wanted)
        found[key].parameters.append(parameter)
    # A sort keeps the order of what is equal: that in which the model names them.
    return [found[key] for key in sorted(found, key=lambda key: key[:2])]


def in_words(config: OptimizerConfig, problem: Problem) -> str:
    """A problem with a path relative to the section, for an error without origins."""
    value = _value_at(config, problem.path)
    names = f"; valid: {', '.join(problem.valid)}" if problem.valid else ""
    said = f"{problem.message}{names}. {problem.hint}".strip()
    return f"optimizer.{problem.path} = {value!r}: {said}"


def rule_of(config: OptimizerConfig, name: str) -> int | None:
    """Find the group that takes a parameter.

    Returns:
        the index of the first group whose pattern is found in the name; None where none is.
    """
    for index, group in enumerate(config.groups):
        if re.search(group.pattern, name):
            return index
    return None


def keeps_decaying(config: OptimizerConfig, parameter: Parameter) -> bool:
    """Say whether the rules apart from groups let a parameter decay."""
    if parameter.kind in config.no_decay:
        return False
    return not any(re.search(each, parameter.name) for each in config.no_decay_patterns)


def unmatched(config: OptimizerConfig, parameters: Sequence[Parameter]) -> Iterator[Problem]:
    """Find rules that no parameter falls under.

    Returns:
        problems with paths relative to the section: for patterns that match nothing, for groups
        that others before them leave nothing to, for groups that change nothing, and for options
        that no algorithm of their parameters reads.
    """
    yield from config.idle(parameters)
    for field, kinds in config.patterns.items():
        chosen = [each for each in parameters if kinds is None or each.kind in kinds]
        for index, pattern in enumerate(getattr(config, field)):
            if not any(re.search(pattern, each.name) for each in chosen):
                what = f" of kind {_listed(list(kinds))}" if kinds else ""
                of = f"parameters{what} that are trained"
                names = [each.name for each in chosen]
                yield matches_nothing(f"{field}.{index}", pattern, names, of)
    taken = [rule_of(config, each.name) for each in parameters]
    for index, group in enumerate(config.groups):
        last = index + 1 == len(config.groups)
        if group.changes_nothing and last:
            continue  # which is found without names
        if index in taken:
            if group.changes_nothing:
                yield from _idle(config, index, parameters, taken)
            held = [each for each, rule in zip(parameters, taken, strict=True) if rule == index]
            yield from _unread(config, index, held)
            continue
        matching = [i for i, each in enumerate(parameters) if re.search(group.pattern, each.name)]
        if not matching:
            names = [each.name for each in parameters]
            path = f"groups.{index}.pattern"
            yield matches_nothing(path, group.pattern, names, "parameters that are trained")
            continue
        before = sorted({rule for i in matching if (rule := taken[i]) is not None})
        yield Problem(
            f"groups.{index}.pattern",
            f"gets nothing: groups before it take all that it matches, {len(matching)} of "
            f"{len(parameters)} parameters",
            also=[f"groups.{rule}.pattern" for rule in before],
            hint=f"Put it before {_listed([f'groups.{rule}' for rule in before])}, or remove it.",
        )


def _idle(
    config: OptimizerConfig,
    index: int,
    parameters: Sequence[Parameter],
    taken: list[int | None],
) -> Iterator[Problem]:
    """A group that sets nothing is there to keep its parameters from groups behind it."""
    behind = config.groups[index + 1 :]
    names = [each.name for each, rule in zip(parameters, taken, strict=True) if rule == index]
    if not any(re.search(group.pattern, name) for group in behind for name in names):
        yield Problem(
            f"groups.{index}.pattern",
            "has no effect: the group sets nothing, and no group behind it matches its parameters",
            hint="Give it a lr_multiplier, a weight_decay_multiplier or options, or remove it.",
        )


def _unread(
    config: OptimizerConfig, index: int, parameters: Sequence[Parameter]
) -> Iterator[Problem]:
    """Options for another algorithm than that of the parameters of a group."""
    if not config.read_by:
        return
    theirs = {config.treatment(each)["algorithm"] for each in parameters}
    known = [option for name in sorted(theirs) for option in config.read_by[name]]
    for option in config.groups[index].options.dump():
        readers = [name for name, options in config.read_by.items() if option in options]
        if readers and not theirs.intersection(readers):
            yield Problem(
                f"groups.{index}.options.{option}",
                f"has no effect: {_listed(readers)} reads it, and all that the group takes is for "
                f"{_listed(sorted(theirs))}",
                valid=known,
                also=(f"groups.{index}.pattern",),
            )


def _options(config: OptimizerConfig, index: int, group: Group) -> dict[str, Any]:
    try:
        return read_options(config, group)
    except Invalid as error:
        where = ".".join(map(str, error.at))
        value = group.options.dump().get(str(error.at[0])) if error.at else None
        valid = f"; valid: {', '.join(error.valid)}" if error.valid else ""
        raise SetpointError(
            f"optimizer.groups.{index}.options.{where} = {value!r}: {error.message}{valid}"
        ) from None


def _title(
    config: OptimizerConfig,
    rule: int | None,
    algorithm: str | None,
    decays: bool | None,
    rate: float,
) -> str:
    words = [] if rule is None else [f"/{config.groups[rule].pattern}/"]
    words += [algorithm] if algorithm else []
    words += [] if decays is None else ["decay" if decays else "no_decay"]
    return " ".join(words) + ("" if rate == 1.0 else f" x {rate:g}")


def _value_at(config: OptimizerConfig, path: str) -> Any:
    value: Any = config
    for part in path.split("."):
        value = value[int(part)] if part.isdigit() else getattr(value, part)
    return value


def _listed(words: Sequence[str]) -> str:
    return " and ".join(words)


class GroupRow(NamedTuple):
    """One group of parameters.

    Arguments:
        options: what else differs from the optimizer's own settings.
        parameters: how many numbers they hold together.
    """

    name: str
    lr: float
    weight_decay: float
    options: dict[str, Any]
    tensors: int
    parameters: int
    names: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The row for machines."""
        options = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in self.options.items()
        }
        return {**self._asdict(), "options": options, "names": list(self.names)}


def group_rows(groups: Sequence[Gathered], lr: float) -> list[GroupRow]:
    """Tell of each group what it is trained with, and what it holds."""
    return [
        GroupRow(
            group.name,
            lr * group.lr_multiplier,
            group.weight_decay,
            group.options,
            len(group.parameters),
            sum(prod(each.shape) for each in group.parameters),
            tuple(each.name for each in group.parameters[:FIRST]),
        )
        for group in groups
    ]
