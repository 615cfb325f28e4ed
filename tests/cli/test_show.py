"""`setpoint show`."""

import json

import pytest

from ..support.cases import rotated
from ..support.snapshots import compare
from .conftest import CommandLine

OVERRIDES = (
    "--optimizer.clip_norm inf --user.note 'a \"b\" ä' --user.deep.er 3 --seed 7 "
    '--duration \'["30 steps", "2 h"]\' --experiment null --evaluation null '
    "--model.ffn_dim '${model.dim * 3}'"
)


FORMS = [
    f"--format {suffix} {options}".strip()
    for suffix in ("toml", "yaml", "json")
    for options in ("", "--all", "--minimal", "--origins", "--minimal --origins")
    # JSON has no comments: with --origins it holds two objects.
    if suffix != "json" or "--origins" not in options
]


@pytest.mark.parametrize(("form", "source"), rotated(FORMS, ["small.toml", "tiny", "own:small"]))
def test_what_is_shown_can_be_used_as_a_source(cli: CommandLine, source: str, form: str) -> None:
    suffix = form.split()[1]
    text = cli.ok(f"show {source} {form} {OVERRIDES}")
    cli.file(f"saved.{suffix}", text)
    expected = cli.ok(f"fingerprint {source} {OVERRIDES}")
    assert cli.ok(f"fingerprint saved.{suffix}") == expected
    # Not only what is learned: everything.
    plain = cli.ok(f"show {source} --json {OVERRIDES}")
    assert json.loads(cli.ok(f"show saved.{suffix} --json")) == json.loads(plain)


def test_each_value_is_shown_with_its_origin(cli: CommandLine) -> None:
    text = cli.ok("show small.toml --origins --optimizer.lr 0.5")
    compare("cli/show_origins", text)
    for line in text.splitlines():
        assert "=" not in line or "  # " in line


def test_nulls_that_are_defaults_are_left_out(cli: CommandLine) -> None:
    """A null that differs from its default stays; JSON holds all."""
    text = cli.ok("show small.toml --evaluation null --optimizer.clip_norm null")
    found = [line for line in text.splitlines() if "null" in line]
    assert found == ['evaluation = "null"', 'clip_norm = "null"']
    assert cli.ok("show small.toml --all").count("null") > 20
    assert json.loads(cli.ok("show small.toml --json"))["experiment"] is None
    cli.refused("show small.toml --all --minimal")
    cli.refused("show small.toml --all --format python")


def test_minimal_holds_only_what_differs(cli: CommandLine) -> None:
    text = cli.ok("show small.toml --minimal")
    compare("cli/show_minimal", text)
    assert cli.ok("show --minimal --format toml own:Job").strip() == ""


def test_python_can_be_used_as_a_source(cli: CommandLine) -> None:
    cli.file("shown.py", cli.ok("show small.toml --format python"))
    name = next(
        line.removeprefix("def ").partition("(")[0]
        for line in (cli.folder / "shown.py").read_text().splitlines()
        if line.startswith("def ")
    )
    cli.refused("show small.toml --format python --origins")
    assert cli.ok(f"fingerprint shown:{name}") == cli.ok("fingerprint small.toml")


def test_a_path_shows_one_part(cli: CommandLine) -> None:
    assert cli.ok("show small.toml model.dim") == "[model]\ndim = 32\n"
    assert cli.ok("show model.dim small.toml") == "[model]\ndim = 32\n"
    assert cli.ok("show small.toml experiment --all") == 'experiment = "null"\n'
    batch = json.loads(cli.ok("show small.toml batch --json --origins"))
    assert list(batch["config"]) == ["batch"]
    assert batch["config"]["batch"]["micro_size"] == 4
    assert batch["origins"]["batch.micro_size"].startswith("small.toml:")
    assert all(path.startswith("batch") for path in batch["origins"])
    assert "[[data.sources]]" in cli.ok("show small.toml data.sources.0")
    field = cli.ok("show small.toml data.sources.0.type")
    assert field.splitlines()[0] == "[[data.sources]]" and field.count(" = ") == 1
    for path in ("data.sources.0.nonsense", "data.sources.9", "data.sources.9.type"):
        cli.refused(f"show small.toml {path}")
    assert cli.ok("show small.toml loss --minimal") == ""
    cli.refused("show small.toml model.dimm")
    cli.refused("show small.toml model --format python")
