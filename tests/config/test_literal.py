"""Texts that hold `${` as it is."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.config import Config, ConfigError, Free, field, resolve
from setpoint.config.composition import compose
from setpoint.config.record.record import fingerprint, record_files
from setpoint.config.words.plain_data import escaped, refers, unescaped


class Texts(Config):
    name: str = "x$${y}"
    folder: Path = Path("a")
    skip: re.Pattern[str] | None = None
    words: tuple[str, ...] = ()
    table: dict[str, str] = field(factory=dict)
    anything: Any = None
    user: Free = field(factory=Free)
    copy: str = ""


@given(st.text("${a}"))
def test_any_text_can_be_written(text: str) -> None:
    assert unescaped(escaped(text)) == text
    assert not refers(escaped(text))
    assert not refers(unescaped(escaped(text)))


def test_it_means_the_same_in_every_layer(tmp_path: Path) -> None:
    text = "$${HOME}/x"
    draft = Texts(
        name=text,
        folder=text,  # pyright: ignore[reportArgumentType]
        skip=re.compile("x${y"),
        words=(text, "$$${z}", "${name}"),
        table={"a": text},
        anything=text,
        copy="${name}",
    )
    draft.user.raw = "${taken as it is}"
    config = resolve(draft)
    assert config.name == config.copy == config.anything == config.table["a"] == "${HOME}/x"
    assert config.folder == Path("${HOME}/x")
    assert config.words == ("${HOME}/x", "$${z}", "${HOME}/x")
    assert Texts().name == "x${y}"
    assert config.user.raw == "${taken as it is}"
    assert resolve(config.evolve(copy=config.name)).copy == config.name
    assert pickle.loads(pickle.dumps(config)) == config
    for name, whole in record_files(config).items():
        (tmp_path / name).write_text(whole)
    for source in (str(tmp_path), str(tmp_path / "config.toml"), str(tmp_path / "config.json")):
        twin = compose(Texts, source).resolve()
        assert twin == config and fingerprint(twin) == fingerprint(config)
    flags = ["--name", text, "--words", "[$${a}, '$${b']", "--table", "{k: $${c}}"]
    typed = compose(Texts, flags=flags).resolve()
    assert typed.words == ("${a}", "${b") and typed.table == {"k": "${c}"}
    assert compose(Texts, environ={"SETPOINT__NAME": text}).resolve().name == config.name


@pytest.mark.parametrize("text", ["a ${b c}", "${", "a ${b"])
def test_the_error_names_the_escape(text: str) -> None:
    with pytest.raises(ConfigError, match=r"escape it as \$\$\{"):
        Texts(name=text)
