"""States staged, written and read back."""

from __future__ import annotations

import builtins
import hashlib
import os
import random
import re
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from setpoint.checkpoint import backend, background, divided, durable
from setpoint.checkpoint.backend import SAFETENSORS
from setpoint.checkpoint.background import in_threads
from setpoint.checkpoint.convert import convert, open_tensors
from setpoint.checkpoint.loading import Checkpoint, verify_directory
from setpoint.checkpoint.manifest import (
    FORMAT,
    WHOLE,
    DamagedCheckpoint,
    Manifest,
    read_manifest,
)
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

    def write(
        path: Path, pieces: Iterable[bytes | memoryview], chunk: int | None
    ) -> durable.Written:
        held = list(pieces)
        addresses = [np.frombuffer(each, np.uint8).ctypes.data for each in held]
        written[len(written)] = addresses
        return durable.write_file(path, held, chunk)

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


def _tensor(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    found = checkpoint.tensors["model"][name]
    assert isinstance(found, torch.Tensor)
    return found


def test_a_file_larger_than_what_is_read_and_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "CHUNK", 7)
    content, path = bytes(range(256)), tmp_path / "file"
    pieces = [content[:100], memoryview(content)[100:103], b"", content[103:]]
    expected = durable.Written.of(content)
    assert durable.write_file(path, pieces) == durable.digest_file(path) == expected
    assert durable.read_file(path) == (content, expected)


def digest_of_chunks(content: bytes, chunk: int) -> str:
    """As the documentation of the format has it."""
    parts = [content[start : start + chunk] for start in range(0, len(content), chunk)]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


@pytest.mark.parametrize("size", [0, 1, 7, 8, 14, 15, 700])
def test_a_file_is_digested_in_chunks_where_it_has_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(durable, "PIECE", 3)
    content, path = os.urandom(size), tmp_path / "file"
    expected = durable.Written.of(content)
    if size > 7:
        expected = durable.Written(size, digest_of_chunks(content, 7), 7)
    pieces = [content[:5], memoryview(content)[5:6], content[6:]]
    assert durable.write_file(path, pieces, 7) == durable.digest_file(path, 7) == expected
    assert durable.read_file(path, 7) == (content, expected)


def test_damage_of_a_file_in_chunks_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bit of any chunk, and chunks in another order; the manifest says what chunks are."""
    monkeypatch.setattr(backend, "CHUNK", 64)
    store = CheckpointStore(tmp_path)
    path = store.save(1, {"model": {"w": torch.arange(100.0)}}, {}) / "model.safetensors"
    assert read_manifest(path.parent).format == FORMAT
    monkeypatch.setattr(backend, "CHUNK", 128)
    whole = path.read_bytes()
    assert torch.equal(_tensor(store.load(1), "w"), torch.arange(100.0))
    damaged = [whole[:64] + whole[128:192] + whole[64:128] + whole[192:]]
    for at in range(0, len(whole), 50):
        damaged += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(DamagedCheckpoint, match=r"model\.safetensors has the SHA-256"):
            store.load(1)
        with pytest.raises(DamagedCheckpoint, match=r"model\.safetensors has the SHA-256"):
            verify_directory(path.parent)


def test_the_documented_reader_reads_files_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[2] / "docs" / "checkpoint-loading.md"
    [program] = re.findall(r"```python\n(# read_checkpoint.py\n.*?)```", page.read_text(), re.S)
    made: dict[str, Any] = {"__name__": "read_checkpoint"}
    exec(program, made)
    monkeypatch.setattr(backend, "CHUNK", 64)
    path = CheckpointStore(tmp_path).save(1, {"model": {"w": torch.arange(100.0)}}, {})
    assert torch.equal(made["read"](path)["w"], torch.arange(100.0))
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[:-1] + b"0")
    with pytest.raises(ValueError, match="model.safetensors is damaged"):
        made["read"](path)


def test_large_files_of_older_formats_have_one_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    path = store.save(1, {"model": {"w": torch.arange(100.0)}}, {})
    assert read_manifest(path).format == WHOLE
    monkeypatch.setattr(backend, "CHUNK", 64)
    monkeypatch.setattr(durable, "CHUNK", 64)
    assert torch.equal(_tensor(store.load(1), "w"), torch.arange(100.0))
    verify_directory(path)


def test_parts_of_tensors_are_read_from_files(tmp_path: Path) -> None:
    """Boxes of any place and size, of tensors in one file and in three, tied ones too."""
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "rows": torch.randn(7, 5, 3, generator=generator),
        "vector": torch.arange(9, dtype=torch.bfloat16),
        "number": torch.tensor(5),
        "none": torch.empty(0, 4),
    }
    tensors["tied"] = tensors["rows"]
    path = CheckpointStore(tmp_path).save(1, {"model": tensors}, {})
    convert(path, tmp_path / "parts", 3)
    choices = random.Random(0)
    for directory in (path, tmp_path / "parts"):
        for name, found in open_tensors(directory)["model"].items():
            expected = tensors[name]
            assert torch.equal(found.whole(), expected)
            for _ in range(20):
                box = [sorted(choices.choices(range(n + 1), k=2)) for n in expected.shape]
                part = found.box([a for a, _ in box], [b - a for a, b in box])
                assert torch.equal(part, expected[tuple(slice(a, b) for a, b in box)])


def test_large_tensors_are_read_by_blocks_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(divided, "CHUNK", 50)
    whole = torch.arange(60.0).reshape(10, 6)
    path = CheckpointStore(tmp_path).save(1, {"model": {"w": whole}}, {})
    found = open_tensors(path)["model"]["w"]
    assert torch.equal(found.box([1, 2], [8, 3]), whole[1:9, 2:5])


def test_work_is_shared_by_threads() -> None:
    done: list[int] = []
    in_threads(done.append, 1000)
    assert sorted(done) == list(range(1000))

    def act(number: int) -> None:
        done.append(number)
        if number == 5:
            raise OSError(5, "Input/output error")

    done.clear()
    with pytest.raises(OSError, match="Input/output"):
        in_threads(act, 100_000)
    assert 5 in done and len(done) < 100_000


@pytest.mark.parametrize("error", [None, RuntimeError("can't start new thread")])
def test_work_is_done_where_no_thread_gets_to_its_first_line(
    monkeypatch: pytest.MonkeyPatch, error: RuntimeError | None
) -> None:
    """As where memory has run out: one that dies on its way says nothing to who has started it."""
    start = MagicMock(side_effect=error)
    monkeypatch.setattr(background, "THREADS", 3)
    monkeypatch.setattr(background, "start_new_thread", start)
    done: list[int] = []
    in_threads(done.append, 10)
    assert done == list(range(10)) and start.called


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
