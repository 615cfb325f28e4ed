"""The words that can follow what has been typed; called by the shells' completion scripts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib import import_module

from setpoint.cli.command import Command, Option
from setpoint.cli.completion import SCRIPTS
from setpoint.cli.list import KINDS
from setpoint.cli.main import COMMANDS
from setpoint.config.compose import SUFFIXES
from setpoint.config.registry import modifiers, presets
from setpoint.config.suggest import schema
from setpoint.train.config import Job


def run(words: Sequence[str]) -> int:
    """Print the candidates, one on a line.

    Arguments:
        words: the position of the word at the cursor, then all words after `setpoint`.

    Returns:
        the exit status.
    """
    import setpoint.presets  # noqa: F401 - registers the presets and modifiers by name

    if not words or not words[0].isdigit():
        return 2
    before, current, split = at_cursor(words[1:], int(words[0]) - 1)
    for candidate in dict.fromkeys(candidates(before, current)):
        if candidate.startswith(current):
            print(candidate[split:])
    return 0


def at_cursor(words: Sequence[str], position: int) -> tuple[list[str], str, int]:
    """Put together again what bash takes apart at `=`.

    Arguments:
        words: after `setpoint`, as the shell split them.
        position: of the word at the cursor among them.

    Returns:
        the words before the cursor, the word at the cursor, and how many of its first characters
        the shell does not count as part of that word.
    """
    whole: list[str] = []
    split = 0
    joined = False
    for word in [*words[:position], words[position] if position < len(words) else ""]:
        if whole and (word == "=" or joined):
            split = len(whole[-1]) + (word == "=")
            whole[-1] += word
        else:
            split = 0
            whole.append(word)
        joined = word == "="
    return whole[:-1], whole[-1], split


def candidates(before: Sequence[str], current: str) -> Iterator[str]:
    """What can stand at the cursor.

    Arguments:
        before: the words between `setpoint` and the cursor.
        current: the word at the cursor, as far as it is typed.

    Returns:
        whole words, not yet filtered by `current`.
    """
    if not before or (before[0] == "help" and len(before) == 1):
        yield from COMMANDS
        return
    if before[0] not in COMMANDS:
        return
    command: Command = import_module(f"setpoint.cli.{before[0]}").COMMAND
    options = {option.name: option for option in command.options}
    last, name = before[-1], current.partition("=")[0]
    if last in options and options[last].metavar is not None:
        yield from _option_values(options[last])
    elif name in options and "=" in current:
        yield from (f"{name}={value}" for value in _option_values(options[name]))
    elif current.startswith("--") and "=" not in current:
        yield from options
        if _takes_overrides(command):
            yield from (f"--{path}" for path, _ in schema(Job))
    elif "=" in current:
        yield from (f"{name}={value}" for value in values(name.removeprefix("--")))
    elif last.startswith("--") and "=" not in last and last not in options:
        yield from values(last[2:])
    else:
        yield from _positional(command, _count_positional(before[1:], options), before)


def values(path: str) -> list[str]:
    """The values that a field can take, where they are a closed vocabulary.

    Arguments:
        path: the field.

    Returns:
        the words; nothing for numbers and free texts.
    """
    name = path.replace("-", "_").removesuffix(".type")
    found: list[str] = []
    for known, info in schema(Job):
        if known == name:
            found.extend(info.type.candidates())
    return list(dict.fromkeys(found))


def _positional(command: Command, count: int, before: Sequence[str]) -> Iterator[str]:
    """Candidates for the argument after `count` others."""
    if command.name == "completion":
        yield from SCRIPTS if count == 0 else ()
    elif command.name == "list":
        yield from KINDS if count == 0 else ()
        if before[-1] == "fields":
            yield from (path for path, _ in schema(Job))
    elif count < command.positional[1]:
        # `why` takes a path and a source, in either order.
        paths = [path for path, _ in schema(Job)] if command.name == "why" else []
        has_path = any(word in paths for word in before)
        if not has_path:
            yield from paths
        if not paths or count > 0:
            yield from presets
            yield from _sources()
    else:
        yield from (f"{path}=" for path, _ in schema(Job))


def _option_values(option: Option) -> Iterator[str]:
    if option.name == "--with":
        yield from modifiers
    elif option.name == "--file":
        yield from _files()
    else:
        yield from option.choices


def _takes_overrides(command: Command) -> bool:
    return "[OVERRIDES]" in command.usage


def _count_positional(words: Sequence[str], options: dict[str, Option]) -> int:
    """How many positional arguments there are; those after an override do not count."""
    count = 0
    is_value = False
    for word in words:
        if is_value:
            is_value = False
        elif word.startswith("-"):
            option = options.get(word)
            is_value = option is not None and option.metavar is not None
            if option is None and "=" not in word:
                return max(count, 2)
        elif "=" in word:
            return max(count, 2)
        else:
            count += 1
    return count


def _sources() -> Iterator[str]:
    """Configuration files and run directories near the working folder."""
    yield from _files()
    for folder, folders, files in os.walk("runs"):
        if "config.json" in files:
            yield folder
            folders.clear()


def _files() -> Iterator[str]:
    # The shells themselves complete files further away.
    try:
        names = sorted(os.listdir("."))
    except OSError:  # the working folder is gone: there is nothing to offer
        return
    yield from (name for name in names if name.endswith(SUFFIXES) and os.path.isfile(name))
