"""Sections that take the section of a preset, `@NAME`."""

from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from setpoint.config import Config, ConfigError, field, preset
from setpoint.config.composition import compose
from setpoint.config.draft.walk import dropped_values
from setpoint.config.layers import presets as registry
from setpoint.config.values.node import chain_of
from setpoint.editor_schema.file_schema import json_schema

from ..support.snapshots import refused
from .helpers import write_record


class Model(Config):
    dim: int = 8
    layers: int = 1


class Net(Model, type="net"):
    heads: int = 1


class Lin(Model, type="lin"):
    pass


class Run(Config):
    name: str = "run"
    model: Model = field(factory=Lin)
    extra: Lin | None = None


class Stranger(Config):
    model: Model = field(factory=Lin)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(registry.presets, "_values", {})
    monkeypatch.chdir(tmp_path)

    @preset
    def big(dim: int = 64) -> Run:
        return Run(name="big", model=Net(dim=dim, heads=4))

    @preset
    def foreign() -> Stranger:
        return Stranger()

    yield


def test_a_preset_that_a_section_extends_without_its_sign() -> None:
    Path("a.toml").write_text('[model]\ndim = 3\nextends = "big"\n')
    with refused(ConfigError):
        compose(Run, "a.toml").resolve()


def test_a_section_of_a_preset_from_every_layer() -> None:
    Path("a.toml").write_text('model = "@big"\n')
    Path("b.toml").write_text('[model]\nextends = "@big(dim=32)"\nlayers = 3\n')
    runs = [
        compose(Run, "a.toml"),
        compose(Run, environ={"SETPOINT__MODEL": "@big"}),
        compose(Run, flags=["--model", "@big"]),
        compose(Run, flags=["model.extends=@big"]),
        compose(Run, program={"model": "@big"}),
    ]
    for run in runs:
        config = run.resolve()
        assert config.model == Net(dim=64, heads=4) and config.name == "run"
        (origin, _) = chain_of(config.model, "dim")[-1]
        assert origin.describe(("model", "dim")).startswith("preset big (")
        assert "test_preset_section.py:" in origin.describe(("model", "dim"))
    assert compose(Run, "b.toml").resolve().model == Net(dim=32, heads=4, layers=3)


def test_it_replaces_what_stood_there_and_later_layers_beat_it(tmp_path: Path) -> None:
    Path("a.toml").write_text("[model]\ndim = 5\n")
    config = compose(Run, "a.toml", flags=["--model.layers", "7", "--model", "@big"]).resolve()
    assert config.model == Net(dim=64, heads=4, layers=7)
    assert list(dropped_values(config)) == [
        "model.dim = 5, from a.toml:2:1: model = @big (command line --model) replaces the section"
    ]
    write_record(config, tmp_path)
    for source in (tmp_path, tmp_path / "config.toml"):
        assert compose(Run, source).resolve().model == config.model
    assert compose(Run, flags=["extra=@big", "extra.dim=3"]).resolve().extra == Lin(dim=3)


@pytest.mark.parametrize("value", ["@bigg", "@", "@big(dim=x)", "@foreign"])
def test_wrong_presets_of_sections_are_refused(value: str) -> None:
    with refused(ConfigError):
        compose(Run, flags=[f"model={value}"]).resolve()


def test_only_a_section_takes_one() -> None:
    assert compose(Run, flags=["name=@big"]).resolve().name == "@big"
    schema = jsonschema.Draft202012Validator(json_schema(Run))
    assert schema.is_valid({"model": "@big"}) and not schema.is_valid({"model": "big"})
    with refused(ConfigError):
        compose(Run, flags=["model=big"]).resolve()


def test_classes_of_one_name_are_told_apart_by_their_modules() -> None:
    class Elsewhere(Config):
        model: Model = field(factory=Lin)

    Elsewhere.__name__ = Elsewhere.__qualname__ = "Run"
    Elsewhere.__module__ = "shop"

    @preset
    def bought() -> Elsewhere:
        return Elsewhere()

    with refused(ConfigError):
        compose(Run, flags=["model=@bought"]).resolve()
    for module in ("shop", __name__):
        Elsewhere.__module__ = module
        with refused():
            compose(Run, "bought")
