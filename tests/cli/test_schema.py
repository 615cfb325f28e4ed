"""`setpoint schema`, and files that it is held against."""

import json
import re
import tomllib
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from setpoint.cli.main import main
from setpoint.config.layers.presets import presets

from ..support.cases import few, rotated
from ..support.snapshots import compare
from .conftest import CommandLine

DOCS = sorted((Path(__file__).parents[2] / "docs").rglob("*.md"))
BLOCK = re.compile(r"^```(toml|yaml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def known() -> Draft202012Validator:
    printed = StringIO()
    with redirect_stdout(printed):
        assert main(["schema"]) == 0
    schema = json.loads(printed.getvalue())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def read(text: str, form: str) -> Any:
    if form == "toml":
        return tomllib.loads(text)
    return YAML(typ="safe", pure=True).load(text) if form == "yaml" else json.loads(text)


def said(known: Draft202012Validator, data: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in known.iter_errors(data)]


@pytest.mark.parametrize(
    ("name", "form", "extent"),
    few(
        rotated(sorted(presets), ["toml", "yaml", "json"], ["", "--minimal", "--origins"]), every=5
    ),
)
def test_every_preset_as_it_is_shown(
    cli: CommandLine, known: Draft202012Validator, name: str, form: str, extent: str
) -> None:
    if (form, extent) == ("json", "--origins"):
        return  # which is not a configuration file
    text = cli.ok(f"show {name} --format {form} {extent} --schema s.json")
    assert said(known, read(text, form)) == []


def test_files_of_the_documentation(known: Draft202012Validator, cli: CommandLine) -> None:
    inference = Draft202012Validator(json.loads(cli.ok("schema --job inference")))
    count = 0
    for path in DOCS:
        page = path.read_text()
        for form, name, text in BLOCK.findall(page):
            # Others are fragments, or files of scripts with configurations of their own.
            used = rf"^\$ setpoint \w+ {re.escape(name)}\b(?!.*# exit 2)"
            if re.search(used, page, re.MULTILINE):
                data = read(text, form)
                schema = inference if "weights" in data else known
                assert said(schema, data) == [], f"{path.name}\n{text}"
                count += 1
    assert count > 1


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[optimiser]\nlr = 1e-3\n", "$"),
        ("[optimizer]\nlr = '1e-3'\n", "$.optimizer.lr"),
        ("[optimizer]\ntype = 'adamm'\n", "$.optimizer.type"),
        ("[schedule]\ntype = 'constant'\nfloor = 0.1\n", "$.schedule"),
        ("[precision]\ncompute = 'fp8'\n", "$.precision.compute"),
        ("[[data.sources]]\ntype = 'txt'\n", "$.data.sources[0].type"),
        ("[[data.sources]]\npaths = ['a']\n", "$.data.sources[0]"),
        ("batch = 3\n", "$.batch"),
    ],
)
def test_what_is_wrong_is_marked_where_it_stands(
    cli: CommandLine, known: Draft202012Validator, text: str, where: str
) -> None:
    paths = [error.json_path for error in known.iter_errors(tomllib.loads(text))]
    assert paths == [where]
    cli.file("wrong.toml", text)
    cli.refused("check wrong.toml")


def test_it_is_written_to_a_file(cli: CommandLine) -> None:
    assert cli.ok("schema --output s.json") == "s.json is written\n"
    assert (cli.folder / "s.json").read_text() == cli.ok("schema")


def test_files_begin_with_a_header_for_editors(cli: CommandLine) -> None:
    for form, line in (
        ("toml", "#:schema ../s.json"),
        ("yaml", "# yaml-language-server: $schema=../s.json"),
        ("json", "{"),
    ):
        text = cli.ok(f"show small.toml --format {form} --schema ../s.json")
        assert text.splitlines()[0] == line
        cli.file(f"again.{form}", text)
        assert cli.ok(f"fingerprint again.{form}") == cli.ok("fingerprint small.toml")
    assert '"$schema": "../s.json"' in text


def test_wrong_schemas_are_refused(cli: CommandLine) -> None:
    lines = [
        "schema --output nosuch/s.json", "schema --output .", "schema --optimizer.lr 1",
        "schema --outptu s.json", "schema tiny", "show tiny --schema s.json --format python",
        "show tiny --schema s.json --origins --json", "show tiny --schema ''",
    ]  # fmt: skip
    told: list[str] = []
    for line in lines:
        answer = cli(line)
        assert answer.status in (1, 2), line
        told.append(f"$ setpoint {line}\n{answer.err}")
    compare("cli/schema", "\n".join(told))
