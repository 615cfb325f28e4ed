"""The base of all config classes: a draft that checks each assignment, or frozen once resolved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

from .data import same as same_value
from .errors import Invalid, SetpointError, UnresolvedError
from .field import MISSING, FieldInfo
from .meta import ConfigMeta
from .origin import DEFAULT, DERIVED, Origin, Path, python_origin
from .problem import Caution, ConfigError, Problem
from .suggest import names_secret, place_of, settable, unknown_key
from .types.base import shown_part

if TYPE_CHECKING:
    from .copying import Copies
    from .typed import Evolve

Chain = list[tuple[Origin, object]]
NO_ORIGINS: Mapping[str, Chain] = MappingProxyType({})


class State:
    """What an instance remembers beside its values; made when the first value is set.

    Arguments: none.
    """

    __slots__ = (
        "below",
        "cautions",
        "copies",
        "dropped",
        "frozen",
        "origins",
        "shared",
        "source",
        "ties",
        "whole",
        "withheld",
    )

    def __init__(self) -> None:
        self.origins: dict[str, Chain] = {}
        self.frozen = False
        # Fields whose value is known to be wrong, so that nothing may be concluded from it.
        self.withheld: set[str] = set()
        # Values that a later layer has overtaken: (field, value, origin, reason).
        self.dropped: list[tuple[str, object, Origin, str]] = []
        # What resolve found legal but suspicious, on the root.
        self.cautions: tuple[Caution, ...] = ()
        # Of a resolved section: whether nothing in it follows from values outside of it.
        self.whole = False
        # Of a resolved section: whether some section of its tree stands in several places.
        self.ties = False
        # Of such a section: those below it with their paths, once somebody has asked for them.
        self.below: list[tuple[Path, Config]] | None = None
        # Of a draft of a resolved section: that section; the fields that nobody has looked into
        # yet and that are still its own; and the copies made so far. See `copying.draft_of`.
        self.source: Config | None = None
        self.shared: dict[str, Any] | None = None
        self.copies: Copies | None = None


class _Stateful:
    # Apart from `Config`, so that type checkers do not take the memory for a field.
    __slots__ = ("_state",)
    _state: State | None


class Config(_Stateful, metaclass=ConfigMeta):
    """A typed section of a configuration.

    Subclasses declare fields as annotations with defaults; the docstring under a field is its
    help text. An instance is a *draft*: assignments are checked at once, and each value remembers
    the line that set it. `resolve` returns a frozen, hashable copy with every value determined.
    """

    __slots__ = ("__dict__", "__weakref__")

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
            if state is not None and state.shared and name in state.shared:
                from .copying import take

                return take(self, name)
            if state is not None and name in state.withheld:
                raise UnresolvedError(f"{type(self).__name__}.{name} has been given a wrong value")
            if info.factory is None:
                if info.default is not MISSING:
                    return info.default
                kind = "derived when the configuration is resolved" if info.derived else "required"
                raise UnresolvedError(
                    f"{type(self).__name__}.{name} has no value yet: it is {kind}, and nothing has "
                    f"set it"
                )
            value = info.initial()
            object.__setattr__(self, name, value)
            return value

    def set_field(self, name: str, value: object, origin: Origin) -> None:
        """Set one field from a known origin, checking its name, type and range.

        Arguments:
            name: the field.
            value: a Python value, or a text to be read by the field's type.
            origin: where the value comes from.

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
        if state is not None and state.copies is not None:
            from .copying import own_sections

            value = own_sections(self, value)
        info = type(self).__setpoint__.fields.get(name)
        try:
            if info is None:
                info = settable(type(self), name)
            if info is None:
                error = unknown_key(type(self), name)
                error.secret = error.secret or names_secret(type(self), name)
                raise error
            stored = _read(info, value, origin)
        except Invalid as error:
            problems = [
                Problem(
                    ".".join(map(str, (type(self).__name__, name, *part.at))),
                    part.message,
                    valid=part.valid,
                    hint=self._hint(name, part) if info is None else part.hint,
                    value=shown_part(value, part),
                    origin=origin.describe((name,)),
                )
                for part in error.parts
            ]
            raise ConfigError(problems) from None
        self.store(name, stored, origin)

    def _hint(self, name: str, error: Invalid) -> str:
        # The whole tree is known only from its root; a section knows what lies below itself.
        return error.hint or place_of(type(self), name, name)

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

    def store(self, name: str, value: object, origin: Origin) -> None:
        """Put a checked value into a field and record its origin.

        Arguments:
            name: a field of this class.
            value: a value as `FieldInfo.read` returns it.
            origin: where it comes from.
        """
        object.__setattr__(self, name, value)
        state = self._state
        if state is None:
            state = State()
            object.__setattr__(self, "_state", state)
        elif state.shared:
            state.shared.pop(name, None)
        chain = state.origins.get(name)
        if chain is None:
            state.origins[name] = [(origin, value)]
        else:
            chain.append((origin, value))

    if TYPE_CHECKING:
        evolve = Evolve()
    else:

        def evolve(self, **changes: Any) -> Self:
            """A changed draft of this config; the config itself stays as it is.

            Derived values are left to be derived again from the changed ones.

            Arguments:
                changes: fields with their new values.

            Returns:
                a draft of the same class.
            """
            return self._changed(changes, python_origin(1))

        def __replace__(self, **changes: Any) -> Self:
            return self._changed(changes, python_origin(2))  # called by `copy.replace`

    def _changed(self, changes: dict[str, Any], origin: Origin) -> Self:
        from .copying import draft_of

        draft = draft_of(self)
        copies: dict[int, Any] = dict(state_of(draft).copies or ())
        del copies[id(self)]
        # A section of this very draft, put into a second place, is one object in the other, too.
        own = {name: copies.get(id(value), value) for name, value in changes.items()}
        draft._set_fields(own, origin)
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
            from .walk import leaves

            return {leaf.key: leaf.value for leaf in leaves(self)}
        from .plain import to_plain

        return to_plain(self, whole=True)

    def build(self, **runtime: Any) -> Any:
        """Import the owner of this config and construct it.

        Arguments:
            runtime: arguments that only exist at run time, handed to the owner as keywords.

        Returns:
            what the owner returns for `owner(config, **runtime)`.
        """
        from .building import build

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
        from .sharing import shared_places

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

    def __repr__(self) -> str:
        from .variant import is_changed

        held = ((name, value_or_missing(self, name)) for name in touched(self))
        inside = ", ".join(
            f"{name}={value!r}" for name, value in held if chain_of(self, name) or is_changed(value)
        )
        return f"{type(self).__name__}({inside})"

    def __copy__(self) -> Self:
        from .copying import draft_of

        return self if is_frozen(self) else draft_of(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        from .copying import pack

        return object.__new__, (type(self),), pack(self)

    def __setstate__(self, packed: Any) -> None:
        from .copying import unpack

        unpack(self, packed)

    def __dir__(self) -> list[str]:
        return [*type(self).__setpoint__.fields, *object.__dir__(self)]


def _read(info: FieldInfo, value: object, origin: Origin) -> Any:
    try:
        return info.read(value, origin)
    except RecursionError:
        raise Invalid("is nested too deeply, or contains itself") from None


def is_frozen(config: Config) -> bool:
    """Whether a config has been resolved and so cannot change.

    Arguments:
        config: any config.

    Returns:
        True for resolved configs, False for drafts.
    """
    state = config._state  # pyright: ignore[reportPrivateUsage]
    return state is not None and state.frozen


def state_of(config: Config) -> State:
    """The memory of an instance, made if it has none.

    Arguments:
        config: any config.

    Returns:
        its state; changing it changes the instance.
    """
    state = config._state  # pyright: ignore[reportPrivateUsage]
    if state is None:
        state = State()
        object.__setattr__(config, "_state", state)
    return state


def withhold(config: Config, name: str) -> None:
    """Make a field unreadable whose value is known to be wrong and has been reported.

    Derivations and checks that read it then end without a conclusion of their own.

    Arguments:
        config: a section of a tree that is being resolved.
        name: one of its fields.
    """
    state = state_of(config)
    if state.shared:
        state.shared.pop(name, None)
    if name in touched(config):
        object.__delattr__(config, name)
    state.withheld.add(name)


def chain_of(config: Config, name: str) -> Chain:
    """All layers that touched a field, first to last; empty while it has its default.

    Arguments:
        config: the section.
        name: one of its fields.

    Returns:
        pairs of origin and value; the last one won.
    """
    state = config._state  # pyright: ignore[reportPrivateUsage]
    return state.origins.get(name, []) if state else []


def origins_of(config: Config) -> Mapping[str, Chain]:
    """The layers that touched each field of a section; fields that none has touched are not in it.

    Arguments:
        config: the section.

    Returns:
        a chain, as `chain_of` gives it, for each field that was set or computed.
    """
    state = config._state  # pyright: ignore[reportPrivateUsage]
    return state.origins if state else NO_ORIGINS


def is_set(config: Config, name: str) -> bool:
    """Whether any layer has given a field a value; for methods that derive from what is given.

    Arguments:
        config: the section, as a deriving method sees it.
        name: one of its fields.

    Returns:
        False while the field has its default or is to be derived.

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
    """The fields of a config or config class, in order of declaration.

    Arguments:
        config: an instance or a class.

    Returns:
        the fields by name.
    """
    return (config if isinstance(config, type) else type(config)).__setpoint__.fields


def value_or_missing(config: Any, name: str) -> Any:
    """A field's value, or MISSING where a derived or required field is still unset.

    Arguments:
        config: the section.
        name: one of its fields.

    Returns:
        the value or MISSING.
    """
    try:
        return getattr(config, name)
    except UnresolvedError:
        return MISSING


def touched(config: Config) -> Iterator[str]:
    """The fields that hold a value of their own: set, or sections that were looked into.

    Arguments:
        config: the section.

    Returns:
        an iterator over field names.
    """
    state = config._state  # pyright: ignore[reportPrivateUsage]
    frozen = state is not None and state.frozen
    origins = state.origins if state else {}
    shared = state.shared or () if state else ()
    for name, info in type(config).__setpoint__.fields.items():
        if info.constant and name not in origins and not frozen:
            continue  # a default that all instances share is not put into them before the freeze
        if name not in shared:
            try:
                object.__getattribute__(config, name)
            except AttributeError:
                continue
        yield name
