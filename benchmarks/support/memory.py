"""The most memory that tensors take while something runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(step: Callable[[], object], device: torch.device) -> int:
    """Run something once and find how far its tensors reach above what was there before.

    On a CPU it counts what torch's allocator was asked for, from the profiler's events, which is
    the same each time; the scratch space inside of matrix products is not in it.

    Arguments:
        step: run twice, of which the first time warms up; leaves nothing behind that it did not
            find, such as gradients.
        device: whose memory is meant.

    Returns:
        bytes.
    """
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    results = seen.profiler.kineto_results  # pyright: ignore[reportOptionalMemberAccess]
    events = [event for event in results.events() if event.name() == "[memory]"]
    # Above the lowest point before: what a step frees at its start, such as old gradients, is in
    # the events or not, as it was allocated while another profile was taken or not.
    now = lowest = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        lowest = min(lowest, now)
        peak = max(peak, now - lowest)
    return peak


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop what the profiler's own library prints to standard error when it starts and stops."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
