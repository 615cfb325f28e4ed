"""Frozen parameters and parameter groups by name, shape and kind; options of groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from setpoint.config import ImportedComponent, Problem, SetpointError
from setpoint.optim.config import OWN, OptimizerConfig, option_problems, read_options
from setpoint.shapes.parameter import Parameter
from setpoint.shapes.patterns import (
    first_match,
    is_pattern,
    matches,
    matches_nothing,
    unmatched,
    untaken,
)

if TYPE_CHECKING:
    from torch import nn


def group_problems(config: OptimizerConfig) -> Iterator[Problem]:
    """Find groups with invalid values, and groups without effect.

    Returns:
        the problems; `option_problems` checks the options of an imported optimizer, because it
        imports the optimizer.
    """
    for index, group in enumerate(config.groups):
        path = f"groups.{index}"
        last = index + 1 == len(config.groups)
        # An invalid pattern has a separate problem.
        if group.changes_nothing and last and is_pattern(group.pattern):
            yield Problem(
                f"{path}.pattern",
                "has no effect: the group sets nothing, and there is no later group whose "
                "parameters it could take",
                hint="Give it an lr_multiplier, a weight_decay_multiplier or options, or remove "
                "it.",
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
                message = f"is not an option: set {OWN[name]}"
                yield Problem(f"{path}.options.{name}", message)
    if not isinstance(config, ImportedComponent):
        yield from option_problems(config)


Groups = list[dict[str, Any]]
"""Parameter groups as PyTorch's optimizers take them."""

FIRST = 3


def is_frozen(config: OptimizerConfig, name: str) -> bool:
    """True if a pattern of `optimizer.frozen` matches a name."""
    return matches(config.frozen, name)


def frozen_problems(config: OptimizerConfig, parameters: Sequence[Parameter]) -> Iterator[Problem]:
    """Find patterns that freeze nothing, or everything; paths are relative to the section."""
    names = [parameter.name for parameter in parameters]
    yield from unmatched("frozen", config.frozen, names, "parameters of the model")
    trained = [name for name in names if not is_frozen(config, name)]
    if config.frozen and not trained:
        yield Problem(
            "frozen",
            f"matches all {len(names)} parameters of the model, so nothing would be trained",
            hint="Exclude those to be trained: '^(?!output)' freezes all others.",
        )
        return
    spans = config.frozen_spans
    for index, span in enumerate(spans):
        if not any(matches([span.pattern], name) for name in trained):
            path = f"frozen_spans.{index}.pattern"
            yield matches_nothing(path, span.pattern, trained, "parameters that frozen leaves")
    for index, span in enumerate(spans):
        # The spans at the start of this one, if counted in its unit.
        reached = {span.start.unit: span.start.count}
        now = [
            number
            for number, other in enumerate(spans)
            if (other.start.unit in reached or not other.start)
            and other.holds(lambda unit, reached=reached: reached.get(unit, 0))
        ]
        if all(matches([spans[number].pattern for number in now], name) for name in trained):
            yield Problem(
                f"frozen_spans.{index}.start",
                f"leaves nothing to train at {span.start}",
                also=[f"frozen_spans.{number}" for number in now if number != index],
                hint="Reduce the overlap of the spans, or match fewer parameters.",
            )
            return


