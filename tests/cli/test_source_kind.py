from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.checkpoint import folder, manifest
from setpoint.cli import source
from setpoint.cli.source import (
    CHECKPOINT,
    OTHER,
    REVISION,
    RUN,
    is_hugging_face_directory,
    is_revision,
    kind_of,
    split_revision,
)

from .conftest import CommandLine


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("main:tiny", ("main", "tiny")),
        ("HEAD~1:a/b.toml", ("HEAD~1", "a/b.toml")),
        ("main@{2026-01-01 10:30}:tiny", ("main@{2026-01-01 10:30}", "tiny")),
        ("HEAD^{/fix: this}:x.yaml", ("HEAD^{/fix: this}", "x.yaml")),
        ("v1:own:small", ("v1", "own:small")),
        ("v1:tiny(width=64)", ("v1", "tiny(width=64)")),
        ("tiny(name=a:b)", None),
        ("tiny", None),
        (":tiny", None),
        ("main:", None),
        ("", None),
    ],
)
def test_the_two_sides(source: str, expected: tuple[str, str] | None) -> None:
    assert split_revision(source) == expected


def test_module_or_revision(cli: CommandLine) -> None:
    (cli.folder / "main").mkdir()  # a folder of this name is no module with functions in it
    (cli.folder / "package").mkdir()
    (cli.folder / "package" / "inner.py").write_text("")
    functions = ("own:small", "own:Job", "json:loads", "sys:exit", "package.inner:f")
    revisions = (
        "main:tiny", "nosuch:tiny", "HEAD:tiny", "v1.0:tiny", "feature/x:tiny", "HEAD~1:tiny",
        "own:small.toml", "own:a/b.json", "json:x.yaml", "C:\\dir\\x.toml", "heads/own:small",
        "3fa94c2:tiny", "nosuch.inner:f",
    )  # fmt: skip
    assert [word for word in functions if is_revision(word)] == []
    assert [word for word in revisions if not is_revision(word)] == []


def test_what_lies_in_the_folder(cli: CommandLine) -> None:
    for name in ("runs/a/checkpoints/step-00000001", "tiny", "main:x"):
        (cli.folder / name).mkdir(parents=True)
    (cli.folder / "runs/a/checkpoints/step-00000001/manifest.json").write_text("{}")
    (cli.folder / "step-2.toml").write_text("")
    (cli.folder / "b:c.toml").write_text("")
    found = {
        RUN: ["runs/a", "runs", ".", "main:x", "./tiny"],
        CHECKPOINT: [
            "runs/a/checkpoints/step-00000001", "runs/a/checkpoints/step-00000001/",
            "runs/a/checkpoints/latest", "runs/a/checkpoints/best", "runs/a/checkpoints/step-9",
        ],
        REVISION: ["main:tiny", "b:d.toml"],
        OTHER: ["small.toml", "nosuch.toml", "own:small", "b:c.toml", "./step-2.toml", "nosuch"],
    }  # fmt: skip
    import setpoint.presets  # noqa: F401 - registers tiny

    for expected, sources in found.items():
        assert [kind_of(source) for source in sources] == [expected] * len(sources), expected
    assert kind_of("tiny") == OTHER
    assert kind_of("tiny(x=a:b)") == OTHER


def test_the_names_are_those_of_checkpoints() -> None:
    # Repeated there, since every command decides what its SOURCE is.
    assert source.MANIFEST == manifest.MANIFEST
    assert source.POINTERS == folder.POINTERS


def test_a_model_of_hugging_face_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert is_hugging_face_directory(str(tmp_path))
    (tmp_path / "origins.json").write_text("{}")
    assert not is_hugging_face_directory(str(tmp_path))
    assert not is_hugging_face_directory("nowhere")
