"""The table `[sweep]` of a file, read like other configuration; its points and its search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar, cast

from setpoint.config import (
    RUNTIME,
    Config,
    ConfigError,
    Editor,
    FileDocument,
    Origin,
    Problem,
    SetpointError,
    field,
    resolve,
    rule,
)
from setpoint.config.values.node import Node
from setpoint.config.values.origin import FILE
from setpoint.config.words.errors import UNKNOWN_KEY
from setpoint.config.words.names import Path
from setpoint.sweep.setting import Raw, Setting, axis_origin, path_of
from setpoint.sweep.space import (
    Axis,
    Chained,
    Distribution,
    Drawn,
    Listed,
    Product,
    RandomPoints,
    Space,
    Zip,
    is_call,
    misspelt_call,
)

FieldPath = tuple[str, ...]
Place = Callable[[Path], str]
"""Function from a path of the table to its line in the file."""
Table = dict[str, tuple[Raw, ...]]
R = TypeVar("R", bound=Node)
TABLE = "sweep"
"""The key of a configuration file that makes it the file of a sweep."""
TO_DRAW = "To draw values, give it to `axes` of [sweep.random], with a count."
"""Hint for a distribution in place of values."""


class RandomTable(Config):
    """Random points, the same for the same seed on every machine."""

    count: int = field(ge=1)
    """Number of points."""

    seed: int = field(default=0, ge=0, lt=2**63)
    """Seed of the points, not of the runs."""

    axes: dict[str, Drawn] = field(factory=dict[str, Drawn])
    """A distribution for each field: `"log_uniform(1e-5, 1e-2)"`, or a table with its type."""

    @rule
    def _check_axes(self) -> Iterator[Problem]:
        if not self.axes:
            yield Problem("axes", "has no axes, so all points would be the same")


class Sweep(Config):
    """Points of a sweep; the parts are combined as a product."""

    grid: Table = field(factory=dict[str, tuple[Raw, ...]])
    """Grid: values of each field; every combination is a point."""

    zip: Table = field(factory=dict[str, tuple[Raw, ...]])
    """Zip: values of each field, equally many; the first values make a point, then the second
    ones."""

    points: tuple[dict[str, Raw], ...] = ()
    """Points, each a table of fields and values."""

    random: RandomTable | None = None
    """Random search: points drawn from distributions."""

    product: tuple[Sweep, ...] = ()
    """Product of sweeps: every combination is a point."""

    chain: tuple[Sweep, ...] = ()
    """Chain of sweeps: the points of all, one sweep after the other."""

    @rule
    def _check_tables(self) -> Iterator[Problem]:
        for name, table in (("grid", self.grid), ("zip", self.zip)):
            for key, values in table.items():
                if not values:
                    yield Problem(f"{name}.{key}", "has no values, so there are no points")
                if key == "extends":
                    hint = "The axis of presets and files is called source."
                    yield Problem(
                        f"{name}.{key}", "is not a field, so it cannot be varied", hint=hint
                    )
                for index, raw in enumerate(values):
                    if isinstance(raw.value, str) and is_call(raw.value):
                        path = f"{name}.{key}.{index}"
                        yield Problem(path, "is a distribution, not a value", hint=TO_DRAW)
        for index, row in enumerate(self.points):
            if not row:
                yield Problem(f"points.{index}", "sets nothing")

    def parts(self) -> tuple[object, ...]:
        """The parts of the table, including empty ones."""
        return self.grid, self.zip, self.points, self.random, self.product, self.chain

    @rule
    def _check_empty(self) -> Iterator[Problem]:
        if not any(self.parts()):
            yield Problem("", "varies nothing", hint="Give it a grid.")


def space_of(sweep: Sweep, place: Place, path: Path) -> Space:
    """The points described by a table; for an empty one, a single point that sets nothing.

    Raises:
        SetpointError: two parts set the same field, or the lists of a zip differ in length.
    """
    parts: list[Space] = _axes(sweep.grid, place, (*path, "grid"))
    if sweep.zip:
        try:
            parts.append(Zip(_axes(sweep.zip, place, (*path, "zip"))))
        except SetpointError as error:
            raise SetpointError(f"{place((*path, 'zip'))}: {error}") from None
    if sweep.points:
        rows = [
            tuple(
                Setting(path_of(key), raw.value, _origin(key, place, (*path, "points", index, key)))
                for key, raw in row.items()
            )
            for index, row in enumerate(sweep.points)
        ]
        parts.append(Listed(rows))
    if sweep.random is not None:
        drawn = sweep.random
        where = (*path, "random", "axes")
        axes = {
            path_of(key): (value.distribution, _origin(key, place, (*where, key)))
            for key, value in drawn.axes.items()
        }
        parts.append(RandomPoints(axes, drawn.count, drawn.seed))
    for index, inner in enumerate(sweep.product):
        parts.append(space_of(inner, place, (*path, "product", index)))
    if sweep.chain:
        chained = [
            space_of(inner, place, (*path, "chain", index))
            for index, inner in enumerate(sweep.chain)
        ]
        parts.append(Chained(chained))
    try:
        return parts[0] if len(parts) == 1 else Product(parts)
    except SetpointError as error:
        raise SetpointError(f"{place(path)}: {error}") from None


def _axes(table: Mapping[str, tuple[Raw, ...]], place: Place, path: Path) -> list[Space]:
    return [
        Axis(path_of(key), [raw.value for raw in values], _origin(key, place, (*path, key)))
        for key, values in table.items()
    ]


def _origin(key: str, place: Place, path: Path) -> Origin:
    return axis_origin(key, lambda _: place(path))


def read_space(
    document: FileDocument,
) -> tuple[Search | None, dict[FieldPath, Distribution], dict[FieldPath, Origin], Space]:
    """The search of a file's table with its axes, if any; the origin of each axis; the points."""
    table, place = read_table(SweepFile, document).sweep, place_in(document)
    if (search := table.search) is None:
        space = space_of(table, place, (TABLE,))
        return None, {}, space.paths, space
    axes = {path_of(key): drawn.distribution for key, drawn in search.axes.items()}
    origins = {
        path: _origin(key, place, (TABLE, "search", "axes", key))
        for path, key in zip(axes, search.axes, strict=True)
    }
    return search, axes, origins, Product([])


