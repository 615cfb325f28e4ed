"""Secrets are named, never written, and found where they do not belong."""

import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import (
    Config,
    ConfigError,
    Free,
    Invalid,
    Secret,
    SetpointError,
    field,
    resolve,
)
from setpoint.config.composition import compose
from setpoint.config.words.errors import credential_in, hide_secrets

from ..support.snapshots import refused
from .helpers import problems_of


@pytest.mark.parametrize(
    "text", ["hunter2", "", "env:", "env: ", "vault:x", "envTOKEN", ":x", 5, None]
)
def test_anything_else_is_refused_without_being_repeated(text: Any) -> None:
    with refused(Invalid) as caught:
        Secret(text)
    assert caught.value.secret


def test_it_is_read_when_it_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKEN", " hunter2 \n")
    assert Secret("env:TOKEN").reveal() == "hunter2"
    file = tmp_path / "token"
    file.write_text("hunter3\nmore\n")
    assert Secret(f"file:{file}").reveal() == "hunter3"


def test_what_cannot_be_revealed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TOKEN", raising=False)
    with refused():
        Secret("env:TOKEN").reveal()
    with refused():
        Secret(f"file:{tmp_path / 'none'}").reveal()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with refused():
        Secret(f"file:{tmp_path / 'binary'}").reveal()
    with pytest.raises(SetpointError):
        Secret("file:a\0b").reveal()


class Vault(Config):
    listed: tuple[Secret, ...] = ()
    named: dict[str, Secret] = field(factory=dict)
    pair: tuple[Secret, Secret] | None = None


@pytest.mark.parametrize(
    "value",
    [
        {"listed": ["env:A", "hunter2"]}, {"listed": {"a": "hunter2"}}, {"named": "hunter2"},
        {"named": {"a": {"b": "hunter2"}}}, {"pair": ["env:A"]},
        {"pair": ["env:A", "env:B", "hunter2"]}, {"name": "hunter2"},
    ],
)  # fmt: skip
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
    with refused():
        pickle.dumps({"token": revealed})


# Made up, and put together here so that no scanner takes this file for a leak.
TOKEN = "hf_" + "aB3" * 12
CREDENTIALS = [
    "https://me:hunter2@host/x",
    "postgresql://me:hunter2@db:5432/x",
    "see https://me:hunter2@host for more",
    "https://host/p?token=hunter2",
    "https://host/p?ACCESS_TOKEN=hunter2",
    "https://bucket/x?X-Amz-Signature=hunter2&X-Amz-Expires=3",
    "https://host/p?client_secret=hunter2",
    TOKEN,
    "ghp_" + "A1b" * 12,
    "AKIA" + "IOSFODNN7EXAMPLE",
    "xoxb-" + "123456789012-abc",
    "sk-proj-" + "aB3" * 10,
]
HARMLESS = [
    "use_cls_token", "https://host/?max_tokens=3&tokens=4&signatures=2&design=1",
    "git@github.com:a/b.git", "ssh://git@host/x", "https://host:8080/a@b", "s3://bucket/a:b@c",
    "file:///a:b@c", "https://me:***@host", "hf_internal_testing_tiny_random_llama_for_causal_lm",
    "hf-internal-testing/tiny-random-LlamaForCausalLM", "sk-learn-baseline-with-many-words",
    "x = {a: 1}; y = 2",
]  # fmt: skip


@pytest.mark.parametrize("text", CREDENTIALS)
def test_secrets_are_found_and_hidden(text: str) -> None:
    found = credential_in(text)
    assert found is not None
    assert "hunter2" not in found
    hidden = hide_secrets(text)
    assert "***" in hidden
    assert credential_in(hidden) is None
    assert "hunter2" not in hidden
    assert TOKEN not in hidden


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_like_one_is_let_pass(text: str) -> None:
    assert credential_in(text) is None


class Texts(Config):
    text: str = ""
    either: int | str | None = None
    path: Path = Path(".")
    listed: list[str] = field(factory=list)
    named: dict[str, str] = field(factory=dict)
    plain: Any = None
    count: int = 1
    user: Free = field(factory=Free)


PLACES: list[dict[str, Any]] = [
    {"text": CREDENTIALS[0]},
    {"path": CREDENTIALS[0]},
    {"listed": ["a", CREDENTIALS[0]]},
    {"named": {CREDENTIALS[0]: "a"}},
    {"plain": {"a": [CREDENTIALS[0]]}},
    {"plain": {CREDENTIALS[0]: 1}},
    {"count": CREDENTIALS[0]},
    {"user": {"a": {"b": CREDENTIALS[0]}}},
    {"text": {"a": CREDENTIALS[0]}},
    {"txet": CREDENTIALS[0]},
]


@pytest.mark.parametrize("values", PLACES, ids=lambda values: next(iter(values)))
def test_no_place_takes_one_and_no_error_repeats_it(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(Texts, program=values).resolve()
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in str([problem.to_json() for problem in caught.value.problems])
    flags = [f"--{key}={value}" for key, value in values.items() if isinstance(value, str)]
    if flags:
        with pytest.raises(ConfigError) as caught:
            compose(Texts, flags=flags).resolve()
        assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        resolve(Texts(**values))
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value)[-1:])
    assert b"hunter2" not in pickle.dumps(caught.value)


def test_drafts_refuse_them_in_place() -> None:
    draft = Texts()
    for action in (
        lambda: draft.listed.append(CREDENTIALS[0]),
        lambda: draft.named.update(a=CREDENTIALS[0]),
        lambda: setattr(draft.user, "a", CREDENTIALS[0]),
        lambda: setattr(draft, "path", Path(CREDENTIALS[0])),
    ):
        with refused():
            action()


def test_the_error_says_what_to_do() -> None:
    with refused(ConfigError):
        Texts(text=CREDENTIALS[0], listed=[CREDENTIALS[3]], either=TOKEN)
