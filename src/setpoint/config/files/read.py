"""Reading one configuration file, whatever its format: opening, decoding and parsing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ..words.names import nearest
from .file_document import FORMATS, MAX_BYTES, MIB, FileDocument, FileError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .file_document import Format


def read_file(path: str) -> FileDocument:
    """Read a file in the format of its suffix; errors show its name as given.

    Raises:
        FileError: the file is missing, not a plain file, not readable, or not in that format.
    """
    import os

    format = FORMATS.get(os.path.splitext(path)[1].lower())
    if format is None:
        message = f"expected a file name ending in {', '.join(FORMATS)}"
        if path.startswith(("/dev/", "/proc/")):
            message += "; --config-from-stdin reads standard input"
        raise FileError(path, None, None, message)
    data = read_plain_file(path, MAX_BYTES[format], lambda size: _too_large(size, format), _missing)
    return parse(decode(data, format, path), format, path)


def parse_bytes(data: bytes, format: Format, name: str) -> FileDocument:
    """Read bytes, for example from standard input.

    Raises:
        FileError: the data is not UTF-8 or not in that format, or exceeds a limit.
    """
    return parse(decode(data, format, name), format, name)


def parse(text: str, format: Format, name: str) -> FileDocument:
    """Read decoded text.

    Raises:
        FileError: the text is not in that format, or exceeds a limit.
    """
    # Readers are imported on first use.
    if format == "toml":
        from .toml import parse_toml

        return parse_toml(text, name)
    if format == "yaml":
        from .yaml import parse_yaml

        return parse_yaml(text, name)
    from .json import parse_json

    return parse_json(text, name)


def _too_large(size: int, format: Format) -> str:
    limit = f"at most {MAX_BYTES[format] / MIB:g} MiB of {format.upper()} are read"
    return f"the file has {size} bytes; {limit}"


def _missing(path: str) -> str:
    """Explain that there is no such file, and suggest the nearest name."""
    import os

    if os.path.islink(path):
        return f"no such file: it is a broken link to '{os.readlink(path)}'"
    folder = os.path.dirname(path)
    if folder and not os.path.isdir(folder):
        return f"no such file; there is no directory '{folder}'"
    return f"no such file{similar_file(path)}"


def similar_file(path: str) -> str:
    """A "Did you mean" hint for a similar name in the folder; empty if there is none.

    For a configuration file, other files of such formats, but no JSON that is not an object: data.
    """
    import os

    folder, name = os.path.split(path)
    stem, suffix = os.path.splitext(name)
    try:
        names = sorted(os.listdir(folder or "."), reverse=True)
    except OSError:
        return ""
    if suffix.lower() in FORMATS:
        names = [other for other in names if _may_be_config(os.path.join(folder, other))]
    stems = {os.path.splitext(other)[0]: other for other in names}
    close = nearest(stem, stems, 1, 0.6)
    return f". Did you mean {os.path.join(folder, stems[close[0]])}?" if close else ""


def _may_be_config(path: str) -> bool:
    """True if a file has the suffix of a format, and can be a mapping."""
    import os

    format = FORMATS.get(os.path.splitext(path)[1].lower())
    if format != "json" or not os.path.isfile(path):
        return format is not None
    try:
        with open(path, "rb") as file:
            return file.read(1024).lstrip().startswith(b"{")
    except OSError:
        return False


def read_plain_file(
    path: str, limit: int, too_large: Callable[[int], str], missing: Callable[[str], str]
) -> bytes:
    """Read a file that is not a directory, pipe, socket or device, and not too large.

    Raises:
        FileError: the file is missing, not a plain file, too large, or cannot be read.
    """
    import os

    try:
        _refuse_special(path, os.stat(path).st_mode)
        with open(path, "rb", opener=_open_unblocked) as file:
            facts = os.fstat(file.fileno())
            _refuse_special(path, facts.st_mode)  # it may have been replaced meanwhile
            data = cast("bytes | None", file.read(limit + 1))
    except FileNotFoundError:
        raise FileError(path, None, None, missing(path)) from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise FileError(path, None, None, f"cannot be read: {reason}") from None
    except ValueError:  # a NUL or a character outside the file system's encoding
        raise FileError(repr(path), None, None, "not a valid file name") from None
    if data is None:
        raise FileError(path, None, None, "cannot be read: no data has arrived yet")
    if len(data) > limit:
        raise FileError(path, None, None, too_large(max(facts.st_size, len(data))))
    return data


def _open_unblocked(path: str, flags: int) -> int:
    """Open a file without blocking, as pipes and files such as /proc/kmsg would."""
    import os

    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))


def _refuse_special(path: str, mode: int) -> None:
    import stat

    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise FileError(path, None, None, f"expected a file; this is {kind}")


def decode(data: bytes, format: Format, name: str) -> str:
    """Decode UTF-8; a byte order mark is removed, and line ends are kept.

    Raises:
        FileError: the data is too large or not UTF-8.
    """
    if len(data) > MAX_BYTES[format]:
        raise FileError(name, None, None, _too_large(len(data), format))
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        start = error.start
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        message = "the file is UTF-16; save it as UTF-8"
        raise FileError(name, 1, 1, message)
    line_start = data.rfind(b"\n", 0, start) + 1
    column = len(data[line_start:start].decode("utf-8").removeprefix("\ufeff")) + 1
    message = f"the byte 0x{data[start]:02x} at offset {start} is not UTF-8; save the file as UTF-8"
    raise FileError(name, data.count(b"\n", 0, start) + 1, column, message)
