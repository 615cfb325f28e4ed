"""Credentials inside ordinary texts: found, so that they are refused, and hidden in what is shown.

A `Secret` holds a reference and no secret. This module is about the secrets that are put where none
belong: a password inside a URL, a key among its parameters, a token as a plain text.
"""

from __future__ import annotations

import re

HIDDEN = "***"  # what stands where a secret was
# A text without any of these holds none of the keys below.
_MARKS = ("hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_",
          "glpat-", "AKIA", "xox", "sk-")  # fmt: skip
# A login before the host. Neither `user@host:path` of ssh nor a lone user name holds a password.
_LOGIN = r"(?<=://)[^/\s?#@'\"]*:(?!\*\*\*@)[^/\s?#@'\"]+(?=@)"
_USER = r"(?<=://)[^/\s?#@'\"]+(?=@)"
# A parameter's whole name decides: `token=` is one, `tokenizer=` is not.
_PARAMETER = (
    r"(?i)(?<=[?&;])((?:(?:access|auth|refresh|id|private|session|security|bearer)[_-]?)?token"
    r"|(?:x-)?api[_-]?key|(?:access|secret|private|shared)[_-]?(?:access[_-]?)?key"
    r"|password|passwd|pwd|(?:client[_-]?)?secret|sig|signature|auth|authorization|credentials?"
    r"|x-(?:amz|goog)-(?:signature|credential|security-token))=(?!\*\*\*)[^&#\s'\"]+"
)
# What well-known services put in front of their keys; such a text is a secret under any name.
_KEY = (
    r"(?<![A-Za-z0-9_])(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{20,}|AKIA[A-Z0-9]{16}(?![A-Za-z0-9])"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}|sk-(?=[A-Za-z0-9_-]*[0-9])(?=[A-Za-z0-9_-]*[A-Z]|[a-z0-9]{32})"
    r"[A-Za-z0-9_-]{20,})"
)


def suspicious(text: str) -> bool:
    """A quick look that lets nearly every text pass; patterns are slower by far."""
    return (
        "://" in text
        or ("=" in text and ("?" in text or "&" in text or ";" in text))
        or (len(text) > 14 and any(mark in text for mark in _MARKS))
    )


def credential_in(text: str) -> str | None:
    """Look for a secret inside a text.

    Returns:
        what was found, in words and without the secret; None if there is none.
    """
    if not suspicious(text):
        return None
    if re.search(_LOGIN, text):
        return "a password inside a URL"
    found = re.search(_PARAMETER, text)
    if found:
        return f"a secret as the parameter {found[1]!r} of a URL"
    if re.search(_KEY, text):
        return "what looks like an access token"
    return None


def hide_secrets(text: str) -> str:
    """Hide logins and secret parameters of URLs, and keys of well-known services.

    Returns:
        the text with `***` in their places.
    """
    if not suspicious(text):
        return text
    text = re.sub(_USER, HIDDEN, text)
    text = re.sub(_PARAMETER, lambda found: f"{found[1]}={HIDDEN}", text)
    return re.sub(_KEY, HIDDEN, text)
