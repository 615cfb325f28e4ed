"""A file that was read: its data, and where each key of it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal, TypeGuard

    Format = Literal["toml", "yaml", "json"]


def is_mapping(value: object) -> TypeGuard[dict[str, object]]:
    """Whether a value that a reader made is a mapping.

    Arguments:
        value: what the reader of a format returned, whose keys are always text.

    Returns:
        True for a dict.
    """
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Whether a value that a reader made is a list.

    Arguments:
        value: what the reader of a format returned.

    Returns:
        True for a list.
    """
    return isinstance(value, list)


class Place:
    """Where one key or list item stands, and the places of what lies inside its value.

    Arguments:
        offset: the first character of the key or of the item, counted from 0.
    """

    __slots__ = ("children", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.children: dict[str | int, Place] = {}

    def add(self, key: str | int, offset: int) -> Place:
        """The place of a child; one that is already known keeps its first offset.

        Arguments:
            key: the key, or the index of a list item.
            offset: the first character of it.

        Returns:
            the child's place.
        """
        child = self.children.get(key)
        if child is None:
            child = self.children[key] = Place(offset)
        return child


class Document:
    """The data of one file, with the position of every key.

    Arguments:
        name: the file as it is shown to people.
        format: `"toml"`, `"yaml"` or `"json"`.
        data: the top level mapping, of plain dicts, lists and scalars.
        text: the whole text, without a byte order mark.
        scan: finds the places in the text; called once, when a position is first asked for.
    """

    __slots__ = ("_lines", "_places", "_scan", "data", "format", "name", "text")

    def __init__(
        self,
        name: str,
        format: Format,
        data: dict[str, object],
        text: str,
        scan: Callable[[], Place],
    ) -> None:
        self.name = name
        self.format: Format = format
        self.data = data
        self.text = text
        self._scan = scan
        self._places: Place | None = None
        self._lines: list[int] = []

    def locate(self, path: tuple[str | int, ...]) -> tuple[int, int] | None:
        """Where a value's key stands; for an item of a list, where the item stands.

        Arguments:
            path: keys and indices from the top level down.

        Returns:
            line and column, both counted from 1, the column in characters; those of the nearest
            ancestor where the path leads deeper than the file; None if its first key is not there.
        """
        if self._places is None:
            self._places = self._scan()
        place = self._places
        for key in path:
            child = place.children.get(key)
            if child is None:
                break
            place = child
        return None if place is self._places else self._position(place.offset)

    def where(self, path: tuple[str | int, ...]) -> str:
        """Where a value's key stands, in words.

        Arguments:
            path: keys and indices from the top level down.

        Returns:
            `file:line:column`; the name of the file alone for what is not there.
        """
        place = self.locate(path)
        return f"{self.name}:{place[0]}:{place[1]}" if place else self.name

    def _position(self, offset: int) -> tuple[int, int]:
        from bisect import bisect_right

        if not self._lines:  # the offset at which each line begins
            start = 0
            while start >= 0:
                self._lines.append(start)
                start = self.text.find("\n", start) + 1 or -1
        line = bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1] + 1
