"""fp16 is refused where no GPU is asked for, by the field that asks for it."""

from __future__ import annotations

import pytest

from setpoint.precision.fp16_fit import ON_A_GPU, fp16_problems


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_fp16_needs_a_gpu(device: str) -> None:
    (problem,) = fp16_problems("weights.dtype", "fp16", device)
    assert problem.path == "weights.dtype"
    assert problem.message.startswith("fp16 needs a GPU")
    assert problem.hint == ON_A_GPU


@pytest.mark.parametrize(("chosen", "device"), [("fp16", "cuda"), ("bf16", "cpu")])
def test_all_else_does_not(chosen: str, device: str) -> None:
    assert not list(fp16_problems("precision.compute", chosen, device))
