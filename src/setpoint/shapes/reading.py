"""One rank reads, and sends what it has read to the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed

from setpoint.config import RunError, SetpointError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True)
class OneReader:
    """The first rank of a group, which all of its ranks know.

    Every rank calls every method, in the same order.

    Arguments:
        device: that tensors are sent on.
    """

    group: ProcessGroup
    device: torch.device

    @property
    def source(self) -> int:
        """The number of the rank that reads, among all."""
        return distributed.get_global_rank(self.group, 0)

    @property
    def is_source(self) -> bool:
        """Whether it is this one."""
        return distributed.get_rank() == self.source

    def read(self, act: Callable[[], None]) -> None:
        """Let the rank that reads act alone.

        Raises:
            SetpointError: what it has raised; on the others a `RunError` that says so.
        """
        said: list[str | None] = [None]
        failure: SetpointError | None = None
        if self.is_source:
            try:
                act()
            except SetpointError as error:
                failure, said[0] = error, str(error)
        distributed.broadcast_object_list(
            said, src=self.source, group=self.group, device=self.device
        )
        if failure is not None:
            raise failure
        if said[0] is not None:
            raise RunError(f"rank {self.source} could not read: {said[0]}")

    def tensor(
        self, read: Callable[[], Tensor], shape: Sequence[int], dtype: torch.dtype
    ) -> Tensor:
        """Read a tensor of known shape and dtype.

        Returns:
            it, on the device that it was sent on.
        """
        found: list[Tensor] = []
        self.read(lambda: found.append(read()))
        read_here = found[0] if found else torch.empty(shape, dtype=dtype)
        sent = read_here.to(self.device)
        distributed.broadcast(sent, src=self.source, group=self.group)
        return sent

    @torch.no_grad()
    def send(self, tensors: Sequence[Tensor]) -> None:
        """Give tensors on all ranks the values that they have on the one that reads."""
        for tensor in tensors:
            tensor.copy_(self.tensor(lambda tensor=tensor: tensor, tensor.shape, tensor.dtype))
