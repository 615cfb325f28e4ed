"""Writing YAML 1.2 that people can read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .document import is_list, is_mapping
from .write_common import WIDTH, plain_data, quoted, remark

# Words that this or another reader of YAML, old or new, takes for something else than text.
_WORDS = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))
_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_/")
_PLAIN = _LETTERS | frozenset("0123456789 .+-")
_NUMBERS = {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}
_MAX_KEY = 1000  # characters; longer keys need the form `? key`

if TYPE_CHECKING:
    from collections.abc import Mapping

    Path = tuple[str | int, ...]
    Comments = Mapping[Path, str]


def write_yaml(
    data: Mapping[str, object], comments: Mapping[tuple[str | int, ...], str] | None = None
) -> str:
    """Write data as YAML 1.2, two spaces a level, with lists of scalars on one line where they fit.

    Text stands without quotes only where every reader takes it for text.

    Arguments:
        comments: by path; written at the end of the line on which the value begins.

    Raises:
        SetpointError: a value that no file can hold.
    """
    plain = plain_data(data)
    lines = _Writer(comments or {}).mapping(plain, ()) if plain else ["{}"]
    return "\n".join(lines) + "\n"


class _Writer:
    def __init__(self, comments: Comments) -> None:
        self._comments = comments

    def mapping(self, mapping: dict[str, object], path: Path) -> list[str]:
        lines: list[str] = []
        for key, value in mapping.items():
            written = _text(key)
            if len(written) > _MAX_KEY:
                lines.append(f"? {written}")
                written = ""
            lines += self._entry(f"{written}:", value, (*path, key))
        return lines

    def _sequence(self, items: list[object], path: Path) -> list[str]:
        lines: list[str] = []
        for index, item in enumerate(items):
            inner = (*path, index)
            if is_mapping(item) and item and not self._own(inner):
                block = self.mapping(item, inner)  # begins beside its dash
                lines.append(f"- {block[0]}")
                lines += [f"  {line}" for line in block[1:]]
            else:
                lines += self._entry("-", item, inner)
        return lines

    def _entry(self, head: str, value: object, path: Path) -> list[str]:
        """The lines of one value, the first of which begins with its key or dash."""
        notes = self._own(path)
        if is_list(value) and not any(isinstance(item, (dict, list)) for item in value):
            line = f"{head} [{', '.join(_scalar(item) for item in value)}]"
            if len(line) + 2 * len(path) <= WIDTH or not value:
                for index in range(len(value)):
                    notes += self._own((*path, index))
                return [line + remark(notes)]
        if is_mapping(value) and value:
            block = self.mapping(value, path)
        elif is_list(value) and value:
            block = self._sequence(value, path)
        else:
            return [f"{head} {_scalar(value)}{remark(notes)}"]
        return [head + remark(notes), *(f"  {line}" for line in block)]

    def _own(self, path: Path) -> list[str]:
        comment = self._comments.get(path)
        return [] if comment is None else [comment]


def _text(text: str) -> str:
    plain = (
        text[:1] in _LETTERS
        and _PLAIN.issuperset(text)
        and not text.endswith(" ")
        and text.lower() not in _WORDS
    )
    return text if plain else quoted(text)


def _scalar(value: object) -> str:
    if isinstance(value, str):
        return _text(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if is_mapping(value) or is_list(value):  # an empty one
        return "{}" if is_mapping(value) else "[]"
    text = repr(value)
    return _NUMBERS.get(text, text)
