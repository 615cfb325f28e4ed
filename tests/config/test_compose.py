"""The order of layers, and what a source and `extends` may be."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import setpoint.presets  # noqa: F401 - its presets are known before those of a test
from setpoint.cli.response_files import expand_response_files
from setpoint.config import Config, ConfigError, modifier, preset
from setpoint.config.composition import compose
from setpoint.config.draft.walk import dropped_values
from setpoint.config.layers import presets as registry
from setpoint.config.values.node import chain_of
from setpoint.config.values.user_code import find_user_function

from ..support.snapshots import refused
from .helpers import problems_of
from .sample import AdamW, Batch, Job, Sgd, Transformer

SHARED = Sgd(lr=0.5)


@pytest.fixture(autouse=True)
def _names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "presets", {})
    monkeypatch.setattr(registry, "modifiers", {})

    @preset
    def small() -> Job:
        """A small job."""
        return Job(
            name="small",
            model=Transformer(dim=64,
                              heads=4),
            batch=Batch(size=4),
        )  # fmt: skip

    @preset
    def broken() -> Job:
        return Job(seed=-1)

    @preset
    def stranger() -> Config:
        return Batch()

    @modifier
    def slower(job: Job, factor: float = 2.0) -> Job:
        """Lower the learning rate."""
        job.optimizer.lr = job.optimizer.lr / factor
        return job

    @modifier
    def shared_sgd(job: Job) -> Job:
        job.optimizer = SHARED
        return job

    @modifier
    def wrong(job: Job) -> Job:
        job.seed = -1
        return job

    yield


def write(**files: str) -> None:
    """Write files named `a_toml` as `a.toml`."""
    for name, text in files.items():
        Path(name.replace("_", ".")).write_text(text)


def test_later_layers_beat_earlier_ones() -> None:
    write(a_toml="[optimizer]\nlr = 0.1\n", b_yaml="optimizer: {lr: 0.2}", c_json='{"seed": 3}')
    layers = {"modifiers": ["slower"], "files": ["a.toml", "b.yaml", "c.json"]}
    draft = compose(Job, "small", **layers, environ={"SETPOINT__OPTIMIZER__LR": "0.3"},
                    flags=["--optimizer.lr=0.4"], program={"optimizer.lr": 0.5}).draft  # fmt: skip
    origins = [
        origin.describe(("optimizer", "lr")) for origin, _ in chain_of(draft.optimizer, "lr")
    ]
    assert [value for _, value in chain_of(draft.optimizer, "lr")] == [
        0.1, 0.2, 0.3, 0.15, 0.4, 0.5
    ]  # fmt: skip
    assert origins[3].startswith("modifier slower (")
    assert "test_compose.py:" in origins.pop(3)
    assert "test_compose.py:" in origins.pop()
    assert origins == [
        "a.toml:2:1",
        "b.yaml:1:13",
        "environment variable SETPOINT__OPTIMIZER__LR",
        "command line --optimizer.lr",
    ]
    assert draft.seed == 3


def test_what_a_typed_modifier_takes_from_files_is_listed() -> None:
    write(a_toml='extends = "small"\n[optimizer]\nlr = 0.1\nclip_norm = 0.3\n')
    job = compose(Job, "a.toml", modifiers=["shared_sgd"]).resolve()
    assert list(dropped_values(job)) == [
        "optimizer.lr = 0.1, from a.toml:3:1: --with shared_sgd replaces its section",
        "optimizer.clip_norm = 0.3, from a.toml:4:1: --with shared_sgd replaces its section",
    ]
    job = compose(Job, "a.toml", modifiers=["slower"]).resolve()
    assert (job.optimizer.lr, list(dropped_values(job))) == (0.05, [])


def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with refused():
        compose(Job, "jobs:make")


ERRORS = {
    "unknown_preset": ("smal", {}),
    "missing_file": ("smal.toml", {}),
    "unknown_modifier": ("small", {"modifiers": ["slow"]}),
    "modifier_wrong_value": ("small", {"modifiers": ["wrong"], "flags": ["--seeed=3"]}),
    "preset_wrong_value": ("broken", {}),
    "preset_of_another_root": ("stranger", {}),
    "no_module": ("nothing:make", {}),
    "no_function": ("json:lods", {}),
    "folder": ("folder/", {}),
    "suffix": ("notes.txt", {}),
    "empty": ("", {}),
    "broken_toml": ("broken.toml", {}),
    "extends_cycle": ("cycle.toml", {}),
    "extends_itself": ("self.toml", {}),
    "extends_wrong_type": ("number.toml", {}),
    "extends_preset_second": ("second.toml", {}),
    "extends_preset_over_source": ("small", {"files": ["ok.toml"]}),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_layer_that_cannot_be_read(name: str) -> None:
    write(
        broken_toml="[model]\ndim = = 3\n",
        cycle_toml='extends = "other.toml"\n',
        other_toml='extends = ["ok.toml", "cycle.toml"]\n',
        ok_toml='extends = "small"\n',
        self_toml='extends = "self.toml"\n',
        number_toml="extends = 3\n",
        second_toml='extends = ["plain.toml", "small"]\n',
        plain_toml="seed = 4\n",
        notes_txt="seed = 4\n",
    )
    source, layers = ERRORS[name]
    with refused():
        compose(Job, source, **layers).resolve()


def test_extends_applies_in_order_and_each_file_once() -> None:
    write(
        base_toml="seed = 1\n[batch]\nsize = 1\n",
        left_toml='extends = "base.toml"\nseed = 2\n',
        right_toml='extends = "base.toml"\n[batch]\nsequence_length = 3\n',
        top_toml='extends = ["left.toml", "right.toml"]\nname = "top"\n',
    )
    job = compose(Job, "top.toml").resolve()
    assert (job.seed, job.batch, job.name) == (2, Batch(size=1, sequence_length=3), "top")
    job = compose(Job, "left.toml", files=["right.toml"]).resolve()
    assert job.seed == 2


def test_a_file_that_is_named_again_keeps_its_place_or_is_refused() -> None:
    write(
        t_toml="seed = 1\n",
        u_toml='extends = "t.toml"\nseed = 2\n',
        w_toml='extends = ["u.toml"]\n',
        fine_toml='extends = ["t.toml", "u.toml"]\n',
        late_toml='extends = ["w.toml", "t.toml"]\n',
        twice_toml='extends = ["t.toml", "u.toml", "./t.toml"]\n',
    )
    assert compose(Job, "fine.toml").resolve().seed == 2
    for name in ("late", "twice"):
        with refused():
            compose(Job, f"{name}.toml")
    # What is typed is a layer of its own.
    assert compose(Job, "u.toml", files=["t.toml"]).resolve().seed == 1


def test_two_presets_and_what_modifiers_put_in_share_nothing() -> None:
    first = compose(Job, "small", modifiers=["shared-sgd"], flags=["--optimizer.lr=3"])
    second = compose(Job, "small", modifiers=["shared_sgd"])
    assert first.draft.optimizer.lr == 3.0
    assert second.draft.optimizer.lr == SHARED.lr == 0.5
    assert compose(Job, "small").draft.model is not compose(Job, "small").draft.model


def test_a_broken_layer_does_not_hide_the_others() -> None:
    write(a_toml="[optimizer]\nlr = -1\nlrr = 1\n[modle]\ndim = 3\n")
    with refused(ConfigError):
        compose(Job, "a.toml", flags=["--model.heads=5"]).resolve()
    assert isinstance(Job().optimizer, AdamW)


def test_files_that_extend_without_end_are_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(20):
        Path(f"deep{number}.toml").write_text(f'extends = "deep{number + 1}.toml"')
    Path("deep20.toml").touch()
    with refused():
        compose(Job, "deep0.toml")
    compose(Job, "deep5.toml").resolve()
    names = [f"w{number}.toml" for number in range(50)]
    write(**{name.replace(".", "_"): "" for name in names}, wide_toml=f"extends = {names}")
    assert len(compose(Job, "wide.toml").files) == 51


def test_a_flood_of_mistakes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("setpoint.config.layers.editor.MAX_PROBLEMS", 20)
    assert len(problems_of(lambda: compose(Job, flags=[f"--a{i}=1" for i in range(30)]))) == 20


def test_what_a_file_cannot_extend(tmp_path: Path) -> None:
    from setpoint.train.config import Job as Training

    @preset
    def tiny() -> Training:
        return Training()

    assert tiny
    file = tmp_path / "exp.toml"
    for extended in (
        '["tiny", "tiny"]',
        '["tiny", "small"]',
        '"mine:wide"',
        '["tiny", "HEAD:a.toml:x"]',
    ):
        file.write_text(f"extends = {extended}")
        with refused():
            compose(Training, str(file))


@pytest.mark.parametrize("name", ["a\0b.toml", "\ud800.toml", "a\0b", "~\0/x", "~\ud800/x.toml"])
def test_what_nothing_can_be_called_is_refused_in_words(name: str, tmp_path: Path) -> None:
    file, words = tmp_path / "x.json", tmp_path / "words.txt"
    file.write_text(json.dumps({"extends": [name]}))
    actions: list[Callable[[], object]] = [
        lambda: compose(Job, name),
        lambda: compose(Job, files=[name]),
        lambda: find_user_function(f"{name}:x"),
        lambda: compose(Job, program={"model": {"extends": name}}).resolve(),
    ]
    if "\ud800" not in name:  # which the reader of JSON refuses
        actions.append(lambda: compose(Job, str(file)))
    if "\0" in name:
        words.write_text(f"@{name}\n")
        actions.append(lambda: compose(Job, flags=[f"name={name}"]).resolve())
        actions.append(lambda: expand_response_files([f"@{words}"]))
    for action in actions:
        with refused() as caught:
            action()
        assert str(caught.value).replace("\n", "").isprintable()
