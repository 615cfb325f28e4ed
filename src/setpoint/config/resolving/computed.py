"""Values that follow from others: references and derived fields, in the order they need."""

from __future__ import annotations

import types
from typing import Any, cast

from ..draft.shared_sections import (
    NOTHING,
    contains,
    item_at,
    missing_place,
    references,
    with_items,
)
from ..draft.walk import PLAIN
from ..schema.tree import classes_at
from ..types.containers import kind_at
from ..values.free import Free
from ..values.node import Node, chain_of, mark_invalid, origins_of, value_or_missing
from ..values.origin import DERIVED, REFERENCE, Origin
from ..values.reference import Reference, may_refer
from ..values.user_code import error_in_words, traceback_of
from ..words.errors import DeclarationError, Invalid, Problem, SetpointError, UnresolvedError
from ..words.names import Path, dotted
from ..words.shown import count_values, rebuild, shown_part
from ..words.texts import MAX_COPIED
from .checks import title

# The section by identity, the field, and the path of the item inside the field's value.
Key = tuple[int, str, Path]


class Pending:
    """A value that is still to be computed.

    Arguments:
        inside: the path of the item inside the field's value; empty for the whole value.
    """

    __slots__ = ("by", "inside", "name", "path", "section")

    def __init__(
        self,
        section: Node,
        name: str,
        path: Path,
        by: Reference | tuple[Node, str],
        inside: Path = (),
    ) -> None:
        self.section = section
        self.name = name
        self.path = (*path, *inside)
        self.by = by
        self.inside = inside


class _Failed(Exception):
    """A value that another one needs could not be computed, and has been reported."""


