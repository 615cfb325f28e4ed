"""The table's flattening: each field under its dotted path, and nothing else touched."""

from __future__ import annotations

from setpoint.sweep.sweep_file import flattened


def test_tables_of_fields_are_flattened() -> None:
    assert flattened(
        {
            "grid": {"a": {"b": [1], "c": {"d": [2]}}, "e.f": [3]},
            "points": [{"a": {"b": 1}, "c": {}}, 5],
            "random": {"count": 3, "axes": {"a": {"b": {"type": "choice", "values": [1]}}}},
            "chain": [{"zip": {"a": {"b": [1]}}}, "x"],
        }
    ) == {
        "grid": {"a.b": [1], "a.c.d": [2], "e.f": [3]},
        "points": [{"a.b": 1, "c": {}}, 5],
        "random": {"count": 3, "axes": {"a.b": {"type": "choice", "values": [1]}}},
        "chain": [{"zip": {"a.b": [1]}}, "x"],
    }


def test_what_has_another_form_is_left_for_its_reader() -> None:
    odd = {"grid": 3, "points": {"a": 1}, "random": [1], "gird": {"a": {"b": 1}}}
    assert flattened(odd) == odd
