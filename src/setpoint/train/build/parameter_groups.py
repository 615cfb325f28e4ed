"""The parameters of a model as its optimizer gets them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from setpoint.config import SetpointError
from setpoint.model.kinds import inputs_first, packed_experts, parameter_kinds
from setpoint.optim.frozen import frozen_problems, is_frozen
from setpoint.optim.grouping import GroupRow, gather, group_rows, in_words
from setpoint.optim.groups import Groups, multipliers_of, parameter_groups
from setpoint.optim.section import OptimizerConfig
from setpoint.shapes.parameter import Parameter


def trained_parameters(
    model: nn.Module, named: Iterable[tuple[str, Tensor]] | None = None
) -> list[Parameter]:
    """Say of the parameters of a model what decides which group they fall into.

    Arguments:
        model: as it will be trained; also on the meta device.
        named: what the optimizer gets for each name of the model; None: the model's own.

    Raises:
        SetpointError: the model names learning rates of parameters that are not there.
    """
    kinds, rates, turned = parameter_kinds(model), multipliers_of(model), inputs_first(model)
    packed = packed_experts(model)
    held: Iterable[tuple[str, Any]] = model.named_parameters() if named is None else named
    return [
        Parameter(
            name,
            tuple(tensor.shape),
            kinds[name],
            rates.get(name, 1.0),
            name in turned,
            packed.get(name, ""),
            tensor,
        )
        for name, tensor in held
        if tensor.requires_grad
    ]


def freeze(
    config: OptimizerConfig, model: nn.Module, described: Sequence[Parameter] | None = None
) -> None:
    """Freeze the parameters that the patterns of `optimizer.frozen` are found in.

    Tied parameters are one, under its first name.

    Arguments:
        described: all parameters of the model that this one is a part of; None: it is whole.

    Raises:
        SetpointError: a pattern matches nothing, or all are frozen.
    """
    if not config.frozen and not config.frozen_spans:
        return
    for problem in frozen_problems(config, described or trained_parameters(model)):
        raise SetpointError(in_words(config, problem))
    for name, parameter in model.named_parameters():
        if is_frozen(config, name):
            parameter.requires_grad_(False)


def groups_of(
    config: OptimizerConfig,
    model: nn.Module,
    named: Iterable[tuple[str, Tensor]] | None = None,
    described: Sequence[Parameter] | None = None,
) -> Groups:
    """Put the parameters of a model into the groups that its optimizer is built over.

    Arguments:
        named: what the optimizer gets for each name of the model; None: the model's own.
        described: all parameters of the model that this one is a part of; None: it is whole.

    Returns:
        groups of PyTorch's form; see `parameter_groups`. Those of a part are all of the whole
        model, some of which may be empty.

    Raises:
        SetpointError: nothing is trainable, a pattern matches nothing, or an option is wrong.
    """
    if described is None:
        return parameter_groups(config, trained_parameters(model, named))
    held: dict[str, Any] = dict(model.named_parameters() if named is None else named)
    groups = parameter_groups(config, _unfrozen(config, described))
    for group in groups:
        group["params"] = [(name, held[name]) for name, _ in group["params"] if name in held]
        if not group["params"]:
            group["param_names"] = []  # torch wants them of all groups or of none
    return groups


def rows_of(
    config: OptimizerConfig, model: nn.Module, described: Sequence[Parameter] | None = None
) -> list[GroupRow]:
    """Tell which parameters of a model fell into which group.

    Arguments:
        described: all parameters of the model that this one is a part of; None: it is whole.
    """
    parameters = described and _unfrozen(config, described)
    return group_rows(gather(config, parameters or trained_parameters(model)), config.lr)


def _unfrozen(config: OptimizerConfig, described: Sequence[Parameter]) -> list[Parameter]:
    return [each for each in described if not is_frozen(config, each.name)]
