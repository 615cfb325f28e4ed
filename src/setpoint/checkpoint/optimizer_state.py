"""An optimizer's state as named tensors and JSON, without loss.

PyTorch's `state_dict` numbers the parameters; here they have names, so that a checkpoint is
readable and does not depend on the order of the groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from setpoint.config import SetpointError
from setpoint.files.threads import in_threads
from setpoint.shapes.placed import Named, Placeable, as_placed, in_memory

_TENSOR = "$tensor"
_TUPLE = "$tuple"

Options = list[dict[str, Any]]

SET_FROM_OUTSIDE = ("lr", "lr_multiplier", "name", "weight_decay")
"""Group options that are not state: the loop sets `lr` at each step, and the rest follows from the
configuration."""

_RULES = (
    "The settings that assign parameters to groups (optimizer.groups, no_decay, no_decay_patterns "
    "and the optimizer's own patterns) must be those that the checkpoint was trained with; "
    "otherwise start a new run"
)


def options_of(optimizer: Optimizer) -> Options:
    """Copy the options of an optimizer's groups, to detect later which of them it updated."""
    without = ("params", "param_names")
    return [
        {key: deepcopy(value) for key, value in group.items() if key not in without}
        for group in optimizer.param_groups
    ]


def capture_optimizer(
    optimizer: Optimizer, named_parameters: Iterable[tuple[str, Parameter]], built: Options
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Capture an optimizer's state, and the group options that it updates.

    Group options (betas, eps, decay, ...) belong to the configuration, so options unchanged since
    the build are not saved.

    Arguments:
        named_parameters: the parameters of the model, including all that the optimizer updates.
        built: result of `options_of` when the optimizer was built.

    Returns:
        tensors by `<parameter>/<state>`, for example `blocks.0.norm.weight/exp_avg` (the
        optimizer's tensors, not copies), and the rest as JSON values.

    Raises:
        SetpointError: the optimizer updates a parameter without a name.
    """
    groups = _named_groups(optimizer, named_parameters)
    names = [name for group in groups for name in group]
    tensors: dict[str, Tensor] = {}
    entries: list[dict[str, Any]] = []
    for index, (options, before) in enumerate(zip(options_of(optimizer), built, strict=True)):
        counts: dict[str, Any] = {}
        for key, value in options.items():
            if key in SET_FROM_OUTSIDE or (key in before and _is_same(value, before[key])):
                continue
            counts[key] = split_tensors(value, f"group {index}/{key}", tensors)
        entries.append({"name": options.get("name"), "parameters": groups[index], "counts": counts})
    return tensors, {
        "type": type(optimizer).__name__,
        "groups": entries,
        # PyTorch numbers the parameters across all groups, in order.
        "parameters": {
            names[number]: split_tensors(value, names[number], tensors)
            for number, value in optimizer.state_dict()["state"].items()
        },
    }


def join_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the states of ranks with different parameters.

    Arguments:
        states: results of `capture_optimizer` without their tensors, with the same groups.
    """
    parameters: dict[str, Any] = {}
    for state in states:
        parameters |= state["parameters"]
    groups: list[dict[str, Any]] = []
    for members in zip(*(state["groups"] for state in states), strict=True):
        names = chain.from_iterable(group["parameters"] for group in members)
        groups.append({**members[0], "parameters": list(dict.fromkeys(names))})
    return {**states[0], "groups": groups, "parameters": parameters}


def part_of_state(state: Mapping[str, Any], elsewhere: Collection[str]) -> dict[str, Any]:
    """Remove some parameters from a state.

    Arguments:
        elsewhere: the names of the parameters to remove.
    """
    groups = [
        {**group, "parameters": [name for name in group["parameters"] if name not in elsewhere]}
        for group in state["groups"]
    ]
    kept = {
        name: state_of for name, state_of in state["parameters"].items() if name not in elsewhere
    }
    return {**state, "groups": groups, "parameters": kept}


def restore_optimizer(
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Parameter]],
    tensors: Named,
    state: Mapping[str, Any],
    partial: bool = False,
) -> None:
    """Restore the state from `capture_optimizer`; options stay as built.

    Unlike with PyTorch's `load_state_dict`, the tensors keep the dtype in which they were saved,
    even if it differs from the parameter's.

    Arguments:
        tensors: the named tensors; they are copied.
        partial: whether the trained parameters or their groups may differ: if so, parameters
            without state start afresh, and unused state is ignored.

    Raises:
        SetpointError: type, groups or names differ; the optimizer remains unchanged.
    """
    named = dict(named_parameters)
    groups = _named_groups(optimizer, named.items())
    state = _fitting_state(optimizer, groups, state, partial)
    numbers = {name: n for n, name in enumerate(name for group in groups for name in group)}
    saved: dict[str, dict[str, Any]] = {name: {} for name in state["parameters"]}
    names = list(saved)

    def place(number: int) -> None:
        name = names[number]
        saved[name] = _placed(join_tensors(state["parameters"][name], tensors), named[name])

    in_threads(place, len(names))
    content = {
        "state": {numbers[name]: value for name, value in saved.items()},
        "param_groups": [
            {**built, **join_tensors(entry["counts"], tensors), "params": members}
            for built, entry, members in zip(
                options_of(optimizer),
                state["groups"],
                [[numbers[name] for name in group] for group in groups],
                strict=True,
            )
        ],
    }
    optimizer.load_state_dict(content)
    for name, value in saved.items():
        parameter = named[name]
        state = _with_saved_types(optimizer.state[parameter], value)
        optimizer.state[parameter] = {k: _laid_out(v, parameter) for k, v in state.items()}
    _begin_maxima(optimizer)


