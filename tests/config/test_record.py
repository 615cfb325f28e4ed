"""The files of a record, also damaged and forged ones."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import Config, SetpointError, resolve
from setpoint.config.composition import compose
from setpoint.config.draft.walk import leaves
from setpoint.config.layers.presets import load_plugins
from setpoint.config.record.record import (
    changes_since_record,
    is_record,
    read_record,
    record_files,
    recorded_differences,
    recorded_fingerprint,
    recorded_schema,
)
from setpoint.config.values.user_code import importable_name
from setpoint.config.words.names import within

from ..long.fuzz.guard import guarded
from ..support.records import remove_field
from ..support.snapshots import compare, refused
from .helpers import write_record
from .sample import AdamW, Experts, Job, Sgd, Text, Transformer


def read_back(folder: Path) -> Any:
    return read_record(Job, str(folder))


def edit_file(folder: Path, name: str, edit: Callable[[Any], object]) -> None:
    data = json.loads((folder / name).read_text())
    edit(data)
    (folder / name).write_text(json.dumps(data))


def restate(folder: Path, **header: object) -> None:
    """Make the header of a changed record say what its values have come to."""
    origins = json.loads((folder / "origins.json").read_text())
    header = {"fingerprint": recorded_fingerprint(origins), **header}
    edit_file(folder, "config.json", lambda data: data["setpoint"].update(header))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A record of the sample."""
    return write_record(resolve(Job(sources=[Text(paths=["a"])], seed=7)), tmp_path / "run")


def test_a_record_holds_values_origins_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp.toml").write_text('[optimizer]\ntype = "sgd"\nlr = 0.1\n')
    config = compose(
        Job,
        "exp.toml",
        environ={"SETPOINT__OPTIMIZER__LR": "0.2"},
        flags=["--model.dim", "${batch.size * 6}", "--sources", "[{type: text, paths: [a, b]}]",
               "--tracker.url=http://x", "--tracker.token=env:TOKEN", "--user.note=hi",
               "--thresholds={loss: 2}", "--model.heads=4", "--model.experts={}"],
    ).resolve()  # fmt: skip
    for name, text in record_files(config).items():
        compare(f"config/record_{name.replace('.', '_')}", text)


def test_a_mapping_of_a_record_replaces_todays_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_record(resolve(Job(thresholds={"loss": 1.0})), tmp_path)
    info = Job.__setpoint__.fields["thresholds"]
    monkeypatch.setattr(info, "factory", lambda: {"error": 2.0})
    assert resolve(Job()).thresholds == {"error": 2.0}
    assert resolve(read_back(folder)[0]).thresholds == {"loss": 1.0}


def test_fields_that_a_record_lacks_are_no_change_at_their_defaults(tmp_path: Path) -> None:
    job = resolve(Job(model=Transformer(experts=Experts()), sources=[Text(paths=["a"])]))
    defaults = [leaf.key for leaf in leaves(job) if leaf.origin.layer == "default"]
    assert len(defaults) > 15 and "sources.0.weight" in defaults
    for index, key in enumerate([*defaults, "batch"]):
        folder = write_record(job, tmp_path / str(index))
        remove_field(folder, key)
        changes = changes_since_record(str(folder), job)
        added = [item.path for item in changes.added]
        assert changes.changed == [], key
        assert added == [leaf.key for leaf in leaves(job) if within(leaf.key, key)]


def test_a_field_that_a_record_lacks_is_no_change_if_its_default_is_typed(tmp_path: Path) -> None:
    folder = write_record(resolve(Job()), tmp_path / "run")
    for key in ("seed", "optimizer.type", "model.head_dim"):
        remove_field(folder, key)
    default = Job.__setpoint__.fields["seed"].default
    changes = changes_since_record(str(folder), resolve(Job(seed=default, optimizer=AdamW())))
    assert [item.path for item in changes.added] == ["seed", "optimizer.type"]
    assert [item.path for item in changes.changed] == ["model.head_dim"]


def test_what_a_record_lacks_is_a_change_where_it_may_mean_another_thing(tmp_path: Path) -> None:
    folder = write_record(resolve(Job(sources=[Text(paths=["a"])])), tmp_path / "run")
    for key in ("seed", "model.head_dim"):
        remove_field(folder, key)

    def changed(**values: Any) -> list[str]:
        job = resolve(Job(**{"sources": [Text(paths=["a"])], **values}))
        return [item.path for item in recorded_differences(str(folder), job)]

    assert changed() == ["model.head_dim"]  # derived from what may differ from before
    assert changed(seed=3) == ["seed", "model.head_dim"]
    # A section that was null, another variant, and another item of a list.
    experts = changed(model=Transformer(experts=Experts()))
    assert {"model.experts", "model.experts.count"} <= set(experts)
    assert "optimizer.momentum" in changed(optimizer=Sgd())
    assert "sources.1.weight" in changed(sources=[Text(paths=["a"]), Text(paths=["b"])])


def test_dead_knobs_of_a_record_are_no_error(tmp_path: Path) -> None:
    config = resolve(Job(optimizer=Sgd(momentum=0)))
    assert resolve(read_back(write_record(config, tmp_path))[0]) == config


