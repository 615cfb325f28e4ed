"""What the section says no to by itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from setpoint.compile.config import Compile
from setpoint.config import ConfigError, resolve
from setpoint.config.resolving.checks import verify

from ..support.snapshots import compare

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
    assert (problem.path, problem.message) == ("cache", f"{tmp_path / 'file'} is no folder")
