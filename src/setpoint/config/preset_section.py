"""One section of a preset: `model = "@llama3-8b"` in a file, `--model @llama3-8b` typed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import Config, state_of, value_or_missing
from .copying import draft_of
from .errors import Invalid, SetpointError, UserCodeError
from .field import MISSING
from .origin import COMMAND_LINE, ENVIRONMENT, FILE, SWEEP, Origin, Path, Recorded
from .problem import ConfigError
from .registry import call_preset, preset_named, presets
from .suggest import FORGOTTEN, did_you_mean
from .walk import dotted, leaves

if TYPE_CHECKING:
    from .edit import Editor

SIGN = "@"
WRITTEN = (FILE, ENVIRONMENT, COMMAND_LINE, SWEEP)


def section_of_preset(editor: Editor, text: str, path: Path) -> Config | None:
    """The section that a preset of the same root has in a place.

    Arguments:
        editor: for the root.
        text: `@` and the preset, with parameters in parentheses if it gets any.
        path: the place.

    Returns:
        a draft of the section, whose values keep the preset's origins; None if it is null there.

    Raises:
        Invalid: if there is no such preset, or it has no such section.
        ConfigError, UserCodeError: if the preset itself is at fault.
    """
    name = text.removeprefix(SIGN)
    root = type(editor.root)
    if preset_named(name) is None:
        stem = name.partition("(")[0]
        hint = did_you_mean(stem, presets) or f"{FORGOTTEN}."
        raise Invalid("names no preset", tuple(sorted(presets)), hint=hint)
    try:
        config: Any = call_preset(name)
    except (ConfigError, UserCodeError):
        raise
    except SetpointError as error:
        raise Invalid(str(error)) from None
    if not isinstance(config, root):
        from .compose import not_of

        raise Invalid(f"the preset {name!r} gives {not_of(config, root)}")
    node: Any = config
    for part in path:
        known = isinstance(node, Config) and part in type(node).__setpoint__.fields
        node = value_or_missing(node, str(part)) if known else MISSING
        if node is MISSING:
            raise Invalid(f"the preset {name!r} has no section {dotted(path)}")
    return draft_of(node) if isinstance(node, Config) else None


def remember_replaced(root: Config, before: Config, path: Path, origin: Origin, text: str) -> None:
    """List as dropped what files and flags had set in a section that a preset's replaces.

    Arguments:
        root: the root of the draft.
        before: the section as it was.
        path: its place.
        origin: the layer that names the preset.
        text: what it says.
    """
    for leaf in leaves(before, path):
        if leaf.origin.layer in WRITTEN and leaf.origin is not origin and leaf.path[-1] != "type":
            place = Recorded(leaf.origin.layer, leaf.describe_origin())
            reason = f"{dotted(path)} = {text} replaces the section"
            state_of(root).dropped.append((leaf.key, leaf.value, place, reason))
