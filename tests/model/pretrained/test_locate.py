from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.config import SetpointError
from setpoint.model import load_pretrained
from setpoint.model.pretrained.locate import locate_here

from ...support.snapshots import compare
from .ours import directory


def test_what_is_no_model_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    directory(tmp_path / "models/llama")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.safetensors").write_bytes(b"")
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    assert locate_here("models/llama") is not None
    assert locate_here("organization/name@v2") is None
    names = ["models/lama", "llama", "/nowhere/model", "empty", "file.safetensors", "run", "a b/c"]
    told: list[str] = []
    for name in names:
        with pytest.raises(SetpointError) as caught:
            load_pretrained(name)
        told.append(f"{name}:\n{caught.value}\n")
    compare("model/pretrained_not_found", "\n".join(told))


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000, "~nobody-at-all/model"])
def test_names_that_lead_nowhere_are_told(name: str) -> None:
    with pytest.raises(SetpointError):
        locate_here(name)
