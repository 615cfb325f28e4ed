"""`setpoint why`."""

import json
import re

from ..support.snapshots import compare
from .conftest import CommandLine


def test_a_preset_and_a_modifier(cli: CommandLine) -> None:
    text = cli.ok("why duration tiny --with 'smoke(steps=7)' --duration '3 steps'")
    lines = text.splitlines()
    assert lines[0] == "duration = '3 steps'"
    assert re.fullmatch(r"    '.*'  +preset tiny \(setpoint/presets/tiny\.py:\d+\)", lines[1])
    smoke = r"    '7 steps'  +modifier smoke\(steps=7\) \(setpoint/presets/modifiers\.py:\d+\)"
    assert re.fullmatch(smoke, lines[2])
    assert re.fullmatch(r"  > '3 steps'  +command line --duration", lines[3])


def test_derived_values_name_what_they_follow_from(cli: CommandLine) -> None:
    line = "small.toml --model.ffn_dim '${model.dim * 3}'"
    paths = ("model.head_dim", "model.ffn_dim", "batch.accumulation", "schedule.horizon")
    text = "\n".join(cli.ok(f"why {path} {line}") for path in paths)
    compare("cli/why_derived", text)
    assert "> 16  derived from model.dim, model.heads" in text
    assert "reference ${model.dim * 3} over model.dim" in text
    assert "derived from duration" in text


def test_items_of_lists_are_explained(cli: CommandLine) -> None:
    text = cli.ok("why data.sources small.toml --data.sources.0.documents 30")
    compare("cli/why_items", text)
    assert text == cli.ok("why data.sources.0 small.toml --data.sources.0.documents 30")
    assert "small.toml:21:1" in text
    one = cli.ok("why data.sources.0.documents small.toml --data.sources.0.documents 30")
    assert one.strip() in text


def test_names_that_are_both_a_field_and_a_file(cli: CommandLine) -> None:
    expected = cli.ok("why data small.toml")
    (cli.folder / "data").mkdir()
    cli.file("model.toml", (cli.folder / "small.toml").read_text())
    assert cli.ok("why data small.toml") == expected == cli.ok("why small.toml data")
    assert cli.ok("why model.toml optimizer.lr") == cli.ok("why optimizer.lr model.toml")


def test_without_a_source_the_defaults_are_asked(cli: CommandLine) -> None:
    assert "> 0.0003  default" in cli.ok("why optimizer.lr")


def test_sections_that_are_off(cli: CommandLine) -> None:
    assert cli.ok("why evaluation small.toml --evaluation null").startswith("evaluation = null\n")
    cli.refused("why evaluation.every small.toml --evaluation null")


def test_keys_of_the_user_area_are_explained(cli: CommandLine) -> None:
    text = cli.ok("why user small.toml --user.probe.width 8 --user.note hello")
    assert "user.probe.width = 8" in text
    assert "user.note = 'hello'" in text


def test_paths_that_lead_nowhere(cli: CommandLine) -> None:
    lines = [
        "why optimizer.lrr small.toml", "why lr small.toml", "why small.toml optimiser.lr",
        "why sequence_length small.toml", "why model.dim.x small.toml",
        "why schedule.floor small.toml --schedule constant", "why data.sources.3 small.toml",
        "why small.toml", "why tiny", "why tinny optimizer.lr", "why optimizer.lr tinny",
        "why '' small.toml",
    ]  # fmt: skip
    for line in lines:
        cli.refused(line)


def test_why_has_a_json_form(cli: CommandLine) -> None:
    line = "why optimizer small.toml --optimizer.clip_norm inf --optimizer.betas 0.8,0.9 --json"
    found = {entry["path"]: entry for entry in json.loads(cli.ok(line))}
    assert found["optimizer.lr"]["value"] == 0.01
    assert found["optimizer.lr"]["role"] == "identity"
    assert found["optimizer.lr"]["layers"] == [{"value": 0.01, "origin": "small.toml:15:1"}]
    assert found["optimizer.clip_norm"]["value"] == "inf"
    betas = found["optimizer.betas"]
    assert betas["layers"][-1] == {"value": [0.8, 0.9], "origin": "command line --optimizer.betas"}
    assert found["optimizer.type"]["value"] == "adamw"
    assert all(entry["help"] for entry in found.values())


def test_every_value_of_a_configuration_can_be_asked(cli: CommandLine) -> None:
    keys = json.loads(cli.ok("show small.toml --origins --json"))["origins"]
    for section in {key.partition(".")[0] for key in keys}:
        own = [key for key in keys if key.partition(".")[0] == section]
        text = cli.ok(f"why {section} small.toml")
        assert set(re.findall(r"^(\S+) = ", text, re.MULTILINE)) >= {*own}
        assert text.count("\n  > ") >= len(own)


def test_a_value_that_was_dropped_is_named(cli: CommandLine) -> None:
    cli.file("flat.toml", 'extends = "tiny"\n[schedule]\nfloor = 0.25\n')
    line = "schedule.floor = 0.25, from flat.toml:3:1: type = constant has no such field"
    there = "flat.toml --schedule constant"
    assert cli.ok(f"why schedule {there}").splitlines()[-1] == f"dropped: {line}"
    assert json.loads(cli.ok(f"why schedule {there} --json"))[-1] == {
        "path": "schedule",
        "dropped": line,
    }
    cli.refused(f"why schedule.floor {there}")
    assert "dropped" not in cli.ok(f"why optimizer {there}")
    assert f"dropped: {line}" in cli.ok(f"check {there}")
    shown = cli(f"show {there} schedule")
    assert f"note: dropped: {line}" in shown.err and "dropped" not in shown.out
    back = f"{there} --schedule cosine"
    assert "> 0.25  flat.toml:3:1" in cli.ok(f"why schedule.floor {back}")
    assert "dropped" not in cli.ok(f"check {back}")
