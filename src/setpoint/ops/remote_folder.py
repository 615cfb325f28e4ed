"""A folder at a URL: verified uploads, and downloads."""

from __future__ import annotations

import hashlib
import re
import time
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from setpoint.checkpoint.manifest import DamagedCheckpoint
from setpoint.config import RunError, SetpointError
from setpoint.files.atomic import Digest, Written, replacing, write_file
from setpoint.hub.fetch import open_file_system, url_reason

T = TypeVar("T")

PAUSE = 1.0
"""Seconds before the first retry of a request, doubled each time."""


class RemoteError(RunError):
    """A service that does not respond, or refuses a request."""


BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci"})
"""Protocols whose `makedirs` also creates the bucket, even a misspelt one."""


class RemoteFolder:
    """A folder at a URL.

    Arguments:
        by_size: verify uploads only by size.
        alive: called during transfers; an exception ends the transfer.
    """

    def __init__(
        self, url: str, *, by_size: bool = False, alive: Callable[[], None] = lambda: None
    ) -> None:
        self.url = url.rstrip("/")
        self.by_size = by_size
        self.alive = alive
        with self._asking():
            self._system, path = open_file_system(self.url)
            self._is_local = "file" in _protocols(self._system)
            self._has_buckets = not BUCKETS.isdisjoint(_protocols(self._system))
        self._root = path.rstrip("/")
        self._sure: dict[str, Written] = {}

    def exists(self) -> bool:
        """True if anything exists at the URL.

        Raises:
            RemoteError: the service does not answer.
        """
        with self._asking():
            return bool(self._names(self._root))

    def _make_folder(self, path: str) -> None:
        """Create a folder, but not a bucket; object stores have no empty folders."""
        if not self._has_buckets:
            self._system.makedirs(path, exist_ok=True)

    def require_writable(self) -> None:
        """Write a small file and remove it again.

        Raises:
            RemoteError: the service refuses.
        """
        marker = f"{self._root}/.writable"
        try:
            self._make_folder(self._root)
            self._write(marker, b"\n")
            self._remove(marker)
        except Exception as error:
            raise RemoteError(f"{self.url} cannot be written: {url_reason(error)}") from error

    def _send(self, file: Path, path: str, written: Written | None) -> list[tuple[int, str]]:
        """Upload a file unless it exists; `written` is None for a file that may still grow."""
        size = file.stat().st_size if written is None else written.size
        pieces = Pieces(file, size, self.alive)
        if self._sure.get(path) == (written or pieces.read_all()):
            return []
        if written is not None and self._arrived(path, written, pieces) is not None:
            self._sure[path] = written
            return []
        self._write_all(path, pieces)
        if written is not None and pieces.written != written:
            raise DamagedCheckpoint(file.parent, f"{file.name} differs from what was saved")
        by = self._arrived(path, pieces.written, pieces)
        if by is None:
            raise OSError(f"{self._system.unstrip_protocol(path)} differs from what was uploaded")
        self._sure[path] = pieces.written
        return [(pieces.written.size, by)]

    def _arrived(self, path: str, written: Written, pieces: Pieces) -> str | None:
        """The comparison that proves that a file is at the URL; None if it does not succeed."""
        self._system.invalidate_cache()
        try:
            info = self._system.info(path)
        except FileNotFoundError:
            return None
        if info.get("type") != "file" or info.get("size") != written.size:
            return None
        if self.by_size:
            return "size"
        remote_md5 = md5_in(info)
        if remote_md5 is not None:
            if not pieces.md5s:
                pieces.read_all()
            if remote_md5 in pieces.md5s:
                return "md5"
        # No MD5, or not that of the content, as with server-side encryption by the service's own
        # keys.
        return "digest" if self._digest(path) == written else None

    def _digest(self, path: str) -> Written:
        """Read a file to compute its checksum."""
        digest = Digest()
        for piece in self._pieces(path):
            digest.update(piece)
        return digest.end()

    def _write_all(self, path: str, pieces: Pieces) -> None:
        if self._is_local:
            with replacing(Path(path), sync=True) as staged:
                write_file(staged, pieces)
            return
        with self._system.open(path, "wb") as file:
            pieces.block = getattr(file, "blocksize", None)
            for piece in pieces:
                file.write(piece)

    def _write(self, path: str, content: bytes) -> None:
        """Write a small file, and read it back to verify it."""
        if self._is_local:
            with replacing(Path(path), sync=True) as staged:
                write_file(staged, [content])
        else:
            self._system.pipe_file(path, content)
        if self._read(path) != content:
            raise OSError(f"{self._system.unstrip_protocol(path)} differs from what was uploaded")

    def _read(self, path: str) -> bytes | None:
        try:
            return self._system.cat_file(path)
        except FileNotFoundError:
            return None

    def _remove(self, path: str) -> None:
        self._sure.clear()
        with suppress(FileNotFoundError):
            self._system.rm_file(path)

    def _pieces(self, path: str) -> Iterator[bytes]:
        with self._asking(FileNotFoundError), self._system.open(path, "rb") as file:
            while piece := file.read(PIECE):
                self.alive()
                yield piece

    def _names(self, folder: str) -> list[str]:
        self._system.invalidate_cache()
        try:
            rows = self._system.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        return [str(row).rstrip("/").rpartition("/")[2] for row in rows]

    @contextmanager
    def _asking(self, *passed: type[Exception]) -> Iterator[None]:
        """Convert errors of all services to `RemoteError`."""
        try:
            yield
        except (SetpointError, *passed):
            raise
        except Exception as error:
            raise RemoteError(
                f"{self.url} cannot be reached: {url_reason(error)} (credentials are read from "
                f"the environment by the package of the service)"
            ) from error


