"""What fp16 needs of the device, as far as the configuration tells."""

from __future__ import annotations

from collections.abc import Iterator

from setpoint.config import Problem

ON_A_GPU = "On a GPU, say so with --parallel.device cuda."


def fp16_problems(path: str, chosen: str, device: str) -> Iterator[Problem]:
    """Look whether fp16 is asked of something else than a GPU.

    Arguments:
        device: `parallel.device`.
    """
    if chosen == "fp16" and device != "cuda":
        yield Problem(
            path,
            "fp16 needs a GPU: on a CPU its matrix products are hundreds of times slower "
            "than those of fp32",
            valid=("bf16", "fp32"),
            also=("parallel.device",),
            hint=ON_A_GPU,
        )
