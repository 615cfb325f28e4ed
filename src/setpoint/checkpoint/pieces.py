"""A file in pieces, as it is sent, and the checksums that a service may give for it."""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from setpoint.files.durable import Digest, Written

from .manifest import DamagedCheckpoint

PIECE = 2 << 20
"""Bytes that are transferred at once; parts that services store are multiples of it."""


class Pieces:
    """A file in pieces, and after they have been taken its checksums.

    Arguments:
        size: how much of it.
        block: the size of the parts in which a service stores it, if it does.
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
        whole = _md5(b"".join(parts)).hexdigest()
        self.md5s = {md5.hexdigest(), f"{whole}-{len(parts)}"}

    def _opened(self) -> BinaryIO:
        try:
            return open(self.file, "rb")
        except FileNotFoundError as error:
            # Of the service it would mean something else.
            raise DamagedCheckpoint(self.file.parent, f"{self.file.name} is missing") from error

    def look(self) -> Written:
        """Read it for its checksums alone."""
        for _ in self:
            pass
        return self.written


def _md5(content: bytes = b"") -> Any:
    return hashlib.md5(content, usedforsecurity=False)


def md5_in(info: dict[str, Any]) -> str | None:
    """The MD5 of a file's content, as services say it.

    Returns:
        hexadecimal digits; for S3 with `-N` where it was stored in N parts. None if it says none.
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
