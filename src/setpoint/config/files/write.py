"""Writing human-readable JSON, TOML and YAML."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ..words.errors import SetpointError
from ..words.plain_data import (
    HALF_PAIR,
    MAX_BITS,
    MAX_DEPTH,
    MAX_DIGITS,
    TOO_DEEP,
    children,
    is_text,
)
from ..words.text import quoted
from .file_document import is_list, is_mapping

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..words.names import Path

    Comments = Mapping[Path, str]

WIDTH = 100  # columns; longer lists are written over several lines
_STEP = "  "
# Words that some YAML reader, old or new, does not read as text.
_YAML_WORDS = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))
_YAML_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_/")
_YAML_PLAIN = _YAML_LETTERS | frozenset("0123456789 .+-")
_YAML_NUMBERS = {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}
_MAX_YAML_KEY = 1000  # characters; longer keys need the form `? key`


def remark(comments: list[str]) -> str:
    """Join comments for the end of a line: `"  # one; two"`; empty if there are none.

    Line breaks and unprintable characters become spaces, and duplicates are written once.
    """
    cleaned = ["".join(c if c.isprintable() else " " for c in text) for text in comments]
    texts = dict.fromkeys(" ".join(words.split()) for words in cleaned)
    text = "; ".join(filter(None, texts))
    return f"  # {text}" if text else ""


def checked(value: Any, path: Path = ()) -> Any:
    """Convert data to dicts, lists, strings, numbers and None for the writers.

    Raises:
        SetpointError: no file can represent a value or key; names its path.
    """
    # Subclasses (enums, numpy's float64) have their own `repr`, which must not be written.
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not is_text(value):
            raise _refusal(path, HALF_PAIR)
        return str.__str__(value)
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise _refusal(path, f"a number of more than {MAX_DIGITS} digits cannot be written")
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if not isinstance(value, dict | list | tuple):
        raise _refusal(path, f"a {type(value).__name__} cannot be written")
    if len(path) >= MAX_DEPTH:
        raise _refusal(path, TOO_DEEP)
    items: list[tuple[Any, Any]] = []
    for key, item in children(cast(object, value)):
        if isinstance(value, dict) and not isinstance(key, str):
            raise _refusal(path, f"the key {key!r} is not text")
        items.append((checked(key, path), checked(item, (*path, key))))
    return dict(items) if isinstance(value, dict) else [item for _, item in items]


def _refusal(path: Path, message: str) -> SetpointError:
    shown = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown[:200]).lstrip(".")
    return SetpointError(f"{shown}: {message}" if shown else message)


def write_json(data: Mapping[str, object], comments: Comments | None = None) -> str:
    """Write data as JSON with two-space indents; lists of scalars are on one line if they fit.

    Infinities and NaN, which JSON lacks, become the text `"inf"`, `"-inf"` or `"nan"`.

    Arguments:
        comments: accepted as by the other writers, but ignored, since JSON has no comments.

    Raises:
        SetpointError: no file can represent a value.
    """
    del comments
    return _json(checked(data), "") + "\n"


def _json(value: object, indent: str) -> str:
    inner = indent + _STEP
    if is_mapping(value):
        items = [f"{inner}{quoted(key)}: {_json(item, inner)}" for key, item in value.items()]
        opening, closing = "{", "}"
    elif is_list(value):
        items = [inner + _json(item, inner) for item in value]
        opening, closing = "[", "]"
        flat = f"[{', '.join(item.lstrip() for item in items)}]"
        if len(indent) + len(flat) <= WIDTH and not any(isinstance(i, dict | list) for i in value):
            return flat
    else:
        text = scalar(value)
        return f'"{text}"' if text in ("inf", "-inf", "nan") else text
    body = ",\n".join(items)
    return f"{opening}\n{body}\n{indent}{closing}" if body else opening + closing


def scalar(value: object) -> str:
    """Format a scalar, or an empty list or mapping."""
    if isinstance(value, str):
        return quoted(value)
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def write_toml(data: Mapping[str, object], comments: Comments | None = None) -> str:
    """Write data as TOML: scalars and lists first, then `[tables]` and `[[lists of tables]]`.

    None, which TOML lacks, becomes the text `"null"`. Within a table the order of `data` is kept,
    except that tables follow all other values, as TOML requires.

    Arguments:
        data: the top-level mapping, of dicts, lists, text, numbers, bools and None.
        comments: by path; written at the end of the line on which the value begins.

    Returns:
        the text, equal for equal data, ending in a line break unless empty.

    Raises:
        SetpointError: no file can represent a value.
    """
    writer = _TomlWriter(comments or {})
    writer.table(checked(data), (), "", None, [])
    return "\n".join(writer.lines) + "\n" if writer.lines else ""


class _Writer:
    def __init__(self, comments: Comments) -> None:
        self.lines: list[str] = []
        self._comments = comments

    def _notes(self, path: Path) -> list[str]:
        comment = self._comments.get(path)
        return [] if comment is None else [comment]


class _TomlWriter(_Writer):
    def table(
        self, table: dict[str, object], path: Path, name: str, header: str | None, notes: list[str]
    ) -> None:
        """Format a table and its inner tables; an empty header is omitted.

        A table that contains only tables needs no header: `[a.b]` creates `a`.
        """
        start = len(self.lines)
        tables: list[tuple[Path, str, object]] = []
        for key, value in table.items():
            is_tables = is_list(value) and bool(value) and all(map(is_mapping, value))
            if is_mapping(value) or is_tables:
                inner = f"{name}.{_toml_key(key)}" if name else _toml_key(key)
                tables.append(((*path, key), inner, value))
            else:
                self._entry(_toml_key(key), value, (*path, key))
        filled = len(self.lines) > start or not table
        if header is not None and (notes or filled or header[1] == "["):
            blank = [""] if start else []
            self.lines[start:start] = [*blank, header + remark(notes)]
        for place, inner, value in tables:
            notes = self._notes(place)
            if is_mapping(value):
                self.table(value, place, inner, f"[{inner}]", notes)
            for index, item in enumerate(value if is_list(value) else []):
                if is_mapping(item):
                    item_notes = notes + self._notes((*place, index))
                    self.table(item, (*place, index), inner, f"[[{inner}]]", item_notes)
                    notes = []

    def _entry(self, key: str, value: object, path: Path) -> None:
        """A scalar or a list, on one line if it fits."""
        notes = self._notes(path)
        inner_notes: list[str] = []
        line = f"{key} = {self._inline(value, path, inner_notes)}"
        if len(line) <= WIDTH or not is_list(value):
            self.lines.append(line + remark(notes + inner_notes))
            return
        self.lines.append(f"{key} = [{remark(notes)}")
        for index, item in enumerate(value):
            notes = self._notes((*path, index))
            self.lines.append(f"    {self._inline(item, (*path, index), notes)},{remark(notes)}")
        self.lines.append("]")

    def _inline(self, value: object, path: Path, notes: list[str]) -> str:
        """Format a value on one line, and add comments on its items to `notes`."""
        if not (is_mapping(value) or is_list(value)):
            return '"null"' if value is None else scalar(value)
        items: list[str] = []
        for key, item in children(value):
            notes += self._notes((*path, key))
            text = self._inline(item, (*path, key), notes)
            items.append(text if is_list(value) else f"{_toml_key(key)} = {text}")
        return f"[{', '.join(items)}]" if is_list(value) else f"{{{', '.join(items)}}}"


def _toml_key(key: str) -> str:
    is_bare = key.isascii() and key.replace("-", "_").replace("_", "a").isalnum()
    return key if is_bare else quoted(key)


def write_yaml(data: Mapping[str, object], comments: Comments | None = None) -> str:
    """Write data as YAML 1.2 with two-space indents; lists of scalars are on one line if they fit.

    Text is unquoted only if every reader takes it for text.

    Arguments:
        comments: by path; written at the end of the line on which the value begins.

    Raises:
        SetpointError: no file can represent a value.
    """
    plain = checked(data)
    lines = _YamlWriter(comments or {}).mapping(plain, ()) if plain else ["{}"]
    return "\n".join(lines) + "\n"


class _YamlWriter(_Writer):
    def mapping(self, mapping: dict[str, object], path: Path) -> list[str]:
        lines: list[str] = []
        for key, value in mapping.items():
            written = _yaml_text(key)
            if len(written) > _MAX_YAML_KEY:
                lines.append(f"? {written}")
                written = ""
            lines += self._entry(f"{written}:", value, (*path, key))
        return lines

    def _sequence(self, items: list[object], path: Path) -> list[str]:
        lines: list[str] = []
        for index, item in enumerate(items):
            inner = (*path, index)
            if is_mapping(item) and item and not self._notes(inner):
                block = self.mapping(item, inner)  # begins next to its dash
                lines.append(f"- {block[0]}")
                lines += [f"  {line}" for line in block[1:]]
            else:
                lines += self._entry("-", item, inner)
        return lines

    def _entry(self, head: str, value: object, path: Path) -> list[str]:
        """The lines of one value; the first begins with its key or dash."""
        notes = self._notes(path)
        if is_list(value) and not any(isinstance(item, (dict, list)) for item in value):
            line = f"{head} [{', '.join(_yaml_scalar(item) for item in value)}]"
            if len(line) + 2 * len(path) <= WIDTH or not value:
                for index in range(len(value)):
                    notes += self._notes((*path, index))
                return [line + remark(notes)]
        if is_mapping(value) and value:
            block = self.mapping(value, path)
        elif is_list(value) and value:
            block = self._sequence(value, path)
        else:
            return [f"{head} {_yaml_scalar(value)}{remark(notes)}"]
        return [head + remark(notes), *(f"  {line}" for line in block)]


def _yaml_text(text: str) -> str:
    plain = (
        text[:1] in _YAML_LETTERS
        and _YAML_PLAIN.issuperset(text)
        and not text.endswith(" ")
        and text.lower() not in _YAML_WORDS
    )
    return text if plain else quoted(text)


def _yaml_scalar(value: object) -> str:
    text = _yaml_text(value) if isinstance(value, str) else scalar(value)
    return text if isinstance(value, str) else _YAML_NUMBERS.get(text, text)


WRITERS: dict[str, Callable[[Mapping[str, object], Comments | None], str]] = {
    "toml": write_toml,
    "yaml": write_yaml,
    "json": write_json,
}
"""The writer of each format; see `FORMATS`."""
