"""What the files of a record say, also where they were damaged or made up."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import Config, SetpointError, resolve
from setpoint.config.composition import compose
from setpoint.config.layers.presets import load_plugins
from setpoint.config.record.record import (
    is_record,
    read_record,
    record_files,
    recorded_differences,
    recorded_fingerprint,
    recorded_schema,
)

from ..long.fuzz.guard import guarded
from ..support.snapshots import compare
from .sample import AdamW, Batch, Job, Sgd, Text, Transformer


def write_record(config: Job, folder: Path) -> str:
    """Record a config."""
    folder.mkdir(exist_ok=True)
    for name, text in record_files(config).items():
        (folder / name).write_text(text, encoding="utf-8")
    return str(folder)


def test_what_a_record_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_derived_values_are_derived_again_and_given_ones_kept(tmp_path: Path) -> None:
    config = resolve(Job(model=Transformer(dim=64, heads=4, context=5)))
    draft, _ = read_record(Job, write_record(config, tmp_path))
    draft.model.heads = 8
    changed = resolve(draft)
    assert (changed.model.head_dim, changed.model.context) == (8, 5)


def test_a_mapping_of_a_record_replaces_todays_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = resolve(Job(thresholds={"loss": 1.0}))
    folder = write_record(config, tmp_path)
    info = Job.__setpoint__.fields["thresholds"]
    monkeypatch.setattr(info, "factory", lambda: {"error": 2.0})
    assert resolve(Job()).thresholds == {"error": 2.0}
    assert resolve(read_record(Job, folder)[0]).thresholds == {"loss": 1.0}


def test_a_changed_default_does_not_change_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = resolve(Job())
    folder = write_record(config, tmp_path)
    monkeypatch.setattr(AdamW.__setpoint__.fields["lr"], "written", 9.0)
    assert resolve(Job()).optimizer.lr == 9.0
    assert resolve(read_record(Job, folder)[0]).optimizer.lr == 3e-4
    (difference,) = recorded_differences(folder, resolve(Job()))
    assert (difference.path, difference.left, difference.right) == ("optimizer.lr", 3e-4, 9.0)


def test_dead_knobs_of_a_record_are_no_error(tmp_path: Path) -> None:
    config = resolve(Job(optimizer=Sgd(momentum=0)))
    assert resolve(read_record(Job, write_record(config, tmp_path))[0]) == config


def restate(folder: Path, **header: object) -> None:
    """Make the header of a changed record say what its values have come to."""
    data = json.loads((folder / "config.json").read_text())
    origins = json.loads((folder / "origins.json").read_text())
    data["setpoint"] |= {"fingerprint": recorded_fingerprint(origins), **header}
    (folder / "config.json").write_text(json.dumps(data))


def damaged(folder: Path, name: str, change: object) -> str:
    """Rewrite one file of a record."""
    write_record(resolve(Job(sources=[Text(paths=["a"])], batch=Batch(size=2))), folder)
    path = folder / name
    assert callable(change)
    result = change(json.loads(path.read_text()))
    path.write_text(result if isinstance(result, str) else json.dumps(result))
    return str(folder)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", lambda data: "{"),
        ("config.json", lambda data: {k: v for k, v in data.items() if k != "setpoint"}),
        ("config.json", lambda data: {**data, "setpoint": {"schema": 99}}),
        ("config.json", lambda data: {**data, "seed": "x", "sead": 1}),
        ("origins.json", lambda data: "{"),
        ("origins.json", lambda data: "[" * 5000),
        ("origins.json", lambda data: {"seed": {"value": 1, "role": "identity", "layers": []}}),
        (
            "origins.json",
            lambda data: {"seed": {"value": 1, "role": "x", "layers": [{"layer": ""}]}},
        ),
    ],
)
def test_damaged_records_are_refused_in_words(tmp_path: Path, name: str, change: object) -> None:
    folder = damaged(tmp_path / "run", name, change)
    with pytest.raises(SetpointError) as caught:
        read_record(Job, folder)
    assert name in str(caught.value)


def test_what_is_no_record(tmp_path: Path) -> None:
    assert not is_record(str(tmp_path))
    with pytest.raises(SetpointError, match=r"is not a run directory: it has no config\.json"):
        read_record(Job, str(tmp_path))
    folder = write_record(resolve(Job()), tmp_path / "run")
    origins = tmp_path / "run" / "origins.json"
    origins.write_text(origins.read_text()[:40])
    with pytest.raises(SetpointError, match=r"run/origins.json is damaged, .*\n.*json:\d"):
        read_record(Job, folder)
    origins.unlink()
    with pytest.raises(SetpointError, match=r"run/origins.json is missing, .* incomplete"):
        read_record(Job, folder)


def test_classes_of_a_module_that_is_not_imported_are_asked_for(tmp_path: Path) -> None:
    """A record is data: it names the modules it needs, and nothing is imported for it."""
    folder = Path(write_record(resolve(Job(optimizer=AdamW())), tmp_path / "run"))
    for name in ("config.json", "origins.json"):
        text = (folder / name).read_text()
        assert '"adamw"' in text
        (folder / name).write_text(text.replace('"adamw"', '"theirs"'))
    header = {"modules": ["not_imported", "os; rm -rf /"]}
    restate(folder, **header)
    words = r"uses config classes of not_imported; .* --import not_imported"
    with pytest.raises(SetpointError, match=words):
        read_record(Job, str(folder))


# What the files of a record say, also where they were damaged or made up.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A record of the sample."""
    for name, text in record_files(resolve(Job(seed=7))).items():
        (tmp_path / name).write_text(text)
    return tmp_path


