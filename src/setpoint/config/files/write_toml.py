"""Writing TOML that people can read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .document import is_list, is_mapping
from .write_common import WIDTH, plain_data, quoted, remark

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    writer = _Writer(comments or {})
    writer.table(plain_data(data), (), "")
    return "\n".join(writer.lines) + "\n" if writer.lines else ""


class _Writer:
    def __init__(self, comments: Comments) -> None:
        self.lines: list[str] = []
        self._comments = comments

    def table(self, table: dict[str, object], path: Path, name: str) -> None:
        """The lines of a table, below its header."""
        for key, value in table.items():
            if not is_mapping(value) and not _is_table_list(value):
                self._key_value(_key(key), value, (*path, key))
        for key, value in table.items():
            inner = f"{name}.{_key(key)}" if name else _key(key)
            if is_mapping(value):
                self._section(value, (*path, key), inner)
            elif is_list(value) and _is_table_list(value):
                notes = self._own((*path, key))
                for index, item in enumerate(value):
                    item_path = (*path, key, index)
                    self._header(f"[[{inner}]]", notes + self._own(item_path))
                    notes = []
                    if is_mapping(item):
                        self.table(item, item_path, inner)

    def _section(self, table: dict[str, object], path: Path, name: str) -> None:
        notes = self._own(path)
        # A table of nothing but tables needs no line of its own: [a.b] makes a.
        only_tables = all(is_mapping(item) or _is_table_list(item) for item in table.values())
        if notes or not table or not only_tables:
            self._header(f"[{name}]", notes)
        self.table(table, path, name)

    def _header(self, header: str, notes: list[str]) -> None:
        if self.lines:
            self.lines.append("")
        self.lines.append(header + remark(notes))

    def _key_value(self, key: str, value: object, path: Path) -> None:
        notes = self._own(path)
        inner_notes: list[str] = []
        line = f"{key} = {self._inline(value, path, inner_notes)}"
        if len(line) <= WIDTH or not is_list(value) or not value:
            self.lines.append(line + remark(notes + inner_notes))
            return
        self.lines.append(f"{key} = [{remark(notes)}")
        for index, item in enumerate(value):
            item_path = (*path, index)
            notes = self._own(item_path)
            self.lines.append(f"    {self._inline(item, item_path, notes)},{remark(notes)}")
        self.lines.append("]")

    def _inline(self, value: object, path: Path, notes: list[str]) -> str:
        """A value on one line; the comments on what is inside it are added to `notes`."""
        if is_mapping(value):
            parts: list[str] = []
            for key, item in value.items():
                notes += self._own((*path, key))
                parts.append(f"{_key(key)} = {self._inline(item, (*path, key), notes)}")
            return f"{{{', '.join(parts)}}}"
        if is_list(value):
            items: list[str] = []
            for index, item in enumerate(value):
                notes += self._own((*path, index))
                items.append(self._inline(item, (*path, index), notes))
            return f"[{', '.join(items)}]"
        return _scalar(value)

    def _own(self, path: Path) -> list[str]:
        comment = self._comments.get(path)
        return [] if comment is None else [comment]


def _is_table_list(value: object) -> bool:
    return is_list(value) and bool(value) and all(isinstance(item, dict) for item in value)


def _key(key: str) -> str:
    bare = key.replace("-", "_").replace("_", "a")
    return key if bare.isascii() and bare.isalnum() else quoted(key)


def _scalar(value: object) -> str:
    if value is None:
        return '"null"'
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)  # of an int or a float; TOML writes inf, -inf and nan as Python does
