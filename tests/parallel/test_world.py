"""One process is the whole world; how two of them add up is tested where they balance experts."""

from __future__ import annotations

import torch

from setpoint.config import resolve
from setpoint.parallel.config import Parallel
from setpoint.parallel.world import World, world_of


def test_one_process() -> None:
    world = world_of(resolve(Parallel(device="cpu")))
    assert world == World(torch.device("cpu")) and world.is_main
    tensor = torch.tensor([1.0, 2.0])
    world.sum(tensor)
    assert tensor.tolist() == [1.0, 2.0]
    assert (world.any(True), world.any(False)) == (True, False)
