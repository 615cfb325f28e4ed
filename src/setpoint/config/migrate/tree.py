"""Plain data on its way to another schema, with all that has to move along."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, cast

from ..errors import SetpointError
from ..files.plain import PlainScalar, guess
from ..origin import Path
from ..walk import dotted, within

Entry = dict[str, Any]
# A step of a migration, for whoever has to do the same to a text: ("move", old path, new path),
# ("put", path, value) or ("remove", path, None).
Step = tuple[str, Path, Any]
NAMES = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
REFERENCE = re.compile(r"\$\{[^}]*\}")


class Tree:
    """Data that is being migrated.

    Arguments:
        data: nested plain data; a copy is changed.
        origins: of a record, by dotted path; they follow their values.
        complete: whether every value is there, as in a record; a file may leave out any.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        origins: Mapping[str, Entry] | None = None,
        *,
        complete: bool = False,
    ) -> None:
        self.data: dict[str, Any] = deepcopy(dict(data))
        self.origins: dict[str, Entry] = deepcopy(dict(origins or {}))
        self.complete = complete
        self.notes: list[str] = []
        self.steps: list[Step] = []

    def find(self, pattern: str) -> list[Path]:
        """The places that a pattern means and that exist.

        Arguments:
            pattern: a dotted path; `*` stands for each item of a list or mapping. Hyphens and
                underscores are the same. `x.type` is found in `x = "adamw"`, too.

        Returns:
            paths with the keys as they are written.
        """
        return list(_find(self.data, tuple(pattern.split(".")), ()))

    def get(self, path: Path) -> Any:
        """The value at a place that exists.

        Arguments:
            path: from `find`.

        Returns:
            the value.
        """
        node: Any = self.data
        for part in path:
            node = node[part]
        return node

    def plain(self, path: Path) -> Any:
        """The value at a place as a function of a migration wants it.

        Arguments:
            path: from `find`.

        Returns:
            the value; texts without quotes, as YAML has them, are numbers where they look it.
        """
        return guessed(self.get(path))

    def move(self, old: Path, new: Path, *, same: bool = True) -> None:
        """Take a value with all that is below it to another place.

        Arguments:
            old: where it is.
            new: where it shall be; sections on the way are made, and one that is left empty goes.
            same: whether it still is the same value, so that references to it are renamed.

        Raises:
            SetpointError: if something is there already, or no section can be.
        """
        value = self.get(old)
        self._make_room(old, new)
        self._take(old)
        self._insert(new, value)
        self.steps.append(("move", old, new))
        self._rename_origins(old, new)
        if same:
            self.rename_references(dotted(old), dotted(new))
        self._prune(old[:-1])

    def put(self, path: Path, value: Any) -> None:
        """Set a value, whether or not there is one.

        Arguments:
            path: where; sections on the way are made.
            value: plain data.

        Raises:
            SetpointError: if no section can be on the way.
        """
        self._make_room((), path)
        self._insert(path, value)
        self.steps.append(("put", path, value))

    def remove(self, path: Path) -> None:
        """Take a value away, with its origins.

        Arguments:
            path: a place that exists; a section that is left empty goes, too.
        """
        self._take(path)
        self.steps.append(("remove", path, None))
        key = dotted(path)
        for name in [name for name in self.origins if within(name, key)]:
            del self.origins[name]
        self._prune(path[:-1])

    def follow(self, new: Path, old: Path) -> None:
        """Remember that a value was made from another one, so that its origin can be shown.

        Arguments:
            new: where it is.
            old: where the other one was.
        """
        self.steps.append(("follow", old, new))

    def parent_type(self, path: Path) -> str | None:
        """The tag of the section that a place lies in.

        Arguments:
            path: any place.

        Returns:
            its `type`; None where it has none or there is no section.
        """
        node: Any = self.data
        for part in path[:-1]:
            node = _child(node, part)
        found: object = cast(Any, node).get("type") if isinstance(node, dict) else node
        return found if isinstance(found, str) else None

    def old_path(self, path: Path) -> Path:
        """Where a value was in the data as it came.

        Arguments:
            path: where it is now.

        Returns:
            its first place; the path itself for what was not moved.
        """
        for kind, old, new in reversed(self.steps):
            if kind in ("move", "follow") and path[: len(new)] == new:
                path = (*old, *path[len(new) :])
        return path

    def is_off(self, path: Path) -> bool:
        """Whether a section on the way to a place is switched off.

        Arguments:
            path: any place.

        Returns:
            True if one of the sections is null.
        """
        node: Any = self.data
        for part in path[:-1]:
            if not isinstance(node, dict) or part not in node:
                return False
            node = cast(dict[Any, Any], node)[part]
            if node is None or node == "null":
                return True
        return False

    def _take(self, path: Path) -> None:
        del self.get(path[:-1])[path[-1]]

    def _insert(self, path: Path, value: Any) -> None:
        node: Any = self.data
        for part in path[:-1]:
            inner = _child(node, part)
            if inner is None:
                inner = node[part] = {}
            elif isinstance(inner, str):
                inner = node[part] = {"extends" if inner.startswith("@") else "type": inner}
            node = inner
        node[path[-1]] = value

    def _make_room(self, old: Path, new: Path) -> None:
        """Refuse a place that is taken, or that no section leads to."""
        node: Any = self.data
        for depth, part in enumerate(new[:-1]):
            inner: Any = _child(node, part)
            named = isinstance(inner, str) and "${" not in inner and inner != "null"
            wanted = list if isinstance(new[depth + 1], int) else dict
            if inner is not None and not named and not isinstance(inner, wanted):
                where = dotted(new[: depth + 1])
                raise SetpointError(
                    f"{dotted(new)} has no place: {where} is {guessed(inner)!r}; set "
                    f"{dotted(old) or dotted(new)} by hand as the new schema wants it"
                )
            node = cast(Any, inner)
        taken = isinstance(node, dict) and new[-1] in cast(dict[Any, Any], node)
        if taken and old:
            raise SetpointError(
                f"both {dotted(old)} and {dotted(new)} are set, and they are the same field now; "
                f"leave {dotted(old)} out"
            )

    def _prune(self, path: Path) -> None:
        if path and self.get(path) == {}:
            self._take(path)
            self.steps.append(("remove", path, None))
            self._prune(path[:-1])

    def _rename_origins(self, old: Path, new: Path) -> None:
        before, after = dotted(old), dotted(new)
        self.origins = {
            after + key[len(before) :] if within(key, before) else key: entry
            for key, entry in self.origins.items()
        }

    def rename_references(self, old: str, new: str) -> None:
        """Let references to a field name its new path.

        Arguments:
            old, new: dotted paths.
        """

        def renamed(text: str) -> str:
            def name(match: re.Match[str]) -> str:
                word = match.group()
                return new + word[len(old) :] if within(word, old) else word

            return REFERENCE.sub(lambda found: NAMES.sub(name, found.group()), text)

        for path, text in list(_texts(self.data, ())):
            if renamed(text) != text:
                self.put(path, renamed(text))
        for entry in self.origins.values():
            for layer in entry["layers"]:
                if isinstance(layer["value"], str):
                    layer["value"] = renamed(layer["value"])


