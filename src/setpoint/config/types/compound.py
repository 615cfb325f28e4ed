"""Compound types: optional and alternative types, lists, mappings, data and sections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..values.containers import (
    CheckedDict,
    CheckedList,
    Free,
    read_key,
    read_plain,
)
from ..values.node import Node
from ..values.origin import DEFAULT, RECORD, Origin
from ..words.errors import Invalid, several
from ..words.names import FORGOTTEN, nearest
from ..words.plain_data import PlainScalar, literal, plain
from ..words.text import DATA, for_error, for_file, parse_flow, parse_list
from .base import FieldType, dump_item, read_item, refuse_choice, replace_in_item

if TYPE_CHECKING:
    from ..words.names import Path


K = TypeVar("K", int, str)
T = TypeVar("T")
# The word that removes items of a list or a mapping, and so cannot be a key of a mapping.
REMOVE = "remove"
# The words that insert items into a list.
ADDING = ("append", "extend", "insert")


class ChoiceType(FieldType):
    """Alternative types, of which a value has one."""

    def __init__(self, *options: FieldType) -> None:
        super().__init__(*options)
        self.takes_text = any(option.takes_text for option in options)
        self.opening = tuple(char for option in options for char in option.opening)

    def chosen(self, value: Any) -> FieldType:
        """The alternative that matches a value."""
        raise self.refuse(value)

    def dump(self, value: Any) -> Any:
        return self.chosen(value).dump(value)

    def replace_sections(self, value: Any, function: Callable[[Any], Any]) -> Any:
        return self.chosen(value).replace_sections(value, function)

    def items(self, value: Any) -> Iterable[tuple[str | int, Any, FieldType]]:
        return self.chosen(value).items(value)

    def sections(self, value: Any) -> Iterator[tuple[Path, Node]]:
        return self.chosen(value).sections(value)


NULL = FieldType()
"""The type of null."""


class OptionalType(ChoiceType):
    """A value or null. The text `null` means null wherever null is allowed, in every format."""

    @property
    def inner(self) -> FieldType:
        """The type of a value that is not null."""
        return self.parts[0]

    def describe(self) -> str:
        return f"{self.inner.describe()}, or null"

    def candidates(self) -> tuple[str, ...]:
        return (*self.inner.candidates(), "null") if self.inner.candidates() else ()

    def chosen(self, value: Any) -> FieldType:
        return NULL if value is None else self.inner

    def read(self, value: object, origin: Origin) -> Any:
        if value is None or (isinstance(value, str) and value == "null"):
            return None
        result = self.inner.read(value, origin)
        return None if isinstance(result, str) and result == "null" else result

    def item_type(self, key: str | int) -> FieldType | None:
        return self.inner.item_type(key)


class AnyOfType(ChoiceType):
    """Alternatives of plain types, the narrowest first.

    A typed text that begins with `[` or `{` is a list or mapping if either is an alternative. If
    text is also an alternative, any other typed text is text, without its quotes if it has any.

    Arguments:
        options: the types; the first that accepts a value is used.
    """

    def describe(self) -> str:
        return " or ".join(option.describe() for option in self.parts)

    def candidates(self) -> tuple[str, ...]:
        return tuple(text for option in self.parts for text in option.candidates())

    def lists_items(self, text: str) -> bool:
        return text.startswith(self.opening) or (not self.takes_text and super().lists_items(text))

    def with_items(self, value: Any, key: object) -> FieldType:
        if isinstance(value, list | tuple | dict):
            return self.chosen(value).with_items(value, key)
        first: tuple[type[FieldType], ...] = (SequenceType, MappingType)
        for kind in first if key in ADDING else first[::-1]:
            option = None if value else self.option(kind)
            if option is not None:
                return option
        return self

    def option(self, cls: type[FieldType]) -> FieldType | None:
        """The first alternative of a kind."""
        return next((option for option in self.parts if isinstance(option, cls)), None)

    def read(self, value: object, origin: Origin) -> Any:
        options = self.parts
        if isinstance(value, PlainScalar) and self.opening:
            if self.takes_text and value.startswith(("'", '"')):
                value = _parsed(self, parse_flow, value)
            elif value.startswith(self.opening):
                options = [option for option in options if value.startswith(option.opening)]
            elif self.takes_text:
                options = [option for option in options if not option.opening]
        for option in options:
            try:
                return option.read(value, origin)
            except Invalid as error:
                # Other alternatives must not accept a secret, or show it.
                if error.secret or len(options) == 1 < len(self.parts):
                    raise
        raise self.refuse(value)

    def items(self, value: Any) -> Iterable[tuple[str | int, Any, FieldType]]:
        return super().items(value) if isinstance(value, list | tuple | dict) else ()

    def chosen(self, value: Any) -> FieldType:
        for option in self.parts:
            try:
                if option.read(value, Origin(DEFAULT)) == value:
                    return option
            except Invalid:
                continue
        raise self.refuse(value)


class ContainerType(FieldType):
    """Lists, tuples and mappings; `title` is the class and field, for errors."""

    title = "(list)"

    @property
    def item(self) -> FieldType:
        """The type of the items; for a tuple, that of the first."""
        return self.parts[0]

    def is_container(self) -> bool:
        return True

    def lists_items(self, text: str) -> bool:
        return True

    def item_type(self, key: str | int) -> FieldType | None:
        return self.item

    def read_one(self, item: object, origin: Origin) -> Any:
        """Read a value that is put into a draft's list or mapping."""
        return read_item(self.item, item, origin)

    def dump(self, value: Any) -> Any:
        items = ((key, dump_item(kind, item)) for key, item, kind in self.items(value))
        return self.plain(items)

    def replace_sections(self, value: Any, function: Callable[[Any], Any]) -> Any:
        new = (
            (key, replace_in_item(kind, item, function)) for key, item, kind in self.items(value)
        )
        return self.make(self.plain(new))

    def plain(self, items: Iterable[tuple[Any, Any]]) -> Any:
        """A list, or for mappings a dict, of items with their indices or keys."""
        return [item for _, item in items]

    def make(self, items: Any) -> Any:
        """Make a value of the type from items: a checked list or mapping, or a tuple."""
        return tuple(items)


