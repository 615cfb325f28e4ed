"""Lists and mappings inside configs: checked while a draft, immutable once resolved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Protocol, SupportsIndex, cast

from ..words.errors import ConfigError, Invalid, SetpointError
from ..words.shown import children, problem_of
from .origin import Origin, outside_origin


class ItemType(Protocol):
    """What a draft's list asks its type for."""

    title: str

    def read_one(self, item: object, origin: Origin) -> Any:
        """Read one item, or raise `Invalid`."""
        ...


class KeyType(ItemType, Protocol):
    """What a draft's mapping asks its type for."""

    def check_key(self, key: object) -> str:
        """Refuse a key that a mapping cannot have with `Invalid`."""
        ...


def _noting(change: Callable[..., Any]) -> Callable[..., Any]:
    """A method of `list` or `dict` that takes things out, and notes where it was called."""

    def method(self: CheckedList | CheckedDict, *args: Any, **options: Any) -> Any:
        self.note_change()
        return change(self, *args, **options)

    method.__name__, method.__doc__ = change.__name__, change.__doc__
    return method


class CheckedList(list[Any]):
    """A draft's list: each item is checked when it is put in."""

    __slots__ = ("changed", "kind")

    def __init__(self, items: Iterable[Any], kind: ItemType) -> None:
        super().__init__(items)
        self.kind = kind
        # Where the last change in place was made, since the section does not see it.
        self.changed: Origin | None = None

    def note_change(self) -> Origin:
        """Remember the line of the user's that changes the list."""
        self.changed = origin = outside_origin()
        return origin

    def _read(self, *values: object, first: int = 0) -> list[Any]:
        """What is put in, checked; the index of the first of it is for errors."""
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
        # Sections would stand in several places at once.
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
        # A copy outside a configuration is an ordinary list.
        return list, (list(self),)


class CheckedDict(dict[str, Any]):
    """A draft's mapping: each value is checked when it is put in."""

    __slots__ = ("before", "changed", "kind")

    def __init__(self, items: Mapping[str, Any], kind: KeyType) -> None:
        super().__init__(items)
        self.kind = kind
        self.changed: Origin | None = None
        # What the layer that gave the mapping had in it, once it has been changed in place.
        self.before: dict[str, Any] | None = None

    def note_change(self) -> Origin:
        """Remember the line of the user's that changes the mapping."""
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
    """The report for one item, which is named by the class and the field that hold it."""
    where = origin.describe(())
    return ConfigError([problem_of(part, (place,), value, where) for part in error.parts])


def title_of(value: CheckedList | CheckedDict | FrozenList | FrozenDict) -> str:
    """The class and field that hold a list or mapping.

    Returns:
        for instance `Net.sizes`.
    """
    return value.kind.title if isinstance(value, CheckedList | CheckedDict) else value.title


def last_change(value: object) -> Origin | None:
    """Where a value was last changed in place.

    Returns:
        the origin, or None if neither it nor a list or mapping inside it was changed.
    """
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
    """A resolved config's list: it equals a list, is hashable, and cannot change."""

    __slots__ = ("title",)

    def __init__(self, items: Iterable[Any] = (), title: str = "") -> None:
        super().__init__(items)
        self.title = title

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(tuple(self))

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        # Items are not appended one by one, as copying and unpickling would.
        return type(self), (tuple(self), self.title)


class FrozenDict(dict[str, Any]):
    """A resolved config's mapping: it equals a dict, is hashable, and cannot change."""

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
