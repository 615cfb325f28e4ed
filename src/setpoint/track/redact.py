"""Command lines and environments without the secrets in them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from setpoint.config import HIDDEN, hide_secrets

_SECRET_WORDS = frozenset(
    ("key", "apikey", "token", "secret", "password", "passwd", "pwd", "passphrase", "credential",
     "credentials", "auth", "authorization", "bearer")
)  # fmt: skip


def is_secret_name(name: str) -> bool:
    """Whether a flag, a field or a variable looks as if it held a secret.

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