class SequenceType(ContainerType):
    """Tuples of one item type and any length, and lists, which are mutable in drafts."""

    opening = ("[",)

    def __init__(self, item: FieldType, mutable: bool) -> None:
        super().__init__(item)
        self.mutable = mutable

    def describe(self) -> str:
        return f"a list of values, each {self.item.describe()}"

    def items(self, value: Any) -> Iterable[tuple[str | int, Any, FieldType]]:
        return ((index, item, self.item) for index, item in enumerate(value))

    def read(self, value: object, origin: Origin) -> Any:
        if isinstance(value, str | int | float) and not isinstance(value, PlainScalar):
            raise self._refuse_item(value, origin)
        items = enumerate(read_items(self, value))
        return self.make(each(items, lambda _, item: read_item(self.item, item, origin)))

    def _refuse_item(self, value: str | float, origin: Origin) -> Invalid:
        """The error for an item in place of a list that contains only this item."""
        error = self.refuse(value)
        try:
            read_item(self.item, value, origin)
        except Invalid:
            return error
        return error.but(hint=error.hint or f"Did you mean [{for_file(value)}]?")

    def make(self, items: Any) -> Any:
        return CheckedList(items, self) if self.mutable else tuple(items)


class TupleType(ContainerType):
    """Tuples of a fixed length, with a type for each position."""

    opening = ("[",)

    def describe(self) -> str:
        return f"a tuple of {len(self.parts)}: " + ", ".join(k.describe() for k in self.parts)

    def items(self, value: Any) -> Iterable[tuple[str | int, Any, FieldType]]:
        pairs = zip(self.parts, value, strict=True)
        return ((index, item, kind) for index, (kind, item) in enumerate(pairs))

    def item_type(self, key: str | int) -> FieldType | None:
        return self.parts[key] if isinstance(key, int) and key < len(self.parts) else None

    def read(self, value: object, origin: Origin) -> Any:
        items = list(read_items(self, value))
        if len(items) != len(self.parts):
            raise Invalid(
                f"needs {len(self.parts)} items, got {len(items)}", secret=self.is_secret()
            )
        pairs = enumerate(items)
        return tuple(each(pairs, lambda index, item: read_item(self.parts[index], item, origin)))


