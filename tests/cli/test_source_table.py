from __future__ import annotations

import json

import pytest

from setpoint.config.record.record import recorded_fingerprint

from .conftest import CommandLine
from .test_diff import record


def differing(cli: CommandLine, line: str) -> dict[str, tuple[object, object]]:
    """What differs, with both values."""
    rows = json.loads(cli(f"diff {line} --json").out)
    return {row["path"]: (row.get("left"), row.get("right")) for row in rows}


def test_a_record_is_compared_as_it_was_written(cli: CommandLine) -> None:
    run = record(cli.folder / "run", "small.toml")
    chains = json.loads((cli.folder / "run" / "origins.json").read_text())
    config = json.loads((cli.folder / "run" / "config.json").read_text())
    # As code of another time would have derived it, with a field that there is no longer.
    config["model"]["ffn_dim"] = chains["model.ffn_dim"]["value"] = 7
    config["gone"] = "x"
    chains["gone"] = dict(chains["seed"], value="x")
    config["setpoint"]["fingerprint"] = recorded_fingerprint(chains)
    (cli.folder / "run" / "origins.json").write_text(json.dumps(chains))
    (cli.folder / "run" / "config.json").write_text(json.dumps(config))
    found = differing(cli, f"{run} small.toml")
    assert set(found) == {"model.ffn_dim", "gone"}
    assert found["gone"] == ("x", None)
    assert set(differing(cli, f"small.toml {run}")) == set(found)


def test_what_is_changed_is_resolved_anew(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record(cli.folder / "run", "small.toml")
    assert differing(cli, f"small.toml {run} --seed 5") == {"seed": (1234, 5)}
    cli.file("more.toml", "seed = 6\n")
    assert differing(cli, f"small.toml {run} --file more.toml") == {"seed": (1234, 6)}
    monkeypatch.setenv("SETPOINT__SEED", "7")
    assert differing(cli, f"small.toml {run}") == {"seed": (1234, 7)}
    # The first is what it is.
    assert differing(cli, f"{run} small.toml") == {"seed": (1234, 7)}


def test_classes_of_ones_own_need_not_be_there(cli: CommandLine) -> None:
    cli.file(
        "lost_module.py",
        "from setpoint.loss.config import LossConfig\n"
        "class Lost(LossConfig, type='lost_and_found'):\n"
        "    '''Mine.'''\n    weight: float = 1.0\n",
    )
    cli.ok("check tiny --import lost_module --loss lost_and_found")
    cli.file("mine.toml", "extends = 'tiny'\n[loss]\ntype = 'lost_and_found'\n")
    run = record(cli.folder / "run", "mine.toml")
    from setpoint.loss.config import LossConfig

    del LossConfig.__setpoint__.variants["lost_and_found"]
    assert differing(cli, f"tiny {run}")["loss.weight"] == (None, 1.0)
