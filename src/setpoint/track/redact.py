"""Command lines and environments without the secrets in them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from setpoint.config import Config, Secret, SetpointError, leaves
from setpoint.config.words.errors import HIDDEN, hide_secrets

_SECRET_WORDS = frozenset(
    ("key", "apikey", "token", "secret", "password", "passwd", "pwd", "passphrase", "credential",
     "credentials", "auth", "authorization", "bearer")
)  # fmt: skip
SHORTEST = 8
"""Characters of a secret that is found by its value: shorter ones are in many words."""


def is_secret_name(name: str) -> bool:
    """True if a flag, a field or a variable looks as if it held a secret.

    Arguments:
        name: for instance `--tracking.wandb.api_key` or `HF_TOKEN`; `tokens` and `tokenizer` are
            other words than `token`.
    """
    return not _SECRET_WORDS.isdisjoint(re.split(r"[^a-z0-9]+", name.lower()))


def without_secrets(value: Any) -> Any:
    """Hide secrets in every text of some data.

    Returns:
        a copy in which `hide_secrets` has seen each text, keys included.
    """
    if isinstance(value, str):
        return hide_secrets(value)
    if isinstance(value, dict):
        return {hide_secrets(str(key)): without_secrets(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(item) for item in value]
    return value


def declared_secrets(config: Config) -> Iterator[str]:
    """The secrets that a configuration refers to, as far as they can be read here."""
    waiting: list[Any] = []
    for leaf in leaves(config):  # whose values are plain
        value: Any = config
        for name in leaf.path:
            value = value[name] if isinstance(name, int) else getattr(value, name, None)
        waiting.append(value)
    while waiting:
        value = waiting.pop()
        if isinstance(value, Secret):
            with suppress(SetpointError):  # which is said where it is used
                yield str(value.reveal())
        elif isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value


def without_values(value: Any, secrets: Iterable[str] = ()) -> Any:
    """Hide secrets by their values in every text of some data.

    Arguments:
        secrets: further ones than variables of the environment with a secret's name hold. Lines of
            them count one by one, and those of fewer than `SHORTEST` characters do not.
    """
    values = [
        text
        for name, text in os.environ.items()
        if is_secret_name(name) and not os.path.exists(text)  # such as the file of a key
    ]
    lines = {line.strip() for text in (*values, *secrets) for line in text.splitlines()}
    known = sorted((line for line in lines if len(line) >= SHORTEST), key=len, reverse=True)
    if not known:
        return value
    pattern = re.compile("|".join(map(re.escape, known)))

    def hide(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(HIDDEN, value)
        if isinstance(value, dict):
            return {key: hide(item) for key, item in value.items()}
        return [hide(item) for item in value] if isinstance(value, list) else value

    return hide(value)


def redact_command(arguments: Iterable[str]) -> list[str]:
    """A command line that can be recorded.

    Returns:
        the same arguments; values of flags with a secret's name, logins in addresses and keys of
        known services are replaced by `***`.
    """
    result: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if hide_next and not argument.startswith("--"):
            result.append(HIDDEN)
            hide_next = False
            continue
        secret = is_secret_name(name) and (bool(equals) or argument.startswith("-"))
        hide_next = secret and not equals
        result.append(f"{name}={HIDDEN}" if secret and equals else hide_secrets(argument))
    return result
