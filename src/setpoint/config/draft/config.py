"""Base of all config classes: a draft that checks each assignment, frozen once resolved."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    SupportsIndex,
    TypeVar,
    overload,
)

from ..schema.class_info import ClassInfo, ConfigMeta
from ..schema.field import FieldInfo
from ..values.node import Node, State, chain_of, chains_of, is_changed, is_frozen, value_or_missing
from ..values.origin import DEFAULT, DERIVED, Origin, python_origin
from ..words.errors import ConfigError, Invalid, Problem, SetpointError, UnresolvedError
from ..words.plain_data import MISSING
from ..words.plain_data import same as same_value
from ..words.text import problem_of
from .copying import Copies, draft_of, pack, unpack
from .hints import assignment_hint, is_secret_key
from .walk import leaves, shared_places, to_plain

if TYPE_CHECKING:
    C = TypeVar("C")
    P = ParamSpec("P")
    Made = TypeVar("Made", covariant=True)
    Owner = TypeVar("Owner", covariant=True)

    if sys.version_info >= (3, 13):

        class Replaceable(Protocol[P, Made]):
            """Protocol of a class whose `__replace__` takes its fields as keywords."""

            def __replace__(self, *args: P.args, **kwargs: P.kwargs) -> Made: ...

    class Bare(Protocol[P, Made]):
        """Protocol of a class that can be constructed without arguments."""

        @overload
        def __call__(self) -> Made: ...
        @overload
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Made: ...

    class Evolve:
        """`Config.evolve`: accepts any of the fields, by name, and returns a draft of the class.

        From Python 3.13 on, type checkers derive `__replace__` from the fields, with this
        signature. Before, the constructor has this signature, too, unless it has required fields.
        """

        if sys.version_info >= (3, 13):

            def __get__(self, instance: Replaceable[P, C], owner: object) -> Callable[P, C]: ...
        else:

            @overload
            def __get__(self, instance: object, owner: Bare[P, C]) -> Callable[P, C]: ...
            @overload
            def __get__(self, instance: C, owner: object) -> Callable[..., C]: ...
            def __get__(self, instance: Any, owner: Any) -> Any: ...


_built: ContextVar[dict[int, tuple[Node, dict[str, Any], Any]] | None] = ContextVar(
    "setpoint_built", default=None
)


class Config(Node, metaclass=ConfigMeta):
    """A typed section of a configuration.

    Subclasses declare fields as annotations with defaults; the docstring under a field is its help
    text. An instance is a *draft*: assignments are checked immediately, and each value records the
    line that set it. `resolve` returns a frozen, hashable copy with every value determined.
    """

    __slots__ = ("__dict__", "__weakref__")
    __setpoint__: ClassVar[ClassInfo]

    def __init__(self, **values: Any) -> None:
        object.__setattr__(self, "_state", State())
        if values:
            self._set_fields(values, python_origin(1))

    # Hidden from type checkers, which would otherwise let every misspelt attribute pass.
    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: object) -> None:
            self.set_field(name, value, python_origin(1))

        def __delattr__(self, name: str) -> None:
            raise SetpointError(f"a field cannot be deleted: {type(self).__name__}.{name}")

        def __getattr__(self, name: str) -> Any:
            # Reached only while the slot is empty, before the field is first accessed.
            info = type(self).__setpoint__.fields.get(name)
            if info is None:
                if name.startswith("_"):  # Python and its tools look these up on every object
                    raise AttributeError(name)
                error = type(self).__setpoint__.unknown(name)
                known = ", ".join(error.valid) or "none"
                raise AttributeError(f"{error.message}; its fields: {known}. {error.hint}".rstrip())
            if name in self._state.invalid:
                raise UnresolvedError(
                    f"{type(self).__name__}.{name} has an invalid value, which has been reported"
                )
            if info.factory is None:
                if info.default is not MISSING:
                    return info.default
                kind = "derived when the configuration is resolved" if info.derived else "required"
                raise UnresolvedError(
                    f"{type(self).__name__}.{name} has no value yet: it is {kind}, and not set"
                )
            value = info.initial()
            object.__setattr__(self, name, value)
            return value

    def set_field(self, name: str, value: object, origin: Origin) -> None:
        """Set one field with a known origin, checking its name, type and range.

        Raises:
            ConfigError: the field does not exist or cannot accept the value.
            SetpointError: the config is resolved and therefore immutable.
        """
        if self._state.frozen:
            raise SetpointError(
                f"{type(self).__name__}.{name} cannot be set: a resolved configuration is "
                f"immutable; use evolve() to make a changed draft"
            )
        known = type(self).__setpoint__
        info = known.fields.get(name)
        try:
            if info is None:
                info = known.find(name)
            if info is None:
                error = type(self).__setpoint__.unknown(name)
                error.secret = error.secret or is_secret_key(type(self), name)
                raise error
            stored = info.read(value, origin)
        except (Invalid, RecursionError) as raised:
            too_deep = Invalid("is nested too deeply, or contains itself")
            error = raised if isinstance(raised, Invalid) else too_deep
            if info is None:
                error.hint = assignment_hint(type(self), name, value, error.hint)
            path, source = (type(self).__name__, name), origin.describe((name,))
            problems = [problem_of(part, path, value, source) for part in error.parts]
            raise ConfigError(problems) from None
        self.store(name, stored, origin)

    def _set_fields(self, values: dict[str, Any], origin: Origin) -> None:
        """Set several fields, and report all problems together."""
        problems: list[Problem] = []
        for name, value in values.items():
            try:
                self.set_field(name, value, origin)
            except ConfigError as error:
                problems.extend(error.problems)
        if problems:
            raise ConfigError(problems)

    if TYPE_CHECKING:
        evolve = Evolve()
    else:

        def evolve(self, **changes: Any) -> Self:
            """Return a changed draft of this config; the config itself is unchanged.

            Derived values are recomputed from the changed ones.
            """
            return self._changed(changes, 1)

        def __replace__(self, **changes: Any) -> Self:
            return self._changed(changes, 2)  # called by `copy.replace`

    def _changed(self, changes: dict[str, Any], depth: int) -> Self:
        copies = Copies(self)
        # A section of this draft that is also assigned elsewhere is one object in the copy, too.
        values = {
            name: value if value is self else copies.of.get(id(value), value)
            for name, value in changes.items()
        }
        copies.root._set_fields(values, python_origin(depth + 1))
        return copies.root

    def to_dict(self, *, flat: bool = False) -> dict[str, Any]:
        """Return all values as plain data, for example for `wandb.init(config=...)`.

        Arguments:
            flat: whether to return a single level with dotted paths such as `optimizer.lr`, instead
                of nested dicts.

        Returns:
            dicts, lists, texts, numbers, booleans and None. A variant has its `type`; secrets
            appear as references; a shared section is written at its first path, and as a reference
            to that path elsewhere.
        """
        if flat:
            return {leaf.key: leaf.value for leaf in leaves(self)}

        return to_plain(self, replace_mappings=True)

    def build(self, **runtime: Any) -> Any:
        """Import the owner of this config, and return `owner(config, **runtime)`."""
        return build(self, runtime)

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        if type(other) is not type(self):
            return NotImplemented
        same = all(
            same_value(value_or_missing(self, name), value_or_missing(other, name))
            for name in type(self).__setpoint__.fields
        )
        if not same:
            return False

        # Two equal encoders make a different model than one encoder used twice.
        return shared_places(self) == shared_places(other)

    def __hash__(self) -> int:
        if not is_frozen(self):
            raise TypeError(
                f"a draft of {type(self).__name__} is mutable and cannot be hashed; resolve it"
            )
        return hash(
            (type(self), tuple(getattr(self, name) for name in type(self).__setpoint__.fields))
        )

    def __setpoint_written__(self) -> dict[str, object]:
        """The section as a list item in a file: its type, and the values that were set."""
        tag = type(self).__setpoint__.tag
        chains = chains_of(self)
        values = {name: value_or_missing(self, name) for name in fields_of(self) if name in chains}
        return values if tag is None else {"type": tag, **values}

    def __repr__(self) -> str:
        chains, values = chains_of(self), vars(self)
        shown_values = (
            f"{name}={values[name]!r}"
            for name in fields_of(self)
            if name in values and (name in chains or is_changed(values[name]))
        )
        return f"{type(self).__name__}({', '.join(shown_values)})"

    def __setpoint_draft__(self) -> Self:
        return draft_of(self)

    def __copy__(self) -> Self:
        return self if is_frozen(self) else draft_of(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return object.__new__, (type(self),), pack(self)

    def __setstate__(self, packed: Any) -> None:
        unpack(self, packed)

    def __dir__(self) -> list[str]:
        return [*type(self).__setpoint__.fields, *object.__dir__(self)]


def is_set(config: Config, name: str) -> bool:
    """True if any layer has set a field; for methods that derive values from given ones.

    Raises:
        SetpointError: the class has no such field.
    """
    # A deriving method sees a view; computed values are not given, so they do not count.
    section: Config = getattr(config, "__setpoint_section__", config)
    if name not in type(section).__setpoint__.fields:
        error = type(section).__setpoint__.unknown(name)
        raise SetpointError(f"is_set: {error.message}. {error.hint}".rstrip())
    chain = chain_of(section, name)
    return bool(chain) and chain[-1][0].layer not in (DEFAULT, DERIVED)


def fields_of(config: Config | type[Config]) -> dict[str, FieldInfo]:
    """The fields of a config or config class, in order of declaration."""
    return (config if isinstance(config, type) else type(config)).__setpoint__.fields


if TYPE_CHECKING:

    class Builds(Config, Generic[Owner]):
        """A `Config` whose `build` returns the type in brackets."""

        def build(self, **runtime: Any) -> Owner: ...

else:

    class Builds:
        """A `Config` whose `build` returns the type in the brackets: `Builds["Model"]`.

        At run time it is `Config` itself.
        """

        def __class_getitem__(cls, owner: object) -> type:
            return Config


# From configs to objects: owners are imported when they are built; shared nodes are built once.


@contextmanager
def building() -> Generator[None]:
    """Build everything within this block as in one `build`: one object per config object.

    Use it in code that builds the parts of a configuration one after another, when some of them may
    be the same config object. Nested blocks belong to the outermost one.
    """
    if _built.get() is not None:
        yield
        return
    token = _built.set({})
    try:
        yield
    finally:
        _built.reset(token)


def build(config: Node, runtime: dict[str, Any]) -> Any:
    """Build the object of a config: `owner(config, **runtime)`.

    Within one outermost call, or one `with building():`, a config object at several paths is built
    only once.

    Raises:
        SetpointError: the class has no owner, or a config is built twice with different run-time
            arguments.
    """
    built = _built.get()
    if built is None:
        with building():
            return build(config, runtime)
    known = built.get(id(config))
    if known is not None:
        _, before, result = known
        matches = (
            value is runtime.get(name) or (type(value) is str and value == runtime.get(name))
            for name, value in before.items()
        )
        if before.keys() != runtime.keys() or not all(matches):
            raise SetpointError(
                f"{type(config).__name__} is used in two places and is built with "
                f"different run-time arguments; give each place its own config"
            )
        return result
    result = owner_of(type(config))(config, **runtime)
    # The config is stored with the result so that its identity is not reused.
    built[id(config)] = (config, runtime, result)
    return result


def owner_of(cls: type[Node]) -> Any:
    """Import the owner of a config class.

    Raises:
        SetpointError: the class has no owner, or it cannot be imported.
    """
    path = cls.__setpoint__.owner
    if path is None:
        raise SetpointError(
            f"{cls.__module__}.{cls.__qualname__} cannot be built: it has no owner; nest it in "
            f"its owner as `class Config`, or give owner='module:name'"
        )
    module, _, name = path.partition(":")
    try:
        owner: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or f"{module}.".startswith(f"{error.name}."):
            raise  # the path itself is wrong
        raise SetpointError(
            f"{cls.__name__} needs the package {error.name!r}, which is not installed; install the "
            f"package"
        ) from None
    return reduce(getattr, name.split("."), owner)
