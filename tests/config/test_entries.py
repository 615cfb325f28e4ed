"""Each entry of a mapping has its own chain of layers."""

import json
from pathlib import Path

import pytest

from setpoint.config import Config, field, modifier, preset
from setpoint.config.composition import compose
from setpoint.config.draft.walk import entries_of, leaves
from setpoint.config.layers import presets as registry
from setpoint.config.record.record import record_files


class Job(Config):
    name: str = "run"
    env: dict[str, str] = field(factory=lambda: {"USUAL": "d"})
    rates: dict[str, float] = field(factory=dict)


class Root(Config):
    job: Job = field(factory=Job)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry.presets, "_values", {})
    monkeypatch.setattr(registry, "modifiers", {})
    monkeypatch.chdir(tmp_path)

    @preset
    def small() -> Root:
        return Root(job=Job(env={"USUAL": "d", "A": "1", "B": "1"}))

    @modifier
    def more(root: Root) -> Root:
        root.job.env["C-x"] = "3"
        return root


def chains(config: Root, place: str = "job.env") -> dict[str, list[tuple[str, object]]]:
    (leaf,) = (leaf for leaf in leaves(config) if leaf.key == place)
    return {
        str(entry.path[-1]): [
            (origin.describe(entry.path).partition(" (")[0], value) for origin, value in entry.chain
        ]
        for entry in entries_of(config, leaf)
    }


def test_an_entry_knows_the_layers_that_gave_it(tmp_path: Path) -> None:
    Path("a.toml").write_text('extends = "small"\n[job.env]\nB = "2"\n')
    config = compose(
        Root, "a.toml", modifiers=["more"], flags=["--job.env.B", "${job.name}"]
    ).resolve()
    expected = {
        "USUAL": [],
        "A": [("preset small", "1")],
        "B": [
            ("preset small", "1"),
            ("a.toml:3:1", "2"),
            ("command line --job.env.B", "${job.name}"),
            ("reference ${job.name} over job.name", "run"),
        ],
        "C-x": [("modifier more", "3")],
    }
    found = chains(config)
    found["B"][2] = (found["B"][2][0], str(found["B"][2][1]))
    assert found == expected
    files = record_files(config)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    toml = files["config.toml"]
    assert 'A = "1"  # preset small (' in toml and 'C-x = "3"  # modifier more (' in toml
    entries = json.loads(files["origins.json"])["job.env"]["entries"]
    assert [layer["origin"] for layer in entries["B"]][1:3] == [
        "a.toml:3:1",
        "command line --job.env.B",
    ]
    again = compose(Root, tmp_path, flags=["--job.env.A", "9"]).resolve()
    found = chains(again)
    assert found["A"] == [("preset small", "1"), ("command line --job.env.A", "9")]
    assert found["C-x"] == [("modifier more", "3")] and found["USUAL"] == []
    assert chains(compose(Root).resolve()) == {}
