"""Writing JSON, TOML and YAML that people can read."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ..words.errors import SetpointError
from ..words.plain_data import HALF_PAIR, MAX_DEPTH, MAX_DIGITS, TOO_DEEP, is_text
from ..words.text import quoted
from .document import is_list, is_mapping

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Path = tuple[str | int, ...]
    Comments = Mapping[Path, str]

WIDTH = 100  # columns; a longer list is written over several lines
_MAX_BITS = 14_284  # every number of so few bits has at most MAX_DIGITS digits


class Unplain(Exception):
    """A value that `plain_data` has to see: one to be refused, or of a class derived from str."""


def quoted_text(text: str) -> str:
    """A text in double quotes, or `Unplain` for one that no file can hold."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    if not is_text(text):
        raise Unplain
    return quoted(text)


def _digits(value: int) -> str:
    if value.bit_length() > _MAX_BITS:
        raise Unplain
    return repr(value)


# How the scalars that are written alike in JSON and TOML are written, by their exact class.
SCALARS: dict[type, Callable[[Any], str]] = {
    str: quoted_text,
    int: _digits,
    bool: lambda value: "true" if value else "false",
    float: repr,
}


def remark(comments: list[str]) -> str:
    """Comments as they stand at the end of a line.

    Arguments:
        comments: texts, in order; line breaks and what cannot be printed become spaces. What is
            said twice is written once.

    Returns:
        `"  # one; two"`, or the empty string if nothing is left to say.
    """
    cleaned = ["".join(c if c.isprintable() else " " for c in text) for text in comments]
    texts = dict.fromkeys(" ".join(words.split()) for words in cleaned)
    text = "; ".join(filter(None, texts))
    return f"  # {text}" if text else ""


def plain_data(data: Mapping[str, object]) -> dict[str, object]:
    """Hold what is to be written to what files can hold, so that the writers need not ask again.

    Arguments:
        data: the top level mapping; below it dicts, lists, tuples, text, numbers, bools and None.

    Raises:
        SetpointError: a value or key that no file can hold, named with its path.
    """
    return _mapping(data, ())


def _mapping(data: Mapping[Any, object], path: Path) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in data.items():
        if not isinstance(key, str):
            raise _refusal(path, f"the key {key!r} is not text")
        if not is_text(key):
            raise _refusal(path, HALF_PAIR)
        result[str.__str__(key)] = _value(value, (*path, key))
    return result


def _value(value: Any, path: Path) -> object:
    # Subclasses (enums, numpy's float64) have a `repr` of their own, which is not to be written.
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not is_text(value):
            raise _refusal(path, HALF_PAIR)
        return str.__str__(value)
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise _refusal(path, f"a number of more than {MAX_DIGITS} digits cannot be written")
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, (dict, list, tuple)):
        if len(path) >= MAX_DEPTH:
            raise _refusal(path, TOO_DEEP)
        if isinstance(value, dict):
            return _mapping(value, path)  # pyright: ignore[reportUnknownArgumentType]
        items: list[object] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        return [_value(item, (*path, index)) for index, item in enumerate(items)]
    raise _refusal(path, f"a {type(value).__name__} cannot be written")


def _refusal(path: Path, message: str) -> SetpointError:
    shown = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown[:200]).lstrip(".")
    return SetpointError(f"{shown}: {message}" if shown else message)


_STEP = "  "


def write_json(
    data: Mapping[str, object], comments: Mapping[tuple[str | int, ...], str] | None = None
) -> str:
    """Write data as JSON, two spaces a level, with lists of scalars on one line where they fit.

    Infinities and NaN, which JSON has not, become the text `"inf"`, `"-inf"` or `"nan"`.

    Arguments:
        comments: taken like those of the other writers and left out, since JSON has none.

    Raises:
        SetpointError: a value that no file can hold.
    """
    del comments
    try:
        return _json_container(data, "") + "\n"
    except Unplain:
        return _json_container(plain_data(data), "") + "\n"


