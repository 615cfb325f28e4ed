"""An optimizer's state as named tensors and JSON, and back without the loss of a bit.

torch numbers the parameters in a `state_dict`; here they have their names, so that a checkpoint
can be read by people and does not depend on the order in which the groups were filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from setpoint.config import SetpointError

from .tree import join_tensors, split_tensors


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
) -> None:
    """Give an optimizer the state that `capture_optimizer` took.

    Unlike torch's `load_state_dict` alone, the tensors keep the type they were saved with, also
    where it is not the parameter's.

    Arguments:
        optimizer: of the same type, over parameters of the same names in the same groups.
        named_parameters: of the model.
        tensors: the named tensors; they are copied.
        state: the rest.

    Raises:
        SetpointError: if type, groups or names differ; the optimizer is unchanged then.
    """
    named = dict(named_parameters)
    groups = _named_groups(optimizer, named.items())
    _refuse_other(type(optimizer).__name__, groups, state)
    numbers = {name: n for n, name in enumerate(name for group in groups for name in group)}
    saved = {name: join_tensors(value, tensors) for name, value in state["parameters"].items()}
    content = {
        "state": {numbers[name]: value for name, value in saved.items()},
        "param_groups": [
            {
                **join_tensors(entry["options"], tensors),
                "params": [numbers[name] for name in group],
            }
            for group, entry in zip(groups, state["groups"], strict=True)
        ],
    }
    optimizer.load_state_dict(content)
    for name, value in saved.items():
        parameter = named[name]
        optimizer.state[parameter] = _with_saved_types(optimizer.state[parameter], value)


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


def _refuse_other(kind: str, groups: list[list[str]], state: Mapping[str, Any]) -> None:
    if state["type"] != kind:
        raise SetpointError(
            f"the checkpoint holds the state of {state['type']}, and the optimizer is {kind}"
        )
    if len(state["groups"]) != len(groups):
        raise SetpointError(
            f"the checkpoint's optimizer has {len(state['groups'])} groups of parameters, and "
            f"this one {len(groups)}"
        )
    for index, (group, entry) in enumerate(zip(groups, state["groups"], strict=True)):
        saved = set(entry["parameters"])
        only_saved, only_here = sorted(saved - set(group)), sorted(set(group) - saved)
        if only_saved or only_here:
            raise SetpointError(
                f"group {index} of the optimizer has other parameters than the checkpoint's: "
                f"only in the checkpoint {_some(only_saved)}; only in this run {_some(only_here)}"
            )


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
