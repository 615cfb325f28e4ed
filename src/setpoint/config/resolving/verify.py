"""What goes beyond the values: checks that need files, torch or the like, and cautions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

from ..draft.argument_errors import need_resolved
from ..draft.walk import sections
from ..schema.declare import NEEDS, Need
from ..schema.tree import classes_below
from ..values.node import Node, state_of, value_or_missing
from ..words.errors import Caution, Problem, SetpointError
from ..words.names import did_you_mean, dotted
from .checks import Checker, describe_value, mark_of


class Skipped:
    """A check that was not run.

    Arguments:
        path: the section it belongs to, dotted; empty for the root.
    """

    __slots__ = ("needs", "path", "what")

    def __init__(self, path: str, what: str, needs: tuple[Need, ...]) -> None:
        self.path = path
        self.what = what
        self.needs = needs

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path else ""
        return f"{place}{self.what} (needs {' and '.join(self.needs)})"

    def __repr__(self) -> str:
        return f"Skipped({str(self)!r})"


class Verification:
    """What the checks found that need more than the values.

    Arguments:
        cautions: what is legal but suspicious and not silenced, that of `resolve` included.
    """

    __slots__ = ("cautions", "problems", "skipped")

    def __init__(
        self, problems: list[Problem], cautions: list[Caution], skipped: list[Skipped]
    ) -> None:
        self.problems = problems
        self.cautions = cautions
        self.skipped = skipped

    def __str__(self) -> str:
        parts = [*map(str, self.problems)]
        parts += [f"  caution: {caution.render().lstrip()}" for caution in self.cautions]
        parts += [f"  skipped: {check}" for check in self.skipped]
        return "\n\n".join(parts) or "nothing was found"

    def __repr__(self) -> str:
        return f"Verification({self.problems!r}, {self.cautions!r}, {self.skipped!r})"


def verify(
    config: Node, able: Collection[Need] = NEEDS, *, unread: Collection[str] = ()
) -> Verification:
    """Run the checks that need something, as far as it is at hand.

    Arguments:
        able: what is at hand, for instance `{"files"}`.
        unread: top sections whose files nothing will read, so that they need not be there.

    Raises:
        SetpointError: for a draft, and for a need that there is not.
    """
    need_resolved(config, "verify")
    words: Collection[str] = (able,) if isinstance(able, str) else able
    for word in words:
        if word not in NEEDS:
            meant = did_you_mean(str(word), NEEDS, " ")
            known = ", ".join(NEEDS)
            raise SetpointError(f"verify: what is at hand is among {known}; got {word!r}.{meant}")
    able = cast(Collection[Need], words)

    placed = list(sections(config))
    checker = Checker(placed)
    if able:
        checker.run(able, unread)
    silenced = silenced_codes(config)
    heard = [caution for caution in checker.cautions if caution.code not in silenced]
    skipped: list[Skipped] = []
    for path, section in placed:
        for name in type(section).__setpoint__.checks:
            mark = mark_of(section, name)
            missing: tuple[Need, ...] = tuple(need for need in mark.needs if need not in able)
            if "files" in mark.needs and path and path[0] in unread:
                continue
            if missing and (mark.when is None or mark.when(section)):
                what = (getattr(section, name).__doc__ or "").strip().partition("\n")[0]
                what = what[:1].lower() + what[1:].rstrip(".")
                skipped.append(Skipped(dotted(path), what, missing))
    return Verification(checker.problems, [*cautions_of(config), *heard], skipped)


def needs_of(config: Node) -> list[Need]:
    """What the checks of a configuration need, in the order of `NEEDS`."""
    kinds = {type(section) for _, section in sections(config)}
    found = {n for cls in kinds for c in cls.__setpoint__.checks for n in mark_of(cls, c).needs}
    return [need for need in NEEDS if need in found]


def cautions_of(config: Node) -> tuple[Caution, ...]:
    """What `resolve` found legal but suspicious, without what is silenced.

    Raises:
        SetpointError: for a draft.
    """
    need_resolved(config, "cautions_of")
    return state_of(config).cautions


def known_cautions(root: type[Node]) -> dict[str, str]:
    """All cautions that the checks of a tree may yield.

    Returns:
        what each means, by code, sorted.
    """
    marks = (mark_of(cls, name) for cls in classes_below(root) for name in cls.__setpoint__.checks)
    return dict(sorted(item for mark in marks for item in mark.cautions.items()))


def unknown_codes(root: Node, silenced: Sequence[str]) -> Iterator[Problem]:
    """Find codes in `silence` that no caution has."""
    known = list(known_cautions(type(root)))
    for index, code in enumerate(silenced):
        if code not in known:
            path = f"silence.{index}"
            value, origin = describe_value(root, (), path)
            hint = did_you_mean(code, known)
            message = "is not the code of a caution"
            yield Problem(path, message, valid=known, hint=hint, value=value, origin=origin)


def silenced_codes(root: Node) -> tuple[str, ...]:
    """The codes of the cautions that nobody wants to hear.

    Arguments:
        root: the root of a configuration; its field `silence`, if it has one, lists them.
    """
    if "silence" not in type(root).__setpoint__.fields:
        return ()
    codes: Any = value_or_missing(root, "silence")
    # A section that is resolved alone may mean something else by the word.
    if not isinstance(codes, tuple | list):
        return ()
    return tuple(cast(Sequence[str], codes))
