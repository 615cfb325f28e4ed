"""Files of arguments on the command line: `@args.txt` stands for the words in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from setpoint.config import (
    FileError,
    SetpointError,
    Word,
    can_be_named,
    read_plain_file,
    short_name,
)

MAX_BYTES = 1024 * 1024  # of one file
MAX_FILES = 100  # named by one command line, counted each time
MAX_NESTING = 8  # files that name one another
MAX_WORDS = 100_000  # in all


def expand_responses(
    words: Sequence[str], takes_section: Callable[[str], bool] = lambda word: False
) -> list[str]:
    """Put the words of response files in the place of their names.

    Arguments:
        words: of a command line. One that begins with `@` names a file; in `name=@text` it does
            not begin the word, and nothing is read.
        takes_section: whether a word is a flag of a section, so that `@NAME` behind it is a preset.

    Raises:
        SetpointError: for a file that cannot be read, names itself, or breaks a limit.
    """
    return list(_Expansion(takes_section).words(words, (), os.curdir))


class _Expansion:
    def __init__(self, takes_section: Callable[[str], bool]) -> None:
        self.takes_section = takes_section
        self.files = 0
        self.count = 0

    def words(self, words: Sequence[str], above: tuple[str, ...], folder: str) -> Iterator[str]:
        before = ""
        for word in words:
            flag, before = before, word
            if word.startswith("@") and not (len(word) > 1 and self.takes_section(flag)):
                yield from self.file(word, above, folder)
                continue
            self.count += 1
            if self.count > MAX_WORDS:
                raise SetpointError(f"{_where(word)}more than {MAX_WORDS} words are not read")
            yield word

    def file(self, word: str, above: tuple[str, ...], folder: str) -> Iterator[str]:
        """The words of one file; a relative name is looked for beside the file that names it."""
        if not can_be_named(word):
            raise SetpointError(f"{_where(word)}{word!r} is not a valid file name")
        name = os.path.normpath(os.path.join(folder, os.path.expanduser(word[1:])))
        if word == "@":
            raise SetpointError(f"{_where(word)}'@' names no file; expected @FILE")
        self.files += 1
        if self.files > MAX_FILES:
            raise SetpointError(f"{_where(word)}more than {MAX_FILES} response files are not read")
        real = os.path.realpath(name)
        if real in above:
            chain = " -> ".join(short_name(file) for file in (*above, real))
            raise SetpointError(f"{_where(word)}the response file {name} names itself: {chain}")
        if len(above) >= MAX_NESTING:
            message = f"response files inside one another are read {MAX_NESTING} levels deep"
            raise SetpointError(f"{_where(word)}{message}")
        try:
            data = read_plain_file(name, MAX_BYTES, _too_large, lambda _: _missing(word))
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise SetpointError(f"{_where(word)}{name}: not UTF-8: {error.reason}") from None
        except FileError as error:
            raise SetpointError(f"{_where(word)}{error}") from None
        yield from self.words(split(text, name), (*above, real), os.path.dirname(name))


def _where(word: str) -> str:
    return f"{word.place}: " if isinstance(word, Word) else ""


def _too_large(size: int) -> str:
    return f"the response file holds {size} bytes; at most 1 MiB is read"


def _missing(word: str) -> str:
    return (
        f"there is no such response file; a value that begins with '@' is written after an equals "
        f"sign, as in --section.field={word}"
    )


def split(text: str, name: str) -> list[Word]:
    """Split a text into words as a POSIX shell does; nothing in it is expanded or run.

    Quotes of both kinds group, a backslash takes the next sign as it is, and `#` at the beginning
    of a word makes the rest of the line a comment.

    Raises:
        SetpointError: for a quote that is not closed, or a backslash at the very end.
    """
    return list(_Splitter(text, name).words())


class _Splitter:
    def __init__(self, text: str, name: str) -> None:
        # A backslash before the end of a line joins the lines, also on Windows.
        self.text = text.replace("\r\n", "\n")
        self.name = name
        self.at = 0
        self.line = 1

    def words(self) -> Iterator[Word]:
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign in " \t\n":
                self._step()
            elif sign == "#":
                end = self.text.find("\n", self.at)
                self.at = end if end >= 0 else len(self.text)
            elif self.text.startswith("\\\n", self.at):
                self._step(2)
            else:
                place = f"{self.name}:{self.line}"
                yield Word(self._word(place), place)

    def _step(self, count: int = 1) -> str:
        passed = self.text[self.at : self.at + count]
        self.at += len(passed)
        self.line += passed.count("\n")
        return passed

    def _word(self, place: str) -> str:
        parts: list[str] = []
        while self.at < len(self.text) and self.text[self.at] not in " \t\n":
            sign = self._step()
            if sign == "\\":
                parts.append(self._escaped(place))
            elif sign in "\"'":
                parts.append(self._quoted(sign, place))
            else:
                parts.append(sign)
        return "".join(parts)

    def _escaped(self, place: str) -> str:
        sign = self._step()
        if not sign:
            raise SetpointError(f"{place}: the backslash at the end of the file escapes nothing")
        return "" if sign == "\n" else sign

    def _quoted(self, quote: str, place: str) -> str:
        parts: list[str] = []
        while self.at < len(self.text):
            sign = self._step()
            if sign == quote:
                return "".join(parts)
            # Between double quotes a backslash escapes only these; elsewhere it is itself.
            if (
                sign == "\\"
                and quote == '"'
                and self.text[self.at : self.at + 1] in tuple('"\\$`\n')
            ):
                sign = self._escaped(place)
            parts.append(sign)
        raise SetpointError(f"{place}: the word that begins here is not closed by {quote}")