def guessed(value: Any) -> Any:
    """A value with every text without quotes read as YAML's core schema reads it.

    Arguments:
        value: nested plain data.

    Returns:
        a copy of Python's own values.
    """
    if isinstance(value, dict):
        return {key: guessed(item) for key, item in cast(dict[str, Any], value).items()}
    if isinstance(value, list):
        return [guessed(item) for item in cast(list[Any], value)]
    return guess(value) if isinstance(value, PlainScalar) else value


def _find(node: Any, pattern: tuple[str, ...], path: Path) -> Iterator[Path]:
    if not pattern:
        yield path
        return
    first, rest = pattern[0], pattern[1:]
    if pattern == ("type",) and isinstance(node, str):
        if node != "null" and "${" not in node:
            yield path  # the section is given by its variant's name alone
    elif isinstance(node, dict):
        for key in list(cast(dict[str, Any], node)):
            if first == "*" or key.replace("-", "_") == first:
                yield from _find(cast(Any, node)[key], rest, (*path, key))
    elif isinstance(node, list):
        for index, item in enumerate(cast(list[Any], node)):
            if first in ("*", str(index)):
                yield from _find(item, rest, (*path, index))


def _child(node: Any, part: str | int) -> Any:
    if isinstance(node, dict):
        return cast(dict[Any, Any], node).get(part)
    if isinstance(node, list) and isinstance(part, int):
        items = cast(list[Any], node)
        return items[part] if part < len(items) else None
    return None


def _texts(node: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Every text that holds a reference."""
    if isinstance(node, dict):
        for key, value in cast(dict[str, Any], node).items():
            yield from _texts(value, (*path, key))
    elif isinstance(node, list):
        for index, value in enumerate(cast(list[Any], node)):
            yield from _texts(value, (*path, index))
    elif isinstance(node, str) and "${" in node:
        yield path, node
