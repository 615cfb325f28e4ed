"""One field of a config class: what it declares, its type, its default, and its checks."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ..types.base import read_item
from ..types.compiler import compile_annotation
from ..types.containers import ContainerType, each, name_containers
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
    if isinstance(annotation, str):
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
