"""Optional values, alternatives, tuples, lists and mappings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..values.containers import CheckedDict, CheckedList, FrozenDict, FrozenList
from ..values.node import Node
from ..values.origin import DEFAULT, Origin
from ..words.errors import Invalid, several
from ..words.plain_data import PlainScalar, is_text, refuse_credentials
from ..words.text import for_error, parse_flow, parse_list
from .base import PLAIN, FieldType, dump_item, read_item, replace_in_item

if TYPE_CHECKING:
    from ..words.names import Path

K = TypeVar("K", int, str)
T = TypeVar("T")
# The word that takes items out of a list or a mapping; a mapping can therefore not hold it.
REMOVE = "remove"
# The words that put items into a list.
ADDING = ("append", "extend", "insert")


class OptionalType(FieldType):
    """A value or null. The text `null` means null wherever null is allowed, in every format."""

    __slots__ = ("inner", "nested", "takes_text")

    def __init__(self, inner: FieldType) -> None:
        self.inner = inner
        self.nested = inner.nested
        self.takes_text = inner.takes_text

    def describe(self) -> str:
        return f"{self.inner.describe()}, or null"

    def inner_types(self) -> tuple[FieldType, ...]:
        return (self.inner,)

    def candidates(self) -> tuple[str, ...]:
        return (*self.inner.candidates(), "null") if self.inner.candidates() else ()

    def read(self, value: object, origin: Origin) -> Any:
        if value is None or (isinstance(value, str) and value == "null"):
            return None
        result = self.inner.read(value, origin)
        return None if isinstance(result, str) and result == "null" else result

    def own(self, value: Any) -> Any:
        return None if value is None else self.inner.own(value)

    def dump(self, value: Any) -> Any:
        return None if value is None else self.inner.dump(value)

    def replace_sections(self, value: Any, function: Callable[[Any], Any], frozen: bool) -> Any:
        return None if value is None else self.inner.replace_sections(value, function, frozen)

    def items(self, value: Any) -> Iterable[tuple[str | int, Any, FieldType]]:
        return () if value is None else self.inner.items(value)

    def item_type(self, key: str | int) -> FieldType | None:
        return self.inner.item_type(key)

    def sections(self, value: Any) -> Iterator[tuple[Path, Node]]:
        return iter(()) if value is None else self.inner.sections(value)


class AnyOfType(FieldType):
    """Alternatives of plain types, the narrowest first.

    A typed text that begins with `[` or `{` is a list or mapping where one is among them. Where a
    text is among them as well, any other typed text is one, and one in quotes is what they hold.

    Arguments:
        options: the types; a value belongs to the first that takes it.
    """

    __slots__ = ("opening", "options", "takes_text")

    def __init__(self, options: Sequence[FieldType]) -> None:
        self.options = options
        self.takes_text = any(option.takes_text for option in options)
        self.opening = tuple(sign for option in options for sign in option.opening)

    def describe(self) -> str:
        return " or ".join(option.describe() for option in self.options)

    def inner_types(self) -> tuple[FieldType, ...]:
        return tuple(self.options)

    def candidates(self) -> tuple[str, ...]:
        return tuple(text for option in self.options for text in option.candidates())

    def lists_items(self, text: str) -> bool:
        return text.startswith(self.opening) or (not self.takes_text and super().lists_items(text))

    def with_items(self, value: Any, key: object) -> FieldType:
        if isinstance(value, list | tuple | dict):
            return self._owner(value).with_items(value, key)
        first: tuple[type[FieldType], ...] = (SequenceType, MappingType)
        for wanted in first if key in ADDING else first[::-1]:
            found = None if value else self.option(wanted)
            if found is not None:
                return found
        return self

    def option(self, wanted: type[FieldType]) -> FieldType | None:
        """The first alternative of a kind."""
        return next((kind for kind in self.options if isinstance(kind, wanted)), None)

    def read(self, value: object, origin: Origin) -> Any:
        options = self.options
        if isinstance(value, PlainScalar) and self.opening:
            if self.takes_text and value.startswith(("'", '"')):
                value = typed_data(self, parse_flow, value)
            elif value.startswith(self.opening):
                options = [kind for kind in options if value.startswith(kind.opening)]
            elif self.takes_text:
                options = [kind for kind in options if not kind.opening]
        for option in options:
            try:
                return option.read(value, origin)
            except Invalid as error:
                # No other alternative may take a secret, or show it.
                if error.secret or len(options) == 1 < len(self.options):
                    raise
        raise self.refuse(value)

    def items(self, value: Any) -> Iterable[tuple[str | int, Any, FieldType]]:
        return self._owner(value).items(value) if isinstance(value, list | tuple | dict) else ()

    def dump(self, value: Any) -> Any:
        return self._owner(value).dump(value)

    def own(self, value: Any) -> Any:
        return self._owner(value).own(value)

    def replace_sections(self, value: Any, function: Callable[[Any], Any], frozen: bool) -> Any:
        return self._owner(value).replace_sections(value, function, frozen)

    def _owner(self, value: Any) -> FieldType:
        for option in self.options:
            try:
                if option.read(value, Origin(DEFAULT)) == value:
                    return option
            except Invalid:
                continue
        raise self.refuse(value)


class ContainerType(FieldType):
    """What has items, each of a type: lists, tuples and mappings."""

    __slots__ = ()

    def is_container(self) -> bool:
        return True

    def lists_items(self, text: str) -> bool:
        return True

    def dump(self, value: Any) -> Any:
        if value.__class__ is tuple and PLAIN.issuperset(map(type, value)):
            return list(value)
        items = ((key, dump_item(kind, item)) for key, item, kind in self.items(value))
        return self.plain(items)

    def replace_sections(self, value: Any, function: Callable[[Any], Any], frozen: bool) -> Any:
        new = (
            (key, replace_in_item(kind, item, function, frozen))
            for key, item, kind in self.items(value)
        )
        return self.made(self.plain(new), frozen)

    def plain(self, items: Iterable[tuple[Any, Any]]) -> Any:
        """A list, or for mappings a dict, of items with their indices or keys."""
        return [item for _, item in items]

    def made(self, items: Any, frozen: bool) -> Any:
        """A value of the type that holds some items."""
        return self.own(items)

    def own(self, value: Any) -> Any:
        return tuple(value)


class SequenceType(ContainerType):
    """Tuples of one item type and any length, and lists.

    Arguments:
        mutable: True for `list[...]`, whose drafts can be changed in place.
    """

    opening = ("[",)
    __slots__ = ("item", "mutable", "nested", "title")

    def __init__(self, item: FieldType, mutable: bool) -> None:
        self.item = item
        # The class and field that it is the type of, for errors.
        self.title = "(list)"
        self.mutable = mutable
        self.nested = item.nested

    def describe(self) -> str:
        return f"a list of values, each {self.item.describe()}"

    def inner_types(self) -> tuple[FieldType, ...]:
        return (self.item,)

    def items(self, value: Any) -> Iterable[tuple[str | int, Any, FieldType]]:
        return ((index, item, self.item) for index, item in enumerate(value))

    def item_type(self, key: str | int) -> FieldType | None:
        return self.item

    def read(self, value: object, origin: Origin) -> Any:
        items = enumerate(read_items(self, value))
        return self.own(each(items, lambda _, item: read_item(self.item, item, origin)))

    def read_one(self, item: object, origin: Origin) -> Any:
        """Read what is put into a draft's value."""
        return read_item(self.item, item, origin)

    def own(self, value: Any) -> Any:
        return CheckedList(value, self) if self.mutable else tuple(value)

    def made(self, items: Any, frozen: bool) -> Any:
        return FrozenList(items, self.title) if frozen and self.mutable else self.own(items)


