"""The JSON files of a checkpoint."""

import errno
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.checkpoint.manifest import (
    FORMAT,
    DamagedCheckpoint,
    _seal,
    decode_state,
    encode_state,
    read_manifest,
    unreadable,
)

from ..support.snapshots import refused


@pytest.mark.parametrize("entry", [{"bytes": 20}, {"blake3": "x"}, [], None, "x"])
def test_invalid_entries_of_a_manifest_are_damage(tmp_path: Path, entry: object) -> None:
    """With a valid checksum."""
    content = {"format": FORMAT, "step": 5, "metric": None, "position": {}, "files": {"a": entry}}
    (tmp_path / "manifest.json").write_bytes(_seal(content))
    with pytest.raises(DamagedCheckpoint):
        read_manifest(tmp_path)
    for wrong in ({"format": "1"}, {"position": [1]}, {"position": {"tokens": "12"}}):
        (tmp_path / "manifest.json").write_bytes(_seal({**content, "files": {}, **wrong}))
        with pytest.raises(DamagedCheckpoint):
            read_manifest(tmp_path)


def test_a_newer_format_is_no_damage(tmp_path: Path) -> None:
    newer = {"format": FORMAT + 1, "step": 5, "something": "else"}
    (tmp_path / "manifest.json").write_bytes(_seal(newer))
    with refused() as caught:
        read_manifest(tmp_path)
    assert not isinstance(caught.value, DamagedCheckpoint)


@pytest.mark.parametrize("text", ["", "[]", "{}", "1", '{"blake3": 1}', "\xff", "{" * 100])
def test_invalid_manifests_are_damage(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_bytes(text.encode("latin-1"))
    with refused(DamagedCheckpoint):
        read_manifest(tmp_path)


def test_a_missing_permission_is_no_damage(tmp_path: Path) -> None:
    denied = unreadable(tmp_path, "state.json", PermissionError(errno.EACCES, "Permission denied"))
    assert not isinstance(denied, DamagedCheckpoint)
    assert "cannot be read: state.json: Permission denied" in str(denied)
    broken = unreadable(tmp_path, "state.json", OSError(errno.EIO, "Input/output error"))
    assert isinstance(broken, DamagedCheckpoint)


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
trees = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(), trees))
def test_states_come_back(state: dict[str, object]) -> None:
    assert repr(decode_state(encode_state(state))) == repr(state)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": {"b": (1,)}}, "state.a.b is a tuple"),
        ({"a": [1, {2: 3}]}, r"state.a\[1\] has the key 2"),
        ({"a": {1, 2}}, "state.a is a set"),
        ({"a": b"x"}, "state.a is a bytes"),
    ],
)
def test_what_json_would_change_is_refused(state: dict[str, object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        encode_state(state)


def test_only_a_mapping_is_a_state() -> None:
    with pytest.raises(ValueError, match="not a mapping"):
        decode_state(b"[1]")
