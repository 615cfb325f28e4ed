"""Values from environment variables such as `SETPOINT__OPTIMIZER__LR`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from ..draft.copying import bind
from ..draft.walk import TAG, sections
from ..schema.class_info import environmental, fields_at, holds_secret, section_classes
from ..types.base import FieldType
from ..types.compound import REMOVE, MappingType, SectionType, SequenceType, TupleType, unwrapped
from ..values.node import Node, chain_of, set_chain, value_or_missing
from ..values.origin import ENVIRONMENT, RECORD, Origin, Recorded
from ..values.reference import may_refer
from ..words.errors import UNKNOWN_KEY, Invalid
from ..words.names import dotted
from ..words.plain_data import MISSING, PlainScalar
from .editor import Editor
from .extends import EXTENDS
from .list_edits import EDITS, names_of

Declared = Mapping[str, Origin]  # the variables that fields declare, with their origins


def prefix_of(root: type[Node]) -> str:
    """Prefix of the environment variables of a root class, with `__` at its end."""
    return f"{root.__setpoint__.environment_prefix}__"


def apply_declared(
    editor: Editor, environ: Mapping[str, str], declared: Declared | None = None
) -> Declared:
    """Apply the variables declared by fields to all sections of a draft.

    Called before the variables with the prefix are applied, and again at the end for sections made
    by later layers, whose values take precedence there. Values from a record are kept: such a
    variable describes the environment of one program, and a resumed run must stay the same.
    """
    if declared is None:
        names = sorted(environmental & environ.keys())
        declared = {name: Origin(ENVIRONMENT, name) for name in names if environ[name]}
    for path, section in list(sections(editor.root)) if declared else ():
        for name, info in type(section).__setpoint__.fields.items():
            origin = declared.get(info.environment or "")
            chain = chain_of(section, name)
            if origin is None or any(given is origin for given, _ in chain):
                continue
            if any(isinstance(given, Recorded) or given.layer == RECORD for given, _ in chain):
                continue  # a resumed run keeps its value
            full = dotted((*path, name))
            if any(problem.path.replace("-", "_") == full for problem in editor.problems):
                continue  # a later layer has set an invalid value
            value = PlainScalar(environ[origin.label])
            try:
                stored = info.read(value, origin)
            except Invalid as error:
                editor.report((*path, name), value, origin, error)
                continue
            later = [index for index, (given, _) in enumerate(chain) if given.order > origin.order]
            if later:
                set_chain(section, name, [*chain[: later[0]], (origin, stored), *chain[later[0] :]])
            else:
                section.store(name, stored, origin)
            if may_refer(stored):
                bind(editor.root)
    return declared


def apply_environment(editor: Editor, environ: Mapping[str, str]) -> None:
    """Apply the values of all variables with the prefix to a draft.

    Field names match in any case; keys of the user area and of mappings are case-sensitive. A
    variable is a problem if it names no field, differs from a field in underscores, or matches
    several fields or another variable. Files such as `.env` are not read.
    """
    prefix = prefix_of(type(editor.root))
    first: dict[tuple[str, ...], str] = {}
    variants: list[tuple[str, tuple[str, ...]]] = []
    for name, written in variables(environ, prefix):
        origin, value = Origin(ENVIRONMENT, name), PlainScalar(environ[name])
        try:
            path = _spelled(editor.root, written)
        except Invalid as error:
            editor.report(tuple(map(str.lower, written)), value, origin, error)
            continue
        # Case is ignored, so two variables may name one field.
        other = first.setdefault(path, name)
        if other != name:
            secret = _holds_secret(type(editor.root), path)
            error = Invalid(f"is also set by the variable {other}", secret=secret)
            editor.report(path, value, origin, error)
        elif path[0] == TAG and len(path) == 2:
            variants.append((name, path))
        else:
            _set(editor, name, path, value, origin)
    for name, path in variants:
        # Variables have no order; one that names a field is more specific than one that names a
        # tag.
        value, origin = PlainScalar(environ[name]), Origin(ENVIRONMENT, name)
        editor.set_tag(path[1], value, origin, unless=lambda other: other.layer == ENVIRONMENT)
    for name in environ:
        if name.upper().startswith(prefix[:-1]) and not name.upper().startswith(prefix):
            _refuse_single_underscores(editor, name, environ[name], prefix)


def _spelled(root: Node, written: tuple[str, ...]) -> tuple[str, ...]:
    """Spell a path with the names of its fields; other keys stay as written."""
    if written[0].lower() == TAG:
        return tuple(map(str.lower, written))
    path: list[str] = []
    node: Any = root  # the current value; MISSING or None if there is none
    kind: FieldType | None = None
    for index, part in enumerate(written):
        kind = kind and kind.with_items(None if node is MISSING else node, part.lower())
        key = part
        if isinstance(node, Node) or isinstance(kind, SectionType):
            classes = [type(node)] if isinstance(node, Node) else section_classes(cast(Any, kind))
            fields = [info for cls in classes for info in cls.__setpoint__.fields.values()]
            infos = [info for info in fields if info.name.lower() == part.lower()]
            secret = any(holds_secret(info.type) for info in infos)
            name = _one_of(part, ["type", EXTENDS, *(info.name for info in infos)], secret)
            if name is None and not hasattr(cast(object, node), "__setpoint_open__"):
                # A mistake; case has no meaning below an unknown field.
                return (*path, *map(str.lower, written[index:]))
            key = name or part
            info = next((info for info in infos if info.name == key), None)
            kind = unwrapped(info.type) if info else None
            node = value_or_missing(node, key) if info and isinstance(node, Node) else None
        elif isinstance(kind, SequenceType | TupleType):
            items = cast(Sequence[Any], node) if isinstance(node, tuple | list) else ()
            names = [name for item in items for name in names_of(item) if name]
            key = _one_of(part, [*EDITS, *names]) or part
            matches = (i for i, item in enumerate(items) if key in (str(i), *names_of(item)))
            position = next(matches, None)
            node = None if position is None else items[position]
            kind = unwrapped(kind.parts[0 if isinstance(kind, SequenceType) else position or 0])
        elif isinstance(kind, MappingType):
            key = part.lower() if part.lower() == REMOVE else part
            node = cast(Mapping[str, Any], node).get(key) if isinstance(node, Mapping) else None
            kind = unwrapped(kind.item)
        path.append(key)
    return tuple(path)


def _one_of(part: str, known: Iterable[str], secret: bool = True) -> str | None:
    """The name that matches a part of a variable, ignoring case; `secret` hides the value."""
    matches = sorted({name for name in known if name.lower() == part.lower()})
    if part in matches or not matches:
        return part if matches else None
    if len(matches) > 1:
        reason = f"may mean {' or '.join(matches)}, which differ in upper and lower case only"
        raise Invalid(f"{reason}; write {part} as one of them", tuple(matches), secret=secret)
    return matches[0]


def _set(editor: Editor, name: str, path: tuple[str, ...], value: object, origin: Origin) -> None:
    known = len(editor.problems)
    editor.set(path, value, origin)
    match = _field_spelled(type(editor.root), "_".join(path).split("_"))
    if match and match != path:
        for problem in editor.problems[known:]:
            if problem.kind == UNKNOWN_KEY:
                right = prefix_of(type(editor.root)) + "__".join(match).upper()
                problem.hint = f"Did you mean {right}?"


def _refuse_single_underscores(editor: Editor, name: str, value: str, prefix: str) -> None:
    """Report a variable that sets nothing because its underscores are wrong."""
    path = _field_spelled(type(editor.root), name[len(prefix) - 1 :].lower().split("_"))
    if path is not None:
        right = prefix + "__".join(path).upper()
        error = Invalid(
            f"{name} sets nothing: write two underscores before each name",
            hint=f"Did you mean {right}? If {name} is for another program, unset it here.",
            secret=_holds_secret(type(editor.root), path),
        )
        editor.report(path, PlainScalar(value), Origin(ENVIRONMENT, name), error)


def _holds_secret(root: type[Node], path: Sequence[str]) -> bool:
    """True if a field at a path is a secret, or no field is known there, as in a mapping."""
    fields = fields_at(root, tuple(path))
    return not fields or any(holds_secret(info.type) for info in fields)


def _field_spelled(cls: type[Node], words: Sequence[str]) -> tuple[str, ...] | None:
    """Find the field that words would name if the underscores were right."""
    words = [word.lower() for word in words if word]
    for info in cls.__setpoint__.fields.values():
        name = info.name.lower().split("_")
        if words == name:
            return (info.name,)
        if words[: len(name)] == name:
            for section in section_classes(info.type):
                rest = _field_spelled(section, words[len(name) :])
                if rest is not None:
                    return (info.name, *rest)
    return None


def variables(environ: Mapping[str, str], prefix: str) -> list[tuple[str, tuple[str, ...]]]:
    """The variables meant for the configuration, with their paths, shallow ones first."""
    paths = [
        (name, tuple(name[len(prefix) :].split("__")))
        for name in environ
        if name.upper().startswith(prefix)
    ]
    # A variable that chooses a variant precedes those that set its fields.
    return sorted(paths, key=lambda v: (len(v[1]) - (v[1][-1].lower() == "type"), v[0]))