def _protocols(system: Any) -> tuple[str, ...]:
    protocol = system.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def repeated(act: Callable[[], T], attempts: int = 5) -> T:
    """Retry requests to a service, with increasing pauses.

    Raises:
        RemoteError: the last attempt failed.
    """
    for attempt in range(attempts - 1):
        try:
            return act()
        except DamagedCheckpoint:
            raise
        except RemoteError:
            time.sleep(PAUSE * 2**attempt)
    return act()


PIECE = 2 << 20
"""Bytes per transfer; parts stored by services are multiples of it."""


class Pieces:
    """A file in pieces, and its checksums once all pieces have been read.

    Arguments:
        size: number of bytes to read.
        block: the size of multipart uploads, if used.
    """

    def __init__(self, file: Path, size: int, alive: Callable[[], None]) -> None:
        self.file, self.size, self.alive = file, size, alive
        self.block: int | None = None
        self.written = Written(0, "")
        self.md5s: set[str] = set()

    def __iter__(self) -> Iterator[bytes]:
        md5, part, parts = _md5(), _md5(), []
        size = 0
        digest = Digest()
        with self._opened() as file:
            while piece := file.read(min(PIECE, self.size - size)):
                self.alive()
                digest.update(piece)
                md5.update(piece)
                part.update(piece)
                size += len(piece)
                if self.block and size % self.block == 0:
                    parts.append(part.digest())
                    part = _md5()
                yield piece
            self.written = digest.end()
        if self.block and size % self.block:
            parts.append(part.digest())
        # S3 stores large files in parts: https://docs.aws.amazon.com/AmazonS3/latest/userguide/
        # checking-object-integrity-upload.html
        combined = _md5(b"".join(parts)).hexdigest()
        self.md5s = {md5.hexdigest(), f"{combined}-{len(parts)}"}

    def _opened(self) -> BinaryIO:
        try:
            return open(self.file, "rb")
        except FileNotFoundError as error:
            # The service would interpret it differently.
            raise DamagedCheckpoint(self.file.parent, f"{self.file.name} is missing") from error

    def read_all(self) -> Written:
        """Read all pieces to compute the checksums."""
        for _ in self:
            pass
        return self.written


def _md5(content: bytes = b"") -> Any:
    return hashlib.md5(content, usedforsecurity=False)


def md5_in(info: dict[str, Any]) -> str | None:
    """The MD5 of a file's content, as reported by services.

    Returns:
        hexadecimal digits; for S3 with `-N` for N parts. None if not reported.
    """
    settings = info.get("content_settings")
    azure = settings.get("content_md5") if isinstance(settings, dict) else None
    encoded = info.get("md5Hash") or azure
    if isinstance(encoded, bytes | bytearray):
        return bytes(encoded).hex()
    if isinstance(encoded, str):
        with suppress(NotBase64):
            return b64decode(encoded, validate=True).hex()
    etag = str(info.get("ETag", "")).strip('"')
    return etag if re.fullmatch(r"[0-9a-f]{32}(-[0-9]+)?", etag) else None
