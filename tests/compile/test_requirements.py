"""Names that PyTorch does not have, and machines that cannot compile, are found before the run."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.compile.config import Compile
from setpoint.compile.requirements import (
    flatten,
    machine_problems,
    make_folder,
    name_problems,
    why_unfit,
)
from setpoint.config import ConfigError, Free, resolve
from setpoint.config.resolving.checks import verify

from ..support.snapshots import compare, refused


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
    shown = [line for line in lines if not line.startswith(("    Valid: ", "           "))]
    compare("compile/names", "\n".join(shown))


def test_what_is_known() -> None:
    options = {"triton": {"cudagraphs": True}, "epilogue_fusion": False}
    for known in (section(), section(backend="eager"), section(options=options)):
        assert not list(name_problems(known))
    # The backends that are listed are not those of PyTorch's own tests.
    (problem,) = name_problems(section(backend="x"))
    assert {"inductor", "eager", "aot_eager"} <= set(problem.valid)
    assert not [name for name in problem.valid if "TESTING" in name or "minifier" in name]


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(machine_problems(section(), "cpu")) == []
    monkeypatch.setenv("CXX", "no-such-compiler")
    (problem,) = machine_problems(section(), "cpu")
    assert problem.path == "compile.backend"
    assert "no-such-compiler was not found (install g++, or set CXX)" in problem.message
    assert list(machine_problems(section(backend="aot_eager"), "cpu")) == []
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


def test_a_folder_is_made_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, **_: object) -> None:
        raise OSError(28, "No space left on device")

    folder, file = tmp_path / "a" / "b", tmp_path / "file"
    assert why_unfit(folder) is None and not folder.exists()
    make_folder(folder)
    make_folder(folder)
    assert folder.is_dir()
    file.touch()
    (problem,) = verify(section(cache=file), {"files"}).problems
    assert (problem.path, problem.message) == ("cache", f"{file} is not a folder")
    assert verify(section(cache=file), set()).problems == []
    with refused():
        make_folder(file / "b")
    for owner, name, stand_in in ((os, "access", lambda *_: False), (Path, "mkdir", full)):
        with refused(), monkeypatch.context() as patch:
            patch.setattr(owner, name, stand_in)
            make_folder(tmp_path / "c")


def test_flatten() -> None:
    known = {"post_grad_fusion_options", "triton.cudagraphs"}
    for values, expected in (
        ({}, {}),
        ({"triton": {"cudagraphs": True}}, {"triton.cudagraphs": True}),
        (
            {"post_grad_fusion_options": {"a": {"b": 1}}},
            {"post_grad_fusion_options": {"a": {"b": 1}}},
        ),
        ({"a": 1, "b": {"c": {"d": 2}}}, {"a": 1, "b.c.d": 2}),
    ):
        assert flatten(Free(**values), known) == expected


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
