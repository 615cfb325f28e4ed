import json
from pathlib import Path

import pytest

from setpoint.config import SetpointError, resolve
from setpoint.config.composition import compose
from setpoint.config.record.record import (
    is_record,
    minimal_toml,
    read_record,
    record_files,
    recorded_differences,
    recorded_fingerprint,
)

from ..support.snapshots import compare
from .sample import AdamW, Batch, Job, Secret, Sgd, Text, Tracker, Transformer


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


def test_no_secret_and_no_default_in_the_minimal_form() -> None:
    text = minimal_toml(
        resolve(Job(tracker=Tracker(url="http://x", token=Secret("env:TOKEN")), seed=1234))
    )
    assert "env:TOKEN" in text
    assert "seed" not in text
    assert minimal_toml(resolve(Job())) == ""


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
        ("config.json", lambda data: {**data, "setpoint": 3}),
        ("config.json", lambda data: {**data, "seed": "x", "sead": 1}),
        ("config.json", lambda data: []),
        ("origins.json", lambda data: "{"),
        ("origins.json", lambda data: "[" * 5000),
        ("origins.json", lambda data: {"seed": 3}),
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
