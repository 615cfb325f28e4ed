"""A record that was changed after it was written is not taken for what a run was."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import Config, resolve
from setpoint.config.composition import compose
from setpoint.config.layers.presets import load_plugins
from setpoint.config.record.record import read_record, record_files, recorded_fingerprint
from setpoint.config.words.errors import SetpointError

from ..long.fuzz.guard import guarded
from .sample import Job


def write(folder: Path, *flags: str) -> Path:
    folder.mkdir()
    for name, text in record_files(compose(Job, flags=flags).resolve()).items():
        (folder / name).write_text(text)
    return folder


def change(folder: Path, name: str, edit: Any) -> None:
    data = json.loads((folder / name).read_text())
    edit(data)
    (folder / name).write_text(json.dumps(data))


def refusal(folder: Path) -> str:
    with pytest.raises(SetpointError) as caught:
        read_record(Job, str(folder))
    return str(caught.value)


def test_a_record_as_it_was_written(tmp_path: Path) -> None:
    flags = ["--user.a.b=[1]", "--evaluations={x={size=3}}", "--thresholds.y=0.5", "--sources=[]"]
    folder = write(tmp_path / "run", *flags, "--model.experts={}", "--seed=null")
    draft, header = read_record(Job, str(folder))
    assert (
        resolve(draft)
        == compose(Job, flags=[*flags, "--model.experts={}", "--seed=null"]).resolve()
    )
    origins = json.loads((folder / "origins.json").read_text())
    assert header["fingerprint"] == recorded_fingerprint(origins)


def test_a_changed_value_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", "--user.a=1")
    before = (folder / "config.json").read_text()
    for edit, words in [
        (lambda data: data.update(seed=9), "seed is 9 in config.json and 1234 in origins.json"),
        (lambda data: data.update(seed=1234.0), "seed is 1234.0 in config.json and 1234 in"),
        (lambda data: data.pop("seed"), "seed is nothing in config.json and 1234 in origins.json"),
        (lambda data: data["user"].update(b=2), "user.b is 2 in config.json and nothing in"),
        (
            lambda data: data["model"].update(extends="/etc/x.toml"),
            'model.extends is "/etc/x.toml"',
        ),
        (
            lambda data: data["setpoint"].update(fingerprint="0"),
            "states the fingerprint 0, and its",
        ),
    ]:
        (folder / "config.json").write_text(before)
        change(folder, "config.json", edit)
        assert words in refusal(folder), words
        assert f"give {folder}/config.json as a file" in refusal(folder)
    change(folder, "config.json", lambda data: data.update(seed=9))
    # What the error says to do is possible.
    assert compose(Job, str(folder / "config.json")).resolve().seed == 9


def test_both_files_changed_alike_have_another_fingerprint(tmp_path: Path) -> None:
    folder = write(tmp_path / "run")
    change(folder, "config.json", lambda data: data.update(seed=9))
    change(folder, "origins.json", lambda data: data["seed"].update(value=9))
    assert "it states the fingerprint" in refusal(folder)


def test_a_forged_record_is_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made with care to agree with itself, it still runs, imports and reads nothing."""
    outside = tmp_path / "outside.toml"
    outside.write_text("dim = 3")
    folder = write(tmp_path / "run")
    read_record(Job, str(folder))  # imports what is imported when it is first used
    load_plugins()  # looks at what is installed, once in a process
    forgeries: list[dict[str, Any]] = [
        {"model.extends": str(outside)},
        {"optimizer.type": "import", "optimizer.target": "os.system"},
        {"name": "../../etc"},
        {"tracker": "${seed}"},
        {"user.__class__": "x"},
        {"seed": "__import__('os')"},
    ]
    whole = {path.name: path.read_text() for path in folder.iterdir()}
    for forged in forgeries:
        for name, text in whole.items():
            (folder / name).write_text(text)

        def put(data: dict[str, Any], forged: dict[str, Any] = forged) -> None:
            for path, value in forged.items():
                section, _, key = path.rpartition(".")
                (data[section] if section else data)[key] = value

        def put_origins(data: dict[str, Any], forged: dict[str, Any] = forged) -> None:
            for path, value in forged.items():
                layers = [{"layer": "reference", "origin": "x", "value": value}]
                data[path] = {"value": value, "role": "identity", "layers": layers}

        change(folder, "config.json", put)
        change(folder, "origins.json", put_origins)
        origins = json.loads((folder / "origins.json").read_text())
        restated = {"fingerprint": recorded_fingerprint(origins)}
        change(folder, "config.json", lambda data, new=restated: data["setpoint"].update(new))
        monkeypatch.setattr(os, "system", lambda command: pytest.fail(command))
        with guarded(str(folder)), pytest.raises(SetpointError):
            draft: Config = read_record(Job, str(folder))[0]
            resolve(draft)
