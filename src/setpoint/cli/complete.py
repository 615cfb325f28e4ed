"""The words that can follow what has been typed; called by the shells' completion scripts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from setpoint.cli.completion import SCRIPTS
from setpoint.cli.list import KINDS
from setpoint.cli.options import Command, Option
from setpoint.cli.outcome import COMMANDS, GROUPS, command_of, joined
from setpoint.cli.sources.offer import files, offer, sweeps
from setpoint.config import TAG, Config, all_fields, known_cautions, known_tags, modifiers, presets

BREAKS = ("=", ":")
"""At these, bash begins a word of its own."""


class Line(NamedTuple):
    """A command line that can be completed.

    Arguments:
        command: the command of a name; of another word what runs without one, None if nothing does.
    """

    names: Collection[str]
    command: Callable[[str], Command | None]


def _command(name: str) -> Command | None:
    return command_of(name) if name in COMMANDS else None


SETPOINT = Line(COMMANDS, _command)


def run(words: Sequence[str], line: Line = SETPOINT) -> int:
    """Print the candidates, one on a line.

    Arguments:
        words: the position of the word at the cursor, then all words after the program's.
    """
    if line is SETPOINT:
        import setpoint.presets  # noqa: F401 - registers the presets and modifiers by name

    if not words or not words[0].isdigit():
        return 2
    before, current, split = at_cursor(words[1:], int(words[0]) - 1)
    for candidate in dict.fromkeys(candidates(before, current, line)):
        if candidate.startswith(current):
            print(candidate[split:])
    return 0


def at_cursor(words: Sequence[str], position: int) -> tuple[list[str], str, int]:
    """Put together again what bash takes apart at `=` and `:`.

    Arguments:
        words: after `setpoint`, as the shell split them.

    Returns:
        the words before the cursor, the word at the cursor, and how many of its first characters
        the shell does not count as part of that word.
    """
    whole: list[str] = []
    split = 0
    joined = False
    for word in [*words[:position], words[position] if position < len(words) else ""]:
        breaks = word in BREAKS
        if whole and (breaks or joined):
            split = len(whole[-1]) + breaks
            whole[-1] += word
        else:
            split = 0
            whole.append(word)
        joined = breaks
    return whole[:-1], whole[-1], split


def candidates(before: Sequence[str], current: str, line: Line = SETPOINT) -> Iterator[str]:
    """What can stand at the cursor.

    Returns:
        whole words, not yet filtered by `current`.
    """
    if line is SETPOINT:
        group = [word for word in before if word != "help"]
        if len(group) == 1 and group[0] in GROUPS:
            yield from (name.split()[1] for name in COMMANDS if name.startswith(f"{group[0]} "))
            return
        before = joined(before)
    if not before or (before[0] == "help" and len(before) == 1):
        yield from dict.fromkeys(name.partition(" ")[0] for name in line.names)
        if before:
            return
    first = before[0] if before else ""
    command = line.command(first)
    if command is None:
        return
    if first == "sweep" and "," in current:
        yield from _further_points(before, current, line)
        return
    if first not in line.names:
        before = ["", *before]
    options, root = {option.name: option for option in command.options}, command.program.root
    last, name = before[-1], current.partition("=")[0]
    if last in options and options[last].metavar is not None:
        yield from _option_values(options[last])
    elif name in options and "=" in current:
        yield from (f"{name}={value}" for value in _option_values(options[name]))
    elif current.startswith("--") and "=" not in current:
        yield from options
        if _takes_overrides(command):
            yield from (f"--{path}" for path in _settable(root))
    elif "=" in current:
        yield from (f"{name}={value}" for value in values(name.removeprefix("--"), root))
    elif last.startswith("--") and "=" not in last and last not in options:
        yield from values(last[2:], root)
    else:
        yield from _positional(command, _count_positional(before[1:], options), before, current)


def _further_points(before: Sequence[str], current: str, line: Line) -> Iterator[str]:
    """Candidates for the point after a comma, behind those that are typed already."""
    head, _, last = current.rpartition(",")
    flag, equals, _ = head.partition("=")
    start = f"{flag}=" if equals else ""
    for candidate in candidates(before, start + last, line):
        yield f"{head},{candidate.removeprefix(start)}"


def values(path: str, root: type[Config]) -> list[str]:
    """The values that a field can take, where they are a closed vocabulary.

    Returns:
        the words; nothing for numbers and free texts.
    """
    name = path.replace("-", "_").removesuffix(".type")
    if name == "silence":
        return list(known_cautions(root))
    found: list[str] = []
    for known, info in all_fields(root):
        if known == name:
            found.extend(info.type.candidates())
    return list(dict.fromkeys(found))


def _settable(root: type[Config]) -> Iterator[str]:
    """Everything that an override can name: the fields, and the tags that reach several."""
    yield from (path for path, _ in all_fields(root))
    yield from (f"{TAG}.{tag}" for tag in known_tags(root))


def _positional(command: Command, count: int, before: Sequence[str], current: str) -> Iterator[str]:
    """Candidates for the argument after `count` others."""
    root = command.program.root
    if command.name == "completion":
        yield from SCRIPTS if count == 0 else ()
    elif command.name == "list":
        yield from KINDS if count == 0 else ()
        if before[-1] == "fields":
            yield from (path for path, _ in all_fields(root))
    elif count < command.positional[1]:
        # `why` takes a path and a source, in either order.
        paths = [path for path, _ in all_fields(root)] if command.name == "why" else []
        has_path = any(word in paths for word in before)
        if not has_path:
            yield from paths
        if command.name == "compare":
            yield from sweeps()
        if not paths or count > 0:
            yield from presets
            yield from offer(current)
    else:
        yield from (f"{path}=" for path in _settable(root))


def _option_values(option: Option) -> Iterator[str]:
    if option.name == "--with":
        yield from modifiers
    elif option.name == "--file":
        yield from files()
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
