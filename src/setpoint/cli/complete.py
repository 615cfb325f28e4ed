"""`setpoint completion`: scripts for shells, for which `setpoint __complete` prints candidates."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from setpoint.cli.list import KINDS
from setpoint.cli.main import COMMANDS, GROUPS, command_of, joined
from setpoint.cli.options import Arguments, Command, Option
from setpoint.cli.source import POINTERS, files_here, open_source, run_directories
from setpoint.config import Config, SetpointError, all_fields, did_you_mean
from setpoint.config.draft.walk import TAG
from setpoint.config.files.file_document import names_file
from setpoint.config.layers.presets import modifiers, preset_named, presets
from setpoint.config.resolving.checks import known_cautions
from setpoint.config.schema.class_info import known_tags
from setpoint.config.values.node import value_or_missing

# NAME is the command to complete, FUNCTION its name in the shell; the typed words are arguments of
# the command `__complete`.
BASH = """_FUNCTION() {
  local found
  COMPREPLY=()
  while IFS= read -r found; do
    COMPREPLY+=("$(printf %q "$found")")
  done < <("${COMP_WORDS[0]}" __complete "$COMP_CWORD" "${COMP_WORDS[@]:1}" 2>/dev/null)
  [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=:] ]] && compopt -o nospace
  return 0
}
complete -o default -o bashdefault -F _FUNCTION NAME
"""
ZSH = """#compdef NAME
_FUNCTION() {
  local -a found open
  found=("${(@f)$("$words[1]" __complete $((CURRENT - 1)) "${(@)words[2,-1]}" 2>/dev/null)}")
  # After `section.field=` comes the value, and after `main:` the preset, without a space.
  open=(${(M)found:#*[=:]})
  found=(${found:#*[=:]})
  (( $#open )) && compadd -S '' -- $open
  (( $#found )) && compadd -- $found
  _files
}
if [[ $funcstack[1] == _FUNCTION ]]; then
  _FUNCTION "$@"
else
  compdef _FUNCTION NAME
fi
"""
FISH = """function __FUNCTION_complete
  set -l before (commandline -opc)
  $before[1] __complete (count $before) $before[2..-1] (commandline -ct) 2>/dev/null
end
complete -c NAME -a '(__FUNCTION_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
BREAKS = ("=", ":")
"""Characters at which bash begins a new word."""


@Command("completion SHELL")
def run(arguments: Arguments) -> int:
    """Print the completion script for a shell: bash, zsh or fish.

    It completes commands, presets, modifiers, files, run directories, fields and their values.

    Examples:
        eval "$(setpoint completion bash)"  for bash, in ~/.bashrc
        eval "$(setpoint completion zsh)"  for zsh, in ~/.zshrc, after compinit
        setpoint completion fish | source  for fish, in ~/.config/fish/config.fish
    """
    shell = arguments.positional[0]
    if shell not in SCRIPTS:
        meant = did_you_mean(shell, SCRIPTS, " ")
        known = ", ".join(SCRIPTS)
        raise SetpointError(f"there is no completion for {shell!r}.{meant} Shells: {known}")
    # A shell knows `python train.py` and `./train.py` by `train.py`.
    name = arguments.command.program.name.rpartition(" ")[2]
    script = SCRIPTS[shell].replace("FUNCTION", re.sub(r"\W", "_", name))
    print(script.replace("NAME", name), end="")
    return 0


class CommandLine(NamedTuple):
    """The names of a program's commands, and `command`, which returns one by name.

    For any other word it returns the default command, or None.
    """

    names: Collection[str]
    command: Callable[[str], Command | None]


SETPOINT = CommandLine(COMMANDS, lambda name: command_of(name) if name in COMMANDS else None)


def complete(words: Sequence[str], line: CommandLine = SETPOINT) -> int:
    """Print the candidates for the word at position `words[0]`, one per line."""
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
    """Join words that bash split at `=` and `:`.

    Returns:
        the words before the cursor, the word at the cursor, and the number of its leading
        characters that the shell does not count as part of it.
    """
    parts: list[str] = []
    split, continues = 0, False
    for word in [*words[:position], words[position] if position < len(words) else ""]:
        is_break = word in BREAKS
        if parts and (is_break or continues):
            split = len(parts[-1]) + is_break
            parts[-1] += word
        else:
            split = 0
            parts.append(word)
        continues = is_break
    return parts[:-1], parts[-1], split


def candidates(before: Sequence[str], current: str, line: CommandLine = SETPOINT) -> Iterator[str]:
    """The candidates at the cursor, not yet filtered by `current`."""
    if line is SETPOINT:
        group = [word for word in before if word != "help"]
        if len(group) == 1 and group[0] in GROUPS:
            yield from (name.split()[1] for name in COMMANDS if name.startswith(f"{group[0]} "))
            return
        before = joined(before)
    if not before or before == ["help"]:
        yield from dict.fromkeys(name.partition(" ")[0] for name in line.names)
        if before:
            return
    first = before[0] if before else ""
    command = line.command(first)
    if command is None:
        return
    if first == "sweep" and "," in current:  # candidates for the point after the last comma
        points, _, last = current.rpartition(",")
        flag, equals, _ = points.partition("=")
        start = f"{flag}=" if equals else ""
        for candidate in candidates(before, start + last, line):
            yield f"{points},{candidate.removeprefix(start)}"
    else:
        yield from _argument(command, before[1:] if first in line.names else before, current)


def _argument(command: Command, before: Sequence[str], current: str) -> Iterator[str]:
    """Candidates for an argument of a command."""
    options, root = {option.name: option for option in command.options}, command.program.root
    last = before[-1] if before else ""
    name, equals, _ = current.partition("=")
    if last in options and options[last].metavar:
        yield from _option_values(options[last])
    elif equals and name in options:
        yield from (f"{name}={value}" for value in _option_values(options[name]))
    elif equals:
        yield from (f"{name}={value}" for value in values(name.removeprefix("--"), root))
    elif current.startswith("--"):
        yield from options
        if "OVERRIDES" in command.usage:
            yield from (f"--{path}" for path in _settable(command, before))
    elif last.startswith("--") and "=" not in last and last not in options:
        yield from values(last[2:], root)
    else:
        yield from _positional(command, _count_positional(before, options), before, current)


def values(path: str, root: type[Config]) -> list[str]:
    """The values of a field with a closed vocabulary; empty for numbers and free text."""
    name = path.replace("-", "_").removesuffix(".type")
    if name == "silence":
        return list(known_cautions(root))
    words = (info.type.candidates() for field, info in all_fields(root) if field == name)
    return list(dict.fromkeys(word for group in words for word in group))


def _settable(command: Command, before: Sequence[str]) -> Iterator[str]:
    """The names of overrides: fields of the variants chosen so far, and tags."""
    root = command.program.root
    try:
        arguments = command.parse(before)
        source = arguments.source or ""
        is_data = bool(preset_named(source)) or names_file(source)
        # Completing an unfinished command must not import user code.
        composes = is_data and not arguments.has("--import")
        draft = open_source(source, arguments).draft if composes else None
    except SetpointError:
        draft = None
    yield from (path for path, _ in all_fields(root) if _can_set(draft, path.split(".")))
    yield from (f"{TAG}.{tag}" for tag in known_tags(root))


def _can_set(section: object, path: Sequence[str]) -> bool:
    """True unless a section on the way has a variant without the field."""
    for name in path:
        if not isinstance(section, Config):  # null, a list, or unknown
            return True
        if name not in type(section).__setpoint__.fields:
            return False
        section = value_or_missing(section, name)
    return True


def _positional(command: Command, count: int, before: Sequence[str], current: str) -> Iterator[str]:
    """Candidates for the argument after `count` others."""
    root = command.program.root
    if command.name == "completion":
        yield from SCRIPTS if count == 0 else ()
    elif command.name == "list":
        yield from KINDS if count == 0 else ()
        if before[-1:] == ["fields"]:
            yield from (path for path, _ in all_fields(root))
    elif count < command.at_most:
        # `why` takes a path and a source, in either order.
        paths = [path for path, _ in all_fields(root)] if command.name == "why" else []
        has_path = any(word in paths for word in before)
        if not has_path:
            yield from paths
        if command.name == "compare":
            yield from run_directories("sweep.json")
        if not paths or count > 0:
            yield from presets
            yield from sources(current)
    else:
        yield from (f"{path}=" for path in _settable(command, before))


def _option_values(option: Option) -> Iterator[str]:
    if option.name == "--with":
        yield from modifiers
    elif option.name == "--file":
        yield from files_here()
    else:
        yield from option.choices


def _count_positional(words: Sequence[str], options: dict[str, Option]) -> int:
    """Number of positional arguments before the first override."""
    count = 0
    is_value = False
    for word in words:
        if is_value:
            is_value = False
        elif word.startswith("-"):
            option = options.get(word)
            is_value = option is not None and bool(option.metavar)
            if option is None and "=" not in word:
                return max(count, 2)
        elif "=" in word:
            return max(count, 2)
        else:
            count += 1
    return count


def sources(current: str) -> Iterator[str]:
    """Files, runs, and checkpoints of a typed run, besides presets."""
    yield from files_here()
    for folder in run_directories():
        yield folder
        if current.startswith(folder + os.sep):
            yield from _checkpoints(folder)


def _checkpoints(run: str) -> Iterator[str]:
    folder = os.path.join(run, "checkpoints")
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    known = (name for name in names if name in POINTERS or name.startswith("step-"))
    yield from (os.path.join(folder, name) for name in known if "." not in name)
