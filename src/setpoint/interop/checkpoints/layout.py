"""Layout of a system's checkpoints: names of tensors, and their mapping to Setpoint models.

A system is a table like a family of `setpoint.model.pretrained`: its module names by Setpoint's
names, and the families in which adjacent dimensions form rotated pairs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from setpoint.config import RunError, SetpointError
from setpoint.model.config import TransformerConfig
from setpoint.model.pretrained.weight_names import Names, Piece, TensorNames, pieces_of, renamed

Named = dict[str, Tensor]
MOMENTS: Final = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
"""States of AdamW that have the shape of their parameter."""
_TOP: Final = "~."
"""Common prefix of the names in tables; names in files have none."""


@dataclass(slots=True)
class Contents:
    """Contents of checkpoint files, under the names of their system.

    Arguments:
        states: optimizer states with the shape of their parameter, by state and parameter.
        updates: number of optimizer updates, by parameter.
        step: training step; None if the files have none.
        keys: config.json keys of the model; None if the files do not describe it.
        unconverted: reason why the files' description of the model is not in `keys`.
        has_biases: False if modules that have biases in config.json have none.
        notes: parts that were not read, with the reasons.
    """

    path: Path
    tensors: Named
    states: dict[str, Named] = field(default_factory=dict[str, Named])
    updates: dict[str, int] = field(default_factory=dict[str, int])
    step: int | None = None
    keys: dict[str, Any] | None = None
    unconverted: str = ""
    has_biases: bool = True
    notes: list[str] = field(default_factory=list[str])

    def note(self, text: str) -> None:
        """Add a note, unless it exists already."""
        if text not in self.notes:
            self.notes.append(text)


class Stacked(NamedTuple):
    """Tensors of one module for all layers or all experts, stacked in files.

    Arguments:
        pattern: pattern of the stacked name.
        each: name of a single tensor, with `{}` for its number.
        numbers: numbers to use in place of 0, 1, ...
    """

    pattern: str
    each: str
    numbers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ForeignSystem:
    """A system and the layout of its checkpoints.

    Arguments:
        families: supported `model_type`s of transformers, and whether each rotates adjacent pairs
            instead of halves of a head.
        read: reads a path; the second argument requests the optimizer state.
        layer: name of a layer, with `{}` for its number.
        norms: name of norm weights.
        grouped: modules in which the rows of queries, keys and values alternate by key-value head,
            and the names of the module with these in sequence, or of the three modules.
        other_names: replacements in names from the files, for other releases and options.
        surplus: patterns of ignored names.
    """

    title: str
    families: Mapping[str, bool]
    names: Names
    layer: str
    read: Callable[[Path, bool], Contents]
    norms: str = "weight"
    stacked: tuple[Stacked, ...] = ()
    grouped: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    other_names: Mapping[str, str] = field(default_factory=dict[str, str])
    surplus: tuple[str, ...] = ()

    def pieces(self, config: TransformerConfig, family: str, tokens: int) -> list[Piece]:
        """Pieces of a Setpoint model, built from the tensors of `arranged`; see `pieces_of`."""
        names = TensorNames(
            names=self.names, layer=f"{_TOP}{self.layer}", interleaved=self.families[family]
        )

        def rename(name: str) -> str:
            plain = name.removeprefix(_TOP)
            return re.sub(r"(norm[^.]*)\.weight$", rf"\1.{self.norms}", plain)

        return renamed(pieces_of(names, config, tokens), rename)

    def arranged(self, tensors: Mapping[str, Tensor], config: TransformerConfig) -> Named:
        """The tensors under the names in the table, one per module of each layer and expert."""
        result: Named = {}
        for name, tensor in tensors.items():
            name = name.replace("_orig_mod.", "")  # prefix of torch.compile
            for old, new in self.other_names.items():
                name = name.replace(old, new)
            for key, part in self._unstacked(name, tensor):
                module = next((m for m in self.grouped if f".{m}." in key), None)
                if module is None:
                    result[key] = part
                    continue
                modules, parts = self.grouped[module], _ungrouped(part, config)
                parts = parts if len(modules) > 1 else [torch.cat(parts)]
                for new, rows in zip(modules, parts, strict=False):
                    result[key.replace(module, new)] = rows
        return result

    def _unstacked(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        for pattern, template, numbers in self.stacked:
            if tensor.ndim and (match := re.fullmatch(pattern, name)):
                for number, part in enumerate(tensor.unbind()):
                    word = numbers[number] if number < len(numbers) else number
                    yield from self._unstacked(match.expand(template).format(word), part)
                return
        yield name, tensor


def _ungrouped(tensor: Tensor, config: TransformerConfig) -> list[Tensor]:
    """Rows of all queries, keys and values, from rows that alternate by key-value head."""
    of_group, rest = config.heads // config.kv_heads + 2, tensor.shape[1:]
    if tensor.shape[0] != config.kv_heads * of_group * config.head_dim:
        return [tensor]  # the error reports its shape
    heads = tensor.view(config.kv_heads, of_group, config.head_dim, *rest)
    return [part.reshape(-1, *rest) for part in heads.split([of_group - 2, 1, 1], 1)]


def tensors_in(path: Path, content: object) -> Named:
    """The tensors in a state dict.

    Raises:
        SetpointError: the content is not a state dict.
    """
    if not isinstance(content, dict) or not content:
        raise SetpointError(f"{path} contains no state dict (a mapping from names to tensors)")
    bad = [str(name) for name, value in content.items() if not isinstance(value, Tensor)]
    if bad:
        raise SetpointError(f"{path}: {bad[0]} is a {type(content[bad[0]]).__name__}, no tensor")
    return {str(name): value for name, value in content.items()}


def take_numbered_states(contents: Contents, names: list[list[str]], content: Any) -> None:
    """Read the state dict of a torch optimizer whose groups contain parameters with these names.

    Raises:
        RunError: the state dict has other parameters.
    """
    groups: list[list[int]] = [list(group["params"]) for group in content["param_groups"]]
    counts, expected = ([len(group) for group in lists] for lists in (groups, names))
    if counts != expected:
        raise RunError(
            f"{contents.path}: the optimizer has groups of {counts} parameters, but those of the "
            f"model make groups of {expected}"
        )
    pairs = zip(chain.from_iterable(groups), chain.from_iterable(names), strict=True)
    take_states(contents, {name: content["state"].get(number, {}) for number, name in pairs})


def take_states(contents: Contents, states: Mapping[str, Mapping[str, Any]]) -> None:
    """Read the states of AdamW by parameter; add notes about those of other optimizers.

    Raises:
        RunError: the shapes of a state and its parameter differ.
    """
    for name, state in states.items():
        shape = contents.tensors[name].shape if name in contents.tensors else None
        for key in MOMENTS:
            if key not in state:
                continue
            if state[key].shape != shape:
                raise RunError(
                    f"{contents.path}: {key} of {name} is {tuple(state[key].shape)}, and {name} "
                    f"is {None if shape is None else tuple(shape)}"
                )
            contents.states.setdefault(key, {})[name] = state[key]
        if "step" in state:
            contents.updates[name] = int(state["step"])
    if not contents.states:
        known = {key for state in states.values() for key in state}
        contents.note(
            f"the optimizer state was not read: it has {', '.join(sorted(known)) or 'none'}, but "
            f"only AdamW's ({', '.join(MOMENTS[:2])}) is supported"
        )


def unique_names(tensors: Named) -> list[str]:
    """Names of tensors in the order of the model's parameters; for tied ones, the first name."""
    first_names: dict[object, str] = {}
    for name, tensor in tensors.items():
        first_names.setdefault((tensor.data_ptr(), tensor.shape) if tensor.numel() else name, name)
    return list(first_names.values())


def only_file(path: Path, names: Iterable[str]) -> Path:
    """The path itself if it is a file, else the first file in it that matches a pattern.

    Raises:
        SetpointError: no file matches, or several match one pattern.
    """
    if path.is_file():
        return path
    for pattern in names:
        if match := sorted(path.glob(pattern)):
            if len(match) > 1:
                listed = ", ".join(file.name for file in match[:4])
                raise SetpointError(f"{path} has {len(match)} such files ({listed}); name one")
            return match[0]
    raise SetpointError(f"{path} contains none of the files {', '.join(names)}")