class Determination:
    """Computes all references and derived values of a tree.

    Arguments:
        root: the merged draft; values are stored into it.
    """

    def __init__(self, root: Node, placed: list[tuple[Path, Node]]) -> None:
        self.root = root
        self.paths = {id(section): path for path, section in reversed(placed)}
        self.problems: list[Problem] = []
        self.invalid: set[str] = set()
        # The sections, by identity, in which something follows from values outside of them.
        self.tied: set[int] = set()
        # Whether a reference has put a section into another place.
        self.shares = False
        self._pending: dict[Key, Pending] = {}
        # Lists and mappings with references inside: these, and what they have come to so far.
        self._items: dict[tuple[int, str], dict[Path, Pending]] = {}
        self._found: dict[Key, object] = {}
        self._overs: dict[tuple[int, str], dict[str, None]] = {}
        self._copied = 0  # values that references to lists and mappings have repeated
        self._stack: list[Key] = []
        self._reads: list[dict[str, None]] = []
        for path, section in placed:
            state = section._state  # pyright: ignore[reportPrivateUsage]
            if state is None or not state.frozen:  # else all of it is known already
                self._collect(path, section)

    def _collect(self, path: Path, section: Node) -> None:
        cls, origins = type(section), origins_of(section)
        for name in cls.__setpoint__.fields:
            if name not in origins or type(origins[name][-1][1]) in PLAIN:
                continue
            value: Any = value_or_missing(section, name)
            here = (*path, name)
            if isinstance(value, Reference):
                self._add(Pending(section, name, here, value))
            elif isinstance(value, tuple | list | dict) and may_refer(cast(object, value)):
                key = (id(section), name)
                for inside, reference in references(value):
                    pending = Pending(section, name, here, reference, inside)
                    self._items.setdefault(key, {}).setdefault(inside, pending)
                    self._add(pending)
        for relative, method in cls.__setpoint__.derives.items():
            *inner, name = relative.split(".")
            target: Any = section
            for part in inner:
                known = isinstance(target, Node) and part in type(target).__setpoint__.fields
                target = value_or_missing(target, part) if known else None
            fields: dict[str, Any] = (
                type(target).__setpoint__.fields if isinstance(target, Node) else {}
            )
            info = fields.get(name)
            if info is None or not info.derived:
                # That section is switched off, or is of another variant.
                if inner:
                    _refuse_nowhere(cls, method, relative)
                continue
            if chain_of(target, name):
                continue
            self._add(Pending(target, name, (*path, *inner, name), (section, method)))

    def _add(self, pending: Pending) -> None:
        key = (id(pending.section), pending.name, pending.inside)
        self._pending.setdefault(key, pending)
        if isinstance(pending.by, Reference) or pending.by[0] is not pending.section:
            self.tied.add(id(pending.section))

    def run(self) -> None:
        """Compute everything; what cannot be computed becomes a problem."""
        for key in list(self._pending):
            if key in self._pending:
                try:
                    self._compute(key)
                except _Failed:
                    continue
        for identity, name in list(self._items):
            try:
                self._assemble((identity, name))
            except _Failed:
                continue

    def value(self, section: Node, name: str) -> Any:
        """A field's value, computed first if it has to be; the read is recorded."""
        path = dotted((*self.paths[id(section)], name))
        key = (id(section), name, ())
        if key in self._pending:
            self._compute(key)
        elif key[:2] in self._items:
            self._assemble(key[:2])
        if path in self.invalid:
            raise _Failed
        value = getattr(section, name)
        if not type(section).__setpoint__.fields[name].type.nested:
            self._read(path)
        return value

    def observe(self, section: Node, method: str) -> Any:
        """Call a method of a section, which may only read.

        Returns:
            what it returns; None if it reads a value that is itself missing or wrong.

        Raises:
            Exception: whatever it raises.
        """
        self._reads.append({})
        try:
            return getattr(type(section), method)(View(self, section))
        except (UnresolvedError, _Failed):
            return None
        finally:
            self._reads.pop()

    def _read(self, path: str) -> None:
        if self._reads:
            self._reads[-1][path] = None

    def _compute(self, key: Key) -> None:
        pending = self._pending[key]
        if key in self._stack:
            cycle = [*self._stack[self._stack.index(key) :], key]
            names = " -> ".join(dotted(self._pending[k].path) for k in cycle)
            self._fail(pending, Invalid(f"depends on itself: {names}"))
            for k in cycle:
                self._mark_invalid(self._pending[k])
            raise _Failed
        self._stack.append(key)
        self._reads.append({})
        try:
            value = self._evaluate(pending)
            if pending.inside:
                self._found[key] = self._fitting(pending, value)
                self._overs.setdefault(key[:2], {}).update(self._reads[-1])
            else:
                self._store(pending, value)
        except (UnresolvedError, _Failed):
            # The missing value is reported where it is missing.
            self._mark_invalid(pending)
            raise _Failed from None
        except Exception as error:
            said = isinstance(error, SetpointError | RecursionError)
            if isinstance(pending.by, tuple) and (isinstance(error, ReadOnlyError) or not said):
                shown = _mistake(pending.by, error)
            elif said or isinstance(error, ArithmeticError):
                shown = error if isinstance(error, Invalid) else Invalid(_words(error))
            else:
                raise
            self._fail(pending, shown)
            raise _Failed from None
        finally:
            self._stack.pop()
            self._reads.pop()
            self._pending.pop(key, None)

    def _evaluate(self, pending: Pending) -> object:
        if isinstance(pending.by, Reference):
            value: object = pending.by.evaluate(self._look_up)
            info = type(pending.section).__setpoint__.fields[pending.name]
            if info.type.nested and isinstance(value, Node) and contains(value, pending.section):
                path = dotted(self.paths[id(value)]) or "the root"
                raise Invalid(f"refers to {path}, which would then contain itself")
            if isinstance(value, list | tuple | dict):
                # A few references to lists of references would repeat them without end.
                self._copied += count_values(cast(object, value), MAX_COPIED)
                if self._copied > MAX_COPIED:
                    raise Invalid(f"repeats lists and mappings of more than {MAX_COPIED} values")
            return cast(object, value)
        section, method = pending.by
        function = getattr(type(section), method)
        return function(View(self, section))

    def _store(self, pending: Pending, value: object) -> None:
        info = type(pending.section).__setpoint__.fields[pending.name]
        reads = ", ".join(self._reads[-1]) or "nothing else"
        if isinstance(pending.by, Reference):
            origin = Origin(REFERENCE, f"{pending.by.text} over {reads}")
        else:
            origin = Origin(DERIVED, f"from {reads}")
        try:
            result = info.read(value, origin)
        except Invalid as error:
            raise self._misfit(value, info.type.describe(), error) from None
        if may_refer(result):
            raise Invalid("comes to a text that holds a reference itself")
        if isinstance(pending.by, Reference) and info.type.nested:
            self.shares = True
        pending.section.store(pending.name, result, origin)

    def _fitting(self, pending: Pending, value: object) -> object:
        """The value of an item as its container stores it, checked."""
        info = type(pending.section).__setpoint__.fields[pending.name]
        kind = kind_at(info.type, pending.inside)
        if kind is None:
            return value  # what is possible here shows when the whole is read
        origin = Origin(REFERENCE, str(pending.by))
        try:
            value = kind.read(value, origin)
        except Invalid as error:
            raise self._misfit(value, kind.describe(), error) from None
        if info.item_bounds is not None and len(pending.inside) == 1:
            info.item_bounds.check(value)
        return value

    def _assemble(self, field: tuple[int, str]) -> None:
        """Store a list or mapping once every reference inside it has been computed."""
        parts = self._items[field]
        for inside in parts:
            key = (*field, inside)
            if key in self._pending:
                self._compute(key)
        pending = next(iter(parts.values()))
        section, name = pending.section, pending.name
        if any(dotted(part.path) in self.invalid for part in parts.values()):
            raise _Failed
        if field not in self._items:  # meanwhile stored
            return
        found = {inside: self._found[(*field, inside)] for inside in parts}
        info = type(section).__setpoint__.fields[name]
        texts = dict.fromkeys(cast(Reference, part.by).text for part in parts.values())
        reads = self._overs.get(field) or ("nothing else",)
        origin = Origin(REFERENCE, f"{', '.join(texts)} over {', '.join(reads)}")
        value = with_items(getattr(section, name), found)
        del self._items[field]
        try:
            section.store(name, info.read(value, origin), origin)
        except Invalid as error:
            for part in error.parts:
                culprit = next((p for at, p in parts.items() if part.at[: len(at)] == at), None)
                if culprit is not None:
                    wrong = found[culprit.inside]
                    part = self._misfit(wrong, "what belongs here", part)
                    self._fail(culprit, Invalid(part.message, part.valid, hint=part.hint))
                else:
                    path = (*pending.path[: -len(pending.inside)], *part.at)
                    where = chain_of(section, name)[-1][0].describe(path)
                    text = shown_part(value, part)
                    self._report(dotted(path), part, text, where)
            self._mark_invalid(pending)
            raise _Failed from None

    def _misfit(self, value: object, wanted: str, error: Invalid) -> Invalid:
        """The error for a reference to a section that its place cannot take."""
        if not isinstance(value, Node) or id(value) not in self.paths:
            return error
        tag = type(value).__setpoint__.tag
        kind = f"a section with type = {tag}" if tag else f"a section ({type(value).__name__})"
        path = dotted(self.paths[id(value)]) or "the root"
        return Invalid(f"refers to {path}, which is {kind}, not {wanted}", error.valid)

    def _look_up(self, path: Path) -> object:
        node: Any = self.root
        holder: tuple[int, str] | None = None  # the field whose list or mapping is looked into
        inside: Path = ()
        for index, part in enumerate(path):
            if isinstance(node, Node) and part in type(node).__setpoint__.fields:
                holder, inside = (id(node), str(part)), ()
                if holder in self._items and index + 1 < len(path):
                    node = getattr(node, str(part))
                else:
                    node = self.value(node, str(part))
            else:
                item = item_at(node, part)
                if item is NOTHING:
                    raise missing_place(self.root, path[: index + 1])
                node, inside = item, (*inside, part)
                key = (*holder, inside) if holder else None
                if isinstance(node, Reference) and key is not None:
                    node = self._item(key)
        if holder in self._items and inside and isinstance(node, tuple | list | dict):
            node = self._known(holder, inside, cast(object, node))
        if isinstance(node, Free):
            raise Invalid(f"refers to {dotted(path)}, which is a section, not a value")
        if inside or isinstance(node, Node):
            self._read(dotted(path))
        return node

    def _known(self, field: tuple[int, str], above: Path, value: object) -> object:
        """A list or mapping inside a field's value, with its references computed."""
        below = [inside for inside in self._items[field] if inside[: len(above)] == above]
        found = {at: self._item((*field, at)) for at in below}
        return cast(object, with_items(value, found, above))

    def _item(self, key: Key) -> object:
        """The value of an item that is a reference."""
        if key in self._pending:
            self._compute(key)
        if key not in self._found:
            raise _Failed
        return self._found[key]

    def _mark_invalid(self, pending: Pending) -> None:
        """Make a value unreadable that could not be computed."""
        self.invalid.add(dotted(pending.path))
        if pending.inside:
            self.invalid.add(dotted(pending.path[: -len(pending.inside)]))
        mark_invalid(pending.section, pending.name)

    def _fail(self, pending: Pending, error: Invalid) -> None:
        path = dotted(pending.path)
        if path in self.invalid:
            return
        self._mark_invalid(pending)
        if isinstance(pending.by, tuple):
            value, origin = None, "derivation"
        else:
            chain = chain_of(pending.section, pending.name)
            value, origin = pending.by.text, chain[-1][0].describe(pending.path)
        for part in error.parts:
            self._report(dotted((*pending.path, *part.at)), part, value, origin)

    def _report(self, path: str, error: Invalid, value: str | None, origin: str) -> None:
        self.invalid.add(path)
        problem = Problem(
            path, error.message, valid=error.valid, hint=error.hint, value=value, origin=origin
        )
        problem.traceback = error.traceback
        self.problems.append(problem)


