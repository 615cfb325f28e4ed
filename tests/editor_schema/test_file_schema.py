from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema.exceptions import best_match

from setpoint.config import Config, field, resolve
from setpoint.config.draft.walk import to_minimal, to_plain
from setpoint.config.files.write import write_json
from setpoint.config.layers.extends import HEADERS
from setpoint.editor_schema.file_schema import ABOUT_THE_FILE, json_schema

from ..config.sample import Job
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


# Each is taken by both.
VALID: list[Any] = [
    {},
    {"extends": "tiny"},
    {"extends": ["a.toml", "b.yaml"], "$schema": "s.json", "setpoint": {"schema": 1}},
    {"seed": None},
    {"seed": "null"},
    {"seed": "${batch.size}"},
    {"batch": {"sequence_length": 3}},
    {"log_every": 5},
    {"log_every": "0.25 epochs"},
    {"duration": ["300 steps", "10 min"]},
    {"duration": "300 steps, 10 min"},
    {"optimizer": "sgd"},
    {"optimizer": {"lr": 0.1}},
    {"optimizer": {"type": "sgd", "momentum": 0.5}},
    {"optimizer": {"clip_norm": "inf"}},
    {"optimizer": {"clip_norm": "null"}},
    {"model": {"experts": None}},
    {"model": {"experts": {"count": 4}}},
    {"sources": [{"type": "text", "paths": ["a"]}, "synthetic"]},
    {"warmup": "auto"},
    {"warmup": 7},
    {"tracker": {"url": "https://a", "token": "env:TOKEN"}},
    {"evaluations": {"long": {"size": 3}}},
    {"thresholds": {"loss": 3}},
    {"user": {"a": {"b": [1, {"_c.d": None}]}}},
    {"mode": "EXACT"},
    {"tags": ["a"]},
]
# Each is refused by both: the file, where the validator sees it, and which keyword tells.
INVALID: list[tuple[Any, str]] = [
    ({"sede": 1}, ": additionalProperties"),
    ({"batch": {"sise": 1}}, "batch: additionalProperties"),
    ({"seed": 7.5}, "seed: type"),
    ({"seed": True}, "seed: type"),
    ({"seed": "7"}, "seed: pattern"),
    ({"seed": -1}, "seed: minimum"),
    ({"deterministic": "true"}, "deterministic: pattern"),
    ({"deterministic": 1}, "deterministic: type"),
    ({"name": 3}, "name: type"),
    ({"name": "A b"}, "name: pattern"),
    ({"duration": "300 stpes"}, "duration: pattern"),
    ({"duration": []}, "duration: minItems"),
    ({"log_every": 0}, "log_every: minimum"),
    ({"compute": "fp8"}, "compute: enum"),
    ({"mode": "exact"}, "mode: enum"),
    ({"optimizer": {"type": "adam"}}, "optimizer.type: enum"),
    ({"optimizer": "adam"}, "optimizer: enum"),
    ({"optimizer": {"type": "adamw", "momentum": 0.5}}, "optimizer: additionalProperties"),
    ({"optimizer": {"moment": 0.5}}, "optimizer: additionalProperties"),
    ({"optimizer": {"type": "sgd", "momentum": 1}}, "optimizer.momentum: exclusiveMaximum"),
    ({"optimizer": {"type": "sgd", "momentum": "1"}}, "optimizer.momentum: pattern"),
    ({"optimizer": {"betas": [0.9]}}, "optimizer.betas: minItems"),
    ({"optimizer": {"betas": [0.9, 1.0]}}, "optimizer.betas.1: exclusiveMaximum"),
    ({"optimizer": {"betas": [0.9, 0.9, 0.9]}}, "optimizer.betas: maxItems"),
    ({"optimizer": {"lr": "inf."}}, "optimizer.lr: pattern"),
    ({"optimizer": {"lr": "-inf"}}, "optimizer.lr: pattern"),
    ({"optimizer": None}, "optimizer: type"),
    ({"batch": "big"}, "batch: pattern"),
    ({"sources": [{"paths": ["a"]}]}, "sources.0: required"),
    ({"sources": [{"type": "text", "documents": 3}]}, "sources.0: additionalProperties"),
    ({"sources": [{"type": "text", "paths": [3]}]}, "sources.0.paths.0: type"),
    ({"tracker": {"token": "s3cret"}}, "tracker.token: pattern"),
    ({"thresholds": {"loss": -1}}, "thresholds.loss: exclusiveMinimum"),
    ({"evaluations": {"a.b": {}}}, "evaluations: pattern"),
    ({"user": {"_a": 1}}, "user: pattern"),
    ({"user": {"a": {"b.c": 1}}}, "user.a: pattern"),
    ({"user": 3}, "user: type"),
    ({"warmup": "never"}, "warmup: enum"),
    ({"warmup": -2}, "warmup: minimum"),
]


@pytest.mark.parametrize("data", VALID, ids=json.dumps)
def test_valid_files(data: Any) -> None:
    ours = {key: value for key, value in data.items() if key not in HEADERS}
    assert findings(Job, json.dumps(ours)) == []
    assert complaints(KNOWN, data) == []


@pytest.mark.parametrize(("data", "expected"), INVALID, ids=lambda value: json.dumps(value)[:60])
def test_invalid_files(data: Any, expected: str) -> None:
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


MISTAKES = [
    ({"sede": 1}, "Additional properties are not allowed ('sede' was unexpected)"),
    ({"model": {"dims": 3}}, "Additional properties are not allowed ('dims' was unexpected)"),
    (
        {"optimizer": {"type": "sgd", "momentun": 0.5}},
        "Additional properties are not allowed ('momentun' was unexpected)",
    ),
    ({"compute": "fp8"}, "'fp8' is not one of ['bf16', 'fp32']"),
    ({"optimizer": "adam"}, "'adam' is not one of ['adamw', 'sgd'"),
]


@pytest.mark.parametrize(("data", "message"), MISTAKES, ids=str)
def test_a_mistake_is_named(data: Any, message: str) -> None:
    (error,) = KNOWN.iter_errors(data)
    best = best_match(KNOWN.iter_errors(data))
    assert best and best.message == error.message
    assert error.message.startswith(message)


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


def test_tags() -> None:
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
    assert "tag" not in json_schema(Part)["properties"] or json_schema(Part)["properties"]["tag"]


def test_a_record_is_a_valid_file() -> None:
    from setpoint.config.record.record import CONFIG, record_files

    assert complaints(KNOWN, json.loads(record_files(resolve(Job()))[CONFIG])) == []
