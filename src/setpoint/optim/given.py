"""The parameters as an optimizer is given them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from torch import Tensor

Given: TypeAlias = Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
"""Groups of PyTorch's form, or (qualified name, parameter) pairs, which make one group."""


def given_groups(parameters: Given) -> list[dict[str, Any]]:
    """Bring what an optimizer is given into the form of groups.

    Arguments:
        parameters: groups, as from `parameter_groups`, or pairs, as from
            `module.named_parameters()`.

    Returns:
        groups of their own, whose `params` are lists; names stay with them.
    """
    groups: list[dict[str, Any]] = []
    pairs: list[tuple[str, Tensor]] = []
    for item in parameters:
        if isinstance(item, dict):
            groups.append({**item, "params": list(item["params"])})
        else:
            pairs.append(item)
    return [*groups, {"params": pairs}] if pairs else groups


def given_tensors(groups: Iterable[dict[str, Any]]) -> Iterator[Tensor]:
    """Go through the parameters of groups."""
    for group in groups:
        for item in group["params"]:
            yield item[1] if isinstance(item, tuple) else item
