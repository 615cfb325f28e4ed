"""Redaction of secrets in command lines, environments and records."""

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
"""Minimum length of a secret to search for by value; shorter ones occur in words."""


def is_secret_name(name: str) -> bool:
    """True if the name of a flag, field or variable suggests a secret.

    Arguments:
        name: for example `--tracking.wandb.api_key` or `HF_TOKEN`; `tokens` and `tokenizer` do not
            match.
    """
    return not _SECRET_WORDS.isdisjoint(re.split(r"[^a-z0-9]+", name.lower()))


def without_secrets(value: Any) -> Any:
    """A copy of nested data with `hide_secrets` applied to each string, including keys."""
    if isinstance(value, str):
        return hide_secrets(value)
    if isinstance(value, dict):
        return {hide_secrets(str(key)): without_secrets(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(item) for item in value]
    return value


def declared_secrets(config: Config) -> Iterator[str]:
    """The readable secrets to which a configuration refers."""
    waiting: list[Any] = []
    for leaf in leaves(config):  # leaf values are plain
        value: Any = config
        for name in leaf.path:
            value = value[name] if isinstance(name, int) else getattr(value, name, None)
        waiting.append(value)
    while waiting:
        value = waiting.pop()
        if isinstance(value, Secret):
            with suppress(SetpointError):  # reported where it is used
                yield str(value.reveal())
        elif isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value


def without_values(value: Any, secrets: Iterable[str] = ()) -> Any:
    """Hide secrets by value in all strings of nested data.

    Arguments:
        secrets: secrets in addition to those in environment variables. Each line with at least
            `SHORTEST` characters is hidden separately.
    """
    values = [
        text
        for name, text in os.environ.items()
        if is_secret_name(name) and not os.path.exists(text)  # such as the path of a key file
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
    """A command line for the record, with `***` for secrets.

    These are values of secret flags, logins in URLs and keys of known services.
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
