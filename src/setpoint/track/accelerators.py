"""Peak rates of accelerators by driver name, for MFU."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

GPUS = Path(__file__).with_name("gpus.toml")
"""Table of GPUs, also for plans."""


class Peak(NamedTuple):
    """Specified peak rate of dense 16-bit matrix products.

    Arguments:
        flops: floating-point operations per second in bfloat16 with float32 sums (float16 if the
            chip lacks bfloat16), without sparsity.
    """

    flops: float
    source: str


def peak_of(device_name: str) -> Peak | None:
    """The peak of a device.

    Arguments:
        device_name: the name reported by the driver, for example `NVIDIA H100 80GB HBM3`.

    Returns:
        the peak and its source; None for unknown devices and CPUs, whose peak depends on clocks
        that are not guaranteed.
    """
    if "MIG" in device_name:  # a part of a chip, whose share is not in its name
        return None
    table = tomllib.loads(GPUS.read_text(encoding="utf-8"))
    for pattern, entry in table["drivers"].items():
        # Whole words only: an RTX A1000 is not an A100.
        if re.search(rf"\b(?:{pattern})\b", device_name):
            if isinstance(entry, str):
                gpu = table["gpus"][entry]
                return Peak(gpu["peak"].get("bf16") or gpu["peak"]["fp16"], gpu["source"])
            return Peak(entry["peak"], entry["source"])
    return None
