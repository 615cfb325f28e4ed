"""The pages for users of other systems: one job, and what each says of names."""

from __future__ import annotations

import re

from setpoint.config.schema.tree import all_fields
from setpoint.train.config import Job

from .test_commands import DOCS, blocks, file_name

FOLDER = DOCS / "coming-from"
SCRIPTS = ("argparse", "hydra", "tyro", "fiddle", "configdict", "pydantic")
ROW = re.compile(r"^\| (`[^|]+`) \| ([^|]+) \|$", re.MULTILINE)


def script_of(page: str) -> str:
    shown = blocks(FOLDER / f"{page}.md", "python")
    return next(text for text in shown if file_name(text) == "train.py")


def test_every_page_shows_the_same_job() -> None:
    assert len({script_of(page) for page in SCRIPTS}) == 1


def test_the_table_of_names_is_that_of_the_fields() -> None:
    """`trainingarguments.md` lists names by field, as `also_called` beside the fields has them."""
    text = (FOLDER / "trainingarguments.md").read_text().partition("## Names of other systems")[2]
    shown = {field.strip("`"): re.findall(r"`(\w+)`", names) for field, names in ROW.findall(text)}
    known = {path: list(info.also_called) for path, info in all_fields(Job) if info.also_called}
    assert shown == known


def test_names_that_the_other_table_maps_are_known() -> None:
    """The table of `TrainingArguments` points to fields that exist."""
    text = (FOLDER / "trainingarguments.md").read_text()
    table = text.partition("## Field by field")[2].partition("\n## ")[0]
    paths = {path for path, _ in all_fields(Job)}
    rows = ROW.findall(table)
    assert len(rows) > 25
    for names, here in rows:
        for word in re.findall(r"`([\w.]+)`", here):
            assert word in paths, f"{names} -> {word}"
