"""The page for users of `TrainingArguments`: what it says of names."""

import re

from setpoint.config.schema.class_info import all_fields
from setpoint.train.config import Job

from .test_commands import DOCS

ROW = re.compile(r"^- (`[^:]+`): (.+)$", re.MULTILINE)


def test_names_that_the_list_maps_are_known() -> None:
    """The list of `TrainingArguments` points to fields that exist."""
    text = (DOCS / "coming-from" / "trainingarguments.md").read_text()
    listed = text.partition("## Field by field")[2].partition("\n## ")[0]
    paths = {path for path, _ in all_fields(Job)}
    rows = ROW.findall(listed)
    assert len(rows) > 25
    for names, here in rows:
        for word in re.findall(r"`([\w.]+)`", here):
            assert word in paths, f"{names} -> {word}"
