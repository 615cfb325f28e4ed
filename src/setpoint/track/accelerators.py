"""Peak rates of known accelerators, for MFU."""

from __future__ import annotations

import re
from typing import NamedTuple


class Peak(NamedTuple):
    """Specified peak rate of dense 16-bit matrix products.

    Arguments:
        flops: floating-point operations per second in bfloat16 with float32 sums (float16 if the
            chip lacks bfloat16), without sparsity.
    """

    flops: float
    source: str


# Name as given by the driver -> peak. The first match is used, so specific names come first.
_PEAKS: tuple[tuple[str, float, str], ...] = (
    (r"GB200", 2500e12, "NVIDIA GB200 NVL72 datasheet, half of the sparse 5000"),
    (r"B200", 2250e12, "NVIDIA DGX B200 datasheet, half of the sparse 4500"),
    (r"H200 NVL", 835.5e12, "NVIDIA H200 datasheet, half of the sparse 1671"),
    (r"GH200|H200", 989.5e12, "NVIDIA H200 datasheet, half of the sparse 1979"),
    (r"H100 NVL", 835.5e12, "NVIDIA H100 datasheet, half of the sparse 1671"),
    (r"H100 PCIe", 756.5e12, "NVIDIA H100 PCIe datasheet, half of the sparse 1513"),
    (r"H100|H800", 989.5e12, "NVIDIA H100 datasheet (SXM), half of the sparse 1979"),
    (r"A100|A800", 312e12, "NVIDIA A100 datasheet"),
    (r"A40", 149.7e12, "NVIDIA A40 datasheet"),
    (r"A30", 165e12, "NVIDIA A30 datasheet"),
    (r"A10", 125e12, "NVIDIA A10 datasheet"),
    (r"L40S", 362e12, "NVIDIA L40S datasheet"),
    (r"L40", 181e12, "NVIDIA L40 datasheet"),
    (r"L4", 121e12, "NVIDIA L4 datasheet, half of the sparse 242"),
    (r"V100-PCIE", 112e12, "NVIDIA V100 datasheet (PCIe), float16"),
    (r"V100", 125e12, "NVIDIA V100 datasheet (SXM2), float16"),
    (r"T4", 65e12, "NVIDIA T4 datasheet, float16"),
    (r"RTX 4090", 165.2e12, "NVIDIA Ada architecture whitepaper"),
    (r"MI325X", 1307.4e12, "AMD Instinct MI325X datasheet"),
    (r"MI300X", 1307.4e12, "AMD Instinct MI300X datasheet"),
    (r"MI250X", 191.5e12, "AMD Instinct MI250X datasheet, one of its two dies"),
)


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
    for pattern, flops, source in _PEAKS:
        # Whole words only: an RTX A1000 is not an A100.
        if re.search(rf"\b(?:{pattern})\b", device_name):
            return Peak(flops, source)
    return None
