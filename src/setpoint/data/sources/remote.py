"""Files on other machines, through fsspec: `s3://`, `gs://`, `abfs://`, `https://`, `memory://`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from setpoint.config import SetpointError
from setpoint.hub.urls import open_file_system, reason_of

IN_MEMORY = "memory://setpoint/"
"""The folder of the data that `train(data=...)` was given; the digest of its content follows."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A file behind a URL."""

    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last part of its path."""
        return PurePosixPath(self.url.partition("?")[0]).name

    @property
    def suffix(self) -> str:
        """The suffix of `name`."""
        return PurePosixPath(self.name).suffix

    def open(self, mode: str = "rb") -> Any:
        """Open it; it is read as it is needed, in blocks."""
        system, path = open_file_system(self.url)
        return system.open(path, mode)

    def state(self) -> str:
        """What the service tells that changes with the content, as far as it does."""
        if self.url.startswith(IN_MEMORY):
            return self.url  # which holds the digest of the content
        system, path = open_file_system(self.url)
        known = system.info(path)
        return " ".join(f"{name}={known[name]}" for name in _STATES if known.get(name) is not None)


_STATES = ("size", "ETag", "etag", "LastModified", "last_modified", "mtime", "updated", "created")


def find_remote(pattern: str, where: str) -> Iterator[tuple[str, Remote, bool]]:
    """The files of a URL: one file, a folder, or a glob.

    Yields:
        relative name, file, and whether a folder was listed.

    Raises:
        SetpointError: there is none, or the service does not answer.
    """
    try:
        found, base, listed = _listed(pattern)
    except Exception as error:  # each service has its own
        raise SetpointError(
            f"{where}: '{pattern}' cannot be listed: {reason_of(error)}.\n"
            "Valid: a URL that can be reached; credentials are those of the environment, as the "
            "package of the service reads them."
        ) from error
    if not found and pattern.startswith(IN_MEMORY):
        raise SetpointError(
            f"{where}: {pattern} is data that a Python program has passed to train(data=...), and "
            f"this process does not have it.\nValid: train(..., data=...) with the same data; or "
            f"the same rows in a file data.jsonl: --{where} data.jsonl --accept data"
        )
    if not found:
        raise SetpointError(
            f"{where}: '{pattern}' leads to no file.\n"
            "Valid: the URL of a file or a folder, or a glob; '**' crosses folders."
        )
    for url, path in found:
        relative = path[len(base) :].lstrip("/") if base else ""
        yield relative or PurePosixPath(path.partition("?")[0]).name, Remote(url), listed


def _listed(pattern: str) -> tuple[list[tuple[str, str]], str, bool]:
    """URLs and paths of the files, the folder that names are relative to, whether it is listed."""
    system, path = open_file_system(pattern)

    def urls(paths: list[str]) -> list[tuple[str, str]]:
        return [(str(system.unstrip_protocol(each)), each) for each in sorted(paths)]

    # A question mark and brackets are usual in URLs of the web, and no wildcards there.
    magic = "*" if pattern.startswith("http") else "*?["
    if any(sign in path for sign in magic):
        found = [each for each in system.glob(path) if not system.isdir(each)]
        first = min(path.index(sign) for sign in magic if sign in path)
        return urls(found), path[:first].rpartition("/")[0], False
    # On the web a folder is what ends in a slash: a page of links.
    folder = path.endswith("/") if pattern.startswith("http") else system.isdir(path)
    if not folder and system.exists(path):
        return urls([path]), "", False
    if folder:
        base = path.rstrip("/")
        found = [each for each in system.find(path) if "/." not in each[len(base) :]]
        return urls(found), base, True
    if pattern.startswith("http"):
        # There `exists` is false of a server that does not answer or refuses, too: ask for why.
        with suppress(FileNotFoundError):
            system.cat_file(path, 0, 1)
    return [], "", False
