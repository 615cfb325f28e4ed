"""Computed values: references and derived fields, in the order of their dependencies."""

from __future__ import annotations

import types
from typing import Any, cast

from ..draft.copying import contains, references
from ..draft.walk import holders, missing_place, sections, value_at
from ..schema.class_info import classes_at
from ..types.base import FieldType
from ..types.compound import kind_at
from ..values.containers import Free
from ..values.node import Node, chain_of, mark_invalid, state_of, value_or_missing
from ..values.origin import DERIVED, REFERENCE, Origin
from ..values.reference import Reference, text_of
from ..words.errors import DeclarationError, Invalid, Problem, SetpointError, UnresolvedError
from ..words.names import Path, dotted
from ..words.plain_data import MISSING, listed, rebuild
from ..words.text import for_error, shown_part
from .checks import method_failed

# A reference, or the method of a section that derives a value.
Source = Reference | tuple[Node, str]


class Pending:
    """A field whose value, or some of its items, is pending.

    Arguments:
        sources: the sources that compute it, by path inside the value; empty for the whole value.
        value: a list or mapping with references inside, each replaced by its value.
    """

    def __init__(
        self, section: Node, name: str, path: Path, sources: dict[Path, Source], value: Any = None
    ) -> None:
        self.section = section
        self.name = name
        self.info = type(section).__setpoint__.fields[name]
        self.path = path
        self.sources = sources
        self.value = value
        self.waiting = set(sources)
        self.failed: set[Path] = set()
        # The fields it read, in order.
        self.reads: dict[str, None] = {}

    def item(self, inside: Path) -> Any:
        """The value, or an item inside it."""
        value: Any = self.value
        for part in inside:
            value = value[part]
        return value

    def put(self, inside: Path, value: object) -> None:
        """Put a computed value in place of its reference."""
        if inside:
            self.item(inside[:-1])[inside[-1]] = value
        else:
            self.value = value

    def origin(self) -> Origin:
        """The origin of the value, once it is completely computed."""
        reads = ", ".join(self.reads) or "no other field"
        texts = [source.text for source in self.sources.values() if isinstance(source, Reference)]
        if not texts:
            return Origin(DERIVED, f"from {reads}")
        return Origin(REFERENCE, f"{', '.join(dict.fromkeys(texts))} over {reads}")


class _Failed(Exception):
    """A dependency could not be computed, which has been reported."""


