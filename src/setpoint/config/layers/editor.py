"""Setting the values of one layer in a draft, and collecting all problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from ..draft.copying import MANY_ORIGINS, bind, one_layer, replace_shared, successor
from ..draft.hints import (
    explained,
    foreign_keys,
    is_foreign_key,
    is_secret_key,
    location_hint,
    retired_hint,
)
from ..draft.walk import TAG, reached
from ..schema.class_info import classes_at, holds_secret, unknown_tag
from ..schema.field import FieldInfo
from ..types.base import FieldType, read_item
from ..types.compound import (
    ADDING,
    REMOVE,
    AnyOfType,
    ContainerType,
    DataType,
    FreeType,
    MappingType,
    SectionType,
    SequenceType,
    TupleType,
    fill,
    tag_of,
    unwrapped,
)
from ..values.containers import Free
from ..values.node import Node, chain_of, history_of, state_of, value_or_missing
from ..values.origin import FILE, Origin, Recorded
from ..values.reference import Reference, may_refer
from ..values.scalar import Struct
from ..words.errors import (
    MAX_PROBLEMS,
    UNKNOWN_KEY,
    WRONG_KIND,
    ConfigError,
    Invalid,
    Problem,
)
from ..words.names import Path, dotted, nearest
from ..words.plain_data import MAX_DEPTH, MISSING, TOO_DEEP, PlainScalar, children, nested, same
from ..words.text import for_error, parse_flow, parse_list, part_of, problem_of
from .extends import EXTENDS, ExtendingFiles
from .list_edits import INSERT, ItemEdit, follow, single
from .presets import (
    PRESET_PREFIX,
    WRITTEN_LAYERS,
    forget_restored,
    remember_replaced,
    section_of_preset,
)

CLOSE = 0.8
"""Likeness of a section's name to a field that lacks the rest of the path."""


class Unknown(Struct):
    """An unknown key, or a value of the wrong kind, as written in its layer."""

    path: Path
    value: object
    origin: Origin
    problem: Problem


class Slot(NamedTuple):
    """A field of a section, with its path in the tree."""

    section: Node
    info: FieldInfo
    path: Path

    @property
    def current(self) -> Any:
        """The value before the edit; None for a required or derived field that is not set."""
        if self.info.name not in type(self.section).__setpoint__.fields:
            return None  # an argument of an imported component that is not set yet
        value = value_or_missing(self.section, self.info.name)
        return None if value is MISSING else value

    def store(self, value: object, origin: Origin) -> None:
        """Store a value that has been read."""
        self.section.store(self.info.name, value, origin)


