"""Components by import path, `{type = "import", target = "torch.optim.Adagrad", lr_decay = 0.1}`.

The keys next to `target` are arguments of the callable, with its signature as their schema. They
are ordinary fields of the section: each has its own path, origin and place in records. Since every
callable has different arguments, a section becomes an instance of a subclass with one field for
each given argument.
"""

from __future__ import annotations

import keyword
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex, cast

from .draft.config import Config
from .draft.copying import pack
from .schema.class_info import ConfigMeta
from .schema.field import FieldInfo, field, rule
from .types.base import FieldType
from .types.compiler import compile_annotation, own_package
from .types.compound import AnyType, MappingType, SectionType, SequenceType, each, fill
from .values.containers import read_key, read_plain
from .values.node import Chain, Node, chain_of, set_chain, state_of, value_or_missing
from .values.origin import DEFAULT, FILE, Origin, python_origin
from .values.reference import Reference, is_reference
from .values.scalar import ImportPath
from .values.user_code import error_in_words
from .words.errors import ConfigError, Invalid, Problem, SetpointError
from .words.names import did_you_mean
from .words.plain_data import MISSING, PlainScalar, children, listed, literal, rebuild
from .words.text import DATA, for_error, parse_flow, problem_of

if TYPE_CHECKING:
    from inspect import Parameter


COMPONENTS: dict[str, type[Node]] = {}
"""The classes of components by the tag in a file: `ImportedName` and `Partial`."""


class ImportedName(Config, type="name", owner="setpoint.config.component_sections:named"):
    """A callable passed as an argument without being called."""

    target: ImportPath = field()
    """Import path of the callable."""


COMPONENTS["name"] = ImportedName


class ArgumentType:
    """Type of an argument of an imported component; its signature is checked elsewhere.

    Components, and lists and mappings of them, are stored as in fields, so walks visit them.
    """

    __slots__ = ()

    def read(self, value: object, origin: Origin) -> Any:
        """Read any kind of value."""
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
    """The kind of an argument's value: `plain`, `section`, or `list` or `mapping` of sections."""
    if isinstance(value, Config):
        return "section"
    if isinstance(value, tuple) and _has_components(cast(tuple[object, ...], value)):
        return "list"
    if isinstance(value, dict) and _has_components(cast(dict[str, object], value).values()):
        return "mapping"
    return "plain"


def _has_components(items: Collection[object]) -> bool:
    """True if items are components, or references that may lead to components."""
    return any(isinstance(item, Config | Reference) for item in items)


def read_argument(value: Any, origin: Origin) -> Any:
    """Read the value of an argument.

    Raises:
        Invalid: the value is neither a component nor plain data.
    """
    if isinstance(value, PlainScalar) and value.startswith(DATA):
        value = parse_flow(value)
    if _is_component(value):
        return _component(value, origin)
    if isinstance(value, list | tuple) and _components(cast(list[object], value)):
        items = enumerate(cast(list[object], value))
        return tuple(each(items, lambda _, item: _read_component(item, origin)))
    if isinstance(value, Mapping):
        entries = cast(Mapping[Any, object], value)
        if _components(entries.values()):
            keys = [read_key(key) for key in entries]
            pairs = zip(keys, entries.values(), strict=True)
            read = each(pairs, lambda _, item: _read_component(item, origin))
            return _Mapping(_Component()).make(dict(zip(keys, read, strict=True)))
    plain = cast(object, value)
    _refuse_hidden(plain, 0)
    read = read_plain(plain)
    return literal(read) if isinstance(read, str) else read


def _is_component(value: object) -> bool:
    if isinstance(value, Mapping):
        entries = cast(Mapping[object, object], value)
        kind = entries.get("type")
        return isinstance(kind, str) and kind in COMPONENTS and "target" in entries
    return isinstance(value, Config) or (callable(value) and not isinstance(value, str))


def _components(items: Collection[object]) -> bool:
    """True if a list or mapping contains components or references to them."""
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


def _read_component(item: object, origin: Origin) -> Any:
    if isinstance(item, Reference):
        return item
    if isinstance(item, str) and is_reference(item):
        return Reference(item)
    if not _is_component(item):
        raise Invalid(
            "must be a component like the others: a list or mapping cannot mix components and "
            "plain values"
        )
    return _component(item, origin)


def _refuse_hidden(value: object, depth: int) -> None:
    """Refuse a component that is nested too deeply to be built."""
    if depth and _is_component(value):
        raise Invalid(
            "contains a component nested too deeply: a component must be an argument itself, or "
            "an item of a list or mapping argument"
        )
    for _, item in children(value):
        _refuse_hidden(item, depth + 1)


