"""The JSON Schema of files, and help texts."""

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from setpoint.config import Config, field, resolve
from setpoint.config.draft.walk import to_minimal, to_plain
from setpoint.config.files.write import write_json
from setpoint.config.layers.extends import HEADERS
from setpoint.config.record.record import CONFIG, record_files
from setpoint.editor_schema.file_schema import ABOUT_THE_FILE, json_schema
from setpoint.editor_schema.help import field_help

from ..config.sample import AdamW, Job, Sgd, Transformer
from ..config.strategies import jobs
from .helpers import complaints, findings, validator

KNOWN = validator(Job)


@given(jobs)
def test_what_setpoint_writes_the_schema_takes(job: Job) -> None:
    for data in (to_plain(job), to_minimal(job)):
        assert complaints(KNOWN, json.loads(write_json(data))) == []


VALUES: list[Any] = [
    None, True, 0, 1, -1, 7.5, 1e300, "", "null", "true", "1", "inf", "sgd", "text", "adamw",
    "auto", "EXACT", "bf16", "300 steps", "never", "env:X", "${batch.size}", "x ${batch.size}",
    [], [1], ["a", "b"], [0.5, 0.5], ["${batch.size}"], {}, {"type": "sgd"}, {"type": "text"},
    {"type": 3}, {"size": 3}, {"lr": 1}, {"a": 1}, {"append": "synthetic"}, {"remove": "a"},
    {"append": {"type": "synthetic"}}, {"0": {"weight": 2}}, {"insert": {"0": "x"}},
    {"extends": 3}, {"_x": {}},
]  # fmt: skip


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in plain data."""
    pairs = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data if isinstance(data, list) else ())
    )
    found = [path] if path else []
    return [*found, *(place for key, value in pairs for place in places(value, (*path, key)))]


@settings(max_examples=80)
@given(jobs, st.data())
def test_what_setpoint_takes_the_schema_takes(job: Job, data: st.DataObject) -> None:
    tree = json.loads(write_json(data.draw(st.sampled_from([to_plain, to_minimal]))(job)))
    assume(tree)
    *above, key = data.draw(st.sampled_from(places(tree)))
    node = tree
    for part in above:
        node = node[part]
    value = data.draw(st.sampled_from(VALUES))
    if isinstance(node, dict) and data.draw(st.booleans()):
        key = data.draw(st.sampled_from([f"{key}s", str(key).replace("_", "-"), "type", "lr"]))
    assume(key != "type" or value is not None)  # null is not a variant, and reads as none given
    node[key] = value
    text = json.dumps(tree)
    if findings(Job, text):
        return
    assert complaints(KNOWN, tree) == [], text


# Each is taken by both; `test_values.py` has the values of single fields.
VALID: list[Any] = [
    {"extends": ["a.toml", "b.yaml"], "$schema": "s.json", "setpoint": {"schema": 1}},
    {"seed": "${batch.size}"},
    {"duration": "300 steps, 10 min"},
    {"optimizer": "sgd"},
    {"optimizer": {"lr": 0.1}},
    {"optimizer": {"type": "sgd", "momentum": 0.5, "clip_norm": "null"}},
    {"model": {"experts": {"count": 4}}},
    {"sources": [{"type": "text", "paths": ["a"]}, "synthetic"]},
    {"tracker": {"url": "https://a", "token": "env:TOKEN"}},
    {"evaluations": {"long": {"size": 3}}},
    {"user": {"a": {"b": [1, {"_c.d": None}]}}},
]
# Each is refused by both: the file, where the validator sees it, and which keyword tells.
INVALID: list[tuple[Any, str]] = [
    ({"sede": 1}, ": additionalProperties"),
    ({"batch": {"sise": 1}}, "batch: additionalProperties"),
    ({"batch": {"extends": 3}}, "batch.extends: type"),
    ({"optimizer": {"type": "adam"}}, "optimizer.type: enum"),
    ({"optimizer": "adam"}, "optimizer: enum"),
    ({"optimizer": {"type": "adamw", "momentum": 0.5}}, "optimizer: additionalProperties"),
    ({"optimizer": {"moment": 0.5}}, "optimizer: additionalProperties"),
    ({"optimizer": {"type": "sgd", "momentum": 1}}, "optimizer.momentum: exclusiveMaximum"),
    ({"optimizer": {"betas": [0.9]}}, "optimizer.betas: minItems"),
    ({"optimizer": {"betas": [0.9, 1.0]}}, "optimizer.betas.1: exclusiveMaximum"),
    ({"optimizer": None}, "optimizer: type"),
    ({"sources": [{"paths": ["a"]}]}, "sources.0: required"),
    ({"sources": [{"type": "text", "documents": 3}]}, "sources.0: additionalProperties"),
    ({"sources": [{"type": "text", "paths": [3]}]}, "sources.0.paths.0: type"),
    ({"evaluations": {"a.b": {}}}, "evaluations: pattern"),
    ({"user": {"a": {"b.c": 1}}}, "user.a: pattern"),
    ({"warmup": "never"}, "warmup: enum"),
]


@pytest.mark.parametrize("data", VALID, ids=json.dumps)
def test_valid_files_pass(data: Any) -> None:
    ours = {key: value for key, value in data.items() if key not in HEADERS}
    assert findings(Job, json.dumps(ours)) == []
    assert complaints(KNOWN, data) == []


@pytest.mark.parametrize(("data", "expected"), INVALID, ids=lambda value: json.dumps(value)[:60])
def test_invalid_files_are_marked(data: Any, expected: str) -> None:
    assert findings(Job, json.dumps(data))
    assert complaints(KNOWN, data) == [expected]


def test_help_defaults_and_names() -> None:
    schema = json_schema(Job)
    assert schema["$schema"].endswith("2020-12/schema")
    assert (schema["title"], schema["description"]) == ("Job", "The root.")
    seed = schema["properties"]["seed"]
    assert (seed["description"], seed["default"]) == ("Decides all random numbers.", 1234)
    assert "default" not in schema["$defs"]["Transformer"]["properties"]["head_dim"]
    assert schema["$defs"]["Sgd"]["properties"]["type"] == {"const": "sgd"}
    betas = schema["$defs"]["AdamW"]["properties"]["betas"]  # and where no `type` is given
    assert schema["$defs"][betas["$ref"].removeprefix("#/$defs/")]["default"] == [0.9, 0.95]


def test_a_schema_knows_one_spelling() -> None:
    data = {"batch": {"sequence-length": 3}}
    assert findings(Job, json.dumps(data)) == []
    assert complaints(KNOWN, data) == ["batch: additionalProperties"]


def test_taplo_can_read_it() -> None:
    """An `allOf` that is not behind an `if` has `properties` beside it, or Taplo 0.9 ends."""

    def alone(schema: Any) -> bool:
        if isinstance(schema, list):
            return any(alone(part) for part in schema)
        if not isinstance(schema, dict):
            return False
        seen = [part for key, part in schema.items() if key not in ("if", "then", "else")]
        return ("allOf" in schema and "properties" not in schema) or any(map(alone, seen))

    assert not alone(json_schema(Job))


def test_every_header_is_described() -> None:
    assert set(ABOUT_THE_FILE) == set(HEADERS)


def test_tags_are_allowed_at_the_root() -> None:
    class Part(Config):
        rate: float = field(default=0.1, gt=0, tags=("rate",))
        other: float = field(default=0.1, lt=1, tags=("rate",))

    class Root(Config):
        part: Part = field(factory=Part)

    known = validator(Root)
    assert complaints(known, {"tag": {"rate": 0.5}}) == []
    assert complaints(known, {"tag": {"rate": 2}}) != []
    assert complaints(known, {"tag": {"rate": -1}}) != []
    assert complaints(known, {"tag": {"rat": 0.5}}) != []
    assert "Sets part.rate, part.other." in json.dumps(json_schema(Root))


def test_a_record_is_a_valid_file() -> None:
    assert complaints(KNOWN, json.loads(record_files(resolve(Job()))[CONFIG])) == []


# Help: the text under a field, and the first line of a class.


if True:

    class Indented(Config):
        """In a branch."""

        x: int = 1
        """Help over
        two lines."""

        y: int = 2
        # no help
        z: int = 3
        "Short."


def test_help_is_the_text_under_the_field() -> None:
    assert field_help(Job, "seed") == "Decides all random numbers."
    assert field_help(AdamW, "lr") == field_help(Sgd, "lr") == "Peak learning rate."
    assert field_help(Transformer, "head_dim") == "Width of a head; dim / heads unless given."
    assert field_help(Indented, "x") == "Help over two lines."
    assert field_help(Indented, "y") == ""
    assert field_help(Indented, "z") == "Short."


def test_classes_in_functions_and_without_source() -> None:
    class Local(Config):
        x: int = 1
        """Local help."""

    assert field_help(Local, "x") == "Local help."
    made = type(Config)(
        "Made",
        (Config,),
        {"__annotations__": {"x": "int"}, "__module__": "builtins", "__qualname__": "Made", "x": 1},
    )
    assert field_help(made, "x") == ""
