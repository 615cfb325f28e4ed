"""URLs that fsspec opens: `s3://`, `gs://`, `abfs://`, `https://`, `file://`, `memory://`."""

from __future__ import annotations

import re
from typing import Any

_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://")
# What the user installs where fsspec names a class of another package, or only a sentence.
_PACKAGES = {"http": "aiohttp", "https": "aiohttp"}


def is_url(path: str) -> bool:
    """True if a path is a URL, such as `s3://bucket/file`."""
    return _PROTOCOL.match(path) is not None


def protocol_problem(url: str, extra: str) -> str:
    """The package that is missing to open a URL, as a sentence; empty where none is.

    Arguments:
        extra: the extra of Setpoint that brings fsspec.
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
            f"'{url}' begins with an unknown protocol, {protocol}.\n"
            "Valid: s3://, gs://, abfs://, https://, hf://, or another one of fsspec."
        )
    except ImportError as error:
        package = _PACKAGES.get(protocol) or _package(protocol)
        return f"'{url}' needs the package {package!r} ({error}).\nValid: pip install {package}"
    return ""


def _package(protocol: str) -> str:
    from fsspec.registry import known_implementations

    return str(known_implementations[protocol]["class"]).partition(".")[0]


def open_file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    import fsspec

    return fsspec.core.url_to_fs(url)


def reason_of(error: BaseException) -> str:
    """The error of a service, in a line: each has classes of its own."""
    text = (str(error) or type(error).__name__).strip().partition("\n")[0]
    return f"{text} ({type(error).__name__})"
