from pathlib import Path

import pytest
import torch

from setpoint.checkpoint.manifest import DamagedCheckpoint
from setpoint.checkpoint.places import RECORD, find_checkpoint, verify_record
from setpoint.checkpoint.store import CheckpointStore

from ..support.snapshots import refused
from .stored import load

TENSORS = {"model": {"w": torch.zeros(2)}}
TEXTS = {name: f"{name} ä\n" for name in RECORD}


def make(root: Path, *, texts: bool = True) -> CheckpointStore:
    store = CheckpointStore(root, keep=None)
    for step, metric in ((1, 2.0), (2, 1.0), (3, 3.0)):
        store.save(step, TENSORS, {}, metric, TEXTS if texts else None)
    return store


@pytest.mark.parametrize("name", RECORD)
def test_a_damaged_record_damages_the_checkpoint(tmp_path: Path, name: str) -> None:
    store = make(tmp_path)
    (tmp_path / "step-00000003" / name).write_text("other")
    with refused(DamagedCheckpoint):
        verify_record(tmp_path / "step-00000003")
    with refused(DamagedCheckpoint):
        load(store.root, 3)
    assert load(store.root, 3, only=("model",)).step == 3
    newest = store.load_newest()
    assert newest is not None
    assert newest.step == 2


def test_a_checkpoint_without_a_record_is_refused(tmp_path: Path) -> None:
    with refused():
        verify_record(load(make(tmp_path, texts=False).root, 1).path)


def test_paths_of_checkpoints(tmp_path: Path) -> None:
    make(tmp_path)
    expected = {"step-00000001": 1, "latest": 3, "best": 2}
    for name, step in expected.items():
        assert find_checkpoint(tmp_path / name) == tmp_path / f"step-{step:08d}"
    # A checkpoint that was taken elsewhere, under another name.
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "step-00000001").rename(tmp_path / "elsewhere" / "good")
    assert find_checkpoint(tmp_path / "elsewhere" / "good") == tmp_path / "elsewhere" / "good"
    for nothing in (tmp_path, tmp_path / "elsewhere" / "step-00000009", tmp_path / "no" / "latest"):
        assert find_checkpoint(nothing) is None


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "best").unlink()
    for name in ("best", "step-00000009", "step-1"):
        with refused():
            find_checkpoint(tmp_path / name)
