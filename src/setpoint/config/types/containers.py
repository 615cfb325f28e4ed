"""Optional values, alternatives, tuples, lists and mappings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..values.containers import CheckedDict, CheckedList, FrozenDict, FrozenList
from ..values.node import Node
from ..values.origin import DEFAULT, Origin
from ..values.reference import Reference
from ..words.errors import Invalid, several
from ..words.inline import parse_flow, parse_list
from ..words.shown import shown
from ..words.texts import PlainScalar, is_text, refuse_credentials
from .base import FieldType, dump_item, read_item, replace_in_item

if TYPE_CHECKING:
    from ..values.origin import Origin
    from ..words.names import Path

K = TypeVar("K", int, str)
# The word that takes items out of a list or a mapping; a mapping can therefore not hold it.
REMOVE = "remove"


class OptionalType(FieldType):
    """A value or null. The text `null` means null wherever null is allowed, in every format."""

    __slots__ = ("inner", "nested", "takes_text")

    def __init__(self, inner: FieldType) -> None:
        self.inner = inner
        self.nested = inner.nested
        self.takes_text = inner.takes_text

    def describe(self) -> str:
        """See `FieldType.describe`."""
        return f"{self.inner.describe()}, or null"

    def parts(self) -> tuple[FieldType, ...]:
        """See `FieldType.parts`."""
        return (self.inner,)

    def candidates(self) -> tuple[str, ...]:
        """See `FieldType.candidates`."""
        return (*self.inner.candidates(), "null") if self.inner.candidates() else ()

    def read(self, value: object, origin: Origin) -> Any:
        """See `FieldType.read`."""
        if value is None or (isinstance(value, str) and value == "null"):
            return None
        return self.inner.read(value, origin)

    def own(self, value: Any) -> Any:
        """See `FieldType.own`."""
        return None if value is None else self.inner.own(value)

    def dump(self, value: Any) -> Any:
        """See `FieldType.dump`."""
        return None if value is None else self.inner.dump(value)

    def replace_sections(self, value: Any, function: Callable[[Any], Any], frozen: bool) -> Any:
        """See `FieldType.replace_sections`."""
        return None if value is None else self.inner.replace_sections(value, function, frozen)

    def sections(self, value: Any) -> Iterator[tuple[Path, Node]]:
        """See `FieldType.sections`."""
        return iter(()) if value is None else self.inner.sections(value)


class AnyOfType(FieldType):
    """Alternatives of plain types, tried in the order of the annotation.

    Arguments:
        options: the types; a value belongs to the first that takes it.
    """

    __slots__ = ("options", "takes_text")

    def __init__(self, options: tuple[FieldType, ...]) -> None:
        self.options = options
        self.takes_text = any(option.takes_text for option in options)

    def describe(self) -> str:
        """See `FieldType.describe`."""
        return " or ".join(option.describe() for option in self.options)

    def parts(self) -> tuple[FieldType, ...]:
        """See `FieldType.parts`."""
        return self.options

    def candidates(self) -> tuple[str, ...]:
        """See `FieldType.candidates`."""
        return tuple(text for option in self.options for text in option.candidates())

    def read(self, value: object, origin: Origin) -> Any:
        """See `FieldType.read`."""
        for option in self.options:
            try:
                return option.read(value, origin)
            except Invalid as error:
                if error.secret:
                    raise  # no other alternative may take it, or show it
        raise self.refuse(value)

    def dump(self, value: Any) -> Any:
        """See `FieldType.dump`."""
        return self._owner(value).dump(value)

    def own(self, value: Any) -> Any:
        """See `FieldType.own`."""
        return self._owner(value).own(value)

    def replace_sections(self, value: Any, function: Callable[[Any], Any], frozen: bool) -> Any:
        """See `FieldType.replace_sections`."""
        return self._owner(value).replace_sections(value, function, frozen)

    def _owner(self, value: Any) -> FieldType:
        for option in self.options:
            try:
                if option.read(value, Origin(DEFAULT)) == value:
                    return option
            except Invalid:
                continue
        raise self.refuse(value)


class SequenceType(FieldType):
    """Tuples of one item type and any length, and lists.

    Arguments:
        mutable: True for `list[...]`, whose drafts can be changed in place.
    """

    __slots__ = ("item", "mutable", "nested", "title")

    def __init__(self, item: FieldType, mutable: bool) -> None:
        self.item = item
        # The class and field that it is the type of, for errors.
        self.title = "(list)"
        self.mutable = mutable
        self.nested = item.nested

    def describe(self) -> str:
        """See `FieldType.describe`."""
        return f"a list of items that are each {self.item.describe()}"

    def parts(self) -> tuple[FieldType, ...]:
        """See `FieldType.parts`."""
        return (self.item,)

    def is_container(self) -> bool:
        """See `FieldType.is_container`."""
        return True

    def read(self, value: object, origin: Origin) -> Any:
        """See `FieldType.read`."""
        items = read_items(self, value)
        return self.own(each(enumerate(items), lambda _, one: read_item(self.item, one, origin)))

    def read_one(self, item: object, origin: Origin) -> Any:
        """See `ItemType.read_one`."""
        return read_item(self.item, item, origin)

    def check_key(self, key: object) -> str:
        """See `ItemType.check_key`.

        Raises:
            Invalid: always, since a list has no keys.
        """
        raise Invalid(f"has no item {shown(key)}")

    def own(self, value: Any) -> Any:
        """See `FieldType.own`."""
        return CheckedList(value, self) if self.mutable else tuple(value)

    def dump(self, value: Any) -> list[Any]:
        """See `FieldType.dump`."""
        return [dump_item(self.item, item) for item in value]

    def replace_sections(self, value: Any, function: Callable[[Any], Any], frozen: bool) -> Any:
        """See `FieldType.replace_sections`."""
        items = [replace_in_item(self.item, item, function, frozen) for item in value]
        if not self.mutable:
            return tuple(items)
        return FrozenList(items, self.title) if frozen else CheckedList(items, self)

    def sections(self, value: Any) -> Iterator[tuple[Path, Node]]:
        """See `FieldType.sections`."""
        for index, item in enumerate(value):
            if not isinstance(item, Reference):
                for path, section in self.item.sections(item):
                    yield (index, *path), section


class TupleType(FieldType):
    """Tuples of a fixed length with a type for each place."""

    __slots__ = ("items", "nested")

    def __init__(self, items: tuple[FieldType, ...]) -> None:
        self.items = items
        self.nested = any(item.nested for item in items)

    def describe(self) -> str:
        """See `FieldType.describe`."""
        return f"a tuple of {len(self.items)}: " + ", ".join(i.describe() for i in self.items)

    def parts(self) -> tuple[FieldType, ...]:
        """See `FieldType.parts`."""
        return self.items

    def is_container(self) -> bool:
        """See `FieldType.is_container`."""
        return True

    def read(self, value: object, origin: Origin) -> Any:
        """See `FieldType.read`."""
        items = list(read_items(self, value))
        if len(items) != len(self.items):
            raise Invalid(
                f"needs {len(self.items)} items, got {len(items)}", secret=self.is_secret()
            )
        return tuple(
            each(enumerate(items), lambda at, item: read_item(self.items[at], item, origin))
        )

    def own(self, value: Any) -> Any:
        """See `FieldType.own`."""
        return tuple(value)

    def dump(self, value: Any) -> list[Any]:
        """See `FieldType.dump`."""
        return [dump_item(kind, item) for kind, item in zip(self.items, value, strict=True)]

    def replace_sections(self, value: Any, function: Callable[[Any], Any], frozen: bool) -> Any:
        """See `FieldType.replace_sections`."""
        pairs = zip(self.items, value, strict=True)
        return tuple(replace_in_item(kind, item, function, frozen) for kind, item in pairs)

    def sections(self, value: Any) -> Iterator[tuple[Path, Node]]:
        """See `FieldType.sections`."""
        for index, item in enumerate(value):
            if not isinstance(item, Reference):
                for path, section in self.items[index].sections(item):
                    yield (index, *path), section


class MappingType(FieldType):
    """Mappings from texts to values of one type."""

    __slots__ = ("item", "nested", "title")

    def __init__(self, item: FieldType) -> None:
        self.item = item
        self.title = "(mapping)"
        self.nested = item.nested

    def describe(self) -> str:
        """See `FieldType.describe`."""
        return f"a mapping of names to values that are each {self.item.describe()}"

    def parts(self) -> tuple[FieldType, ...]:
        """See `FieldType.parts`."""
        return (self.item,)

    def is_container(self) -> bool:
        """See `FieldType.is_container`."""
        return True

    def check_key(self, key: object) -> str:
        """Refuse a key that cannot be written in a file, or that makes a path ambiguous.

        Raises:
            Invalid: if it is no text, or the key of a section has a dot.
        """
        if not isinstance(key, str):
            raise Invalid(f"has a key that is not a str: {shown(key)}")
        if not is_text(key):
            raise Invalid(f"has a key that cannot be written to a file: {key!r}")
        refuse_credentials(key)
        if key == REMOVE:
            raise Invalid("has the key 'remove', which is the word that takes keys out of it")
        if self.nested and (not key or "." in key):
            raise Invalid(f"has the key {key!r}, which cannot be part of a dotted path")
        return str(key)

    def read(self, value: object, origin: Origin) -> Any:
        """See `FieldType.read`."""
        if isinstance(value, PlainScalar):
            value = parse_flow(value)
        if not isinstance(value, Mapping):
            raise self.refuse(value)
        errors: list[Invalid] = []
        result: dict[str, Any] = {}
        for key, item in cast(Mapping[object, object], value).items():
            try:
                name = self.check_key(key)
            except Invalid as error:
                errors.append(error)
                continue
            try:
                result[name] = read_item(self.item, item, origin)
            except Invalid as error:
                errors.append(error.inside(name))
        if errors:
            raise several(errors)
        return CheckedDict(result, self)

    def read_one(self, item: object, origin: Origin) -> Any:
        """See `ItemType.read_one`."""
        return read_item(self.item, item, origin)

    def own(self, value: Any) -> Any:
        """See `FieldType.own`."""
        return CheckedDict(value, self)

    def dump(self, value: Any) -> dict[str, Any]:
        """See `FieldType.dump`."""
        return {key: dump_item(self.item, item) for key, item in value.items()}

    def replace_sections(self, value: Any, function: Callable[[Any], Any], frozen: bool) -> Any:
        """See `FieldType.replace_sections`."""
        items = {key: replace_in_item(self.item, v, function, frozen) for key, v in value.items()}
        return FrozenDict(items, self.title) if frozen else CheckedDict(items, self)

    def sections(self, value: Any) -> Iterator[tuple[Path, Node]]:
        """See `FieldType.sections`."""
        for key in sorted(value):  # so that the order of keys means nothing
            item = value[key]
            if not isinstance(item, Reference):
                for path, section in self.item.sections(item):
                    yield (key, *path), section


def name_containers(kind: FieldType, title: str) -> None:
    """Tell the lists and mappings of a field whose they are."""
    inner = title
    if isinstance(kind, SequenceType | MappingType):
        kind.title, inner = title, f"{title}.(item)"
    for part in kind.parts():
        name_containers(part, inner)


def read_items(kind: FieldType, value: object) -> Iterable[object]:
    """The items of a sequence given as a list, a tuple or a text such as `1,2` or `[1, 2]`.

    Raises:
        Invalid: if the value is not a sequence.
    """
    if isinstance(value, PlainScalar):
        return parse_list(value)
    if isinstance(value, list | tuple):
        return cast(Iterable[object], value)
    raise kind.refuse(value)


def each(items: Iterable[tuple[K, object]], read: Callable[[K, object], Any]) -> list[Any]:
    """Read every item, each with its index or key, and gather what is wrong with all of them.

    Raises:
        Invalid: for all items that do not fit, each with its index or key.
    """
    result: list[Any] = []
    errors: list[Invalid] = []
    for key, item in items:
        try:
            result.append(read(key, item))
        except Invalid as error:
            errors.append(error.inside(key))
    if errors:
        raise several(errors)
    return result


def items_of(kind: FieldType, value: Any) -> Iterator[tuple[str | int, Any, FieldType]]:
    """The items of a list, tuple or mapping with their types."""
    while isinstance(kind, OptionalType):
        kind = kind.inner
    if isinstance(kind, MappingType):
        for key, item in value.items():
            yield key, item, kind.item
    elif isinstance(kind, TupleType):
        for index, (item, part) in enumerate(zip(value, kind.items, strict=True)):
            yield index, item, part
    elif isinstance(kind, SequenceType):
        for index, item in enumerate(value):
            yield index, item, kind.item


def kind_at(kind: FieldType, inside: tuple[str | int, ...]) -> FieldType | None:
    """The type of an item, at any depth.

    Returns:
        the type; None where it depends on the value.
    """
    for part in inside:
        while isinstance(kind, OptionalType):
            kind = kind.inner
        if isinstance(kind, SequenceType | MappingType):
            kind = kind.item
        elif isinstance(kind, TupleType) and isinstance(part, int):
            kind = kind.items[part]
        else:
            return None
    return kind


def unwrapped(kind: FieldType) -> FieldType:
    """The type inside an optional one."""
    while isinstance(kind, OptionalType):
        kind = kind.inner
    return kind
