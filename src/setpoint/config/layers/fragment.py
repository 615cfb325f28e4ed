"""Fragments: files that hold the fields of one section, named by `extends` inside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ..files.read import read_file
from ..migrations.chain import migrated
from ..types.containers import ContainerType, MappingType, unwrapped
from ..types.sections import SectionType, tag_of
from ..values.node import Node, stood
from ..values.origin import FILE, Origin, short_name
from ..words.errors import Invalid, SetpointError
from ..words.names import Path, can_be_named
from ..words.plain_data import MAX_FILES, MAX_NESTING, PlainScalar, children
from ..words.text import parse_flow, parse_list
from .editor_base import EXTENDS, fields_in
from .presets import preset_named

if TYPE_CHECKING:
    from ..files.document import Document
    from ..types.base import FieldType
    from .editor_base import EditorBase

HEADERS = ("$schema", "setpoint")  # they speak of the file


def put_fragments(
    editor: EditorBase,
    names: object,
    origin: Origin,
    path: Path,
    put: Callable[[dict[str, object], Origin], None],
    put_preset: Callable[[str], None] | None = None,
) -> None:
    """Read the files that a section extends, and put each onto the section as it comes.

    Arguments:
        editor: the layer that is being put onto the draft; gets what is wrong with a file.
        names: a file, or a list of them; relative to the file that names them.
    """
    listed: list[str] = []
    outermost = path not in editor.applied
    applied = editor.applied.setdefault(path, [])
    for name in _names(editor, names, origin, path):
        if name.startswith("@") and put_preset is not None:
            try:
                put_preset(name)
            except Invalid as error:
                editor.report((*path, "extends"), name, origin, error)
            continue
        try:
            document, real = _read(editor, name, origin, path)
        except SetpointError as error:
            shown = error if isinstance(error, Invalid) else Invalid(str(error))
            if preset_named(name):
                shown.hint = (
                    f"The section of a preset is written @{name}; a file that extends a whole "
                    f"preset says so above its first section."
                )
            editor.report((*path, "extends"), name, origin, shown)
            continue
        again = repeated(name, real, listed, applied)
        if again:
            editor.report((*path, "extends"), name, origin, Invalid(again))
        listed.append(real)
        if real in applied:
            continue
        values = {key: value for key, value in document.data.items() if key not in HEADERS}
        where = partial(_where, document, len(path))
        place = Origin(FILE, document.name, where)
        editor.reading.append(real)
        try:
            put(values, place)
        except Invalid as error:
            editor.report(path, values, place, error)
        finally:
            editor.reading.pop()
        applied.append(real)
        origin.order = origin.applied().order  # it counts for more than what it names
    if outermost:
        del editor.applied[path]


def repeated(name: str, file: str, listed: Sequence[str], applied: Sequence[str]) -> str:
    """Why a file cannot be named again in a list of files to extend; empty if it can.

    A file that several files extend counts once, before the first of them. So it cannot be named
    behind a file that it counts before.

    Arguments:
        name: the file as it is written.
        file: its real path, as are those of the others.
        listed: what is named before it in the same list.
        applied: all that was put on so far, in order.
    """
    if file in listed:
        return f"extends {name!r} twice; a file counts once, so name it once"
    places = [applied.index(other) for other in listed if other in applied]
    if file not in applied or all(applied.index(file) > place for place in places):
        return ""
    after = short_name(applied[max(places)])
    return (
        f"extends {name!r} after {after}, which comes after it already: a file counts once, before "
        f"the first file that extends it. Name it first, or leave it out"
    )


def with_fragments(
    editor: EditorBase, kind: FieldType, value: object, origin: Origin, path: Path
) -> object:
    """A value in which each new section that extends files is made, with what these hold.

    Raises:
        Invalid: if such a section cannot be made.
    """
    kind = unwrapped(kind)
    if isinstance(value, PlainScalar) and EXTENDS in value and "{" in value:
        listed = isinstance(kind, ContainerType) and not isinstance(kind, MappingType)
        value = parse_list(value) if listed else parse_flow(value)
    if not _extends(value):
        return value
    if isinstance(kind, SectionType) and isinstance(value, Mapping):
        return _made(editor, kind, cast(Mapping[str, object], value), origin, path)
    mapping = isinstance(value, Mapping)
    if not isinstance(kind, ContainerType) or mapping is not isinstance(kind, MappingType):
        return value
    made: list[tuple[Any, object]] = []
    for key, item in children(value):
        inner = kind.item_type(key)
        if inner is not None:
            item = with_fragments(editor, inner, item, origin, (*path, key))
        made.append((key, item))
    return kind.plain(made)


def _extends(value: object) -> bool:
    """Whether a mapping anywhere in a value extends files."""
    here = isinstance(value, Mapping) and EXTENDS in value
    return here or any(_extends(item) for _, item in children(cast(object, value)))


def _made(
    editor: EditorBase, kind: SectionType, values: Mapping[str, object], origin: Origin, path: Path
) -> Node:
    """A new section of which some part extends files."""
    made: Node | None = None
    known = len(editor.problems)

    def put(fields: Mapping[str, object], place: Origin) -> None:
        nonlocal made
        editor.put_fragments(fields, place, path, put)
        tag = tag_of(fields)
        if made is None and tag is None:
            tag = tag_of(values)
        if made is None and tag is None and len(editor.problems) > known:
            # Which variant it is was to be said by a file, of which it is known what is wrong.
            made = next(iter(kind.variants().values()), kind.classes[0])()
            return
        if made is None or (tag is not None and tag != type(made).__setpoint__.tag):
            fresh: Node = kind.read({} if tag is None else {"type": tag}, place)
            if made is not None:
                cls = type(fresh).__setpoint__.cls
                fresh = editor.switch(stood(made), cls, place, path, made)
            made = fresh
        editor.merge_section(made, fields_in(fields), place, path)

    put(values, origin)
    return cast(Node, made)


def _read(editor: EditorBase, name: str, origin: Origin, path: Path) -> tuple[Document, str]:
    if not can_be_named(name):
        raise Invalid("is not a valid file name")
    beside = os.path.dirname(origin.label) if origin.layer == FILE else ""
    file = os.path.join(beside, os.path.expanduser(name))
    real = os.path.realpath(file)
    if real in editor.reading or len(editor.reading) >= MAX_NESTING:
        chain = " -> ".join(short_name(each) for each in (*editor.reading, real))
        raise Invalid(f"extends itself, or one another more than {MAX_NESTING} deep: {chain}")
    editor.fragment_count += 1
    if editor.fragment_count > MAX_FILES:
        raise Invalid(f"fragments are read {MAX_FILES} times at most")
    document = read_file(file)
    if "setpoint" in document.data:
        document, notes = migrated(type(editor.root), document, path)
        editor.notes.extend(notes)
    return document, real


def _where(document: Document, depth: int, path: Path) -> str:
    """Where a value stands in a file that holds a section of this depth."""
    return document.where(path[depth:])


def _names(editor: EditorBase, names: object, origin: Origin, path: Path) -> list[str]:
    if isinstance(names, PlainScalar):
        names = parse_list(names)
    listed = isinstance(names, list | tuple)
    many = list(cast(Sequence[object], names)) if listed else [names]
    found = [str(name) for name in many if isinstance(name, str) and name]
    if len(found) < len(many) or not many:
        error = Invalid("must be a file, or a list of files")
        editor.report((*path, "extends"), many, origin, error)
        return []
    return found