def arguments_of(section: Node) -> dict[str, Any]:
    """Arguments other than the target and the declared fields."""
    return {name: getattr(section, name) for name in kinds_of(type(section))}


def shared_fields(section: Node) -> tuple[str, ...]:
    """Declared fields that are passed to the target if it accepts them."""
    fields = type(section).__setpoint__.cls.__setpoint__.fields
    return tuple(name for name in fields if name != "target")


def components_in(value: object) -> list[Any]:
    """The imported components directly inside the value of an argument, or the value itself."""
    items = [value, *(item for _, item in children(value))]
    return [
        item
        for item in items
        if isinstance(item, ImportedName)
        or (isinstance(item, Config) and hasattr(item, "__setpoint_open__"))
    ]


def kinds_of(cls: type[Node]) -> dict[str, str]:
    """The kind of value of each argument of a section's class, by name."""
    declared, fields = cls.__setpoint__.cls.__setpoint__.fields, cls.__setpoint__.fields
    return {name: str(info.annotation) for name, info in fields.items() if name not in declared}


STAND_INS = {"torch.dtype": "setpoint.units.dtype:DType"}
"""Readers of plain data for classes of other packages that no file could hold. They are named and
not imported, since they stand above the kernel."""
NAMED = ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")
"""Names of kinds of parameters, as in `inspect`, which is not imported until it is needed."""
ANY_NAME, MORE = "VAR_KEYWORD", "VAR_POSITIONAL"
CALLABLE, SEQUENCE = map(typing.get_origin, (Callable[[], int], Sequence[int]))


def parameters_of(target: Callable[..., Any]) -> dict[str, Parameter] | None:
    """The parameters of a callable by name; None for C functions without a signature."""
    import inspect

    try:
        return dict(inspect.signature(target, eval_str=True).parameters)
    except (ValueError, TypeError):
        return None
    except Exception:  # a name in the annotation is imported for type checkers only
        return dict(inspect.signature(target).parameters)


def takes_parameter(parameters: Mapping[str, Parameter] | None, name: str) -> bool:
    """True if a callable has a keyword parameter with this name."""
    return parameters is not None and name in parameters and parameters[name].kind.name in NAMED


def mistakes(section: Any) -> Iterator[Problem]:
    """Check the arguments of a section against its target's signature; imports the target."""
    try:
        target = section.target.load()
    except SetpointError as error:
        yield Problem("target", str(error))
        return
    given = arguments_of(section)
    for error in wrong_arguments(
        target, str(section.target), given, shared_fields(section), section.runtime_arguments
    ):
        # A missing value has no value and no origin.
        path = error.at if error.at[0] in given else ("target",)
        yield Problem(".".join(map(str, path)), error.message, valid=error.valid, hint=error.hint)


def wrong_arguments(
    target: Callable[..., Any],
    title: str,
    given: Mapping[str, Any],
    shared: tuple[str, ...] = (),
    runtime: tuple[str, ...] | None = None,
) -> list[Invalid]:
    """Mismatches between arguments and the signature of a callable.

    Arguments:
        runtime: arguments passed at run time, as in `ImportedComponent.runtime_arguments`.
    """
    parameters = parameters_of(target)
    if parameters is None:
        return []
    errors: list[Invalid] = []
    open_ended = any(p.kind.name == ANY_NAME for p in parameters.values())
    names = [name for name in parameters if takes_parameter(parameters, name)]
    first = next(iter(parameters), "")
    passed = {first if name == "*" else name for name in runtime or ()}
    for name, value in given.items():
        if name in passed:
            errors.append(
                Invalid("is an argument that the program passes itself; leave it out").inside(name)
            )
        elif takes_parameter(parameters, name):
            try:
                converted_argument(parameters[name], value)
            except Invalid as error:
                errors.extend(part.inside(name) for part in error.parts)
        elif name in parameters and parameters[name].kind.name != ANY_NAME:
            message = f"is positional-only in {title}, and arguments are given by name"
            errors.append(Invalid(message).inside(name))
        elif not open_ended:
            known = [*(name for name in names if name not in passed), *shared]
            hint = did_you_mean(name, known)
            message = f"{title} has no parameter {name!r}"
            errors.append(Invalid(message, tuple(sorted(set(known))), hint=hint).inside(name))
    if runtime is not None:
        available = {*given, *shared, *passed}
        errors.extend(
            Invalid(f"{title} needs {name!r}, which is not given").inside(name)
            for name in missing(parameters, available)
        )
    return errors


