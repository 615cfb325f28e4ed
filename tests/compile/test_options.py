"""Options, nested or dotted."""

from __future__ import annotations

import pytest

from setpoint.compile.checks import flatten
from setpoint.compile.internals import inductor_options
from setpoint.config import Free


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {}),
        ({"triton": {"cudagraphs": True}}, {"triton.cudagraphs": True}),
        (
            {"post_grad_fusion_options": {"a": {"b": 1}}},
            {"post_grad_fusion_options": {"a": {"b": 1}}},
        ),
        ({"a": 1, "b": {"c": {"d": 2}}}, {"a": 1, "b.c.d": 2}),
    ],
)
def test_flatten(values: dict, expected: dict) -> None:
    assert flatten(Free(**values), {"post_grad_fusion_options", "triton.cudagraphs"}) == expected


def test_what_inductor_knows() -> None:
    known = inductor_options()
    assert {"triton.cudagraphs", "max_autotune", "epilogue_fusion"} <= known.keys()
