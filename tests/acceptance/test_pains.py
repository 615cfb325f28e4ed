"""What users of other systems suffer from, and that Setpoint does not have it.

The numbers are those of a ranked list of pains, gathered from the issues of some thirty projects;
the stories below come from there. What test_sixteen.py and the tests of each package show is not
repeated here.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import setpoint as sp
from setpoint.presets.tiny import tiny
from setpoint.train.config import Job

from .. import goldens
from ..cli.conftest import CommandLine
from ..train.small import rows, snapshot

if TYPE_CHECKING:
    pass


def shown(cli: CommandLine, line: str) -> dict[str, Any]:
    """A resolved configuration in plain data."""
    return json.loads(cli.ok(f"show {line} --json"))


@pytest.mark.parametrize(
    ("story", "answer"),
    [
        ("quantizaton = '4bit'", "unknown key: Job has no field 'quantizaton'"),
        ("precision.compute = 'bf61'", "Did you mean bf16?"),  # inside a value
        ("data.sources = [{type = 'randon'}]", "Did you mean random?"),  # a value of a list
        ("data.sources = [{type = 'random', lenght = 3}]", "Did you mean data.sources.0.length?"),
        ("checkpoint.every = 'last_stp'", "valid: "),
        ("learning_rate = 1e-3", "Setpoint calls it optimizer.lr: lr = 0.001 under [optimizer]"),
        ("[optimizer]\nheads = 4", "model.heads"),  # the right name in the wrong section
    ],
)
def test_pain_01_misspelt_keys_are_not_accepted(cli: CommandLine, story: str, answer: str) -> None:
    cli.file("exp.toml", f'extends = "small.toml"\n{story}\n')
    assert answer in cli.refused("train exp.toml")
    for flag in ("--with smoek", "--wtih smoke", "+quantization=4bit", "--import smol"):
        cli.refused(f"train small.toml {flag}")


def test_pain_02_one_owner_and_the_right_one_wins(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Defaults of the command line beat the file: a default is not a layer here.
    cli.file("exp.toml", 'extends = "small.toml"\nduration = "7 steps"\n')
    assert shown(cli, "exp.toml")["duration"] == "7 steps"
    # A flag that says the default is said all the same, and beats the file.
    assert shown(cli, "exp.toml --duration '300 steps'")["duration"] == "300 steps"
    # An ambient file never prevails, since none is read.
    for name in (".env", "default_config.yaml", "setpoint.toml", "config.toml"):
        cli.file(name, "SETPOINT__SEED=9\n" if name == ".env" else "seed = 9\n")
    assert shown(cli, "exp.toml")["seed"] == 1234
    monkeypatch.setenv("SETPOINT__DURATION", "8 steps")
    text = cli.ok("why duration exp.toml --duration '9 steps'")
    assert [line[2] for line in text.splitlines()[1:6]] == [" ", " ", " ", " ", ">"]
    # Two sources of one rank that contradict each other are an error.
    monkeypatch.setenv("SETPOINT__duration", "9 steps")
    assert "SETPOINT__DURATION" in cli.refused("check exp.toml")
    cli.file("twice.toml", 'extends = "small.toml"\nseed = 1\nseed = 2\n')
    assert "is given twice" in cli.refused("check twice.toml")


def test_pain_03_no_dead_knobs(cli: CommandLine) -> None:
    # Left-over settings of another mode, and a 0 that is meant.
    text = cli.refused("train small.toml --schedule constant --schedule.horizon 9")
    assert "has no effect: no length is a share of it" in text
    text = cli.refused("train small.toml --schedule constant --schedule.power 9")
    assert "It is a field of type = polynomial" in text
    assert shown(cli, "small.toml --optimizer.weight_decay 0")["optimizer"]["weight_decay"] == 0
    assert shown(cli, "small.toml --seed 0")["seed"] == 0
    assert "it must be > 0" in cli.refused("train small.toml --optimizer.lr 0")
    # What cannot be had is refused, rather than switched off.
    assert "fp16 needs a GPU" in cli.refused("train small.toml --precision.compute fp16")
    assert "has no effect" in cli.refused("train small.toml --accept optimizer.lr")


def test_pain_05_old_records_load(cli: CommandLine, run: str) -> None:
    """With today's default another one than it was then."""
    with pytest.MonkeyPatch.context() as patch:
        goldens.change_default(patch, type(tiny().optimizer), "eps", 9.0)
        assert shown(cli, "small.toml")["optimizer"]["eps"] == 9.0
        assert shown(cli, run)["optimizer"]["eps"] == 1e-8  # what it was trained with


