"""A configuration file that arrives on standard input."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, TextIO, cast

from setpoint.cli.options import Arguments
from setpoint.config import MAX_BYTES, SetpointError, parse_bytes

if TYPE_CHECKING:
    from setpoint.config import Document, Format

NAME = "stdin"
FORMATS = ("toml", "yaml", "json")


@functools.lru_cache(maxsize=1)
def _read(stream: TextIO, most: int) -> bytes:
    """What arrives, kept for a command that opens its source several times, as a sweep does."""
    return stream.buffer.read(most)


def read_standard_input(arguments: Arguments) -> Document:
    """Read one configuration file from standard input; its origins are `stdin:LINE:COLUMN`.

    Arguments:
        arguments: of the call; `--stdin-format` says the format, otherwise the first sign does:
            `{` begins JSON, anything else TOML.

    Raises:
        SetpointError: nothing arrives there, or it is not of that format.
    """
    given = arguments.value("--stdin-format")
    if given is not None and given not in FORMATS:
        raise SetpointError(f"--stdin-format is one of {', '.join(FORMATS)}, got {given!r}")
    title = arguments.command.title
    if sys.stdin is None or sys.stdin.closed:  # as a service has it, or after `<&-`
        raise SetpointError("standard input is closed, so no configuration can be read from it")
    if sys.stdin.isatty():
        raise SetpointError(
            f"standard input is a terminal, where no configuration waits; send a file there, as "
            f"in: {title} - < exp.toml"
        )
    try:
        # Up to the largest limit: that of the format is checked once the format is known.
        data = _read(sys.stdin, max(MAX_BYTES.values()) + 1)
    except OSError as error:
        raise SetpointError(f"standard input cannot be read: {error.strerror}") from None
    if not data.strip():
        raise SetpointError(
            "standard input is empty, so there is no configuration in it; of several processes "
            "only one can read it"
        )
    begin = data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    format = cast("Format", given) if given else ("json" if begin == b"{" else "toml")
    try:
        return parse_bytes(data, format, NAME)
    except SetpointError as error:
        # The error itself stays; only it knows what to look at.
        if given is not None or format != "toml" or not _is_yaml(data):
            raise
        raise SetpointError(
            f"{error}. It was read as TOML; is it YAML? Then say --stdin-format yaml"
        ) from None


def _is_yaml(data: bytes) -> bool:
    """Whether the first line that says anything looks as YAML does: `key:` or `- item`."""
    for line in data.decode("utf-8", "replace").splitlines():
        text = line.partition("#")[0].strip()
        if text and not text.startswith("%"):
            word, colon, rest = text.partition(":")
            key = word.replace("_", "").replace("-", "").replace(".", "").isalnum()
            return text.startswith(("---", "- ")) or bool(colon and key and rest[:1] in ("", " "))
    return False
