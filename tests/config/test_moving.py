"""Fields that have gone elsewhere, in records and in files."""

from typing import Any

import pytest

from setpoint.config import SetpointError
from setpoint.config.migrations import (
    Converted,
    Entry,
    Operation,
    Renamed,
    Retired,
    Tree,
)


def origins(**values: Any) -> dict[str, Entry]:
    return {
        key.replace("__", "."): {
            "value": value,
            "role": "identity",
            "layers": [{"layer": "file", "origin": f"exp.toml:{n}", "value": value}],
        }
        for n, (key, value) in enumerate(values.items(), start=1)
    }


def applied(operation: Operation, data: dict[str, Any], **recorded: Any) -> Tree:
    operation.schema = 2
    tree = Tree(data, origins(**recorded), complete=bool(recorded))
    operation.apply(tree)
    return tree


def test_a_section_is_renamed_with_the_origins_below_it() -> None:
    tree = applied(Renamed("optim", "optimizer"), {"optim": {"lr": 1}}, optim__lr=1, optimal=2)
    assert tree.data == {"optimizer": {"lr": 1}}
    assert set(tree.origins) == {"optimizer.lr", "optimal"}
    assert tree.origins["optimizer.lr"]["layers"][0]["origin"] == "exp.toml:1"
    assert tree.old_path(("optimizer", "lr")) == ("optim", "lr")
    assert tree.notes == []


def test_a_move_makes_the_section_and_an_empty_one_goes() -> None:
    tree = applied(Renamed("train.every", "tracking.every"), {"train": {"every": 3}})
    assert tree.data == {"tracking": {"every": 3}}


def test_a_variant_by_its_name_alone_becomes_a_section() -> None:
    tree = applied(Renamed("floor", "schedule.floor"), {"floor": 0.1, "schedule": "cosine"})
    assert tree.data == {"schedule": {"type": "cosine", "floor": 0.1}}


def test_a_value_of_a_section_that_is_off_is_reported() -> None:
    for off in (None, "null"):
        tree = applied(Renamed("every", "evaluation.every"), {"every": 3, "evaluation": off})
        assert tree.data == {"evaluation": off}
        assert tree.notes == ["every = 3 is left out: it belongs to evaluation now, which is null"]


def test_each_item_of_a_list_and_each_key_of_a_mapping() -> None:
    data: dict[str, Any] = {"sources": [{"w": 1}, {}, {"w": 2}], "eval": {"a": {"n": 1}, "b": {}}}
    assert applied(Renamed("sources.*.w", "sources.*.weight"), data).data["sources"] == [
        {"weight": 1},
        {},
        {"weight": 2},
    ]
    assert applied(Renamed("eval.*.n", "eval.*.size"), data).data["eval"] == {
        "a": {"size": 1},
        "b": {},
    }


def test_hyphens_are_underscores() -> None:
    assert applied(Renamed("log_every", "every"), {"log-every": 3}).data == {"every": 3}


def test_only_the_variant_it_is_about() -> None:
    operation = Renamed("optimizer.wd", "optimizer.weight_decay", of="adamw")
    for tag, name in (("adamw", "weight_decay"), ("sgd", "wd")):
        assert name in applied(operation, {"optimizer": {"type": tag, "wd": 1}}).data["optimizer"]
    # A file may leave the variant to what it extends.
    assert applied(operation, {"optimizer": {"wd": 1}}).data == {"optimizer": {"weight_decay": 1}}


def test_references_to_it_are_renamed() -> None:
    data = {"optim": {"lr": 1}, "x": "${optim.lr * 2 + optim_a}", "y": ["${optim.lr}", "optim.lr"]}
    tree = applied(Renamed("optim", "optimizer"), data, x=2.0)
    assert tree.data["x"] == "${optimizer.lr * 2 + optim_a}"
    assert tree.data["y"] == ["${optimizer.lr}", "optim.lr"]


def test_a_reference_of_a_record_is_renamed_among_its_layers() -> None:
    recorded = origins(x="${optim.lr}")
    recorded["x"]["layers"].append({"layer": "reference", "origin": "", "value": 1})
    recorded["x"]["value"] = 1
    operation = Renamed("optim", "optimizer")
    tree = Tree({"optim": {"lr": 1}, "x": 1}, recorded, complete=True)
    operation.apply(tree)
    assert tree.origins["x"]["layers"][0]["value"] == "${optimizer.lr}"
    assert tree.data["x"] == 1


def test_both_names_at_once_are_refused() -> None:
    with pytest.raises(SetpointError, match="both old and new are set, .* leave old out"):
        applied(Renamed("old", "new"), {"old": 1, "new": 2})


def test_no_place_for_a_value_is_said() -> None:
    with pytest.raises(SetpointError, match=r"a\.b has no place: a is 3"):
        applied(Renamed("old", "a.b"), {"old": 1, "a": 3})


def test_a_retired_field_is_reported_unless_nothing_is_lost() -> None:
    operation = Retired("fp16", "use precision.compute", neutral=False)
    lost = applied(operation, {"fp16": True, "x": 1}, fp16=True, x=1)
    assert (lost.data, set(lost.origins)) == ({"x": 1}, {"x"})
    assert lost.notes == ["fp16 = True is left out: retired in schema 2: use precision.compute"]
    assert applied(operation, {"fp16": False}).notes == []


def test_a_function_that_fails_is_said_with_the_value() -> None:
    with pytest.raises(SetpointError) as caught:
        applied(Converted("size", lambda n: n // 2, "half"), {"size": "many"})
    assert "size = 'many' cannot be migrated to schema 2: TypeError" in str(caught.value)
    with pytest.raises(SetpointError, match="holds a reference, whose value cannot be converted"):
        applied(Converted("size", lambda n: n, "same"), {"size": "${x * 2}"})


def test_what_to_say_of_old_keys() -> None:
    for operation, new, sentence in (
        (Renamed("a.b", "a.c"), "a.c", "a.b was renamed to a.c in schema 2"),
        (Renamed("a.b", "c.b"), "c.b", "a.b was moved to c.b in schema 2"),
        (Retired("a.b", "it did nothing"), "", "a.b was retired in schema 2: it did nothing"),
    ):
        operation.schema = 2
        assert (operation.old, operation.new, operation.sentence()) == ("a.b", new, sentence)
