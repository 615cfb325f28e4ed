"""What the compiler raises is said in words."""

from __future__ import annotations

import pytest
import torch

from setpoint.compile.watch import explain, reason_in

from .models import Printing, compiled, stack, train_on


def test_other_errors_are_not_the_compilers() -> None:
    assert explain(ValueError("x")) is None
    assert explain(RuntimeError("x")) is None


def test_a_graph_that_must_be_whole() -> None:
    model = stack(Printing)
    compiled(model, fullgraph=True)
    with pytest.raises(RuntimeError) as caught:
        train_on(model, 4)
    told = str(explain(caught.value))
    assert told.startswith("torch.compile: Failed to trace builtin operator")
    assert "models.py:" in told.splitlines()[0]
    assert "compile.fullgraph" in told


def test_a_backend_that_fails() -> None:
    def broken(graph: object, inputs: object) -> object:
        raise ValueError("this backend cannot")

    with pytest.raises(RuntimeError) as caught:
        torch.compile(lambda x: x + 1, backend=broken)(torch.ones(2))
    told = str(explain(caught.value))
    assert "backend='broken' raised: ValueError: this backend cannot" in told


def test_the_reason_is_one_line() -> None:
    text = (
        "Cannot\n  Explanation: it is <f at 0x7f99e39058a0>\n  Hint: do not\n\n"
        '  File "a.py", line 1, in a\n  File "b.py", line 2, in b\n'
    )
    assert reason_in(text) == "Cannot it is <f> (b.py:2)"
    assert reason_in("0/0: x == 1   # if x == 1:  # a.py:1") == "0/0: x == 1"