def flattened(table: Mapping[str, object]) -> dict[str, Any]:
    """Flatten a table `[sweep]`, so that each field has its dotted path as key.

    TOML reads `optimizer.lr = [1e-4]` as a nested table, but not `"optimizer.lr" = [1e-4]`.
    Entries without the form of a sweep are unchanged.
    """
    result: dict[str, Any] = {}
    for key, value in table.items():
        if key in ("grid", "zip"):
            value = _dotted(value)
        elif key == "points" and isinstance(value, list):
            rows = cast(list[object], value)
            value = [_dotted(row) for row in rows]
        elif key in ("random", "search") and isinstance(value, dict):
            block = cast(dict[str, object], value)
            axes = _dotted(block.get("axes"), leaf="type")
            value = {**block, "axes": axes} if "axes" in block else block
        elif key in ("product", "chain") and isinstance(value, list):
            blocks = cast(list[object], value)
            value = [
                flattened(cast(dict[str, object], block)) if isinstance(block, dict) else block
                for block in blocks
            ]
        result[key] = value
    return result


def mentions(table: object, axis: str) -> bool:
    """True if a flattened table, or a table inside it, contains an axis."""
    if isinstance(table, list):
        return any(mentions(item, axis) for item in cast(list[object], table))
    if not isinstance(table, dict):
        return False
    entries = cast(dict[str, object], table)
    return axis in entries or any(mentions(item, axis) for item in entries.values())


def _dotted(value: object, leaf: str | None = None) -> object:
    """Flatten nested tables to dotted keys, except those with the key `leaf`."""
    if not isinstance(value, dict):
        return value
    flat: dict[str, object] = {}
    for key, item in cast(dict[str, object], value).items():
        if not item or not isinstance(item, dict) or leaf in item:
            flat[key] = item
            continue
        below = cast(dict[str, object], _dotted(cast(object, item), leaf))
        flat.update({f"{key}.{name}": inner for name, inner in below.items()})
    return flat


