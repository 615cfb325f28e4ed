from __future__ import annotations

import shutil

import pytest

from .conftest import CommandLine
from .test_diff import record


def shown(cli: CommandLine, line: str, key: str) -> str:
    """One value of a configuration."""
    first = cli.ok(f"why {key} {line}").splitlines()[0]
    return first.removeprefix(f"{key} = ")


def test_files_apply_in_order(cli: CommandLine) -> None:
    cli.file("one.toml", "seed = 1\n[optimizer]\nlr = 0.1\n")
    cli.file("two.yaml", "seed: 2\n")
    cli.file("three.json", '{"optimizer": {"eps": 0.5}}')
    line = "small.toml --file one.toml --file two.yaml --file=three.json"
    assert shown(cli, line, "seed") == "2"
    assert shown(cli, line, "optimizer.lr") == "0.1"
    assert shown(cli, line, "optimizer.eps") == "0.5"
    assert shown(cli, "small.toml --file two.yaml --file one.toml", "seed") == "1"


def test_each_layer_beats_those_before(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "tiny"
    default = shown(cli, "own:Job", "seed")
    assert shown(cli, line, "seed") == default
    cli.file("one.toml", "seed = 1\n[evaluation]\nsequences = 1\n")
    line += " --file one.toml"
    assert shown(cli, line, "evaluation.sequences") == "1"
    monkeypatch.setenv("SETPOINT__SEED", "2")
    monkeypatch.setenv("SETPOINT__EVALUATION__SEQUENCES", "2")
    assert shown(cli, line, "seed") == "2"
    line += " --with smoke"
    assert shown(cli, line, "evaluation.sequences") == "16"
    assert shown(cli, f"{line} --evaluation.sequences 3", "evaluation.sequences") == "3"


def test_extends_a_preset_a_file_and_a_chain(cli: CommandLine) -> None:
    cli.file("preset.toml", 'extends = "tiny"\nseed = 1\n')
    assert cli.ok("fingerprint preset.toml") == cli.ok("fingerprint tiny --seed 1")
    cli.file("inner/middle.yaml", "extends: ../small.toml\noptimizer: {lr: 0.3}\n")
    cli.file("top.json", '{"extends": ["inner/middle.yaml"], "seed": 9}')
    expected = cli.ok("fingerprint small.toml --optimizer.lr 0.3 --seed 9")
    assert cli.ok("fingerprint top.json") == expected
    cli.file("two.toml", 'extends = ["inner/middle.yaml", "seed.toml"]\n')
    cli.file("seed.toml", "seed = 9\n")
    assert cli.ok("fingerprint two.toml") == expected


def test_a_run_directory(cli: CommandLine) -> None:
    run = record(cli.folder / "run", "small.toml", "--optimizer.lr=0.5")
    assert shown(cli, run, "optimizer.lr") == "0.5"
    assert shown(cli, f"{run} --optimizer.lr 0.6", "optimizer.lr") == "0.6"
    assert "> 0.5   command line --optimizer.lr" in cli.ok(f"why optimizer.lr {run}")
    assert cli.ok(f"fingerprint {run}") == cli.ok("fingerprint small.toml --optimizer.lr 0.5")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", "{"),
        ("config.json", "{}"),
        ("config.json", '{"setpoint": {"schema": 99}}'),
        ("origins.json", "{"),
        ("origins.json", None),
    ],
)
def test_a_record_that_is_damaged(cli: CommandLine, name: str, text: str | None) -> None:
    run = record(cli.folder / "run", "small.toml")
    if text is None:
        (cli.folder / "run" / name).unlink()
    else:
        (cli.folder / "run" / name).write_text(text)
    for command in ("show", "train", "diff small.toml"):
        assert f"run/{name}" in cli.refused(f"{command} {run}")


def test_the_number_of_ranks(cli: CommandLine) -> None:
    cli.file("ranks.toml", "parallel.world_size = 4\n")
    text = cli.ok("why parallel.world_size small.toml --file ranks.toml --world-size 2")
    assert text.startswith("parallel.world_size = 2\n")
    assert "> 2  command line --world-size" in text


def test_the_number_of_ranks_twice(cli: CommandLine) -> None:
    for override in ("--parallel.world-size 4", "parallel.world_size=2", "parallel={world_size=4}"):
        text = cli.refused(f"check small.toml {override} --world-size 2")
        assert "--world-size and parallel.world_size are the same number" in text
    run = record(cli.folder / "run", "small.toml", "--parallel.world_size=2")
    assert shown(cli, f"{run} --world-size 1", "parallel.world_size") == "1"


def test_all_spellings_of_an_override(cli: CommandLine) -> None:
    expected = cli.ok("fingerprint small.toml --batch.global_size 16")
    for spelling in (
        "--batch.global-size 16",
        "--batch.global_size=16",
        "batch.global-size=16",
        "batch.global_size=16",
    ):
        assert cli.ok(f"fingerprint small.toml {spelling}") == expected


def test_a_preset_is_the_preset_whatever_lies_about(cli: CommandLine) -> None:
    expected = cli.ok("fingerprint tiny")
    (cli.folder / "tiny").mkdir()
    assert cli.ok("fingerprint tiny") == expected
    assert "tiny is not a run directory" in cli.refused("fingerprint ./tiny")
    cli.file("tiny/adapter_config.json", "{}")
    assert "tiny holds an adapter only" in cli.refused("fingerprint ./tiny")
    shutil.rmtree(cli.folder / "tiny")
    cli.file("tiny", "a file")
    assert cli.ok("fingerprint tiny") == expected


def test_a_file_on_top_cannot_replace_the_source(cli: CommandLine) -> None:
    run = record(cli.folder / "run", "small.toml")
    cli.file("preset.toml", 'extends = "tiny"\n')
    cli.file("file.toml", 'extends = "preset.toml"\n')
    for source in (run, "small.toml", "own:small", "tiny"):
        for name in ("preset.toml", "file.toml"):
            assert name in cli.refused(f"check {source} --file {name}")


def test_a_text_or_a_script_in_the_place_of_source(cli: CommandLine) -> None:
    cli.file("my text.txt", "a line of text\n" * 99)
    for command in ("train", "check"):
        said = cli.refused(f"{command} 'my text.txt'")
        typed = said.partition("a preset or a file: setpoint ")[2].strip()
        assert typed.startswith(f"{command} tiny --data.sources ")
    cli.ok(typed)
    said = cli.refused("train own.py")
    assert said.endswith("setpoint train own:FUNCTION\n")
    cli.ok("check own:small")


def test_what_hydra_deletes(cli: CommandLine) -> None:
    for line in ("small.toml ~evaluation", "~evaluation small.toml", "small.toml ~evaluation=x"):
        assert "--evaluation null switches a section off" in cli.refused(f"check {line}")
    cli.ok("check small.toml --evaluation null")
    assert "--data.sources.remove 0 takes" in cli.refused("check small.toml ~data.sources.0")
    cli.ok("show small.toml --data.sources.append stdlib --data.sources.remove 0")


def test_what_a_variable_of_the_environment_is_taken_for(cli: CommandLine) -> None:
    for text in ("${HOME}", "runs-${HOME}", "${oc.env:HOME}", "a-${env:HOME,b}"):
        said = cli.refused(f"check small.toml --name '{text}'")
        variable = "its own environment variable" if "env:" in text else "SETPOINT__SECTION__FIELD"
        assert '"$HOME"' in said and f"set the field by {variable}" in said
