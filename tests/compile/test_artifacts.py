"""The file of compile artifacts is whole or not used, and is of one job on one kind of machine."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from setpoint.compile.apply import Artifacts

CPU = torch.device("cpu")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What PyTorch is given to load; it saves three artifacts as `made`."""
    given: list[bytes] = []
    names: dict[str, list[str]] = defaultdict(list, inductor=["a", "b"], aot_autograd=["c"])
    info: Any = SimpleNamespace(artifacts=names)
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"made", info))
    monkeypatch.setattr(
        torch.compiler, "load_cache_artifacts", lambda content: given.append(content) or info
    )
    return given


def test_what_is_saved_is_loaded(tmp_path: Path, loaded: list[bytes]) -> None:
    assert Artifacts(tmp_path / "new", "job", CPU).load() == 0
    assert Artifacts(tmp_path / "new", "job", CPU).save()
    assert Artifacts(tmp_path / "new", "job", CPU).load() == 3
    assert loaded == [b"made"]
    assert Artifacts(tmp_path / "new", "other", CPU).load() == 0


def test_a_damaged_file_is_not_given_to_pytorch(tmp_path: Path, loaded: list[bytes]) -> None:
    """Its content is unpickled, and may be anything."""
    artifacts = Artifacts(tmp_path, "job", CPU)
    artifacts.save()
    content = artifacts.path.read_bytes()
    for damaged in (b"", content[:-1], content[:-1] + b"x"):
        artifacts.path.write_bytes(damaged)
        assert artifacts.load() is None
    assert loaded == []
    artifacts.save()
    assert artifacts.load() == 3


def test_a_file_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, loaded: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = Artifacts(tmp_path, "job", CPU)
    artifacts.save()

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        artifacts.save()
    assert [path.name for path in tmp_path.iterdir()] == [artifacts.path.name]
    assert artifacts.load() == 3


def test_each_instruction_set_has_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are written for the width of a vector, which PyTorch's own keys leave out."""
    paths = set[Path]()
    for name in ("AVX2", "AVX512"):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda name=name: name)
        paths.add(Artifacts(tmp_path, "job", CPU).path)
    assert len(paths) == 2
