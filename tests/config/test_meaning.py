"""Fields whose values stand for something else now, and new ones."""

import pytest

from setpoint.config import RUNTIME, SetpointError
from setpoint.config.migrations import Added, Converted
from setpoint.config.words.plain_data import PlainScalar

from .test_moving import applied


def test_a_value_in_another_unit() -> None:
    operation = Converted("warmup", lambda n: n * 1000, "counts tokens, not steps")
    tree = applied(operation, {"warmup": 3}, warmup=3)
    assert tree.data == {"warmup": 3000}
    assert tree.origins["warmup"]["layers"][-1]["value"] == 3000
    assert tree.notes == ["warmup: 3 is 3000 since schema 2: counts tokens, not steps"]
    # A number of a YAML file is a text until its field reads it.
    assert applied(operation, {"warmup": PlainScalar("3")}).data == {"warmup": 3000}
    assert applied(operation, {"warmup": 0}).notes == []
    with pytest.raises(SetpointError, match="cannot be migrated to schema 2"):
        applied(operation, {"warmup": None})


def test_a_variant_with_another_name() -> None:
    operation = Converted("optimizer.type", {"adam_w": "adamw"}.get, "one word")
    for data in ({"optimizer": "adam_w"}, {"optimizer": {"type": "adam_w"}}):
        changed = applied(operation, data).data["optimizer"]
        assert changed in ("adamw", {"type": "adamw"})


def test_a_section_that_was_added_has_an_origin_for_each_value() -> None:
    norm = {"type": "rms", "eps": {"value": 1}}
    operation = Added("model.norm", norm, of="x")
    tree = applied(operation, {"model": {"type": "x"}}, model__type="x")
    assert tree.data == {"model": {"type": "x", "norm": norm}}
    kept = {key: entry["value"] for key, entry in tree.origins.items() if "norm" in key}
    assert kept == {
        "model.norm.type": "rms",
        "model.norm.eps.value": 1,
    }


def test_a_record_gets_the_value_that_runs_had() -> None:
    operation = Added("batch.drop_last", True, role=RUNTIME)
    tree = applied(operation, {"batch": {"size": 1}}, batch__size=1)
    assert tree.data == {"batch": {"size": 1, "drop_last": True}}
    assert tree.origins["batch.drop_last"] == {
        "value": True,
        "role": "runtime",
        "layers": [{"layer": "record", "origin": "before schema 2", "value": True}],
    }
    assert applied(operation, {"batch": None}, x=1).data == {"batch": None}
    assert applied(operation, {"batch": {"drop_last": False}}, x=1).data["batch"] == {
        "drop_last": False
    }


def test_a_file_means_todays_default_by_what_it_leaves_out() -> None:
    silent = applied(Added("fused", False), {"x": 1})
    assert (silent.data, silent.notes) == ({"x": 1}, [])
    told = applied(Added("fused", False, what="the default is fused now"), {"x": 1})
    assert (told.data, told.notes) == (
        {"x": 1},
        ["fused is new in schema 2: the default is fused now"],
    )


def test_a_new_value_may_follow_from_the_others_and_from_the_variant() -> None:
    operation = Added("o.total", lambda data: data["o"]["a"] * 2, derived=True, of="x")
    tree = applied(operation, {"o": {"type": "x", "a": 3}}, o__a=3)
    assert tree.data["o"]["total"] == 6
    assert tree.origins["o.total"]["layers"][-1]["layer"] == "derived"
    assert "total" not in applied(operation, {"o": {"type": "y", "a": 3}}, o__a=3).data["o"]
    with pytest.raises(SetpointError, match=r"o\.total = None cannot be migrated to schema 2"):
        applied(operation, {"o": {"type": "x"}}, o__a=3)
