"""`setpoint list`."""

import json
from typing import Any

import pytest

from setpoint.cli.list import KINDS

from ..support.snapshots import compare
from .conftest import CommandLine


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_listed(cli: CommandLine, kind: str) -> None:
    found = json.loads(cli.ok(f"list {kind} --json"))
    assert list(found) == [kind]
    assert found[kind]
    assert all(row.get("help") or row.get("fields") or row.get("code") for row in found[kind])
    text = cli.ok(f"list {kind}")
    for row in found[kind]:
        assert next(iter(row.values())) in text


def test_fields_of_a_section(cli: CommandLine) -> None:
    compare("cli/list_fields_optimizer", cli.ok("list fields optimizer"))
    assert cli.ok("list fields data.sources").startswith("data.sources\n")
    assert cli.ok("list fields model.head-dim").splitlines()[1].strip().startswith("an int")


def test_defaults_for_machines_have_their_type(cli: CommandLine) -> None:
    found = json.loads(cli.ok("list fields --json"))["fields"]
    rows = {row["path"]: row for row in reversed(found)}
    assert rows["optimizer.lr"]["default"] == 0.0003
    assert rows["optimizer.betas"]["default"] == [0.9, 0.95]
    assert rows["experiment"]["default"] is None
    assert rows["model.head_dim"]["derived"] is True
    assert rows["data.sources.paths"]["required"] is True
    assert rows["schedule.power"]["variant"] == "polynomial"
    # Of a class between the family and its variants.
    (floor,) = [row for row in found if row["path"] == "schedule.floor"][:1]
    assert floor["variants"] == ["cosine", "linear", "polynomial", "rex", "wsd"]
    # Variants with a default of their own are not among those of the family.
    lr = {tag: r["default"] for r in found if r["path"] == "optimizer.lr" for tag in _variants(r)}
    assert lr["adamw"] == 0.0003 and lr["lion"] == 0.0001 and lr["muon"] == 0.02
    assert "lion" not in rows["optimizer.lr"]["variants"]


def _variants(row: dict[str, Any]) -> list[str]:
    return [row["variant"]] if "variant" in row else row["variants"]


def test_unknown_lists_are_refused(cli: CommandLine) -> None:
    lines = [
        "list preset", "list nothing", "list fields optimiser", "list fields optimzer.lr",
        "list presets zebra", "list fields zebra",
    ]  # fmt: skip
    for line in lines:
        cli.refused(line)


def test_lists_for_machines_hold_lists(cli: CommandLine) -> None:
    found = json.loads(cli.ok("list --json"))
    cadence = next(row for row in found["tags"] if row["tag"] == "tag.cadence")
    assert "checkpoint.every" in cadence["fields"]
    smoke = next(row for row in found["modifiers"] if row["name"] == "smoke")
    assert smoke["parameters"] == [{"name": "steps", "default": 10}]
    assert all(row["code"] and row["help"] for row in found["cautions"])
    assert "smoke         (steps=10)  Only" in cli.ok("list modifiers")


@pytest.mark.parametrize(
    ("word", "first", "others"),
    [
        ("warmup", "schedule.warmup", {"profiling.warmup"}),
        ("learning-rate", "optimizer.lr", {"schedule"}),
        ("lr", "optimizer.lr", {"schedule.floor"}),
        ("learning rate", "optimizer.lr", {"optimizer.groups.lr_multiplier"}),
    ],
)
def test_fields_are_searched(cli: CommandLine, word: str, first: str, others: set[str]) -> None:
    rows = json.loads(cli.ok(f"list fields {word} --json"))["fields"]
    paths = [row["path"] for row in rows]
    assert paths[0].startswith(first)
    assert others <= set(paths)
    assert cli.ok(f"list fields {word}").startswith(paths[0])