class TupleType(ContainerType):
    """Tuples of a fixed length with a type for each place."""

    opening = ("[",)
    __slots__ = ("kinds", "nested")

    def __init__(self, kinds: tuple[FieldType, ...]) -> None:
        self.kinds = kinds
        self.nested = any(kind.nested for kind in kinds)

    def describe(self) -> str:
        return f"a tuple of {len(self.kinds)}: " + ", ".join(k.describe() for k in self.kinds)

    def inner_types(self) -> tuple[FieldType, ...]:
        return self.kinds

    def items(self, value: Any) -> Iterable[tuple[str | int, Any, FieldType]]:
        pairs = zip(self.kinds, value, strict=True)
        return ((index, item, kind) for index, (kind, item) in enumerate(pairs))

    def item_type(self, key: str | int) -> FieldType | None:
        return self.kinds[key] if isinstance(key, int) and key < len(self.kinds) else None

    def read(self, value: object, origin: Origin) -> Any:
        items = list(read_items(self, value))
        if len(items) != len(self.kinds):
            raise Invalid(
                f"needs {len(self.kinds)} items, got {len(items)}", secret=self.is_secret()
            )
        return tuple(
            each(enumerate(items), lambda at, item: read_item(self.kinds[at], item, origin))
        )


class MappingType(ContainerType):
    """Mappings from texts to values of one type."""

    opening = ("{",)
    __slots__ = ("item", "nested", "title")

    def __init__(self, item: FieldType) -> None:
        self.item = item
        self.title = "(mapping)"
        self.nested = item.nested

    def describe(self) -> str:
        return f"a mapping from str to values, each {self.item.describe()}"

    def inner_types(self) -> tuple[FieldType, ...]:
        return (self.item,)

    def items(self, value: Any) -> Iterable[tuple[str | int, Any, FieldType]]:
        return ((key, item, self.item) for key, item in value.items())

    def item_type(self, key: str | int) -> FieldType | None:
        return self.item

    def sections(self, value: Any) -> Iterator[tuple[Path, Node]]:
        return super().sections(dict(sorted(value.items())))  # the order of keys means nothing

    def check_key(self, key: object) -> str:
        """Refuse a key that cannot be written in a file, or that makes a path ambiguous.

        Raises:
            Invalid: if it is no text, or the key of a section has a dot.
        """
        if not isinstance(key, str):
            raise Invalid(f"has a key that is not a str: {for_error(key)}")
        if not is_text(key):
            raise Invalid(f"has a key that cannot be written to a file: {key!r}")
        refuse_credentials(key)
        if key == REMOVE:
            raise Invalid("has the key 'remove', which is the word that takes keys out of it")
        if self.nested and (not key or "." in key):
            raise Invalid(f"has the key {key!r}, which cannot be part of a dotted path")
        return str(key)

    def read(self, value: object, origin: Origin) -> Any:
        if isinstance(value, PlainScalar):
            value = typed_data(self, parse_flow, value)
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
        """Read what is put into a draft's value."""
        return read_item(self.item, item, origin)

    def own(self, value: Any) -> Any:
        return CheckedDict(value, self)

    def plain(self, items: Iterable[tuple[Any, Any]]) -> Any:
        return dict(items)

    def made(self, items: Any, frozen: bool) -> Any:
        return FrozenDict(items, self.title) if frozen else self.own(items)


