"""Lists, mappings and the user's free area: checked in drafts, immutable once resolved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite
from typing import Any, NoReturn, Protocol, SupportsIndex, cast

from ..words.errors import WRONG_KIND, ConfigError, Invalid, SetpointError
from ..words.plain_data import (
    MAX_BITS,
    MAX_DEPTH,
    TOO_DEEP,
    TOO_MANY_DIGITS,
    PlainScalar,
    children,
    guess,
    is_text,
    plain,
    plain_scalar,
    refuse_text,
    same,
)
from ..words.text import DATA, for_error, parse_flow, problem_of
from .origin import Origin, outside_origin, python_origin


class ItemType(Protocol):
    """The part of a type that a draft's list needs."""

    title: str

    def read_one(self, item: object, origin: Origin) -> Any:
        """Read one item, or raise `Invalid`."""
        ...


class KeyType(ItemType, Protocol):
    """The part of a type that a draft's mapping needs."""

    def check_key(self, key: object) -> str:
        """Refuse a key that a mapping cannot have with `Invalid`."""
        ...


def _noting(change: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of `list` or `dict` that removes items, to record the caller's line."""

    def method(self: CheckedList | CheckedDict, *args: Any, **options: Any) -> Any:
        self.note_change()
        return change(self, *args, **options)

    method.__name__, method.__doc__ = change.__name__, change.__doc__
    return method


class CheckedList(list[Any]):
    """A draft's list, which checks each new item."""

    __slots__ = ("changed", "kind")

    def __init__(self, items: Iterable[Any], kind: ItemType) -> None:
        super().__init__(items)
        self.kind = kind
        # The origin of the last change in place, which the section does not see.
        self.changed: Origin | None = None

    def note_change(self) -> Origin:
        """Record the line of user code that changes the list."""
        self.changed = origin = outside_origin()
        return origin

    def _read(self, *values: object, first: int = 0) -> list[Any]:
        """Validate values; `first` is the index used in errors."""
        origin, title = self.note_change(), self.kind.title
        return [
            _checked(self.kind, value, origin, f"{title}.{index}")
            for index, value in enumerate(values, start=first)
        ]

    def append(self, value: object) -> None:
        super().extend(self._read(value, first=len(self)))

    def insert(self, index: SupportsIndex, value: object) -> None:
        super().insert(index, *self._read(value, first=slice(index, None).indices(len(self))[0]))

    def extend(self, values: Iterable[object]) -> None:
        super().extend(self._read(*values, first=len(self)))

    def __iadd__(self, values: Iterable[object]) -> CheckedList:
        self.extend(values)
        return self

    def __imul__(self, count: SupportsIndex) -> NoReturn:
        # Sections would become shared.
        raise SetpointError("a list of a configuration cannot be multiplied; assign a new list")

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            first = cast(slice, index).indices(len(self))[0]
            items: Any = self._read(*value, first=first)
        else:
            items = self._read(value, first=int(index) % max(len(self), 1))[0]
        super().__setitem__(cast(Any, index), items)

    pop = _noting(list[Any].pop)
    remove = _noting(list[Any].remove)
    clear = _noting(list[Any].clear)
    reverse = _noting(list[Any].reverse)
    sort = _noting(list[Any].sort)
    __delitem__ = _noting(list[Any].__delitem__)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        # Copies outside a configuration are ordinary lists.
        return list, (list(self),)


class CheckedDict(dict[str, Any]):
    """A draft's mapping, which checks each new value."""

    __slots__ = ("before", "changed", "kind")

    def __init__(self, items: Mapping[str, Any], kind: KeyType) -> None:
        super().__init__(items)
        self.kind = kind
        self.changed: Origin | None = None
        # The entries set by the layer that gave the mapping, before any change in place.
        self.before: dict[str, Any] | None = None

    def note_change(self) -> Origin:
        """Record the line of user code that changes the mapping."""
        if self.changed is None:
            self.before = dict(self)
        self.changed = origin = outside_origin()
        return origin

    def __setitem__(self, key: str, value: object) -> None:
        origin = self.note_change()
        try:
            name = self.kind.check_key(key)
        except Invalid as error:
            raise _refused(error, key, origin, self.kind.title) from None
        place = f"{self.kind.title}.{name}"
        super().__setitem__(name, _checked(self.kind, value, origin, place))

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def __ior__(self, other: Any) -> CheckedDict:
        self.update(other)
        return self

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    pop = _noting(dict[str, Any].pop)
    popitem = _noting(dict[str, Any].popitem)
    clear = _noting(dict[str, Any].clear)
    __delitem__ = _noting(dict[str, Any].__delitem__)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _checked(kind: ItemType, value: object, origin: Origin, place: str) -> Any:
    try:
        return kind.read_one(value, origin)
    except Invalid as error:
        raise _refused(error, value, origin, place) from None


def _refused(error: Invalid, value: object, origin: Origin, place: str) -> ConfigError:
    """The error for one item, named by its class and field."""
    source = origin.describe(())
    return ConfigError([problem_of(part, (place,), value, source) for part in error.parts])


def last_change(value: object) -> Origin | None:
    """The origin of the last in-place change of a list or mapping, or of one inside it, if any."""
    if isinstance(value, CheckedList | CheckedDict):
        inner = (last_change(item) for _, item in children(value))
        return next(filter(None, inner), value.changed)
    return None


def _refuse(self: Any, *_: object, **__: object) -> NoReturn:
    subject = f"{self.title} cannot be changed: " if self.title else ""
    raise SetpointError(
        f"{subject}a resolved configuration is immutable; use evolve() to make a changed draft"
    )


class FrozenList(list[Any]):
    """A resolved config's list: equal to a list, hashable and immutable."""

    __slots__ = ("title",)

    def __init__(self, items: Iterable[Any] = (), title: str = "") -> None:
        super().__init__(items)
        self.title = title

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(tuple(self))

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        # Without appending items one by one, as copying and unpickling would.
        return type(self), (tuple(self), self.title)


class FrozenDict(dict[str, Any]):
    """A resolved config's mapping: equal to a dict, hashable and immutable."""

    __slots__ = ("title",)

    def __init__(self, items: Mapping[str, Any], title: str = "") -> None:
        super().__init__(items)
        self.title = title

    update = setdefault = pop = popitem = clear = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(frozenset(self.items()))

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return type(self), (dict(self), self.title)


class Free:
    """A mapping of free keys to plain values; in a draft, reading a missing key makes a section.

    `user.probe.width = 8` works although `user.probe` was never declared. Read a key that is a
    method of this class, such as `items`, as `user["items"]`.
    """

    __slots__ = ("_frozen", "_origins", "_values")

    _values: dict[str, Any]
    _origins: dict[str, list[tuple[Origin, object]]]
    _frozen: bool

    def __init__(self, **values: object) -> None:
        object.__setattr__(self, "_values", {})
        object.__setattr__(self, "_origins", {})
        object.__setattr__(self, "_frozen", False)
        for key, value in values.items():
            self.put(key, value, python_origin(1))

    def __getattr__(self, key: str) -> Any:
        # No key begins with _, but Python and its tools look up such names on every object.
        if key.startswith("_"):
            raise AttributeError(key)
        if key in self._values:
            return self._values[key]
        if self._frozen:
            raise AttributeError(f"the user area has no key {key!r}")
        self._values[key] = Free()
        return self._values[key]

    def __setattr__(self, key: str, value: object) -> None:
        self.put(key, value, python_origin(1))

    def __getitem__(self, key: str) -> Any:
        try:
            return self.__getattr__(key)
        except AttributeError:
            raise KeyError(key) from None

    def get(self, key: str, default: Any = None) -> Any:
        """The value under a key, or the default if there is none; makes no section."""
        return dict(self.items()).get(key, default)

    def keys(self) -> Iterator[str]:
        """The keys; with them, `dict(user)` makes a copy."""
        return iter(self)

    def __contains__(self, key: object) -> bool:
        return any(key == known for known in self)

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.items())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __setitem__(self, key: str, value: object) -> None:
        self.put(key, value, python_origin(1))

    def put(self, key: object, value: object, origin: Origin) -> None:
        """Set one key from a known origin; a mapping is merged into the section of that name.

        Raises:
            Invalid: the value is not plain data.
            SetpointError: the area is part of a resolved config.
        """
        if self._frozen:
            raise SetpointError(f"user.{key} cannot be set: a resolved configuration is immutable")
        key = _check_key(key)
        if isinstance(value, Free):
            value = value.dump()
        if isinstance(value, PlainScalar):
            value = _read_text(value)
        if isinstance(value, Mapping):
            _refuse_depth(cast(object, value))
            inner = self._values.get(key)
            if not isinstance(inner, Free):
                inner = self._values[key] = Free()
            inner.put_all(cast(Mapping[object, object], value), origin)
            return
        stored = read_plain(value)
        self._values[key] = stored
        self._origins.setdefault(key, []).append((origin, stored))

    def put_all(self, values: Mapping[object, object], origin: Origin) -> None:
        """Set several keys; see `put`."""
        for key, item in values.items():
            try:
                self.put(key, item, origin)
            except Invalid as error:
                raise (error.inside(key) if isinstance(key, str) else error) from None

    def is_frozen(self) -> bool:
        """True if the area is part of a resolved config."""
        return self._frozen

    def inside(self, key: str) -> Any:
        """The value under a key; a new empty area if there is none.

        Raises:
            Invalid: the key is not valid.
        """
        return self[_check_key(key)]

    @classmethod
    def read(cls, value: object, origin: Origin) -> Free:
        """Make an area from a mapping.

        Raises:
            Invalid: the value is not a mapping.
        """
        if isinstance(value, Free):
            return value
        area = cls()
        if isinstance(value, PlainScalar):
            value = parse_flow(value)
        if not isinstance(value, Mapping):
            message = f"is not a mapping of keys to values: got {for_error(value)}"
            raise Invalid(message, kind=WRONG_KIND)
        area.put_all(cast(Mapping[object, object], value), origin)
        return area

    def chain(self, key: str) -> list[tuple[Origin, object]]:
        """All layers that set a key, first to last."""
        return self._origins.get(key, [])

    def items(self) -> Iterator[tuple[str, Any]]:
        """The keys with their values, without empty nested areas."""
        for key, value in self._values.items():
            if not isinstance(value, Free) or len(value):
                yield key, value

    def copy(self, frozen: bool) -> Free:
        """An independent copy."""
        copied = Free()
        for key, value in self.items():
            copied._values[key] = value.copy(frozen) if isinstance(value, Free) else value
        copied._origins.update({key: list(chain) for key, chain in self._origins.items()})
        object.__setattr__(copied, "_frozen", frozen)
        return copied

    def __copy__(self) -> Free:
        return self.copy(self._frozen)

    def __deepcopy__(self, memo: dict[int, Any]) -> Free:
        return self.copy(self._frozen)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        chains = {
            key: [(origin.fixed(key), value) for origin, value in chain]
            for key, chain in self._origins.items()
        }
        return object.__new__, (type(self),), (self._values, chains, self._frozen)

    def __setstate__(self, state: tuple[Any, Any, bool]) -> None:
        for name, value in zip(("_values", "_origins", "_frozen"), state, strict=True):
            object.__setattr__(self, name, value)

    def dump(self) -> dict[str, Any]:
        """The area as plain data."""
        return {key: plain(value) for key, value in self.items()}

    def __eq__(self, other: object) -> bool:
        return same(self.dump(), other.dump()) if isinstance(other, Free) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(sorted((key, hash(value)) for key, value in self.items())))

    def __repr__(self) -> str:
        return f"Free({', '.join(f'{key}={value!r}' for key, value in self.items())})"