def _regrouped(state: Mapping[str, Any], groups: Sequence[Sequence[str]]) -> dict[str, Any]:
    """A saved state, rearranged for these parameter groups.

    Each group gets the counters of the saved group that contained its first saved parameter.
    """
    entry_of = {name: entry for entry in state["groups"] for name in entry["parameters"]}
    entries: list[dict[str, Any]] = []
    for group in groups:
        known = next((entry_of[name] for name in group if name in entry_of), {"counts": {}})
        entries.append({**known, "parameters": list(group)})
    trained = {name for group in groups for name in group}
    kept = {name: state_of for name, state_of in state["parameters"].items() if name in trained}
    return {**state, "groups": entries, "parameters": kept}


def saved_states(
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Parameter]],
    tensors: Named,
    state: Mapping[str, Any],
    partial: bool = False,
) -> dict[str, Any]:
    """The saved optimizer state of each parameter, by name, without reading tensors.

    Arguments:
        partial: see `restore_optimizer`.

    Raises:
        SetpointError: type, groups or names differ.
    """
    groups = _named_groups(optimizer, named_parameters)
    state = _fitting_state(optimizer, groups, state, partial)
    return {name: join_tensors(value, tensors) for name, value in state["parameters"].items()}


def _begin_maxima(optimizer: Optimizer) -> None:
    """Initialize the AMSGrad maximum for weights saved without one.

    PyTorch creates it only at the first step of a weight; starting at 0, it is the maximum since
    then.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("amsgrad") else ():
            state = optimizer.state.get(parameter, {})
            if "exp_avg_sq" in state and "max_exp_avg_sq" not in state:
                state["max_exp_avg_sq"] = torch.zeros_like(state["exp_avg_sq"])


def _is_same(one: Any, other: Any) -> bool:
    """True if two options are equal, including tensors inside them."""
    first_tensors: dict[str, Tensor] = {}
    second_tensors: dict[str, Tensor] = {}
    if split_tensors(one, "option", first_tensors) != split_tensors(
        other, "option", second_tensors
    ):
        return False
    return all(torch.equal(first_tensors[name], second_tensors[name]) for name in first_tensors)


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


def _fitting_state(
    optimizer: Optimizer, groups: list[list[str]], state: Mapping[str, Any], partial: bool
) -> Mapping[str, Any]:
    """A saved state, adapted to these parameter groups; see `restore_optimizer`.

    Raises:
        SetpointError: type, groups or names differ.
    """
    if partial:
        state = _regrouped(state, groups)
    kind = type(optimizer).__name__
    if state["type"] != kind:
        raise SetpointError(
            f"the checkpoint contains the state of {state['type']}, but the optimizer is {kind}"
        )
    if len(state["groups"]) != len(groups):
        raise SetpointError(
            f"the checkpoint's optimizer has {len(state['groups'])} parameter groups, but this "
            f"one {len(groups)}; moved: {_some(_moved(optimizer, groups, state))}. {_RULES}"
        )
    for index, (group, entry) in enumerate(zip(groups, state["groups"], strict=True)):
        saved = set(entry["parameters"])
        only_saved, only_here = sorted(saved - set(group)), sorted(set(group) - saved)
        if only_saved or only_here:
            raise SetpointError(
                f"group {index} of the optimizer has other parameters than in the checkpoint; only "
                f"in the checkpoint: {_some(only_saved)}; only in this run: {_some(only_here)}. "
                f"{_RULES}"
            )
    return state


def _moved(optimizer: Optimizer, groups: list[list[str]], state: Mapping[str, Any]) -> list[str]:
    """The parameters that changed groups, with both groups."""
    before = _places([entry["parameters"] for entry in state["groups"]], state["groups"])
    today = _places(groups, optimizer.param_groups)
    return [
        f"{name} ({before.get(name, 'none')} -> {today.get(name, 'none')})"
        for name in dict.fromkeys((*before, *today))
        if before.get(name) != today.get(name)
    ]


def _places(
    groups: Sequence[Sequence[str]], options: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """The name of each parameter's group, or its number if it has no name."""
    return {
        name: str(index if given.get("name") is None else given["name"])
        for index, (group, given) in enumerate(zip(groups, options, strict=True))
        for name in group
    }


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:4]) or "none"
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"