class Editor:
    """Applies values to a draft; a value that is refused becomes a problem, not an exception.

    Arguments:
        replace_mappings: whether mappings replace existing ones, as in records, which contain
            complete values; by default, a mapping adds to the existing one.
    """

    def __init__(self, root: Node, replace_mappings: bool = False) -> None:
        self.root = root
        self.replace_mappings = replace_mappings
        self.problems: list[Problem] = []
        self.files = ExtendingFiles(type(root))
        # Unknown keys, values of the wrong kind, and the configuration as far as it can be
        # determined without them; for `other_names`.
        self.unknown: list[Unknown] = []
        self.wrong_kind: list[Unknown] = []
        self.determined: Node | None = None
        self._refers = False  # whether the current layer contains references
        # The path by which a layer first reached a section, which may be shared. The section is
        # stored too, so that its identity is not reused.
        self._reached: dict[tuple[int, int], tuple[Path, Node, Origin]] = {}
        # Problems of values lost to a change of variant, which a later flag may still undo.
        self._lost: list[Problem] = []
        # Fields whose value was refused, so their items are unknown.
        self._refused: set[Path] = set()

    def report(
        self, path: Path, value: object, origin: Origin, error: Invalid, suggestion: str = ""
    ) -> None:
        """Record what is wrong with a value.

        Arguments:
            suggestion: the suggestion for an unknown key; if empty, it is searched for in the whole
                tree.

        Raises:
            ConfigError: there are too many problems to read; lists those so far.
        """
        for part in error.parts:
            full, foreign = (*path, *part.at), False
            problem = problem_of(part, path, value, origin.describe(full))
            if part.kind == UNKNOWN_KEY:
                root = type(self.root)
                retired = retired_hint(
                    root, dotted(full), origin.label if origin.layer == FILE else None
                )
                foreign = not retired and (not suggestion or is_foreign_key(root, dotted(full)))
                hint = suggestion
                if foreign:
                    item = part_of(value, part.at)
                    hint = location_hint(root, dotted(full), not part.hint, item, part.hint)
                    part.hint = "" if isinstance(item, Mapping) else part.hint
                problem.hint = retired or hint or part.hint
                if is_secret_key(root, dotted(full)):
                    problem.value = "***"
            self.problems.append(problem)
            if problem.value == "***" or part.secret:
                continue
            if foreign:
                self.unknown.append(Unknown(full, part_of(value, part.at), origin, problem))
            elif part.kind == WRONG_KIND:
                self.wrong_kind.append(Unknown(full, part_of(value, part.at), origin, problem))
        if len(self.problems) >= MAX_PROBLEMS:
            raise ConfigError(self.problems)

    def merge(self, values: Mapping[str, object], origin: Origin) -> None:
        """Merge a whole mapping into the root, as a file does.

        A tag sets those of its fields that the mapping does not set by name.
        """
        tags = values.get(TAG)
        named: Mapping[str, object] = {}
        if isinstance(tags, Mapping):
            named = cast(Mapping[str, object], tags)
        rest = {key: value for key, value in values.items() if key != TAG} if named else values
        self._refers = may_refer(rest) or may_refer(named)
        self._merge_section(self.root, rest, origin, ())
        for tag, value in named.items():
            self.set_tag(str(tag), value, origin, unless=lambda other: other is origin)
        if self._refers:
            bind(self.root)

    def set(self, path: Sequence[str], value: object, origin: Origin) -> None:
        """Set one value at a dotted path, as a flag does."""
        keys = tuple(path)
        try:
            if len(keys) > MAX_DEPTH:
                raise Invalid(TOO_DEEP)
            if len(keys) == 2 and keys[0] == TAG:
                self.set_tag(keys[1], value, origin)
                return
            self._refers = may_refer(value)
            self._descend(self.root, keys, (), value, origin)
            if self._refers:
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
        fields = list(reached(self.root, name))
        if not fields:
            self.report((TAG, tag), value, origin, unknown_tag(type(self.root), name))
        for path, section, info in fields:
            chain = chain_of(section, info.name)
            if chain and unless(chain[-1][0]):
                continue
            try:
                self._assign(Slot(section, info, path), value, origin)
            except Invalid as error:
                self.report(path, value, origin, error)

    def _merge_section(
        self, section: Node, values: Mapping[str, object], origin: Origin, path: Path
    ) -> None:
        """Merge a mapping into a section."""
        self._reached.setdefault((id(section), id(origin)), (path, section, origin))

        def put(key: str, value: object) -> None:
            info = type(section).__setpoint__.find(key)
            if info is None:
                raise type(section).__setpoint__.unknown(key)
            self._assign(Slot(section, info, (*path, key)), value, origin)

        def fail(key: str, value: object, error: Invalid) -> None:
            full = (*path, key)
            is_foreign = error.kind == UNKNOWN_KEY
            parts = foreign_keys(type(self.root), full, value) if is_foreign else [(full, value)]
            for inner, item in parts:
                if len(inner) > len(path) + 1:  # its hint is about the section
                    error = error.but(hint="", secret=False)
                self.report(inner, item, origin, error)

        fill(section, values, origin, put, fail)

    def _assign(self, slot: Slot, value: object, origin: Origin) -> None:
        """Set a whole field or section; a refusal states what to write instead, if known."""
        try:
            self._assign_value(slot, value, origin)
            self._refused.discard(slot.path)
        except Invalid as error:
            self._refused.add(slot.path)
            root = type(self.root)
            raise explained(root, slot.info, value, error, slot.path, origin) from None

    def _assign_value(self, slot: Slot, value: object, origin: Origin) -> None:
        kind = unwrapped(slot.info.type)
        if isinstance(kind, SectionType):
            self._assign_section(slot, kind, mapping_in(kind, value), origin)
            return
        if isinstance(kind, AnyOfType) and not kind.option(DataType):
            is_mapping = isinstance(value, Mapping)  # a mapping edits the list
            kind = kind.option(MappingType) or (is_mapping and kind.option(SequenceType)) or kind
        structured = isinstance(kind, MappingType | FreeType)
        sequence = isinstance(kind, SequenceType | TupleType)
        if structured or sequence:
            value = mapping_in(kind, value)
        if not isinstance(value, Mapping) or (sequence and kind.is_secret()):
            self._read_and_store(slot, cast(object, value), origin)
            return
        entries = cast(Mapping[str, object], value)
        if sequence:
            self._edit_items(slot, entries, origin)
            return
        if isinstance(kind, MappingType) and REMOVE in entries:
            self._set_item(slot, (REMOVE,), entries[REMOVE], origin)
            entries = {key: item for key, item in entries.items() if key != REMOVE}
            if not entries:
                return
        current: Any = slot.current if structured else None
        if isinstance(current, Free):
            for key, item in entries.items():
                try:
                    current.put(key, item, origin)
                except Invalid as error:
                    self.report((*slot.path, str(key)), item, origin, error)
        elif isinstance(current, dict) and not self.replace_mappings:
            items = cast(dict[str, object], current)
            self._read_and_store(slot, {**items, **entries}, origin)
            for key, item in items.items():
                if key in entries and isinstance(item, Node):
                    text = for_error(entries[key])
                    remember_replaced(self.root, item, (*slot.path, key), origin, text)
        else:
            self._read_and_store(slot, entries, origin)

    def _assign_section(self, slot: Slot, kind: SectionType, value: object, origin: Origin) -> None:
        """Set fields of the section in a field, or replace the section."""
        if isinstance(value, Mapping):
            self._merge_onto(
                lambda tag, layer: self._section(slot, kind, layer, tag),
                cast(Mapping[str, object], value),
                origin,
                slot.path,
                lambda preset, layer: self._take_from_preset(slot, preset, layer),
            )
        elif isinstance(value, str) and value.startswith(PRESET_PREFIX):
            self._take_from_preset(slot, value, origin)
        elif isinstance(value, int | float) or (
            isinstance(value, str) and value != "null" and "${" not in value
        ):
            if not kind.variants():
                raise kind.refuse(value)
            self._section(slot, kind, origin, value)
        else:
            current, state = slot.current, state_of(self.root)
            key = dotted(slot.path)
            state.dropped = tuple(entry for entry in state.dropped if entry[:2] != (key, None))
            self._read_and_store(slot, value, origin)
            if isinstance(current, Node) and current is not slot.current:
                text = "null" if value is None else for_error(value)
                remember_replaced(self.root, current, slot.path, origin, text)

    def _take_from_preset(self, slot: Slot, text: str, origin: Origin) -> None:
        section = section_of_preset(type(self.root), text, slot.path)
        current = slot.current
        if isinstance(current, Node):
            remember_replaced(self.root, current, slot.path, origin, text)
            if section is not None:
                replace_shared(self.root, current, section)
                forget_restored(self.root, section, slot.path)
        slot.store(slot.info.read(section, origin), origin)

    def _read_and_store(self, slot: Slot, value: object, origin: Origin) -> None:
        """Read the value of a field that is not a section, and store it with its origin."""
        section, info, path = slot
        stored = info.read(self._with_fragments(info.type, value, origin, path), origin)
        key = (id(section), id(origin))
        first, *_ = self._reached.setdefault(key, (path[:-1], section, origin))
        layers = state_of(section).layers
        given = any(layer is origin and info.name in values for layer, values in layers)
        if first != path[:-1] and given and not same(stored, getattr(section, info.name)):
            raise Invalid(
                f"is the same value as {dotted((*first, info.name))}, which the same file sets to "
                f"another value: both paths lead to one shared section"
            )
        before: object = slot.current if info.type.nested else None
        slot.store(stored, origin)
        if before:
            # Sections that refer to the items of a list or mapping refer to the new items.
            items = dict(nested(stored))
            for inside, item in nested(before):
                new = items.get(inside)
                if inside and isinstance(item, Node) and isinstance(new, Node) and item is not new:
                    replace_shared(self.root, item, new, least=1)

    def _section(self, slot: Slot, kind: SectionType, origin: Origin, tag: object = None) -> Node:
        """Return the section of a field, created or switched to another variant if needed.

        A section that an earlier layer set to null is restored.
        """
        current: Any = slot.current
        if isinstance(current, Reference):
            bind(self.root)
            current = slot.current
        if isinstance(current, Reference) and tag is None:
            raise Invalid(
                f"is the reference {current.text}, which does not lead to a section; set the "
                f"fields there, or set this field to null first"
            )
        if tag is None and isinstance(current, Node):
            return current
        info = slot.info
        given = [value for _, value in chain_of(slot.section, info.name)]
        history = history_of(info.initial() if info.factory else None, *given, current)
        if tag is None and given and history:
            cls = type(history[-1]).__setpoint__.cls
        else:
            cls = kind.chosen(tag, "choose a variant first: without one it has no fields to set")
        if not isinstance(current, Node) or type(current).__setpoint__.cls is not cls:
            current = self._change_variant(history, cls, origin, slot.path, current)
        self._note_null(slot, origin)
        slot.store(current, origin)
        return current

    def _note_null(self, slot: Slot, origin: Origin) -> None:
        """Record a section's null as dropped, since a value inside restores the section."""
        chain = chain_of(slot.section, slot.info.name)
        if not chain or chain[-1][1] is not None or chain[-1][0].layer not in WRITTEN_LAYERS:
            return
        null, path = chain[-1][0], slot.path
        given = Recorded(null.layer, null.describe(path))
        reason = f"{origin.describe(path)} sets a field of the section after it"
        state_of(self.root).dropped += ((dotted(path), None, given, reason),)

    def _change_variant(
        self, history: Sequence[Node], cls: type[Node], origin: Origin, path: Path, current: object
    ) -> Node:
        """Make a section of a variant, with all values given for it; see `successor`.

        Values that the switching layer itself set and the variant lacks are reported; those of
        earlier layers were meant for another variant and are only listed as dropped.

        Arguments:
            history: the previous sections of the slot.
            current: the current value of the slot.
        """
        old = current if isinstance(current, Node) else None
        new = successor(cls, history, old)
        obsolete = [p for p in self._lost if p.path.rpartition(".")[0] == dotted(path)]
        self.problems[:] = [p for p in self.problems if p not in obsolete]
        for name, value, given, reason in state_of(new).dropped:
            many = origin.layer in MANY_ORIGINS and one_layer(given, origin)
            if given is origin or many:
                error = Invalid(f"has no effect: {reason}", hint="Remove it.")
                self.report((*path, name), value, given, error)
                self._lost.append(self.problems[-1])
        if old is not None:
            state_of(new).replaced = old
            replace_shared(self.root, old, new)
        forget_restored(self.root, new, path)
        return new

    def _changed_item(
        self, section: Node, kind: FieldType, value: object, origin: Origin, path: Path
    ) -> Node:
        """Change an item that is a section in place, or to another variant."""
        value = mapping_in(kind, value)
        if not isinstance(value, Mapping):
            new: Node = kind.read(value, origin)
            cls = type(new).__setpoint__.cls
            if new is value or type(section).__setpoint__.cls is cls:
                return new if new is value else section
            return self._change_variant(history_of(section), cls, origin, path, section)

        def section_for(tag: object, layer: Origin) -> Node:
            nonlocal section
            if tag is not None and tag != type(section).__setpoint__.tag:
                section = self._changed_item(section, kind, tag, layer, path)
            return section

        self._merge_onto(section_for, cast(Mapping[str, object], value), origin, path)
        return section

    def _new_section(
        self, kind: SectionType, values: Mapping[str, object], origin: Origin, path: Path
    ) -> Node:
        """Make a section with parts that extend files."""
        section: Node | None = None
        known = len(self.problems)

        def section_for(tag: object, layer: Origin) -> Node | None:
            nonlocal section
            if section is None and tag is None:
                tag = tag_of(values)
            if section is None and tag is None and len(self.problems) > known:
                # The variant was to come from a file, whose problem is already reported.
                section = next(iter(kind.variants().values()), kind.classes[0])()
                return None
            if section is None:
                section = kind.read({} if tag is None else {"type": tag}, layer)
            elif tag is not None and tag != type(section).__setpoint__.tag:
                section = self._changed_item(section, kind, tag, layer, path)
            return section

        self._merge_onto(section_for, values, origin, path)
        return cast(Node, section)

    def _descend(self, node: object, rest: Path, done: Path, value: object, origin: Origin) -> None:
        """Follow a path and set the value there."""
        key = str(rest[0])
        path = (*done, key)
        if isinstance(node, Free):
            current = dict(node.items()).get(key)
            if len(rest) == 1:
                node.put(key, value, origin)
            elif isinstance(current, Free) or (current is None and rest[1] not in ADDING):
                if current is None:  # null is replaced by a section
                    node.put(key, {}, origin)
                self._descend(node.inside(key), rest[1:], path, value, origin)
            else:
                try:
                    edit = ItemEdit(value, origin, self._with_fragments, self._edit_section)
                    item = edit.apply(DataType(), current, rest[1:], path)
                except Invalid as error:
                    raise error.but(at=()) from None
                node.put(key, item, origin)
            return
        if not isinstance(node, Node):
            raise Invalid(single(done, key))
        fields = type(node).__setpoint__.fields
        if key == "type" and len(rest) == 1 and "type" not in fields:
            raise Invalid("the root has no variants, so no type can be chosen")
        info = type(node).__setpoint__.find(key)
        if info is None:
            self._report_unknown(node, rest, done, value, origin)
            return
        slot = Slot(node, info, path)
        if len(rest) == 1:
            self._assign(slot, value, origin)
            return
        kind = unwrapped(info.type)
        if isinstance(kind, SectionType):
            if rest[1:] in (("type",), (EXTENDS,)):
                fields = {rest[1]: value}
                try:
                    self._assign(slot, fields, origin)
                except Invalid as error:
                    self.report(path, fields, origin, error)
                return
            try:
                inner = self._section(slot, kind, origin)
            except Invalid as error:
                if error.at != ("type",):
                    raise
                # The problem is the section's type, not the field below it.
                self.report(path, {}, origin, error)
                return
            self._descend(inner, rest[1:], path, value, origin)
        elif kind.is_container():
            self._set_item(slot, rest[1:], value, origin)
        elif isinstance(kind, FreeType):
            self._descend(slot.current, rest[1:], path, value, origin)
        else:
            raise Invalid(single(path, str(rest[1])), secret=kind.is_secret())

    def _report_unknown(
        self, section: Node, rest: Path, done: Path, value: object, origin: Origin
    ) -> None:
        """Report a path whose next part is not a field, with a suggestion."""
        known, key = type(section).__setpoint__, str(rest[0])
        error, hint = known.unknown(key), ""
        matches: list[str] = known.near(key)[:1] if len(rest) > 1 else []
        if matches:
            path = (*matches, *rest[1:])
            # A section that accepts any argument is no evidence for the name.
            classes = classes_at(type(section), path[:-1])
            closed = [cls for cls in classes if not hasattr(cls, "__setpoint_open__")]
            if any(cls.__setpoint__.find(str(path[-1])) for cls in closed):
                hint = f"Did you mean {dotted((*done, *path))}?"
            elif not nearest(key, matches, 1, CLOSE):
                error.hint = ""  # neither of the two names is known
            if done:
                error.hint = f"Did you mean {dotted((*done, *matches))}?"
        self.report((*done, *rest), value, origin, error, hint)

    def _edit_items(self, slot: Slot, edits: Mapping[str, object], origin: Origin) -> None:
        """Apply edits, given by their words or by an item's index or name, in file order."""
        for key, value in edits.items():
            if key == INSERT and isinstance(value, Mapping):
                for index, item in cast(Mapping[str, object], value).items():
                    self._set_item(slot, (INSERT, str(index)), item, origin)
            else:
                self._set_item(slot, (str(key),), value, origin)

    def _set_item(self, slot: Slot, rest: Path, value: object, origin: Origin) -> None:
        """Make one edit of a list or mapping, or in an item; `rest` is the path after the field."""
        current, info = slot.current, slot.info
        try:
            edit = ItemEdit(value, origin, self._with_fragments, self._edit_section)
            changed = edit.apply(info.type, current, rest, slot.path)
            if changed is not current:
                stored = info.read(changed, origin)
                slot.store(stored, origin)
                follow(current, stored, slot.path)
        except Invalid as error:
            # The error's path leads through the items; the value is the one to be set there.
            for part in error.parts:
                inside = part.at[len(rest) :]
                place = part.at[: len(rest)] if len(part.at) >= len(rest) else rest
                if len(part.at) < len(rest) and slot.path in self._refused:
                    continue  # the list that contains the item was refused
                self.report((*slot.path, *place), value, origin, part.but(at=inside))

    def _edit_section(
        self, kind: FieldType, current: Any, rest: Path, value: object, origin: Origin, path: Path
    ) -> object:
        """Edit an item that is a section or a free area, or make one."""
        inner: Any = unwrapped(kind)
        if isinstance(inner, FreeType):
            area = Free() if current is None else current.copy(False)
            self._descend(area, rest, path, value, origin)
            return area
        if not rest and kind is not inner and (value is None or str(value) == "null"):
            remember_replaced(self.root, current, path, origin, "null")
            return None
        if not isinstance(current, Node):
            if rest in (("type",), (EXTENDS,)):
                fields = self._with_fragments(inner, {rest[0]: value}, origin, path)
                return read_item(inner, fields, origin)
            current = inner.chosen(
                None, "choose a variant first: without one it has no fields to set"
            )()
        if rest == (EXTENDS,):
            value = {EXTENDS: value}
        elif rest and rest != ("type",):
            self._descend(current, rest, path, value, origin)
            return current
        return self._changed_item(current, inner, value, origin, path)

    def _merge_onto(
        self,
        section_for: Callable[[object, Origin], Node | None],
        values: Mapping[str, object],
        origin: Origin,
        path: Path,
        put_preset: Callable[[str, Origin], None] | None = None,
    ) -> None:
        """Merge a mapping into a section, after the files that it extends.

        Arguments:
            section_for: returns the section for the `type` that a mapping names, if any.
            put_preset: applies the section of a preset, named with a leading `@`.
        """
        if EXTENDS in values:
            if self.replace_mappings:
                raise Invalid("a record cannot extend files").inside(EXTENDS)

            def fail(name: object, error: Invalid) -> None:
                self.report((*path, EXTENDS), name, origin, error)

            given, presets = values[EXTENDS], put_preset is not None
            for preset, fields, layer in self.files.fragments(given, origin, path, presets, fail):
                self._refers = self._refers or may_refer(fields)
                try:
                    if preset and put_preset is not None:
                        put_preset(preset, origin)
                    else:
                        self._merge_onto(section_for, fields, layer, path, put_preset)
                except Invalid as error:
                    if preset:
                        fail(preset, error)
                    else:
                        self.report(path, fields, layer, error)
        section = section_for(tag_of(values), origin)
        if section is not None:
            fields = {key: item for key, item in values.items() if key not in ("type", EXTENDS)}
            self._merge_section(section, fields, origin, path)

    def _with_fragments(self, kind: FieldType, value: object, origin: Origin, path: Path) -> object:
        """Make the new sections inside a value that extend files."""
        kind = unwrapped(kind)
        if not kind.nested:
            return value
        if isinstance(value, PlainScalar) and EXTENDS in value and "{" in value:
            listed = isinstance(kind, ContainerType) and not isinstance(kind, MappingType)
            value = parse_list(value) if listed else parse_flow(value)
        if not _extends(value):
            return value
        if isinstance(kind, SectionType) and isinstance(value, Mapping):
            return self._new_section(kind, cast(Mapping[str, object], value), origin, path)
        mapping = isinstance(value, Mapping)
        if not isinstance(kind, ContainerType) or mapping is not isinstance(kind, MappingType):
            return value
        items: list[tuple[Any, object]] = []
        for key, item in children(value):
            inner = kind.item_type(key)
            if inner is not None:
                item = self._with_fragments(inner, item, origin, (*path, key))
            items.append((key, item))
        return kind.plain(items)


def mapping_in(kind: FieldType, value: object) -> object:
    """Parse a mapping given as text, as on the command line; other values are returned unchanged.

    Raises:
        Invalid: the text begins like a mapping but cannot be parsed.
    """
    if not isinstance(value, PlainScalar) or not value.startswith("{"):
        return value
    try:
        return parse_flow(value)
    except Invalid as error:
        raise Invalid(error.message, secret=holds_secret(kind)) from None


def _extends(value: object) -> bool:
    """True if a mapping anywhere in a value extends files."""
    if isinstance(value, Mapping) and EXTENDS in value:
        return True
    return any(_extends(item) for _, item in children(cast(object, value)))
