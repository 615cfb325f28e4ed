"""Fields that have gone elsewhere, in records and in files."""

import copy
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.config import Config, ConfigError, SetpointError, resolve
from setpoint.config.composition import compose
from setpoint.config.draft.hints import retired_hint
from setpoint.config.migrations import (
    Added,
    Converted,
    Entry,
    Operation,
    Renamed,
    Retired,
    Tree,
    chain,
    migrate,
    migration,
    oldest_schema,
    schema_of,
)
from setpoint.config.record.record import read_record, recorded_differences, recorded_fingerprint
from setpoint.config.words.plain_data import PlainScalar

from ..support.snapshots import refused
from . import history
from .history import FIRST, Job


def origins(**values: Any) -> dict[str, Entry]:
    return {
        key.replace("__", "."): {
            "value": value,
            "role": "identity",
            "layers": [{"layer": "file", "origin": f"exp.toml:{n}", "value": value}],
        }
        for n, (key, value) in enumerate(values.items(), start=1)
    }


def applied(operation: Operation, data: dict[str, Any], **recorded: Any) -> Tree:
    operation.schema = 2
    tree = Tree(data, origins(**recorded), complete=bool(recorded))
    operation.apply(tree)
    return tree


def test_a_section_is_renamed_with_the_origins_below_it() -> None:
    tree = applied(Renamed("optim", "optimizer"), {"optim": {"lr": 1}}, optim__lr=1, optimal=2)
    assert tree.data == {"optimizer": {"lr": 1}}
    assert set(tree.origins) == {"optimizer.lr", "optimal"}
    assert tree.origins["optimizer.lr"]["layers"][0]["origin"] == "exp.toml:1"
    assert tree.old_path(("optimizer", "lr")) == ("optim", "lr")
    assert tree.notes == []


WEIGHT_DECAY = Renamed("optimizer.wd", "optimizer.weight_decay", of="adamw")
ADAMW = Converted("optimizer.type", {"adam_w": "adamw"}.get, "one word")
EXPRESSION = "${optim.lr * 2 + optim_a}"


@pytest.mark.parametrize(
    ("operation", "data", "changed"),
    [
        (Renamed("train.n", "log.n"), {"train": {"n": 3}}, {"log": {"n": 3}}),
        # A variant by its name alone becomes a section.
        (
            Renamed("floor", "curve.floor"),
            {"floor": 0.1, "curve": "cosine"},
            {"curve": {"type": "cosine", "floor": 0.1}},
        ),
        (Renamed("a.*.w", "a.*.x"), {"a": [{"w": 1}, {}]}, {"a": [{"x": 1}, {}]}),
        (
            Renamed("a.*.n", "a.*.x"),
            {"a": {"b": {"n": 1}, "c": {}}},
            {"a": {"b": {"x": 1}, "c": {}}},
        ),
        (
            WEIGHT_DECAY,
            {"optimizer": {"type": "adamw", "wd": 1}},
            {"optimizer": {"type": "adamw", "weight_decay": 1}},
        ),
        (WEIGHT_DECAY, {"optimizer": {"type": "sgd", "wd": 1}}, None),
        # A file may leave the variant to what it extends.
        (WEIGHT_DECAY, {"optimizer": {"wd": 1}}, {"optimizer": {"weight_decay": 1}}),
        (
            Renamed("optim", "opt"),
            {"optim": {"lr": 1}, "x": EXPRESSION, "y": ["${optim.lr}", "optim.lr"]},
            {"opt": {"lr": 1}, "x": "${opt.lr * 2 + optim_a}", "y": ["${opt.lr}", "optim.lr"]},
        ),
        (ADAMW, {"optimizer": "adam_w"}, {"optimizer": "adamw"}),
        (ADAMW, {"optimizer": {"type": "adam_w"}}, {"optimizer": {"type": "adamw"}}),
    ],
)
def test_operations_change_the_data(operation: Operation, data: Any, changed: Any) -> None:
    assert applied(operation, copy.deepcopy(data)).data == (changed or data)


