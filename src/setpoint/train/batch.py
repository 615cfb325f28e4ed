"""The section `[batch]` and its arithmetic: global = micro * accumulation * ranks."""

from __future__ import annotations

from setpoint.config import RUNTIME, Config, derived, field

DEFAULT_GLOBAL_SIZE = 8


class Batch(Config):
    """How many sequences make an update, and in what portions they go through the model.

    Give any two of the three sizes, or fewer: what is not given is derived.
    """

    global_size: int = derived(
        ge=1,
        also_called=(
            "global_batch_size",
            "train_batch_size",
            "global_train_batch_size",
            "effective_batch_size",
            "batch_size",
        ),
    )
    """Sequences per update over all ranks: micro_size * accumulation * ranks; 8 if no size is
    given."""

    micro_size: int = derived(
        ge=1,
        role=RUNTIME,
        also_called=(
            "per_device_train_batch_size",
            "per_device_batch_size",
            "micro_batch_size",
            "local_batch_size",
            "train_micro_batch_size_per_gpu",
            "device_train_microbatch_size",
            "device_batch_size",
            "batch_size",
        ),
    )
    """Sequences in one forward and backward on one rank."""

    accumulation: int = derived(
        ge=1,
        role=RUNTIME,
        also_called=(
            "gradient_accumulation_steps",
            "gradient_accumulation_iters",
            "grad_accumulation_steps",
            "grad_accum_steps",
            "accumulate_grad_batches",
            "grad_accum",
            "accumulation_steps",
            "gradient_accumulation",
        ),
    )
    """Forward and backward passes per update on each rank; 1 unless it follows from the others."""

    sequence_length: int = field(
        default=256,
        ge=1,
        also_called=(
            "seq_len",
            "seq_length",
            "sequence_len",
            "max_seq_length",
            "max_seq_len",
            "max_length",
            "block_size",
            "context_length",
            "cutoff_len",
            "context_size",
            "max_len",
        ),
    )
    """Tokens in a sequence, as the model sees them."""


def solve_batch(
    global_size: int | None, micro_size: int | None, accumulation: int | None, ranks: int
) -> tuple[int, int, int]:
    """Complete the three sizes.

    What does not divide is rounded down here; `Job` then reports the sum that does not add up.

    Arguments:
        global_size, micro_size, accumulation: what is given; None for what is not.
        ranks: number of data-parallel ranks.

    Returns:
        all three sizes.
    """
    if global_size is None:
        if micro_size is None and accumulation is None:
            global_size = DEFAULT_GLOBAL_SIZE
        else:
            micro_size, accumulation = micro_size or 1, accumulation or 1
            global_size = micro_size * accumulation * ranks
    if micro_size is None:
        micro_size = max(1, global_size // ((accumulation or 1) * ranks))
    if accumulation is None:
        accumulation = max(1, global_size // (micro_size * ranks))
    return global_size, micro_size, accumulation


def batch_sum(global_size: int, micro_size: int, accumulation: int, ranks: int) -> str:
    """The sum as people read it.

    Arguments:
        global_size, micro_size, accumulation, ranks: the four sizes.

    Returns:
        for instance `64 = 8 (micro) * 4 (accumulation) * 2 (ranks)`.
    """
    return f"{global_size} = {micro_size} (micro) * {accumulation} (accumulation) * {ranks} (ranks)"


def nearest_multiples(value: int, step: int) -> list[int]:
    """The multiples of `step` on both sides of a value.

    Arguments:
        value: at least 1.
        step: at least 1.

    Returns:
        one or two positive multiples, the nearest first.
    """
    below = value // step * step
    found = [size for size in (below, below + step) if size > 0]
    return sorted(found, key=lambda size: abs(size - value))