def _with_saved_types(loaded: Any, saved: Any) -> Any:
    """The state loaded by torch, with tensors in their saved dtype."""
    if isinstance(loaded, Tensor):
        return loaded if loaded.dtype == saved.dtype else saved.to(loaded.device)
    if isinstance(loaded, dict):
        return {key: _with_saved_types(value, saved[key]) for key, value in loaded.items()}
    if isinstance(loaded, list | tuple):
        pairs = zip(loaded, saved, strict=True)
        return type(loaded)(_with_saved_types(one, other) for one, other in pairs)
    return loaded


def _placed(state: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """This rank's part of the state of a parameter."""
    placed: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, Tensor | Placeable) and value.shape == parameter.shape:
            value = as_placed(value, parameter)
        placed[key] = in_memory(value)
    return placed


def _laid_out(value: Any, parameter: Tensor) -> Any:
    """A tensor in the memory format of its parameter; files are contiguous.

    Fused kernels iterate over the memory of both in the same order.
    """
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    if value.stride() == parameter.stride():
        return value
    place = torch.empty_like(parameter, dtype=value.dtype, device=value.device, requires_grad=False)
    return place.copy_(value)


def split_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Move the tensors of a nested value to a flat dict.

    Arguments:
        value: tensors, None, bool, int, float, str; lists, tuples and dicts of these.
        name: the name of the value; the tensors inside are named `<name>/<key>/...`.
        tensors: the dict to fill; the tensors are not copied.

    Raises:
        TypeError: any other value; names it.
    """
    if isinstance(value, Tensor):
        tensors[name] = value
        return {_TENSOR: name}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or key in (_TENSOR, _TUPLE):
                raise TypeError(f"{name} has the key {key!r}, which cannot be saved")
        return {key: split_tensors(item, f"{name}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [split_tensors(item, f"{name}/{i}", tensors) for i, item in enumerate(value)]
        return {_TUPLE: items} if isinstance(value, tuple) else items
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name} is a {type(value).__name__}, which cannot be saved")


def join_tensors(value: Any, tensors: Named) -> Any:
    """Inverse of `split_tensors`.

    Returns:
        the value; its tensors are copies.

    Raises:
        KeyError: a tensor is missing.
    """
    if isinstance(value, dict):
        if _TENSOR in value:
            tensor = tensors[value[_TENSOR]]
            return tensor.clone() if isinstance(tensor, Tensor) else tensor
        if _TUPLE in value:
            return tuple(join_tensors(item, tensors) for item in value[_TUPLE])
        return {key: join_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [join_tensors(item, tensors) for item in value]
    return value