LAYER = {"layer": "file", "origin": "", "value": 1}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", "{"),
        ("config.json", {"setpoint": None}),
        ("config.json", {"setpoint": {"schema": 99}}),
        ("config.json", {"seed": "x", "sead": 1}),
        *(
            ("config.json", {"setpoint": {"schema": 1, "fingerprint": "", "modules": modules}})
            for modules in (5, [3])
        ),
        ("origins.json", "{"),
        ("origins.json", "[" * 5000),
        *(
            ("origins.json", {"seed": entry})
            for entry in (
                None,
                {"value": 1, "role": "identity", "layers": [3, LAYER]},
                {"value": 1, "role": "identity", "layers": []},
                {"value": 1, "role": "x", "layers": [LAYER]},
                {"role": "identity", "layers": [LAYER]},
            )
        ),
    ],
)
def test_damaged_records_are_refused_in_words(folder: Path, name: str, text: Any) -> None:
    if isinstance(text, str):
        (folder / name).write_text(text)
    else:
        edit_file(folder, name, lambda data: data.update(text))
    with refused():
        read_back(folder)


def test_folders_without_a_record_are_refused(folder: Path, tmp_path: Path) -> None:
    assert (recorded_schema(str(folder)), recorded_schema(str(tmp_path))) == (1, None)
    assert not is_record(str(tmp_path))
    (folder / "origins.json").unlink()
    for lost in (tmp_path, folder):
        with refused():
            read_back(lost)


def test_classes_of_a_module_that_is_not_imported_are_asked_for(folder: Path) -> None:
    """A record is data: it names the modules it needs, and nothing is imported for it."""
    for name in ("config.json", "origins.json"):
        text = (folder / name).read_text()
        assert '"adamw"' in text
        (folder / name).write_text(text.replace('"adamw"', '"theirs"'))
    restate(folder, modules=["not_imported", "os; rm -rf /"])
    with refused():
        read_back(folder)


def test_classes_of_a_script_are_named_as_such(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`multiprocessing` gives a script a second name, which no other process can import."""
    monkeypatch.setitem(sys.modules, "__mp_main__", sys.modules["__main__"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)  # of `python -m pytest`
    assert importable_name("__main__") == importable_name("__mp_main__") == "__main__"
    for name in ("config.json", "origins.json"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace('"adamw"', '"theirs"'))
    restate(folder, modules=["__main__"])
    with refused():
        read_back(folder)


# A record that was changed after it was written is not taken for what a run was.


def test_a_changed_value_is_named(folder: Path) -> None:
    before = (folder / "config.json").read_text()
    edits: list[Callable[[Any], object]] = [
        lambda data: data.update(seed=9),
        lambda data: data.update(seed=7.0),
        lambda data: data.pop("seed"),
        lambda data: data["user"].update(b=2),
        lambda data: data["model"].update(extends="x.toml"),
        lambda data: data["setpoint"].update(fingerprint="0"),
    ]
    for edit in edits:
        (folder / "config.json").write_text(before)
        edit_file(folder, "config.json", edit)
        with refused():
            read_back(folder)
    edit_file(folder, "config.json", lambda data: data.update(seed=9))
    # What the error says to do is possible.
    assert compose(Job, str(folder / "config.json")).resolve().seed == 9
    # Both files changed alike have another fingerprint.
    edit_file(folder, "origins.json", lambda data: data["seed"].update(value=9))
    with refused():
        read_back(folder)


def test_a_forged_record_is_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made with care to agree with itself, it still runs, imports and reads nothing."""
    outside = tmp_path / "outside.toml"
    outside.write_text("dim = 3")
    folder = write_record(resolve(Job()), tmp_path / "run")
    read_back(folder)  # imports what is imported when it is first used
    load_plugins()  # looks at what is installed, once in a process
    forgeries: list[dict[str, Any]] = [
        {"model.extends": str(outside)},
        {"optimizer.type": "import", "optimizer.target": "os.system"},
        {"name": "../../etc"},
        {"tracker": "${seed}"},
        {"user.__class__": "x"},
        {"seed": "__import__('os')"},
    ]
    whole = {path.name: path.read_text() for path in folder.iterdir()}
    for forged in forgeries:
        for name, text in whole.items():
            (folder / name).write_text(text)

        def put(data: dict[str, Any], forged: dict[str, Any] = forged) -> None:
            for path, value in forged.items():
                section, _, key = path.rpartition(".")
                (data[section] if section else data)[key] = value

        def put_origins(data: dict[str, Any], forged: dict[str, Any] = forged) -> None:
            for path, value in forged.items():
                layers = [{"layer": "reference", "origin": "x", "value": value}]
                data[path] = {"value": value, "role": "identity", "layers": layers}

        edit_file(folder, "config.json", put)
        edit_file(folder, "origins.json", put_origins)
        restate(folder)
        monkeypatch.setattr(os, "system", lambda command: pytest.fail(command))
        with guarded(str(folder)), pytest.raises(SetpointError):
            draft: Config = read_back(folder)[0]
            resolve(draft)
