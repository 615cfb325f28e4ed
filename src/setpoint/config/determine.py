"""Values that follow from others: references and derived fields, in the order they need."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any, cast

from .base import Config, chain_of, value_or_missing, withhold
from .errors import Invalid, SetpointError, UnresolvedError
from .free import Free
from .origin import DERIVED, REFERENCE, Origin, Path
from .problem import Problem
from .reference import Reference
from .walk import dotted

Key = tuple[int, str]


class Pending:
    """A value that is still to be computed.

    Arguments:
        section, name: the field.
        path: its path from the root.
        by: the reference, or the section and method that derive it.
    """

    __slots__ = ("by", "name", "path", "section")

    def __init__(
        self, section: Config, name: str, path: Path, by: Reference | tuple[Config, str]
    ) -> None:
        self.section = section
        self.name = name
        self.path = path
        self.by = by


class _Failed(Exception):
    """A value that another one needs could not be computed, and has been reported."""


class Determination:
    """Computes all references and derived values of a tree.

    Arguments:
        root: the merged draft; values are stored into it.
        placed: its sections with their paths.
    """

    def __init__(self, root: Config, placed: list[tuple[Path, Config]]) -> None:
        self.root = root
        self.paths = {id(section): path for path, section in reversed(placed)}
        self.problems: list[Problem] = []
        self.failed: set[str] = set()
        self._pending: dict[Key, Pending] = {}
        self._stack: list[Key] = []
        self._reads: list[dict[str, None]] = []
        for path, section in placed:
            self._collect(path, section)

    def _collect(self, path: Path, section: Config) -> None:
        cls = type(section)
        for name in cls.__setpoint__.fields:
            chain = chain_of(section, name)
            if chain and isinstance(chain[-1][1], Reference):
                self._pending.setdefault(
                    (id(section), name), Pending(section, name, (*path, name), chain[-1][1])
                )
        for relative, method in cls.__setpoint__.derives.items():
            *inner, name = relative.split(".")
            target: Any = section
            for part in inner:
                target = value_or_missing(target, part) if isinstance(target, Config) else None
            if not isinstance(target, Config):
                continue  # that section is switched off, or is of another variant
            info = type(target).__setpoint__.fields.get(name)
            if info is None or not info.derived or chain_of(target, name):
                continue
            here = (*path, *inner, name)
            self._pending.setdefault(
                (id(target), name), Pending(target, name, here, (section, method))
            )

    def run(self) -> None:
        """Compute everything; what cannot be computed becomes a problem."""
        for key in list(self._pending):
            if key in self._pending:
                try:
                    self._compute(key)
                except _Failed:
                    continue

    def value(self, section: Config, name: str) -> Any:
        """A field's value, computed first if it has to be; the read is recorded.

        Arguments:
            section: where the field is.
            name: the field.

        Returns:
            the value.
        """
        path = dotted((*self.paths[id(section)], name))
        key = (id(section), name)
        if key in self._pending:
            self._compute(key)
        if path in self.failed:
            raise _Failed
        value = getattr(section, name)
        if self._reads and not type(section).__setpoint__.fields[name].type.nested:
            self._reads[-1][path] = None
        return value

    def _compute(self, key: Key) -> None:
        pending = self._pending[key]
        if key in self._stack:
            cycle = [*self._stack[self._stack.index(key) :], key]
            names = " -> ".join(dotted(self._pending[k].path) for k in cycle)
            self._fail(pending, Invalid(f"depends on itself: {names}"))
            for k in cycle:
                self.failed.add(dotted(self._pending[k].path))
                withhold(self._pending[k].section, self._pending[k].name)
            raise _Failed
        self._stack.append(key)
        self._reads.append({})
        try:
            self._store(pending, self._evaluate(pending))
        except (UnresolvedError, _Failed):
            # The missing value is reported where it is missing.
            self.failed.add(dotted(pending.path))
            withhold(pending.section, pending.name)
            raise _Failed from None
        except (SetpointError, ArithmeticError) as error:
            shown = error if isinstance(error, Invalid) else Invalid(_words(error))
            self._fail(pending, shown)
            raise _Failed from None
        finally:
            self._stack.pop()
            self._reads.pop()
            self._pending.pop(key, None)

    def _evaluate(self, pending: Pending) -> object:
        if isinstance(pending.by, Reference):
            return pending.by.evaluate(self._look_up)
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
        result = info.read(value, origin)
        pending.section.store(pending.name, result, origin)

    def _look_up(self, path: Path) -> object:
        node: Any = self.root
        for index, part in enumerate(path):
            if isinstance(node, Config) and part in type(node).__setpoint__.fields:
                node = self.value(node, str(part))
            elif _has_item(node, part):
                node = cast(Any, node)[part]
            else:
                from .suggest import place_of

                name = dotted(path[: index + 1])
                hint = place_of(type(self.root), str(part), name)
                raise Invalid(f"refers to {name}, which does not exist", hint=hint)
        if isinstance(node, Config | Free):
            raise Invalid(f"refers to {dotted(path)}, which is a section, not a value")
        return node

    def _fail(self, pending: Pending, error: Invalid) -> None:
        path = dotted(pending.path)
        if path in self.failed:
            return
        self.failed.add(path)
        withhold(pending.section, pending.name)
        chain = chain_of(pending.section, pending.name)
        derived_by = isinstance(pending.by, tuple)
        self.problems.append(
            Problem(
                path,
                error.message,
                valid=error.valid,
                hint=error.hint,
                value=None if isinstance(pending.by, tuple) else pending.by.text,
                origin="derivation" if derived_by else chain[-1][0].describe(pending.path),
            )
        )


def _has_item(node: Any, part: str | int) -> bool:
    if isinstance(node, Free):
        return any(key == part for key, _ in node.items())
    if isinstance(node, dict):
        return part in node
    return (
        isinstance(node, tuple | list)
        and isinstance(part, int)
        and part < len(cast(Sequence[Any], node))
    )


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, SetpointError) else f"cannot be computed: {error}"


class View:
    """A section as a deriving method sees it: reads are recorded and computed on demand.

    Arguments:
        determination: the running computation.
        section: the section.
    """

    __slots__ = ("_determination", "_section")

    def __init__(self, determination: Determination, section: Config) -> None:
        self._determination = determination
        self._section = section

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

    def _wrapped(self, value: Any) -> Any:
        """The value with every section in it, also those in lists and mappings, as a view."""
        if isinstance(value, Config):
            return View(self._determination, value)
        if isinstance(value, tuple | list):
            return tuple(map(self._wrapped, cast(Sequence[Any], value)))
        if isinstance(value, dict):
            items = cast(dict[str, Any], value).items()
            return {key: self._wrapped(item) for key, item in items}
        return value

    @property
    def __setpoint_section__(self) -> Config:
        return self._section

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        # Lets a deriving method ask isinstance(self.schedule, Cosine).
        return type(self._section)
