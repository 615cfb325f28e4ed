"""The section `[parallel]`: device and number of ranks."""

from __future__ import annotations

from typing import Literal

from setpoint.config import RUNTIME, Config, Rule, field

RULES = (
    Rule("setpoint.parallel.device:device_problems", ("device",), "Whether the device is there",
         needs="torch", when=lambda parallel: parallel.device == "cuda"),
)  # fmt: skip


class Parallel(Config, role=RUNTIME, rules=RULES):
    """Device and number of ranks."""

    world_size: int = field(default=1, ge=1, also_called=("num_processes", "num_gpus", "n_gpus"))
    """World size: number of ranks, set by WORLD_SIZE or --world-size. check takes any number;
    training runs on 1 in this version."""

    device: Literal["auto", "cpu", "cuda"] = field(
        default="auto",
        also_called=("use_cpu", "no_cuda", "accelerator", "device_type"),
        values_also_called={"cuda": ("gpu", "cuda:0", "nvidia")},
    )
    """Device; auto: a GPU if there is one."""

    @property
    def data_ranks(self) -> int:
        """Number of ranks that read different data; all of them, as long as none share a batch."""
        return self.world_size
