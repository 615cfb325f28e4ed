"""Fields that are where they were, or new, and what their values stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from ..schema.bounds import IDENTITY, Role
from ..values.origin import DERIVED, RECORD
from ..words.names import Path, dotted
from ..words.shown import shown
from .chain import Operation, Tree, converted, with_value


class Converted(Operation):
    """A field has the same name, and its value is written in another way, such as another unit.

    Arguments:
        what: what has changed, as a sentence, for instance `is counted in tokens, not steps`;
            empty where it is the same value, written in another way.
        of: as for `Operation`.
    """

    def __init__(
        self, path: str, convert: Callable[[Any], Any], what: str, of: str | None = None
    ) -> None:
        super().__init__(of)
        self.path = path
        self.convert = convert
        self.what = what

    def apply(self, tree: Tree) -> None:
        """See `Operation.apply`."""
        for path in self.places(tree, self.path):
            before = tree.plain(path)
            if not self.what and "${" in str(before):
                continue
            value = converted(self, path, before, lambda before=before: self.convert(before))
            if value == before and type(value) is type(before):
                continue
            tree.put(path, value)
            entry = tree.origins.get(dotted(path))
            if entry is not None:
                tree.origins[dotted(path)] = with_value(entry, value)
            if self.what:
                tree.notes.append(
                    f"{dotted(path)}: {before!r} is {value!r} since schema {self.schema}: "
                    f"{self.what}"
                )


class Added(Operation):
    """A field is new; what runs effectively had before may be another value than today's default.

    Arguments:
        value: what every run before had, in plain data, with all its fields where it is a section;
            or a function that says it from the data.
        derived: whether the field is computed from others unless given.
        what: a sentence for files, which mean today's default by what they leave out; to be given
            where that default is another value than the one that runs had before.
        of: as for `Operation`.
    """

    def __init__(
        self,
        path: str,
        value: Any,
        *,
        derived: bool = False,
        role: Role = IDENTITY,
        what: str = "",
        of: str | None = None,
    ) -> None:
        super().__init__(of)
        self.what = what
        self.path = path
        self.value = value
        self.derived = derived
        self.role = role

    def apply(self, tree: Tree) -> None:
        """See `Operation.apply`."""
        if not tree.complete:
            if self.what and not tree.find(self.path):
                tree.notes.append(f"{self.path} is new in schema {self.schema}: {self.what}")
            return
        section, _, name = self.path.rpartition(".")
        for above in tree.find(section) if section else [()]:
            path: Path = (*above, name)
            if not isinstance(tree.get(above), dict) or name in tree.get(above):
                continue
            if self.of not in (None, tree.parent_type(path)):
                continue
            value = self.value
            if callable(self.value):
                value = converted(self, path, None, lambda: self.value(tree.data))
            tree.put(path, value)
            layer = DERIVED if self.derived else RECORD
            origin = f"before schema {self.schema}"
            for leaf, part in _leaves(path, value):
                tree.origins[dotted(leaf)] = {
                    "value": part,
                    "role": self.role.name,
                    "layers": [{"layer": layer, "origin": origin, "value": part}],
                }


def _leaves(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    """The values that have an origin of their own: those of the fields, where it is a section."""
    if isinstance(value, dict) and value:
        for name, part in cast(dict[str, Any], value).items():
            yield from _leaves((*path, name), part)
    else:
        yield path, value


class Kept(Operation):
    """A derived value would be another one today; a record keeps the one that its run had.

    Arguments:
        of: as for `Operation`.
    """

    def __init__(
        self, path: str, when: Callable[[dict[str, Any]], bool], of: str | None = None
    ) -> None:
        super().__init__(of)
        self.path = path
        self.when = when

    def apply(self, tree: Tree) -> None:
        """See `Operation.apply`."""
        for path in self.places(tree, self.path) if tree.complete else ():
            entry = tree.origins.get(dotted(path))
            if entry is None or entry["layers"][-1]["layer"] != DERIVED:
                continue
            if converted(self, path, None, lambda: self.when(tree.data)):
                *before, last = entry["layers"]
                origin = f"derived before schema {self.schema}"
                last = {**last, "layer": RECORD, "origin": origin}
                tree.origins[dotted(path)] = {**entry, "layers": [*before, last]}


class Meant(Operation):
    """A field has the same name and value, but they mean something else now.

    Arguments:
        what: what has changed, as a sentence; shown whenever an older record or file is loaded.
        of: as for `Operation`.
    """

    def __init__(
        self,
        path: str,
        what: str,
        when: Callable[[Any], bool] | None = None,
        of: str | None = None,
    ) -> None:
        super().__init__(of)
        self.path = path
        self.what = what
        self.when = when

    def apply(self, tree: Tree) -> None:
        """See `Operation.apply`."""
        for path in self.places(tree, self.path):
            value = tree.plain(path)
            when = self.when
            # Of a reference nobody knows the value yet; better a note too many.
            if when is not None and "${" not in str(value):
                told = converted(self, path, value, lambda value=value, when=when: when(value))
            else:
                told = True
            if told:
                tree.notes.append(
                    f"{dotted(path)} = {shown(value)} has another meaning since schema "
                    f"{self.schema}: {self.what}"
                )
