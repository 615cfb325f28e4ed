"""The schema of `[sweep]` agrees with what reads it."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from setpoint.config import Config, ConfigError
from setpoint.config.files.read import parse
from setpoint.editor_schema.file_schema import json_schema
from setpoint.sweep.sweep_file import SweepFile, SweepTable, read_table

from .helpers import complaints


class Root(Config):
    seed: int = 0


KNOWN = Draft202012Validator(json.loads(json.dumps(json_schema(Root, SweepTable))))
DRAWN = {"type": "uniform", "low": 1, "high": 2}
VALID: list[Any] = [
    {"grid": {"optimizer": {"lr": [1, 2]}}},
    {"grid": {"optimizer.lr": [1], "with": ["null", "smoke"]}, "zip": {"seed": [1, 2]}},
    {"points": [{"seed": 1}, {"optimizer": {"lr": 1}}]},
    {"random": {"count": 2, "axes": {"a": {"b": "uniform(1, 2)", "c": DRAWN}}}},
    {"product": [{"grid": {"a": [1]}}, {"chain": [{"grid": {"b": [[1], [2]]}}]}]},
    {"search": {"trials": 3, "axes": {"a": DRAWN}, "direction": "maximize"}},
]
INVALID: list[tuple[Any, str]] = [
    ({"gird": {}}, "sweep: additionalProperties"),
    ({"grid": {"a": 1}}, "sweep.grid.a: type"),
    ({"grid": {"a": {"b": []}}}, "sweep.grid.a.b: minItems"),
    ({"points": [{}]}, "sweep.points.0: minProperties"),
    ({"random": {"cuont": 1}}, "sweep.random: additionalProperties"),
    ({"product": [{"chain": [{"gird": 1}]}]}, "sweep.product.0.chain.0: additionalProperties"),
    ({"search": {"trials": 0, "axes": {"a": DRAWN}}}, "sweep.search.trials: minimum"),
]


def is_taken(table: Any) -> bool:
    """Whether `setpoint sweep` reads a table."""
    try:
        read_table(SweepFile, parse(json.dumps({"sweep": table}), "json", "exp.json"))
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("table", VALID, ids=json.dumps)
def test_valid_tables_pass_both(table: Any) -> None:
    assert is_taken(table)
    assert complaints(KNOWN, {"sweep": table}) == []


@pytest.mark.parametrize(("table", "expected"), INVALID, ids=lambda value: json.dumps(value)[:60])
def test_invalid_tables_are_refused_by_both(table: Any, expected: str) -> None:
    assert not is_taken(table)
    assert complaints(KNOWN, {"sweep": table}) == [expected]


def test_a_program_without_sweeps_takes_any_table() -> None:
    known = Draft202012Validator(json.loads(json.dumps(json_schema(Root))))
    assert complaints(known, {"sweep": {"gird": {}}}) == []
