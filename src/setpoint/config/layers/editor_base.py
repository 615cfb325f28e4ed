"""What a layer is putting onto a draft, and what was found to be wrong with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from ..draft.unknown_keys import name_here, place_of
from ..migrations.chain import retired_hint
from ..schema.field import FieldInfo
from ..schema.tree import names_secret
from ..types.base import FieldType
from ..values.node import Node, value_or_missing
from ..values.origin import FILE, Origin
from ..values.scalar import Struct
from ..words.errors import MAX_PROBLEMS, ConfigError, Invalid, Problem
from ..words.names import Path, dotted
from ..words.plain_data import MISSING, PlainScalar, item_at
from ..words.text import parse_flow, problem_of

EXTENDS = "extends"


class Unknown(Struct):
    """A key that no field answers to.

    Arguments:
        value: as the layer holds it; MISSING for a part of a value.
    """

    path: Path
    value: object
    origin: Origin
    problem: Problem


class EditorBase(ABC):
    """The problems that a layer meets, and the edits that lists, fragments and presets ask for.

    `Editor` makes the edits; what is written apart from it knows this class only.

    Arguments:
        replace_mappings: as records do, which hold complete values; a mapping of another layer
            adds to the one that is there.
    """

    def __init__(self, root: Node, replace_mappings: bool = False) -> None:
        self.root = root
        self.replace_mappings = replace_mappings
        self.problems: list[Problem] = []
        self.fragment_count = 0  # how many files were read for sections
        # What has changed since a fragment of an older schema was written.
        self.notes: list[str] = []
        # The keys that no field answers to, and the configuration as far as it can be determined
        # without them; both are for `other_names.answer`.
        self.unknown: list[Unknown] = []
        self.wrong_kind: list[Unknown] = []  # values of a kind that their place cannot take
        self.determined: Node | None = None
        # The fragments that are being read, so that none can extend itself; and those that have
        # been put onto a section, each once.
        self.reading: list[str] = []
        self.applied: dict[Path, list[str]] = {}

    def report(
        self, path: Path, value: object, origin: Origin, error: Invalid, meant: str = ""
    ) -> None:
        """Record what is wrong with a value.

        Arguments:
            meant: what is suggested for an unknown key; looked for in the whole tree if empty.

        Raises:
            ConfigError: with what was found so far, when it is more than anybody reads.
        """
        for part in error.parts:
            full, foreign = (*path, *part.at), False
            problem = problem_of(part, path, value, origin.describe(full))
            if part.message.startswith("unknown key"):
                key, root = str(full[-1]), type(self.root)
                gone = retired_hint(
                    root, dotted(full), origin.label if origin.layer == FILE else None
                )
                foreign = not gone and not meant
                meant = gone or name_here(root, key) or meant
                place = meant or place_of(root, key, dotted(full), loose=not part.hint)
                problem.hint = place or part.hint
                if names_secret(root, key):
                    problem.value = "***"
            self.problems.append(problem)
            if problem.value == "***" or part.secret:
                continue
            if foreign:
                self.unknown.append(Unknown(full, _inside(value, part.at), origin, problem))
            elif part.message.startswith("is not") or "names none of its items" in part.message:
                self.wrong_kind.append(Unknown(full, _typed(value, part.at), origin, problem))
        if len(self.problems) >= MAX_PROBLEMS:
            raise ConfigError(self.problems)

    def has_problem(self, path: Path) -> bool:
        """Whether a value that was given for a field could not be taken."""
        return any(problem.path.replace("-", "_") == dotted(path) for problem in self.problems)

    def current(self, section: Node, info: FieldInfo) -> Any:
        """What stands in a field before the edit.

        Returns:
            the value; None for a required or derived field that nothing has set.
        """
        value = value_or_missing(section, info.name)
        return None if value is MISSING else value

    @abstractmethod
    def trial(self) -> EditorBase:
        """An editor for a copy of the draft, on which to try what would be refused."""

    @abstractmethod
    def set(self, path: Sequence[str], value: object, origin: Origin) -> None:
        """Put one value at a dotted path, as a flag does."""

    @abstractmethod
    def descend(self, node: object, rest: Path, done: Path, value: object, origin: Origin) -> None:
        """Follow a path to where a value belongs, and set it there."""

    @abstractmethod
    def replaced(
        self, held: Node, kind: FieldType, value: object, origin: Origin, path: Path
    ) -> Node:
        """What an item that is a section becomes: changed in place, or of another variant."""

    @abstractmethod
    def merge_section(
        self, section: Node, values: Mapping[str, object], origin: Origin, path: Path
    ) -> None:
        """Put a mapping onto one section."""

    @abstractmethod
    def put_fragments(
        self,
        values: Mapping[str, object],
        origin: Origin,
        path: Path,
        put: Callable[[dict[str, object], Origin], None],
        put_preset: Callable[[str], None] | None = None,
    ) -> None:
        """Put what the files hold that a section extends onto it."""

    @abstractmethod
    def switch(
        self, before: Sequence[Node], cls: type[Node], origin: Origin, path: Path, held: object
    ) -> Node:
        """A section of a variant in a place, with all that was given for it."""


def _inside(value: object, path: Path) -> object:
    """A part of a value as a layer gives it; MISSING where the path leads nowhere."""
    return reduce(item_at, path, value)


def _typed(value: object, path: Path) -> object:
    """A part of a value, also of a text that stands for a list or for a section with a type."""
    if isinstance(value, str):
        if isinstance(value, PlainScalar) and value.startswith("["):
            try:
                return _inside(parse_flow(value), path)
            except Invalid:
                return MISSING
        return value
    return _inside(value, path)


def fields_in(values: Mapping[str, object]) -> Mapping[str, object]:
    """A section as a layer gives it, without the words of the engine."""
    if "type" not in values and EXTENDS not in values:
        return values
    return {key: value for key, value in values.items() if key not in ("type", EXTENDS)}
