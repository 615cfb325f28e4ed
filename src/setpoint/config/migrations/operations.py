"""What became of fields: they are elsewhere or gone, new, or their values mean another thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from ..schema.bounds import IDENTITY, Role
from ..values.origin import DERIVED, RECORD
from ..words.names import Path, dotted
from ..words.shown import MISSING, shown
from .chain import Operation, Tree, converted, filled, left_out, move, with_value


class Renamed(Operation):
    """A field or section has another name, or stands in another section.

    Arguments:
        old: the path of the schema before; `*` stands for each item of a list or mapping.
        new: the path now, with as many `*`.
    """

    old: str
    new: str
    of: str | None = None

    def apply(self, tree: Tree) -> None:
        """See `Operation.apply`."""
        if self.of is None and "*" not in self.old:
            # A file may refer to what it leaves to others to set.
            tree.rename_references(self.old, self.new)
        for path in self.places(tree, self.old):
            place = filled(self.old, self.new, path)
            if not left_out(tree, path, place):
                tree.move(path, place)

    def old_keys(self) -> tuple[str, ...]:
        """See `Operation.old_keys`."""
        return (self.old,)

    def new_key(self, old: str) -> str | None:
        """See `Operation.new_key`."""
        return self.new

    def sentence(self, old: str) -> str:
        """See `Operation.sentence`."""
        same = self.old.rpartition(".")[0] == self.new.rpartition(".")[0]
        verb = "renamed" if same else "moved"
        return f"{self.old} was {verb} to {self.new} in schema {self.schema}"


class Split(Operation):
    """One field has become several, or the fields of one section have gone into several.

    Arguments:
        divide: gives the value of each from the old one. For a section it may be left out: then
            `new` are the new places of its fields, each with the name that it had.
    """

    old: str
    new: Sequence[str]
    divide: Callable[[Any], Sequence[Any]] | None = None
    of: str | None = None

    def apply(self, tree: Tree) -> None:
        """See `Operation.apply`."""
        if self.divide is None:
            for new in self.new:
                old = f"{self.old}.{new.rpartition('.')[2]}"
                for path in self.places(tree, old):
                    move(tree, path, filled(old, new, path))
            return
        divide = self.divide
        for path in self.places(tree, self.old):
            value = tree.plain(path)
            entry = tree.origins.get(dotted(path))
            first = filled(self.old, self.new[0], path)
            values = converted(self, path, value, lambda value=value: tuple(divide(value)))
            if any(left_out(tree, path, filled(self.old, new, path)) for new in self.new):
                continue
            tree.move(path, first, same=False)
            for new, part in zip(self.new, values, strict=True):
                place = filled(self.old, new, path)
                tree.put(place, part)
                tree.follow(place, first)
                if entry is not None:
                    tree.origins[dotted(place)] = with_value(entry, part)

    def old_keys(self) -> tuple[str, ...]:
        """See `Operation.old_keys`."""
        if self.divide is None:
            return tuple(f"{self.old}.{new.rpartition('.')[2]}" for new in self.new)
        return (self.old,)

    def new_key(self, old: str) -> str | None:
        """See `Operation.new_key`."""
        if self.divide is None:
            return next(n for n in self.new if n.rpartition(".")[2] == old.rpartition(".")[2])
        return None

    def sentence(self, old: str) -> str:
        """See `Operation.sentence`."""
        if self.divide is None:
            return f"{old} was moved to {self.new_key(old)} in schema {self.schema}"
        return f"{self.old} was split into {' and '.join(self.new)} in schema {self.schema}"


class Merged(Operation):
    """Several fields have become one.

    Arguments:
        old: the paths of the schema before; `*` stands for each item of a list or mapping.
        new: the path now, with as many `*`.
        defaults: what the old fields were where a file leaves them out.
    """

    old: Sequence[str]
    new: str
    combine: Callable[..., Any]
    defaults: Sequence[Any]
    of: str | None = None

    def apply(self, tree: Tree) -> None:
        """See `Operation.apply`."""
        places = [self.places(tree, old) for old in self.old]
        # What one `*` stands for goes together.
        for new in dict.fromkeys(
            filled(old, self.new, path)
            for old, paths in zip(self.old, places, strict=True)
            for path in paths
        ):
            found = [
                next((path for path in paths if filled(old, self.new, path) == new), None)
                for old, paths in zip(self.old, places, strict=True)
            ]
            self._merge(tree, found, new)

    def _merge(self, tree: Tree, found: list[Path | None], place: Path) -> None:
        given = [path for path in found if path is not None]
        values = [
            default if path is None else tree.plain(path)
            for path, default in zip(found, self.defaults, strict=True)
        ]
        # A layer that was touched counts more than a default that happens to come first.
        entries = [tree.origins[dotted(p)] for p in given if dotted(p) in tree.origins]
        entries.sort(key=lambda entry: entry["layers"][-1]["layer"] == "default")
        value = converted(self, given[0], values, lambda: self.combine(*values))
        if tree.is_off(place):
            for path in given:
                left_out(tree, path, place)
            return
        if place not in given:
            tree.move(given.pop(0), place, same=False)
        for path in given:
            if path != place:
                tree.remove(path)
        tree.put(place, value)
        if entries:
            tree.origins[dotted(place)] = with_value(entries[0], value)

    def old_keys(self) -> tuple[str, ...]:
        """See `Operation.old_keys`."""
        return tuple(old for old in self.old if old != self.new)

    def new_key(self, old: str) -> str | None:
        """See `Operation.new_key`."""
        return None

    def sentence(self, old: str) -> str:
        """See `Operation.sentence`."""
        return f"{' and '.join(self.old)} were merged into {self.new} in schema {self.schema}"


class Retired(Operation):
    """A field or section is gone.

    Arguments:
        advice: a sentence that says why, or what to do now.
        neutral: the value with which nothing is lost; any other one is reported.
    """

    old: str
    advice: str
    neutral: object = MISSING
    of: str | None = None

    def apply(self, tree: Tree) -> None:
        """See `Operation.apply`."""
        for path in reversed(self.places(tree, self.old)):
            value = tree.plain(path)
            if value != self.neutral:
                tree.notes.append(
                    f"{dotted(path)} = {value!r} is left out: retired in schema {self.schema}: "
                    f"{self.advice}"
                )
            tree.remove(path)

    def old_keys(self) -> tuple[str, ...]:
        """See `Operation.old_keys`."""
        return (self.old,)

    def sentence(self, old: str) -> str:
        """See `Operation.sentence`."""
        return f"{self.old} was retired in schema {self.schema}: {self.advice}"


class Converted(Operation):
    """A field has the same name, and its value is written in another way, such as another unit.

    Arguments:
        what: what has changed, as a sentence, for instance `is counted in tokens, not steps`;
            empty where it is the same value, written in another way.
    """

    path: str
    convert: Callable[[Any], Any]
    what: str
    of: str | None = None

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
    """

    path: str
    value: Any
    derived: bool = False
    role: Role = IDENTITY
    what: str = ""
    of: str | None = None

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


class Meant(Operation):
    """A field has the same name and value, but they mean something else now.

    Arguments:
        what: what has changed, as a sentence; shown whenever an older record or file is loaded.
    """

    path: str
    what: str
    when: Callable[[Any], bool] | None = None
    of: str | None = None

    def apply(self, tree: Tree) -> None:
        """See `Operation.apply`."""
        for path in self.places(tree, self.path):
            value = tree.plain(path)
            when = self.when
            # The value of a reference is not known yet; a note too many does no harm.
            if when is not None and "${" not in str(value):
                noted = converted(self, path, value, lambda value=value, when=when: when(value))
            else:
                noted = True
            if noted:
                tree.notes.append(
                    f"{dotted(path)} = {shown(value)} has another meaning since schema "
                    f"{self.schema}: {self.what}"
                )
