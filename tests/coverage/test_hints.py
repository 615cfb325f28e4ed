"""Hints for the keys of four systems name a field that answers the key, or none."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import compose, other_names
from setpoint.config.draft import hints
from setpoint.config.schema.class_info import all_fields
from setpoint.presets.tiny import tiny
from setpoint.train.config import Job

from .coverage import Row, rows, sample, split

FIELDS = {path for path, _ in all_fields(Job)}


def words_of(row: Row) -> list[str]:
    """The path of a key as its system writes it: `[]` is a list, a class is a section."""
    path = row.name.partition(" ")[2].replace(".*", "")
    return re.sub(r"(\[\w+\])?:", ".", path).split(".")


def file_of(row: Row) -> dict[str, Any]:
    text = row.choices[0] if row.choices else sample(row.takes)
    value: Any
    try:
        value = tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        value = text
    for word in reversed(words_of(row)):
        value = {word.removesuffix("[]"): [value] if word.endswith("[]") else value}
    return value


def fields_in(hint: str) -> set[str]:
    """The fields that a hint names: all dotted ones, and those that the first sentence offers."""
    words = {re.sub(r"\.(append|type)$", "", word) for word in re.findall(r"[a-z_][\w.]*\w", hint)}
    offer = re.match(
        r"(?:Setpoint calls it|Did you mean|It belongs in) ([\w. ]+?)[,:?.]( |$)", hint
    )
    offered = set(re.split(r" or | and ", offer[1])) if offer else set[str]()
    return ({word for word in words if "." in word} | offered) & FIELDS


def answered(row: Row) -> set[str]:
    """The fields of an answer, with the sections around them."""
    parts = [split(setting)[1].split(".") for setting in row.settings]
    return {".".join(path[:end]) for path in parts for end in range(1, len(path) + 1)}


def test_no_hint_leads_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuple(all_fields(Job))  # which takes longer than all else of a hint
    for module in (hints, other_names):
        monkeypatch.setattr(module, "all_fields", lambda root, *_: found)
    known = rows()
    wrong: list[str] = []
    right = 0
    for row in (row for row in known if row.kind == "key"):
        file = tmp_path / "job.json"
        file.write_text(json.dumps(file_of(row)))
        path = ".".join(words_of(row)).replace("[]", ".0")
        for problem in compose(Job, tiny(), files=[file]).problems:
            # What is said of a section holds for any of its keys.
            section = row.name.partition(" ")[0] + f" {problem.path}"
            alike = known if path != problem.path else [row]
            fields = set().union(*(answered(a) for a in alike if a.name.startswith(section)))
            named = fields_in(problem.hint)
            if not named <= fields | answered(row):
                wrong.append(f"{row.name}: {problem.hint}")
            right += bool(named)
    assert not wrong, "\n".join(wrong)
    assert right > 420
