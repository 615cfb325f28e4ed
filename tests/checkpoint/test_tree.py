"""Nested values with tensors in them."""

from __future__ import annotations

import json

import pytest
import torch

from setpoint.checkpoint.tree import join_tensors, split_tensors


def test_round_trip_through_json() -> None:
    value = {
        "betas": (0.9, 0.95),
        "blocks": [torch.ones(2), {"inner": torch.zeros(1)}, None],
        "pair": (torch.tensor(1), "text"),
        "flag": True,
    }
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(split_tensors(value, "group 0", tensors))
    assert set(tensors) == {"group 0/blocks/0", "group 0/blocks/1/inner", "group 0/pair/0"}
    again = join_tensors(json.loads(text), tensors)
    assert again["betas"] == (0.9, 0.95)
    assert isinstance(again["pair"], tuple)
    assert torch.equal(again["blocks"][0], torch.ones(2))
    assert again["blocks"][0].data_ptr() != value["blocks"][0].data_ptr()
    assert again["blocks"][2] is None and again["flag"] is True


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": {1, 2}}, "state/a is a set"),
        ({"a": {1: 2}}, "state/a has the key 1"),
        ({"$tensor": "x"}, r"has the key '\$tensor'"),
        ([lambda: None], "state/0 is a function"),
    ],
)
def test_what_cannot_be_saved_is_named(value: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        split_tensors(value, "state", {})


def test_a_missing_tensor() -> None:
    with pytest.raises(KeyError):
        join_tensors({"$tensor": "gone"}, {})
