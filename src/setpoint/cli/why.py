"""`setpoint why`: where a value comes from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from setpoint.cli.options import RANKED, SOURCE_HELP, Arguments, Command, Program
from setpoint.cli.output import bold, dim, wrapped
from setpoint.cli.source import open_source
from setpoint.config import (
    SUFFIXES,
    Config,
    Free,
    Leaf,
    SetpointError,
    all_fields,
    did_you_mean,
    dropped_values,
    entries_of,
    in_full,
    item_index,
    leaves,
    location_hint,
    plain,
    presets,
)

COMMAND = Command(
    "why",
    "PATH [SOURCE] [OVERRIDES]",
    "Print every layer that touched a value, the first at the top and the winner, marked with >,\n"
    "last; then what the field means, and its role. PATH is a field, a section, or an item of a\n"
    "list such as data.sources.0; without a SOURCE the defaults are asked. A derived value names\n"
    "the fields that it was derived from. Values that a later layer left no place for are named\n"
    "as dropped.\n" + SOURCE_HELP,
    RANKED,
    [
        ("setpoint why optimizer.lr tiny", "the learning rate of tiny"),
        ("setpoint why batch tiny --batch.accumulation 2", "all of a section, with an override"),
        ("setpoint why model.ffn_dim runs/tiny-3fa94c21", "a derived value of a run"),
    ],
    positional=(1, 2),
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Print the chain of origins of one field, or of every field of a section."""
    program = arguments.command.program
    path, source = path_and_source(arguments.positional, program)
    config = open_source(source, arguments).resolve()
    name = leaf_path(config, path)
    every = list(leaves(config))
    found = [leaf for leaf in every if leaf.key == name or leaf.key.startswith(f"{name}.")]
    if not found:  # an entry of a mapping, whose key is as it was written
        entries = (entry for leaf in every for entry in entries_of(config, leaf))
        found = [entry for entry in entries if entry.key == name]
    dropped = list(dropped_values(config, name))
    if not found:
        lines = [f"  dropped: {line}" for line in dropped]
        raise SetpointError("\n".join([not_there(program, config, path), *lines]))
    if arguments.has("--json"):
        import json

        facts = [_facts(config, leaf) for leaf in found]
        facts += [{"path": name, "dropped": line} for line in dropped]
        print(json.dumps(facts, indent=2))
        return 0
    lines = [f"dropped: {line}" for line in dropped]
    print("\n\n".join([*(_explain(config, leaf) for leaf in found), *lines]))
    return 0


def not_there(program: Program, config: Config, path: str) -> str:
    """What is said of a path that leads nowhere."""
    name = leaf_path(config, path)
    meant = _meant(program, name, list(leaves(config)))
    return f"this configuration has no value {path!r}. {meant}"


def leaf_path(config: Config, typed: str) -> str:
    """A typed path as `leaves` has it: fields with underscores, items of lists by index."""
    node: Any = config
    parts = typed.split(".")
    for depth, part in enumerate(parts):
        plain = part.replace("-", "_")
        if isinstance(node, Config):
            parts[depth] = plain
            node = getattr(node, plain) if plain in type(node).__setpoint__.fields else None
        elif isinstance(node, list | tuple):
            try:
                index = item_index(node, part, ".".join(parts[:depth]))
            except SetpointError:
                break
            parts[depth], node = str(index), node[index]
        elif isinstance(node, Mapping | Free):  # whose keys are as they were written
            parts[depth] = part if part in node or plain not in node else plain
            node = dict(node.items()).get(parts[depth])
    return ".".join(parts)


def path_and_source(positional: list[str], program: Program) -> tuple[str, str | None]:
    """Tell path and source apart, which may stand in either order.

    Arguments:
        positional: one or two words; one is the path.

    Raises:
        SetpointError: if the only word is a source.
    """
    if not program.is_own:
        import setpoint.presets  # noqa: F401 - registers the presets by name

    def _is_field(word: str) -> bool:
        return word.partition(".")[0].replace("-", "_") in program.root.__setpoint__.fields

    first, second = positional[0], positional[1] if len(positional) > 1 else None
    if second is None:
        if _is_source(first) and not _is_field(first):
            example = "PATH" if program.is_own else "optimizer.lr"
            raise SetpointError(
                f"which value of {first}? For instance: {program.name} why {example} {first}"
            )
        return first, None
    # A folder may be called `data`, and a file `model.toml`: what is a field stays one, unless
    # the other word can be nothing else.
    if _is_field(first):
        swap = _is_field(second) and _is_source(first) and not _is_source(second)
    else:
        swap = _is_field(second) or (_is_source(first) and not _is_source(second))
    return (second, first) if swap else (first, second)


