import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import Config, ConfigError, Invalid, Secret, SetpointError, field, resolve
from setpoint.config.composition import compose
from setpoint.config.record.record import record_files

from .helpers import problems_of
from .sample import Job, Tracker


@pytest.mark.parametrize(
    "text", ["hunter2", "", "env:", "env: ", "vault:x", "envTOKEN", ":x", 5, None]
)
def test_anything_else_is_refused_without_being_repeated(text: Any) -> None:
    with pytest.raises(Invalid) as caught:
        Secret(text)
    assert caught.value.secret
    assert caught.value.valid == ("env:NAME", "file:PATH")
    assert not text or str(text) not in str(caught.value).replace("env:NAME", "")


def test_it_is_read_when_it_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKEN", " hunter2 \n")
    assert Secret("env:TOKEN").reveal() == "hunter2"
    file = tmp_path / "token"
    file.write_text("hunter3\nmore\n")
    assert Secret(f"file:{file}").reveal() == "hunter3"


def test_what_cannot_be_revealed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TOKEN", raising=False)
    with pytest.raises(SetpointError, match="the environment variable TOKEN of a secret"):
        Secret("env:TOKEN").reveal()
    with pytest.raises(SetpointError, match="cannot be read: No such file"):
        Secret(f"file:{tmp_path / 'none'}").reveal()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(SetpointError, match="is not UTF-8 text"):
        Secret(f"file:{tmp_path / 'binary'}").reveal()
    with pytest.raises(SetpointError):
        Secret("file:a\0b").reveal()


def test_a_revealed_secret_is_in_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    config = resolve(Job(tracker=Tracker(url="http://x", token="env:TOKEN")))
    assert config.tracker is not None
    assert config.tracker.token is not None
    assert config.tracker.token.reveal() == "hunter2"
    assert "hunter2" not in "".join(record_files(config).values()) + repr(config)


class Vault(Config):
    listed: tuple[Secret, ...] = ()
    named: dict[str, Secret] = field(factory=dict)
    pair: tuple[Secret, Secret] | None = None


@pytest.mark.parametrize(
    "value",
    [
        {"listed": ["env:A", "hunter2"]},
        {"listed": {"a": "hunter2"}},
        {"named": "hunter2"},
        {"named": {"a": {"b": "hunter2"}}},
        {"pair": ["env:A"]},
        {"pair": ["env:A", "env:B", "hunter2"]},
        {"name": "hunter2"},
    ],
)
def test_secrets_in_containers_are_not_repeated(value: dict[str, object]) -> None:
    problems = problems_of(lambda: compose(Vault, program=value).resolve())
    assert "hunter2" not in str(ConfigError(problems))
    flags = [f"--{key}={item}" for key, item in value.items()]
    problems = problems_of(lambda: compose(Vault, flags=flags).resolve())
    assert "hunter2" not in str(ConfigError(problems))
    with pytest.raises(ConfigError) as caught:
        Vault(**value)
    assert "hunter2" not in str(caught.value)


def test_a_revealed_secret_does_not_show_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    revealed = Secret("env:TOKEN").reveal()
    assert f"Bearer {revealed}" == "Bearer hunter2"
    assert "hunter2" not in repr({"token": revealed, "list": [revealed]})
    with pytest.raises(SetpointError, match="cannot be pickled"):
        pickle.dumps({"token": revealed})


def test_tracebacks_with_locals_do_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")

    def fails() -> None:
        token = Secret("env:TOKEN").reveal()
        raise RuntimeError(f"after reading {len(token)} signs")

    with pytest.raises(RuntimeError) as caught:
        fails()
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    assert "hunter2" not in "".join(shown.format()).replace('"hunter2"', "")


def test_a_secret_meets_its_url_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "a/b@c")
    secret = Secret("env:TOKEN")
    assert secret.login("https://host:8080/x?y=1", "me") == "https://me:a%2Fb%40c@host:8080/x?y=1"
    assert secret.login("redis://host") == "redis://:a%2Fb%40c@host"
    assert "a%2F" not in repr(secret.login("https://host"))
    for url in ("host", "https://you@host", ""):
        with pytest.raises(SetpointError, match="is not a URL without a login"):
            secret.login(url)
