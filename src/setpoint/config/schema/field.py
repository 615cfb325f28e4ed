"""One field of a config class: what it declares, its type, its default, and its checks."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import GenericAlias, UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from ..types.base import read_item
from ..types.compiler import SIMPLE, compile_annotation
from ..types.containers import ContainerType, MappingType, SequenceType, each, name_containers
from ..types.scalars import FloatType, IntType, LiteralType, StrType
from ..types.sections import section_classes
from ..types.special import AnyType, PatternType, ScalarType
from ..values.free import Free
from ..values.import_path import ImportPath
from ..values.node import Node
from ..values.origin import DEFAULT, Origin, running
from ..values.reference import Reference, may_refer
from ..values.user_code import error_in_words, traceback_of
from ..words.errors import DeclarationError, Invalid, SetpointError, UserCodeError
from ..words.shown import MISSING, children, shown_part
from .bounds import Bounds, Role

if TYPE_CHECKING:
    from ..types.base import FieldType

# The annotations whose values need no reading if they are of exactly this type.
EXACT: dict[object, type] = {
    **{kind.__name__: kind for kind in (int, float, bool, str)},
    **{kind: kind for kind in (int, float, bool, str)},
}
NULL = " | None"
OPTIONAL: dict[object, type] = {
    **{f"{kind.__name__}{NULL}": kind for kind in (int, float, bool, str)},
    **{kind | None: kind for kind in (int, float, bool, str)},
}
SCALARS = frozenset({bool, int, float, str, type(None), type(MISSING)})
MUTABLE = (list, dict, set, Free, Node)
# What begins a message that has the value for its subject.
VERBS = ("is", "has", "holds", "needs", "cannot", "would", "takes", "does", "expands")


NO_VALUES: Mapping[str, Sequence[str]] = {}


class FieldInfo:
    """One field of one config class.

    Arguments:
        factory: makes the default; for sections, lists and mappings.
        role: identity, budget or runtime; None takes the class's.
        tags: marks by which fields of several sections are set or swept together.
        also_called: what other systems call this field; answered with its name, never taken for it.
        values_also_called: what other systems call its values, by value; answered likewise.
    """

    __slots__ = (
        "_type",
        "also_called",
        "annotation",
        "bounds",
        "constant",
        "derived",
        "environment",
        "factory",
        "item_bounds",
        "name",
        "namespace",
        "owner",
        "role",
        "settled",
        "tags",
        "values_also_called",
        "written",
    )
    # How often a default was changed after its class was made, which makes plans obsolete.
    changes: ClassVar[int] = 0

    def __init__(
        self,
        default: object = MISSING,
        factory: Callable[[], object] | None = None,
        derived: bool = False,
        bounds: Bounds | None = None,
        item_bounds: Bounds | None = None,
        role: Role | None = None,
        tags: Sequence[str] = (),
        also_called: Sequence[str] = (),
        values_also_called: Mapping[str, Sequence[str]] | None = None,
        environment: str | None = None,
    ) -> None:
        # The default as it stands in the class, and whether that, or what the factory makes, is
        # known to be what the field would have read.
        self.written = default
        self.settled = False
        # Whether every instance begins with the same object, which can hold no section.
        self.constant = default is not MISSING and factory is None
        self.factory = factory
        self.derived = derived
        self.bounds = bounds
        self.item_bounds = item_bounds
        self.role = role
        # What is not a list of str is left as it is, for the class to refuse with the field's name.
        self.tags = tuple(tags) if tags.__class__ is list else tags
        self.also_called = tuple(also_called) if also_called.__class__ is list else also_called
        self.values_also_called = values_also_called or NO_VALUES
        self.environment = environment
        self.name = ""
        self.annotation: object = None
        self.owner: type = object
        self.namespace: Mapping[str, object] | None = None
        self._type: FieldType | None = None

    def inherit(self, above: FieldInfo, declared: bool) -> None:
        """Take over what the same field of a base class says, and this declaration does not.

        Arguments:
            declared: whether there is a `field(...)`, which says by itself if there is a default.
        """
        for bounds in ("bounds", "item_bounds"):
            mine, theirs = getattr(self, bounds), getattr(above, bounds)
            if theirs is not None:
                setattr(self, bounds, theirs if mine is None else mine.over(theirs))
        for option in ("role", "tags", "also_called", "values_also_called", "environment"):
            setattr(self, option, getattr(self, option) or getattr(above, option))
        if declared:
            return
        if self.written is MISSING:
            self.written, self.factory, self.derived = above.written, above.factory, above.derived
            self.constant = above.constant

    @property
    def default(self) -> Any:
        """The default as the field stores it, read by its type when first asked for."""
        if not self.settled and self.constant:
            settle(self)
        return self.written

    @default.setter
    def default(self, value: object) -> None:
        self.written, self.settled = value, False
        FieldInfo.changes += 1

    @property
    def required(self) -> bool:
        """Whether a value must be given: there is no default, and nothing derives one."""
        return self.written is MISSING and self.factory is None and not self.derived

    @property
    def full_name(self) -> str:
        """The field with its class and module, for errors about the declaration."""
        return f"{self.owner.__module__}.{self.owner.__qualname__}.{self.name}"

    @property
    def type(self) -> FieldType:
        """The field's type, worked out from its annotation when first asked for."""
        if self._type is None:
            self._type = compile_field(self)
            if self.environment is not None:
                refuse_environment(self, self._type)
        return self._type

    def initial(self) -> Any:
        """A default value of the field's own, never shared between two configs."""
        if self.factory is None:
            return self.default
        if self.settled and isinstance(self.factory, type):
            return self.type.own(self.factory())  # always of one kind, which has been read once

        # What the factory sets is a default, wherever it is first read; and it may return the
        # same object each time, so that a copy is taken.
        with running(DEFAULT, ""):
            value = read_default(self, self._call_factory(self.factory))
            self.settled = True
        return self.type.replace_sections(
            value, lambda section: section.__setpoint_draft__(), False
        )

    def _call_factory(self, factory: Callable[[], Any]) -> Any:
        try:
            return factory()
        except SetpointError:
            raise
        except Exception as error:
            where = f"{self.owner.__qualname__}.{self.name}"
            said = f"the factory of {where} failed: {error_in_words(error)}"
            raise UserCodeError(said, traceback_of(error)) from error

    def read(self, value: object, origin: Origin) -> Any:
        """Read a value as this field's type and check its range.

        Arguments:
            value: a Python value, a value of a file, or a text to be read (`PlainScalar`).

        Returns:
            the value as the field stores it; a `Reference` stays one until resolve.

        Raises:
            Invalid: if the field cannot take it.
        """
        result = read_item(self.type, value, origin)
        if isinstance(result, Reference):
            return result
        self.check(result)
        return result

    def check(self, value: Any) -> None:
        """Check a value of the right type against the field's range.

        Raises:
            Invalid: if it is out of range.
        """
        if value is None:
            return
        if self.bounds is not None:
            self.bounds.check(value)
        bounds = self.item_bounds
        if bounds is not None:
            # A reference is no number, so the limits say nothing about it yet.
            each(children(value), lambda _, item: bounds.check(item))


