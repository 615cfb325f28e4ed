"""Response files: `@args.txt` stands for the arguments in that file."""

from __future__ import annotations

import os
import re
import shlex
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
                raise SetpointError(f"{where}'@' is not followed by a file name; expected @FILE")
            if depth == MAX_DEPTH:
                raise SetpointError(
                    f"{where}response files can be nested at most {MAX_DEPTH} levels deep; does "
                    f"one include itself?"
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
        f"there is no such response file; write a value that begins with '@' after an equals "
        f"sign, as in --section.field={word}"
    )
    too_large = f"response files may have at most {MAX_BYTES} bytes in total"
    try:
        return read_plain_file(name, limit, lambda _: too_large, lambda _: missing)
    except FileError as error:
        raise SetpointError(f"{where}{error}") from None


def split(text: str, name: str) -> list[Word]:
    """Split each line of a response file into words, as a POSIX shell would.

    A backslash at the end of a line is ignored, since words follow one another across lines anyway;
    no word continues on the next line.
    """
    words: list[Word] = []
    for number, (line, following) in enumerate(pairwise([*text.split("\n"), ""]), 1):
        place = f"{name}:{number}"
        try:
            parts = _parts(line.strip(), following)
        except ValueError as error:
            raise SetpointError(f"{place}: {str(error).lower()}") from None
        words += [Word(word, place) for word in parts]
    for word in words:
        if not can_be_named(word):
            raise SetpointError(f"{word!r}: an argument cannot contain a null byte")
    return words


def _parts(line: str, following: str) -> list[str]:
    for comment in re.finditer(r"(?:^|\s)#", line):
        try:
            return shlex.split(line[: comment.start()])
        except ValueError:
            continue  # this `#` is quoted
    if (len(line) - len(line.rstrip("\\"))) % 2:
        line = line[:-1]
        if line[-1:].strip() and following[:1].strip():
            raise ValueError("a word cannot continue on the next line; put a space before the \\")
    return shlex.split(line)
