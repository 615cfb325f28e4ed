"""What is wrong with a TOML text, in words: the standard library finds it, this explains it."""

from __future__ import annotations

from .error import FileError, describe, named
from .toml_scan import scan_toml

# By how the standard library's message begins; `{}` is what stands at that place.
_WORDS = {
    "Invalid statement": "expected a key, a [table] or a comment, found {}",
    "Expected newline or end of document": "expected the end of the line, found {}",
    "Expected '=' after a key": "expected '=' after the key, found {}",
    "Expected ']' at the end": "expected ']' after the name of the table, found {}",
    "Expected ']]' at the end": "expected ']]' after the name of the list, found {}",
    "Invalid initial character for a key": "expected a key, found {}",
    "Invalid value": "expected a value, found {}",
    "Unclosed array": "expected ',' or ']' in the list, found {}",
    "Unclosed inline table": "expected ',' or '}}' in the inline table, found {}",
    "Unterminated string": "expected the closing quotes of a text, found {}",
    'Expected "\'"': "expected the closing quote of a text, found {}",
    "Unescaped '\\'": 'expected one of \\b \\t \\n \\f \\r \\" \\\\ \\u \\U after a backslash',
    "Invalid hex value": "expected hexadecimal digits after \\u or \\U, found {}",
    "Escaped character is not": "expected the code of a character after \\u or \\U",
    "Found invalid character": "{} may not stand here",
    "Invalid date or datetime": "expected a value, found a date that does not exist",
    "Cannot ": "a key or table is given twice",
    "Duplicate inline table key": "a key is given twice",
}


def explain(text: str, name: str, message: str) -> FileError:
    """Turn an error of the standard library into one that says where and what was expected.

    Arguments:
        text: the whole text, which is not TOML.
        name: the file as it is shown to people.
        message: what the standard library says, its position at the end.

    Returns:
        the error, to be raised by the caller.
    """
    problem, place = _split(message)
    lines = text.split("\n")
    line, column = place or (len(lines), len(lines[-1]) + 1)
    start = sum(len(before) + 1 for before in lines[: line - 1])
    duplicate = scan_toml(text)[1]
    # Reading stops at the first error; a key given twice before that place therefore is the error.
    if duplicate is not None and duplicate.second <= start + column - 1:
        first = text.count("\n", 0, duplicate.first) + 1
        line = text.count("\n", 0, duplicate.second) + 1
        column = duplicate.second - text.rfind("\n", 0, duplicate.second)
        words = f"{named(duplicate.key)} is given twice; first on line {first}"
        return FileError(name, line, column, words)
    found = describe(text, start + column - 1)
    if problem.startswith("Illegal character"):
        if found == "the end of the line":
            words = "expected the closing quote of a text before the end of the line"
            return FileError(name, line, column, words)
        return FileError(name, line, column, f"{found} must be written as an escape")
    for beginning, template in _WORDS.items():
        if problem.startswith(beginning):
            hint = _hint(found) if beginning == "Invalid value" else ""
            return FileError(name, line, column, template.format(found) + hint)
    return FileError(name, line, column, f"not valid TOML: {problem}")


def _hint(found: str) -> str:
    word = found.strip("'").lower()
    if found[0] != "'" or not word[:1].isalpha():
        return ""
    if word in ("true", "false"):
        return f"; write {word}"
    return '; write "null" in quotes' if word in ("null", "none") else "; text needs quotes"


def _split(message: str) -> tuple[str, tuple[int, int] | None]:
    """`"what (at line 3, column 4)"`, or `"what (at end of document)"`, taken apart."""
    problem, _, place = message.rpartition(" (at ")
    words = place.rstrip(")").replace(",", "").split()
    if len(words) == 4 and words[0] == "line" and words[1].isdigit() and words[3].isdigit():
        return problem, (int(words[1]), int(words[3]))
    return problem or message, None
