"""From a draft to a resolved config: references, derived values, checks, and the freeze."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from .base import Config, state_of, value_or_missing, withhold
from .checker import Checker
from .copying import draft_of, frozen_value
from .determine import Determination
from .field import MISSING
from .origin import Path
from .problem import ConfigError, Problem
from .walk import dotted, sections

C = TypeVar("C", bound=Config)


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
    root = draft_of(draft)
    placed = [(path, section) for path, section in sections(root)]
    if failed:
        placed = _withhold(placed, failed)
    determination = Determination(root, placed)
    determination.run()
    found = [*problems, *determination.problems]
    doubtful = {*failed, *determination.failed}
    checker = Checker(placed, doubtful)
    checker.required()
    checker.items()
    checker.run()
    found.extend(checker.problems)
    silenced = silenced_codes(root)
    if silenced:
        from .verify import unknown_codes

        found.extend(unknown_codes(root, silenced))
    if found:
        raise ConfigError(found)
    for _, section in placed:
        _freeze(section)
    heard = [caution for caution in checker.cautions if caution.code not in silenced]
    state_of(root).cautions = tuple(heard)
    return root


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
    return () if codes is MISSING else tuple(codes)


def _withhold(
    placed: list[tuple[Path, Config]], failed: Sequence[str]
) -> list[tuple[Path, Config]]:
    """Make what failed unreadable; the sections that still count are returned."""
    dropped: set[Path] = set()
    by_path = {dotted(path): section for path, section in placed}
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


def _freeze(section: Config) -> None:
    for name in type(section).__setpoint__.fields:
        value = getattr(section, name)
        # Filled slots also make later reads plain attribute reads.
        object.__setattr__(section, name, frozen_value(value))
    state_of(section).frozen = True