class MappingType(ContainerType):
    """Mappings from texts to values of one type."""

    opening = ("{",)
    title = "(mapping)"

    def describe(self) -> str:
        return f"a mapping from str to values, each {self.item.describe()}"

    def items(self, value: Any) -> Iterable[tuple[str | int, Any, FieldType]]:
        return ((key, item, self.item) for key, item in value.items())

    def sections(self, value: Any) -> Iterator[tuple[Path, Node]]:
        return super().sections(dict(sorted(value.items())))  # the order of keys has no meaning

    def check_key(self, key: object) -> str:
        """Refuse a key that a file cannot contain, or that makes a path ambiguous.

        Raises:
            Invalid: the key is not text, or is the key of a section and has a dot.
        """
        name = read_key(key)
        if name == REMOVE:
            raise Invalid("has the key 'remove', which is the word that removes keys from it")
        if self.nested and (not name or "." in name):
            raise Invalid(f"has the key {name!r}, which cannot be part of a dotted path")
        return name

    def read(self, value: object, origin: Origin) -> Any:
        if isinstance(value, PlainScalar):
            value = _parsed(self, parse_flow, value)
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

    def plain(self, items: Iterable[tuple[Any, Any]]) -> Any:
        return dict(items)

    def make(self, items: Any) -> Any:
        return CheckedDict(items, self)


class FreeType(FieldType):
    """The user's own area: any keys, any plain values."""

    words = "any keys with plain values"

    def read(self, value: object, origin: Origin) -> Any:
        return Free.read(value, origin)

    def dump(self, value: Any) -> Any:
        return value.dump()

    def replace_sections(self, value: Any, function: object) -> Any:
        return value.copy(frozen=False)


class DataType(FieldType):
    """Plain data inside a list or mapping of no declared type, where `${` is ordinary text."""

    words = "plain data"
    opening = DATA

    def is_container(self) -> bool:
        return True

    def lists_items(self, text: str) -> bool:
        return text.startswith(DATA)

    def with_items(self, value: Any, key: object) -> FieldType:
        if isinstance(value, Mapping) or (value is None and key not in ADDING):
            return MappingType(DataType())
        return (
            SequenceType(DataType(), False) if value is None or isinstance(value, tuple) else self
        )

    def read(self, value: object, origin: Origin) -> Any:
        return read_plain(value)

    def dump(self, value: Any) -> Any:
        return plain(value)


class AnyType(DataType):
    """Plain data of any kind, where a field is declared as `Any` or `object`."""

    def read(self, value: object, origin: Origin) -> Any:
        data = read_plain(value)
        return literal(data) if isinstance(data, str) else data


def name_containers(kind: FieldType, title: str) -> None:
    """Give the lists and mappings of a field its name."""
    if isinstance(kind, ContainerType):
        kind.title, title = title, f"{title}.(item)"
    for part in kind.parts:
        name_containers(part, title)


def read_items(kind: FieldType, value: object) -> Iterable[object]:
    """The items of a sequence given as a list, a tuple or a text such as `1,2` or `[1, 2]`.

    Raises:
        Invalid: the value is not a sequence.
    """
    if isinstance(value, PlainScalar):
        return _parsed(kind, parse_list, value)
    if isinstance(value, list | tuple):
        return cast(Iterable[object], value)
    raise kind.refuse(value)


def _parsed(kind: FieldType, parse: Callable[[str], T], text: str) -> T:
    """Parse a list or mapping that is typed as a text.

    Raises:
        Invalid: the text cannot be parsed; the error omits the text if it may be a secret.
    """
    try:
        return parse(text)
    except Invalid as error:
        raise Invalid(error.message, secret=kind.is_secret()) from None


