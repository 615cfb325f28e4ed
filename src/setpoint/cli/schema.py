"""`setpoint schema`: the JSON Schema of configuration files, for editors."""

from __future__ import annotations

import json
import os
from typing import Any

from setpoint.cli.list import load_what_can_be_loaded
from setpoint.cli.options import (
    IMPORT,
    INFERENCE,
    TRAINING,
    Arguments,
    Command,
    Option,
    Program,
    refuse_misspelt_options,
)
from setpoint.cli.source import prepare
from setpoint.config import SetpointError

JOBS = {"training": TRAINING, "inference": INFERENCE}
COMMAND = Command(
    "schema",
    "[--output FILE] [--job KIND]",
    "Print the JSON Schema (draft 2020-12) of configuration files. An editor that is given it\n"
    "proposes keys and values, shows what each means, and marks what is wrong while you type. It\n"
    "holds what is known without a file's layers: names, types, ranges, vocabularies;\n"
    "`setpoint check` says the rest. Variants and sections of your own are part of it with\n"
    "--import.\n"
    "\n"
    "`setpoint show SOURCE --schema setpoint.schema.json` writes the line by which a file names\n"
    "its schema.",
    [
        Option("--output", "Write to a file instead of standard output.", "FILE"),
        Option(
            "--job",
            "Of which kind of job: training (the default) or inference.",
            "KIND",
            choices=tuple(JOBS),
        ),
        IMPORT,
    ],
    [
        ("setpoint schema --output setpoint.schema.json", "for the editor"),
        ("setpoint schema --import my_package", "with variants of your own"),
        ("setpoint schema --job inference", "of files for `setpoint infer`"),
    ],
    positional=(0, 0),
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Print or write the schema."""
    from setpoint.editor_schema.document import json_schema

    refuse_misspelt_options(arguments, ())
    if arguments.overrides:
        raise SetpointError(
            f"unexpected argument {arguments.overrides[0]!r}: the schema is that of all "
            f"configurations, whatever is set in one"
        )
    prepare(arguments)
    load_what_can_be_loaded()
    table, program = None, arguments.command.program
    kind = arguments.value("--job") or "training"
    if kind not in JOBS:
        raise SetpointError(f"--job is one of {', '.join(JOBS)}, got {kind!r}")
    if kind != "training":
        program = Program(program.name, JOBS[kind])
    elif not program.is_own:  # a script of one's own has no sweeps
        from setpoint.sweep.config import SweepTable as table
    schema = json_schema(program.root, table)
    text = _written(schema)
    name = arguments.value("--output")
    if name is None:
        print(text)
        return 0
    if os.path.exists(name) and not os.path.isfile(name):
        raise SetpointError(f"--output {name} is not a file")
    from pathlib import Path

    from setpoint.files.atomic import write_text

    write_text(Path(name), text + "\n")
    return 0


def _written(schema: dict[str, Any]) -> str:
    """JSON with a line for each field of the root and each definition, for tools that compare."""

    def written(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    lines: list[str] = []
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            inside = ",\n".join(f"{written(name)}:{written(part)}" for name, part in value.items())
            lines.append(f"{written(key)}:{{\n{inside}\n}}")
        else:
            lines.append(f"{written(key)}:{written(value)}")
    return "{" + ",\n".join(lines) + "}"
