"""The one error of the readers."""

from __future__ import annotations

from ..errors import SetpointError


class FileError(SetpointError):
    """A file that cannot be read, and where in it the trouble lies.

    Arguments:
        name: the file as it is shown to people.
        line: the line, counted from 1, or None where the trouble is the file as a whole.
        column: the column in characters, counted from 1, or None.
        message: what is wrong and what was expected.
    """

    def __init__(self, name: str, line: int | None, column: int | None, message: str) -> None:
        place = name if line is None else f"{name}:{line}:{1 if column is None else column}"
        super().__init__(f"{place}: {message}")
        self.name = name
        self.line = line
        self.column = column
        self.message = message

    def __reduce__(self) -> tuple[type[FileError], tuple[str, int | None, int | None, str]]:
        # `Exception` would call the class with the finished text alone, in another process too.
        return type(self), (self.name, self.line, self.column, self.message)


def error_at(name: str, text: str, offset: int, message: str) -> FileError:
    """The error for one character of a text.

    Arguments:
        name: the file as it is shown to people.
        text: the whole text.
        offset: the character, counted from 0; the length of the text means its end.
        message: what is wrong and what was expected.

    Returns:
        the error, to be raised by the caller.
    """
    line = text.count("\n", 0, offset) + 1
    return FileError(name, line, offset - text.rfind("\n", 0, offset), message)


def describe(text: str, offset: int) -> str:
    """What stands at one place of a text, in words for an error.

    Arguments:
        text: the whole text.
        offset: the character, counted from 0.

    Returns:
        for instance `'='`, `'NaN'`, `the end of the line` or `the end of the file`.
    """
    if offset >= len(text):
        return "the end of the file"
    end = offset
    while end < len(text) and end - offset < 20 and (text[end].isalnum() or text[end] in "_-"):
        end += 1
    found = text[offset : max(end, offset + 1)]
    if found in "\r\n":
        return "the end of the line"
    if found == "'":
        return '"\'"'
    return f"'{found}'" if found.isprintable() else f"the character U+{ord(found[0]):04X}"


def named(key: str) -> str:
    """A key as an error shows it: one line, in quotes, no longer than a person reads.

    Arguments:
        key: any text.

    Returns:
        the key in single quotes, shortened and escaped where needed.
    """
    short = key if len(key) <= 60 else key[:57] + "..."
    return f"'{short}'" if short.isprintable() else repr(short)