def read_table(root: type[R], document: FileDocument) -> R:
    """Read the table of a file as the field `sweep` of a class.

    Raises:
        ConfigError: lists all problems of the table.
    """
    table = document.data[TABLE]
    data = flattened(cast(Mapping[str, object], table)) if isinstance(table, dict) else table
    draft = root()
    editor = Editor(draft)
    editor.merge({TABLE: data}, Origin(FILE, document.name, place_in(document)))
    for problem in editor.problems:
        names = problem.path.split(".")
        is_own = names[1] in SweepTable.__setpoint__.fields if len(names) > 1 else True
        if problem.kind == UNKNOWN_KEY and not is_own and not problem.hint:
            problem.hint = "The fields to vary belong in [sweep.grid]."
        text = (problem.value or "").strip("'\"")
        if (
            len(names) > 2
            and names[1] in ("grid", "zip")
            and (is_call(text) or misspelt_call(text))
        ):
            problem.hint = TO_DRAW
    if editor.problems:
        # A part that could not be read need not be reported as missing, too.
        raise ConfigError(editor.problems)
    return resolve(draft)


def place_in(document: FileDocument) -> Place:
    """Function from a path, whose parts may be dotted, to `file:line:column`."""
    return lambda path: document.where(_as_written(document.data, path))


def _as_written(data: Any, path: Path) -> Path:
    """The keys that lead to a path in the file, where `a.b` may be one key or two."""
    parts: list[str | int] = []
    for part in path:
        parts.extend(part.split(".") if isinstance(part, str) else [part])
    written: list[str | int] = []
    node, index = data, 0
    while index < len(parts):
        # The longest existing key; a missing key has no location of its own.
        for end in range(len(parts), index, -1):
            key: str | int = (
                parts[index] if end == index + 1 else ".".join(map(str, parts[index:end]))
            )
            if isinstance(node, dict) and key in node:
                node = cast(dict[object, Any], node)[key]
                break
            if isinstance(node, list) and isinstance(key, int):
                items = cast(list[Any], node)
                node = items[key] if key < len(items) else None
                break
        else:
            break
        written.append(key)
        index = end
    return tuple(written)


OBJECTIVE = "evaluation.held_out_loss"
"""The default objective of a search."""


class Search(Config, role=RUNTIME):
    """Sequential search: each point is proposed from the results of earlier ones."""

    trials: int = field(ge=1)
    """Number of trials in total, over all sessions."""

    seed: int = field(default=0, ge=0, lt=2**32)
    """Seed of the sampler, not of the runs."""

    objective: str = OBJECTIVE
    """Objective, a metric as `setpoint compare` names it: KIND.COLUMN, optionally with .min, .max
    or .mean."""

    direction: Literal["minimize", "maximize"] = "minimize"
    """min or max of the objective."""

    sampler: Literal["tpe", "random"] = "tpe"
    """Sampler: tree-structured Parzen estimator (TPE), or random search."""

    axes: dict[str, Drawn] = field(factory=dict[str, Drawn])
    """Distribution of each field: "log_uniform(1e-5, 1e-2)", or a table with its type."""

    @rule
    def _check_axes(self) -> Iterator[Problem]:
        if not self.axes:
            yield Problem("axes", "has no axes, so all trials would be the same")


class SweepTable(Sweep, role=RUNTIME):
    """The table `[sweep]` of a file."""

    search: Search | None = None
    """Sequential search; excludes all other keys."""

    def parts(self) -> tuple[object, ...]:
        return *super().parts(), self.search

    @rule
    def _check_search(self) -> Iterator[Problem]:
        if self.search is not None and any(super().parts()):
            yield Problem(
                "search",
                "cannot be combined with other tables: its trials are not known in advance",
            )


class SweepFile(Config, role=RUNTIME):
    """Configuration file with a sweep."""

    sweep: SweepTable = field(factory=SweepTable)
    """Fields to vary."""
