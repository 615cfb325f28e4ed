"""The bytes of a plain file, without waiting for what never ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .error import FileError

if TYPE_CHECKING:
    from collections.abc import Callable


def read_plain_file(
    path: str, limit: int, too_large: Callable[[int], str], missing: Callable[[str], str]
) -> bytes:
    """Read a file that is no directory, pipe, socket or device, and not too large.

    Arguments:
        path: the file; the errors show it as given here.
        limit: the most bytes that are read.
        too_large: why a file of so many bytes is refused.
        missing: what to say about a path where there is no file.

    Returns:
        all of it.

    Raises:
        FileError: it is not there, not a plain file, too large, or cannot be read.
    """
    import os

    try:
        _refuse_special(path, os.stat(path).st_mode)
        with open(path, "rb", opener=_open_at_once) as file:
            facts = os.fstat(file.fileno())
            _refuse_special(path, facts.st_mode)  # it may have been replaced since
            data = cast("bytes | None", file.read(limit + 1))
    except FileNotFoundError:
        raise FileError(path, None, None, missing(path)) from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise FileError(path, None, None, f"cannot be read: {reason}") from None
    except ValueError:  # a NUL character, or what the file system's encoding cannot express
        raise FileError(repr(path), None, None, "no file can have this name") from None
    if data is None:
        raise FileError(path, None, None, "cannot be read: it holds nothing yet")
    if len(data) > limit:
        raise FileError(path, None, None, too_large(max(facts.st_size, len(data))))
    return data


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting, as a pipe makes one wait, or a file of the kernel's (/proc/kmsg)."""
    import os

    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))


def _refuse_special(path: str, mode: int) -> None:
    import stat

    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise FileError(path, None, None, f"expected a file; this is {kind}")
