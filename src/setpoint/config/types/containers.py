"""Optional values, alternatives, tuples, lists and mappings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from ..errors import Invalid, several
from ..files.limits import is_text
from ..files.plain import PlainScalar
from .base import FieldType, shown
from .held import CheckedDict, CheckedList, FrozenDict, FrozenList

if TYPE_CHECKING:
    from ..base import Config
    from ..origin import Origin


class OptionalType(FieldType):
    """A value or null. The text `null` means null wherever null is allowed, in every format.

    Arguments:
        inner: the type of the value.
    """

    __slots__ = ("inner", "nested")

    def __init__(self, inner: FieldType) -> None:
        self.inner = inner
        self.nested = inner.nested

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

    def adopt(self, value: Any) -> Any:
        """See `FieldType.adopt`."""
        return None if value is None else self.inner.adopt(value)

    def dump(self, value: Any) -> Any:
        """See `FieldType.dump`."""
        return None if value is None else self.inner.dump(value)

    def map(self, value: Any, function: Callable[[Config], Config], frozen: bool) -> Any:
        """See `FieldType.map`."""
        return None if value is None else self.inner.map(value, function, frozen)

    def sections(self, value: Any) -> Iterator[tuple[tuple[str | int, ...], Config]]:
        """See `FieldType.sections`."""
        return iter(()) if value is None else self.inner.sections(value)


class AnyOfType(FieldType):
    """Alternatives of plain types, tried in the order of the annotation.

    Arguments:
        options: the types; a value belongs to the first that takes it.
    """

    __slots__ = ("options",)

    def __init__(self, options: tuple[FieldType, ...]) -> None:
        self.options = options

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
            except Invalid:
                continue
        raise self.refuse(value)

    def dump(self, value: Any) -> Any:
        """See `FieldType.dump`."""
        return self._owner(value).dump(value)

    def adopt(self, value: Any) -> Any:
        """See `FieldType.adopt`."""
        return self._owner(value).adopt(value)

    def map(self, value: Any, function: Callable[[Config], Config], frozen: bool) -> Any:
        """See `FieldType.map`."""
        return self._owner(value).map(value, function, frozen)

    def _owner(self, value: Any) -> FieldType:
        from ..origin import DEFAULT, Origin

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
        item: the type of the items.
        mutable: True for `list[...]`, whose drafts can be changed in place.
    """

    __slots__ = ("item", "mutable", "nested")

    def __init__(self, item: FieldType, mutable: bool) -> None:
        self.item = item
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
        return self.adopt(each(items, lambda _, item: self.item.read(item, origin)))

    def adopt(self, value: Any) -> Any:
        """See `FieldType.adopt`."""
        return CheckedList(value, self.item) if self.mutable else tuple(value)

    def dump(self, value: Any) -> list[Any]:
        """See `FieldType.dump`."""
        return [self.item.dump(item) for item in value]

    def map(self, value: Any, function: Callable[[Config], Config], frozen: bool) -> Any:
        """See `FieldType.map`."""
        items = [self.item.map(item, function, frozen) for item in value]
        if not self.mutable:
            return tuple(items)
        return FrozenList(items) if frozen else CheckedList(items, self.item)

    def sections(self, value: Any) -> Iterator[tuple[tuple[str | int, ...], Config]]:
        """See `FieldType.sections`."""
        for index, item in enumerate(value):
            for path, section in self.item.sections(item):
                yield (index, *path), section


