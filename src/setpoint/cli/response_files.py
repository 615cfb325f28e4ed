"""Response files: `@args.txt` stands for the arguments in that file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from setpoint.config import SetpointError
from setpoint.config.files.file_document import FileError
from setpoint.config.files.read import read_plain_file
from setpoint.config.layers.flags import Word
from setpoint.config.words.names import can_be_named

MAX_BYTES = 1024 * 1024
"""Bytes of all response files of a command line together."""
MAX_DEPTH = 8
"""Levels of response files that name one another."""
PART = re.compile(
    r"""\\(?P<escaped>.)|"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>[^']*)'|(?P<plain>[^\s"'\\])""",
    re.DOTALL,
)
TOKEN = re.compile(rf"(?P<space>(?:\s|\\\n)+|\#[^\n]*)|(?:{PART.pattern})+", re.DOTALL)


def expand_response_files(
    words: Sequence[str], takes_section: Callable[[str], bool] = lambda word: False
) -> list[str]:
    """Replace the names of response files with the words in them.

    Arguments:
        words: the words of a command line. A word that begins with `@` names a file; in
            `name=@text` it does not begin the word, so nothing is read.
        takes_section: returns True for the flag of a section, after which `@NAME` is a preset.
    """
    left = MAX_BYTES

    def expand(words: Sequence[str], depth: int, folder: str) -> Iterator[str]:
        nonlocal left
        for flag, word in pairwise(["", *words]):
            if not word.startswith("@") or (len(word) > 1 and takes_section(flag)):
                yield word
                continue
            where = f"{word.place}: " if isinstance(word, Word) else ""
            if word == "@":
                raise SetpointError(f"{where}'@' names no file; expected @FILE")
            if depth == MAX_DEPTH:
                raise SetpointError(
                    f"{where}response files are read {MAX_DEPTH} levels deep; does one name itself?"
                )
            name = os.path.normpath(os.path.join(folder, os.path.expanduser(word[1:])))
            data = _read_response(name, word, where, left)
            left -= len(data)
            try:
                text = data.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise SetpointError(f"{where}{name}: not UTF-8: {error.reason}") from None
            yield from expand(split(text, name), depth + 1, os.path.dirname(name))

    return list(expand(words, 0, os.curdir))


def _read_response(name: str, word: str, where: str, limit: int) -> bytes:
    if not can_be_named(word):
        raise SetpointError(f"{where}{word!r} is not a valid file name")
    missing = (
        f"there is no such response file; a value that begins with '@' is written after an equals "
        f"sign, as in --section.field={word}"
    )
    too_large = f"response files of more than {MAX_BYTES} bytes in all are not read"
    try:
        return read_plain_file(name, limit, lambda _: too_large, lambda _: missing)
    except FileError as error:
        raise SetpointError(f"{where}{error}") from None


def split(text: str, name: str) -> list[Word]:
    """Split the text of a response file into words, as a POSIX shell would.

    Both kinds of quotes group words, a backslash escapes the next character or joins two lines, and
    `#` at the beginning of a word starts a comment. `shlex` would also start a comment at `#`
    inside a word, and reports no line numbers.
    """
    text = text.replace("\r\n", "\n")
    words: list[Word] = []
    index, line, counted = 0, 1, 0
    while index < len(text):
        match = TOKEN.match(text, index)
        start, index = index, match.end() if match else index
        if match and match["space"]:
            continue
        line += text.count("\n", counted, start)
        counted, place = start, f"{name}:{line}"
        character = text[index : index + 1]
        if character == "\\":
            raise SetpointError(f"{place}: the backslash at the end of the file escapes nothing")
        if character in ('"', "'"):
            raise SetpointError(f"{place}: the word that begins here is not closed by {character}")
        word = "".join(map(_unquoted, PART.finditer(text[start:index])))
        if not can_be_named(word):
            raise SetpointError(f"{word!r}: a zero byte is not part of an argument")
        words.append(Word(word, place))
    return words


def _unquoted(part: re.Match[str]) -> str:
    if part["double"] is not None:
        # Between double quotes a backslash escapes only these; otherwise it is literal.
        return re.sub(r'\\(["\\$`])|\\\n', lambda match: match[1] or "", part["double"])
    if part["single"] is not None:
        return part["single"]
    return part["plain"] or (part["escaped"] or "").replace("\n", "")
