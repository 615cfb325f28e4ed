"""Remote files: repositories of the Hugging Face Hub, and URLs of fsspec."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from setpoint.config import SetpointError

_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://")
# Packages to install if fsspec's error names a class of another package, or has only a sentence.
_PACKAGES = {"http": "aiohttp", "https": "aiohttp"}


def is_url(path: str) -> bool:
    """True if a path is a URL, such as `s3://bucket/file`."""
    return _PROTOCOL.match(path) is not None


def protocol_problem(url: str, extra: str) -> str:
    """Reason why a URL cannot be opened, such as a missing package; empty if it can.

    The package fsspec is in the named extra of Setpoint.
    """
    match = _PROTOCOL.match(url)
    protocol = match[1].lower() if match else ""
    try:
        import fsspec
    except ModuleNotFoundError:
        return f"'{url}' needs the package 'fsspec'.\nValid: pip install 'setpoint[{extra}]'"
    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError:
        return (
            f"'{url}' has an unknown protocol, {protocol}.\n"
            "Valid: s3://, gs://, abfs://, https://, hf://, or another protocol of fsspec."
        )
    except ImportError as error:
        package = _PACKAGES.get(protocol) or _package(protocol)
        return f"'{url}' needs the package {package!r} ({error}).\nValid: pip install {package}"
    return ""


def _package(protocol: str) -> str:
    from fsspec.registry import known_implementations

    return str(known_implementations[protocol]["class"]).partition(".")[0]


def open_file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path within it."""
    import fsspec

    return fsspec.core.url_to_fs(url)


def url_reason(error: BaseException) -> str:
    """Error of a storage service, as one line."""
    text = (str(error) or type(error).__name__).strip().partition("\n")[0]
    return f"{text} ({type(error).__name__})"


Kind = Literal["model", "dataset"]

# A name that begins with a dot is a path.
_ID: Final = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w./-]+))?")


def split_hub_id(name: str) -> tuple[str, str | None] | None:
    """The repository and revision of `organization/name@revision`; None for invalid ids."""
    match = _ID.fullmatch(name)
    if match is None or ".." in name:
        return None
    return match[1], match[2]


def fetch_files(
    name: str, patterns: Sequence[str], *, instead: str, kind: Kind = "model", cached: bool = False
) -> Path:
    """Cache directory with files from a repository, which are downloaded if necessary.

    Arguments:
        name: `organization/name` or `organization/name@revision`.
        patterns: patterns for the files; files that the repository lacks are skipped.
        cached: whether to look only in the cache.

    Raises:
        SetpointError: the package is missing, the Hub is unreachable, or has no such repository.
    """
    parts = split_hub_id(name)
    assert parts is not None, "the caller validates the id"
    repository, revision = parts
    subject = f"{name} is not a directory here, and" if kind == "model" else f"the data set {name}"
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError as error:
        raise SetpointError(
            f"{subject} to look for it on the hub, the package {error.name!r} is needed: install "
            "'setpoint[huggingface]'"
            if kind == "model"
            else f"{subject} is on the hub, which needs the package {error.name!r}: install "
            "'setpoint[data]'"
        ) from None
    try:
        folder = snapshot_download(
            repository,
            repo_type=kind,
            revision=revision,
            allow_patterns=[*patterns],
            local_files_only=cached,
        )
        return Path(folder)
    except (OSError, ValueError) as error:
        # All of the library's own errors have these classes.
        raise SetpointError(
            f"{subject} cannot be fetched from the hub: {hub_reason(error, kind)}. {instead}"
        ) from error


def hub_reason(error: BaseException, kind: str) -> str:
    """The reason given by an error from the Hub or its client library."""
    if isinstance(error, RuntimeError) and error.__cause__ is not None:
        error = error.__cause__  # of one file of several
    text = str(error).strip().partition("\n")[0]
    status = getattr(getattr(error, "response", None), "status_code", None)
    names: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        names += [each.__name__ for each in type(cause).__mro__]
        cause = cause.__cause__ or cause.__context__
    for name in (*names, *(name for name in _REASONS if name in text)):
        if name in _REASONS:
            return _REASONS[name].format(kind=kind)
    if status is not None:
        return f"the hub rejected the request ({text or status})"
    name = type(error).__name__
    if isinstance(error, OSError) or "TransportError" in names:
        return f"the hub cannot be reached ({name}{f': {text}' if text else ''})"
    return f"{text or 'no reason given'} ({name})"


_NOT_FOUND = (
    "the hub has no such {kind}, or it is private and you are not logged in (`hf auth login`)"
)
_REASONS = {
    "RepositoryNotFoundError": _NOT_FOUND,
    "DatasetNotFoundError": _NOT_FOUND,
    "GatedRepoError": "its license must be accepted on the hub first, with the account used in "
    "`hf auth login`",
    "RevisionNotFoundError": "the {kind} exists, but not this revision",
    "LocalEntryNotFoundError": "the hub cannot be reached, and the {kind} is not in the local "
    "cache",
    "IncompleteSnapshotError": "the hub cannot be reached, and only part of the {kind} is in the "
    "local cache",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set, and the {kind} is not in the local cache",
    "HFValidationError": "it is not a valid hub id (owner/name)",
}
