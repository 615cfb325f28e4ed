"""What Setpoint's own optimizers share: a step goes through the groups."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import torch
from torch import Tensor

from setpoint.optim.uncompiled import Uncompiled


class GroupedOptimizer(Uncompiled):
    """An optimizer whose step updates one group of parameters after the other."""

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update the parameters that have gradients.

        Arguments:
            closure: computes the loss again, before the update.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self.update(group)
        return loss

    @abstractmethod
    def update(self, group: dict[str, Any]) -> None:
        """Update the parameters of a group.

        Arguments:
            group: one of `param_groups`; parameters without gradients stay as they are.
        """
        ...


def together(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Split parameters into those that are taken through the operations of a step together.

    Returns:
        all that lie on a GPU at once, which saves it launches; those on a CPU one by one, so that
        what an operation has written is still in the cache for the next.
    """
    yield from ([p] for p in parameters if p.device.type == "cpu")
    if others := [p for p in parameters if p.device.type != "cpu"]:
        yield others