def missing(parameters: Mapping[str, Parameter], given: typing.Collection[str]) -> list[str]:
    """The required parameters that are missing."""
    return [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind.name not in (MORE, ANY_NAME)
        and name not in given
    ]


def converted_argument(parameter: Parameter, value: Any) -> Any:
    """Convert a stored value for its parameter: a list to a tuple, a path to its object.

    Raises:
        Invalid: the value does not match the annotation.
    """
    if value is None and parameter.default is None:
        return None
    if isinstance(value, Node) or components_in(value):
        return value  # the built object is not known yet
    plain, annotation = listed(value), readable(parameter.annotation)
    if annotation is MISSING:
        name = getattr(parameter.annotation, "__name__", parameter.annotation)
        raise Invalid(f"is not a {name}, which is given as {{type = 'import', target = ...}}")
    try:
        kind = None if annotation is Any else compile_annotation(annotation, parameter.name)
    except TypeError:  # an annotation that no field can have
        kind = None
    if kind is None:
        # Files have only lists; the default shows that a tuple is meant.
        return tuple(plain) if isinstance(parameter.default, tuple) and value else plain
    return kind.read(plain, Origin(DEFAULT))


def readable(annotation: Any) -> Any:
    """The annotation to check plain data against; Any if all may match, MISSING if none can."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return readable(arguments[0])
    if origin is typing.Union or origin is types.UnionType:
        parts = [part for part in map(readable, arguments) if part is not MISSING]
        return Any if Any in parts else typing.Union[tuple(parts)] if parts else MISSING  # noqa: UP007
    if origin is tuple:
        items = [item if item is Ellipsis else readable(item) for item in arguments]
        return Any if not items or MISSING in items else tuple[tuple(items)]
    if origin in (list, SEQUENCE) and arguments:
        item = readable(arguments[0])
        return Any if item in (MISSING, Any) else list[item]
    if origin is dict and arguments and arguments[0] is str:
        item = readable(arguments[1])
        return Any if item in (MISSING, Any) else dict[str, item]
    if origin in (typing.Literal, type, CALLABLE):
        return annotation
    if annotation is None:
        return type(None)
    if origin is not None or not isinstance(annotation, type):
        return Any
    return _of_class(annotation)


def _of_class(cls: type[Any]) -> Any:
    stand_in = STAND_INS.get(f"{cls.__module__}.{cls.__name__}")
    if stand_in is not None:
        module, _, name = stand_in.partition(":")
        return getattr(import_module(module), name)
    if issubclass(cls, int | float | str | Enum | PurePath | None) or hasattr(
        cls, "__setpoint_scalar__"
    ):
        return cls
    # Protocols and abstract classes describe behavior, which plain data often has.
    builtin = cls.__module__ in ("builtins", "typing", "collections.abc", "inspect")
    abstract = getattr(cls, "_is_protocol", False) or getattr(cls, "__abstractmethods__", None)
    return Any if builtin or abstract else MISSING


def in_words(section: Any, error: Invalid) -> str:
    """Format a problem on one line, for errors while building."""
    name = str(error.at[0]) if error.at else "target"
    chain = chain_of(section, name)
    if not chain:
        return f"{error.message}. {error.hint}".strip(" .")
    origin, value = chain[-1]
    text = f"{name} = {for_error(value)} (from {origin.describe((name,))}): {error.message}"
    return f"{text}. {error.hint}".strip(" .")


def construct(config: Any, **runtime: Any) -> Any:
    """Call the target of a section; the default owner of imported components.

    Raises:
        SetpointError: the target cannot be imported or does not accept the arguments.
    """
    return call_component(config, (), runtime)


def named(config: Any) -> Any:
    """Import the target of a section, without calling it.

    Raises:
        SetpointError: the target cannot be imported.
    """
    return config.target.load()


def call_component(
    config: Any, args: Sequence[Any], runtime: Mapping[str, Any], optional: Sequence[str] = ()
) -> Any:
    """Call the target of a section.

    Arguments:
        config: the section; components among its arguments are built first, shared ones once.
        optional: names in `runtime` that are omitted if the target does not accept them.

    Raises:
        SetpointError: the target cannot be imported, does not accept the arguments, or raises an
            error.
    """
    target, title = config.target.load(), str(config.target)
    given = arguments_of(config)
    wrong = wrong_arguments(target, title, given, shared_fields(config))
    if wrong:
        reasons = "; ".join(in_words(config, part) for part in wrong)
        raise SetpointError(f"{title} cannot be called: {reasons}")
    parameters = parameters_of(target)
    keywords: dict[str, Any] = {}
    for name in shared_fields(config):
        value = value_or_missing(config, name)
        if takes_parameter(parameters, name) and value is not MISSING:
            keywords[name] = value
    for name, value in given.items():
        parameter = parameters.get(name) if parameters else None
        if parameter is not None:
            value = converted_argument(parameter, value)
        elif not components_in(value):
            value = listed(value)
        keywords[name] = _built(value)
    keywords.update(
        (name, value)
        for name, value in runtime.items()
        if name not in optional or takes_parameter(parameters, name)
    )
    if parameters is not None:
        # The first arguments are positional.
        rest = list(parameters)[len(args) :]
        absent = missing({name: parameters[name] for name in rest}, keywords)
        if absent:
            raise SetpointError(f"{title} cannot be called: it needs {', '.join(absent)}")
    try:
        return target(*args, **keywords)
    except SetpointError:
        raise
    except Exception as error:
        raise SetpointError(f"{title} failed: {error_in_words(error)}") from error


def _built(value: Any) -> Any:
    """A value with the components inside it built, and names resolved."""
    if isinstance(value, Config):
        return value.build()
    if isinstance(value, ImportPath):
        return value.load()
    if hasattr(value, "__setpoint_build__"):
        return value.__setpoint_build__()
    items = rebuild(value, _built)
    is_plain = isinstance(value, tuple) and not components_in(cast(Any, value))
    return tuple(items) if is_plain else items


Kinds = tuple[tuple[str, str], ...]
"""The names of arguments with the kind of value of each, as `kind_of` has it."""


class ImportedComponent(Config, owner="setpoint.config.component_sections:construct"):
    """Base of all sections that call something by its import path.

    A family accepts imported components through a variant with this base. The variant's typed
    fields are also passed to the target, if it accepts them:

        class Imported(OptimizerConfig, ImportedComponent, type="import", owner=...): ...
    """

    allowed_modules: ClassVar[tuple[str, ...]] = ()
    """Modules that targets may be in without `allow_imports`."""

    runtime_arguments: ClassVar[tuple[str, ...] | None] = None
    """The parameters that the builder hands over at run time; `"*"` stands for the first. Others
    without a default must be given. None: not known before it is built."""

    target: ImportPath = field()
    """Import path of the callable. The other keys are its arguments, by name."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def store(self, name: str, value: object, origin: Origin) -> None:
        """See `Node.store`; an argument becomes a field of this section."""
        if name == "target" and isinstance(value, ImportPath):
            value = self._trusting(value)
            self._drop_arguments(value, origin)
        elif name != "target" and name not in shared_fields(self):
            self._take_fields({**kinds_of(type(self)), name: kind_of(value)})
            for inner in components_in(value):
                path = value_or_missing(inner, "target")
                if isinstance(path, ImportPath):
                    object.__setattr__(inner, "target", self._trusting(path))
        super().store(name, value, origin)

    def _trusting(self, path: ImportPath) -> ImportPath:
        """An import path in the trusted modules of this class, or in its package."""
        return path.trusting((*self.allowed_modules, *own_package(type(self).__module__)))

    def _drop_arguments(self, target: ImportPath, origin: Origin) -> None:
        """Drop the arguments from earlier layers, which belong to another target."""
        state = state_of(self)
        kept = kinds_of(type(self))
        for name in list(kept):
            chain = chain_of(self, name)
            before = chain[-1][0] if chain else Origin(DEFAULT)
            if before.layer == origin.layer and (
                before.layer != FILE or before.label == origin.label
            ):
                continue
            reason = f"target = {target.text} was given after it, and has its own arguments"
            state.dropped += ((name, getattr(self, name), before, reason),)
            del kept[name]
            cast(dict[str, Any], self.__dict__).pop(name, None)
            set_chain(self, name, [])
        self._take_fields(kept)

    def _take_fields(self, kinds: Mapping[str, str]) -> None:
        """Change the class to one that has fields for the given arguments."""
        cls = _class_with(type(self).__setpoint__.cls, tuple(sorted(kinds.items())))
        object.__setattr__(self, "__class__", cls)

    def __setpoint_variant__(self, cls: type[ImportedComponent]) -> ImportedComponent:
        """The same component as a variant of a family, with its origins.

        Raises:
            Invalid: one of the variant's typed fields cannot accept its value.
        """
        section = cast(Any, cls)()
        for name in ("target", *kinds_of(type(self))):
            chain: Chain = chain_of(self, name)
            origin = chain[-1][0] if chain else Origin(DEFAULT)
            fill(section, {name: getattr(self, name)}, origin)
        return section

    @classmethod
    def __setpoint_open__(cls, key: str) -> FieldInfo:
        """The field of an undeclared key: an argument of the target."""
        name = key.replace("-", "_")
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise Invalid(f"{key!r} cannot be the name of an argument")
        if hasattr(cls, name):
            raise Invalid(
                f"{name!r} is a reserved word and cannot be given as an argument",
                hint="Wrap the target in a function of your own that names it differently.",
            )
        return _argument(name, "plain", cls)

    @rule
    def _check_target(self) -> Iterator[Problem]:
        refused = self.target.refusal()
        if refused:
            yield Problem("target", refused)
        elif self.target.loaded() is not None:
            # Already imported, so checking its signature imports nothing.
            yield from self._mistakes()

    @rule(needs="import")
    def _check_signature(self) -> Iterator[Problem]:
        """The target exists and takes its arguments."""
        if not self.target.refusal():
            yield from self._mistakes()

    def _mistakes(self) -> Iterator[Problem]:
        """Problems with the arguments; families may add their own."""
        yield from mistakes(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call_component(self, args, kwargs)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        kinds = tuple(sorted(kinds_of(type(self)).items()))
        return revive, (type(self).__setpoint__.cls, kinds), pack(self)


def _argument(name: str, kind: str, owner: type[Node]) -> FieldInfo:
    info = FieldInfo()
    info.name, info.annotation, info.owner = name, kind, owner
    info.role = owner.__setpoint__.role
    info._type = ArgumentType.of(kind)  # pyright: ignore[reportPrivateUsage]
    return info


@cache
def _class_with(cls: type[ImportedComponent], kinds: Kinds) -> type[ImportedComponent]:
    """The subclass of a section's class with fields for the given arguments.

    Equal arguments share one class, so equal sections have the same class.
    """
    if not kinds:
        return cls
    names = ("__module__", "__qualname__", "__doc__")
    namespace = {"__slots__": (), **{name: getattr(cls, name) for name in names}}
    subclass = cast(type[ImportedComponent], ConfigMeta(cls.__name__, (cls,), namespace))
    info = subclass.__setpoint__
    info.cls, info.tag, info.owner = cls, cls.__setpoint__.tag, cls.__setpoint__.owner
    for name, kind in kinds:
        info.fields[name] = _argument(name, kind, subclass)
    return subclass


def revive(cls: type[ImportedComponent], kinds: Kinds) -> ImportedComponent:
    """Make an empty section of a class with fields for arguments, for unpickling."""
    return object.__new__(_class_with(cls, kinds))


if TYPE_CHECKING:
    # Type checkers know `functools.partial`: they check names and types of the arguments and infer
    # the result of the call.
    from functools import partial as partial

    Partial = partial
else:

    class Partial(ImportedComponent, type="import"):
        """Any callable with some of its arguments, as in `functools.partial`.

        Created by `setpoint.partial`. A union accepts such components by naming this class with
        their result in brackets: `Partial[Fraction]`, which is `functools.partial` for type
        checkers and this class at run time. Calling it calls the target.
        """

        def __class_getitem__(cls, made: object) -> type:
            return cls

    COMPONENTS["import"] = Partial

    def partial(target: Callable[..., Any] | str, /, *args: Any, **arguments: Any) -> Any:
        """A callable with some of its arguments, to be called when the configuration is built.

        Arguments:
            args: not allowed; records need the names of arguments.

        Returns:
            an imported component; a family's field converts it to the family's variant.

        Raises:
            ConfigError: the target does not accept some arguments; lists each of them.
        """
        origin = python_origin(1)
        section = Partial()
        values = {"target": target, **arguments}
        errors: list[Invalid] = []
        if args:
            values["(positions)"] = args
            errors.append(Invalid("must be given by keyword").inside("(positions)"))
        try:
            fill(section, {"target": target, **arguments}, origin)
        except Invalid as error:
            errors.extend(error.parts)
        if not errors:
            path: ImportPath = section.target
            function = path.loaded() if isinstance(target, str) else target
            if function is not None:
                errors = wrong_arguments(function, str(path), arguments_of(section))
        if errors:
            title = getattr(target, "__name__", target)
            raise ConfigError(
                [
                    problem_of(error, (f"partial({title})",), values, origin.describe(error.at))
                    for error in errors
                ]
            )
        return section