def _mistake(by: tuple[Node, str], error: Exception) -> Invalid:
    """A fault of the method that derives a value, with its line."""
    said = str(error) if isinstance(error, SetpointError) else error_in_words(error)
    fault = Invalid(f"{title(getattr(type(by[0]), by[1]))} failed: {said}")
    fault.traceback = traceback_of(error)
    return fault


def _refuse_nowhere(cls: type[Node], method: str, relative: str) -> None:
    """Refuse a method that derives what no variant of the section has."""
    *inner, name = relative.split(".")
    for below in classes_at(cls, tuple(inner)):
        info = below.__setpoint__.fields.get(name)
        if info is not None and info.derived:
            return
    raise DeclarationError(
        f"{cls.__name__}.{method}: @derive({relative!r}) names no field that is declared as "
        f"derived() in any section that can stand there"
    )


def _words(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "cannot be computed: too many values depend on one another"
    return str(error) if isinstance(error, SetpointError) else f"cannot be computed: {error}"


class ReadOnlyError(SetpointError):
    """A method that is to compute something has tried to change the configuration."""


class View:
    """A section as a method sees it: reads are recorded and computed on demand, writes refused."""

    __slots__ = ("_determination", "_section")

    _determination: Determination
    _section: Node

    def __init__(self, determination: Determination, section: Node) -> None:
        object.__setattr__(self, "_determination", determination)
        object.__setattr__(self, "_section", section)

    def __getattr__(self, name: str) -> Any:
        cls = type(self._section)
        if name in cls.__setpoint__.fields:
            return self._wrapped(self._determination.value(self._section, name))
        attribute: Any = getattr(cls, name)
        if isinstance(attribute, property) and attribute.fget:
            return attribute.fget(self)
        if isinstance(attribute, types.FunctionType):
            return types.MethodType(attribute, self)
        return attribute

    def __setattr__(self, name: str, value: object) -> None:
        raise ReadOnlyError(
            f"{type(self._section).__name__}.{name} cannot be set here: the method only reads, and "
            f"returns its answer"
        )

    __delattr__ = __setattr__  # pyright: ignore[reportAssignmentType]

    def _wrapped(self, value: Any) -> Any:
        """The value with every section in it, also those in lists and mappings, as a view."""
        if isinstance(value, Node):
            return View(self._determination, value)
        if isinstance(value, tuple | list | dict):
            made: Any = rebuild(value, self._wrapped)
            return made if isinstance(value, dict) else tuple(made)
        # A key of the area that nobody has set reads as an empty area, which must not stay there.
        return value.copy(frozen=False) if isinstance(value, Free) else value

    @property
    def __setpoint_section__(self) -> Node:
        return self._section

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        # Lets a deriving method ask isinstance(self.schedule, Cosine).
        return type(self._section)