class Gathered(NamedTuple):
    """Parameters trained with the same settings.

    Arguments:
        name: built from the rules that made the group: pattern, algorithm, weight decay, rate.
        lr: peak learning rate, `lr_multiplier` times the optimizer's.
        options: further settings that differ from the optimizer's, by field name.
    """

    name: str
    parameters: list[Parameter]
    lr: float
    lr_multiplier: float
    weight_decay: float
    options: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The group as JSON, with the numbers of tensors and parameters, and the first names."""
        options = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.options.items()
        }
        return {
            "name": self.name,
            "lr": self.lr,
            "weight_decay": self.weight_decay,
            "options": options,
            "tensors": len(self.parameters),
            "parameters": sum(prod(parameter.shape) for parameter in self.parameters),
            "names": [parameter.name for parameter in self.parameters[:FIRST]],
        }


def gather(config: OptimizerConfig, parameters: Iterable[Parameter]) -> list[Gathered]:
    """Put parameters into groups.

    A parameter belongs to the first `groups[i].pattern` that matches its name. Its learning rate is
    the product of the multipliers of the group, of `treatment` and of the model; its decay is
    weight_decay times the group's multiplier, or else 0 for kinds in no_decay and names that match
    no_decay_patterns.

    Returns:
        the non-empty groups: first the parameters that match no pattern, then the groups in order,
        with decaying parameters before the others in each. Without any rules they are "decay" and
        "no_decay".

    Raises:
        SetpointError: there are no parameters.
    """
    described = list(parameters)
    if not described:
        raise SetpointError(
            "there is nothing to train: all parameters are frozen; at least one must be trainable"
        )
    options = [read_options(config, group) for group in config.groups]
    groups: dict[tuple[Any, ...], Gathered] = {}
    for parameter in described:
        rule = rule_of(config, parameter.name)
        treatment = dict(config.treatment(parameter))
        rate = treatment.pop("lr_multiplier", 1.0) * parameter.rate
        algorithm = treatment.get("algorithm")
        if treatment.get("inputs_first"):
            algorithm = f"{algorithm} (in, out)"
        decays: bool | None = keeps_decaying(config, parameter)
        decay = config.weight_decay if decays else 0.0
        if rule is not None:
            group = config.groups[rule]
            rate *= group.lr_multiplier
            if group.weight_decay_multiplier is not None:
                decay, decays = config.weight_decay * group.weight_decay_multiplier, None
            treatment |= options[rule]
        place = -1 if rule is None else rule
        key = (place, decays is False, decay, rate, repr(sorted(treatment.items())))
        if key not in groups:
            name = _title(config, rule, algorithm, decays, rate)
            groups[key] = Gathered(name, [], config.lr * rate, rate, decay, treatment)
        groups[key].parameters.append(parameter)
    # Sorting keeps equal entries in the order of the model.
    return [groups[key] for key in sorted(groups, key=lambda key: key[:2])]


def rule_of(config: OptimizerConfig, name: str) -> int | None:
    """Index of the first group whose pattern matches a name, or None."""
    return first_match((group.pattern for group in config.groups), name)


def keeps_decaying(config: OptimizerConfig, parameter: Parameter) -> bool:
    """True if the rules outside groups let a parameter decay."""
    return parameter.kind not in config.no_decay and not matches(
        config.no_decay_patterns, parameter.name
    )


def grouping_problems(
    config: OptimizerConfig, parameters: Sequence[Parameter]
) -> Iterator[Problem]:
    """Find rules without effect on the trained parameters.

    Returns:
        problems with paths relative to the section: patterns that match nothing, groups shadowed by
        earlier ones, groups that change nothing, and options that no algorithm of their parameters
        reads.
    """
    yield from config.unused_settings(parameters)
    for field, kinds in config.patterns.items():
        population = (
            f"parameters{f' of kind {_listed(list(kinds))}' if kinds else ''} that are trained"
        )
        chosen = [
            parameter.name for parameter in parameters if kinds is None or parameter.kind in kinds
        ]
        yield from unmatched(field, getattr(config, field), chosen, population)
    groups = config.groups
    if groups and groups[-1].changes_nothing:  # already reported without names
        groups = groups[:-1]
    names = [parameter.name for parameter in parameters]
    population = "parameters that are trained"
    yield from untaken("groups", [group.pattern for group in groups], names, population)
    taken = [rule_of(config, name) for name in names]
    for index, group in enumerate(groups):
        members = [
            parameter for parameter, rule in zip(parameters, taken, strict=True) if rule == index
        ]
        later = [other.pattern for other in config.groups[index + 1 :]]
        if not members:
            continue
        if group.changes_nothing and not any(
            matches(later, parameter.name) for parameter in members
        ):
            yield Problem(
                f"groups.{index}.pattern",
                "has no effect: the group sets nothing, and no later group matches its parameters",
                hint="Give it an lr_multiplier, a weight_decay_multiplier or options, or remove "
                "it.",
            )
        yield from _unread(config, index, members)


def _unread(
    config: OptimizerConfig, index: int, parameters: Sequence[Parameter]
) -> Iterator[Problem]:
    """Options that the algorithm of a group's parameters does not read."""
    if not config.read_by:
        return
    algorithms = {config.treatment(parameter)["algorithm"] for parameter in parameters}
    known = [option for name in sorted(algorithms) for option in config.read_by[name]]
    for option in config.groups[index].options.dump():
        readers = [name for name, options in config.read_by.items() if option in options]
        if readers and not algorithms.intersection(readers):
            yield Problem(
                f"groups.{index}.options.{option}",
                f"has no effect: {_listed(readers)} reads it, but all parameters of the group are "
                f"trained by {_listed(sorted(algorithms))}",
                valid=known,
                also=(f"groups.{index}.pattern",),
            )


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


def _listed(words: Sequence[str]) -> str:
    return " and ".join(words)


def parameter_groups(config: OptimizerConfig, parameters: Iterable[Parameter]) -> Groups:
    """Sort parameters into the groups of the section; see `gather` for the rules.

    Arguments:
        parameters: parameters with their tensors, in model order; frozen ones are omitted.

    Returns:
        groups for a torch optimizer. Each has `name`, `params` as (name, tensor) pairs (torch keeps
        the names as `param_names`) and `weight_decay`; `lr_multiplier` unless 1, by which the loop
        multiplies the learning rate; and the options from `config.treatment` and its group, by
        field name.

    Raises:
        SetpointError: nothing is trainable.
    """
    trained = [
        parameter
        for parameter in parameters
        if parameter.tensor is not None and parameter.tensor.requires_grad
    ]
    return [
        {
            "name": group.name,
            "params": [(parameter.name, parameter.tensor) for parameter in group.parameters],
            "weight_decay": group.weight_decay,
            **({} if group.lr_multiplier == 1.0 else {"lr_multiplier": group.lr_multiplier}),
            **group.options,
        }
        for group in gather(config, trained)
    ]


@runtime_checkable
class OwnRates(Protocol):
    """Model with learning-rate multipliers of its own."""

    def learning_rate_multipliers(self) -> Mapping[str, float]:
        """Learning-rate multipliers by parameter name; 1 for parameters left out."""
        ...


def multipliers_of(model: nn.Module) -> Mapping[str, float]:
    """Learning-rate multipliers declared by a model, by parameter name; 1 for others.

    Raises:
        SetpointError: a multiplier names an unknown parameter.
    """
    if not isinstance(model, OwnRates):
        return {}
    multipliers = model.learning_rate_multipliers()
    named = {name for name, _ in model.named_parameters()}
    if unknown := sorted(multipliers.keys() - named):
        raise SetpointError(
            f"learning_rate_multipliers() names parameters that do not exist: {', '.join(unknown)}"
        )
    return multipliers
