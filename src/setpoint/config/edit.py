"""Putting the values of one layer onto a draft, and gathering everything that does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from .base import Config, State, chain_of, state_of, touched
from .errors import Invalid
from .field import FieldInfo
from .files.limits import MAX_DEPTH, TOO_DEEP
from .files.plain import PlainScalar
from .free import Free
from .origin import DEFAULT, Origin, Path
from .problem import Problem
from .reference import Reference
from .suggest import field_of, holds_secret, names_secret, nearest, place_of, unknown_key
from .types.base import FieldType, shown_part
from .types.containers import MappingType, OptionalType, SequenceType, TupleType
from .types.sections import SectionType
from .types.special import FreeType
from .walk import UNTOUCHED, dotted


class Editor:
    """Applies values to a draft; a value that does not fit becomes a problem, not an exception.

    Arguments:
        root: the draft to change.
        whole: whether a mapping replaces the one that is there, instead of adding to it; records
            hold whole values.
    """

    def __init__(self, root: Config, whole: bool = False) -> None:
        self.root = root
        self.whole = whole
        self.problems: list[Problem] = []
        self.failed: set[str] = set()

    def merge(self, values: Mapping[str, object], origin: Origin) -> None:
        """Put a whole mapping onto the root, as a file does.

        Arguments:
            values: nested plain data.
            origin: where it comes from.
        """
        self._merge(self.root, values, origin, ())

    def set(self, path: Sequence[str], value: object, origin: Origin) -> None:
        """Put one value at a dotted path, as a flag does.

        Arguments:
            path: names, keys and indices as written.
            value: the value.
            origin: where it comes from.
        """
        keys = tuple(path)
        try:
            if len(keys) > MAX_DEPTH:
                raise Invalid(TOO_DEEP)
            self._descend(self.root, keys, (), value, origin)
        except Invalid as error:
            self.report(keys, value, origin, error)

    def report(
        self, path: Path, value: object, origin: Origin, error: Invalid, meant: str = ""
    ) -> None:
        """Record what is wrong with a value.

        Arguments:
            path: where it was to go.
            value: the value as it came.
            origin: where it comes from.
            error: what is wrong, perhaps in several places inside the value.
            meant: what is suggested for an unknown key; looked for in the whole tree if empty.
        """
        for part in error.parts:
            full = (*path, *part.at)
            hint, text = part.hint, shown_part(value, part)
            if part.message.startswith("unknown key"):
                hint = meant or place_of(type(self.root), str(full[-1]), dotted(full)) or hint
                if names_secret(type(self.root), str(full[-1])):
                    text = "***"
            self.failed.add(dotted(full))
            self.problems.append(
                Problem(
                    dotted(full),
                    part.message,
                    valid=part.valid,
                    hint=hint,
                    value=text,
                    origin=origin.describe(full),
                )
            )

    def _merge(
        self, section: Config, values: Mapping[str, object], origin: Origin, path: Path
    ) -> None:
        for key, value in values.items():
            here = (*path, str(key))
            try:
                info = self._field(section, str(key))
                self._assign(section, info, value, origin, here)
            except Invalid as error:
                self.report(here, value, origin, error)

    def _field(self, section: Config, key: str) -> FieldInfo:
        info = field_of(type(section), key)
        if info is None:
            raise unknown_key(type(section), key)
        return info

    def _assign(
        self, section: Config, info: FieldInfo, value: object, origin: Origin, path: Path
    ) -> None:
        name = info.name
        kind = _unwrapped(info.type)
        structured = isinstance(kind, SectionType | MappingType | FreeType)
        if structured and isinstance(value, PlainScalar) and value.startswith("{"):
            from .layers.flow import parse_flow

            try:
                value = parse_flow(value)
            except Invalid as error:
                raise Invalid(error.message, secret=holds_secret(kind)) from None
        if isinstance(kind, SectionType) and isinstance(value, Mapping):
            entries = cast(Mapping[str, object], value)
            inner = self._section(section, info, kind, origin, path, entries.get("type"))
            rest = {key: item for key, item in entries.items() if key != "type"}
            self._merge(inner, rest, origin, path)
            return
        named = isinstance(value, str) and value != "null" and "${" not in value
        if isinstance(kind, SectionType) and (named or isinstance(value, int | float)):
            if not kind.variants():
                raise kind.refuse(value)
            self._section(section, info, kind, origin, path, value)
            return
        current: Any = _current(section, info) if structured else None
        if isinstance(current, Free) and isinstance(value, Mapping):
            for key, item in cast(Mapping[object, object], value).items():
                try:
                    current.put(str(key), item, origin)
                except Invalid as error:
                    self.report((*path, str(key)), item, origin, error)
            return
        if isinstance(current, dict) and isinstance(value, Mapping) and not self.whole:
            held = cast(dict[object, object], current)
            value = {**held, **cast(Mapping[object, object], value)}
        section.store(name, info.read(cast(object, value), origin), origin)

    def _section(
        self,
        parent: Config,
        info: FieldInfo,
        kind: SectionType,
        origin: Origin,
        path: Path,
        tag: object = None,
    ) -> Config:
        """The section that stands in a field, made or switched to another variant if need be."""
        current: Any = _current(parent, info)
        if tag is None:
            if isinstance(current, Config):
                return current
            cls = kind.only()
            if cls is None:
                raise Invalid(
                    "no variant is chosen here yet, so its fields cannot be set",
                    kind.candidates(),
                ).inside("type")
        else:
            try:
                cls = kind.find(tag)
            except Invalid as error:
                raise error.inside("type") from None
            if type(current) is cls:
                parent.store(info.name, current, origin)
                return current
        fresh = cls()
        if isinstance(current, Config):
            keep_shared(current, fresh)
        parent.store(info.name, fresh, origin)
        return fresh

    def _descend(self, node: object, rest: Path, done: Path, value: object, origin: Origin) -> None:
        key = str(rest[0])
        here = (*done, key)
        if isinstance(node, Free):
            if len(rest) == 1:
                node.put(key, value, origin)
            else:
                self._descend(node[key], rest[1:], here, value, origin)
            return
        if not isinstance(node, Config):
            raise Invalid(_single(done, key))
        fields = type(node).__setpoint__.fields
        if key == "type" and len(rest) == 1 and "type" not in fields:
            raise Invalid("the root has no variants, so no type can be chosen")
        try:
            info = self._field(node, key)
        except Invalid as error:
            # Named with its whole path, so that the hint can search the whole tree.
            close = nearest(key, type(node).__setpoint__.fields, 1) if len(rest) > 1 else []
            meant = f"Did you mean {dotted((*done, *close, *rest[1:]))}?" if close else ""
            self.report((*done, *rest), value, origin, error, meant)
            return
        if len(rest) == 1:
            self._assign(node, info, value, origin, here)
            return
        kind = _unwrapped(info.type)
        if isinstance(kind, SectionType):
            if rest[1] == "type" and len(rest) == 2:
                chosen = {"type": value}
                try:
                    self._assign(node, info, chosen, origin, here)
                except Invalid as error:
                    self.report(here, chosen, origin, error)
                return
            inner = self._section(node, info, kind, origin, here)
            self._descend(inner, rest[1:], here, value, origin)
        elif kind.is_container():
            self._set_item(node, info, rest[1:], here, value, origin)
        elif isinstance(kind, FreeType):
            self._descend(_current(node, info), rest[1:], here, value, origin)
        else:
            raise Invalid(_single(here, str(rest[1])), secret=kind.is_secret())

    def _set_item(
        self, node: Config, info: FieldInfo, rest: Path, done: Path, value: object, origin: Origin
    ) -> None:
        """Set one item of a list or mapping, or something inside an item."""
        held: Any = _current(node, info)
        try:
            changed = self._changed(info.type, held, rest, done, value, origin)
            if changed is not held:
                node.store(info.name, info.read(changed, origin), origin)
        except Invalid as error:
            # The error's own path leads through the items; the value is what was to go there.
            for part in error.parts:
                inside = part.at[len(rest) :]
                shown = Invalid(part.message, part.valid, inside, part.hint, part.secret)
                place = part.at[: len(rest)] if len(part.at) >= len(rest) else rest
                self.report((*done, *place), value, origin, shown)

    def _changed(
        self, kind: FieldType, held: Any, rest: Path, done: Path, value: object, origin: Origin
    ) -> Any:
        """What a value becomes when something inside it is set; errors lead to it from outside."""
        kind = _unwrapped(kind)
        if isinstance(held, Config):
            if rest and rest != ("type",):
                self._descend(held, rest, done, value, origin)
                return held
            fresh = kind.read(value, origin)
            if isinstance(fresh, Config) and not isinstance(value, Mapping):
                keep_shared(held, fresh)
            return fresh
        if not rest:
            return kind.read(value, origin)
        if isinstance(held, Reference):
            reason = f"is the reference {held.text}, whose items are not known yet"
            raise Invalid(f"{dotted(done)} {reason}")
        key, item = rest[0], None
        if isinstance(kind, MappingType):
            items: Any = dict(held or {})
            key, item = kind.check_key(str(key)), kind.item
        elif isinstance(kind, SequenceType | TupleType):
            items = list(held or ())
            key = _index(str(key), len(items), dotted(done))
            item = kind.items[key] if isinstance(kind, TupleType) else kind.item
        else:
            raise Invalid(_single(done, str(key)))
        if len(rest) > 1 and isinstance(items, dict) and key not in items:
            known = tuple(map(str, cast(dict[str, Any], items)))
            raise Invalid(f"{dotted(done)} has no item {key!r}", known)
        before: Any = cast(Any, items).get(key) if isinstance(items, dict) else items[key]
        try:
            items[key] = self._changed(item, before, rest[1:], (*done, key), value, origin)
        except Invalid as error:
            raise error.inside(key) from None
        # A section is changed in place; the list that holds it stays the same.
        return held if isinstance(before, Config) and items[key] is before else cast(Any, items)


def keep_shared(old: Config, new: Config) -> None:
    """Carry the values that were set over to another variant, where it has the same fields.

    Arguments:
        old: the section that is replaced.
        new: a fresh section of the other variant; what it cannot take is remembered as dropped.
    """
    fields = type(new).__setpoint__.fields
    state: State = state_of(new)
    for name in touched(old):
        chain = chain_of(old, name)
        value: Any = getattr(old, name)
        if chain and chain[-1][0].layer == DEFAULT:
            continue
        if not chain and not is_changed(value):
            continue
        origin = chain[-1][0] if chain else UNTOUCHED
        try:
            if name not in fields:
                raise Invalid("the new variant has no such field")
            object.__setattr__(new, name, fields[name].read(value, origin))
            state.origins[name] = list(chain)
        except Invalid:
            state.dropped.append((name, value, origin))


def is_changed(value: object) -> bool:
    """Whether something was set inside a value that itself stands at its default.

    Arguments:
        value: a stored value.

    Returns:
        True for a section, or a free area, in which a field was set.
    """
    if isinstance(value, Config):
        return any(
            chain_of(value, name) or is_changed(getattr(value, name)) for name in touched(value)
        )
    return isinstance(value, Free) and any(True for _ in value.items())


def _unwrapped(kind: FieldType) -> FieldType:
    while isinstance(kind, OptionalType):
        kind = kind.inner
    return kind


def _current(section: Config, info: FieldInfo) -> Any:
    if info.required or info.derived:
        chain = chain_of(section, info.name)
        return chain[-1][1] if chain else None
    return getattr(section, info.name)


def _index(text: str, length: int, path: str) -> int:
    try:
        index = int(text)
    except ValueError:
        raise Invalid(f"{path} is a list; {text!r} is not an index") from None
    if not -length <= index < length:
        raise Invalid(
            f"{path} has {length} item{'s' * (length != 1)}; there is no item {index}",
            tuple(map(str, range(length))),
        )
    return index % length


def _single(path: Path, key: str) -> str:
    return f"{dotted(path)} is a single value; it has no {key!r} inside"
