"""Modifiers typed with `--with`: Python functions over what preset, files and environment say."""

from __future__ import annotations

from collections.abc import Sequence

from ..base import Config, state_of
from ..copying import draft_of
from ..edit import Editor
from ..origin import ENVIRONMENT, FILE, Origin, Path, Recorded
from ..problem import ConfigError
from ..registry import call_modifier
from ..walk import Leaf, dotted, leaves


def apply_modifiers(editor: Editor, texts: Sequence[str]) -> Editor:
    """Apply modifiers in order.

    A modifier may put a whole section in the place of another one. The values of files and of the
    environment that go with the old one are then listed as dropped, since no chain holds them.

    Arguments:
        editor: the draft with the layers below.
        texts: modifiers as typed.

    Returns:
        an editor for the draft that they returned, with the problems found so far.
    """
    draft = editor.root
    for text in texts:
        given = {leaf.path: leaf for leaf in leaves(draft) if _is_written(leaf)}
        try:
            # What the modifier put in may be its own, and later layers change the draft.
            draft = draft_of(call_modifier(text, draft))
        except ConfigError as error:
            editor.problems.extend(error.problems)
            continue
        if given:
            _remember_lost(draft, given, text)
    return editor.on(draft)


def _is_written(leaf: Leaf) -> bool:
    return leaf.origin.layer in (FILE, ENVIRONMENT) and not any(
        isinstance(part, int) for part in leaf.path
    )


def _remember_lost(draft: Config, given: dict[Path, Leaf], text: str) -> None:
    for leaf in leaves(draft):
        before = given.get(leaf.path)
        if before is not None and (
            leaf.value == before.value or any(origin is before.origin for origin, _ in leaf.chain)
        ):
            del given[leaf.path]
    for path, leaf in given.items():
        origin: Origin = Recorded(leaf.origin.layer, leaf.describe_origin())
        reason = f"--with {text} replaces what holds it"
        state_of(draft).dropped.append((dotted(path), leaf.value, origin, reason))
