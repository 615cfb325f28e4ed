"""`setpoint schedule` from the command line."""

import json
import sys

import pytest

from setpoint.config import resolve
from setpoint.optim.schedule import Cosine

from ..support.snapshots import compare
from .conftest import CommandLine

PHASES = "[{length: 2, target: 1}, {length: 0, target: 0.5}, {target: 0.1, curve: exponential}]"


def shown(cli: CommandLine, line: str) -> str:
    """What a terminal shows of a command that succeeds, its notes last."""
    answer = cli(line)
    assert answer.status == 0, answer
    return f"$ setpoint {line}\n{answer.out}{answer.err}"


def test_schedules_are_shown_as_numbers(cli: CommandLine) -> None:
    lines = [
        "schedule small.toml --every 1",
        "schedule small.toml tiny --schedule wsd --schedule.warmup 2 --every 250",
        f"schedule small.toml --schedule piecewise --schedule.phases '{PHASES}' --every 3",
        "schedule small.toml --schedule plateau --every 9",
        "schedule small.toml --schedule.by tokens --every 9",
        "schedule small.toml --schedule.by epoch --every 9",
        "schedule small.toml --schedule inverse_sqrt --duration '2 epochs' --every 5000",
        "schedule small.toml --duration '2 h' --schedule.horizon 40 --every 30",
        "schedule small.toml --steps 3 --every 1",
        "schedule small.toml --duration '3 epochs' --every 200",
        "schedule small.toml --duration '30 min' --schedule.warmup 20 --every 200",
        "schedule small.toml --duration '40, 2 epochs' --schedule wsd --every 10",
    ]
    compare("cli/schedule", "\n".join(shown(cli, line) for line in lines))


def test_schedules_are_drawn(cli: CommandLine) -> None:
    lines = ["schedule small.toml", "schedule tiny small.toml --schedule rex"]
    compare("cli/schedule_drawn", "\n".join(shown(cli, line) for line in lines))


def test_the_drawing_without_the_package(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotille", None)
    lines = ["schedule small.toml", "schedule tiny small.toml --schedule rex --steps 600"]
    compare("cli/schedule_plain", "\n".join(shown(cli, line) for line in lines))


def test_a_plot_is_written_to_a_file(cli: CommandLine) -> None:
    assert "drawn into rates.svg\n" in cli.ok("schedule tiny small.toml --plot rates.svg")
    assert (cli.folder / "rates.svg").read_text().startswith("<?xml")


def test_a_schedule_has_a_json_form(cli: CommandLine) -> None:
    (curve,) = json.loads(cli.ok("schedule small.toml --json"))["curves"]
    assert {key: curve[key] for key in ("source", "type", "lr", "length", "unit", "notes")} == {
        "source": "small.toml", "type": "cosine", "lr": 0.01, "length": "10 steps", "unit": "steps",
        "notes": [],
    }  # fmt: skip
    factor = resolve(Cosine(horizon=10)).build()
    expected = [
        {"step": s, "at": s, "factor": factor(s), "lr": 0.01 * factor(s)} for s in range(10)
    ]
    assert curve["rows"] == expected
    one, other = json.loads(cli.ok("schedule tiny small.toml --json --every 4"))["curves"]
    assert [row["step"] for row in other["rows"]] == [0, 4, 8, 9]
    assert [row["step"] for row in one["rows"]] == [*range(0, 600, 4), 599]
    for line in ("schedule tiny --json --every 0", "schedule tiny --json --plot rates.png"):
        answer = cli(line)
        assert answer.status == 2 and not json.loads(answer.out)["ok"]


def test_wrong_schedules_are_refused(cli: CommandLine) -> None:
    lines = [
        "schedule",
        "schedule nowhere.toml",
        "schedule small.toml --schedule.floor nan",
        "schedule small.toml --every 0",
        "schedule small.toml --duration 1e18 --every 1000",
        "schedule small.toml --steps x",
        "schedule small.toml --plot rates.pdf",
        "schedule small.toml --plot nowhere/rates.png",
        "schedule small.toml --plot rates.png --every 3",
    ]
    for line in lines:
        cli.refused(line)
