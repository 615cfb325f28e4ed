import sys
import types

import torch

from setpoint.model.attention.packed import Flash

from .layouts import LAYOUTS

GIVEN = {}


def look(query, *arguments, **options):
    GIVEN.clear()
    GIVEN.update(options)
    return query


def attend(**options):
    x = torch.randn(2, 11, 2, 8)
    places = LAYOUTS["documents"]
    Flash(look).attend(x, x, x, Flash(look).prepare_mask(places, 4), **options)
    return dict(GIVEN)


def test_options_by_the_names_of_the_package():
    assert attend() == {
        "dropout_p": 0.0,
        "softmax_scale": None,
        "causal": True,
        "window_size": (3, 0),
        "softcap": 0.0,
        "deterministic": False,
    }
    given = attend(scale=0.5, soft_cap=30.0, dropout=0.1)
    assert given["softmax_scale"] == 0.5
    assert given["softcap"] == 30.0
    assert given["dropout_p"] == 0.1


def test_deterministic_runs_ask_for_it():
    torch.use_deterministic_algorithms(True)
    try:
        assert attend()["deterministic"] is True
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_function_is_that_of_the_package(monkeypatch):
    package = types.ModuleType("flash_attn")
    package.flash_attn_varlen_func = look
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    assert Flash().function is look
