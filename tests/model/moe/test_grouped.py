from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from setpoint.model.moe.experts import grouped_product, looped_product, why_not_grouped


def matrices(rows: int = 16, columns: int = 24, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(3, rows, columns).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_where_it_is_offered_it_works_forward_and_backward(dtype: torch.dtype) -> None:
    many = matrices(dtype=dtype).requires_grad_()
    rows, ends = torch.randn(7, 16).to(dtype).requires_grad_(), torch.tensor([2, 2, 7])
    assert why_not_grouped(many) is None
    product = grouped_product(rows, many, ends.int())
    torch.testing.assert_close(product, looped_product(rows, many, ends))
    product.float().square().sum().backward()
    assert many.grad is not None and not many.grad[1].any() and many.grad[2].any()


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "words"),
    [
        (16, 24, torch.float64, "does not compute in torch.float64"),
        (16, 6, torch.float32, "multiples of 4 in torch.float32, and one is 6"),
        (12, 16, torch.bfloat16, "multiples of 8 in torch.bfloat16, and one is 12"),
    ],
)
def test_why_not(rows: int, columns: int, dtype: torch.dtype, words: str) -> None:
    reason = why_not_grouped(matrices(rows, columns, dtype))
    assert reason is not None and words in reason


def test_why_not_without_data() -> None:
    with FakeTensorMode():
        assert "compiled" in (why_not_grouped(torch.empty(3, 16, 24)) or "")
        assert why_not_grouped(torch.empty(3, 16, 24, dtype=torch.bfloat16)) is None
    assert "for meta" in (why_not_grouped(torch.empty(3, 16, 24, device="meta")) or "")


class OnGpu(torch.Tensor):
    """Says that it lies on a GPU; plain otherwise."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("capability", "dtype", "words"),
    [
        ((9, 0), torch.bfloat16, None),
        ((8, 0), torch.bfloat16, None),
        ((7, 5), torch.bfloat16, "compute capability 8.0, this one has 7.5"),
        ((9, 0), torch.float32, "in bf16"),
    ],
)
def test_on_gpus(capability: tuple[int, int], dtype: torch.dtype, words: str | None) -> None:
    many = matrices(dtype=dtype).as_subclass(OnGpu)
    with patch("torch.cuda.get_device_capability", return_value=capability):
        reason = why_not_grouped(many)
    assert (reason is None) if words is None else (words in (reason or "")), reason


def test_an_older_pytorch() -> None:
    with patch("setpoint.model.moe.experts.F", object()):
        assert "has none" in (why_not_grouped(matrices()) or "")