def _refuse_depth(value: object) -> None:
    """Refuse lists and mappings that are too deep or too large, or contain themselves."""
    level = {id(value): value}
    for _ in range(MAX_DEPTH):
        below: dict[int, object] = {}
        for item in level.values():
            below.update((id(part), part) for _, part in children(item))
        if not below:
            return
        level = below
    raise Invalid(f"is {TOO_DEEP}, or contains itself")


def read_plain(value: object) -> Any:
    """Check that a value is plain data, and make it immutable; unread text is read as in YAML.

    Raises:
        Invalid: the value is not plain data.
    """
    _refuse_depth(value)
    return _plain(value)


def _plain(given: object) -> Any:
    value = plain_scalar(given)
    if isinstance(value, PlainScalar):
        value = _read_text(value)
    if isinstance(value, list | tuple):
        return tuple(map(_plain, cast(list[object], value)))
    if isinstance(value, Mapping):
        entries = cast(Mapping[object, object], value)
        return FrozenDict({read_key(key): _plain(item) for key, item in entries.items()})
    # Subclasses, such as enums, become plain values, as a file would contain them.
    if isinstance(value, str):
        text = str.__str__(value)
        refuse_text(text)
        return None if text == "null" else text
    if isinstance(value, float):
        number = float(value)
        if not isfinite(number):
            raise Invalid("is not a finite number, which some file formats cannot represent")
        return number + 0.0  # minus zero equals zero; records must agree
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise Invalid(TOO_MANY_DIGITS)
        return int(value)
    raise Invalid(
        f"is not plain data: an object of type {type(value).__name__} cannot be written to a file"
    )


def _read_text(text: PlainScalar) -> object:
    """Read an unquoted text: a list, a mapping, a quoted text, or a scalar."""
    if text.startswith(DATA):
        return parse_flow(text)
    if text == "null":
        return None
    try:
        return guess(text)
    except SetpointError as error:
        raise Invalid(str(error)) from None


def read_key(key: object) -> str:
    """A key of a mapping.

    Raises:
        Invalid: the key is not text; converted to text, it could be equal to another key.
    """
    if not isinstance(key, str):
        raise Invalid(f"has a key that is not a str: {for_error(key)}", hint=f"Write {str(key)!r}.")
    text = str.__str__(key)
    if not is_text(text):
        raise Invalid(f"has a key that cannot be written to a file: {text!r}")
    refuse_text(text)
    return text


def _check_key(key: object) -> str:
    text = read_key(key)
    if not text or "." in text or text.startswith("_"):
        raise Invalid(
            f"{text!r} cannot be a key: keys are not empty, have no dots and do not begin with _"
        )
    return text
