"""`setpoint show`: the resolved configuration."""

from __future__ import annotations

from typing import Any, cast

from setpoint.cli.command import (
    FILE,
    IMPORT,
    JSON,
    SOURCE_HELP,
    WITH,
    WORLD_SIZE,
    Arguments,
    Command,
    Option,
)
from setpoint.cli.source import open_source
from setpoint.config import SetpointError
from setpoint.config.plain import to_minimal, to_plain
from setpoint.config.walk import leaves

FORMATS = ("toml", "yaml", "json", "python")
# How editors are told: Taplo reads the first, the YAML language server the second.
SCHEMA_LINES = {"toml": "#:schema {}\n", "yaml": "# yaml-language-server: $schema={}\n"}
COMMAND = Command(
    "show",
    "SOURCE [OVERRIDES]",
    "Print every value of a configuration with all layers merged and everything derived, in a\n"
    "form that can be saved and used as a SOURCE again. Python is what differs from the defaults,\n"
    "as a function for SOURCE module:function. Fields that are null by default and that nothing\n"
    "has set are left out, except in JSON and with --all." + "\n" + SOURCE_HELP,
    [
        Option("--origins", "Print beside each value where it comes from."),
        Option("--minimal", "Print only what differs from the defaults."),
        Option("--all", "Print fields that are null by default, too."),
        Option(
            "--format",
            "toml (the default), yaml, json, or python (a preset function).",
            "FORMAT",
            choices=FORMATS,
        ),
        Option("--schema", "Begin with the line by which editors find the JSON Schema.", "PATH"),
        WITH,
        FILE,
        IMPORT,
        WORLD_SIZE,
        JSON,
    ],
    [
        ("setpoint show tiny", "everything, as TOML"),
        ("setpoint show tiny --origins", "with the origin of each value"),
        ("setpoint show tiny --minimal > exp.toml", "a file to start from"),
        ("setpoint show exp.toml --format python > exp.py", "the same as Python"),
        ("setpoint show tiny --schema setpoint.schema.json", "for an editor; see `schema`"),
    ],
)


def run(arguments: Arguments) -> int:
    """Print the configuration in the asked-for format.

    Arguments:
        arguments: of the call.

    Returns:
        the exit status.
    """
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
    config = open_source(arguments.source, arguments).resolve()
    data = to_minimal(config) if arguments.has("--minimal") else to_plain(config)
    if chosen in ("toml", "yaml") and not (arguments.has("--all") or arguments.has("--minimal")):
        data = _without_nulls(data, to_minimal(config))
    comments = None
    if arguments.has("--origins"):
        from setpoint.config.entries import entries_of

        shown = [each for leaf in leaves(config) for each in entries_of(config, leaf) or [leaf]]
        comments = {leaf.path: leaf.describe_origin() for leaf in shown}
        if chosen == "json":
            every = [*leaves(config), *shown]
            origins = {leaf.key: leaf.describe_origin() for leaf in every}
            data = {"config": data, "origins": origins}
    if schema is not None and chosen == "json":
        data = {"$schema": schema, **data}
    if chosen == "json":
        from setpoint.config.files.write_json import write as write_json

        text = write_json(data)
    elif chosen == "yaml":
        from setpoint.config.files.write_yaml import write as write_yaml

        text = write_yaml(data, comments)
    elif chosen == "python":
        from setpoint.config.write_python import to_python

        text = to_python(config)
    else:
        from setpoint.config.files.write_toml import write as write_toml

        text = write_toml(data, comments)
    if schema is not None and chosen in SCHEMA_LINES:
        text = SCHEMA_LINES[chosen].format(schema) + text
    print(text, end="")
    return 0


def _without_nulls(data: dict[str, Any], minimal: object) -> dict[str, Any]:
    """Values without those that are null and need not be written for it.

    Arguments:
        data: a whole section in plain data.
        minimal: what differs from the defaults in it.
    """
    differs = cast(dict[str, Any], minimal) if isinstance(minimal, dict) else {}
    return {
        key: _without_nulls(cast(dict[str, Any], value), differs.get(key))
        if isinstance(value, dict)
        else value
        for key, value in data.items()
        if value is not None or key in differs
    }


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
