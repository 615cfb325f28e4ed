"""Overrides that name no field because they are meant as options."""

from __future__ import annotations

from collections.abc import Container

from setpoint.cli.command import Arguments
from setpoint.config import Config, SetpointError, did_you_mean, known_elsewhere, retired_hint

CLOSE = 0.81


def refuse_misspelt_options(
    arguments: Arguments, fields: Container[str], root: type[Config] | None = None
) -> None:
    """Answer a misspelt option as such, where it would be read as an unknown field.

    Arguments:
        root: the class of the configuration; that of the program if None.

    Raises:
        SetpointError: for a flag that is no field of the root, and is either close to an option
            of the command, or the only one and without a value.
    """
    overrides = arguments.overrides
    if not overrides:
        return
    root = root or arguments.command.program.root
    for token in overrides:
        name, equals, _ = token.partition("=")
        word = name[2:].replace("-", "_")
        if not name.startswith("--") or "." in name or word in fields:
            continue
        if word.removeprefix("no_") in fields:
            continue
        command = arguments.command
        if retired_hint(root, word):
            continue  # it was a field once, and is answered as one
        options = [option.name for option in command.options]
        close = _closest(word, options)
        if close is not None:
            raise SetpointError(f"{command.title} has no option {name}. Did you mean {close}?")
        if known_elsewhere(root, word):
            continue  # a field by its name elsewhere
        # Beside others it is reported with what is wrong there, as a key that is not known.
        if not equals and len(overrides) == 1:
            meant = did_you_mean(name, [f"--{field}" for field in root.__setpoint__.fields], " ")
            raise SetpointError(
                f"{name} is neither an option of {command.title} nor a field with a "
                f"value.{meant} Options: {', '.join(options)}"
            )


def _closest(word: str, options: list[str]) -> str | None:
    """The option that was meant; strict, since an unknown field is the likelier mistake."""
    from difflib import SequenceMatcher

    for option in options:
        name = option[2:].replace("-", "_")
        # Swapped letters are common, and weigh heavily in short words.
        swapped = sorted(name) == sorted(word.lower())
        if swapped or SequenceMatcher(None, word.lower(), name).ratio() > CLOSE:
            return option
    return None