@pytest.mark.parametrize("form", ["toml", "yaml", "json"])
def test_pain_08_scalars_mean_what_they_say(cli: CommandLine, form: str) -> None:
    written = {
        "toml": "extends = 'small.toml'\nname = 'no'\noptimizer.lr = 1e-5\n",
        "yaml": "extends: small.toml\nname: no\noptimizer: {lr: 1e-5}\n",
        "json": '{"extends": "small.toml", "name": "no", "optimizer": {"lr": 1e-5}}',
    }
    job = sp.compose(Job, cli.file(f"exp.{form}", written[form])).resolve()
    assert (job.name, job.optimizer.lr) == ("no", 1e-5)


def test_pain_08_flags_of_truth_and_numbers(cli: CommandLine) -> None:
    for word, value in (("False", False), ("false", False), ("True", True), ("true", True)):
        assert shown(cli, f"small.toml --deterministic {word}")["deterministic"] is value
        assert shown(cli, f"small.toml --deterministic={word}")["deterministic"] is value
    for word in ("ture", "on", "yes", "0.5", "''"):  # `on` is False elsewhere
        assert "is not a bool" in cli.refused(f"check small.toml --deterministic={word}")
    assert "is not an int: got 7.9" in cli.refused("check small.toml --model.layers 7.9")
    # A folder after a space is the folder, and a word that belongs nowhere is an error.
    assert shown(cli, "small.toml --workspace /tmp/here")["workspace"] == "/tmp/here"
    assert "unexpected argument '/tmp/here'" in cli.refused(
        "check small.toml --workspace=/tmp /tmp/here"
    )
    assert "needs a value" in cli.refused("check small.toml --workspace --seed 3")
    cli.file("on.yaml", "extends: small.toml\ndeterministic: on\n")
    assert "is not a bool: got on" in cli.refused("check on.yaml")
    cli.file("text.toml", "extends = 'small.toml'\noptimizer.lr = '1e-5'\n")
    assert "is not a float: got '1e-5'" in cli.refused("check text.toml")


def test_pain_12_the_record_alone_determines_the_run(cli: CommandLine, run: str) -> None:
    (cli.folder / "small.toml").unlink()
    assert cli(f"train {run}/config.toml --workspace again").status == 0
    (again,) = (cli.folder / "again").iterdir()
    assert again.name == Path(run).name  # the same fingerprint
    assert rows(again) == rows(cli.folder / run)  # and the same losses, to the last bit


def test_pain_15_nothing_is_pickled(cli: CommandLine, run: str) -> None:
    suffixes = {path.suffix for path in (cli.folder / run).rglob("*") if path.is_file()}
    assert suffixes <= {*(".json", ".jsonl", ".toml", ".safetensors", ".log", ".html", ".txt", "")}
    for path in (cli.folder / run).rglob("*"):
        if path.is_file():
            assert not path.read_bytes().startswith((b"\x80", b"PK")), path  # pickle, torch's zip


def test_making_a_config_has_no_side_effects(cli: CommandLine) -> None:
    before = snapshot(cli.folder), dict(os.environ)
    for line in ("check small.toml", "show small.toml", "sweep small.toml --seed 1,2 --dry-run"):
        cli.ok(line)
    sp.resolve(tiny())
    assert (snapshot(cli.folder), dict(os.environ)) == before
