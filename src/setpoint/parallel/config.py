"""The section `[parallel]`: device, number of ranks, and what each of them holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from setpoint.config import (
    RUNTIME,
    Config,
    Problem,
    Rule,
    check,
    dead,
    field,
)

REST = -1
"""A degree that takes the ranks that the others leave."""

RULES = (
    Rule("setpoint.parallel.device:device_problems", ("device",), "Whether the device is there",
         needs="torch", when=lambda parallel: parallel.device == "cuda"),
)  # fmt: skip


class Ranks(Config, role=RUNTIME, rules=RULES):
    """Device and number of ranks."""

    world_size: int = field(default=1, ge=1, also_called=("num_processes", "num_gpus", "n_gpus"))
    """World size: number of ranks, set by WORLD_SIZE, --nproc or --world-size."""

    device: Literal["auto", "cpu", "cuda"] = field(
        default="auto",
        also_called=("use_cpu", "no_cuda", "accelerator", "device_type"),
        values_also_called={"cuda": ("gpu", "cuda:0", "nvidia")},
    )
    """Device; auto: a GPU if there is one."""


class Parallel(Ranks):
    """Device, number of ranks, and what each of them holds.

    The degrees of the axes multiply to the number of ranks. None of them changes what is trained:
    for the same seed, data and global batch the losses are those of one rank, up to rounding.
    """

    replicate: int | None = field(
        default=None, ge=1, also_called=("dp_replicate", "data_parallel_replicate_size", "ddp_size")
    )
    """Replicas of the weights (DDP; with `shard`, HSDP), each on `shard` ranks; null: as many as
    `shard` leaves ranks for."""

    shard: int = field(
        default=1,
        ge=REST,
        also_called=("dp_shard", "data_parallel_shard_size", "fsdp_size"),
    )
    """Sharding degree (FSDP2): ranks that divide weights, gradients and optimizer state among
    them; -1: the ranks that `replicate` leaves."""

    reshard: bool | int | None = field(
        default=None, also_called=("reshard_after_forward", "fsdp_reshard_after_forward")
    )
    """Whether sharded weights are freed between forward and backward (FSDP2's
    reshard_after_forward) and gathered twice; a number: kept on that many ranks; null: true for
    layers, false for what lies around them."""

    timeout: float = field(
        default=600.0,
        gt=0,
        also_called=("init_timeout_seconds", "train_timeout_seconds", "nccl_timeout_sec",
                     "ddp_timeout", "init_timeout", "step_timeout"),
    )  # fmt: skip
    """Seconds that a rank waits for the others before the run fails."""

    @dead("reshard")
    def _reshard_is_dead(self) -> str | None:
        return "no weights are sharded (shard = 1)" if self.shard == 1 else None

    @check
    def _check_degrees(self) -> Iterator[Problem]:
        ranks, shards, replicas = self.world_size, self.shards, self.replicas
        if self.shard == 0:
            yield Problem("shard", "is 0", valid=("1 or more", "-1: the ranks that are left"))
            return
        if replicas * shards == ranks:
            return
        given = self.replicate is not None
        product = f"{replicas} (replicate) * {shards} (shard) = {replicas * shards}"
        pairs = [f"{ranks // n} * {n}" for n in range(1, ranks + 1) if ranks % n == 0]
        yield Problem(
            "replicate" if given else "shard",
            f"the degrees do not multiply to the number of ranks: {product}, not {ranks}",
            valid=[f"replicate * shard = {pair}" for pair in pairs[:6]],
            also=("shard", "world_size") if given else ("world_size",),
        )

    @check
    def _check_reshard(self) -> Iterator[Problem]:
        count, shards = self.reshard, self.shards
        if isinstance(count, bool) or count is None:
            return
        if not (1 < count < shards and shards % count == 0):
            fit = [str(n) for n in range(2, shards) if shards % n == 0]
            yield Problem(
                "reshard",
                f"{count} is no proper divisor of the sharding degree {shards}",
                valid=("true", "false", "null", *fit),
                also=("shard",),
            )

    @property
    def replicas(self) -> int:
        """The number of copies of the weights."""
        if self.replicate is not None:
            return self.replicate
        return max(1, self.world_size // self.shard) if self.shard > 0 else 1

    @property
    def shards(self) -> int:
        """The number of ranks that divide one copy of the weights."""
        return max(1, self.world_size // self.replicas) if self.shard == REST else self.shard

    @property
    def data_ranks(self) -> int:
        """Number of ranks that read different data; all of them, as long as none share a batch."""
        return self.world_size
