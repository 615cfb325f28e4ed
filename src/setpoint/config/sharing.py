"""One section in several places: references to sections, and the places that hold the same one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from .base import Config, chain_of, is_frozen, origins_of, touched, value_or_missing
from .errors import Invalid, SetpointError
from .field import FieldInfo
from .free import Free
from .origin import Path
from .reference import Reference, may_refer
from .walk import UNTOUCHED, dotted, leaves, sections

PLACES = 10_000  # sections of one tree, each counted in every place where it stands


class Nothing:
    """The type of `NOTHING`, which stands for an item that is not there, since None is a value."""

    __slots__ = ()


NOTHING = Nothing()


def item_at(node: Any, part: str | int) -> Any:
    """One item of a list, a mapping or a free area.

    Arguments:
        node: what may have items.
        part: the index or key.

    Returns:
        the item, or `NOTHING`.
    """
    if isinstance(node, Free):
        return next((item for key, item in node.items() if key == part), NOTHING)
    if isinstance(node, dict):
        return cast(dict[str | int, Any], node).get(part, NOTHING)
    if isinstance(node, tuple | list) and isinstance(part, int):
        items = cast(Sequence[Any], node)
        return items[part] if 0 <= part < len(items) else NOTHING
    return NOTHING


def missing_place(root: Config, path: Path) -> Invalid:
    """The error for a reference that leads nowhere.

    Arguments:
        root: the root of the tree.
        path: the path as far as the part that is not there.

    Returns:
        the error, to be raised by the caller.
    """
    from .reference import from_environment
    from .suggest import place_of

    name = dotted(path)
    absent = _null_above(root, path)
    if absent:
        return Invalid(f"refers to {name}, but {absent}")
    hint = place_of(type(root), str(path[-1]), name)
    if not hint and len(path) == 1 and name.isupper():
        hint = from_environment(name, type(root).__setpoint__.environment_prefix)
    return Invalid(f"refers to {name}, which does not exist", hint=hint)


def _null_above(root: Config, path: Path) -> str:
    """The section above a place that is null, with its origin; the empty text if there is none."""
    node: Any = root
    for at, part in enumerate(path[:-1], 1):
        if not isinstance(node, Config) or part not in type(node).__setpoint__.fields:
            return ""
        chain, node = chain_of(node, str(part)), value_or_missing(node, str(part))
        if node is None:
            origin = f" ({chain[-1][0].describe(path[:at])})" if chain else ""
            return f"{dotted(path[:at])} is null{origin}"
    return ""


def with_items(value: Any, changes: Mapping[Path, object], inside: Path = ()) -> Any:
    """A list, tuple or mapping with some of its items replaced, as plain containers.

    Arguments:
        value: the value.
        changes: the new items by their paths.
        inside: the path of the value itself.

    Returns:
        a copy that a field's type can read.
    """
    if inside in changes:
        return changes[inside]
    if isinstance(value, tuple | list):
        items = enumerate(cast(Sequence[Any], value))
        return [with_items(item, changes, (*inside, index)) for index, item in items]
    if isinstance(value, dict):
        pairs = cast(dict[str, Any], value).items()
        return {key: with_items(item, changes, (*inside, key)) for key, item in pairs}
    return value


def contains(outer: Config, inner: Config) -> bool:
    """Whether a section is another one, or holds it at any depth.

    Arguments:
        outer, inner: the sections.

    Returns:
        True if so.
    """
    return any(section is inner for _, section in sections(outer))


def bind(root: Config, placed: Iterable[tuple[Path, Config]] | None = None) -> bool:
    """Put the section itself wherever a reference to a section stands.

    A reference to what is not there, or does not fit, stays as it is; a later layer may set what
    is missing, and `resolve` reports it otherwise.

    Arguments:
        root: the root of a draft.
        placed: its sections with their paths; found anew if None.

    Returns:
        True if a section was put somewhere.
    """
    waiting = [
        (section, name)
        for _, section in (sections(root) if placed is None else placed)
        if not is_frozen(section)  # else no reference has been left
        for name in list(origins_of(section))
        if type(section).__setpoint__.fields[name].type.nested
        and may_refer(value_or_missing(section, name))
    ]
    bound = False
    again = bool(waiting)
    while again:
        # One reference may lead through another, whatever their order.
        count = sum(_bind(root, section, name) for section, name in waiting)
        again, bound = count > 0, bound or count > 0
    return bound


def _bind(root: Config, section: Config, name: str) -> bool:
    chain = chain_of(section, name)
    value: Any = value_or_missing(section, name)
    found: dict[Path, object] = {}
    for inside, reference in references(value):
        target = _target(root, reference)
        if isinstance(target, Config) and not contains(target, section):
            found[inside] = target
    if not found:
        return False
    info = type(section).__setpoint__.fields[name]
    origin = chain[-1][0]
    try:
        stored = info.read(with_items(value, found), origin)
    except Invalid:
        return False
    _replace(section, info, stored)
    return True


def _target(root: Config, reference: Reference) -> Any:
    """What a reference names, as far as it is known without computing anything."""
    node: Any = root
    for part in reference.path or ():
        if isinstance(node, Config) and part in type(node).__setpoint__.fields:
            node = value_or_missing(node, str(part))
        else:
            node = item_at(node, part)
    return node if reference.path else NOTHING


def references(value: Any, inside: Path = ()) -> Iterator[tuple[Path, Reference]]:
    """The references in a value, at any depth.

    Arguments:
        value: a stored value.
        inside: the path of the value itself.

    Returns:
        pairs of the path that leads to a reference, empty for the whole value, and the reference.
    """
    if isinstance(value, Reference):
        yield inside, value
    elif isinstance(value, tuple | list):
        for index, item in enumerate(cast(Sequence[Any], value)):
            yield from references(item, (*inside, index))
    elif isinstance(value, dict):
        for key, item in cast(dict[str, Any], value).items():
            yield from references(item, (*inside, key))


def switch(root: Config, old: Config, new: Config) -> None:
    """Put a section wherever another one stands, if that is in several places.

    Arguments:
        root: the root of a draft.
        old: the section as it was.
        new: the section of another variant that takes its place.

    Raises:
        Invalid: if one of the places cannot take it; nothing has been changed then.
    """
    changes: list[tuple[Config, FieldInfo, object]] = []
    count = 0
    for path, section in _touched_sections(root, (), set()):
        for name in touched(section):
            value: Any = value_or_missing(section, name)
            found = dict.fromkeys(_standing(value, old), new)
            if not found:
                continue
            count += len(found)
            info = type(section).__setpoint__.fields[name]
            chain = chain_of(section, name)
            try:
                stored = info.read(with_items(value, found), chain[-1][0] if chain else UNTOUCHED)
            except Invalid as error:
                place = dotted((*path, name))
                raise Invalid(
                    f"is the same section as {place}, which cannot be of this type", error.valid
                ) from None
            changes.append((section, info, stored))
    for section, info, stored in changes if count > 1 else ():
        _replace(section, info, stored)


def _touched_sections(config: Config, path: Path, seen: set[int]) -> Iterator[tuple[Path, Config]]:
    """The sections in which something was set or looked at; no default is made for this."""
    seen.add(id(config))
    yield path, config
    for name in touched(config):
        value: Any = value_or_missing(config, name)
        for inside, part in _parts(value, ()):
            if id(part) not in seen:
                yield from _touched_sections(part, (*path, name, *inside), seen)


def _parts(value: Any, inside: Path) -> Iterator[tuple[Path, Config]]:
    if isinstance(value, Config):
        yield inside, value
    elif isinstance(value, tuple | list):
        for index, item in enumerate(cast(Sequence[Any], value)):
            yield from _parts(item, (*inside, index))
    elif isinstance(value, dict):
        for key, item in cast(dict[str, Any], value).items():
            yield from _parts(item, (*inside, key))


def _standing(value: Any, wanted: Config) -> list[Path]:
    return [inside for inside, part in _parts(value, ()) if part is wanted]


def _replace(section: Config, info: FieldInfo, stored: object) -> None:
    """Put another value into a field without a new layer: it is the same setting."""
    object.__setattr__(section, info.name, stored)
    chain = chain_of(section, info.name)
    if chain:
        chain[-1] = (chain[-1][0], stored)


def shared_places(config: Config) -> dict[Path, Path]:
    """The places of a tree that hold a section which stands in an earlier place as well.

    Arguments:
        config: the root.

    Returns:
        for each such place the first place of its section, in order of declaration.
    """
    again: list[tuple[Path, Config]] = []
    first = {id(section): path for path, section in sections(config, (), again)}
    return {path: first[id(section)] for path, section in again}


def check_size(config: Config) -> None:
    """Refuse a tree in which references to sections multiply beyond what anybody means.

    Arguments:
        config: the root, in which no section contains itself.

    Raises:
        SetpointError: if its sections, each counted in every place where it stands, are too many.
    """
    sizes: dict[int, int] = {}

    def size(section: Config) -> int:
        known = sizes.get(id(section))
        if known is None:
            fields = type(section).__setpoint__.fields
            inner = (_inside(fields[name], section) for name in fields)
            known = sizes[id(section)] = 1 + sum(size(part) for parts in inner for part in parts)
        return known

    if size(config) > PLACES:
        raise SetpointError(
            f"the configuration holds more than {PLACES:,} sections, each counted in every place "
            f"that refers to it"
        )


def _inside(info: FieldInfo, section: Config) -> list[Config]:
    value: Any = value_or_missing(section, info.name)
    if isinstance(value, Config):
        return [value]
    if isinstance(value, tuple | list | dict) and info.type.nested:
        return [part for _, part in info.type.sections(value)]
    return []


def shared(config: Config) -> Iterator[str]:
    """What stands in several places, in words.

    Arguments:
        config: a draft or a resolved config.

    Returns:
        for each place but the first of its section, for instance `key is query, from exp.toml:3:1`.
    """
    places = shared_places(config)
    for leaf in leaves(config) if places else ():
        first = places.get(leaf.path)
        if first is not None:
            yield f"{leaf.key} is {dotted(first)}, from {leaf.describe_origin()}"
