"""Optimizer state that waits in the host's memory between steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

if TYPE_CHECKING:
    from setpoint.memory.config import OptimizerOffload


def offload_optimizer(config: OptimizerOffload, optimizer: Optimizer, device: torch.device) -> None:
    """Make an optimizer keep its state on the host, and update some parameters at a time.

    A step is that of the optimizer as it was, bit by bit, as long as it updates each parameter
    by itself. The state that checkpoints take and give is the same.

    Arguments:
        optimizer: changed in place; it has taken no step yet.
    """
    StateOnHost(optimizer, int(config.limit), device)


class StateOnHost:
    """Brings the state of some parameters to the device, updates them, and takes it back.

    Numbers that are no larger than one element stay where they are. As much state as there will
    be is not known before the first step, which goes parameter by parameter.

    Arguments:
        optimizer: whose `step` is replaced.
        limit: bytes of state on the device at once; a parameter's state is there at once.
    """

    def __init__(self, optimizer: Optimizer, limit: int, device: torch.device) -> None:
        self.optimizer, self.limit, self.device = optimizer, limit, device
        self.pinned = device.type == "cuda"
        self.step_all = optimizer.step
        optimizer.step = self.step  # pyright: ignore[reportAttributeAccessIssue]
        # State that is loaded would all come to the device first.
        optimizer.register_load_state_dict_pre_hook(_hide)
        optimizer.register_load_state_dict_post_hook(partial(_show, self))

    def step(self) -> None:
        """Take a step."""
        groups = self.optimizer.param_groups
        before = [dict(group) for group in groups]
        try:
            for chunk in list(self._chunks()):
                for group, was, places in zip(groups, before, chunk, strict=True):
                    if places:
                        # Whatever a group counts, the parts of a step count as one.
                        group.update(was)
                    for key in ("params", "param_names"):
                        if key in was:
                            group[key] = [was[key][place] for place in places]
                # Some optimizers take no empty groups.
                self.optimizer.param_groups = [group for group in groups if group["params"]]
                some = [p for group in groups for p in group["params"]]
                self._update([p for p in some if p.grad is not None])
        finally:
            self.optimizer.param_groups = groups
            for group, was in zip(groups, before, strict=True):
                group.update({k: was[k] for k in ("params", "param_names") if k in was})
        if self.pinned:
            # Who reads the state next, such as a checkpoint, does not wait for copies.
            torch.cuda.current_stream(self.device).synchronize()

    def _chunks(self) -> Iterator[list[list[int]]]:
        """The places of parameters in their groups, so many that their state fits the limit."""
        groups = self.optimizer.param_groups
        chunk: list[list[int]] = [[] for _ in groups]
        size = 0
        for index, group in enumerate(groups):
            for place, parameter in enumerate(group["params"]):
                needed = self._needed(parameter)
                if size and size + needed > self.limit:
                    yield chunk
                    chunk, size = [[] for _ in groups], 0
                chunk[index].append(place)
                size += needed
        if any(chunk):
            yield chunk

    def _needed(self, parameter: Tensor) -> int:
        if parameter.grad is None:
            return 0  # it is not updated
        state = self.optimizer.state.get(parameter)
        # Without state its size is not known: it goes alone.
        return _bytes(state) if state else self.limit + 1

    def _update(self, parameters: list[Tensor]) -> None:
        state = self.optimizer.state
        homes = {p: dict(state[p]) for p in parameters if p in state}
        for parameter, home in homes.items():
            for key, value in home.items():
                if _travels(value):
                    state[parameter][key] = value.to(
                        self.device, non_blocking=self.pinned, copy=True
                    )
        self.step_all()
        for parameter in parameters:
            home = homes.get(parameter, {})
            for key, value in state.get(parameter, {}).items():
                if _travels(value):
                    state[parameter][key] = self._home(value, home.get(key))

    def _home(self, value: Tensor, host: Any) -> Tensor:
        """Copy to the host, to where it was if it has a place there."""
        fits = isinstance(host, Tensor) and host.shape == value.shape and host.dtype == value.dtype
        return (host if fits else self.place(value)).copy_(value, non_blocking=self.pinned)

    def place(self, value: Tensor) -> Tensor:
        """Make a place on the host."""
        pin = self.pinned and type(value) is Tensor
        return torch.empty_like(value, device="cpu", requires_grad=False, pin_memory=pin)


class _Hidden:
    """A tensor that torch does not look into when it loads a state."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _hide(optimizer: Optimizer, content: dict[str, Any]) -> dict[str, Any]:
    del optimizer
    state = {
        number: {k: _Hidden(v) if _travels(v) else v for k, v in values.items()}
        for number, values in content["state"].items()
    }
    return {**content, "state": state}


def _show(here: StateOnHost, optimizer: Optimizer) -> None:
    for values in optimizer.state.values():
        for key, value in values.items():
            if isinstance(value, _Hidden):
                values[key] = here.place(value.tensor).copy_(value.tensor)


def _travels(value: object) -> bool:
    return isinstance(value, Tensor) and value.numel() > 1


def _bytes(state: Mapping[str, Any]) -> int:
    return sum(v.numel() * v.element_size() for v in state.values() if _travels(v))
