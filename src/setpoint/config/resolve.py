"""From a draft to a resolved config: references, derived values, checks, and the freeze."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeVar, cast

from .base import Config, is_frozen, state_of, value_or_missing, withhold
from .checker import Checker
from .copying import frozen_value, working_copy
from .determine import Determination
from .effect import Drop, find_dead, undo
from .errors import SetpointError
from .field import MISSING
from .files.limits import TOO_DEEP
from .origin import Origin, Path
from .problem import ConfigError, Problem
from .sharing import bind, check_size
from .walk import PLAIN, dotted, sections

C = TypeVar("C", bound=Config)
Placed = list[tuple[Path, Config]]


def resolve(
    draft: C,
    *,
    problems: Sequence[Problem] = (),
    failed: Sequence[str] = (),
) -> C:
    """Determine every value, check everything, and freeze a copy.

    Arguments:
        draft: the configuration with all layers merged; it is not changed.
        problems: what is already known to be wrong, reported together with the rest.
        failed: the paths of values that could not be set; nothing is concluded from them.

    Returns:
        a frozen, hashable config with a value for every field.

    Raises:
        ConfigError: with every problem at once.
    """
    if not isinstance(draft, Config):  # pyright: ignore[reportUnnecessaryIsInstance]
        from .misuse import need_config

        need_config(draft, "resolve")
    drops: list[Drop] = []
    earlier: dict[float, tuple[Placed, Determination]] = {}

    def before(giver: Origin) -> tuple[Placed, Determination]:
        if giver.order not in earlier:
            _, placed, _, determination = _determined(draft, failed, (), giver)
            earlier[giver.order] = placed, determination
        return earlier[giver.order]

    while True:
        root, placed, again, determination = _determined(draft, failed, drops)
        overtaken, found = find_dead(determination, placed, before)
        if not overtaken:
            break
        # All follows anew without them; each round drops a value more, so that it comes to an end.
        drops.extend(overtaken)
    found = [*problems, *determination.problems, *found]
    checker = Checker(placed, {*failed, *determination.failed})
    checker.required()
    checker.items()
    fresh = [section for _, section in placed if not is_frozen(section)]
    for section in fresh:
        _freeze(section)  # so that no check can change what it looks at
    checker.run()
    found.extend(checker.problems)
    silenced = silenced_codes(root)
    if silenced:
        from .verify import unknown_codes

        found.extend(unknown_codes(root, silenced))
    if found:
        raise ConfigError(found)
    for section in fresh:
        state_of(section).whole = True
    tied = _tied(placed, determination.tied)
    for _, section in placed:
        state = state_of(section)
        state.ties = bool(again)
        if again or id(section) in tied:  # a section in two places ties these together
            state.whole = False
    heard = [caution for caution in checker.cautions if caution.code not in silenced]
    state_of(root).cautions = tuple(heard)
    return root


def _determined(
    draft: C, failed: Sequence[str], drops: Sequence[Drop], last: Origin | None = None
) -> tuple[C, Placed, Placed, Determination]:
    """A copy in which every value is computed; its sections, and their further places.

    `last` is the last layer that counts, if not all of them do.
    """
    try:
        root = working_copy(draft, reuse=not failed and not drops and last is None)
    except RecursionError:
        raise SetpointError(f"the sections of {type(draft).__name__} are {TOO_DEEP}") from None
    if last is not None:
        undo(root, last)
    again: Placed = []
    placed = list(sections(root, (), again))
    bound = bind(root, placed)
    if bound:
        again = []
        placed = list(sections(root, (), again))
    if again:
        check_size(root)
    if drops:
        by_path = dict(placed)
        for drop in drops:
            if drop.path in by_path:
                drop.apply(by_path[drop.path])
        again = []
        placed = list(sections(root, (), again))
    if failed:
        placed = _withhold(placed, again, failed)
    determination = Determination(root, placed)
    determination.run()
    if determination.shares:
        again = []
        placed = list(sections(root, (), again))
    return root, placed, again, determination


def determined(draft: C, failed: Collection[str]) -> C:
    """A copy with every value computed that can be; nothing is checked or frozen.

    Arguments:
        draft: the configuration with all layers merged.
        failed: the paths of values that could not be set.

    Returns:
        the copy; what cannot be computed has no value in it.
    """
    return _determined(draft, sorted(failed), [])[0]


def silenced_codes(root: Config) -> tuple[str, ...]:
    """The codes of the cautions that nobody wants to hear.

    Arguments:
        root: the root of a configuration; its field `silence`, if it has one, lists them.

    Returns:
        the codes.
    """
    if "silence" not in type(root).__setpoint__.fields:
        return ()
    codes: Any = value_or_missing(root, "silence")
    # A section that is resolved alone may mean something else by the word.
    if not isinstance(codes, tuple | list):
        return ()
    return tuple(cast(Sequence[str], codes))


def _withhold(
    placed: list[tuple[Path, Config]], again: list[tuple[Path, Config]], failed: Sequence[str]
) -> list[tuple[Path, Config]]:
    """Make what failed unreadable; the sections that still count are returned."""
    dropped: set[Path] = set()
    by_path = {dotted(path): section for path, section in placed}
    for place, shared in again:
        by_path.update((dotted(path), section) for path, section in sections(shared, place))
    for whole in failed:
        path = whole
        # A part of a value that is wrong, such as an item of a list, makes the whole field so.
        while path:
            parent, _, name = path.rpartition(".")
            section = by_path.get(parent)
            if section is not None and name in type(section).__setpoint__.fields:
                # A section stays, with all that is right in it, unless it is of an unknown variant.
                if not isinstance(value_or_missing(section, name), Config):
                    withhold(section, name)
                    if whole.endswith(".type"):  # an item of an unknown variant
                        dropped.add(tuple(whole.split(".")[:-1]))
                elif whole == f"{path}.type":
                    withhold(section, name)
                    dropped.add(tuple(path.split(".")))
                break
            path = parent
    return [
        (path, section)
        for path, section in placed
        if not any(tuple(map(str, path[: len(gone)])) == gone for gone in dropped)
    ]


def _tied(placed: list[tuple[Path, Config]], tied: set[int]) -> set[int]:
    """The sections in which something follows from outside, and those that hold one of them."""
    if not tied:
        return tied
    above = {path[:n] for path, section in placed if id(section) in tied for n in range(len(path))}
    return tied | {id(section) for path, section in placed if path in above}


def _freeze(section: Config) -> None:
    state = state_of(section)
    origins, put = state.origins, object.__setattr__
    for name, info in type(section).__setpoint__.fields.items():
        if name in state.withheld:
            continue  # known to be wrong, and so unreadable
        # Filled slots also make later reads plain attribute reads.
        if name not in origins and info.constant:
            put(section, name, info.default)
            continue
        value = value_or_missing(section, name)
        if type(value) not in PLAIN and value is not MISSING:
            put(section, name, frozen_value(value))
    state.frozen = True
    # What the copy was made of is of no more use, and would be kept alive.
    state.source = state.copies = None
