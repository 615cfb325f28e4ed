"""`setpoint diff`."""

import json
from pathlib import Path

from setpoint.cli.options import Arguments
from setpoint.cli.show import diff
from setpoint.cli.source import open_source
from setpoint.config.record.record import record_files
from setpoint.train.run_name import identity_mark

from ..support.snapshots import compare
from .conftest import CommandLine


def record(folder: Path, source: str, *overrides: str) -> str:
    """Write the record of a run without running it."""
    arguments = Arguments(diff)
    arguments.overrides.extend(overrides)
    folder.mkdir(parents=True)
    job = open_source(source, arguments).resolve()
    for name, text in {**record_files(job), identity_mark(job): ""}.items():
        (folder / name).write_text(text)
    return folder.name


def test_equal_configurations_have_no_differences(cli: CommandLine) -> None:
    run = record(cli.folder / "run", "tiny")
    for line in (f"diff tiny {run}", f"diff {run} tiny", "diff small.toml small.toml"):
        assert cli.ok(line).startswith("no differences (")
    assert cli.ok("diff tiny small.toml --role budget --ignore duration") == (
        "no differences (with --role budget --ignore duration): tiny and small.toml\n"
    )
    assert json.loads(cli.ok(f"diff tiny {run} --json")) == []


def test_overrides_apply_to_the_second(cli: CommandLine) -> None:
    answer = cli("diff small.toml small.toml --optimizer.lr 0.5 --evaluation null --world-size 2")
    assert answer.status == 1
    compare("cli/diff_overrides", answer.out)


def test_many_as_a_table(cli: CommandLine) -> None:
    first = record(cli.folder / "first", "small.toml", "--optimizer.lr=0.5", "--name=a")
    second = record(cli.folder / "second", "small.toml", "--schedule=constant")
    sources = f"small.toml {first} {second}"
    answer = cli(f"diff {sources}")
    assert (answer.status, answer.err) == (1, "")
    # More runs than fields: then a row is a run.
    wide = cli(f"diff {sources} {first} --ignore schedule")
    assert wide.status == 1
    compare("cli/diff_many", f"{answer.out}\n{wide.out}")
    assert cli.ok("diff small.toml small.toml small.toml").startswith("no differences")


def test_many_have_a_json_form(cli: CommandLine) -> None:
    run = record(cli.folder / "run", "small.toml", "--schedule=constant", "--optimizer.lr=0.5")
    answer = cli(f"diff small.toml {run} {run} --json --role identity")
    assert answer.status == 1
    found = {row["path"]: row for row in json.loads(answer.out)}
    assert found["optimizer.lr"] == {
        "path": "optimizer.lr",
        "role": "identity",
        "sides": [
            {"source": "small.toml", "value": 0.01, "origin": "small.toml:15:1"},
            {"source": run, "value": 0.5, "origin": "command line --optimizer.lr"},
            {"source": run, "value": 0.5, "origin": "command line --optimizer.lr"},
        ],
    }
    assert found["schedule.floor"]["sides"][1] == {"source": run}
    assert json.loads(cli.ok(f"diff {run} {run} {run} --json")) == []


def test_roles_and_paths_can_be_chosen(cli: CommandLine) -> None:
    line = "diff small.toml small.toml --optimizer.lr 0.5 --name b --duration '90 steps'"

    def paths(options: str) -> list[str]:
        return [row["path"] for row in json.loads(cli(f"{line} {options} --json").out)]

    every = paths("")
    assert {"name", "duration", "optimizer.lr"} <= set(every)
    assert paths("--role runtime") == ["name"]
    assert paths("--role budget --role runtime") == ["name", "duration"]
    assert "optimizer.lr" not in paths("--ignore optimizer")
    assert paths("--ignore optimizer.lr --ignore name --ignore=schedule") == ["duration"]
    # A field of a variant that neither side has.
    assert paths("--ignore loss.target") == every
    assert cli(f"{line} --role runtime --ignore name").status == 0


def test_wrong_diffs_are_refused(cli: CommandLine) -> None:
    lines = [
        "diff tiny",
        "diff tiny small.toml tiny --seed 3",
        "diff tiny small.toml tiny --with smoke",
        "diff tiny small.toml tiny --world-size 2 --file small.toml",
        "diff tiny small.toml --role identty",
        "diff tiny small.toml --ignore optimiser",
        "diff tiny small.toml --ignore optimizer.lrr",
        "diff tiny small.toml --ignor optimizer",
        "diff tiny small.toml tiny --ignor optimizer",
        "diff tiny nosuch small.toml",
    ]
    for line in lines:
        cli.refused(line)