def _json_container(value: Any, indent: str) -> str:
    if len(indent) >= _DEEPEST:
        raise Unplain
    inner = indent + _STEP
    cls: type = value.__class__
    if cls is dict:
        items: list[str] = []
        for key, item in value.items():
            if key.__class__ is not str:
                raise Unplain
            write = _JSON.get(item.__class__)
            text = _json_container(item, inner) if write is None else write(item)
            items.append(f"{inner}{_json_key(key)}: {text}")
        opening, closing = "{", "}"
    elif cls is list or cls is tuple:
        items, deep = [], False
        for item in value:
            write = _JSON.get(item.__class__)
            deep = deep or write is None
            items.append(_json_container(item, inner) if write is None else write(item))
        if not deep:
            flat = f"[{', '.join(items)}]"
            if len(indent) + len(flat) <= WIDTH:
                return flat
        items = [inner + item for item in items]
        opening, closing = "[", "]"
    else:
        raise Unplain
    body = ",\n".join(items)
    return f"{opening}\n{body}\n{indent}{closing}" if body else opening + closing


def _json_float(value: float) -> str:
    text = repr(value)
    return f'"{text}"' if text[-1].isalpha() else text  # inf, -inf, nan


_json_key = lru_cache(4096)(quoted_text)  # sections of one class repeat the names of their fields
_JSON: dict[type, Callable[[Any], str]] = {
    **SCALARS,
    float: _json_float,
    type(None): lambda value: "null",
}
_DEEPEST = MAX_DEPTH * len(_STEP)


def write_toml(
    data: Mapping[str, object], comments: Mapping[tuple[str | int, ...], str] | None = None
) -> str:
    """Write data as TOML: scalars and lists first, then `[tables]` and `[[lists of tables]]`.

    None, which TOML has not, becomes the text `"null"`. Within a table the order of `data` is kept,
    except that tables follow what is not one, as TOML demands.

    Arguments:
        data: the top level mapping, of dicts, lists, text, numbers, bools and None.
        comments: by path; written at the end of the line on which the value begins.

    Returns:
        the text, the same for the same data, ending in a line break unless empty.

    Raises:
        SetpointError: a value that no file can hold.
    """
    try:
        lines = _TomlWriter(comments or {}).whole(data)
    except Unplain:
        lines = _TomlWriter(comments or {}).whole(plain_data(data))
    return "\n".join(lines) + "\n" if lines else ""


class _TomlWriter:
    def __init__(self, comments: Comments) -> None:
        self.lines: list[str] = []
        self._comments = comments

    def whole(self, data: Any) -> list[str]:
        """The lines of the top level."""
        if data.__class__ is not dict:
            raise Unplain
        self._table(data, (), "", None, [])
        return self.lines

    def _table(
        self, table: dict[Any, Any], path: Path, name: str, header: str | None, notes: list[str]
    ) -> None:
        """A table with the tables inside; `header` if it has one, left out where that says nothing.

        A table of nothing but tables needs no line of its own: `[a.b]` makes `a`.
        """
        at = len(self.lines)
        tables: list[tuple[str, str, Any]] = []
        for key, value in table.items():
            if key.__class__ is not str:
                raise Unplain
            write = _TOML.get(value.__class__)
            if write is not None:
                line = f"{_toml_key(key)} = {write(value)}"
                self.lines.append(
                    line + remark(self._own((*path, key))) if self._comments else line
                )
            elif value.__class__ is dict or _is_table_list(value):
                tables.append((key, f"{name}.{_toml_key(key)}" if name else _toml_key(key), value))
            else:
                self._long(_toml_key(key), value, (*path, key))
        if header is not None and (notes or not table or len(self.lines) > at or header[1] == "["):
            self.lines[at:at] = ["", header + remark(notes)] if at else [header + remark(notes)]
        for key, inner, value in tables:
            here = (*path, key)
            if len(here) >= MAX_DEPTH:
                raise Unplain
            if value.__class__ is dict:
                self._table(value, here, inner, f"[{inner}]", self._own(here))
                continue
            notes = self._own(here)
            for index, item in enumerate(value):
                place = (*here, index)
                self._table(item, place, inner, f"[[{inner}]]", notes + self._own(place))
                notes = []

    def _long(self, key: str, value: Any, path: Path) -> None:
        """A list, or a mapping inside one, on one line if it fits."""
        notes = self._own(path)
        inner_notes: list[str] = []
        line = f"{key} = {self._inline(value, path, inner_notes)}"
        if len(line) <= WIDTH or not value:
            self.lines.append(line + remark(notes + inner_notes))
            return
        self.lines.append(f"{key} = [{remark(notes)}")
        for index, item in enumerate(value):
            item_path = (*path, index)
            notes = self._own(item_path)
            self.lines.append(f"    {self._inline(item, item_path, notes)},{remark(notes)}")
        self.lines.append("]")

    def _inline(self, value: Any, path: Path, notes: list[str]) -> str:
        """A value on one line; the comments on what is inside it are added to `notes`."""
        cls: type = value.__class__
        write = _TOML.get(cls)
        if write is not None:
            return write(value)
        if len(path) >= MAX_DEPTH:
            raise Unplain
        items: list[str] = []
        if cls is dict:
            for key, item in value.items():
                if key.__class__ is not str:
                    raise Unplain
                notes += self._own((*path, key))
                items.append(f"{_toml_key(key)} = {self._inline(item, (*path, key), notes)}")
            return f"{{{', '.join(items)}}}"
        if cls is not list and cls is not tuple:
            raise Unplain
        for index, item in enumerate(value):
            notes += self._own((*path, index))
            items.append(self._inline(item, (*path, index), notes))
        return f"[{', '.join(items)}]"

    def _own(self, path: Path) -> list[str]:
        comment = self._comments.get(path)
        return [] if comment is None else [comment]