def name_containers(kind: FieldType, title: str) -> None:
    """Tell the lists and mappings of a field whose they are."""
    inner = title
    if isinstance(kind, SequenceType | MappingType):
        kind.title, inner = title, f"{title}.(item)"
    for part in kind.inner_types():
        name_containers(part, inner)


def read_items(kind: FieldType, value: object) -> Iterable[object]:
    """The items of a sequence given as a list, a tuple or a text such as `1,2` or `[1, 2]`.

    Raises:
        Invalid: if the value is not a sequence.
    """
    if isinstance(value, PlainScalar):
        return typed_data(kind, parse_list, value)
    if isinstance(value, list | tuple):
        return cast(Iterable[object], value)
    raise kind.refuse(value)


def typed_data(kind: FieldType, parse: Callable[[str], T], text: str) -> T:
    """A list or mapping that is typed as a text.

    Raises:
        Invalid: if it cannot be read; of what may be a secret, without the text.
    """
    try:
        return parse(text)
    except Invalid as error:
        raise Invalid(error.message, secret=kind.is_secret()) from None


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


def kind_at(kind: FieldType, inside: Path) -> FieldType | None:
    """The type of an item, at any depth; None where it depends on the value."""
    found: FieldType | None = kind
    for key in inside:
        found = None if found is None else found.item_type(key)
    return found


def unwrapped(kind: FieldType) -> FieldType:
    """The type inside an optional one."""
    while isinstance(kind, OptionalType):
        kind = kind.inner
    return kind