def each(items: Iterable[tuple[K, object]], read: Callable[[K, object], Any]) -> list[Any]:
    """Read all items, each with its index or key, and collect all errors.

    Raises:
        Invalid: all errors, each with its index or key.
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
    """The type of an item, at any depth; None if it depends on the value."""
    item: FieldType | None = kind
    for key in inside:
        item = None if item is None else item.item_type(key)
    return item


def unwrapped(kind: FieldType) -> FieldType:
    """The type inside an optional one."""
    while isinstance(kind, OptionalType):
        kind = kind.inner
    return kind


class SectionType(FieldType):
    """A nested config of a fixed class, a family with its subclasses, or a union."""

    nested = True

    def __init__(self, classes: tuple[type[Node], ...]) -> None:
        self.classes = classes

    def variants(self) -> dict[str, type[Node]]:
        """The variants by tag, including subclasses defined later."""
        variants: dict[str, type[Node]] = {}
        for cls in self.classes:
            variants.update(cls.__setpoint__.variants)
        return variants

    def describe(self) -> str:
        tags = self.candidates()
        if tags:
            return "a section with type = " + " or ".join(tags)
        return f"a section ({self.classes[0].__name__})"

    def candidates(self) -> tuple[str, ...]:
        return tuple(self.variants())

    def find(self, tag: object) -> type[Node]:
        """The class selected by a tag.

        Raises:
            Invalid: there is no such variant.
        """
        variants = self.variants()
        if isinstance(tag, str) and str(tag) in variants:
            return variants[str(tag)]
        if not variants:
            raise Invalid(f"{self.classes[0].__name__} has no variants, so no type can be chosen")
        error = refuse_choice(tag, tuple(variants))
        if isinstance(tag, str) and "." in tag and "import" in variants:
            error.hint = f'A callable is given as {{type = "import", target = "{tag}"}}.'
        elif isinstance(tag, str) and tag != "null" and not error.hint:
            error.hint = f"{FORGOTTEN}."
        raise error

    def chosen(self, tag: object, message: str) -> type[Node]:
        """The class selected by `type`; None without one.

        Raises:
            Invalid: there is no such variant; `message` if the tag is required and missing.
        """
        if tag is not None:
            try:
                return self.find(tag)
            except Invalid as error:
                raise error.inside("type") from None
        cls = self.only()
        if cls is None:
            raise Invalid(message, self.candidates(), at=("type",))
        abstract: frozenset[str] = getattr(cls, "__abstractmethods__", frozenset())
        if abstract:
            methods = ", ".join(sorted(abstract))
            raise Invalid(f"cannot be made: {cls.__name__} is abstract and lacks {methods}")
        return cls

    def _selected_class(self, entries: Mapping[str, object]) -> type[Node]:
        """The class that a mapping selects by its `type`; a misspelled one is reported."""
        try:
            return self.chosen(tag_of(entries), "needs a type")
        except Invalid as error:
            fields = {name for cls in self.variants().values() for name in cls.__setpoint__.fields}
            near = nearest("type", (str(key) for key in entries if key not in fields), 1, 0.75)
            if "type" in entries or not near:
                raise
            raise error.but(hint=f"Write type instead of {near[0]}.") from None

    def only(self) -> type[Node] | None:
        """The class of a field that needs no `type`."""
        if len(self.classes) != 1:
            return None
        cls = self.classes[0]
        # A subclass of a plain section in another package extends it without making it a family.
        home, tagged = cls.__module__.partition(".")[0], cls.__setpoint__.tag is not None
        for variant in self.variants().values():
            if variant is not cls and (tagged or variant.__module__.partition(".")[0] == home):
                return None
        return cls

    def read(self, value: object, origin: Origin) -> Any:
        if isinstance(value, self.classes):
            tagged = type(value).__setpoint__.tag
            if tagged is None and type(value) is not self.only():
                raise self._untagged(type(value))
            return value
        if hasattr(value, "__setpoint_open__"):
            # A component made by `setpoint.partial` becomes the family's variant for imports.
            foreign = cast(Any, value)
            variant = self.variants().get(foreign.__setpoint__.tag or "")
            if not hasattr(variant, "__setpoint_open__"):
                message = "does not accept components imported by path"
                raise Invalid(message, self.candidates())
            return foreign.__setpoint_variant__(variant)
        if isinstance(value, PlainScalar) and value.startswith("{"):
            value = parse_flow(value)
        if isinstance(value, Mapping):
            entries = cast(Mapping[str, object], value)
            section = self._selected_class(entries)()
            fill(section, _fields_in(entries), origin)
            return section
        if isinstance(value, str) and self.variants():
            return self.find(value)()
        raise self.refuse(value)

    def _untagged(self, cls: type[Node]) -> Invalid:
        """The error for a class of a union without a distinguishing tag."""
        if cls.__setpoint__.variants:
            return Invalid(f"{cls.__name__} is a family; choose a variant", self.candidates())
        tag = cls.__name__.lower()
        return Invalid(
            f"{cls.__name__} has no tag, so that no file could name it",
            self.candidates(),
            hint=f'Declare it as class {cls.__name__}(..., type="{tag}").',
        )

    def replace_sections(self, value: Any, function: Callable[[Any], Any]) -> Any:
        return function(value)

    def sections(self, value: Any) -> Iterator[tuple[Path, Node]]:
        yield (), value


def fill(
    section: Node,
    values: Mapping[str, object],
    origin: Origin,
    put: Callable[[str, object], None] | None = None,
    fail: Callable[[str, object, Invalid], None] | None = None,
) -> None:
    """Read a mapping, without its `type`, into a section, for all layers and nested mappings.

    Arguments:
        put: sets the field of a key; `fill_field` if None. A layer also edits existing values.
        fail: receives the error for a key; if None, the errors of all keys are raised together.

    Raises:
        Invalid: all errors, unless `fail` receives them.
    """
    errors: list[Invalid] = []
    put = put or (lambda key, value: fill_field(section, key, value, origin))
    fail = fail or (lambda key, value, error: errors.append(error.inside(key)))
    for key, error in _spelled_twice(section, values):
        fail(key, values[key], error)
    for name, value in values.items():
        key = str(name)  # programs may pass keys of any type
        try:
            put(key, value)
        except Invalid as error:
            fail(key, value, error)
    if errors:
        raise several(errors)


def _spelled_twice(section: Node, values: Mapping[str, object]) -> Iterator[tuple[str, Invalid]]:
    """Find keys that differ only in hyphens and underscores."""
    if not any("-" in str(key) for key in values):
        return
    first: dict[str, str] = {}
    for key in map(str, values):
        info = type(section).__setpoint__.find(key)
        if info is not None and (other := first.setdefault(info.name, key)) != key:
            yield key, Invalid(f"is {other} again: hyphens and underscores are equivalent")


def fill_field(section: Node, key: str, value: object, origin: Origin) -> None:
    """Set the field named by a key; a mapping adds to the current default.

    Raises:
        Invalid: there is no such field, or it cannot accept the value.
    """
    known = type(section).__setpoint__
    info = known.find(key)
    if info is None:
        raise known.unknown(key)
    if isinstance(value, Mapping):
        entries = cast(Mapping[str, object], value)
        default: Any = info.initial()
        if isinstance(default, dict) and origin.layer != RECORD:  # records have complete values
            value = _merged(cast(dict[str, object], default), entries)
        elif isinstance(default, Node) and entries.get("type") in (None, default.__setpoint__.tag):
            fill(default, _fields_in(entries), origin)
            value = default
    section.store(info.name, info.read(cast(object, value), origin), origin)


def _fields_in(values: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in values.items() if key != "type"}


def tag_of(values: Mapping[str, object]) -> object:
    """The variant that a mapping selects by its `type`.

    Raises:
        Invalid: the `type` is null, which selects no variant.
    """
    tag = values.get("type")
    if tag is None and "type" in values:
        raise Invalid("is null, which is not a variant; leave it out to keep the current one")
    return tag


def _merged(default: dict[str, object], entries: Mapping[str, object]) -> dict[str, object]:
    """Merge entries into a default mapping, removing the keys that they remove."""
    removed = entries.get(REMOVE, ())
    names = cast(list[object], removed) if isinstance(removed, list | tuple) else [removed]
    for name in names:
        if not isinstance(name, str) or name not in default:
            raise Invalid(f"has no item {for_error(name)} to remove", tuple(default)).inside(REMOVE)
    kept = {key: item for key, item in default.items() if key not in names}
    return kept | {key: item for key, item in entries.items() if key != REMOVE}


def section_classes(kind: FieldType) -> list[type[Node]]:
    """The config classes of a field, including those in optional types, lists and mappings."""
    if not kind.nested:
        return []
    if isinstance(kind, SectionType):
        only = kind.only()
        return [only] if only else list(kind.variants().values())
    return list(dict.fromkeys(cls for part in kind.parts for cls in section_classes(part)))
