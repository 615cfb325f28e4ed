"""Edits of lists, tuples and mappings: one item is set, put in or taken out, the others stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..draft.walk import sections
from ..types.base import FieldType, read_item
from ..types.containers import (
    ADDING,
    REMOVE,
    DataType,
    FreeType,
    MappingType,
    OptionalType,
    SequenceType,
    TupleType,
    read_items,
    unwrapped,
)
from ..types.sections import SectionType
from ..values.containers import Free
from ..values.node import Node, state_of, value_or_missing
from ..values.origin import Origin
from ..values.reference import Reference
from ..words.errors import Invalid
from ..words.names import Path, did_you_mean, dotted
from ..words.plain_data import PlainScalar, children, same
from ..words.text import for_error, parse_list
from .fragment import with_fragments
from .presets import remember_replaced

if TYPE_CHECKING:
    from ..schema.field import FieldInfo
    from .editor_base import EditorBase

APPEND, EXTEND, INSERT = ADDING
EDITS = (*ADDING, REMOVE)


def edit_items(
    editor: EditorBase,
    node: Node,
    info: FieldInfo,
    edits: Mapping[str, object],
    origin: Origin,
    done: Path,
) -> None:
    """Apply a mapping of edits in the order in which it is written, as files give it.

    Arguments:
        edits: `append`, `extend`, `insert`, `remove`, or an item's index or name, with values.
    """
    for key, value in edits.items():
        if key == INSERT and isinstance(value, Mapping):
            for place, item in cast(Mapping[str, object], value).items():
                set_item(editor, node, info, (INSERT, str(place)), done, item, origin)
        else:
            set_item(editor, node, info, (str(key),), done, value, origin)


def set_item(
    editor: EditorBase,
    node: Node,
    info: FieldInfo,
    rest: Path,
    done: Path,
    value: object,
    origin: Origin,
) -> None:
    """Make one edit of a list or mapping, or of something inside an item.

    Arguments:
        editor: the layer that is being put onto the draft; gets what does not fit.
        rest: the path from the field on: a word of `EDITS`, an index, a key or a name.
        done: the path of the field.
    """
    held: Any = editor.current(node, info)
    try:
        changed = _Edit(editor, value, origin).changed(info.type, held, rest, done)
        if changed is not held:
            stored = info.read(changed, origin)
            node.store(info.name, stored, origin)
            _follow(held, stored, done)
    except Invalid as error:
        # The error's own path leads through the items; the value is what was to go there.
        for part in error.parts:
            inside = part.at[len(rest) :]
            found = Invalid(part.message, part.valid, inside, part.hint, part.secret)
            place = part.at[: len(rest)] if len(part.at) >= len(rest) else rest
            editor.report((*done, *place), value, origin, found)


def changed_data(
    editor: EditorBase, held: object, rest: Path, done: Path, value: object, origin: Origin
) -> object:
    """Plain data of the user area with one edit made inside it.

    Raises:
        Invalid: if it has no such place.
    """
    try:
        return _Edit(editor, value, origin).changed(DataType(), held, rest, done)
    except Invalid as error:
        raise Invalid(error.message, error.valid, hint=error.hint, secret=error.secret) from None


def _follow(before: object, after: object, done: Path) -> None:
    """Let sections that now stand at another index keep the lines that their values stand on."""
    old = {id(item): at for at, item in children(before) if isinstance(item, Node)}
    for at, item in children(after):
        if old.get(id(item), at) == at:
            continue
        then, now = (*done, old[id(item)]), (*done, at)
        for _, section in sections(item):
            state = state_of(section)
            state.layers = [(origin.moved(then, now), given) for origin, given in state.layers]
        chain = state_of(item).placed or []
        state_of(item).placed = [(origin.moved(then, now), tag) for origin, tag in chain]


class _Edit:
    """One value that a layer gives for something inside a list or mapping."""

    def __init__(self, editor: EditorBase, value: object, origin: Origin) -> None:
        self.editor = editor
        self.value = value
        self.origin = origin

    def changed(self, kind: FieldType, held: Any, rest: Path, done: Path) -> Any:
        """What a value becomes when something inside it is set.

        Returns:
            the new value; the old one where a section inside was changed in place.

        Raises:
            Invalid: whose path leads to what is wrong from outside.
        """
        optional, kind = isinstance(kind, OptionalType), unwrapped(kind)
        editor, value, origin = self.editor, self.value, self.origin
        null = optional and not rest and (value is None or str(value) == "null")
        if null and isinstance(held, Node):
            remember_replaced(editor.root, held, done, origin, "null")
            return None
        if isinstance(kind, SectionType) and rest and not isinstance(held, Node | Reference):
            if rest in (("type",), ("extends",)):
                made = self.with_fragments(kind, done, {rest[0]: value})
                return read_item(kind, made, origin)
            held = kind.chosen(
                None, "choose a variant first: without one it has no fields to set"
            )()
        if isinstance(held, Node):
            if rest == ("extends",):
                value = {"extends": value}
            elif rest and rest != ("type",):
                editor.descend(held, rest, done, value, origin)
                return held
            return editor.replaced(held, kind, value, origin, done)
        if not rest:
            return read_item(kind, self.with_fragments(kind, done, value), origin)
        if isinstance(held, Reference):
            reason = f"is the reference {held.text}, whose items are not known yet"
            raise Invalid(f"{dotted(done)} {reason}")
        if isinstance(kind, FreeType):
            area = Free() if held is None else held.copy(False)
            editor.descend(area, rest, done, value, origin)
            return area
        kind = kind.with_items(held, rest[0])
        if isinstance(kind, MappingType):
            return self.in_mapping(kind, held or {}, rest, done)
        if isinstance(kind, SequenceType | TupleType):
            return self.in_list(kind, held or (), rest, done)
        hint = "Set it to a list or a mapping first." if kind.is_container() else ""
        raise Invalid(single(done, str(rest[0])), hint=hint)

    def with_fragments(self, kind: FieldType, path: Path, value: object) -> object:
        """A value with each new section that extends files made."""
        return with_fragments(self.editor, kind, value, self.origin, path) if kind.nested else value

    def in_mapping(self, kind: MappingType, held: dict[str, Any], rest: Path, done: Path) -> Any:
        """A mapping with keys taken out of it, or with another value of one."""
        if rest == (REMOVE,):
            items = dict(held)
            for key in _words(self.value):
                if key not in items:
                    raise Invalid(
                        f"{dotted(done)} has no item {key!r}",
                        tuple(items),
                        hint=did_you_mean(key, items),
                    ).inside(REMOVE)
                del items[key]
            return items
        key = kind.check_key(str(rest[0]))
        return self.replace(held, dict(held), key, held.get(key), kind.item, rest, done)

    def in_list(
        self, kind: SequenceType | TupleType, held: Sequence[Any], rest: Path, done: Path
    ) -> Any:
        """A list with items put in or taken out, or with another value of one."""
        word, name = str(rest[0]), dotted(done)
        if word not in EDITS:
            index = item_index(held, word, name)
            item = kind.parts[index] if isinstance(kind, TupleType) else kind.item
            return self.replace(held, list(held), index, held[index], item, rest, done)
        if isinstance(kind, TupleType):
            raise Invalid(f"{name} has {len(held)} items, and its length is fixed")
        try:
            new = kind.item if word in (APPEND, INSERT) else kind
            value = self.with_fragments(new, (*done, word), self.value)
            return _edited(kind, list(held), rest, name, value, self.origin)
        except Invalid as error:
            raise error.inside(word) from None

    def replace(
        self, held: Any, items: Any, key: Any, before: Any, kind: FieldType, rest: Path, done: Path
    ) -> Any:
        """What holds an item, with the item changed."""
        try:
            items[key] = self.changed(kind, before, rest[1:], (*done, key))
        except Invalid as error:
            raise error.inside(key) from None
        # A section is changed in place; the list that holds it stays the same.
        return held if isinstance(before, Node) and items[key] is before else items


def _edited(
    kind: SequenceType, items: list[Any], rest: Path, name: str, value: object, origin: Origin
) -> list[Any]:
    """The list with items put in or taken out; errors lead to it from behind the word."""
    word = rest[0]
    if len(rest) != (2 if word == INSERT else 1):
        form = f"{name}.insert.INDEX" if word == INSERT else f"{name}.{word}"
        raise Invalid(f"an edit of a list is written {form} with a value")
    if word == APPEND:
        return [*items, read_item(kind.item, value, origin)]
    if word == EXTEND:
        return [*items, *kind.read(value, origin)]
    if word == INSERT:
        at = _place(str(rest[1]), len(items), name)
        try:
            return [*items[:at], read_item(kind.item, value, origin), *items[at:]]
        except Invalid as error:
            raise error.inside(rest[1]) from None
    listed = cast(object, value) if isinstance(value, str | list | tuple) else [value]
    gone = [_which(kind, items, which, name, origin) for which in read_items(kind, listed)]
    return [item for index, item in enumerate(items) if index not in gone]


def _which(kind: SequenceType, items: list[Any], which: object, name: str, origin: Origin) -> int:
    """The index of an item to be taken out: sections by index or name, plain items by value."""
    if kind.item.nested:
        return item_index(items, str(which), name)
    value = kind.item.read(which, origin)
    at = next((at for at, item in enumerate(items) if same(item, value)), None)
    if at is None:
        raise Invalid(f"{name} does not hold {for_error(which)}", tuple(map(for_error, items)))
    return at


def _words(value: object) -> list[str]:
    if isinstance(value, PlainScalar):
        return [str(word) for word in parse_list(value)]
    if isinstance(value, list | tuple):
        return [str(word) for word in cast(Sequence[object], value)]
    return [str(value)]


def _index(text: str) -> int:
    """A whole number in plain digits; a list may hold an item that is named like any other."""
    if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdecimal():
        raise ValueError(text)
    return int(text)


def _place(text: str, length: int, name: str) -> int:
    try:
        at = _index(text)
    except ValueError:
        raise Invalid(f"{text!r} is not an index of {name}").inside(text) from None
    if not -length <= at <= length:
        raise Invalid(
            f"{name} has {_count(length)}; nothing can be inserted at {at}",
            tuple(map(str, range(length + 1))),
        ).inside(text)
    return at + length if at < 0 else at


def item_index(items: Sequence[Any], word: str, name: str) -> int:
    """The index of an item that is named by its index, its `name`, or its `type`.

    Raises:
        Invalid: if no item, or more than one, is meant.
    """
    try:
        index = _index(word)
    except ValueError:
        return _named(items, word, name)
    if not -len(items) <= index < len(items):
        raise Invalid(
            f"{name} has {_count(len(items))}; there is no item {index}",
            tuple(map(str, range(len(items)))),
        )
    return index % len(items)


def _named(items: Sequence[Any], word: str, name: str) -> int:
    names = [names_of(item) for item in items]
    for rank in (0, 1):  # a name of its own beats the kind that an item is of
        found = [at for at, known in enumerate(names) if known[rank] == word]
        if len(found) == 1:
            return found[0]
        if found:
            raise Invalid(
                f"{name} has {len(found)} items {word!r}; name one by its index",
                tuple(map(str, found)),
            )
    known = [text for pair in names for text in pair if text]
    valid = (*map(str, range(len(items))), *dict.fromkeys(known), *EDITS)
    meant = did_you_mean(word, (*known, *EDITS))
    raise Invalid(f"{name} is a list; {word!r} names none of its items", valid, hint=meant)


def names_of(item: object) -> tuple[str | None, str | None]:
    """The name and the tag by which an item can be named beside by its index, if it has them."""
    if not isinstance(item, Node):
        return None, None
    own = type(item).__setpoint__.fields.get("name")
    name: Any = value_or_missing(item, "name") if own else None
    return name if isinstance(name, str) else None, type(item).__setpoint__.tag


def _count(length: int) -> str:
    return f"{length} item{'s' * (length != 1)}"


def single(path: Path, key: str) -> str:
    """What is wrong with a path that goes on behind a single value."""
    return f"{dotted(path)} is a single value; it has no {key!r} inside"