class ForTypeCheckers(dict[str, Any]):
    """Names of a module, in which those that it does not import stand for anything."""

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            raise KeyError(name)
        return Any


def compile_field(info: FieldInfo) -> FieldType:
    """The type of a field.

    Raises:
        TypeError: if the annotation is not one a config can have, with class and field named.
    """
    annotation = info.annotation
    if not isinstance(annotation, str):
        common = _common_type(annotation, info)
        if common is not None:
            return _completed(info, common, False)
    else:
        known = _TEXTS[annotation] if annotation in _TEXTS else _plain_annotation(annotation)
        if known is not None and known.holds_for(info):
            return known.type_of(info)
        module = vars(sys.modules[info.owner.__module__])
        names = {**(info.namespace or {}), **vars(info.owner), info.owner.__name__: info.owner}
        where = info.full_name
        if annotation.startswith(("Component[", "sp.Component[", "setpoint.Component[")):
            # What it builds is for type checkers, and may be imported for them only.
            names = ForTypeCheckers({**module, **names})
        try:
            annotation = eval(annotation, dict(module), names)
        except NameError as error:
            raise DeclarationError(
                f"{where}: the annotation {annotation!r} names {error.name!r}, which "
                f"the module does not import at run time"
            ) from None
        except Exception as error:  # whatever Python has against the expression
            raise DeclarationError(
                f"{where}: the annotation {annotation!r} cannot be read: {error}"
            ) from None
    try:
        return _completed(info, compile_annotation(annotation, info.full_name), True)
    except RecursionError:
        raise _error(info, "its type refers to itself; write Any, or a config class") from None


