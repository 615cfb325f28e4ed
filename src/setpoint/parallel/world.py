"""Which process this is among those of a job, on what device, and what they communicate."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from setpoint.parallel.config import Parallel
from setpoint.parallel.device import choose_device


@dataclass(frozen=True, slots=True)
class World:
    """One process of a job; without a process group it is the only one.

    Arguments:
        rank, size: of this process among all.
        data_rank, data_size: of this process among those that read different data.
    """

    device: torch.device
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    data_rank: int = 0
    data_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes what only one of them may write."""
        return self.rank == 0

    def sum(self, *tensors: Tensor) -> None:
        """Replace tensors by their sums over all ranks, in place."""
        if self.size > 1:
            for tensor in tensors:
                distributed.all_reduce(tensor)

    def any(self, flag: bool) -> bool:
        """Whether a flag is set on any rank; the same answer on all of them."""
        if self.size == 1:
            return flag
        found = torch.tensor(int(flag), device=self.device)
        distributed.all_reduce(found, distributed.ReduceOp.MAX)
        return bool(found)


def world_of(config: Parallel) -> World:
    """Find this process's place.

    Raises:
        SetpointError: if a GPU is asked for and there is none.
    """
    device = choose_device(config)
    if not (distributed.is_available() and distributed.is_initialized()):
        return World(device)
    rank, size = distributed.get_rank(), distributed.get_world_size()
    local = int(os.environ.get("LOCAL_RANK", rank))
    # All ranks hold the whole model so far, and each reads data of its own.
    return World(device, rank, size, local, data_rank=rank, data_size=size)
