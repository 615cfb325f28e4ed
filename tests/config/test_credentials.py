import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import Config, ConfigError, Free, field, resolve
from setpoint.config.composition import compose
from setpoint.config.words.errors import credential_in, hide_secrets

from ..support.snapshots import compare
from .helpers import placeless

# Made up, and put together here so that no scanner takes this file for a leak.
TOKEN = "hf_" + "aB3" * 12
SECRETS = [
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
    "use_cls_token",
    "https://host/?max_tokens=3&tokens=4&signatures=2&design=1",
    "git@github.com:a/b.git",
    "ssh://git@host/x",
    "https://host:8080/a@b",
    "s3://bucket/a:b@c",
    "file:///a:b@c",
    "https://me:***@host",
    "hf_internal_testing_tiny_random_llama_for_causal_lm",
    "hf-internal-testing/tiny-random-LlamaForCausalLM",
    "sk-learn-baseline-with-many-words",
    "x = {a: 1}; y = 2",
]


@pytest.mark.parametrize("text", SECRETS)
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
    {"text": SECRETS[0]},
    {"path": SECRETS[0]},
    {"listed": ["a", SECRETS[0]]},
    {"named": {SECRETS[0]: "a"}},
    {"plain": {"a": [SECRETS[0]]}},
    {"plain": {SECRETS[0]: 1}},
    {"count": SECRETS[0]},
    {"user": {"a": {"b": SECRETS[0]}}},
    {"text": {"a": SECRETS[0]}},
    {"txet": SECRETS[0]},
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
        lambda: draft.listed.append(SECRETS[0]),
        lambda: draft.named.update(a=SECRETS[0]),
        lambda: setattr(draft.user, "a", SECRETS[0]),
        lambda: setattr(draft, "path", Path(SECRETS[0])),
    ):
        with pytest.raises(Exception, match="password inside a URL") as caught:
            action()
        assert "hunter2" not in str(caught.value)


def test_the_error_says_what_to_do() -> None:
    with pytest.raises(ConfigError) as caught:
        Texts(text=SECRETS[0], listed=[SECRETS[3]], either=TOKEN)
    compare("config/credentials", placeless(str(caught.value)))