def _completed(info: FieldInfo, kind: FieldType, containers: bool) -> FieldType:
    if containers:
        name_containers(kind, f"{info.owner.__name__}.{info.name}")
    if not (info.bounds is None and info.item_bounds is None):
        check_declaration(info, kind)
    return kind


class _PlainAnnotation:
    """What an annotation of builtins and `Literal` alone means, worked out once for all fields.

    Arguments:
        names: the builtins that it names.
        literal: whether it names `Literal`.
        kind: its type; None if lists or mappings are part of it, which know their field.
    """

    __slots__ = ("annotation", "kind", "literal", "names")

    def __init__(self, names: frozenset[str], annotation: object, kind: FieldType) -> None:
        self.names = names - {"Literal"}
        self.literal = "Literal" in names
        self.annotation = annotation
        self.kind = None if _has_containers(kind) else kind

    def holds_for(self, info: FieldInfo) -> bool:
        """Whether the names mean this in the class of a field: none is shadowed."""
        if info.namespace is not None:  # a class in a function, whose variables count
            return False
        owner = info.owner
        module, own, names = vars(sys.modules[owner.__module__]), vars(owner), self.names
        if self.literal and (module.get("Literal") is not Literal or "Literal" in own):
            return False
        return (
            owner.__name__ not in _PLAIN_NAMES
            and names.isdisjoint(own)
            and module.keys().isdisjoint(names)
        )

    def type_of(self, info: FieldInfo) -> FieldType:
        """The type of a field for which this holds."""
        if self.kind is not None:
            return _completed(info, self.kind, False)
        return _completed(info, compile_annotation(self.annotation, info.full_name), True)


_TEXTS: dict[str, _PlainAnnotation | None] = {}
_PLAIN_NAMES: dict[str, object] = {
    **{kind.__name__: kind for kind in (int, float, bool, str, list, tuple, dict)},
    "Literal": Literal,
}
_NAME = r"""'[^']*'|"[^"]*"|([^\W\d]\w*)"""


def _plain_annotation(text: str) -> _PlainAnnotation | None:
    """The meaning of an annotation that any module without these names gives; None if unsure."""
    _TEXTS[text] = None
    names = frozenset(match[1] for match in re.finditer(_NAME, text) if match[1]) - {"None"}
    if "\\" in text or not names <= _PLAIN_NAMES.keys():
        return None
    try:
        annotation: object = eval(text, {"__builtins__": {}, **_PLAIN_NAMES})
        found = _PlainAnnotation(names, annotation, compile_annotation(annotation, text))
    except Exception:
        return None  # reported with the name of the field, where it is compiled again
    _TEXTS[text] = found
    return found


_PARTS = frozenset((int, float, bool, str, type(None), ...))
_KINDS = (type, type(...))  # of such parts; others need not have a hash
_OBJECTS: dict[object, FieldType] = {}


def _common_type(annotation: Any, info: FieldInfo) -> FieldType | None:
    """The type of an annotation of a few builtins, which fields share; None for any other."""
    cls: type = annotation.__class__
    if cls is type:
        return SIMPLE.get(annotation)
    key = annotation
    if cls is UnionType or (cls is GenericAlias and annotation.__origin__ is tuple):
        if not all(part.__class__ in _KINDS and part in _PARTS for part in annotation.__args__):
            return None
    elif getattr(annotation, "__origin__", None) is Literal:
        key = annotation.__args__  # in their order, which `Literal` does not compare
        if not all(word.__class__ is str for word in key):
            return None
    else:
        return None
    if key not in _OBJECTS:
        _OBJECTS[key] = compile_annotation(annotation, info.full_name)
    return _OBJECTS[key]


def _has_containers(kind: FieldType) -> bool:
    return isinstance(kind, SequenceType | MappingType) or any(
        map(_has_containers, kind.inner_types())
    )


