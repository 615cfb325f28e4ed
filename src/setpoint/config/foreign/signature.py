"""The signature of a target as the schema of its arguments."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..base import Config, chain_of
from ..errors import Invalid, SetpointError
from ..field import MISSING
from ..free import listed
from ..origin import DEFAULT, Origin
from ..problem import Problem
from ..suggest import did_you_mean
from ..types.base import FieldType, shown_plain
from .section import Foreign, arguments_of, components_in, shared_fields

if TYPE_CHECKING:
    from inspect import Parameter

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
ANY_NAME = inspect.Parameter.VAR_KEYWORD


def parameters_of(target: Callable[..., Any]) -> dict[str, Parameter] | None:
    """What a callable takes.

    Arguments:
        target: a class or function.

    Returns:
        its parameters by name; None for those written in C that do not say.
    """
    try:
        return dict(inspect.signature(target, eval_str=True).parameters)
    except (ValueError, TypeError):
        return None
    except Exception:  # an annotation names what only type checkers import
        return dict(inspect.signature(target).parameters)


def takes(parameters: Mapping[str, Parameter] | None, name: str) -> bool:
    """Whether a callable has a parameter of a name that can be given by it.

    Arguments:
        parameters: what `parameters_of` returned.
        name: the name.

    Returns:
        True if the parameter is its own; what it passes on to others is not known.
    """
    return parameters is not None and name in parameters and parameters[name].kind in NAMED


def mistakes(section: Foreign) -> Iterator[Problem]:
    """Hold the arguments of a section against the signature of its target, which is imported.

    Arguments:
        section: a section with a target.

    Yields:
        a problem for each argument that the target does not take as it is, and for each that it
        lacks.
    """
    try:
        target = section.target.load()
    except SetpointError as error:
        yield Problem("target", str(error))
        return
    given = arguments_of(section)
    for error in wrong_arguments(
        target, str(section.target), given, shared_fields(section), section.handed
    ):
        # What is missing has no value and no origin of its own.
        path = error.at if error.at[0] in given else ("target",)
        yield Problem(".".join(map(str, path)), error.message, valid=error.valid, hint=error.hint)


def wrong_arguments(
    target: Callable[..., Any],
    title: str,
    given: Mapping[str, Any],
    shared: tuple[str, ...] = (),
    handed: tuple[str, ...] | None = None,
) -> list[Invalid]:
    """Everything about some arguments that a callable would not take.

    Arguments:
        target: the callable.
        title: its name in errors.
        given: stored values by name.
        shared: names of typed fields that are handed over where the target takes them.
        handed: what is handed over at run time, as in `Foreign.handed`.

    Returns:
        an error for each, which leads to the argument.
    """
    parameters = parameters_of(target)
    if parameters is None:
        return []
    found: list[Invalid] = []
    open_ended = any(p.kind is ANY_NAME for p in parameters.values())
    names = [name for name in parameters if takes(parameters, name)]
    first = next(iter(parameters), "")
    ours = {first if name == "*" else name for name in handed or ()}
    for name, value in given.items():
        if name in ours:
            found.append(Invalid("is handed over when it is built").inside(name))
        elif takes(parameters, name):
            try:
                converted(parameters[name], value)
            except Invalid as error:
                found.extend(part.inside(name) for part in error.parts)
        elif name in parameters and parameters[name].kind is not ANY_NAME:
            message = f"cannot be given by name: {title} takes it by its position only"
            found.append(Invalid(message).inside(name))
        elif not open_ended:
            known = [*(name for name in names if name not in ours), *shared]
            hint = did_you_mean(name, known)
            message = f"{title} has no parameter {name!r}"
            found.append(Invalid(message, tuple(sorted(set(known))), hint=hint).inside(name))
    if handed is not None:
        there = {*given, *shared, *ours}
        found.extend(
            Invalid(f"{title} needs {name!r}, and nothing gives it").inside(name)
            for name in missing(parameters, there)
        )
    return found


def missing(parameters: Mapping[str, Parameter], given: typing.Collection[str]) -> list[str]:
    """The parameters without a default that nobody gives.

    Arguments:
        parameters: what `parameters_of` returned.
        given: the names that are given.

    Returns:
        their names.
    """
    empty = inspect.Parameter.empty
    several = (inspect.Parameter.VAR_POSITIONAL, ANY_NAME)
    return [
        name
        for name, parameter in parameters.items()
        if parameter.default is empty and parameter.kind not in several and name not in given
    ]


def converted(parameter: Parameter, value: Any) -> Any:
    """A stored value as its parameter wants it: a list as a tuple, a path as what it names.

    Arguments:
        parameter: the parameter, with its annotation.
        value: plain data, or components, which are passed on as they are.

    Returns:
        the value, still unbuilt.

    Raises:
        Invalid: if the annotation says that it does not fit.
    """
    if value is None and parameter.default is None:
        return None
    if isinstance(value, Config) or any(True for _ in components_in(value)):
        return value  # what it becomes is known when it is built
    kind = _type_of(parameter)
    plain = listed(value)
    if kind is None:
        # A file knows lists only; a default shows what is meant.
        return tuple(plain) if isinstance(parameter.default, tuple) and value else plain
    return kind.read(plain, Origin(DEFAULT))


def _type_of(parameter: Parameter) -> FieldType | None:
    """The kernel's type for an annotation; None where it says nothing about plain data."""
    from ..types.compiler import compile_annotation

    annotation = readable(parameter.annotation)
    if annotation is Any:
        return None
    if annotation is MISSING:
        wanted = parameter.annotation
        return _ObjectType(getattr(wanted, "__name__", str(wanted)))
    try:
        return compile_annotation(annotation, f"{__name__}.{parameter.name}")
    except TypeError:
        return None


