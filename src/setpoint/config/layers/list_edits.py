"""Edits of lists, tuples and mappings: set, insert or remove one item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from ..draft.walk import sections
from ..types.base import FieldType, read_item
from ..types.compound import (
    ADDING,
    REMOVE,
    FreeType,
    MappingType,
    SectionType,
    SequenceType,
    TupleType,
    read_items,
    unwrapped,
)
from ..values.node import Node, state_of, value_or_missing
from ..values.origin import Origin
from ..values.reference import Reference
from ..values.scalar import Struct
from ..words.errors import WRONG_KIND, Invalid
from ..words.names import Path, did_you_mean, dotted, nearest, plural
from ..words.plain_data import PlainScalar, children, same
from ..words.text import for_error, parse_list

APPEND, EXTEND, INSERT = ADDING
EDITS = (*ADDING, REMOVE)


class ItemEdit(Struct):
    """One value that a layer sets inside a list or mapping.

    `prepare` makes the sections in a value that extend files; `edit_section` edits an item that is
    a section or a free area, or makes one.
    """

    value: object
    origin: Origin
    prepare: Callable[[FieldType, object, Origin, Path], object]
    edit_section: Callable[[FieldType, Any, Path, object, Origin, Path], object]

    def apply(self, kind: FieldType, current: Any, rest: Path, path: Path) -> Any:
        """Set a value, or the value at `rest` inside it; a section is changed in place.

        Raises:
            Invalid: the value or `rest` does not fit the type; the message names the path.
        """
        inner, known = unwrapped(kind), not isinstance(current, Reference)
        is_area = isinstance(inner, SectionType | FreeType) and known
        if isinstance(current, Node) or (is_area and rest):
            return self.edit_section(kind, current, rest, self.value, self.origin, path)
        if not rest:
            value = self.prepare(kind, self.value, self.origin, path)
            return read_item(kind, value, self.origin)
        if not known:
            reason = f"is the reference {current.text}, whose items are not known yet"
            raise Invalid(f"{dotted(path)} {reason}")
        inner = inner.with_items(current, rest[0])
        if isinstance(inner, MappingType):
            return self._in_mapping(inner, current or {}, rest, path)
        if isinstance(inner, SequenceType | TupleType):
            return self._in_list(inner, current or (), rest, path)
        hint = "Set it to a list or a mapping first." if inner.is_container() else ""
        raise Invalid(single(path, str(rest[0])), hint=hint)

    def _in_mapping(
        self, kind: MappingType, current: dict[str, Any], rest: Path, path: Path
    ) -> Any:
        """Return a mapping with keys removed, or with one value changed."""
        items = dict(current)
        if rest != (REMOVE,):
            key = kind.check_key(str(rest[0]))
            return self._replace(current, items, key, current.get(key), kind.item, rest, path)
        for key in _words(self.value):
            if key not in items:
                hint = did_you_mean(key, items)
                error = Invalid(f"{dotted(path)} has no item {key!r}", tuple(items), hint=hint)
                raise error.inside(REMOVE)
            del items[key]
        return items

    def _in_list(
        self, kind: SequenceType | TupleType, current: Sequence[Any], rest: Path, path: Path
    ) -> Any:
        """Return a list with items inserted or removed, or with one value changed."""
        word, name, items = str(rest[0]), dotted(path), list(current)
        if word not in EDITS:
            index = item_index(items, word, name)
            item = kind.parts[index] if isinstance(kind, TupleType) else kind.item
            return self._replace(current, items, index, items[index], item, rest, path)
        if isinstance(kind, TupleType):
            raise Invalid(f"{name} has {len(items)} items, and its length is fixed")
        if len(rest) != (2 if word == INSERT else 1):
            form = f"{name}.insert.INDEX" if word == INSERT else f"{name}.{word}"
            raise Invalid(f"an edit of a list is written {form} with a value").inside(word)
        try:
            new = kind.item if word in (APPEND, INSERT) else kind
            value = self.prepare(new, self.value, self.origin, (*path, word))
            if word == EXTEND:
                return [*items, *kind.read(value, self.origin)]
            if word == REMOVE:
                given = cast(object, value) if isinstance(value, str | list | tuple) else [value]
                removed = [
                    _locate(kind, items, key, name, self.origin) for key in read_items(kind, given)
                ]
                return [item for index, item in enumerate(items) if index not in removed]
            index = len(items) if word == APPEND else _place(str(rest[1]), len(items), name)
            try:
                item = read_item(kind.item, value, self.origin)
            except Invalid as error:
                raise (error.inside(rest[1]) if word == INSERT else error) from None
            return [*items[:index], item, *items[index:]]
        except Invalid as error:
            raise error.inside(word) from None

    def _replace(
        self, current: Any, items: Any, key: Any, item: Any, kind: FieldType, rest: Path, path: Path
    ) -> Any:
        """Return a list or mapping with one item changed."""
        try:
            items[key] = self.apply(kind, item, rest[1:], (*path, key))
        except Invalid as error:
            raise error.inside(key) from None
        # A section is changed in place; its list stays the same.
        return current if isinstance(item, Node) and items[key] is item else items


def follow(before: object, after: object, path: Path) -> None:
    """Keep the source lines of the values in sections that an edit moved to another index."""
    indices = {id(item): key for key, item in children(before) if isinstance(item, Node)}
    for key, item in children(after):
        if indices.get(id(item), key) == key:
            continue
        old, new = (*path, indices[id(item)]), (*path, key)
        for _, section in sections(item):
            state = state_of(section)
            state.layers = [(origin.moved(old, new), given) for origin, given in state.layers]
        chain = state_of(item).placed or []
        state_of(item).placed = [(origin.moved(old, new), tag) for origin, tag in chain]


def _locate(kind: SequenceType, items: list[Any], entry: object, name: str, origin: Origin) -> int:
    """The index of an item to remove: sections by index or name, plain items by value."""
    if kind.item.nested:
        return item_index(items, str(entry), name)
    value = kind.item.read(entry, origin)
    for index, item in enumerate(items):
        if same(item, value):
            return index
    raise Invalid(f"{name} does not hold {for_error(entry)}", tuple(map(for_error, items)))


def _words(value: object) -> list[str]:
    if isinstance(value, PlainScalar):
        return [str(word) for word in parse_list(value)]
    if isinstance(value, list | tuple):
        return [str(word) for word in cast(Sequence[object], value)]
    return [str(value)]


def _index(text: str) -> int:
    """An int in ASCII digits; any other text may be the name of an item."""
    if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdecimal():
        raise ValueError(text)
    return int(text)


def _place(text: str, length: int, name: str) -> int:
    try:
        index = _index(text)
    except ValueError:
        raise Invalid(f"{text!r} is not an index of {name}").inside(text) from None
    if not -length <= index <= length:
        raise Invalid(
            f"{name} has {plural(length, 'item')}; nothing can be inserted at {index}",
            tuple(map(str, range(length + 1))),
        ).inside(text)
    return index + length if index < 0 else index


def item_index(items: Sequence[Any], word: str, name: str) -> int:
    """The index of an item given by its index, its `name`, or its `type`.

    Raises:
        Invalid: no item, or more than one, matches.
    """
    try:
        index = _index(word)
    except ValueError:
        return _named(items, word, name)
    if not -len(items) <= index < len(items):
        raise Invalid(
            f"{name} has {plural(len(items), 'item')}; there is no item {index}",
            tuple(map(str, range(len(items)))),
            hint=f"{name}.append adds one." if index == len(items) else "",
        )
    return index % len(items)


def _named(items: Sequence[Any], word: str, name: str) -> int:
    names = [names_of(item) for item in items]
    for rank in (0, 1):  # a name takes precedence over a type
        matches = [index for index, pair in enumerate(names) if pair[rank] == word]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise Invalid(
                f"{name} has {len(matches)} items {word!r}; name one by its index",
                tuple(map(str, matches)),
            )
    known = [text for pair in names for text in pair if text]
    valid = (*map(str, range(len(items))), *dict.fromkeys(known), *EDITS)
    near = nearest(word, (*known, *EDITS), 1, 0.65)
    hint = f"Did you mean {near[0]}?" if near else ""
    message = f"{name} is a list; {word!r} names none of its items"
    raise Invalid(message, valid, hint=hint, kind=WRONG_KIND)


def names_of(item: object) -> tuple[str | None, str | None]:
    """The name and the tag of an item, if it has them."""
    if not isinstance(item, Node):
        return None, None
    known = type(item).__setpoint__
    name: Any = value_or_missing(item, "name") if "name" in known.fields else None
    return name if isinstance(name, str) else None, known.tag


def single(path: Path, key: str) -> str:
    """The error for a path that continues into a scalar."""
    return f"{dotted(path)} is a single value; it has no {key!r} inside"