def check_declaration(info: FieldInfo, kind: FieldType) -> None:
    """Refuse limits that would be held against nothing.

    Raises:
        DeclarationError: with the class and the field named.
    """
    bounds, items = info.bounds, info.item_bounds
    if bounds is not None and bounds.limited and not _may_be(kind, (int, float)):
        inside = _items(kind)
        hint = "; limits of the items are item_gt, item_ge, item_lt, item_le" if inside else ""
        base = _bounded_by(info)
        hint += f"; they are those of {base}, so write field(...) with others" if base else ""
        raise _error(
            info, f"gt, ge, lt and le apply to numbers, and this is {kind.describe()}{hint}"
        )
    if bounds is not None and bounds.pattern is not None:
        if not _may_be(kind, (str,)):
            raise _error(info, f"a pattern applies to str, and this is {kind.describe()}")
        _check_pattern(info, bounds.pattern)
    if items is not None and not any(_may_be(item, (int, float)) for item in _items(kind)):
        raise _error(
            info,
            f"item_gt, item_ge, item_lt and item_le are for lists and mappings of numbers, and it "
            f"is {kind.describe()}",
        )


def _check_pattern(info: FieldInfo, pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise _error(
            info, f"the pattern {pattern!r} is not a regular expression: {error}"
        ) from None


def _error(info: FieldInfo, reason: str) -> DeclarationError:
    return DeclarationError(f"{info.full_name}: {reason}")


def _may_be(kind: FieldType, classes: tuple[type, ...]) -> bool:
    """Whether values, apart from their items, may be of one of some plain classes."""
    if isinstance(kind, IntType):
        return int in classes
    if isinstance(kind, FloatType):
        return float in classes
    if isinstance(kind, StrType):
        return str in classes
    if isinstance(kind, AnyType):
        return True
    if isinstance(kind, LiteralType):
        return any(isinstance(choice, classes) for choice in kind.choices)
    if isinstance(kind, ScalarType):
        return issubclass(kind.cls, classes)
    return not isinstance(kind, ContainerType) and any(
        _may_be(part, classes) for part in kind.inner_types()
    )


def _items(kind: FieldType) -> tuple[FieldType, ...]:
    """The types of items, through options and alternatives."""
    if isinstance(kind, ContainerType):
        return kind.inner_types()
    return tuple(item for part in kind.inner_types() for item in _items(part))


def stored_default(default: Any, where: str) -> Any:
    """A default as its field would have read it.

    Arguments:
        default: as written in the class: a function stands for its import path, and the flags of a
            regular expression become part of its text.

    Raises:
        TypeError: if no import path leads to the function.
    """
    cls = cast(Any, type(default))
    pattern = cls.__module__ == "re" and cls.__name__ == "Pattern"
    if not pattern and (not callable(default) or hasattr(cls, "__setpoint_scalar__")):
        return default

    try:
        return PatternType().read(default, Origin(DEFAULT)) if pattern else ImportPath(default)
    except Invalid as error:
        raise DeclarationError(f"{where}: the default {error.message}") from None


def is_settled(info: FieldInfo) -> bool:
    """Whether a default is what the field would read, as far as that is plain to see.

    Most are, and their types then need not be worked out before the field is set.
    """
    default: Any = info.written
    annotation: Any = info.annotation
    bounds = info.bounds
    cls, kind = default.__class__, annotation.__class__
    if cls is tuple:
        return bounds is None and _is_plain_tuple(default, annotation, info.item_bounds)
    if info.item_bounds is not None:
        return False
    if kind is str or kind is type:
        plain = EXACT.get(annotation)
        if plain is not None:
            return plain is cls and _is_plain(default, cls, bounds)
    if kind is str or kind is UnionType:
        plain = OPTIONAL.get(annotation)
        if plain is not None:
            # Null without a pattern, which is not checked against null.
            return (
                bounds is None
                if default is None
                else (plain is cls and _is_plain(default, cls, bounds))
            )
    return bounds is None and _is_named(annotation, default, cls)


def _is_plain(value: Any, cls: Any, bounds: Bounds | None) -> bool:
    """Whether a value of one of the plain classes is read as it is, and lies in its range."""
    if cls is str:
        return bounds is None and (not value or (value.isidentifier() and value != "null"))
    if cls is int and not -(2**63) <= value < 2**64:
        return False
    if cls is float and not (value > 0 or value < 0 or str(value) == "0.0"):
        return False
    # Limits of truth values, and patterns of numbers, are refused when the type is worked out.
    return bounds is None or (cls is not bool and bounds.pattern is None and bounds.takes(value))


def _is_plain_tuple(value: tuple[Any, ...], annotation: Any, bounds: Bounds | None) -> bool:
    """Whether the items of a tuple are of plain classes, and each is read as it is."""
    if annotation.__class__ is GenericAlias and annotation.__origin__ is tuple:
        names: Sequence[Any] = annotation.__args__
    elif annotation.__class__ is str and annotation[:6] == "tuple[" and annotation[-1] == "]":
        names = annotation[6:-1].split(", ")
    else:
        return False
    many = len(names) == 2 and names[1] in ("...", ...)
    if not many and len(names) != len(value):
        return False
    kinds: list[Any] = []
    for name in names[:1] if many else names:
        kind = EXACT.get(name) if name.__class__ in (str, type) else None
        if kind is None or not (bounds is None or kind is int or kind is float):
            return False
        kinds.append(kind)
    for kind, item in zip(kinds * len(value) if many else kinds, value, strict=True):
        if item.__class__ is not kind or not _is_plain(item, kind, bounds):
            return False
    return True


def _is_named(annotation: Any, default: Any, cls: Any) -> bool:
    """Whether a default is a word of a `Literal`, or of a class that reads its own values."""
    if annotation.__class__ is str:
        if cls is str and annotation.startswith("Literal[") and default.isidentifier():
            alone = annotation.count("[") == 1 and annotation.endswith("]")
            return alone and (f"'{default}'" in annotation or f'"{default}"' in annotation)
        known = (cls.__name__, cls.__name__ + NULL)
        return annotation in known and hasattr(cls, "__setpoint_scalar__")
    if cls is str and getattr(annotation, "__origin__", None) is Literal:
        return any(word.__class__ is str and word == default for word in annotation.__args__)
    return False


def settle(info: FieldInfo) -> None:
    """Read the default of a field that all instances share.

    Raises:
        DeclarationError: if the field cannot take it.
    """
    value = read_default(info, info.written)
    if is_mutable(value):
        raise DeclarationError(
            f"{info.full_name}: the default is read as {info.type.describe()}, which would be "
            f"shared by all configs; write field(factory=...)"
        )
    info.written = value
    info.settled = True


def read_default(info: FieldInfo, value: object) -> Any:
    """Read a default like a value that is set.

    Raises:
        DeclarationError: if the field cannot take it.
    """
    if may_refer(value) and not info.type.is_secret():
        raise DeclarationError(
            f"{info.full_name}: a reference cannot be a default: it names fields by their path "
            f"from the root, which the class does not know. Declare the field as derived() and "
            f"compute it in a method marked @derive({info.name!r})"
        )
    try:
        return info.read(value, Origin(DEFAULT))
    except Invalid as error:
        what = "what the factory makes" if info.factory is not None else "the default"
        lines: list[str] = []
        for part in error.parts:
            place = "".join(f".{key}" for key in part.at)
            given = "" if part.secret or "got " in part.message else f" {shown_part(value, part)}"
            if part.message.partition(" ")[0] not in VERBS:
                given = ":"  # a sentence of its own
            text = f"{info.full_name}{place}: {what}{given} {part.message}"
            text += f"; valid: {', '.join(part.valid)}" if part.valid else ""
            if part.message.startswith("is out of range") and (base := _bounded_by(info)):
                text += f", as {base} declares it; write field(...) to declare another range"
            if value is None:
                text += "; to allow it, write ... | None"
            lines.append(f"{text}. {part.hint}" if part.hint else text)
        raise DeclarationError("\n".join(lines)) from None


def _bounded_by(info: FieldInfo) -> str:
    """The base class whose range a field has, if it declares none."""
    for base in info.owner.__mro__[1:]:
        known: Any = getattr(base, "__setpoint__", None)
        above: FieldInfo | None = known and known.fields.get(info.name)
        if above is not None and above.bounds is info.bounds:
            return f"{above.owner.__name__}.{info.name}"
    return ""


def refuse_environment(info: FieldInfo, kind: Any) -> None:
    """Refuse a variable for a field that cannot be read from one text.

    Raises:
        DeclarationError: for secrets and sections.
    """
    if kind.is_secret():
        raise DeclarationError(
            f"{info.full_name}: a secret names its variable itself, as in 'env:NAME', so that "
            f"environment={info.environment!r} is not allowed"
        )
    if section_classes(kind):
        raise DeclarationError(
            f"{info.full_name}: environment={info.environment!r} gives one value, and a section "
            f"has several; declare it on fields of the section"
        )


def is_mutable(default: object) -> bool:
    """Whether instances that share a value could change it for one another."""
    if default.__class__ in SCALARS:
        return False
    if isinstance(default, tuple):
        return any(map(is_mutable, cast(tuple[object, ...], default)))
    return isinstance(default, MUTABLE)
