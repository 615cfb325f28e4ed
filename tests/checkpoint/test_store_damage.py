"""Flipped bits, cut files, missing files: nothing damaged is ever loaded."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from setpoint.checkpoint import manifest
from setpoint.checkpoint.folder import read_pointer
from setpoint.checkpoint.manifest import DamagedCheckpoint
from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import SetpointError
from setpoint.files import atomic
from setpoint.files.atomic import Written

from ..support.snapshots import refused
from .stored import load
from .test_folder import a_folder, a_huge_file, a_link_to_itself, a_pipe

FILES = ("model.safetensors", "state.json", "manifest.json")


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "checkpoints", keep=None)
    for step in (100, 200, 300):
        store.save(step, {"model": {"w": torch.full((3,), float(step))}}, {"s": step}, -step)
    return store


def newest(store: CheckpointStore) -> Path:
    return store.root / "step-00000300"


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_found(store: CheckpointStore, name: str) -> None:
    path = newest(store) / name
    content = bytearray(path.read_bytes())
    # A step of 11 bits meets every position within a byte.
    for position in range(0, 8 * len(content), 11):
        content[position // 8] ^= 1 << position % 8
        path.write_bytes(content)
        with pytest.raises(DamagedCheckpoint):
            load(store.root, "latest")
        content[position // 8] ^= 1 << position % 8
    path.write_bytes(content)
    assert load(store.root, "latest").step == 300


@pytest.mark.parametrize("name", FILES)
def test_every_cut_is_found(store: CheckpointStore, name: str) -> None:
    path = newest(store) / name
    content = path.read_bytes()
    for length in (0, 1, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with refused(DamagedCheckpoint):
            load(store.root, 300)
    path.write_bytes(content + b"\n")
    with refused(DamagedCheckpoint):
        load(store.root, 300)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(store: CheckpointStore, name: str) -> None:
    (newest(store) / name).unlink()
    with refused(DamagedCheckpoint):
        load(store.root, "best")


@pytest.mark.parametrize("pointer", ["latest", "best"])
def test_flipped_bits_in_a_pointer(store: CheckpointStore, pointer: str) -> None:
    """A pointer is refused by name, or it names a checkpoint that is whole."""
    path = store.root / pointer
    content = bytearray(path.read_bytes())
    for position in range(8 * len(content)):
        content[position // 8] ^= 1 << position % 8
        path.write_bytes(content)
        try:
            loaded = load(store.root, pointer)  # type: ignore[call-overload]
        except SetpointError as error:
            assert pointer in str(error)
        else:
            assert loaded.state == {"s": loaded.step}
        auto = store.load_newest()
        assert auto is not None and auto.step == 300
        content[position // 8] ^= 1 << position % 8


def test_auto_takes_the_newest_whole_one(store: CheckpointStore) -> None:
    (newest(store) / "state.json").write_text("{}\n")
    (store.root / "step-00000200" / "manifest.json").unlink()
    told: list[tuple[str, str]] = []
    loaded = store.load_newest(on_damaged=lambda path, why: told.append((path.name, why)))
    assert loaded is not None and loaded.step == 100
    assert told == [
        ("step-00000300", "state.json has 3 bytes, not 14"),
        ("step-00000200", "manifest.json is missing"),
    ]


def test_only_damaged_ones_are_an_error(store: CheckpointStore) -> None:
    for step in store.steps:
        (store.root / f"step-{step:08d}" / "manifest.json").unlink()
    with refused():
        store.load_newest()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("odd", [a_pipe, a_folder, a_link_to_itself, a_huge_file])
def test_what_is_no_file_is_damage(
    store: CheckpointStore, name: str, odd: Callable[[Path], None]
) -> None:
    (newest(store) / name).unlink()
    odd(newest(store) / name)
    told: list[str] = []
    loaded = store.load_newest(on_damaged=lambda path, why: told.append(why))
    assert loaded is not None and loaded.step == 200
    assert len(told) == 1 and told[0].startswith(name)


def test_a_renamed_checkpoint_is_damaged(store: CheckpointStore) -> None:
    shutil.copytree(newest(store), store.root / "step-00000400")
    with refused(DamagedCheckpoint):
        load(store.root, 400)


def test_files_beside_the_checkpoints_are_left_alone(store: CheckpointStore) -> None:
    for name in ("notes.txt", "step-1", "step-00000100.bak", "latest.txt", "step-000000100"):
        (store.root / name).write_text("mine")
    (newest(store) / ".DS_Store").write_text("")
    store.save(400, {}, {})
    assert store.steps == [100, 200, 300, 400]
    assert load(store.root, 300).step == 300
    assert (store.root / "step-1").read_text() == "mine"


def failing(monkeypatch: pytest.MonkeyPatch, code: int, match: str, times: int) -> list[str]:
    """Let the first reads of the files under a path fail, as a disk or a network does."""
    left, digest, read = [times], manifest.digest_file, Path.read_bytes
    failed: list[str] = []

    def fails(path: Path) -> None:
        if left[0] and match in str(path):
            left[0] -= 1
            failed.append(path.name)
            raise OSError(code, os.strerror(code))

    def digest_file(path: Path) -> Written:
        fails(path)
        return digest(path)

    def read_bytes(path: Path) -> bytes:
        fails(path)
        return read(path)

    monkeypatch.setattr(atomic, "PAUSE", 0.0)
    monkeypatch.setattr(manifest, "digest_file", digest_file)
    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    return failed


CODES = (errno.EIO, errno.ENOENT, errno.ESTALE)


@pytest.mark.parametrize(("code", "name"), [*zip(CODES, FILES, strict=True)])
def test_one_failed_read_is_tried_again(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, code: int, name: str
) -> None:
    failed = failing(monkeypatch, code, f"step-00000300/{name}", times=1)
    loaded = store.load_newest(on_damaged=lambda path, why: pytest.fail(why))
    assert loaded is not None and loaded.step == 300
    assert failed == [name]


@pytest.mark.parametrize(("code", "name"), [*zip(CODES, FILES, strict=True)])
def test_what_cannot_be_read_is_set_aside_and_never_removed(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, code: int, name: str
) -> None:
    before = {path.name: path.read_bytes() for path in newest(store).iterdir()}
    moved: list[tuple[str, str]] = []
    writer = CheckpointStore(
        store.root, keep=1, on_set_aside=lambda old, new: moved.append((old.name, new.name))
    )
    writer.prepare()
    with monkeypatch.context() as patch:
        failing(patch, code, f"step-00000300/{name}", times=99)
        loaded = writer.load_newest()
        assert loaded is not None and loaded.step == 200
        writer.set_aside_after(200)
        for step in (250, 310, 350):
            writer.save(step, {}, {}, 9.0)
    assert moved == [("step-00000300", "step-00000300.damaged-1")]
    kept = store.root / "step-00000300.damaged-1"
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    # It is not counted among the checkpoints, and it is whole when its name is given back.
    assert writer.steps == [200, 350]
    shutil.rmtree(store.root / "step-00000350")
    kept.rename(newest(store))
    assert load(store.root, 300).state == {"s": 300}


def test_what_lacks_bytes_is_set_aside_and_never_removed(store: CheckpointStore) -> None:
    (store.root / "step-00000100" / "state.json").unlink()
    os.truncate(store.root / "step-00000200" / "model.safetensors", 9)
    CheckpointStore(store.root, keep=1).save(400, {}, {}, -400.0)
    kept = sorted(path.name for path in store.root.glob("step-*"))
    assert kept == ["step-00000100.damaged-1", "step-00000200.damaged-1", "step-00000400"]


def test_a_best_that_cannot_be_read_is_set_aside_too(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = CheckpointStore(store.root, keep=1)
    writer.save(400, {}, {})
    assert (writer.steps, read_pointer(writer.root, "best")) == ([300, 400], 300)
    with monkeypatch.context() as patch:
        failing(patch, errno.EIO, "step-00000300/manifest.json", times=99)
        writer.save(500, {}, {}, 9.0)
    assert (writer.steps, read_pointer(writer.root, "best")) == ([500], 500)
    assert (store.root / "step-00000300.damaged-1" / "manifest.json").exists()


@pytest.mark.parametrize("pointer", ["latest", "best"])
def test_nothing_is_removed_while_a_pointer_cannot_be_read(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, pointer: str
) -> None:
    writer = CheckpointStore(store.root, keep=1)
    writer.prepare()
    with monkeypatch.context() as patch:
        failing(patch, errno.EIO, f"checkpoints/{pointer}", times=99)
        writer.save(400, {}, {}, 9.0)
    assert writer.steps == [100, 200, 300, 400]
    writer.save(500, {}, {}, 9.0)
    assert (writer.steps, read_pointer(writer.root, "best")) == ([300, 500], 300)
