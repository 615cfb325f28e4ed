"""Command lines and environments without the secrets in them."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "***"
"""What stands where a secret was."""

_SECRET_WORDS = frozenset(
    ("key", "apikey", "token", "secret", "password", "passwd", "passphrase", "credential",
     "credentials", "auth", "authorization", "bearer")
)  # fmt: skip
_URL_LOGIN = re.compile(r"(?<=://)[^/\s@]+(?=@)")
# What well-known services put in front of their keys; such a value is a secret under any name.
_KNOWN_KEYS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}"
    r"|AKIA[A-Z0-9]{16}|glpat-[A-Za-z0-9_-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,})"
)


def is_secret_name(name: str) -> bool:
    """Whether a flag, a field or a variable looks as if it held a secret.

    Arguments:
        name: for instance `--tracking.wandb.api_key` or `HF_TOKEN`; `tokens` and `tokenizer` are
            other words than `token`.

    Returns:
        whether one of its words is that of a secret.
    """
    return not _SECRET_WORDS.isdisjoint(re.split(r"[^a-z0-9]+", name.lower()))


def hide_secrets(text: str) -> str:
    """Hide logins in addresses and keys of known services.

    Arguments:
        text: any text.

    Returns:
        the text with `***` in their places.
    """
    return _KNOWN_KEYS.sub(HIDDEN, _URL_LOGIN.sub(HIDDEN, text))


def redact_command(arguments: Iterable[str]) -> list[str]:
    """A command line that can be recorded.

    Arguments:
        arguments: as the program got them.

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
