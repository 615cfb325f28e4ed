"""States staged, written and read back."""

import gc
import os
import random
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import blake3
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from setpoint.checkpoint import loading, staging
from setpoint.checkpoint.loading import load_directory
from setpoint.checkpoint.manifest import DamagedCheckpoint, Manifest
from setpoint.checkpoint.repartition import convert
from setpoint.checkpoint.staging import HostMemory
from setpoint.checkpoint.store import CheckpointStore
from setpoint.files import atomic
from setpoint.files.atomic import Written
from setpoint.files.threads import in_threads
from setpoint.parallel.world import World
from setpoint.shapes.placed import in_memory, put

from ..support.snapshots import refused
from .stored import load


def test_what_is_staged_is_written_whatever_happens_to_the_states(tmp_path: Path) -> None:
    """In place, as optimizers change weights; also seen through views, and tied."""
    base = torch.arange(6.0).reshape(2, 3)
    tensors = {"model": {"w": base, "tied": base.detach(), "t": base.t(), "row": base[1]}}
    state = {"steps": [1]}
    staged = staging.stage(tensors, state, HostMemory(), World(torch.device("cpu")), {})
    base.zero_()
    state["steps"].append(2)
    files = staging.write(staged, tmp_path)
    assert sorted(files) == sorted(path.name for path in tmp_path.iterdir())
    (tmp_path / "manifest.json").write_bytes(Manifest(1, None, files).render())
    found = load_directory(tmp_path)
    expected = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(in_memory(found.tensors["model"]["w"]), expected)
    assert torch.equal(in_memory(found.tensors["model"]["tied"]), expected)
    assert torch.equal(in_memory(found.tensors["model"]["t"]), expected.t())
    assert torch.equal(in_memory(found.tensors["model"]["row"]), expected[1])
    assert found.state == {"steps": [1]}
    assert sum(1 for _ in load_file(tmp_path / "model.safetensors")) == 3, (
        "tied ones lie there once"
    )


def test_a_save_that_is_waited_for_copies_nothing_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what lies in memory otherwise than in the file, once its turn comes."""
    base = torch.arange(6.0).reshape(2, 3)
    tensors = {"model": {"t": base.t(), "tied": base.detach(), "w": base, "0": torch.tensor(1)}}
    written: dict[int, list[int]] = {}

    def write(path: Path, pieces: Iterable[bytes | memoryview]) -> atomic.Written:
        held = list(pieces)
        addresses = [np.frombuffer(each, np.uint8).ctypes.data for each in held]
        written[len(written)] = addresses
        return atomic.write_file(path, held)

    monkeypatch.setattr(staging, "write_file", write)
    path = CheckpointStore(tmp_path / "a").save(1, tensors, {})
    (_, alone, turned, whole), _ = written.values()
    assert alone == tensors["model"]["0"].data_ptr() and whole == base.data_ptr()
    assert turned not in (alone, whole)
    folder = tmp_path / "b"
    folder.mkdir()
    staging.write(staging.stage(tensors, {}, HostMemory(), World(torch.device("cpu")), {}), folder)
    addresses = written[2]
    assert base.data_ptr() not in addresses and len(addresses) == 4
    for file in folder.iterdir():
        assert file.read_bytes() == (path / file.name).read_bytes()


def test_tensors_are_read_into_the_memory_of_the_run(tmp_path: Path) -> None:
    """Of any device and dtype; a file that was changed after it was compared is refused."""
    store = CheckpointStore(tmp_path)
    whole = torch.arange(12.0).reshape(3, 4)
    path = store.save(1, {"model": {"w": whole, "n": torch.tensor(5)}}, {"n": 1})
    file = path / "model.safetensors"
    found = load(store.root, 1).tensors
    for into in (torch.zeros(3, 4), torch.zeros(4, 3).t(), torch.zeros(3, 4).bfloat16()):
        parameter = torch.nn.Parameter(into)
        put(parameter, found["model"]["w"])
        assert torch.equal(parameter.float(), whole)
    put(number := torch.tensor(0), found["model"]["n"])
    assert number == 5
    content = file.read_bytes()
    for changed in (content[:-1], content + b"0", content[:-1] + b"0"):
        file.write_bytes(changed)
        with refused(DamagedCheckpoint):
            put(into, found["model"]["w"])
        with refused(DamagedCheckpoint):
            load(store.root, 1)


@pytest.mark.parametrize("size", [0, 1, 7, 14, 700])
def test_digests_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Whatever pieces they are read and written in."""
    monkeypatch.setattr(atomic, "CHUNK", 5)
    monkeypatch.setattr(atomic, "PIECE", 3)
    content, path = os.urandom(size), tmp_path / "file"
    pieces = [content[:5], memoryview(content)[5:6], b"", content[6:]]
    written = Written(size, blake3.blake3(content).hexdigest())
    assert atomic.write_file(path, pieces) == written
    assert atomic.digest_file(path) == Written.of(content) == written


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
    path = CheckpointStore(tmp_path / "run").save(1, {"model": tensors}, {})
    convert(path, tmp_path / "parts", 3)
    choices = random.Random(0)
    for directory in (path, tmp_path / "parts"):
        for name, found in load_directory(directory).tensors["model"].items():
            expected = tensors[name]
            assert not isinstance(found, torch.Tensor) and torch.equal(found.whole(), expected)
            for _ in range(20):
                box = [sorted(choices.choices(range(n + 1), k=2)) for n in expected.shape]
                part = found.box([a for a, _ in box], [b - a for a, b in box])
                assert torch.equal(part, expected[tuple(slice(a, b) for a, b in box)])


def test_a_checkpoint_of_many_ranks_is_read_with_few_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may open 1024, and several threads read at once."""
    tensors = {f"w{i}": torch.arange(18.0).view(6, 3) + i for i in range(4)}
    path = CheckpointStore(tmp_path / "run").save(1, {"model": tensors}, {})
    convert(path, tmp_path / "parts", 6)
    monkeypatch.setattr(loading, "OPEN", 2)
    gc.collect()  # files that tests before have left
    before = len(os.listdir("/proc/self/fd"))
    found = {**load_directory(tmp_path / "parts").tensors["model"]}
    names = [*tensors] * 20

    def read(number: int) -> None:
        assert torch.equal(in_memory(found[names[number]]), tensors[names[number]])

    in_threads(read, len(names))
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    found.clear()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_threads_of_digests_end_with_a_disk_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "PIECE", 7)

    def pieces() -> Iterator[bytes]:
        yield bytes(1000)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        atomic.write_file(tmp_path / "file", pieces())
    assert "setpoint-digest" not in [thread.name for thread in threading.enumerate()]