class TupleType(FieldType):
    """Tuples of a fixed length with a type for each place.

    Arguments:
        items: the types, one for each place.
    """

    __slots__ = ("items", "nested")

    def __init__(self, items: tuple[FieldType, ...]) -> None:
        self.items = items
        self.nested = any(item.nested for item in items)

    def describe(self) -> str:
        """See `FieldType.describe`."""
        return f"a list of {len(self.items)}: " + ", ".join(i.describe() for i in self.items)

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
        return tuple(each(items, lambda index, item: self.items[index].read(item, origin)))

    def adopt(self, value: Any) -> Any:
        """See `FieldType.adopt`."""
        return tuple(value)

    def dump(self, value: Any) -> list[Any]:
        """See `FieldType.dump`."""
        return [kind.dump(item) for kind, item in zip(self.items, value, strict=True)]

    def map(self, value: Any, function: Callable[[Config], Config], frozen: bool) -> Any:
        """See `FieldType.map`."""
        pairs = zip(self.items, value, strict=True)
        return tuple(kind.map(item, function, frozen) for kind, item in pairs)

    def sections(self, value: Any) -> Iterator[tuple[tuple[str | int, ...], Config]]:
        """See `FieldType.sections`."""
        for index, item in enumerate(value):
            for path, section in self.items[index].sections(item):
                yield (index, *path), section


class MappingType(FieldType):
    """Mappings from texts to values of one type.

    Arguments:
        item: the type of the values.
    """

    __slots__ = ("item", "nested")

    def __init__(self, item: FieldType) -> None:
        self.item = item
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

        Arguments:
            key: the key as it came.

        Returns:
            the key.

        Raises:
            Invalid: if it is no text, or the key of a section has a dot.
        """
        if not isinstance(key, str):
            raise Invalid(f"has a key that is not a text: {shown(key)}")
        if not is_text(key):
            raise Invalid(f"has a key that cannot be written to a file: {key!r}")
        if self.nested and (not key or "." in key):
            raise Invalid(f"has the key {key!r}, which cannot be part of a dotted path")
        return str(key)

    def read(self, value: object, origin: Origin) -> Any:
        """See `FieldType.read`."""
        if isinstance(value, PlainScalar):
            from ..layers.flow import parse_flow

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
                result[name] = self.item.read(item, origin)
            except Invalid as error:
                errors.append(error.inside(name))
        if errors:
            raise several(errors)
        return CheckedDict(result, self)

    def adopt(self, value: Any) -> Any:
        """See `FieldType.adopt`."""
        return CheckedDict(value, self)

    def dump(self, value: Any) -> dict[str, Any]:
        """See `FieldType.dump`."""
        return {key: self.item.dump(item) for key, item in value.items()}

    def map(self, value: Any, function: Callable[[Config], Config], frozen: bool) -> Any:
        """See `FieldType.map`."""
        items = {key: self.item.map(item, function, frozen) for key, item in value.items()}
        return FrozenDict(items) if frozen else CheckedDict(items, self)

    def sections(self, value: Any) -> Iterator[tuple[tuple[str | int, ...], Config]]:
        """See `FieldType.sections`."""
        for key, item in value.items():
            for path, section in self.item.sections(item):
                yield (key, *path), section


def read_items(kind: FieldType, value: object) -> Iterable[object]:
    """The items of a sequence given as a list, a tuple or a text such as `1,2` or `[1, 2]`.

    Arguments:
        kind: the type that reads them, for its error.
        value: the value as it came.

    Returns:
        the items, unread.

    Raises:
        Invalid: if the value is not a sequence.
    """
    if isinstance(value, PlainScalar):
        from ..layers.flow import parse_list

        return parse_list(value)
    if isinstance(value, list | tuple):
        return cast(Iterable[object], value)
    raise kind.refuse(value)


def each(items: Iterable[object], read: Callable[[int, object], Any]) -> list[Any]:
    """Read every item and gather what is wrong with all of them.

    Arguments:
        items: the items.
        read: reads one, given its index.

    Returns:
        the read items.

    Raises:
        Invalid: for all items that do not fit, each with its index.
    """
    result: list[Any] = []
    errors: list[Invalid] = []
    for index, item in enumerate(items):
        try:
            result.append(read(index, item))
        except Invalid as error:
            errors.append(error.inside(index))
    if errors:
        raise several(errors)
    return result
