"""The values of an imported component's arguments: plain data, or further components."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from ..draft.config import Config
from ..schema.declare import field
from ..types.base import FieldType
from ..types.containers import AnyType, MappingType, SequenceType, each
from ..types.sections import SectionType
from ..values.containers import read_key, read_plain
from ..values.node import Node
from ..values.reference import Reference, is_reference
from ..values.scalar import ImportPath
from ..words.errors import Invalid
from ..words.plain_data import PlainScalar, children, literal
from ..words.text import DATA, parse_flow

if TYPE_CHECKING:
    from ..values.origin import Origin

COMPONENTS: dict[str, type[Node]] = {}
"""The classes of components by the tag in a file: `ImportedName` and `Partial`."""


class ImportedName(Config, type="name", owner="setpoint.config.components.signature:named"):
    """A callable that is an argument itself and is not called."""

    target: ImportPath = field()
    """Its import path."""


COMPONENTS["name"] = ImportedName


class ArgumentType:
    """Reads an argument of an imported component; what its target makes of it is checked elsewhere.

    Plain data, one component, and a list or a mapping of components are kept as fields of these
    kinds are anywhere else, so that all that walks over a tree finds the components inside.
    """

    __slots__ = ()

    def read(self, value: object, origin: Origin) -> Any:
        """See `FieldType.read`; every kind of value is taken."""
        return read_argument(value, origin)

    @staticmethod
    def of(kind: str) -> FieldType:
        """The type for a kind of value."""
        if kind == "section":
            return _Component()
        if kind == "list":
            return _List(_Component(), mutable=False)
        if kind == "mapping":
            return _Mapping(_Component())
        return _Plain()


class _Plain(ArgumentType, AnyType):
    __slots__ = ()
    words = "an argument of the target"


class _Component(ArgumentType, SectionType):
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(tuple(COMPONENTS.values()))


class _List(ArgumentType, SequenceType):
    __slots__ = ()


class _Mapping(ArgumentType, MappingType):
    __slots__ = ()


def kind_of(value: object) -> str:
    """The kind of value of an argument.

    Returns:
        `plain`, `section`, or `list` or `mapping` of sections.
    """
    if isinstance(value, Config):
        return "section"
    if isinstance(value, tuple) and _holds(cast(tuple[object, ...], value)):
        return "list"
    if isinstance(value, dict) and _holds(cast(dict[str, object], value).values()):
        return "mapping"
    return "plain"


def _holds(items: Collection[object]) -> bool:
    """True if items are components, or references to what may be some."""
    return any(isinstance(item, Config | Reference) for item in items)


def read_argument(value: Any, origin: Origin) -> Any:
    """Read what was given for an argument.

    Raises:
        Invalid: if it is neither.
    """
    if isinstance(value, PlainScalar) and value.startswith(DATA):
        value = parse_flow(value)
    if _is_component(value):
        return _component(value, origin)
    if isinstance(value, list | tuple) and _components(cast(list[object], value)):
        items = enumerate(cast(list[object], value))
        return tuple(each(items, lambda _, item: _inside(item, origin)))
    if isinstance(value, Mapping):
        entries = cast(Mapping[Any, object], value)
        if _components(entries.values()):
            keys = [read_key(key) for key in entries]
            pairs = zip(keys, entries.values(), strict=True)
            read = each(pairs, lambda _, item: _inside(item, origin))
            return _Mapping(_Component()).made(dict(zip(keys, read, strict=True)))
    plain = cast(object, value)
    _refuse_hidden(plain, 0)
    read = read_plain(plain)
    return literal(read) if isinstance(read, str) else read


def _is_component(value: object) -> bool:
    if isinstance(value, Mapping):
        entries = cast(Mapping[object, object], value)
        return entries.get("type") in COMPONENTS and "target" in entries
    return isinstance(value, Config) or (callable(value) and not isinstance(value, str))


def _components(items: Collection[object]) -> bool:
    """True if a list or mapping holds components, some of them perhaps by reference."""
    if any(map(_is_component, items)):
        return True
    return bool(items) and all(isinstance(item, str) and is_reference(item) for item in items)


def _component(value: object, origin: Origin) -> Any:
    if callable(value) and not isinstance(value, Config):
        named: Node = cast(Any, ImportedName)()
        named.store(
            "target", ImportedName.__setpoint__.fields["target"].read(value, origin), origin
        )
        return named
    return SectionType.read(_Component(), value, origin)


def _inside(item: object, origin: Origin) -> Any:
    if isinstance(item, Reference):
        return item
    if isinstance(item, str) and is_reference(item):
        return Reference(item)
    if not _is_component(item):
        raise Invalid(
            "must be a component, as the others are: a list or mapping holds components only, or "
            "plain values only"
        )
    return _component(item, origin)


def _refuse_hidden(value: object, depth: int) -> None:
    """Refuse a component that is nested too deeply to be built."""
    if depth and _is_component(value):
        raise Invalid(
            "holds a component that is nested too deeply: a component is an argument itself, or an "
            "item of a list or mapping that is one"
        )
    for _, item in children(value):
        _refuse_hidden(item, depth + 1)


def arguments_of(section: Node) -> dict[str, Any]:
    """The arguments beside the target and the declared fields."""
    return {name: getattr(section, name) for name in kinds_of(type(section))}


def shared_fields(section: Node) -> tuple[str, ...]:
    """The declared fields that are handed over where the target takes them."""
    fields = type(section).__setpoint__.cls.__setpoint__.fields
    return tuple(name for name in fields if name != "target")


def components_in(value: object) -> Iterator[Any]:
    """The imported components directly inside the value of an argument."""
    items: Any = (value,)
    if isinstance(value, tuple):
        items = cast(tuple[Any, ...], value)
    elif isinstance(value, dict):
        items = cast(dict[str, Any], value).values()
    yield from (
        item
        for item in items
        if isinstance(item, Config)
        and (isinstance(item, ImportedName) or hasattr(item, "__setpoint_open__"))
    )


def kinds_of(cls: type[Node]) -> dict[str, str]:
    """The kind of value of each argument of a section's class, by name."""
    declared, fields = cls.__setpoint__.cls.__setpoint__.fields, cls.__setpoint__.fields
    return {name: str(one.annotation) for name, one in fields.items() if name not in declared}
