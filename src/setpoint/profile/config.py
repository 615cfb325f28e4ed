"""The section `[profiling]`: which steps torch.profiler records, and which data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from setpoint.config import RUNTIME, Config, Problem, field, rule

if TYPE_CHECKING:
    from setpoint.parallel.config import Ranks


SNAPSHOT_ON_CPU = (
    "records only GPU memory, but {device}; profiling.memory records allocations on both"
)


class Profiling(Config, role=RUNTIME):
    """torch.profiler: cycles of skipped, warm-up and recorded steps."""

    skip: int = field(default=0, ge=0)
    """Steps of the session before the first cycle (skip_first)."""

    wait: int = field(default=1, ge=0)
    """Number of steps at the start of each cycle that are not profiled (wait)."""

    warmup: int = field(default=1, ge=0)
    """Number of steps after the wait that are traced but discarded, since tracing starts slowly
    (warmup)."""

    active: int = field(default=3, ge=1)
    """Number of steps after the warm-up that are recorded (active)."""

    repeat: int | None = field(default=1, ge=1)
    """Number of cycles; null: until training ends."""

    ranks: tuple[int, ...] | None = field(factory=lambda: (0,), item_ge=0)
    """Ranks to profile; null: all."""

    shapes: bool = False
    """Record the shapes of operators' inputs (record_shapes)."""

    memory: bool = False
    """Record memory allocations and frees of operators (profile_memory)."""

    stacks: bool = False
    """Record Python stack traces of operators (with_stack)."""

    flops: bool = False
    """Estimate the FLOPs of matrix products and convolutions (with_flops)."""

    directory: Path = Path("traces")
    """Trace directory, relative to the run directory."""

    top: int = field(default=15, ge=0)
    """Rows of the table of operators, sorted by time; 0: no table."""

    snapshot: bool = False
    """CUDA memory snapshot of the recorded steps, for pytorch.org/memory_viz."""

    @rule
    def _check_ranks(self) -> Iterator[Problem]:
        if self.ranks is not None and not self.ranks:
            yield Problem("ranks", "is empty, so nothing would be profiled", valid=("[0]", "null"))


def rank_problems(section: Profiling, parallel: Ranks) -> Iterator[Problem]:
    """Check that all ranks exist."""
    size = parallel.world_size
    for index, rank in enumerate(section.ranks or ()):
        if rank >= size:
            yield Problem(
                f"profiling.ranks.{index}",
                f"there is no rank {rank} among {size}",
                valid=("0",) if size == 1 else (f"0 to {size - 1}",),
                also=("parallel.world_size",),
            )


def snapshot_problem(device: str) -> Problem:
    """Problem of a memory snapshot without a GPU.

    Arguments:
        device: reason why there is no GPU: "the device is cpu".
    """
    return Problem(
        "profiling.snapshot",
        SNAPSHOT_ON_CPU.format(device=device),
        valid=("false",),
        also=("parallel.device",),
    )
