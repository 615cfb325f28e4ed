"""Fields that are somewhere else now, or nowhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..words.names import Path, dotted
from ..words.shown import MISSING
from .chain import Operation, Tree, converted, filled, left_out, move, with_value


class Renamed(Operation):
    """A field or section has another name, or stands in another section.

    Arguments:
        old: the path of the schema before; `*` stands for each item of a list or mapping.
        new: the path now, with as many `*`.
        of: as for `Operation`.
        convert: where the same value is written in another way now, from the old one to the new
            one; a reference stays as it is.
    """

    def __init__(
        self,
        old: str,
        new: str,
        of: str | None = None,
        convert: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(of)
        self.old = old
        self.new = new
        self.convert = convert

    def apply(self, tree: Tree) -> None:
        """See `Operation.apply`."""
        convert = self.convert
        if self.of is None and "*" not in self.old:
            # A file may refer to what it leaves to others to set.
            tree.rename_references(self.old, self.new)
        for path in self.places(tree, self.old):
            place, value = filled(self.old, self.new, path), tree.plain(path)
            if left_out(tree, path, place):
                continue
            tree.move(path, place)
            if convert is None or "${" in str(value):
                continue
            now = converted(self, path, value, lambda value=value: convert(value))
            if now == value and type(now) is type(value):
                continue
            tree.put(place, now)
            entry = tree.origins.get(dotted(place))
            if entry is not None:
                tree.origins[dotted(place)] = with_value(entry, now)

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
        of: as for `Operation`.
    """

    def __init__(
        self,
        old: str,
        new: Sequence[str],
        divide: Callable[[Any], Sequence[Any]] | None = None,
        of: str | None = None,
    ) -> None:
        super().__init__(of)
        self.old = old
        self.new = tuple(new)
        self.divide = divide

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
        of: as for `Operation`.
    """

    def __init__(
        self,
        old: Sequence[str],
        new: str,
        combine: Callable[..., Any],
        defaults: Sequence[Any],
        of: str | None = None,
    ) -> None:
        super().__init__(of)
        self.old = tuple(old)
        self.new = new
        self.combine = combine
        self.defaults = tuple(defaults)

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
        of: as for `Operation`.
    """

    def __init__(
        self, old: str, advice: str, neutral: object = MISSING, of: str | None = None
    ) -> None:
        super().__init__(of)
        self.old = old
        self.advice = advice
        self.neutral = neutral

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
