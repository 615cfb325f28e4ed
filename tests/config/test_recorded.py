"""What the files of a record say, also where they were damaged or made up."""

import json
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import SetpointError, resolve
from setpoint.config.record.record import (
    load_record,
    read_record,
    record_files,
    recorded_schema,
)

from .sample import Job


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A record of the sample."""
    for name, text in record_files(resolve(Job(seed=7))).items():
        (tmp_path / name).write_text(text)
    return tmp_path


def change(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_values_header_and_origins(folder: Path) -> None:
    record = load_record(Job, str(folder))
    assert (record.values["seed"], record.header["schema"], record.notes) == (7, 1, [])
    assert record.origins["seed"]["layers"][-1]["value"] == 7
    assert record.find(("seed",)).startswith(f"{folder}/config.json:")


def test_the_schema_of_a_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert recorded_schema(str(folder)) == 1
    assert recorded_schema(str(tmp_path_factory.mktemp("empty"))) is None
    change(folder, "config.json", setpoint="text")
    assert recorded_schema(str(folder)) is None


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {
            "value": 1,
            "role": "identity",
            "layers": [3, {"layer": "file", "origin": "", "value": 1}],
        },
        {"value": 1, "role": "identity", "layers": [{"layer": "file", "origin": ""}]},
        {"value": 1, "role": "identity", "layers": "file"},
        {"value": 1, "role": [], "layers": []},
        {"role": "identity", "layers": [{"layer": "file", "origin": "", "value": 1}]},
    ],
)
def test_origins_that_are_none_are_refused(folder: Path, entry: object) -> None:
    change(folder, "origins.json", seed=entry)
    with pytest.raises(SetpointError, match=r"origins\.json: these are not the origins of a rec"):
        read_record(Job, str(folder))


@pytest.mark.parametrize("modules", [5, "abc", [3], None, {}])
def test_odd_names_of_modules_are_no_traceback(folder: Path, modules: object) -> None:
    header = {"schema": 1, "fingerprint": "", "modules": modules}
    change(folder, "config.json", setpoint=header, seed="x")
    with pytest.raises(SetpointError):
        read_record(Job, str(folder))
