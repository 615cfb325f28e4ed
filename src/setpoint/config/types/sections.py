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

    __slots__ = ("classes",)
    nested = True

    def __init__(self, classes: tuple[type[Node], ...]) -> None:
        self.classes = classes

    def variants(self) -> dict[str, type[Node]]:
        """The classes that can stand here, by tag; subclasses made later are included.

        Returns:
            the variants; empty for a fixed class without a tag.
        """
        found: dict[str, Any] = {}
        for cls in self.classes:
            found.update(cls.__setpoint__.variants)
        return found

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
        refused = refuse_choice(tag, tuple(variants))
        if isinstance(tag, str) and "." in tag and "import" in variants:
            refused.hint = f'A callable is given as {{type = "import", target = "{tag}"}}.'
        elif isinstance(tag, str) and tag != "null" and not refused.hint:
            refused.hint = f"{FORGOTTEN}."
        raise refused

    def chosen(self, tag: object, lacking: str) -> type[Node]:
        """The class of a section whose `type` is given, or None where it is left out.

        Raises:
            Invalid: if there is no such variant; with the words for what is lacking if it must be
                given.
        """
        try:
            if tag is not None:
                return self.find(tag)
            cls = self.only()
            if cls is None:
                raise Invalid(lacking, self.candidates())
        except Invalid as error:
            raise error.inside("type") from None
        lacking_methods: frozenset[str] = getattr(cls, "__abstractmethods__", frozenset())
        if lacking_methods:
            raise Invalid(
                f"cannot be made: {cls.__name__} is abstract and lacks "
                f"{', '.join(sorted(lacking_methods))}"
            )
        return cls

    def only(self) -> type[Node] | None:
        """The class of a field that needs no `type`."""
        if len(self.classes) != 1:
            return None
        cls = self.classes[0]
        others = [one for one in self.variants().values() if one is not cls]
        if not others:
            return cls
        # What another package derives from a plain section adds to it, and makes it no family.
        tagged, home = cls.__setpoint__.tag is not None, _package(cls)
        return None if tagged or any(_package(one) == home for one in others) else cls

    def read(self, value: object, origin: Origin) -> Any:
        if isinstance(value, self.classes):
            tagged = type(value).__setpoint__.tag
            if tagged is None and type(value) is not self.only():
                raise self._untagged(type(value))
            return value
        if hasattr(value, "__setpoint_open__"):
            return self._foreign(value)
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

    def _foreign(self, value: Any) -> Any:
        """A component made by `setpoint.partial`, as this family's variant for such components."""
        tag: str | None = value.__setpoint__.tag
        cls = self.variants().get(tag or "")
        if cls is None or not hasattr(cls, "__setpoint_open__"):
            raise Invalid("does not take components that are imported by a path", self.candidates())
        return value.__setpoint_variant__(cls)

    def replace_sections(self, value: Any, function: Callable[[Any], Any], frozen: bool) -> Any:
        return function(value)

    def sections(self, value: Any) -> Iterator[tuple[Path, Node]]:
        yield (), value


def _package(cls: type[Node]) -> str:
    """The package that a class is part of, or the script."""
    return cls.__module__.partition(".")[0]


def fill(
    section: Node,
    values: Mapping[str, object],
    origin: Origin,
    put: Callable[[str, object], None] | None = None,
    fail: Callable[[str, object, Invalid], None] | None = None,
) -> None:
    """Read a mapping, without its `type`, into a section: all layers and nested mappings do it so.

    Values that need no closer look are stored at once, the others one by one.

    Arguments:
        put: sets the field of a key; `fill_field` if None. A layer also edits what stands there.
        fail: takes the error for a key; if None, those of all keys are raised together.

    Raises:
        Invalid: for everything that does not fit, unless `fail` takes it.
    """
    errors: list[Invalid] = []
    for key, error in _spelled_twice(section, values):
        if fail is None:
            errors.append(error.inside(key))
        else:
            fail(key, values[key], error)
    for name, value in values.items():
        key = str(name)  # a program may give anything
        try:
            if put is None:
                fill_field(section, key, value, origin)
            else:
                put(key, value)
        except Invalid as error:
            if fail is None:
                errors.append(error.inside(key))
            else:
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
        usual: Any = info.initial()
        if isinstance(usual, dict) and origin.layer != RECORD:  # which holds whole values
            value = _added_to(cast(dict[str, object], usual), entries)
        elif _is_of(usual, entries.get("type")):
            fill(cast("Node", usual), _fields_in(entries), origin)
            value = cast(object, usual)
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


def _is_of(usual: Any, tag: object) -> bool:
    """Whether a default is a section of the variant that is chosen, or of the only one."""
    info: Any = getattr(cast(object, usual), "__setpoint__", None)
    return info is not None and tag in (None, info.tag)


def _added_to(usual: dict[str, object], entries: Mapping[str, object]) -> dict[str, object]:
    """A mapping as it is with its default, without the keys that are taken out of that."""
    gone = entries.get(REMOVE, ())
    names = cast(list[object], gone) if isinstance(gone, list | tuple) else [gone]
    for name in names:
        if not isinstance(name, str) or name not in usual:
            raise Invalid(f"has no item {str(name)!r} to remove", tuple(usual)).inside(REMOVE)
    rest = {key: item for key, item in entries.items() if key != REMOVE}
    return {**{key: item for key, item in usual.items() if key not in names}, **rest}


def section_classes(kind: FieldType) -> list[type[Node]]:
    """The config classes that can stand in a field, through options, lists and mappings."""
    if not kind.nested:
        return []
    if isinstance(kind, SectionType):
        only = kind.only()
        return [only] if only else list(kind.variants().values())
    found = [cls for inner in kind.inner_types() for cls in section_classes(inner)]
    return list(dict.fromkeys(found))
