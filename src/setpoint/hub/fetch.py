"""Files of the Hugging Face hub, fetched into its cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from setpoint.config import SetpointError

# What begins with a dot is a path.
_ID: Final = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w./-]+))?")


def split_hub_id(name: str) -> tuple[str, str | None] | None:
    """The two sides of `organization/name@revision`.

    Returns:
        the repository, and the revision or None; None for what cannot be an id.
    """
    match = _ID.fullmatch(name)
    if match is None or ".." in name:
        return None
    return match[1], match[2]


def fetch_files(name: str, patterns: Sequence[str], *, instead: str) -> Path:
    """The directory in the cache that holds files of a repository, downloaded where need be.

    Arguments:
        name: `organization/name` or `organization/name@revision`.
        patterns: of the files; those that the repository does not have are left out.

    Raises:
        SetpointError: if the package is missing, the hub cannot be reached, or has no such model.
    """
    parts = split_hub_id(name)
    assert parts is not None, "whoever asks has seen that it is an id"
    repository, revision = parts
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError as error:
        raise SetpointError(
            f"{name} is no directory here, and to look for it on the hub the package "
            f"{error.name!r} is needed: install 'setpoint[huggingface]'"
        ) from None
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=[*patterns]))
    except (OSError, ValueError) as error:
        # All errors of the library's own are of these kinds.
        raise SetpointError(
            f"{name} is no directory here, and cannot be fetched from the hub: {_reason(error)}. "
            f"{instead}"
        ) from error


def _reason(error: Exception) -> str:
    kind = type(error).__name__
    reasons = {
        "RepositoryNotFoundError": "the hub has no such model, or it is private and you are not "
        "logged in (`hf auth login`)",
        "GatedRepoError": "its license must be accepted on the hub first, with the account that "
        "`hf auth login` names",
        "RevisionNotFoundError": "the model is there, and the revision is not",
        "LocalEntryNotFoundError": "the hub cannot be reached, and the model is not in its cache",
        "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set, and the model is not in the hub's cache",
        "HFValidationError": "it is no id that the hub could have",
    }
    reason = next((reasons[c.__name__] for c in type(error).__mro__ if c.__name__ in reasons), "")
    if reason:
        return reason
    text = str(error).strip().partition("\n")[0]
    return f"the hub cannot be reached ({kind}{f': {text}' if text else ''})"