class Computation:
    """Computes all references and derived values of a merged draft, and stores them in it.

    Values that cannot be computed are marked as invalid in their section.
    """

    def __init__(self, root: Node, placed: list[tuple[Path, Node]]) -> None:
        self.root = root
        self.paths = {id(section): path for path, section in reversed(placed)}
        self.problems: list[Problem] = []
        self.shares = False  # whether a computed value made a section shared
        self._pending: dict[tuple[int, str], Pending] = {}
        self._queue: list[Pending] = []
        # Methods that would derive values that a layer has set.
        self._given: dict[tuple[int, str], tuple[Node, str]] = {}
        self._stack: list[tuple[Pending, Path]] = []
        self._reads: list[dict[str, None]] = []
        for path, section in placed:
            self._collect_references(path, section)
            self._collect_derived(path, section)

    def _collect_references(self, path: Path, section: Node) -> None:
        values = vars(section)
        for name in holders(section, make=False):
            value = values[name]
            sources: dict[Path, Source] = dict(references(value))
            if sources:
                self._add(Pending(section, name, (*path, name), sources, listed(value)))

    def _collect_derived(self, path: Path, section: Node) -> None:
        for relative, method in type(section).__setpoint__.derives.items():
            *inner, name = relative.split(".")
            target: Any = section
            for part in inner:
                known = isinstance(target, Node) and part in type(target).__setpoint__.fields
                target = value_or_missing(target, part) if known else None
            info = type(target).__setpoint__.fields.get(name) if isinstance(target, Node) else None
            if info is None or not info.derived:
                # The section is null or of another variant.
                if inner:
                    _refuse_nowhere(type(section), method, relative)
            elif chain_of(target, name):
                self._given[id(target), name] = section, method
            else:
                self._add(Pending(target, name, (*path, *inner, name), {(): (section, method)}))

    def _add(self, pending: Pending) -> None:
        key = (id(pending.section), pending.name)
        if self._pending.setdefault(key, pending) is pending:
            self._queue.append(pending)

    def run(self) -> None:
        """Compute everything; values that cannot be computed become problems."""
        for pending in self._queue:  # grows by the fields of new sections
            for inside in pending.sources:
                try:
                    self._compute(pending, inside)
                except _Failed:
                    continue  # the other items may be wrong as well
            self._store(pending)

    def value(self, section: Node, name: str) -> Any:
        """A field's value, computed first if necessary; records the read."""
        pending = self._pending.get((id(section), name))
        if pending is not None:
            for inside in pending.sources:
                self._compute(pending, inside)
            self._store(pending)
        if name in state_of(section).invalid:
            raise _Failed
        value = getattr(section, name)
        if not type(section).__setpoint__.fields[name].type.nested:
            self.note(section, name)
        return value

    def note(self, section: Node, name: str) -> None:
        """Record that the value being computed depends on a field, or on a `type`."""
        if self._reads:
            self._reads[-1][dotted((*(self._path_of(section) or ()), name))] = None

    def _path_of(self, section: Node) -> Path | None:
        """The first path of a section; None if it is not part of the tree."""
        if id(section) not in self.paths:  # it may be inside a section inserted unchanged
            places = list(sections(self.root))
            self.paths = {id(inner): path for path, inner in reversed(places)} | self.paths
        return self.paths.get(id(section))

    def observe(self, section: Node, method: str) -> Any:
        """Call a method of a section that may only read.

        Returns:
            its result; None if it reads a value that is itself missing or invalid.

        Raises:
            Exception: any error of the method.
        """
        self._reads.append({})
        try:
            return getattr(type(section), method)(View(self, section))
        except (UnresolvedError, _Failed):
            return None
        finally:
            self._reads.pop()

    def default_or_derived(self, section: Node, name: str) -> object:
        """The value of a field without the layers that set it; MISSING if unknown."""
        known = type(section).__setpoint__
        info = known.fields[name]
        if not info.derived:
            return MISSING if info.required else info.initial()
        # A resolved section that is inserted unchanged is not walked.
        owner, method = self._given.get((id(section), name)) or (section, known.derives.get(name))
        if method is None:
            return MISSING
        try:
            return info.read(self.observe(owner, method), Origin(DERIVED))
        except Exception:  # no layer needs the value, so its errors are not reported
            return MISSING

    def _compute(self, pending: Pending, inside: Path) -> None:
        """Compute a value, or one item of it, unless that has been done."""
        if inside not in pending.waiting:
            return
        step = (pending, inside)
        if step in self._stack:
            cycle = [*self._stack[self._stack.index(step) :], step]
            names = " -> ".join(dotted((*other.path, *place)) for other, place in cycle)
            self._fail(pending, Invalid(f"depends on itself: {names}"), inside)
            for other, place in cycle:
                self._mark_invalid(other, place)
            raise _Failed
        self._stack.append(step)
        self._reads.append({})
        try:
            self._evaluate(pending, inside)
            pending.reads.update(self._reads[-1])
        except (UnresolvedError, _Failed):
            # The missing value is reported at its own path.
            self._mark_invalid(pending, inside)
            raise _Failed from None
        except Exception as error:
            self._fail(pending, _invalid(pending.sources[inside], error), inside)
            raise _Failed from None
        finally:
            self._stack.pop()
            self._reads.pop()
            pending.waiting.discard(inside)

    def _evaluate(self, pending: Pending, inside: Path) -> None:
        source, info = pending.sources[inside], pending.info
        if not isinstance(source, Reference):
            section, method = source
            pending.value = getattr(type(section), method)(View(self, section))
            return
        value = source.evaluate(self._look_up)
        if info.type.nested and isinstance(value, Node) and contains(value, pending.section):
            path = dotted(self._path_of(value) or ()) or "the root"
            raise Invalid(f"refers to {path}, which would then contain itself")
        kind = kind_at(info.type, inside)
        if kind is not None and kind.takes_text and not isinstance(value, str):
            value = _fitting(kind, cast(object, value))
        pending.put(inside, cast(object, value))
        if inside and kind is not None:
            # As stored by its container, since others may read the item before that.
            item = kind.read(pending.item(inside), Origin(REFERENCE, str(source)))
            pending.put(inside, item)
            if info.item_bounds is not None and len(inside) == 1:
                info.item_bounds.check(item)

    def _store(self, pending: Pending) -> None:
        """Store a value in its field once it is completely known."""
        section, name = pending.section, pending.name
        if pending.failed or self._pending.pop((id(section), name), None) is not pending:
            return
        info, origin = pending.info, pending.origin()
        try:
            value = info.read(pending.value, origin)
            if any(references(value)):
                raise Invalid("evaluates to a string that is itself a reference")
        except Exception as error:
            self._fail(pending, _invalid(next(iter(pending.sources.values())), error))
            return
        section.store(name, value, origin)
        for inside, part in info.type.sections(value) if info.type.nested else ():
            self.shares = True
            for path, node in sections(part, (*pending.path, *inside)):
                if self.paths.setdefault(id(node), path) is path:
                    self._collect_references(path, node)
                    self._collect_derived(path, node)

    def _look_up(self, path: Path) -> object:
        node: Any = self.root
        pending: Pending | None = None  # the field whose list or mapping is read
        inside: Path = ()
        for index, part in enumerate(path):
            if isinstance(node, Node) and part in type(node).__setpoint__.fields:
                pending, inside = self._pending.get((id(node), str(part))), ()
                if pending is None or () in pending.sources or index + 1 == len(path):
                    pending, node = None, self.value(node, str(part))
                else:
                    node = pending.value
            else:
                item = value_at(node, part)
                if item is MISSING:
                    raise missing_place(self.root, path[: index + 1])
                inside = (*inside, part)
                if isinstance(item, Reference) and pending is not None:
                    self._compute(pending, inside)
                    item = value_at(node, part)
                node = item
            if pending is not None and pending.failed:
                raise _Failed
        if pending is not None and isinstance(node, list | dict):
            for place in pending.sources:
                if place[: len(inside)] == inside:
                    self._compute(pending, place)
        if isinstance(node, Free):
            raise Invalid(f"refers to {dotted(path)}, which is a section, not a value")
        if self._reads and (inside or isinstance(node, Node)):
            self._reads[-1][dotted(path)] = None
        return cast(object, node)

    def _mark_invalid(self, pending: Pending, inside: Path) -> None:
        """Make a value that could not be computed unreadable."""
        pending.failed.add(inside)
        mark_invalid(pending.section, pending.name)

    def _fail(self, pending: Pending, error: Invalid, inside: Path = ()) -> None:
        """Report a mistake in a value, or in the computed item of it."""
        known = frozenset(pending.failed)
        self._mark_invalid(pending, inside)
        for part in error.parts:
            item_path = (*inside, *part.at)
            place = next((path for path in pending.sources if item_path[: len(path)] == path), None)
            if place in known:
                continue
            message, value, origin = part.message, None, "derivation"
            source = None if place is None else pending.sources[place]
            if source is None or place is None:
                value = shown_part(pending.value, part)
            elif isinstance(source, Reference):
                value = source.text
                message = self._misfit(pending, place) or message
                result: object = pending.item(place)
                if isinstance(result, int | float) and ": got " not in message:
                    message += f": got {for_error(result)}"
            if not isinstance(source, tuple):
                path = (*pending.path, *(item_path if place is None else place))
                origin = chain_of(pending.section, pending.name)[-1][0].describe(path)
            full = dotted((*pending.path, *item_path))
            problem = Problem(
                full, message, valid=part.valid, hint=part.hint, value=value, origin=origin
            )
            problem.traceback = part.traceback
            self.problems.append(problem)

    def _misfit(self, pending: Pending, inside: Path) -> str:
        """The error for a reference to a section that its place cannot accept."""
        value: object = pending.item(inside)
        path = self._path_of(value) if isinstance(value, Node) else None
        if path is None or not isinstance(value, Node):
            return ""
        tag = type(value).__setpoint__.tag
        section = f"a section with type = {tag}" if tag else f"a section ({type(value).__name__})"
        kind = kind_at(pending.info.type, inside)
        expected = "what belongs here" if kind is None else kind.describe()
        return f"refers to {dotted(path) or 'the root'}, which is {section}, not {expected}"


