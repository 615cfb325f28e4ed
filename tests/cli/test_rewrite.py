"""Old files as new text: comments and layout stay, and the values are the migrated ones."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from setpoint.config import SetpointError

if TYPE_CHECKING:
    from setpoint.config.files.file_document import Format
from setpoint.cli.migrate import rewrite_document
from setpoint.config.files.read import parse
from setpoint.config.migrations import guessed, migrate

from ..config.history import Job
from ..support.snapshots import compare

TOML = """\
#:schema job.json
# A run of long ago.
extends = "tiny"  # the base
hours = 2 # how long
fp16 = true

# the optimizer
[optim]  # by its old name
type = "adam_w" # kind
lr = 0.5 # rate
# decay
wd = 0.1

[train]
batch = 8 # sizes
# about the log
log_every = 3  # often
lr_floor = "${optim.lr / 2}"

[[sources]] # one
path = "a"
w = 1 # weight
[[sources]]
w = 2.0
path = "b"

[schedule]
# nothing yet
"""

YAML = """\
# A run of long ago.
extends: tiny  # the base
hours: 2 # how long
fp16: true

# the optimizer
optim:  # by its old name
    type: "adam_w" # kind
    lr: 0.5 # rate
    # decay
    wd: 0.1

train:
    batch: 8 # sizes
    # about the log
    log_every: 3  # often
    lr_floor: 0.1
sources:
  - path: a
    w: 1 # weight
  - w: 2.0
    path: b
"""

JSON = '{\n    "hours": 2,\n    "optim": {"lr": 1, "type": "sgd"}\n}\n'


def rewritten(text: str, format: Format) -> str:
    document = parse(text, format, f"exp.{format}")
    data = {key: value for key, value in document.data.items() if key != "setpoint"}
    return rewrite_document(document, migrate(Job, data, 1), 3)


@pytest.mark.parametrize(("text", "format"), [(TOML, "toml"), (YAML, "yaml"), (JSON, "json")])
def test_comments_and_layout_stay(text: str, format: Format) -> None:
    compare(f"config/migrated_{format}", rewritten(text, format))


@pytest.mark.parametrize(
    ("text", "format"),
    [
        ("setpoint = {schema = 1}\nhours = 1\n", "toml"),
        ("[setpoint]\nschema = 1\n[optim]\nlr = 1\n", "toml"),
        ("optim = {lr = 1, warm = 2}\n", "toml"),
        ("[optim]\nlr = 1\n[train]\nbatch = 2\n[optim.more]\nx = 1\n", "toml"),
        ("sources = [{w = 1}, {w = 2, path = 'x'}]\n", "toml"),
        ("hours = 1\r\n[optim]\r\nlr = 1\r\n", "toml"),
        ("setpoint: {schema: 1, by: me}\nhours: 1\n", "yaml"),
        ("optim: adam_w\ntrain:\n- 1\n", "yaml"),
        ("optim: {lr: '1', wd: 0x10}\n", "yaml"),
        ('{"setpoint": {"schema": 1}, "hours": 1}', "json"),
    ],
)
def test_the_new_text_reads_as_the_migrated_data_or_is_refused(text: str, format: Format) -> None:
    document = parse(text, format, "exp")
    data = {key: value for key, value in document.data.items() if key != "setpoint"}
    tree = migrate(Job, data, 1)
    text = rewrite_document(document, tree, 3)
    again = guessed(parse(text, format, "exp").data)
    header = again.pop("setpoint")
    assert header["schema"] == 3
    assert again == guessed(tree.data)
    assert migrate(Job, again, 3).notes == []


@pytest.mark.parametrize(("text", "format"), [(TOML, "toml"), (YAML, "yaml"), (JSON, "json")])
def test_line_ends_stay(text: str, format: Format) -> None:
    after = rewritten(text.replace("\n", "\r\n"), format)
    assert after.replace("\r\n", "\n") == rewritten(text, format)
    assert after.count("\r\n") == after.count("\n")
    with pytest.raises(SetpointError, match=r"its lines end in CRLF and in LF"):
        rewritten(text.replace("\n", "\r\n", 2), format)


def test_anchors_stay_or_are_named() -> None:
    text = rewritten("name: &n abc\ntitle: *n\nhours: 2\n", "yaml")
    assert "name: &n abc\ntitle: *n\n" in text
    # What an alias repeats keeps its value where the anchor's own key has another one.
    assert "seed: &h 2\n" in rewritten("hours: &h 2\nseed: *h\n", "yaml")
    with pytest.raises(SetpointError, match=r"an alias \(\*\) repeats a part that would change"):
        rewritten("train: &t {batch: 8, log_every: 2}\nother: *t\n", "yaml")


def test_what_cannot_be_rewritten_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong result of the tools below is noticed: the text is read again and compared."""

    def forgetful(text: str, *_: object) -> str:
        return text

    monkeypatch.setattr("setpoint.cli.migrate.rewrite_toml", forgetful)
    with pytest.raises(SetpointError) as caught:
        rewritten(TOML, "toml")
    assert str(caught.value).startswith(
        "exp.toml cannot be rewritten with its layout (the new text would not read as the new "
        "values); nothing was written"
    )


def test_toml_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tomlkit", None)
    with pytest.raises(SetpointError, match=r"needs the package tomlkit: install 'setpoint\[migr"):
        rewritten(TOML, "toml")
