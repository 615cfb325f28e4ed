"""Names that PyTorch does not have, and machines that cannot compile, are found before the run."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.compile.config import Compile
from setpoint.compile.internals import inductor_options
from setpoint.compile.requirements import (
    flatten,
    machine_problems,
    make_folder,
    name_problems,
    why_unfit,
)
from setpoint.config import ConfigError, Free, SetpointError, resolve
from setpoint.config.resolving.checks import verify

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


def test_a_folder_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert why_unfit(folder) is None
    assert not folder.exists()
    make_folder(folder)
    make_folder(folder)
    assert folder.is_dir()


def test_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert why_unfit(tmp_path / "file") == f"{tmp_path / 'file'} is not a folder"
    with pytest.raises(SetpointError, match=r"compile\.cache = .*file/b: .*file is not a folder"):
        make_folder(tmp_path / "file" / "b")


def test_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SetpointError, match="no permission"):
        make_folder(tmp_path / "b")


def test_what_the_disk_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, **_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(SetpointError, match="it cannot be made: No space left on device"):
        make_folder(tmp_path / "b")


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


REFUSED: dict[str, dict[str, Any]] = {
    "options and a mode": {"mode": "max-autotune", "options": {"max_autotune": True}},
    "a mode of another backend": {"mode": "max-autotune", "backend": "eager"},
    "a folder for another backend": {"cache": Path("c"), "backend": "eager"},
}


def test_what_contradicts_itself() -> None:
    text: list[str] = []
    for name, values in REFUSED.items():
        with pytest.raises(ConfigError) as caught:
            resolve(Compile(**values))
        # Without the line of this file.
        text.append(re.sub(r" \(tests/.+?:\d+\)", "", f"{name}:\n{caught.value}"))
    compare("compile/config", "\n\n".join(text))


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = resolve(Compile(cache=tmp_path / "file"))
    assert verify(config, set()).problems == []
    (problem,) = verify(config, {"files"}).problems
    assert (problem.path, problem.message) == ("cache", f"{tmp_path / 'file'} is not a folder")