def _fitting(kind: FieldType, value: object) -> object:
    """Convert a value for a text field, unless it is valid as it is."""
    try:
        kind.read(value, Origin(REFERENCE))
    except Invalid:
        text = text_of(value)
        return value if text is None else text
    return value


def _invalid(source: Source, error: Exception) -> Invalid:
    """The error of a value whose computation failed; a bug of the engine is raised as it is."""
    is_known = isinstance(error, SetpointError | RecursionError)
    if isinstance(source, tuple) and (isinstance(error, ReadOnlyError) or not is_known):
        problem = method_failed(getattr(type(source[0]), source[1]), error)
        fault = Invalid(problem.message)
        fault.traceback = problem.traceback
        return fault
    if not (is_known or isinstance(error, ArithmeticError)):
        raise error
    if isinstance(error, RecursionError):
        return Invalid("cannot be computed: too many terms, or values that depend on one another")
    if isinstance(error, Invalid):
        return error
    text = str(error)
    return Invalid(text if isinstance(error, SetpointError) else f"cannot be computed: {text}")


def _refuse_nowhere(cls: type[Node], method: str, relative: str) -> None:
    """Refuse a method that derives a field that no variant of the section has."""
    *inner, name = relative.split(".")
    for below in classes_at(cls, tuple(inner)):
        info = below.__setpoint__.fields.get(name)
        if info is not None and info.derived:
            return
    raise DeclarationError(
        f"{cls.__name__}.{method}: @derive({relative!r}) names no field that is declared as "
        f"derived() in any section that can stand there"
    )


