"""The list of a checkpoint's files with their sizes and checksums, and the comparison with it."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from setpoint.config import RunError, SetpointError
from setpoint.files.durable import Written, digest_file, retried
from setpoint.files.threads import in_threads

from .layout import MANIFEST

FORMAT = 1
"""The version of the checkpoint format."""
MOST = 64 << 20
"""Bytes that a manifest has at most; that of a million files has as many."""
_PLAIN = re.compile(r"[^/\\\0]+").fullmatch
FAILING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENODATA)
"""What disks and network file systems answer when they fail."""


class DamagedCheckpoint(RunError):
    """A checkpoint that is not what was saved, or cannot be read back."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"checkpoint {path} is damaged: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Manifest:
    """What `manifest.json` says.

    Arguments:
        metric: what selects the best checkpoint, lower is better (what is to rise is negated); None
            if it was not measured.
        files: file name to size and checksum; the manifest itself is not among them.
    """

    step: int
    metric: float | None
    files: dict[str, Written]

    def render(self) -> bytes:
        """The text of the file; one content has one text, so that any other text is damage.

        Returns:
            JSON in UTF-8 with a line break at its end.
        """
        files = {name: encode_written(written) for name, written in sorted(self.files.items())}
        return _seal({"format": FORMAT, "step": self.step, "metric": self.metric, "files": files})


def read_manifest(directory: Path) -> Manifest:
    """Read a checkpoint's manifest; the other files are not looked at.

    Raises:
        DamagedCheckpoint: if it is missing or not what was written.
        RunError: if it cannot be read.
        SetpointError: if a newer Setpoint wrote it.
    """
    try:
        text = retried(_read, directory / MANIFEST)
    except OSError as error:
        raise unreadable(directory, MANIFEST, error) from error
    return parse_manifest(directory, text)


def _read(path: Path) -> bytes:
    facts = os.stat(path)
    # A pipe would wait for somebody who writes to it.
    if not stat.S_ISREG(facts.st_mode):
        raise DamagedCheckpoint(path.parent, f"{MANIFEST} is not a regular file")
    if (size := facts.st_size) > MOST:
        raise DamagedCheckpoint(path.parent, f"{MANIFEST} has {size} bytes, more than {MOST}")
    return path.read_bytes()


def parse_manifest(directory: Path, text: bytes) -> Manifest:
    """Read the text of a manifest.

    Arguments:
        directory: of the checkpoint, for messages.

    Raises:
        DamagedCheckpoint: if it is not what was written.
        SetpointError: if a newer Setpoint wrote it.
    """
    try:
        content = json.loads(text)
        del content["blake3"]
        whole = _seal(content) == text
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedCheckpoint(directory, f"{MANIFEST} is not a manifest") from error
    if not whole:
        raise DamagedCheckpoint(directory, f"{MANIFEST} does not match its own checksum")
    with understood(directory):
        # Only now is the number one that was written, and not a flipped bit.
        if content["format"] > FORMAT:
            raise SetpointError(
                f"checkpoint {directory} has the format {content['format']}, and this Setpoint "
                f"reads formats up to {FORMAT}: use the newer Setpoint that wrote it"
            )
        files: dict[str, Written] = {}
        for name, entry in content["files"].items():
            files[name] = decode_written(entry)
            # Files get these names, and a checksum does not say who wrote it.
            if name in (".", "..") or not _PLAIN(name):
                raise DamagedCheckpoint(directory, f"{MANIFEST} names the file {name!r}")
        return Manifest(content["step"], content["metric"], files)


def encode_written(written: Written) -> dict[str, Any]:
    """What files of a checkpoint say of another file."""
    return {"bytes": written.size, "blake3": written.digest}


def decode_written(entry: Mapping[str, Any]) -> Written:
    """Read what `encode_written` made."""
    return Written(entry["bytes"], entry["blake3"])


@contextmanager
def understood(directory: Path) -> Iterator[None]:
    """Decode files of a checkpoint; a checksum says nothing of who wrote them.

    Raises:
        DamagedCheckpoint: they do not hold what Setpoint writes.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DamagedCheckpoint(directory, f"it holds what none does: {error!r:.200}") from error
    except RecursionError as error:
        raise DamagedCheckpoint(directory, "a file is nested too deeply") from error


def verify(directory: Path, manifest: Manifest, names: Collection[str]) -> None:
    """Compare files with the manifest, several at a time.

    Arguments:
        names: the files to compare; each must be in the manifest.

    Raises:
        DamagedCheckpoint: naming a file that is missing or differs.
        RunError: if a file is there and cannot be read.
    """
    # The largest first, so that none is left to one thread at the end.
    order = sorted(names, key=lambda name: (-manifest.files[name].size, name))

    def compare(number: int) -> None:
        name = order[number]
        try:
            _compare_size(directory, name, manifest)
            found = retried(digest_file, directory / name)
        except OSError as error:
            raise unreadable(directory, name, error) from error
        _compare(directory, name, found, manifest.files[name])

    in_threads(compare, len(order))


def read_verified(directory: Path, manifest: Manifest, name: str) -> bytes:
    """Read a file whose content, as it was read, is compared with the manifest.

    Raises:
        DamagedCheckpoint: if it is missing or differs.
        RunError: if it is there and cannot be read.
    """
    try:
        _compare_size(directory, name, manifest)  # before memory is taken for it
        content = retried((directory / name).read_bytes)
    except OSError as error:
        raise unreadable(directory, name, error) from error
    expected = manifest.files[name]
    _compare(directory, name, Written.of(content), expected)
    return content


def compare_sizes(directory: Path, manifest: Manifest) -> None:
    """Compare the sizes of all files with the manifest.

    Raises:
        DamagedCheckpoint: naming a file that is missing or has another size.
        RunError: if one is there and cannot be looked at.
    """
    for name in sorted(manifest.files):
        try:
            _compare_size(directory, name, manifest)
        except OSError as error:
            raise unreadable(directory, name, error) from error


def _compare_size(directory: Path, name: str, manifest: Manifest) -> None:
    found, expected = retried(os.path.getsize, directory / name), manifest.files[name].size
    if found != expected:
        raise DamagedCheckpoint(directory, f"{name} has {found} bytes, not {expected}")


def _compare(directory: Path, name: str, found: Written, expected: Written) -> None:
    if difference := found.difference(expected):
        raise DamagedCheckpoint(directory, f"{name} {difference}")


def unreadable(directory: Path, name: str, error: OSError) -> RunError:
    """The error for a file that could not be read.

    Returns:
        `DamagedCheckpoint` if the file is gone, a link to itself, or the disk fails, and an older
        checkpoint may do; otherwise a plain error: a missing permission is the user's to give.
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return DamagedCheckpoint(directory, f"{name} is missing")
    if error.errno in (*FAILING, errno.ELOOP):
        return DamagedCheckpoint(directory, f"{name} cannot be read back ({error.strerror})")
    return RunError(f"checkpoint {directory} cannot be read: {name}: {error.strerror}")


def _seal(content: dict[str, object]) -> bytes:
    """The manifest's text: its content and the checksum of it, so that it vouches for itself."""
    bare = (json.dumps(content, indent=1) + "\n").encode()
    digest = Written.of(bare).digest
    return (json.dumps({**content, "blake3": digest}, indent=1) + "\n").encode()