@pytest.mark.parametrize(
    ("operation", "data"),
    [
        (Renamed("old", "new"), {"old": 1, "new": 2}),
        (Renamed("old", "a.b"), {"old": 1, "a": 3}),
        (Converted("size", lambda n: n // 2, "half"), {"size": "many"}),
        (Converted("size", lambda n: n, "same"), {"size": "${x * 2}"}),
    ],
)
def test_what_cannot_be_migrated(operation: Operation, data: Any) -> None:
    with refused():
        applied(operation, data)


def test_a_value_of_a_section_that_is_off_is_reported() -> None:
    for off in (None, "null"):
        tree = applied(Renamed("every", "evaluation.every"), {"every": 3, "evaluation": off})
        assert tree.data == {"evaluation": off}
        assert tree.notes == ["every = 3 is left out: it belongs to evaluation now, which is null"]


def test_a_reference_of_a_record_is_renamed_among_its_layers() -> None:
    recorded = origins(x="${optim.lr}")
    recorded["x"]["layers"].append({"layer": "reference", "origin": "", "value": 1})
    recorded["x"]["value"] = 1
    operation = Renamed("optim", "optimizer")
    tree = Tree({"optim": {"lr": 1}, "x": 1}, recorded, complete=True)
    operation.apply(tree)
    assert tree.origins["x"]["layers"][0]["value"] == "${optimizer.lr}"
    assert tree.data["x"] == 1


def test_a_retired_field_is_reported_unless_nothing_is_lost() -> None:
    operation = Retired("fp16", "use precision.compute", neutral=False)
    lost = applied(operation, {"fp16": True, "x": 1}, fp16=True, x=1)
    assert (lost.data, set(lost.origins)) == ({"x": 1}, {"x"})
    assert lost.notes == ["fp16 = True is left out: retired in schema 2: use precision.compute"]
    assert applied(operation, {"fp16": False}).notes == []


# Fields whose values stand for something else now, and new ones.


def test_a_value_in_another_unit() -> None:
    operation = Converted("warmup", lambda n: n * 1000, "counts tokens, not steps")
    tree = applied(operation, {"warmup": 3}, warmup=3)
    assert tree.data == {"warmup": 3000}
    assert tree.origins["warmup"]["layers"][-1]["value"] == 3000
    assert tree.notes == ["warmup: 3 is 3000 since schema 2: counts tokens, not steps"]
    # A number of a YAML file is a text until its field reads it.
    assert applied(operation, {"warmup": PlainScalar("3")}).data == {"warmup": 3000}
    assert applied(operation, {"warmup": 0}).notes == []
    with refused():
        applied(operation, {"warmup": None})


def test_a_section_that_was_added_has_an_origin_for_each_value() -> None:
    norm = {"type": "rms", "eps": {"value": 1}}
    tree = applied(Added("norm", norm), {"x": 1}, x=1)
    assert tree.data["norm"] == norm
    assert {"norm.type", "norm.eps.value"} <= set(tree.origins)


def test_a_new_value_may_follow_from_the_others_and_from_the_variant() -> None:
    operation = Added("o.total", lambda data: data["o"]["a"] * 2, derived=True, of="x")
    tree = applied(operation, {"o": {"type": "x", "a": 3}}, o__a=3)
    assert tree.data["o"]["total"] == 6
    assert tree.origins["o.total"]["layers"][-1]["layer"] == "derived"
    assert "total" not in applied(operation, {"o": {"type": "y", "a": 3}}, o__a=3).data["o"]
    with refused():
        applied(operation, {"o": {"type": "x"}}, o__a=3)


# The chain of migrations as a whole.


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


@pytest.mark.parametrize("header", [3, {}, {"schema": "1"}, {"schema": 0}, {"schema": True}, None])
def test_a_header_that_is_none(header: object) -> None:
    with refused():
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

    with refused():
        chain(Root)
    monkeypatch.setattr(Root.__setpoint__, "schema", 1)
    with refused():
        chain(Root)
    with refused(TypeError):
        migration(to=3)(third)
    with refused(TypeError):
        migration(to=1)(third)


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


# What an old key is answered with, wherever it is used.


def test_in_a_flag_and_in_a_variable() -> None:
    flags = ["--optim.lr=1", "--optim.wd=1", "--train.batch=3", "--train.log_every=4",
             "--fp16=true", "--hours=3", "--sources=[{}]", "--sources.0.w=3", "--optimizer.warm=3",
             "--optimizer.lr=${optim.lr}"]  # fmt: skip
    with refused(ConfigError):
        compose(Job, flags=flags, environ={"SETPOINT__EVAL_EVERY": "3"}).resolve()


def test_a_switch_without_a_value() -> None:
    for flag in ("--fp16", "--optim.fused"):
        with refused():
            compose(Job, flags=[flag])


def test_a_key_that_no_schema_had_gets_the_usual_answer() -> None:
    assert retired_hint(Job, "optimiser") == ""
    assert "train is not a section since schema 3" in retired_hint(Job, "train")
    with refused(ConfigError):
        compose(Job, flags=["--optimiser.lr=1"]).resolve()


def test_the_schema_of_a_file_that_does_not_say_it() -> None:
    assert oldest_schema(Job, FIRST) == 1
    assert oldest_schema(Job, {"optimizer": {"warm": 3}}) == 2
    assert oldest_schema(Job, {"optimizer": {"lr": 3}, "minutes": 3}) is None


# Files that say that they are of an older schema.


TEXT = """\
setpoint = {schema = 1}
hours = 2

[optim]
lr = 0.5
warm = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_is_read_as_one_of_today_and_says_what_has_changed(folder: Path) -> None:
    (folder / "old.toml").write_text(TEXT)
    composition = compose(Job, "old.toml")
    job = composition.resolve()
    assert (job.optimizer.lr, job.optimizer.warmup_tokens, job.minutes) == (0.5, 3000, 120)
    assert composition.notes == [
        "old.toml (schema 1): optimizer.fused is new in schema 2: the default is the fused kernel",
        "old.toml (schema 1): minutes: 2 is 120 since schema 3: counts minutes, not hours",
        "old.toml (schema 1): optimizer.warmup_tokens: 3 is 3000 since schema 3: counts tokens, "
        "not steps",
    ]


def test_errors_and_origins_name_the_line_of_the_old_key(folder: Path) -> None:
    (folder / "old.toml").write_text(TEXT.replace("0.5", '"fast"'))
    with refused(ConfigError):
        compose(Job, "old.toml").resolve()


def test_one_of_a_newer_schema_is_refused(folder: Path) -> None:
    (folder / "new.toml").write_text("setpoint = {schema = 4}\n")
    with refused():
        compose(Job, "new.toml")


def test_a_fragment_of_an_older_schema(folder: Path) -> None:
    (folder / "slow.toml").write_text("setpoint = {schema = 2}\nwarm = 3\nlr = 0.5\n")
    composition = compose(Job, flags=["--optimizer.extends", "slow.toml"])
    assert composition.resolve().optimizer.warmup_tokens == 3000
    assert composition.notes == [
        "slow.toml (schema 2): optimizer.warmup_tokens: 3 is 3000 since schema 3: counts tokens, "
        "not steps"
    ]