def _is_table_list(value: Any) -> bool:
    return (
        (value.__class__ is list or value.__class__ is tuple)
        and bool(value)
        and all(item.__class__ is dict for item in value)
    )


@lru_cache(4096)  # sections of one class repeat the names of their fields
def _toml_key(key: str) -> str:
    if key.isascii() and key.replace("-", "_").replace("_", "a").isalnum():
        return key
    return quoted_text(key)


# TOML writes inf, -inf and nan as Python does.
_TOML: dict[type, Callable[[Any], str]] = {**SCALARS, type(None): lambda value: '"null"'}


# Words that this or another reader of YAML, old or new, takes for something else than text.
_YAML_WORDS = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))
_YAML_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_/")
_YAML_PLAIN = _YAML_LETTERS | frozenset("0123456789 .+-")
_YAML_NUMBERS = {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}
_MAX_YAML_KEY = 1000  # characters; longer keys need the form `? key`


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
    lines = _YamlWriter(comments or {}).mapping(plain, ()) if plain else ["{}"]
    return "\n".join(lines) + "\n"


class _YamlWriter:
    def __init__(self, comments: Comments) -> None:
        self._comments = comments

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
            line = f"{head} [{', '.join(_yaml_scalar(item) for item in value)}]"
            if len(line) + 2 * len(path) <= WIDTH or not value:
                for index in range(len(value)):
                    notes += self._own((*path, index))
                return [line + remark(notes)]
        if is_mapping(value) and value:
            block = self.mapping(value, path)
        elif is_list(value) and value:
            block = self._sequence(value, path)
        else:
            return [f"{head} {_yaml_scalar(value)}{remark(notes)}"]
        return [head + remark(notes), *(f"  {line}" for line in block)]

    def _own(self, path: Path) -> list[str]:
        comment = self._comments.get(path)
        return [] if comment is None else [comment]


def _yaml_text(text: str) -> str:
    plain = (
        text[:1] in _YAML_LETTERS
        and _YAML_PLAIN.issuperset(text)
        and not text.endswith(" ")
        and text.lower() not in _YAML_WORDS
    )
    return text if plain else quoted(text)


def _yaml_scalar(value: object) -> str:
    if isinstance(value, str):
        return _yaml_text(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if is_mapping(value) or is_list(value):  # an empty one
        return "{}" if is_mapping(value) else "[]"
    text = repr(value)
    return _YAML_NUMBERS.get(text, text)