def change(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_the_schema_of_a_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert recorded_schema(str(folder)) == 1
    assert recorded_schema(str(tmp_path_factory.mktemp("empty"))) is None
    change(folder, "config.json", setpoint="text")
    assert recorded_schema(str(folder)) is None


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {
            "value": 1,
            "role": "identity",
            "layers": [3, {"layer": "file", "origin": "", "value": 1}],
        },
        {"value": 1, "role": "identity", "layers": [{"layer": "file", "origin": ""}]},
        {"value": 1, "role": "identity", "layers": "file"},
        {"value": 1, "role": [], "layers": []},
        {"role": "identity", "layers": [{"layer": "file", "origin": "", "value": 1}]},
    ],
)
def test_origins_that_are_none_are_refused(folder: Path, entry: object) -> None:
    change(folder, "origins.json", seed=entry)
    with pytest.raises(SetpointError, match=r"origins\.json: these are not the origins of a rec"):
        read_record(Job, str(folder))


@pytest.mark.parametrize("modules", [5, "abc", [3], None, {}])
def test_odd_names_of_modules_are_no_traceback(folder: Path, modules: object) -> None:
    header = {"schema": 1, "fingerprint": "", "modules": modules}
    change(folder, "config.json", setpoint=header, seed="x")
    with pytest.raises(SetpointError):
        read_record(Job, str(folder))


# A record that was changed after it was written is not taken for what a run was.


def write(folder: Path, *flags: str) -> Path:
    folder.mkdir()
    for name, text in record_files(compose(Job, flags=flags).resolve()).items():
        (folder / name).write_text(text)
    return folder


def edit_file(folder: Path, name: str, edit: Any) -> None:
    data = json.loads((folder / name).read_text())
    edit(data)
    (folder / name).write_text(json.dumps(data))


def refusal(folder: Path) -> str:
    with pytest.raises(SetpointError) as caught:
        read_record(Job, str(folder))
    return str(caught.value)


def test_a_changed_value_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", "--user.a=1")
    before = (folder / "config.json").read_text()
    for edit, words in [
        (lambda data: data.update(seed=9), "seed is 9 in config.json and 1234 in origins.json"),
        (lambda data: data.update(seed=1234.0), "seed is 1234.0 in config.json and 1234 in"),
        (lambda data: data.pop("seed"), "seed is nothing in config.json and 1234 in origins.json"),
        (lambda data: data["user"].update(b=2), "user.b is 2 in config.json and nothing in"),
        (
            lambda data: data["model"].update(extends="/etc/x.toml"),
            'model.extends is "/etc/x.toml"',
        ),
        (
            lambda data: data["setpoint"].update(fingerprint="0"),
            "states the fingerprint 0, and its",
        ),
    ]:
        (folder / "config.json").write_text(before)
        edit_file(folder, "config.json", edit)
        assert words in refusal(folder), words
        assert f"give {folder}/config.json as a file" in refusal(folder)
    edit_file(folder, "config.json", lambda data: data.update(seed=9))
    # What the error says to do is possible.
    assert compose(Job, str(folder / "config.json")).resolve().seed == 9


def test_both_files_changed_alike_have_another_fingerprint(tmp_path: Path) -> None:
    folder = write(tmp_path / "run")
    edit_file(folder, "config.json", lambda data: data.update(seed=9))
    edit_file(folder, "origins.json", lambda data: data["seed"].update(value=9))
    assert "it states the fingerprint" in refusal(folder)


def test_a_forged_record_is_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made with care to agree with itself, it still runs, imports and reads nothing."""
    outside = tmp_path / "outside.toml"
    outside.write_text("dim = 3")
    folder = write(tmp_path / "run")
    read_record(Job, str(folder))  # imports what is imported when it is first used
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
        origins = json.loads((folder / "origins.json").read_text())
        restated = {"fingerprint": recorded_fingerprint(origins)}
        edit_file(folder, "config.json", lambda data, new=restated: data["setpoint"].update(new))
        monkeypatch.setattr(os, "system", lambda command: pytest.fail(command))
        with guarded(str(folder)), pytest.raises(SetpointError):
            draft: Config = read_record(Job, str(folder))[0]
            resolve(draft)
