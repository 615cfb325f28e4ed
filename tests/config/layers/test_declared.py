"""Variables that a field declares, and prefixes of roots of one's own."""

import json
from pathlib import Path

import pytest

from setpoint.cli.list import field_rows
from setpoint.config import Config, ConfigError, Secret, field, modifier
from setpoint.config.composition import compose
from setpoint.config.layers import presets as registry
from setpoint.config.record.record import record_files
from setpoint.config.values.node import chain_of
from setpoint.config.words.errors import DeclarationError
from setpoint.editor_schema.file_schema import json_schema

from ...support.snapshots import refused
from ..helpers import write_record


class Tracker(Config):
    project: str | None = field(default=None, environment="K2_PROJECT")
    rank: int = field(default=0, environment="K2_RANK", ge=0)


class Silent(Tracker, type="silent"):
    pass


class Web(Tracker, type="web"):
    url: str = "x"


class App(Config, environment_prefix="MyApp"):
    tracker: Tracker = field(factory=Silent)
    more: tuple[Tracker, ...] = ()
    off: Silent | None = None


ENVIRON = {"K2_PROJECT": "paper", "K2_RANK": "3"}


def origins(config: Config, name: str) -> list[str]:
    return [origin.describe((name,)) for origin, _ in chain_of(config, name)]


def test_a_declared_variable_lies_below_the_variables_of_the_prefix(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('tracker.project = "file"\n')
    config = compose(App, str(file), environ=ENVIRON).resolve()
    assert (config.tracker.project, config.tracker.rank) == ("paper", 3)
    assert origins(config.tracker, "project")[1:] == ["environment variable K2_PROJECT"]
    more = {**ENVIRON, "MYAPP__TRACKER__PROJECT": "mine", "SETPOINT__TRACKER__PROJECT": "no"}
    config = compose(App, str(file), environ=more, flags=["tracker.rank=5"]).resolve()
    assert (config.tracker.project, config.tracker.rank) == ("mine", 5)
    assert origins(config.tracker, "project")[1:] == [
        "environment variable K2_PROJECT",
        "environment variable MYAPP__TRACKER__PROJECT",
    ]
    assert compose(App, environ={"K2_PROJECT": ""}).resolve().tracker.project is None
    assert compose(App).resolve().tracker.project is None  # nothing is read that is not given
    layers = json.loads(record_files(config)["origins.json"])["tracker.project"]["layers"]
    assert layers[1]["origin"] == "environment variable K2_PROJECT"


def test_a_record_keeps_its_value(tmp_path: Path) -> None:
    config = compose(App, environ=ENVIRON, flags=["tracker.rank=5"]).resolve()
    write_record(config, tmp_path)
    for environ in (ENVIRON, {"K2_PROJECT": "other"}):
        again = compose(App, tmp_path, environ=environ).resolve()
        assert (again.tracker.project, again.tracker.rank) == ("paper", 5)


def test_sections_of_later_layers_get_it_below_what_these_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "modifiers", {})

    @modifier
    def seen(app: App) -> App:
        assert app.tracker.project == "paper"
        return app

    flags = ["--off.rank", "7", "--more", "[{type: web, rank: 9}]", "--tracker", "web"]
    config = compose(App, environ=ENVIRON, modifiers=["seen"], flags=flags).resolve()
    assert config.off is not None and (config.off.rank, config.off.project) == (7, "paper")
    assert origins(config.off, "rank") == [
        "environment variable K2_RANK",
        "command line --off.rank",
    ]
    assert (config.more[0].rank, config.more[0].project) == (9, "paper")
    assert config.tracker == Web(project="paper", rank=3)


def test_a_declared_variable_that_does_not_fit() -> None:
    for environ in ({"K2_RANK": "-1"}, {"MYAPP_OFF_RANK": "1"}, {"MYAPP__TRAKER": "1"}):
        with refused(ConfigError):
            compose(App, environ=environ).resolve()


def test_help_and_schema_say_it() -> None:
    row = next(row for row in field_rows(App) if row["path"] == "tracker.project")
    assert row["environment"] == "K2_PROJECT"
    assert "The variable K2_PROJECT can also set it" in json.dumps(json_schema(App))


def test_what_cannot_be_declared() -> None:
    class Hidden(Config):
        token: Secret | None = field(default=None, environment="TOKEN")

    with refused(DeclarationError):
        compose(Hidden, flags=["token=env:X"]).resolve()