class ReadOnlyError(SetpointError):
    """A method that computes a value tried to change the configuration."""


class View:
    """A section as seen by a method: reads are recorded and computed on demand, writes refused."""

    __slots__ = ("_computation", "_section")

    _computation: Computation
    _section: Node

    def __init__(self, computation: Computation, section: Node) -> None:
        object.__setattr__(self, "_computation", computation)
        object.__setattr__(self, "_section", section)

    def __getattr__(self, name: str) -> Any:
        cls = type(self._section)
        if name in cls.__setpoint__.fields:
            return self._wrapped(self._computation.value(self._section, name))
        attribute: Any = getattr(cls, name)
        if isinstance(attribute, property) and attribute.fget:
            return attribute.fget(self)
        if isinstance(attribute, types.FunctionType):
            return types.MethodType(attribute, self)
        if cls.__setpoint__.tag is not None:  # a constant of the variant
            self._computation.note(self._section, "type")
        return attribute

    def __setattr__(self, name: str, value: object) -> None:
        raise ReadOnlyError(
            f"{type(self._section).__name__}.{name} cannot be set in this method, which only reads "
            f"and returns its result"
        )

    __delattr__ = __setattr__  # pyright: ignore[reportAssignmentType]

    def _wrapped(self, value: Any) -> Any:
        """The value with every section in it, including those in lists and mappings, as a view."""
        if isinstance(value, Node):
            return View(self._computation, value)
        if isinstance(value, tuple | list | dict):
            items: Any = rebuild(value, self._wrapped)
            return items if isinstance(value, dict) else tuple(items)
        # Reading an unset key of the area creates an empty area, which must be removed.
        return value.copy(frozen=False) if isinstance(value, Free) else value

    @property
    def __setpoint_section__(self) -> Node:
        return self._section

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        # Allows isinstance(self.schedule, Cosine) in a deriving method.
        return type(self._section)