class _ObjectType(FieldType):
    """Objects of a class, which no plain data is."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def describe(self) -> str:
        return f"a {self.name}, which is given as {{type = 'import', target = ...}}"

    def read(self, value: object, origin: Origin) -> Any:
        raise self.refuse(value)


def readable(annotation: Any) -> Any:
    """What an annotation says about plain data.

    Arguments:
        annotation: as the signature has it.

    Returns:
        an annotation that a field could have; Any where anything may fit; MISSING where no plain
        data can be meant, as for a tensor.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return readable(arguments[0])
    if origin is typing.Union or origin is types.UnionType:
        parts = [part for part in map(readable, arguments) if part is not MISSING]
        if Any in parts:
            return Any
        union: Any = parts[0] if parts else MISSING
        for part in parts[1:]:
            union = union | part
        return union
    if origin is tuple:
        items = [item if item is Ellipsis else readable(item) for item in arguments]
        return Any if not items or MISSING in items else tuple[tuple(items)]
    if origin in (list, typing.get_origin(typing.Sequence[int])) and arguments:
        item = readable(arguments[0])
        return Any if item in (MISSING, Any) else list[item]
    if origin is dict and arguments and arguments[0] is str:
        item = readable(arguments[1])
        return Any if item in (MISSING, Any) else dict[str, item]
    if origin is not None or not isinstance(annotation, type):
        return annotation if origin in (typing.Literal, type) else _of_form(annotation, origin)
    return _of_class(annotation)


def _of_form(annotation: Any, origin: Any) -> Any:
    if origin is typing.get_origin(Callable[[], int]):
        return annotation
    return type(None) if annotation is None else Any


def _of_class(cls: Any) -> Any:
    from enum import Enum

    if cls in (int, float, bool, str, type(None)) or issubclass(cls, Enum):
        return cls
    if cls.__module__ == "torch" and cls.__name__ == "dtype":
        from ..dtype import DType

        return DType
    if cls.__module__.partition(".")[0] == "pathlib" or hasattr(cls, "__setpoint_scalar__"):
        return cls
    # Protocols and abstract classes say what a value can do, and plain data can do much.
    builtin = cls.__module__ in ("builtins", "typing", "collections.abc", "inspect")
    abstract = getattr(cls, "_is_protocol", False) or getattr(cls, "__abstractmethods__", None)
    return Any if builtin or abstract else MISSING


def in_words(section: Foreign, error: Invalid) -> str:
    """One mistake on one line, for errors that are raised while building.

    Arguments:
        section: the section.
        error: what is wrong with one of its arguments.

    Returns:
        the sentence with the argument, its value and where it came from.
    """
    name = str(error.at[0]) if error.at else "target"
    chain = chain_of(section, name)
    if not chain:
        return f"{error.message}. {error.hint}".strip(" .")
    origin, value = chain[-1]
    text = f"{name} = {shown_plain(value)} (from {origin.describe((name,))}): {error.message}"
    return f"{text}. {error.hint}".strip(" .")
