"""The chain of migrations as a whole."""

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.config import Config, SetpointError, resolve
from setpoint.config.migrations import Retired, chain, migrate, migration, schema_of
from setpoint.config.record.record import read_record, recorded_differences, recorded_fingerprint

from . import history
from .history import FIRST, Job
from .test_moving import origins


def write_first(folder: Path, data: dict[str, Any] = FIRST) -> str:
    """A record of schema 1, as the software of that time would have written it."""
    chains: dict[str, Any] = {}

    def walk(value: Any, path: str) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            here = f"{path}.{key}" if path else str(key)
            if isinstance(item, dict | list):
                walk(item, here)
            else:
                chains.update(origins(**{here.replace(".", "__"): item}))

    walk(data, "")
    folder.mkdir(exist_ok=True)
    digest = recorded_fingerprint(chains)
    header = {"setpoint": {"schema": 1, "fingerprint": digest, "modules": []}}
    (folder / "config.json").write_text(json.dumps({**header, **data}))
    (folder / "origins.json").write_text(json.dumps(chains))
    return str(folder)


def test_a_record_of_the_first_schema_is_one_of_today(tmp_path: Path) -> None:
    folder = write_first(tmp_path / "run")
    before = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    draft, header = read_record(Job, folder)
    job = resolve(draft)
    assert (job.optimizer.lr, job.optimizer.warmup_tokens, job.minutes) == (0.1, 100_000, 60)
    assert isinstance(job.optimizer, history.AdamW)
    assert (job.optimizer.weight_decay, job.optimizer.fused) == (0.01, False)
    assert (job.batch.micro, job.batch.accumulation, job.batch.total) == (3, 2, 6)
    assert [source.weight for source in job.sources] == [2.0, 1.0]
    assert (job.tracking.every, job.schedule.floor, job.seed) == (5, 0.5, 0)
    assert header["schema"] == 1
    assert any("minutes: 1 is 60 since schema 3" in note for note in header["notes"])
    assert any("fp16 = True is left out" in note for note in header["notes"])
    assert recorded_differences(folder, job) == []
    assert {path.name: path.read_bytes() for path in Path(folder).iterdir()} == before


def test_a_record_of_newer_software(tmp_path: Path) -> None:
    folder = Path(write_first(tmp_path / "run"))
    data = json.loads((folder / "config.json").read_text())
    data["setpoint"]["schema"] = 7
    (folder / "config.json").write_text(json.dumps(data))
    words = r"config\.json: written by schema 7, this Setpoint reads up to 3; update Setpoint"
    with pytest.raises(SetpointError, match=words):
        read_record(Job, str(folder))


@pytest.mark.parametrize("header", [3, {}, {"schema": "1"}, {"schema": 0}, {"schema": True}, None])
def test_a_header_that_is_none(header: object) -> None:
    words = r"exp\.toml: setpoint must say which schema this is, as in setpoint = {schema = 3}"
    with pytest.raises(SetpointError, match=words):
        schema_of(Job, {"setpoint": header}, "exp.toml")
    assert schema_of(Job, {}, "exp.toml") is None


def test_a_chain_with_a_gap_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("chain_with_a_gap")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def third() -> list[Retired]:
        return [Retired("x", "gone")]

    third.__module__ = module.__name__
    migration(to=3)(third)

    class Root(Config, schema=3, migrations="chain_with_a_gap"):
        pass

    words = r"Root is of schema 3, but its chain of migrations is not complete: there is none to 2"
    with pytest.raises(SetpointError, match=words):
        chain(Root)
    monkeypatch.setattr(Root.__setpoint__, "schema", 1)
    with pytest.raises(SetpointError, match="there is one to 3 already"):
        chain(Root)
    with pytest.raises(TypeError, match="there are two"):
        migration(to=3)(third)
    with pytest.raises(TypeError, match="the first schema has none"):
        migration(to=1)(third)


def test_a_root_that_names_no_module() -> None:
    class Alone(Config, schema=2):
        pass

    with pytest.raises(SetpointError, match="there is none to 2 .no module of migrations is named"):
        chain(Alone)


def test_schema_and_migrations_are_inherited() -> None:
    class Mine(Job):
        pass

    assert (Mine.__setpoint__.schema, Mine.__setpoint__.migrations) == (3, history.__name__)
    assert [each.schema for each in chain(Mine, 2)] == [3] * len(chain(Mine, 2))


KEYS = ["optim", "type", "lr", "wd", "warm", "train", "batch", "log_every", "lr_floor", "hours",
        "minutes", "fp16", "sources", "w", "evaluation", "eval_every", "schedule", "0", "x-y",
        "optimizer", "micro", "tracking"]  # fmt: skip
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(
    ["null", "adam_w", "${optim.lr * 2}", "${", "", "a\x00b", "5"]
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(KEYS), values), st.booleans())
def test_whatever_the_data_it_is_migrated_or_refused_in_words(
    data: dict[str, Any], complete: bool
) -> None:
    other = {"of": {"the": [1, {"user": "x"}]}}
    before = json.dumps({**data, "other": other})
    try:
        tree = migrate(Job, {**data, "other": other}, 1, {} if complete else None)
    except SetpointError as error:
        assert str(error)
    else:
        # What the migrations are not about stays.
        assert tree.data["other"] == other
        assert json.dumps({**data, "other": other}) == before
        # Once is enough: what comes out has no key of before.
        assert migrate(Job, tree.data, 3).data == tree.data or "nan" in repr(tree.data)


def test_migrating_in_two_steps_is_migrating_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = migrate(Job, FIRST, 1, {}).data
    with monkeypatch.context() as patch:
        patch.setattr(history.Job.__setpoint__, "schema", 2)
        table = dict(sys.modules["setpoint.config.migrations"].__dict__["_declared"])
        table[history.__name__] = {2: table[history.__name__][2]}
        patch.setattr("setpoint.config.migrations._declared", table)
        half = migrate(Job, FIRST, 1, {}).data
    assert migrate(Job, half, 2, {}).data == whole
