"""Fields that hold another config: one class, or one of several that `type` selects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from ..values.node import Node
from ..values.origin import RECORD
from ..words.errors import Invalid, several
from ..words.names import FORGOTTEN
from ..words.plain_data import PlainScalar
from ..words.text import parse_flow
from .base import FieldType
from .containers import REMOVE
from .scalars import refuse_choice

if TYPE_CHECKING:
    from ..values.origin import Origin
    from ..words.names import Path


class SectionType(FieldType):
    """A nested config of a fixed class, of a family, or of a union of tagged classes.

    Arguments:
        classes: the classes of the annotation; a family stands for all its tagged subclasses.
    """

    nested = True

    def __init__(self, classes: tuple[type[Node], ...]) -> None:
        self.classes = classes

    def variants(self) -> dict[str, type[Node]]:
        """The classes that can stand here, by tag; subclasses made later are included.

        Returns:
            the variants; empty for a fixed class without a tag.
        """
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
        """The class that a tag selects.

        Raises:
            Invalid: if there is no such variant.
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

    def chosen(self, tag: object, lacking: str) -> type[Node]:
        """The class of a section whose `type` is given, or None where it is left out.

        Raises:
            Invalid: if there is no such variant; with the words for what is lacking if it must be
                given.
        """
        if tag is not None:
            try:
                return self.find(tag)
            except Invalid as error:
                raise error.inside("type") from None
        cls = self.only()
        if cls is None:
            raise Invalid(lacking, self.candidates(), at=("type",))
        abstract: frozenset[str] = getattr(cls, "__abstractmethods__", frozenset())
        if abstract:
            methods = ", ".join(sorted(abstract))
            raise Invalid(f"cannot be made: {cls.__name__} is abstract and lacks {methods}")
        return cls

    def only(self) -> type[Node] | None:
        """The class of a field that needs no `type`."""
        if len(self.classes) != 1:
            return None
        cls = self.classes[0]
        # What another package derives from a plain section adds to it, and makes it no family.
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
            # A component made by `setpoint.partial` becomes this family's variant for such ones.
            foreign = cast(Any, value)
            variant = self.variants().get(foreign.__setpoint__.tag or "")
            if not hasattr(variant, "__setpoint_open__"):
                message = "does not take components that are imported by a path"
                raise Invalid(message, self.candidates())
            return foreign.__setpoint_variant__(variant)
        if isinstance(value, PlainScalar) and value.startswith("{"):
            value = parse_flow(value)
        if isinstance(value, Mapping):
            entries = cast(Mapping[str, object], value)
            section = self.chosen(tag_of(entries), "needs a type")()
            fill(section, _fields_in(entries), origin)
            return section
        if isinstance(value, str) and self.variants():
            return self.find(value)()
        raise self.refuse(value)

    def _untagged(self, cls: type[Node]) -> Invalid:
        """The error for a section of a class that nothing tells apart from the others."""
        if cls.__setpoint__.variants:
            return Invalid(
                f"{cls.__name__} is a family; choose one of its variants", self.candidates()
            )
        tag = cls.__name__.lower()
        return Invalid(
            f"{cls.__name__} has no tag, so that no file could name it",
            self.candidates(),
            hint=f'Declare it as class {cls.__name__}(..., type="{tag}").',
        )

    def replace_sections(self, value: Any, function: Callable[[Any], Any], frozen: bool) -> Any:
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
    """Read a mapping, without its `type`, into a section: all layers and nested mappings do it so.

    Arguments:
        put: sets the field of a key; `fill_field` if None. A layer also edits what stands there.
        fail: takes the error for a key; if None, those of all keys are raised together.

    Raises:
        Invalid: for everything that does not fit, unless `fail` takes it.
    """
    errors: list[Invalid] = []
    put = put or (lambda key, value: fill_field(section, key, value, origin))
    fail = fail or (lambda key, value, error: errors.append(error.inside(key)))
    for key, error in _spelled_twice(section, values):
        fail(key, values[key], error)
    for name, value in values.items():
        key = str(name)  # a program may give anything
        try:
            put(key, value)
        except Invalid as error:
            fail(key, value, error)
    if errors:
        raise several(errors)


def _spelled_twice(section: Node, values: Mapping[str, object]) -> Iterator[tuple[str, Invalid]]:
    """Keys of one field that stand beside each other with hyphens and with underscores."""
    if not any("-" in str(key) for key in values):
        return
    first: dict[str, str] = {}
    for key in map(str, values):
        info = type(section).__setpoint__.find(key)
        if info is not None and (other := first.setdefault(info.name, key)) != key:
            yield key, Invalid(f"is {other} once more: hyphens and underscores are the same")


def fill_field(section: Node, key: str, value: object, origin: Origin) -> None:
    """Set the field that a key names; a mapping adds to the default that stands there.

    Raises:
        Invalid: if there is no such field, or it does not take the value.
    """
    known = type(section).__setpoint__
    info = known.find(key)
    if info is None:
        raise known.unknown(key)
    if isinstance(value, Mapping):
        entries = cast(Mapping[str, object], value)
        default: Any = info.initial()
        if isinstance(default, dict) and origin.layer != RECORD:  # which holds whole values
            value = _added_to(cast(dict[str, object], default), entries)
        elif isinstance(default, Node) and entries.get("type") in (None, default.__setpoint__.tag):
            fill(default, _fields_in(entries), origin)
            value = default
    section.store(info.name, info.read(cast(object, value), origin), origin)


def _fields_in(values: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in values.items() if key != "type"}


def tag_of(values: Mapping[str, object]) -> object:
    """The variant that a mapping chooses for the section that it stands for.

    Raises:
        Invalid: if it is null, which chooses nothing.
    """
    tag = values.get("type")
    if tag is None and "type" in values:
        raise Invalid("is null, which is not a variant; leave it out to keep the current one")
    return tag


def _added_to(default: dict[str, object], entries: Mapping[str, object]) -> dict[str, object]:
    """A default with some entries, without the keys that these remove from it."""
    removed = entries.get(REMOVE, ())
    names = cast(list[object], removed) if isinstance(removed, list | tuple) else [removed]
    for name in names:
        if not isinstance(name, str) or name not in default:
            raise Invalid(f"has no item {str(name)!r} to remove", tuple(default)).inside(REMOVE)
    kept = {key: item for key, item in default.items() if key not in names}
    return kept | {key: item for key, item in entries.items() if key != REMOVE}


def section_classes(kind: FieldType) -> list[type[Node]]:
    """The config classes that can stand in a field, through options, lists and mappings."""
    if not kind.nested:
        return []
    if isinstance(kind, SectionType):
        only = kind.only()
        return [only] if only else list(kind.variants().values())
    return list(dict.fromkeys(cls for part in kind.parts for cls in section_classes(part)))
