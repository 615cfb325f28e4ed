"""`setpoint show`: the resolved configuration."""

from __future__ import annotations

import os
from typing import Any, cast

from setpoint.cli.options import RANKED, SOURCE_HELP, Arguments, Command, Option
from setpoint.cli.output import print_notes
from setpoint.cli.source import open_source, run_directory_given
from setpoint.config import (
    Config,
    SetpointError,
    dropped_values,
    leaves,
    to_minimal,
    to_plain,
    within,
)

FORMATS = ("toml", "yaml", "json", "python")
# Taplo reads the first form, the YAML language server the second.
SCHEMA_LINES = {"toml": "#:schema {}\n", "yaml": "# yaml-language-server: $schema={}\n"}
COMMAND = Command(
    "show",
    "SOURCE [PATH] [OVERRIDES]",
    "Print every value of a configuration with all layers merged and everything derived, in a\n"
    "form that can be saved and used as a SOURCE again. Python is what differs from the defaults,\n"
    "as a function for SOURCE module:function. Fields that are null by default and that nothing\n"
    "has set are left out, except in JSON and with --all. With a PATH only that field or section\n"
    "is printed, in its place in the file.\n" + SOURCE_HELP,
    [
        Option("--origins", "Print the origin of each value beside it."),
        Option("--minimal", "Print only what differs from the defaults."),
        Option("--all", "Print fields that are null by default, too."),
        Option(
            "--format",
            "toml (the default), yaml, json, or python (a preset function).",
            "FORMAT",
            choices=FORMATS,
        ),
        Option("--schema", "Begin with the line that points editors to the JSON Schema.", "PATH"),
        *RANKED,
    ],
    [
        ("setpoint show tiny", "everything, as TOML"),
        ("setpoint show tiny model", "one section, or one field"),
        ("setpoint show tiny --origins", "with the origin of each value"),
        ("setpoint show tiny --minimal > exp.toml", "a file to start from"),
        ("setpoint show exp.toml --format python > exp.py", "the same as Python"),
        ("setpoint show tiny --schema setpoint.schema.json", "for an editor; see `schema`"),
    ],
    positional=(1, 2),
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Print the configuration in the asked-for format."""
    chosen = arguments.value("--format") or ("json" if arguments.has("--json") else "toml")
    if chosen not in FORMATS:
        raise SetpointError(f"--format is one of {', '.join(FORMATS)}, got {chosen!r}")
    if arguments.has("--json") and chosen != "json":
        raise SetpointError(f"--json and --format {chosen} contradict each other; give one")
    if arguments.has("--origins") and chosen == "python":
        raise SetpointError("--origins has no effect with --format python, which has no comments")
    if arguments.has("--all") and arguments.has("--minimal"):
        raise SetpointError("--all and --minimal contradict each other; give one")
    if arguments.has("--all") and chosen == "python":
        raise SetpointError("--all has no effect with --format python, which holds differences")
    schema = arguments.value("--schema")
    if schema is not None:
        _expect_schema(schema, chosen, arguments.has("--origins"))
    path, source = _path_and_source(arguments)
    if path is not None and chosen == "python":
        raise SetpointError("PATH has no effect with --format python, which shows the whole")
    config = open_source(source, arguments).resolve()
    data = to_minimal(config) if arguments.has("--minimal") else to_plain(config)
    if chosen in ("toml", "yaml") and not (arguments.has("--all") or arguments.has("--minimal")):
        data = _without_nulls(data, to_minimal(config), config)
    if path is not None:
        from setpoint.cli.why import leaf_path, not_there

        path = leaf_path(config, path)
        whole = _branch(to_plain(config), path.split("."))
        if whole is None:
            raise SetpointError(not_there(arguments.command.program, config, path))
        data = _branch(data, path.split("."))
        if data is None:  # null, or as it is by default
            data = {} if arguments.has("--minimal") else whole
    comments = None
    if arguments.has("--origins"):
        from setpoint.config import entries_of

        shown = [each for leaf in leaves(config) for each in entries_of(config, leaf) or [leaf]]
        comments = {leaf.path: leaf.describe_origin() for leaf in shown}
        if chosen == "json":
            every = [*leaves(config), *shown]
            origins = {
                leaf.key: leaf.describe_origin()
                for leaf in every
                if path is None or within(leaf.key, path) or within(path, leaf.key)
            }
            data = {"config": data, "origins": origins}
    if schema is not None and chosen == "json":
        data = {"$schema": schema, **data}
    if chosen == "json":
        from setpoint.config import write_json as write_json

        text = write_json(data)
    elif chosen == "yaml":
        from setpoint.config import write_yaml as write_yaml

        text = write_yaml(data, comments)
    elif chosen == "python":
        from setpoint.config import to_python

        text = to_python(config)
    else:
        from setpoint.config import write_toml as write_toml

        text = write_toml(data, comments)
    if path is None and chosen in ("toml", "yaml"):
        text = _position(source) + text
    if schema is not None and chosen in SCHEMA_LINES:
        text = SCHEMA_LINES[chosen].format(schema) + text
    print(text, end="")
    print_notes([f"dropped: {line}" for line in dropped_values(config)])
    return 0


def _position(source: str | None) -> str:
    """A comment that says how far a run has come; empty for other sources."""
    folder = run_directory_given(source)
    if folder is None:
        return ""
    from setpoint.train.run_status import data_position, run_status

    place = data_position(folder)
    line = f"# this run {run_status(folder)}" + (f"; data: {place}" if place else "")
    return " ".join(line.split()) + "\n"


def _path_and_source(arguments: Arguments) -> tuple[str | None, str | None]:
    """What is to be shown, and of what; a script's source may be left out."""
    words, program = arguments.positional, arguments.command.program
    if len(words) == 2:
        from setpoint.cli.why import path_and_source

        return path_and_source(words, program)
    only = arguments.source
    named = only is not None and only.partition(".")[0] in program.root.__setpoint__.fields
    return (
        (only, None)
        if named and program.is_own and not os.path.exists(only or "")
        else (
            None,
            only,
        )
    )


def _branch(data: dict[str, Any], path: list[str]) -> dict[str, Any] | None:
    """The part of nested values that a path leads to, in its place; a list stays whole.

    Returns:
        the values above it alone with what it leads to; None where it leads nowhere.
    """
    key, rest = path[0], path[1:]
    if key not in data:
        return None
    value = data[key]
    if rest and isinstance(value, dict):
        value = _branch(cast(dict[str, Any], value), rest)
        if value is None:
            return None
    elif rest and not (isinstance(value, list) and rest[0].isdecimal()):
        return None
    return {key: value}


def _without_nulls(data: dict[str, Any], minimal: object, section: object) -> dict[str, Any]:
    """Values without those that are null and need not be written for it.

    Arguments:
        section: whose values they are.
    """
    differs = cast(dict[str, Any], minimal) if isinstance(minimal, dict) else {}
    # A variant's `type` is no field, and to ask for it would look for the nearest name.
    fields = type(section).__setpoint__.fields if isinstance(section, Config) else {}
    found: dict[str, Any] = {}
    for key, value in data.items():
        if value is None and key not in differs:
            continue
        inner = getattr(section, key, None) if key in fields else None
        if isinstance(value, dict):
            value = _without_nulls(cast(dict[str, Any], value), differs.get(key), inner)
        elif isinstance(value, list) and isinstance(inner, tuple):
            pairs = zip(cast(list[Any], value), cast(tuple[Any, ...], inner), strict=True)
            value = [
                _without_nulls(item, to_minimal(one), one) if isinstance(one, Config) else item
                for item, one in pairs
            ]
        found[key] = value
    return found


def _expect_schema(schema: str, chosen: str, origins: bool) -> None:
    if chosen == "python":
        raise SetpointError("--schema has no effect with --format python, which editors know")
    if chosen == "json" and origins:
        raise SetpointError(
            "--schema and --origins contradict each other in JSON: a file with origins is no "
            "configuration file"
        )
    if not schema or not schema.isprintable():
        raise SetpointError(f"--schema needs a path or an address on one line, got {schema!r}")
