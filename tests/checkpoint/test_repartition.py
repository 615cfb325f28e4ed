"""Checkpoints in other layouts: all that they hold, whole or not at all."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from setpoint.checkpoint import repartition as module
from setpoint.checkpoint.loading import load_directory
from setpoint.checkpoint.manifest import DamagedCheckpoint, Manifest, read_manifest
from setpoint.checkpoint.repartition import convert
from setpoint.checkpoint.store import CheckpointStore
from setpoint.files.atomic import Written
from setpoint.shapes.placed import in_memory

from ..support.snapshots import refused

TIED = torch.arange(21.0).reshape(7, 3)
MODEL = {
    "embedding": TIED,
    "output": TIED,
    "half": torch.arange(10, dtype=torch.bfloat16).reshape(5, 2).mul(0.3),
    "row": torch.ones(1, 4),
    "scalar": torch.tensor(float("nan")),
    "none": torch.empty(0, 2),
    "count": torch.arange(4),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    tensors = {"model": MODEL, "optimizer": {"embedding/step": torch.tensor(3.0)}}
    store = CheckpointStore(tmp_path / "checkpoints")
    return store.save(7, tensors, {"a": [1, 0.1]}, 2.5, {"config.json": "{}", "x.bin": b"\0\xff"})


def content(directory: Path) -> tuple[dict[str, Tensor], Any, dict[str, bytes]]:
    saved = load_directory(directory)
    tensors = {
        f"{stem}/{name}": in_memory(each)
        for stem, named in saved.tensors.items()
        for name, each in named.items()
    }
    files = {name: (directory / name).read_bytes() for name in ("config.json", "x.bin")}
    return tensors, (saved.step, saved.metric, saved.state), files


def same(one: Path, other: Path) -> None:
    (tensors, state, files), expected = content(one), content(other)
    assert (state, files) == expected[1:]
    assert tensors.keys() == expected[0].keys()
    for name, each in expected[0].items():
        found = tensors[name]
        assert found.dtype == each.dtype and found.shape == each.shape, name
        assert torch.equal(torch.nan_to_num(found), torch.nan_to_num(each)), name


def crafted(directory: Path, name: str, text: str) -> Path:
    """A checkpoint with another file in the place of one, and a manifest that vouches for it."""
    manifest = read_manifest(directory)
    (directory / name).write_text(text)
    files = {**manifest.files, name: Written.of(text.encode())}
    new = Manifest(manifest.step, manifest.metric, files)
    (directory / "manifest.json").write_bytes(new.render())
    return directory


@pytest.mark.parametrize(
    "change",
    [{"file": "../checkpoints/step-00000007/model.safetensors"}, {"shape": [0, 4]}],
    ids=["another file", "another shape"],
)
def test_parts_are_the_whole_and_lie_in_files_of_the_checkpoint(
    source: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    """Else a tensor would hold what was in memory before, or what no checksum is known of."""
    convert(source, tmp_path / "divided", 2)
    index = json.loads((tmp_path / "divided" / "model.index.json").read_text())
    index["tensors"]["row"]["parts"][0] |= change
    crafted(tmp_path / "divided", "model.index.json", json.dumps(index))
    with refused(DamagedCheckpoint):
        load_directory(tmp_path / "divided")


def test_a_list_in_place_of_the_left_out_parameters_is_damage(source: Path) -> None:
    with pytest.raises(DamagedCheckpoint, match="its content is not a valid checkpoint"):
        load_directory(crafted(source, "base.json", "[]"))


@pytest.mark.parametrize("parts", [2, 3, 9])
def test_there_and_back(source: Path, tmp_path: Path, parts: int) -> None:
    divided, whole = tmp_path / "divided", tmp_path / "whole"
    convert(source, divided, parts)
    same(divided, source)
    files = read_manifest(divided).files
    assert "model.safetensors" not in files and "model.index.json" in files
    # What is tied lies there once.
    size = sum(each.size for name, each in files.items() if name.startswith("model-0"))
    assert size < sum(t.nbytes for t in MODEL.values()) - TIED.nbytes + 600 * parts
    convert(divided, whole, None)
    same(whole, source)
    names = [each.name for each in whole.iterdir()]
    assert sorted(names) == sorted(each.name for each in source.iterdir())
    for name in ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"):
        assert (whole / name).read_bytes() == (source / name).read_bytes(), name


def test_a_damaged_source_is_refused(source: Path, tmp_path: Path) -> None:
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\7")
    with refused(DamagedCheckpoint):
        convert(source, tmp_path / "copy", 2)
    assert not (tmp_path / "copy").exists()
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoints"]


@pytest.mark.parametrize("after", range(6))
def test_a_full_disk_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    real, calls = module.write_file, []

    def full(*given: Any) -> Any:
        calls.append(given)
        if len(calls) > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*given)

    monkeypatch.setattr(module, "write_file", full)
    with refused():
        convert(source, tmp_path / "copy", 2)
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoints"]


def test_a_copy_that_differs_is_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.encode_one_by_one
    monkeypatch.setattr(
        module,
        "encode_one_by_one",
        lambda tensors, aliases, read: real(tensors, aliases, lambda name: read(name) * 0),
    )
    with refused():
        convert(source, tmp_path / "copy", None)
    assert not (tmp_path / "copy").exists()


def test_nothing_is_overwritten(source: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    convert(source, tmp_path / "copy", None)
    before = json.loads((tmp_path / "copy" / "manifest.json").read_text())
    with refused():
        convert(source, tmp_path / "copy", 2)
    assert json.loads((tmp_path / "copy" / "manifest.json").read_text()) == before
