from typing import Any

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

from setpoint.memory import checkpointing
from setpoint.memory.checkpointing import ATTENTION, MATMUL, contexts

ATEN = torch.ops.aten
KEPT, AGAIN = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE


def policies(
    *given: tuple[Any, tuple[Any, ...]],
    save: tuple[str, ...] = ("matmul", "attention"),
    every: int = 1,
    recompute: bool = False,
    counts: list[int] | None = None,
) -> list[CheckpointPolicy]:
    context = SelectiveCheckpointContext(is_recompute=recompute)
    counts = [0, 0] if counts is None else counts
    return [
        checkpointing._policy(save, every, counts, context, operator, *args)
        for operator, args in given
    ]


def test_products_are_counted_apart_in_both_passes() -> None:
    products = [(ATEN.mm.default, ()), (ATEN.addmm.default, ()), (ATEN.bmm.default, ())]
    others = [(ATEN.add.Tensor, ()), (ATEN.relu.default, ())]
    assert policies(*products, *others) == [KEPT] * 3 + [AGAIN] * 2
    assert policies(*products, *products, every=3) == [KEPT, AGAIN, AGAIN] * 2
    counts = [0, 0]
    first = policies(*products, every=2, counts=counts)
    assert policies(*products, every=2, counts=counts, recompute=True) == first
    assert policies(*products, save=("attention",)) == [AGAIN] * 3


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("_scaled_dot_product_flash_attention", 0),
        ("_scaled_dot_product_flash_attention_for_cpu", 0),
        ("_scaled_dot_product_efficient_attention", 2),
        ("_scaled_dot_product_cudnn_attention", 2),
    ],
)
def test_attention_is_kept_unless_it_draws_random_numbers(name: str, before: int) -> None:
    operator = getattr(ATEN, name).default
    given = (None,) * (3 + before)
    found = policies((operator, given), (operator, (*given, 0.0)), (operator, (*given, 0.1)))
    assert found == [KEPT, KEPT, AGAIN]
    assert policies((operator, given), save=("matmul",)) == [AGAIN]


def test_flex_attention_is_an_operator_of_a_higher_order() -> None:
    assert policies((torch.ops.higher_order.flex_attention, ())) == [KEPT]


def test_the_names_are_those_of_this_pytorch() -> None:
    known = set(torch._C._dispatch_get_all_op_names())
    for name in MATMUL | ATTENTION:
        if name.startswith("aten::") and not name.endswith("_v2"):
            assert name in known


def test_each_pass_has_contexts_of_its_own() -> None:
    one, other = contexts(("matmul",), 1), contexts(("matmul",), 1)
    assert one[0].storage is one[1].storage
    assert one[0].storage is not other[0].storage
