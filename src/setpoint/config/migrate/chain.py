"""The migrations of a root, one for each schema after the first, and how they are applied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, TypeVar, cast

from ..base import Config
from ..errors import SetpointError
from ..recorded import HEADER
from .operation import Operation
from .tree import Entry, Tree, guessed

F = TypeVar("F", bound=Callable[[], Iterable[Operation]])

_declared: dict[str, dict[int, tuple[Operation, ...]]] = {}


def migration(*, to: int) -> Callable[[F], F]:
    """Declare what changed from one schema to the next, in the module that the root names.

    Arguments:
        to: the schema that the changes lead to, from the one before it.

    Returns:
        the decorator of a function that returns the changes, in the order in which they apply.
    """

    def declare(function: F) -> F:
        table = _declared.setdefault(function.__module__, {})
        if to < 2 or to in table:
            reason = "the first schema has none" if to < 2 else "there are two"
            raise TypeError(f"{function.__module__}: the migration to schema {to}: {reason}")
        operations = tuple(function())
        for operation in operations:
            operation.schema = to
        table[to] = operations
        return function

    return declare


def chain(root: type[Config], start: int = 1) -> list[Operation]:
    """Every change of a root from a schema on, in order.

    Arguments:
        root: the class of the configuration.
        start: the schema to start from.

    Returns:
        the changes.

    Raises:
        SetpointError: if the root's migrations lack a schema, or know one that is still to come.
    """
    info = root.__setpoint__
    table: dict[int, tuple[Operation, ...]] = {}
    if info.migrations is not None:
        try:
            import_module(info.migrations)
        except ImportError as error:
            raise SetpointError(
                f"the migrations of {root.__name__} cannot be imported: {error}"
            ) from error
        table = _declared.get(info.migrations, {})
    wanted = set(range(2, info.schema + 1))
    if wanted != table.keys():
        lacking = ", ".join(map(str, sorted(wanted - table.keys())))
        ahead = ", ".join(map(str, sorted(table.keys() - wanted)))
        where = info.migrations or "no module of migrations is named"
        reason = f"there is none to {lacking}" if lacking else f"there is one to {ahead} already"
        raise SetpointError(
            f"{root.__name__} is of schema {info.schema}, but its migrations are not a whole "
            f"chain: {reason} ({where})"
        )
    return [each for to in range(start + 1, info.schema + 1) for each in table[to]]


def schema_of(root: type[Config], data: Mapping[str, Any], name: str) -> int | None:
    """The schema that a record or a file says it is of.

    Arguments:
        root: the class of the configuration.
        data: the whole data, with its header if it has one.
        name: the file as it is shown to people.

    Returns:
        the schema; None for data without the header.

    Raises:
        SetpointError: if the header is no header, or of a schema that this software cannot know.
    """
    if HEADER not in data:
        return None
    header: Any = guessed(data[HEADER])
    found: Any = cast(dict[str, Any], header).get("schema") if isinstance(header, dict) else None
    if type(found) is not int or found < 1:
        raise SetpointError(
            f"{name}: {HEADER} must say which schema this is, as in {HEADER} = {{schema = "
            f"{root.__setpoint__.schema}}}"
        )
    if found > root.__setpoint__.schema:
        raise SetpointError(
            f"{name}: written by schema {found}, this Setpoint reads up to "
            f"{root.__setpoint__.schema}; update Setpoint to load it"
        )
    return found


def migrate(
    root: type[Config],
    data: Mapping[str, Any],
    start: int,
    origins: Mapping[str, Entry] | None = None,
    name: str = "",
) -> Tree:
    """Take plain data to today's schema.

    Arguments:
        root: the class of the configuration.
        data: the data without its header.
        start: the schema that it is of.
        origins: of a record, as `origins.json` has them; None for a file, which may leave out
            values.
        name: the file or folder that the data is of, for errors.

    Returns:
        the data with the origins, the notes, and the steps that led there.

    Raises:
        SetpointError: if a value cannot be taken over.
    """
    tree = Tree(data, origins, complete=origins is not None)
    for operation in chain(root, start):
        try:
            operation.apply(tree)
        except SetpointError as error:
            where = f"{name} (schema {start}): " if name else ""
            raise SetpointError(f"{where}{error}") from error
    return tree
