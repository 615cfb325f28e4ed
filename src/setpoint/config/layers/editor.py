"""Putting the values of one layer onto a draft, and gathering everything that does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from ..draft.copying import MANY_ORIGINS, draft_of, one_layer, successor
from ..draft.shared_sections import bind, switch
from ..draft.unknown_keys import known_elsewhere, unknown_key
from ..draft.walk import TAG, reached
from ..migrations.chain import retired_hint
from ..schema.field import FieldInfo
from ..schema.tree import classes_at, holds_secret, unknown_tag
from ..types.base import FieldType
from ..types.containers import (
    ADDING,
    REMOVE,
    AnyOfType,
    DataType,
    FreeType,
    MappingType,
    SequenceType,
    TupleType,
    unwrapped,
)
from ..types.scalars import BoolType, EnumType, FloatType, IntType, LiteralType, PathType, StrType
from ..types.sections import SectionType, fill, tag_of
from ..values.containers import Free
from ..values.node import Node, chain_of, layers_of, state_of, stood
from ..values.origin import Origin
from ..values.reference import Reference, may_refer
from ..words.errors import Invalid, Problem
from ..words.names import Path, dotted
from ..words.plain_data import MAX_DEPTH, TOO_DEEP, PlainScalar, same
from ..words.text import for_error, parse_flow
from .editor_base import EXTENDS, EditorBase, fields_in
from .fragment import put_fragments, with_fragments
from .hints import explained
from .list_edits import changed_data, edit_items, set_item, single
from .presets import forget_restored, remember_replaced, section_of_preset

# Fields of these types hold one value, so that nothing can be set inside it.
SINGLE = (IntType, FloatType, BoolType, StrType, PathType, LiteralType, EnumType)


class Editor(EditorBase):
    """Applies values to a draft; a value that does not fit becomes a problem, not an exception.

    Arguments:
        replace_mappings: as records do, which hold complete values; a mapping of another layer
            adds to the one that is there.
    """

    def __init__(self, root: Node, replace_mappings: bool = False) -> None:
        super().__init__(root, replace_mappings)
        # Whether the layer that is being merged gave references.
        self.refers = False
        # By what path a layer first came to a section, which may stand in several places. What is
        # named by its identity is kept, so that nothing else can get the same one.
        self.reached: dict[tuple[int, int], tuple[Path, Node, Origin]] = {}
        # What was reported as lost to a variant, which a later flag may still undo.
        self.lost: list[Problem] = []

    def trial(self) -> Editor:
        return Editor(draft_of(self.root))

    def on(self, draft: Node) -> Editor:
        """An editor that goes on with another draft of the same configuration."""
        other = Editor(draft, self.replace_mappings)
        other.problems, other.notes, other.lost = self.problems, self.notes, self.lost
        other.fragment_count = self.fragment_count
        return other

    def merge(self, values: Mapping[str, object], origin: Origin) -> None:
        """Put a whole mapping onto the root, as a file does.

        A tag sets the fields that the mapping does not set by their own names.
        """
        tags = values.get(TAG) if TAG not in type(self.root).__setpoint__.fields else None
        named: Mapping[str, object] = {}
        if isinstance(tags, Mapping):
            named = cast(Mapping[str, object], tags)
        rest = {key: value for key, value in values.items() if key != TAG} if named else values
        self.refers = False
        self.merge_section(self.root, rest, origin, ())
        for tag, value in named.items():
            self.set_tag(str(tag), value, origin, unless=lambda other: other is origin)
        if self.refers:
            bind(self.root)

    def set(self, path: Sequence[str], value: object, origin: Origin) -> None:
        """Put one value at a dotted path, as a flag does."""
        keys = tuple(path)
        try:
            if len(keys) > MAX_DEPTH:
                raise Invalid(TOO_DEEP)
            if len(keys) == 2 and keys[0] == TAG and TAG not in type(self.root).__setpoint__.fields:
                self.set_tag(keys[1], value, origin)
                return
            self.descend(self.root, keys, (), value, origin)
            if may_refer(value):
                bind(self.root)
        except Invalid as error:
            self.report(keys, value, origin, error)

    def set_tag(
        self,
        tag: str,
        value: object,
        origin: Origin,
        unless: Callable[[Origin], bool] = lambda _: False,
    ) -> None:
        """Set every field that carries a tag."""
        name = tag.replace("-", "_")
        found = list(reached(self.root, name))
        if not found:
            self.report((TAG, tag), value, origin, unknown_tag(type(self.root), name))
        for path, section, info in found:
            chain = chain_of(section, info.name)
            if chain and unless(chain[-1][0]):
                continue
            try:
                self._assign(section, info, value, origin, path)
            except Invalid as error:
                self.report(path, value, origin, error)

    def merge_section(
        self, section: Node, values: Mapping[str, object], origin: Origin, path: Path
    ) -> None:
        """Put a mapping onto one section."""
        self.reached.setdefault((id(section), id(origin)), (path, section, origin))

        def put(key: str, value: object) -> None:
            self._assign(section, self._field(section, key), value, origin, (*path, key))

        def fail(key: str, value: object, error: Invalid) -> None:
            for inner, item in self._foreign_section((*path, key), value, error):
                self.report(inner, item, origin, error)

        fill(section, values, origin, put, fail)

    def _foreign_section(
        self, path: Path, value: object, error: Invalid
    ) -> list[tuple[Path, object]]:
        """What to report of a value: each key of a section of another system, or the whole."""
        whole = [(path, value)]
        if not isinstance(value, Mapping) or not error.message.startswith("unknown key"):
            return whole
        entries = cast(Mapping[str, object], value)
        above = classes_at(type(self.root), path[:-1])
        close = [name for cls in above for name in cls.__setpoint__.near(str(path[-1]))]
        meant = classes_at(type(self.root), (*path[:-1], close[0])) if close else []
        if any(cls.__setpoint__.find(str(key)) for cls in meant for key in entries):
            return whole
        names = [name for key in entries for name in (str(key), dotted((*path, str(key))))]
        foreign = any(known_elsewhere(type(self.root), name) for name in names)
        if not foreign or retired_hint(type(self.root), dotted(path)):
            return whole
        return [((*path, str(key)), item) for key, item in entries.items()]

    def _field(self, section: Node, key: str) -> FieldInfo:
        info = type(section).__setpoint__.find(key)
        if info is None:
            raise unknown_key(type(section), key)
        return info

    def _assign(
        self, section: Node, info: FieldInfo, value: object, origin: Origin, path: Path
    ) -> None:
        try:
            self._assign_value(section, info, value, origin, path)
        except Invalid as error:
            raise explained(info, value, error, path, origin) from None

    def _assign_value(
        self, section: Node, info: FieldInfo, value: object, origin: Origin, path: Path
    ) -> None:
        kind = unwrapped(info.type)
        if isinstance(kind, SectionType):
            self._assign_section(section, info, kind, mapping_in(kind, value), origin, path)
            return
        if isinstance(kind, AnyOfType) and not kind.option(DataType):
            is_mapping = isinstance(value, Mapping)  # which edits a list
            kind = kind.option(MappingType) or (is_mapping and kind.option(SequenceType)) or kind
        if isinstance(kind, SINGLE):
            self._put(section, info, value, origin, path)
            return
        structured = isinstance(kind, MappingType | FreeType)
        sequence = isinstance(kind, SequenceType | TupleType)
        if structured or sequence:
            value = mapping_in(kind, value)
        if isinstance(value, Mapping):
            entries = cast(Mapping[str, object], value)
            if sequence and not kind.is_secret():
                self.refers = self.refers or may_refer(entries)
                edit_items(self, section, info, entries, origin, path)
                return
            if isinstance(kind, MappingType) and REMOVE in entries:
                set_item(self, section, info, (REMOVE,), path, entries[REMOVE], origin)
                value = entries = {key: item for key, item in entries.items() if key != REMOVE}
                if not entries:
                    return
            current: Any = self.current(section, info) if structured else None
            if isinstance(current, Free):
                self.refers = self.refers or may_refer(entries)
                for key, item in entries.items():
                    try:
                        current.put(key, item, origin)
                    except Invalid as error:
                        self.report((*path, str(key)), item, origin, error)
                return
            if isinstance(current, dict) and not self.replace_mappings:
                held = cast(dict[str, object], current)
                self._put(section, info, {**held, **entries}, origin, path)
                for key, item in held.items():
                    if key in entries and isinstance(item, Node):
                        text = for_error(entries[key])
                        remember_replaced(self.root, item, (*path, key), origin, text)
                return
        self._put(section, info, cast(object, value), origin, path)

    def _assign_section(
        self,
        section: Node,
        info: FieldInfo,
        kind: SectionType,
        value: object,
        origin: Origin,
        path: Path,
    ) -> None:
        """Set fields of the section that stands in a field, or put another one there."""
        if isinstance(value, Mapping):
            entries = cast(Mapping[str, object], value)
            if EXTENDS in entries:
                self.put_fragments(
                    entries,
                    origin,
                    path,
                    lambda values, place: self._assign(section, info, values, place, path),
                    lambda preset: self._take_from_preset(section, info, preset, origin, path),
                )
            inner = self._section(section, info, kind, origin, path, tag_of(entries))
            self.merge_section(inner, fields_in(entries), origin, path)
        elif isinstance(value, str) and value.startswith("@"):
            self._take_from_preset(section, info, value, origin, path)
        elif isinstance(value, int | float) or (
            isinstance(value, str) and value != "null" and "${" not in value
        ):
            if not kind.variants():
                raise kind.refuse(value)
            self._section(section, info, kind, origin, path, value)
        else:
            current: Any = self.current(section, info)
            self._put(section, info, value, origin, path)
            if isinstance(current, Node) and current is not getattr(section, info.name):
                shown = "null" if value is None else for_error(value)
                remember_replaced(self.root, current, path, origin, shown)

    def _take_from_preset(
        self, section: Node, info: FieldInfo, text: str, origin: Origin, path: Path
    ) -> None:
        fresh = section_of_preset(self, text, path)
        current: Any = self.current(section, info)
        if isinstance(current, Node):
            remember_replaced(self.root, current, path, origin, text)
            if fresh is not None:
                switch(self.root, current, fresh)
                forget_restored(self.root, fresh, path)
        section.store(info.name, info.read(fresh, origin), origin)

    def _put(
        self, section: Node, info: FieldInfo, value: object, origin: Origin, path: Path
    ) -> None:
        name = info.name
        self.refers = self.refers or may_refer(value)
        if info.type.nested:
            value = with_fragments(self, info.type, value, origin, path)
        stored = info.read(value, origin)
        place = path[:-1]
        key = (id(section), id(origin))
        before, *_ = self.reached.setdefault(key, (place, section, origin))
        given = any(layer is origin and name in values for layer, values in layers_of(section))
        if before != place and given and not same(stored, getattr(section, name)):
            raise Invalid(
                f"is the same value as {dotted((*before, name))}, which the same file sets to "
                f"another value: both paths lead to one shared section"
            )
        section.store(name, stored, origin)

    def _section(
        self,
        parent: Node,
        info: FieldInfo,
        kind: SectionType,
        origin: Origin,
        path: Path,
        tag: object = None,
    ) -> Node:
        """The section that stands in a field, made or switched to another variant if need be.

        One that an earlier layer has set to null comes back as it was.
        """
        current: Any = self.current(parent, info)
        if isinstance(current, Reference):
            bind(self.root)
            current = self.current(parent, info)
        if isinstance(current, Reference) and tag is None:
            raise Invalid(
                f"is the reference {current.text}, which does not lead to a section; set the "
                f"fields there, or set this field to null first"
            )
        if tag is None and isinstance(current, Node):
            return current
        given = [value for _, value in chain_of(parent, info.name)]
        before = stood(info.initial() if info.factory else None, *given, current)
        if tag is None and given and before:
            cls = type(before[-1]).__setpoint__.cls
        else:
            cls = kind.chosen(tag, "choose a variant first: without one it has no fields to set")
        if isinstance(current, Node) and type(current).__setpoint__.cls is cls:
            parent.store(info.name, current, origin)
            return current
        fresh = self.switch(before, cls, origin, path, current)
        parent.store(info.name, fresh, origin)
        return fresh

    def switch(
        self, before: Sequence[Node], cls: type[Node], origin: Origin, path: Path, held: object
    ) -> Node:
        """A section of a variant in a place, with all that was given for it; see `successor`.

        What the layer that switches has set itself, and the variant has not, is reported; what an
        earlier layer set was meant for another variant, and is only named as dropped.

        Arguments:
            before: the sections that stood there.
            held: what stands there now.
        """
        old = held if isinstance(held, Node) else None
        fresh = successor(cls, before, old)
        place = dotted(path)
        undone = [one for one in self.lost if one.path.rpartition(".")[0] == place]
        self.problems[:] = [one for one in self.problems if one not in undone]
        for name, value, given, reason in state_of(fresh).dropped:
            many = origin.layer in MANY_ORIGINS and one_layer(given, origin)
            if given is origin or many:
                error = Invalid(f"has no effect: {reason}", hint="Remove it.")
                self.report((*path, name), value, given, error)
                self.lost.append(self.problems[-1])
        if old is not None:
            state_of(fresh).replaced = old
            switch(self.root, old, fresh)
        forget_restored(self.root, fresh, path)
        return fresh

    def replaced(
        self, held: Node, kind: FieldType, value: object, origin: Origin, path: Path
    ) -> Node:
        """What an item that is a section becomes: changed in place, or of another variant.

        Raises:
            Invalid: if it is none of these.
        """
        value = mapping_in(kind, value)
        if not isinstance(value, Mapping):
            fresh: Node = kind.read(value, origin)
            cls = type(fresh).__setpoint__.cls
            if fresh is value:
                return fresh
            same = type(held).__setpoint__.cls is cls
            return held if same else self.switch(stood(held), cls, origin, path, held)
        entries = cast(Mapping[str, object], value)

        def put(values: Mapping[str, object], place: Origin) -> None:
            nonlocal held
            held = self.replaced(held, kind, values, place, path)

        self.put_fragments(entries, origin, path, put)
        tag = tag_of(entries)
        inner = held if tag is None or tag == type(held).__setpoint__.tag else None
        if inner is None:
            inner = self.replaced(held, kind, tag, origin, path)
        self.merge_section(inner, fields_in(entries), origin, path)
        return inner

    def put_fragments(
        self,
        values: Mapping[str, object],
        origin: Origin,
        path: Path,
        put: Callable[[dict[str, object], Origin], None],
        put_preset: Callable[[str], None] | None = None,
    ) -> None:
        """Put what the files hold that a section extends onto it."""
        if EXTENDS not in values:
            return
        if self.replace_mappings:
            raise Invalid("a record cannot extend files").inside(EXTENDS)

        put_fragments(self, values[EXTENDS], origin, path, put, put_preset)

    def descend(self, node: object, rest: Path, done: Path, value: object, origin: Origin) -> None:
        """Follow a path to where a value belongs, and set it there.

        Raises:
            Invalid: if the path cannot be followed, or the value does not fit.
        """
        key = str(rest[0])
        here = (*done, key)
        if isinstance(node, Free):
            held = dict(node.items()).get(key)
            if len(rest) == 1:
                node.put(key, value, origin)
            elif isinstance(held, Free) or (held is None and rest[1] not in ADDING):
                if held is None:  # null gives way to a section
                    node.put(key, {}, origin)
                self.descend(node.inside(key), rest[1:], here, value, origin)
            else:
                node.put(key, changed_data(self, held, rest[1:], here, value, origin), origin)
            return
        if not isinstance(node, Node):
            raise Invalid(single(done, key))
        fields = type(node).__setpoint__.fields
        if key == "type" and len(rest) == 1 and "type" not in fields:
            raise Invalid("the root has no variants, so no type can be chosen")
        try:
            info = self._field(node, key)
        except Invalid as error:
            # Named with its whole path, so that the hint can search the whole tree.
            close: list[str] = type(node).__setpoint__.near(key) if len(rest) > 1 else []
            whole = (*close, *rest[1:])
            there = classes_at(type(node), whole[:-1]) if close else []
            # Not in one that takes any argument: what is there says nothing of the name.
            closed = [cls for cls in there if not hasattr(cls, "__setpoint_open__")]
            exists = any(cls.__setpoint__.find(str(whole[-1])) for cls in closed)
            meant = f"Did you mean {dotted((*done, *whole))}?" if exists else ""
            if close and done:
                error = Invalid(
                    error.message, error.valid, hint=f"Did you mean {dotted((*done, *close))}?"
                )
            self.report((*done, *rest), value, origin, error, meant)
            return
        if len(rest) == 1:
            self._assign(node, info, value, origin, here)
            return
        kind = unwrapped(info.type)
        if isinstance(kind, SectionType):
            if rest[1] == "type" and len(rest) == 2:
                chosen = {"type": value}
                try:
                    self._assign(node, info, chosen, origin, here)
                except Invalid as error:
                    self.report(here, chosen, origin, error)
                return
            if rest[1] == EXTENDS and len(rest) == 2:
                self._assign(node, info, {EXTENDS: value}, origin, here)
                return
            try:
                inner = self._section(node, info, kind, origin, here)
            except Invalid as error:
                if error.at != ("type",):
                    raise
                # What is wrong is the section's type, not the field below it.
                self.report(here, {}, origin, error)
                return
            self.descend(inner, rest[1:], here, value, origin)
        elif kind.is_container():
            set_item(self, node, info, rest[1:], here, value, origin)
        elif isinstance(kind, FreeType):
            self.descend(self.current(node, info), rest[1:], here, value, origin)
        else:
            raise Invalid(single(here, str(rest[1])), secret=kind.is_secret())


def mapping_in(kind: FieldType, value: object) -> object:
    """A mapping that is given as a text, as on the command line; other values as they are.

    Raises:
        Invalid: if the text begins like a mapping and cannot be read as one.
    """
    if not isinstance(value, PlainScalar) or not value.startswith("{"):
        return value

    try:
        return parse_flow(value)
    except Invalid as error:
        raise Invalid(error.message, secret=holds_secret(kind)) from None
