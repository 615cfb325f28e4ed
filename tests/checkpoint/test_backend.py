"""States staged, written and read back."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from setpoint.checkpoint import backend, durable
from setpoint.checkpoint.backend import SAFETENSORS
from setpoint.checkpoint.manifest import DamagedCheckpoint, Manifest
from setpoint.checkpoint.store import CheckpointStore
from setpoint.checkpoint.tensor_file import HostMemory


def test_what_is_staged_is_written_whatever_happens_to_the_states(tmp_path: Path) -> None:
    """In place, as optimizers change weights; also seen through views, and tied."""
    base = torch.arange(6.0).reshape(2, 3)
    tensors = {"model": {"w": base, "tied": base.detach(), "t": base.t(), "row": base[1]}}
    state = {"steps": [1]}
    staged = SAFETENSORS.stage(tensors, state, HostMemory())
    base.zero_()
    state["steps"].append(2)
    files = SAFETENSORS.write(staged, tmp_path)
    assert sorted(files) == sorted(path.name for path in tmp_path.iterdir())
    found = SAFETENSORS.read(tmp_path, Manifest(1, None, files), ["model"])
    expected = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(found.tensors["model"]["w"], expected)
    assert found.tensors["model"]["tied"] is found.tensors["model"]["w"]
    assert torch.equal(found.tensors["model"]["t"], expected.t())
    assert torch.equal(found.tensors["model"]["row"], expected[1])
    assert found.state == {"steps": [1]}


def test_a_save_that_is_waited_for_copies_nothing_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what lies in memory otherwise than in the file, once its turn comes."""
    base = torch.arange(6.0).reshape(2, 3)
    tensors = {"model": {"t": base.t(), "tied": base.detach(), "w": base, "0": torch.tensor(1)}}
    written: dict[int, list[int]] = {}

    def write(path: Path, pieces: Iterable[bytes | memoryview]) -> durable.Written:
        held = list(pieces)
        addresses = [np.frombuffer(each, np.uint8).ctypes.data for each in held]
        written[len(written)] = addresses
        return durable.write_file(path, held)

    monkeypatch.setattr(backend, "write_file", write)
    path = CheckpointStore(tmp_path / "a").save(1, tensors, {})
    (_, alone, turned, whole), _ = written.values()
    assert alone == tensors["model"]["0"].data_ptr() and whole == base.data_ptr()
    assert turned not in (alone, whole)
    folder = tmp_path / "b"
    folder.mkdir()
    SAFETENSORS.write(SAFETENSORS.stage(tensors, {}, HostMemory()), folder)
    addresses = written[2]
    assert base.data_ptr() not in addresses and len(addresses) == 4
    for file in folder.iterdir():
        assert file.read_bytes() == (path / file.name).read_bytes()


def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path)
    path = store.save(
        1, {"model": {"w": torch.ones(3)}, "optimizer": {}}, {"n": 1}, texts={"notes.txt": "mine"}
    )
    opened: list[str] = []

    def counting(file: Path, *arguments: Any, **options: Any) -> Any:
        opened.append(file.name)
        return builtins.open(file, *arguments, **options)

    monkeypatch.setattr(durable, "open", counting, raising=False)
    store.load(1)
    assert sorted(opened) == sorted(p.name for p in path.iterdir() if p.name != "manifest.json")


def test_the_content_that_is_used_is_what_was_compared(tmp_path: Path) -> None:
    """A file that is replaced after it was read changes nothing; one replaced before is damage."""
    store = CheckpointStore(tmp_path)
    path = store.save(1, {"model": {"w": torch.ones(3)}}, {"n": 1})
    file = path / "model.safetensors"
    found = store.load(1)
    whole = file.read_bytes()
    for content in (whole[:-1], whole + b"0", whole[:-1] + b"0", b""):
        file.write_bytes(content)
        with pytest.raises(DamagedCheckpoint, match=r"model\.safetensors has"):
            store.load(1)
    assert torch.equal(found.tensors["model"]["w"], torch.ones(3))


def test_a_file_larger_than_what_is_read_and_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "CHUNK", 7)
    content, path = bytes(range(256)), tmp_path / "file"
    pieces = [content[:100], memoryview(content)[100:103], b"", content[103:]]
    expected = durable.Written.of(content)
    assert durable.write_file(path, pieces) == durable.digest_file(path) == expected
    assert durable.read_file(path) == (content, expected)


def test_threads_of_digests_end_with_a_disk_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "CHUNK", 7)

    def pieces() -> Iterator[bytes]:
        yield bytes(1000)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        durable.write_file(tmp_path / "file", pieces())
    assert "setpoint-digest" not in [thread.name for thread in threading.enumerate()]
