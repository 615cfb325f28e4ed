"""What can happen to fields between two schemas, each a declaration that can be applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import SetpointError
from ..origin import Path
from ..walk import dotted
from .tree import Entry, Tree


class Operation:
    """One change between a schema and the next.

    Arguments:
        of: the variant (`type`) of the section that the change is about; None for all.
    """

    # The schema that the change leads to; set when a migration is registered.
    schema = 0

    def __init__(self, of: str | None = None) -> None:
        self.of = of

    def apply(self, tree: Tree) -> None:
        """Make the change.

        Arguments:
            tree: data of the schema before; afterwards it is of this one as far as the change goes.

        Raises:
            SetpointError: if a value cannot be taken over.
        """
        raise TypeError(f"{type(self).__name__} does not say what it does")

    def old_keys(self) -> tuple[str, ...]:
        """The keys that are no fields any more.

        Returns:
            dotted paths.
        """
        return ()

    def new_key(self, old: str) -> str | None:
        """Where a key has gone.

        Arguments:
            old: one of `old_keys`.

        Returns:
            the one path that took its place, or None.
        """
        return None

    def sentence(self, old: str) -> str:
        """What to tell who still uses a key.

        Arguments:
            old: one of `old_keys`.

        Returns:
            a sentence without its end: `optim was renamed to optimizer in schema 2`.
        """
        return f"{old} was changed in schema {self.schema}"

    def places(self, tree: Tree, pattern: str) -> list[Path]:
        """The places that the change is about.

        Arguments:
            tree: the data.
            pattern: a path of the schema before.

        Returns:
            the paths that exist, in sections of the right variant.
        """
        found = tree.find(pattern)
        if self.of is None:
            return found
        # A file may leave the variant to what it extends.
        return [path for path in found if tree.parent_type(path) in (self.of, None)]


def filled(old: str, new: str, path: Path) -> Path:
    """A new path with the keys that `*` stood for in the old one.

    Arguments:
        old: the pattern that was found.
        new: the pattern to fill.
        path: where it was found.

    Returns:
        the new path.
    """
    keys = [key for part, key in zip(old.split("."), path, strict=True) if part == "*"]
    return tuple(keys.pop(0) if part == "*" else part for part in new.split("."))


def converted(operation: Operation, path: Path, value: Any, call: Callable[[], Any]) -> Any:
    """Run a function of a migration on a value that may be anything.

    Arguments:
        operation: the change, for the error.
        path, value: what it is about.
        call: the function.

    Returns:
        what it returns.

    Raises:
        SetpointError: if it fails.
    """
    if "${" in str(value):
        raise SetpointError(
            f"{dotted(path)} = {value!r} holds a reference, whose value is not known yet, and it "
            f"has to be another one in schema {operation.schema}; change it by hand"
        )
    try:
        return call()
    except Exception as error:
        raise SetpointError(
            f"{dotted(path)} = {value!r} cannot be taken to schema {operation.schema}: "
            f"{type(error).__name__}: {error}; change it by hand"
        ) from error


def with_value(entry: Entry, value: Any) -> Entry:
    """The origins of a value that has been changed.

    Arguments:
        entry: as a record has them.
        value: the new value.

    Returns:
        a copy with the new value as the outcome.
    """
    *before, last = entry["layers"]
    return {**entry, "value": value, "layers": [*before, {**last, "value": value}]}


def move(tree: Tree, old: Path, new: Path) -> None:
    """Move a value, or report it where the section that it would go to is switched off.

    Arguments:
        tree: the data.
        old, new: the places.
    """
    if not left_out(tree, old, new):
        tree.move(old, new)


def left_out(tree: Tree, old: Path, new: Path) -> bool:
    """Take a value away where the section that it would go to is switched off, with a note.

    Arguments:
        tree: the data.
        old, new: the places.

    Returns:
        whether it was taken away.
    """
    if not tree.is_off(new):
        return False
    tree.notes.append(
        f"{dotted(old)} = {tree.plain(old)!r} is left out: it belongs to {dotted(new[:-1])} now, "
        f"which is null"
    )
    tree.remove(old)
    return True
