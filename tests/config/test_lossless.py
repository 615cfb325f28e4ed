"""Python, files and records say the same: every kind of value, shared sections, references."""

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings

import setpoint.presets  # noqa: F401 - registers the presets by name
from setpoint.config import Config, resolve
from setpoint.config.composition import compose
from setpoint.config.draft.walk import shared_places, to_minimal, to_plain
from setpoint.config.files.read import read_file
from setpoint.config.files.write import write_json, write_toml, write_yaml
from setpoint.config.layers import presets as registry
from setpoint.config.record.python_source import to_python
from setpoint.config.record.record import (
    differences,
    fingerprint,
    minimal_toml,
    read_record,
    record_files,
    recorded_differences,
)
from setpoint.config.values.reference import may_refer
from setpoint.train.config import Job

from ..support.cases import few, rotated
from ..support.snapshots import compare
from .everything import Everything, everything
from .helpers import placeless, text_of, write_record

WRITERS = {"toml": write_toml, "yaml": write_yaml, "json": write_json}


def through_files(config: Config, folder: Path) -> list[Config]:
    """What composing each written file gives, having checked that writing again is the same."""
    twins: list[Config] = []
    for suffix, write in WRITERS.items():
        for name, data in (("full", to_plain(config)), ("minimal", to_minimal(config))):
            file = folder / f"{name}.{suffix}"
            text = write(data)
            file.write_text(text, encoding="utf-8")
            if suffix != "yaml":  # where only the fields know what a text without quotes means
                assert write(read_file(str(file)).data) == text, "written, read and written again"
            twins.append(compose(type(config), str(file)).resolve())
            again = to_plain(twins[-1]) if name == "full" else to_minimal(twins[-1])
            assert write(again) == text, "written, composed and written again"
    file = folder / "minimal.toml"
    file.write_text(minimal_toml(config), encoding="utf-8")
    return [*twins, compose(type(config), str(file)).resolve()]


def through_python(config: Config) -> Config:
    """What running the written preset gives."""
    text = to_python(config)
    space: dict[str, Any] = {}
    exec(text.replace("@preset\n", ""), space)
    twin = resolve(space["my_preset"]())
    assert to_python(twin) == text
    return twin


def through_record(config: Config, folder: Path) -> Config:
    """What the record of a run gives."""
    write_record(config, folder)
    draft, header = read_record(type(config), str(folder))
    twin = resolve(draft)
    assert header["fingerprint"] == fingerprint(config)
    assert recorded_differences(str(folder), twin) == []
    assert record_files(twin)["config.json"] == record_files(config)["config.json"]
    return twin


def through_memory(config: Config) -> list[Config]:
    """Copies of all kinds."""
    return [
        resolve(config.evolve()),
        resolve(copy.deepcopy(config)),
        pickle.loads(pickle.dumps(config)),
        compose(type(config), program=to_plain(config)).resolve(),
        resolve(pickle.loads(pickle.dumps(config.evolve()))),
    ]


def through_flags(config: Config) -> Config:
    """What flags for all fields give."""
    flags = [f"--{name}={text_of(value)}" for name, value in to_plain(config).items()]
    return compose(type(config), flags=flags).resolve()


def check(config: Config, twins: list[Config], values: Callable[[Config], object]) -> None:
    for at, twin in enumerate(twins):
        assert values(twin) == values(config), at
        assert twin == config, at
        assert hash(twin) == hash(config)
        assert fingerprint(twin) == fingerprint(config)
        assert not differences(twin, config)
        assert shared_places(twin) == shared_places(config)


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETPOINT_IMPORTS", "math,collections")


@pytest.mark.parametrize("examples", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_every_way_there_and_back(tmp_path: Path, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(everything())
    def each(draft: Everything) -> None:
        config = resolve(draft)
        twins = [*through_files(config, tmp_path), *through_memory(config), through_flags(config)]
        twins += [through_python(config), through_record(config, tmp_path)]
        check(config, twins, to_plain)

    each()


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(everything())
def test_references_are_written_as_references(
    tmp_path_factory: pytest.TempPathFactory, draft: Everything
) -> None:
    folder = tmp_path_factory.getbasetemp()
    # In a tuple of plain values and sections a record keeps what a reference came to.
    assume(not may_refer(draft.mixed))
    config = resolve(draft)
    record = through_record(config, folder)
    for twin in (record, through_python(config), resolve(config.evolve())):
        assert to_minimal(twin) == to_minimal(config)
        changed = twin.evolve()
        changed.part.size = 8
        expected = config.evolve()
        expected.part.size = 8
        assert resolve(changed) == resolve(expected)


MODIFIERS = sorted(name for name in registry.modifiers if name not in ("smoke",))


def _named() -> list[Any]:
    cases = rotated(sorted(registry.presets), [[], *([name] for name in MODIFIERS)])
    return few(cases, every=6)  # presets of one family differ in numbers alone


@pytest.mark.parametrize(("preset", "modifiers"), _named())
def test_every_preset_and_modifier(
    preset: str, modifiers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "presets", dict(registry.presets))
    monkeypatch.chdir(tmp_path)
    config = compose(Job, preset, modifiers=modifiers).resolve()
    twins = [*through_files(config, tmp_path), *through_memory(config), through_python(config)]
    check(config, [*twins, through_record(config, tmp_path)], to_plain)
    assert json.loads(write_json(to_plain(config)))


def test_a_minimal_file_reads_well() -> None:
    flags = [
        "--data.sources",
        "[{type: text, name: a, paths: [corpus/the first of two files with a long name.txt, "
        "corpus/the second of two files with a long name.txt]}, {type: stdlib}]",
        "--optimizer.lr=${3e-3 / 2}", "--optimizer.betas=[0.9, ${optimizer.betas.0 + 0.05}]",
        "--evaluation=null", "--user.note=why",
    ]  # fmt: skip
    text = minimal_toml(compose(Job, "tiny", flags=flags).resolve())
    compare("config/minimal_toml", placeless(text))
