"""Records that older software wrote load with today's, and say the same; see tests/corpus."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import IDENTITY, resolve
from setpoint.config.composition import compose
from setpoint.config.migrations.chain import chain
from setpoint.config.migrations.operations import Added
from setpoint.config.migrations.tombstone import former
from setpoint.config.record.compare import recorded_differences
from setpoint.config.record.fingerprint import canonical, fingerprint
from setpoint.config.record.record import read_record
from setpoint.config.schema.tree import all_fields
from setpoint.config.words.shown import MISSING
from setpoint.train.config import Job

from ..few import few

CORPUS = Path(__file__).parents[1] / "corpus"
RECORDS = sorted(path.parent for path in CORPUS.glob("schema-*/*/config.json"))
README = "see tests/corpus/README.md"


def name_of(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def expected(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "expected.json").read_text(encoding="utf-8"))


def test_there_are_records_of_every_schema() -> None:
    found = {folder.parent.name for folder in RECORDS}
    assert found == {f"schema-{n}" for n in range(1, Job.__setpoint__.schema + 1)}, README
    assert len([folder for folder in RECORDS if folder.parent.name == "schema-1"]) >= 15


@functools.cache
def loaded(folder: Path) -> tuple[Job, dict[str, Any]]:
    """The resolved configuration of a record, and what heads it."""
    draft, header = read_record(Job, str(folder))
    return resolve(draft), header


@pytest.mark.parametrize("folder", RECORDS, ids=name_of)
def test_an_old_record_loads_and_keeps_its_fingerprint(folder: Path) -> None:
    wanted = expected(folder)
    config, header = loaded(folder)
    assert f"schema-{header['schema']}" == folder.parent.name
    assert header["fingerprint"] == wanted["fingerprint"]
    changes = wanted.get("changes", [])
    if changes:
        assert fingerprint(config) == changes[-1]["fingerprint"], README
        assert all(change["why"] and change["schema"] for change in changes)
        return
    assert json.loads(canonical(config)) == wanted["canonical"], README
    assert fingerprint(config) == wanted["fingerprint"]


@pytest.mark.parametrize("folder", few(RECORDS, every=3), ids=name_of)
def test_the_run_of_an_old_record_can_be_resumed(folder: Path) -> None:
    """The contract compares the record with what today's software makes of it: no difference."""
    config, _ = loaded(folder)
    found = recorded_differences(str(folder), config)
    assert [(item.path, item.left, item.right) for item in found] == [], README


@pytest.mark.parametrize("folder", RECORDS, ids=name_of)
def test_the_notes_are_those_expected(folder: Path) -> None:
    _, header = loaded(folder)
    notes = [note.partition("): ")[2] for note in header["notes"]]
    assert notes == expected(folder).get("notes", [])


@pytest.mark.parametrize("folder", few(RECORDS, every=3), ids=name_of)
def test_the_short_form_is_a_source_as_well(folder: Path, tmp_path: Path) -> None:
    text = (folder / "config.toml").read_text(encoding="utf-8")
    if not text.startswith("setpoint ="):  # the first schema wrote none that says which it is
        text = f"setpoint = {{schema = {folder.parent.name.rpartition('-')[2]}}}\n{text}"
    (tmp_path / "short.toml").write_text(text, encoding="utf-8")
    composition = compose(Job, str(tmp_path / "short.toml"))
    assert composition.problems == []
    assert composition.resolve().name == json.loads((folder / "config.json").read_text())["name"]


def test_fields_that_were_added_agree_with_their_migration() -> None:
    """`field(before=...)` keeps old fingerprints, `Added` fills old records: the same value."""
    added = [each for each in chain(Job) if isinstance(each, Added)]
    operations = [each for each in added if each.role is IDENTITY and not callable(each.value)]
    declared = {path: info for path, info in all_fields(Job) if info.before is not MISSING}
    held = 0
    for operation in operations:
        for path, value in parts_of(operation.path, operation.value):
            assert declared[path].before == value, path
            held += 1
    assert held > 30


def parts_of(path: str, value: Any) -> list[tuple[str, Any]]:
    """The fields of a section that was added; its type speaks for the field that holds it."""
    path = path.replace(".*", "")  # which stands for the items of a list
    if not isinstance(value, dict):
        return [(path, value)]
    parts = [pair for name in value for pair in parts_of(f"{path}.{name}", value[name])]
    return [(path if name == f"{path}.type" else name, part) for name, part in parts]


def test_every_field_that_was_added_has_a_migration() -> None:
    """Else the records of before would lack it, and could not be read."""
    added = {
        path
        for each in chain(Job)
        if isinstance(each, Added)
        for path, _ in parts_of(each.path, each.value)
    }
    assert {path for path, info in all_fields(Job) if info.before is not MISSING} <= added


def test_no_field_of_today_has_a_tombstone() -> None:
    assert [path for path, _ in all_fields(Job) if former(Job, path)] == []
