"""Sections that extend files."""

from pathlib import Path

import pytest

from setpoint.config import Config, ConfigError, dead, field
from setpoint.config.composition import compose
from setpoint.config.draft.walk import dropped_values
from setpoint.config.values.node import chain_of

from ..support.snapshots import refused
from .sample import Job, Sgd, Text


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_toml", ".toml").replace("_yaml", ".yaml")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def test_a_fragment_sets_one_section(here: Path) -> None:
    write(
        here,
        parts__sgd_toml='type = "sgd"\nmomentum = 0.5\nlr = 1.0\n',
        parts__long_yaml="sequence_length: 999\n",
        exp_toml='[optimizer]\nextends = "parts/sgd.toml"\nlr = 2.0\n'
        '[batch]\nextends = ["parts/long.yaml"]\n',
    )
    job = compose(Job, "exp.toml").resolve()
    assert job.optimizer == Sgd(lr=2.0, momentum=0.5) and job.batch.sequence_length == 999
    places = {
        name: chain_of(job.optimizer, name)[-1][0].describe(("optimizer", name))
        for name in ("lr", "momentum")
    }
    assert places == {"lr": "exp.toml:3:1", "momentum": "parts/sgd.toml:2:1"}


def test_on_the_command_line(here: Path) -> None:
    write(here, sgd_toml='type = "sgd"\nlr = 1.0\n')
    for flags in (["optimizer.extends=sgd.toml"], ["--optimizer", "{extends: sgd.toml}"]):
        assert compose(Job, flags=flags).resolve().optimizer == Sgd(lr=1.0)
    # What a section sets itself beats what it extends, wherever that stands.
    flags = ["--optimizer.momentum", "0.25", "--optimizer.extends", "sgd.toml"]
    assert compose(Job, flags=flags).resolve().optimizer == Sgd(lr=1.0, momentum=0.25)


def test_fragments_extend_fragments_relative_to_themselves(here: Path) -> None:
    write(
        here,
        parts__base_toml='type = "sgd"\nlr = 1.0\nmomentum = 0.5\n',
        parts__fast_toml='extends = "base.toml"\nlr = 3.0\n',
        exp_toml='optimizer = {extends = "parts/fast.toml"}\n',
    )
    assert compose(Job, "exp.toml").resolve().optimizer == Sgd(lr=3.0, momentum=0.5)


def test_in_items_of_lists(here: Path) -> None:
    write(here, news_toml='type = "text"\npaths = ["a"]\n')
    flags = ["sources.0.extends=news.toml", "sources.0.weight=2"]
    for attempt in (flags, ["sources.0={extends=news.toml, weight=2}"]):
        job = compose(Job, flags=attempt).resolve()
        assert job.sources == (Text(paths=("a",), weight=2.0),)


def test_mistakes_name_the_fragment(here: Path) -> None:
    write(
        here,
        wrong_toml="learning_rate = 1\nlr = -1\n",
        me_toml='extends = "me.toml"\n',
        broken_toml="lr = \n",
    )
    for value in ("wrong.toml", "me.toml", "broken.toml", "wrnog.toml", "", "[wrong.toml, 3]"):
        with refused(ConfigError):
            compose(Job, flags=[f"optimizer.extends={value}"]).resolve()


def test_a_file_that_several_extend_counts_once_before_them(here: Path) -> None:
    write(
        here,
        base_toml="size = 1\nsequence_length = 1\n",
        left_toml='extends = "base.toml"\nsize = 2\n',
        right_toml='extends = "base.toml"\nsequence_length = 3\n',
    )
    job = compose(Job, flags=["--batch.extends=left.toml,right.toml"]).resolve()
    assert (job.batch.size, job.batch.sequence_length) == (2, 3)
    job = compose(Job, flags=["--batch.extends=base.toml,left.toml"]).resolve()
    assert (job.batch.size, job.batch.sequence_length) == (2, 1)
    for names in ("left.toml,base.toml", "left.toml,./left.toml"):
        with refused(ConfigError):
            compose(Job, flags=[f"--batch.extends={names}"]).resolve()
    # A flag is a layer that is typed after the other one.
    flags = ["--batch.extends=left.toml", "--batch.extends=base.toml"]
    assert compose(Job, flags=flags).resolve().batch.size == 1


class Warm(Config):
    """A section of which one field has no effect in one mode."""

    kind: str = "linear"
    warmup: int = 1

    @dead("warmup")
    def _dead(self) -> str | None:
        return "kind is constant" if self.kind == "constant" else None


class Warmed(Config):
    warm: Warm = field(factory=Warm)


@pytest.mark.parametrize("depth", [0, 3])
def test_a_fragment_comes_after_the_layers_in_front_however_deep_it_is(
    depth: int, here: Path
) -> None:
    write(here, k_toml='[warm]\nkind = "constant"\n', f0_toml="warmup = 5\n")
    for number in range(depth):
        write(here, **{f"f{number + 1}_toml": f'extends = "f{number}.toml"\n'})
    write(here, top_toml=f'warm = {{extends = "f{depth}.toml"}}\n')
    with refused(ConfigError):
        compose(Warmed, "k.toml", files=["top.toml"]).resolve()
    config = compose(Warmed, "top.toml", files=["k.toml"]).resolve()
    assert list(dropped_values(config)) == [
        "warm.warmup = 5, from f0.toml:1:1: no effect: kind is constant"
    ]


def test_in_items_that_are_new(here: Path) -> None:
    write(
        here,
        news_toml='type = "text"\npaths = ["a"]\n',
        exp_toml='sources = [{extends = "news.toml", weight = 2.0}]\n',
        kind_toml='paths = ["b"]\n',
    )
    job = compose(Job, "exp.toml").resolve()
    assert job.sources == (Text(paths=("a",), weight=2.0),)
    (origin, _), = chain_of(job.sources[0], "paths")  # fmt: skip
    assert origin.describe(("sources", 0, "paths")) == "news.toml:2:1"
    for flags in (
        ["sources=[{extends: news.toml}, {type: text, extends: kind.toml}]"],
        ["sources=[{extends: news.toml}]", "sources.append={type: text, extends: [kind.toml]}"],
    ):
        assert compose(Job, flags=flags).resolve().sources == (
            Text(paths=("a",)),
            Text(paths=("b",)),
        )


def test_each_section_has_its_own_problem(here: Path) -> None:
    write(
        here,
        bad_toml='type = "zzz"\nlr = 3.0\n',
        exp_toml='sources = [{extends = "bad.toml"}]\n'
        '[optimizer]\nextends = "bad.toml"\n[model]\nextends = "bad.toml"\n',
    )
    with refused(ConfigError):
        compose(Job, "exp.toml").resolve()
