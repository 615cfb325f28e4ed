"""The base of all config classes: a draft that checks each assignment, or frozen once resolved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, SupportsIndex, TypeVar

from ..schema.class_info import ClassInfo, ConfigMeta
from ..schema.field import FieldInfo
from ..values.node import Node, chain_of, is_frozen, touched, value_or_missing
from ..values.origin import DEFAULT, DERIVED, Origin, python_origin
from ..words.errors import ConfigError, Invalid, Problem, SetpointError, UnresolvedError
from ..words.plain_data import MISSING
from ..words.plain_data import same as same_value
from ..words.text import problem_of
from .build import build
from .copying import copied_draft, draft_of, is_changed, pack, unpack
from .plain import to_plain
from .shared_sections import shared_places
from .unknown_keys import is_secret_key, location_hint, unknown_key
from .walk import leaves

if TYPE_CHECKING:
    from .typing import Evolve


class Config(Node, metaclass=ConfigMeta):
    """A typed section of a configuration.

    Subclasses declare fields as annotations with defaults; the docstring under a field is its
    help text. An instance is a *draft*: assignments are checked at once, and each value remembers
    the line that set it. `resolve` returns a frozen, hashable copy with every value determined.
    """

    __slots__ = ("__dict__", "__weakref__")
    __setpoint__: ClassVar[ClassInfo]

    def __init__(self, **values: Any) -> None:
        object.__setattr__(self, "_state", None)
        if values:
            self._set_fields(values, python_origin(1))

    # Hidden from type checkers, which would otherwise let every misspelt attribute pass.
    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: object) -> None:
            self.set_field(name, value, python_origin(1))

        def __delattr__(self, name: str) -> None:
            raise SetpointError(f"a field cannot be deleted: {type(self).__name__}.{name}")

        def __getattr__(self, name: str) -> Any:
            # Only reached while the slot is empty: the field has not been touched.
            info = type(self).__setpoint__.fields.get(name)
            if info is None:
                if name.startswith("_"):  # Python and its tools ask for these on every object
                    raise AttributeError(name)
                error = unknown_key(type(self), name)
                known = ", ".join(error.valid) or "none"
                raise AttributeError(f"{error.message}; its fields: {known}. {error.hint}".rstrip())
            state = self._state
            if state is not None and state.invalid and name in state.invalid:
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
        """Set one field from a known origin, checking its name, type and range.

        Raises:
            ConfigError: if there is no such field, or it cannot take the value.
            SetpointError: if the config is resolved and so immutable.
        """
        state = self._state
        if state is not None and state.frozen:
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
                error = unknown_key(type(self), name)
                error.secret = error.secret or is_secret_key(type(self), name)
                raise error
            stored = _read(info, value, origin)
        except Invalid as error:
            if info is None:
                # The whole tree is known only from its root; a section knows what is below it.
                error.hint = error.hint or location_hint(type(self), name)
            path, where = (type(self).__name__, name), origin.describe((name,))
            problems = [problem_of(part, path, value, where) for part in error.parts]
            raise ConfigError(problems) from None
        self.store(name, stored, origin)

    def _set_fields(self, values: dict[str, Any], origin: Origin) -> None:
        """Set several fields; what is wrong with any of them is reported together."""
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
            """A changed draft of this config; the config itself stays as it is.

            Derived values are left to be derived again from the changed ones.
            """
            return self._changed(changes, 1)

        def __replace__(self, **changes: Any) -> Self:
            return self._changed(changes, 2)  # called by `copy.replace`

    def _changed(self, changes: dict[str, Any], depth: int) -> Self:
        draft, copies = copied_draft(self)
        if not changes:
            return draft
        # A section of this very draft, put into a second place, is one object in the other, too.
        own = {
            name: value if value is self else copies.get(id(value), value)
            for name, value in changes.items()
        }
        draft._set_fields(own, python_origin(depth + 1))
        return draft

    def to_dict(self, *, flat: bool = False) -> dict[str, Any]:
        """All values as plain data, for instance for `wandb.init(config=...)`.

        Arguments:
            flat: one level, by dotted paths such as `optimizer.lr`, in place of nested dicts.

        Returns:
            dicts, lists, texts, numbers, booleans and None. A variant has its `type`; secrets are
            the references that they are; a section that stands in several places is written at the
            first, and as a reference to it at the others.
        """
        if flat:
            return {leaf.key: leaf.value for leaf in leaves(self)}

        return to_plain(self, replace_mappings=True)

    def build(self, **runtime: Any) -> Any:
        """Import the owner of this config and construct it.

        Returns:
            what the owner returns for `owner(config, **runtime)`.
        """
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

        # Two equal encoders are another model than one that is used twice.
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
        """The section as a file has it in a list: its type, and the values that were set."""
        tag = type(self).__setpoint__.tag
        held = {name: value_or_missing(self, name) for name in touched(self)
                if chain_of(self, name)}  # fmt: skip
        return held if tag is None else {"type": tag, **held}

    def __repr__(self) -> str:
        held = ((name, value_or_missing(self, name)) for name in touched(self))
        inside = ", ".join(
            f"{name}={value!r}" for name, value in held if chain_of(self, name) or is_changed(value)
        )
        return f"{type(self).__name__}({inside})"

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


def _read(info: FieldInfo, value: object, origin: Origin) -> Any:
    try:
        return info.read(value, origin)
    except RecursionError:
        raise Invalid("is nested too deeply, or contains itself") from None


def is_set(config: Config, name: str) -> bool:
    """Whether any layer has given a field a value; for methods that derive from what is given.

    Raises:
        SetpointError: if the class has no such field.
    """
    # A deriving method sees a view; what is computed has not been given, so it does not count.
    section: Config = getattr(config, "__setpoint_section__", config)
    if name not in type(section).__setpoint__.fields:
        error = unknown_key(type(section), name)
        raise SetpointError(f"is_set: {error.message}. {error.hint}".rstrip())
    chain = chain_of(section, name)
    return bool(chain) and chain[-1][0].layer not in (DEFAULT, DERIVED)


def fields_of(config: Config | type[Config]) -> dict[str, FieldInfo]:
    """The fields of a config or config class, in order of declaration."""
    return (config if isinstance(config, type) else type(config)).__setpoint__.fields


if TYPE_CHECKING:
    Owner = TypeVar("Owner", covariant=True)

    class Builds(Config, Generic[Owner]):
        """A `Config` whose `build` returns what stands in the brackets."""

        def build(self, **runtime: Any) -> Owner: ...

else:

    class Builds:
        """A `Config` whose `build` returns what stands in the brackets: `Builds["Model"]`.

        At run time it is `Config` itself.
        """

        def __class_getitem__(cls, owner: object) -> type:
            return Config
