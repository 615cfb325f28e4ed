"""An optimizer's state as named tensors and JSON, and back without the loss of a bit.

torch numbers the parameters in a `state_dict`; here they have their names, so that a checkpoint
can be read by people and does not depend on the order in which the groups were filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from setpoint.config import SetpointError

from .tree import join_tensors, split_tensors

AS_BUILT = (
    "name",
    "weight_decay",
    "lr_multiplier",
    "algorithm",
    "inputs_first",
    "fused",
    "foreach",
)
"""Options of a group that follow from today's configuration, or say how it is computed."""


_RULES = (
    "What decides which group a parameter falls into (optimizer.groups, no_decay, "
    "no_decay_patterns and patterns of the optimizer's own) must be what the checkpoint was "
    "trained with, or the run a new one"
)


def capture_optimizer(
    optimizer: Optimizer, named_parameters: Iterable[tuple[str, Parameter]]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Take an optimizer's state and hyperparameters.

    Arguments:
        optimizer: any torch optimizer.
        named_parameters: of the model; all that the optimizer updates must be among them.

    Returns:
        tensors by `<parameter>/<state>`, for instance `blocks.0.norm.weight/exp_avg` (they are the
        optimizer's own, not copies), and the rest as JSON has it.

    Raises:
        SetpointError: if the optimizer updates a parameter without a name.
    """
    groups = _named_groups(optimizer, named_parameters)
    names = [name for group in groups for name in group]
    content = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    options = [
        {
            key: split_tensors(value, f"group {index}/{key}", tensors)
            for key, value in group.items()
            if key not in ("params", "param_names")
        }
        for index, group in enumerate(content["param_groups"])
    ]
    return tensors, {
        "type": type(optimizer).__name__,
        "groups": [{"parameters": g, "options": o} for g, o in zip(groups, options, strict=True)],
        # torch numbers the parameters through all groups, in order.
        "parameters": {
            names[number]: split_tensors(value, names[number], tensors)
            for number, value in content["state"].items()
        },
    }


def restore_optimizer(
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Parameter]],
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    renewed: Sequence[str] = (),
) -> None:
    """Give an optimizer the state that `capture_optimizer` took.

    Unlike torch's `load_state_dict` alone, the tensors keep the type they were saved with, also
    where it is not the parameter's, and some options the value that they were built with.

    Arguments:
        optimizer: of the same type, over parameters of the same names in the same groups.
        named_parameters: of the model.
        tensors: the named tensors; they are copied.
        state: the rest.
        renewed: options of groups that stay as they were built, beside those in `AS_BUILT`.

    Raises:
        SetpointError: if type, groups or names differ; the optimizer is unchanged then.
    """
    named = dict(named_parameters)
    groups = _named_groups(optimizer, named.items())
    _refuse_other(optimizer, groups, state)
    numbers = {name: n for n, name in enumerate(name for group in groups for name in group)}
    saved = {name: join_tensors(value, tensors) for name, value in state["parameters"].items()}
    content = {
        "state": {numbers[name]: value for name, value in saved.items()},
        "param_groups": [
            {
                **_options(built, join_tensors(entry["options"], tensors), renewed),
                "params": [numbers[name] for name in group],
            }
            for built, group, entry in zip(
                optimizer.param_groups, groups, state["groups"], strict=True
            )
        ],
    }
    optimizer.load_state_dict(content)
    for name, value in saved.items():
        parameter = named[name]
        state = _with_saved_types(optimizer.state[parameter], value)
        optimizer.state[parameter] = {k: _laid_out(v, parameter) for k, v in state.items()}


def _options(
    built: Mapping[str, Any], saved: Mapping[str, Any], renewed: Sequence[str]
) -> dict[str, Any]:
    """What a group goes on with: what was saved, but for what follows from today's values."""
    # What an older version did not have is as it was built.
    options = {**built, **saved}
    for name in ("params", "param_names"):
        options.pop(name, None)
    for name in (*AS_BUILT, *renewed):
        options.pop(name, None)
        if name in built:
            options[name] = built[name]
    return options


def _named_groups(
    optimizer: Optimizer, named_parameters: Iterable[tuple[str, Parameter]]
) -> list[list[str]]:
    names = {id(parameter): name for name, parameter in named_parameters}
    groups: list[list[str]] = []
    for index, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise SetpointError(
                    f"group {index} of the optimizer updates a parameter of shape "
                    f"{tuple(parameter.shape)} that is not among the model's named parameters"
                )
        groups.append([names[id(parameter)] for parameter in group["params"]])
    return groups


def _refuse_other(optimizer: Optimizer, groups: list[list[str]], state: Mapping[str, Any]) -> None:
    kind = type(optimizer).__name__
    if state["type"] != kind:
        raise SetpointError(
            f"the checkpoint holds the state of {state['type']}, and the optimizer is {kind}"
        )
    if len(state["groups"]) != len(groups):
        raise SetpointError(
            f"the checkpoint's optimizer has {len(state['groups'])} groups of parameters, and "
            f"this one {len(groups)}; moved: {_some(_moved(optimizer, groups, state))}. {_RULES}"
        )
    for index, (group, entry) in enumerate(zip(groups, state["groups"], strict=True)):
        saved = set(entry["parameters"])
        only_saved, only_here = sorted(saved - set(group)), sorted(set(group) - saved)
        if only_saved or only_here:
            raise SetpointError(
                f"group {index} of the optimizer has other parameters than the checkpoint's: "
                f"only in the checkpoint {_some(only_saved)}; only in this run {_some(only_here)}. "
                f"{_RULES}"
            )


def _moved(optimizer: Optimizer, groups: list[list[str]], state: Mapping[str, Any]) -> list[str]:
    """The parameters that are in another group than they were, with both groups."""
    options = [entry["options"] for entry in state["groups"]]
    before = _places([entry["parameters"] for entry in state["groups"]], options)
    today = _places(groups, optimizer.param_groups)
    return [
        f"{name} ({before.get(name, 'none')} -> {today.get(name, 'none')})"
        for name in dict.fromkeys((*before, *today))
        if before.get(name) != today.get(name)
    ]


def _places(
    groups: Sequence[Sequence[str]], options: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """The name of each parameter's group; its number, where groups have no names."""
    return {
        name: str(given.get("name", index))
        for index, (group, given) in enumerate(zip(groups, options, strict=True))
        for name in group
    }


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:4]) or "none"
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"


def _with_saved_types(loaded: Any, saved: Any) -> Any:
    """What torch loaded, except tensors that it converted to their parameter's type."""
    if isinstance(loaded, Tensor):
        return loaded if loaded.dtype == saved.dtype else saved.to(loaded.device)
    if isinstance(loaded, dict):
        return {key: _with_saved_types(value, saved[key]) for key, value in loaded.items()}
    if isinstance(loaded, list | tuple):
        pairs = zip(loaded, saved, strict=True)
        return type(loaded)(_with_saved_types(one, other) for one, other in pairs)
    return loaded


def _laid_out(value: Any, parameter: Tensor) -> Any:
    """A tensor in the order in memory that its parameter has; files hold rows one by one.

    Fused kernels go through the memory of both from the start to the end.
    """
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    if value.stride() == parameter.stride():
        return value
    place = torch.empty_like(parameter, dtype=value.dtype, device=value.device, requires_grad=False)
    return place.copy_(value)
