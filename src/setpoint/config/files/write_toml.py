"""Writing TOML that people can read."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ..words.texts import MAX_DEPTH
from .write_common import SCALARS, WIDTH, Unplain, plain_data, quoted_text, remark

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Path = tuple[str | int, ...]
    Comments = Mapping[Path, str]


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
        lines = _Writer(comments or {}).whole(data)
    except Unplain:
        lines = _Writer(comments or {}).whole(plain_data(data))
    return "\n".join(lines) + "\n" if lines else ""


class _Writer:
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
            write = _WRITE.get(value.__class__)
            if write is not None:
                line = f"{_key(key)} = {write(value)}"
                self.lines.append(
                    line + remark(self._own((*path, key))) if self._comments else line
                )
            elif value.__class__ is dict or _is_table_list(value):
                tables.append((key, f"{name}.{_key(key)}" if name else _key(key), value))
            else:
                self._long(_key(key), value, (*path, key))
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
        write = _WRITE.get(cls)
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
                items.append(f"{_key(key)} = {self._inline(item, (*path, key), notes)}")
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
def _key(key: str) -> str:
    if key.isascii() and key.replace("-", "_").replace("_", "a").isalnum():
        return key
    return quoted_text(key)


def _null(value: None) -> str:
    return '"null"'


# TOML writes inf, -inf and nan as Python does.
_WRITE: dict[type, Callable[[Any], str]] = {**SCALARS, type(None): _null}
