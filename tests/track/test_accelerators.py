"""Peaks by the names that drivers give."""

from __future__ import annotations

import pytest

from setpoint.track.accelerators import peak_of


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", 989.5), ("NVIDIA H100 PCIe", 756.5), ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.5), ("NVIDIA GH200 480GB", 989.5), ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500), ("NVIDIA A100-SXM4-80GB", 312), ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA A10", 125), ("NVIDIA A40", 149.7), ("NVIDIA L4", 121), ("NVIDIA L40", 181),
        ("NVIDIA L40S", 362), ("Tesla V100-SXM2-16GB", 125), ("Tesla V100-PCIE-32GB", 112),
        ("Tesla T4", 65), ("NVIDIA GeForce RTX 4090", 165.2), ("AMD Instinct MI300X", 1307.4),
    ],
)  # fmt: skip
def test_known(name: str, tera: float) -> None:
    peak = peak_of(name)
    assert peak is not None
    assert peak.flops == tera * 1e12
    assert peak.source


@pytest.mark.parametrize(
    "name", ["", "AMD EPYC", "NVIDIA RTX A1000", "NVIDIA A10G", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"]
)
def test_unknown(name: str) -> None:
    assert peak_of(name) is None
