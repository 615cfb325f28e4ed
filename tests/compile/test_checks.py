"""Names that PyTorch does not have, and machines that cannot compile, are found before the run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from setpoint.compile.checks import machine_problems, name_problems
from setpoint.compile.config import Compile
from setpoint.config import resolve

from ..support.snapshots import compare


def section(**values: Any) -> Compile:
    return resolve(Compile(**values))


def test_names() -> None:
    cases = {
        "a backend": section(backend="inductr"),
        "options of a backend that takes none": section(backend="aot_eager", options={"a": 1}),
        "an option": section(options={"max_autotun": True}),
        "a nested option": section(options={"triton": {"cudagraph": True}}),
        "a value": section(options={"triton": {"cudagraphs": 1}, "max_autotune": "yes"}),
    }
    text = "\n\n".join(
        f"{name}:\n" + "\n".join(problem.render() for problem in name_problems(config))
        for name, config in cases.items()
    )
    # The list of backends is PyTorch's.
    lines = text.replace(torch.__version__, "VERSION").splitlines()
    shown = [line for line in lines if not line.startswith(("    valid: ", "           "))]
    compare("compile/names", "\n".join(shown))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"backend": "eager"},
        {"options": {"triton": {"cudagraphs": True}, "epilogue_fusion": False}},
    ],
)
def test_what_is_known(values: dict) -> None:
    assert list(name_problems(section(**values))) == []


def test_backends_that_are_listed_do_not_hold_pytorchs_own_tests() -> None:
    (problem,) = name_problems(section(backend="x"))
    assert {"inductor", "eager", "aot_eager"} <= set(problem.valid)
    assert not [name for name in problem.valid if "TESTING" in name or "minifier" in name]
    assert problem.valid[0] in torch.compiler.list_backends()


def test_a_compiler_is_there() -> None:
    assert list(machine_problems(section(), "cpu")) == []


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    (problem,) = machine_problems(section(), "cpu")
    assert problem.path == "compile.backend"
    assert "finds no no-such-compiler (install g++, or set CXX)" in problem.message
    assert list(machine_problems(section(backend="aot_eager"), "cpu")) == []


def test_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    (problem,) = machine_problems(section(), "cuda")
    assert "needs Triton" in problem.message


@pytest.mark.parametrize("name", ["TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"])
def test_compiling_is_switched_off_in_the_environment(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    (problem,) = machine_problems(section(backend="eager"), "cpu")
    assert f"{name} is set" in problem.message
    monkeypatch.setenv(name, "0")
    assert list(machine_problems(section(backend="eager"), "cpu")) == []
