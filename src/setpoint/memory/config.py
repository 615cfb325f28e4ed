"""The section `[memory]`: activation checkpointing, CPU offload and caches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from setpoint.config import RUNTIME, Config, Problem, field, rule
from setpoint.units import ByteSize, Period

SAVE = ("matmul", "attention", "exchange")


class CheckpointingConfig(Config, role=RUNTIME):
    """Activation checkpointing: what all types share."""

    every: int = field(default=1, ge=1)
    """Checkpoint every n-th layer, starting with the first; 1: all."""


class Full(
    CheckpointingConfig, type="full", owner="setpoint.memory.checkpointing:full", role=RUNTIME
):
    """Full activation checkpointing: save each layer's input, recompute the layer in backward."""

    reentrant: bool = False
    """use_reentrant of torch.utils.checkpoint: its older implementation, which runs backward within
    backward."""


class CheckpointedParts(
    CheckpointingConfig, type="parts", owner="setpoint.memory.checkpointing:parts", role=RUNTIME
):
    """Activation checkpointing of submodules: recompute attention or feed-forward in backward."""

    parts: tuple[Literal["attention", "feed_forward"], ...] = field(factory=lambda: ("attention",))
    """Submodules whose activations are recomputed in backward."""

    reentrant: bool = False
    """use_reentrant of torch.utils.checkpoint: its older implementation, which runs backward within
    backward."""

    @rule
    def _check_parts(self) -> Iterator[Problem]:
        if not self.parts:
            yield Problem(
                "parts",
                "is empty, so nothing would be recomputed",
                valid=("[attention]", "[attention, feed_forward]"),
            )


class Operators(
    CheckpointingConfig,
    type="operators",
    owner="setpoint.memory.checkpointing:operators",
    role=RUNTIME,
):
    """Selective activation checkpointing: save results of expensive operators, recompute others."""

    save: tuple[Literal["matmul", "attention", "exchange"], ...] = field(factory=lambda: SAVE)
    """Operators whose results are saved: matrix products, attention kernels (where possible), and
    expert exchanges (all-to-all), which then are not repeated; results that are only sent are not
    saved."""

    matmul_every: int = field(default=1, ge=1)
    """Save every n-th matrix product of a layer; 1: all, 2: every other one."""

    @rule
    def _check_save(self) -> Iterator[Problem]:
        if not self.save:
            yield Problem(
                "save",
                "is empty; to recompute whole layers, use type = full",
                valid=("[matmul]", "[matmul, attention]", "[exchange]"),
            )
        elif self.matmul_every != 1 and "matmul" not in self.save:
            yield Problem(
                "matmul_every",
                "has no effect: save lists no matmul",
                also=("save",),
                hint="Remove it.",
            )


class ActivationOffload(
    Config, owner="setpoint.memory.activation_offload:offload_activations", role=RUNTIME
):
    """Activation offload: keep saved activations in CPU memory until backward."""

    limit: ByteSize = ByteSize(0)
    """Bytes of saved activations that stay on the device; 0: none."""

    smallest: ByteSize = ByteSize(2**20)
    """Minimum tensor size to offload, in bytes; smaller tensors stay on the device."""


class Memory(Config, role=RUNTIME):
    """Activation checkpointing, CPU offload and allocator settings."""

    activation_checkpointing: CheckpointingConfig | None = None
    """Activation checkpointing (gradient checkpointing): recompute activations in backward; null:
    off."""

    activation_offload: ActivationOffload | None = None
    """Activation offload to CPU memory; null: all on the device."""

    empty_cache: Period = Period("never")
    """Interval of torch.cuda.empty_cache(), which returns cached GPU memory to the driver."""

    expandable_segments: bool = True
    """Growing segments of PyTorch's GPU memory allocator (expandable_segments), for less
    fragmentation; PYTORCH_ALLOC_CONF in the environment overrides it. No effect on a CPU."""

    malloc_retain: bool = True
    """Keep freed CPU memory in the process, for fewer page faults (malloc trim and mmap thresholds
    of glibc; others: no effect); false: return it to the system."""