def _is_source(word: str) -> bool:
    named = word.replace("_", "-") in presets or ":" in word or word.endswith(SUFFIXES)
    return named or os.path.exists(word)


def _meant(program: Program, name: str, every: list[Leaf]) -> str:
    """Why a path leads nowhere, or what may have been meant."""
    for leaf in every:
        if name.startswith(f"{leaf.key}."):
            if isinstance(leaf.value, dict) and leaf.value:
                held = [f"{leaf.key}.{key}" for key in leaf.value]
                return f"{leaf.key} has {', '.join(held)}.{did_you_mean(name, held, ' ')}"
            where = f"{in_full(leaf.value)} ({leaf.describe_origin()})"
            return f"{leaf.key} is {where}, with nothing inside."
    section = name.rpartition(".")[0]
    chosen = next((leaf for leaf in every if leaf.key == f"{section}.type"), None)
    if chosen is not None and any(path == name for path, _ in all_fields(program.root)):
        where = f"{in_full(chosen.value)} ({chosen.describe_origin()})"
        return f"It belongs to another variant; {chosen.key} is {where}."
    place = location_hint(program.root, name)
    hint = place or did_you_mean(name, [leaf.key for leaf in every])
    return hint or f"`{program.name} list fields` shows all there are."


def _layers(leaf: Leaf) -> list[tuple[object, str]]:
    """Each layer's value and origin, the winner last."""
    layers: list[tuple[object, str]] = []
    for origin, value in leaf.chain:
        if leaf.path[-1] == "type" and not isinstance(value, str):
            value = _tag(value, leaf.path[-2])
            if value is None:
                continue
        layers.append((value, origin.describe(leaf.path)))
    return layers or [(leaf.value, leaf.describe_origin())]


def _tag(value: object, key: object) -> str | None:
    """The variant that a layer chose: its value is the section, or the list that holds it."""
    if isinstance(value, list | tuple) and isinstance(key, int):
        value = value[key] if key < len(value) else None
    elif isinstance(value, dict):
        value = value.get(key)
    return type(value).__setpoint__.tag if isinstance(value, Config) else None


def _facts(config: Config, leaf: Leaf) -> dict[str, object]:
    return {
        "path": leaf.key,
        "value": plain(leaf.value),
        "role": leaf.role.name,
        "help": _help(config, leaf),
        "layers": [{"value": plain(value), "origin": origin} for value, origin in _layers(leaf)],
    }


def _explain(config: Config, leaf: Leaf) -> str:
    lines = [bold(f"{leaf.key} = {in_full(leaf.value)}")]
    layers = [(in_full(value), origin) for value, origin in _layers(leaf)]
    # One long value shall not push the origins of the others off the screen.
    width = max((len(value) for value, _ in layers if len(value) <= 40), default=0)
    for index, (value, origin) in enumerate(layers):
        mark = ">" if index == len(layers) - 1 else " "
        lines.append(f"  {mark} {value:<{width}}  {origin}")
    meaning = _help(config, leaf)
    if meaning:
        lines.append(dim(wrapped(meaning, "    ")))
    lines.append(dim(f"    role {leaf.role.name}: {leaf.role.meaning}"))
    return "\n".join(lines)


def _help(config: Config, leaf: Leaf) -> str:
    from setpoint.editor_schema.help import field_help

    if leaf.path[-1] == "type":
        return "Which variant stands here."
    node: object = config
    for part in leaf.path[:-1]:
        if isinstance(node, Config):
            node = getattr(node, str(part))
        elif isinstance(node, list | tuple) and isinstance(part, int):
            node = node[part]
        else:
            node = node.get(part) if isinstance(node, dict) else None
    above = leaf.path[:-1]
    if isinstance(node, dict) and above:  # an entry of a mapping
        return _help(config, Leaf(above, None, leaf.role, []))
    if not isinstance(node, Config):
        return ""  # in the user area, where keys are free
    info = type(node).__setpoint__.fields[str(leaf.path[-1])]
    return field_help(info.owner, info.name)
