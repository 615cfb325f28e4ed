"""`setpoint convert`: a configuration file of another system as one of Setpoint."""

from __future__ import annotations

import os
from pathlib import Path

from setpoint.cli.options import STRICT, Arguments, Command, Option
from setpoint.cli.output import print_notes
from setpoint.config import ConfigError, SetpointError, compose
from setpoint.config.draft.walk import to_minimal
from setpoint.config.files.write import write_toml
from setpoint.files.atomic import write_text
from setpoint.interop.dialect import DIALECTS, read_foreign, recognize, split_dialect
from setpoint.train.config import Job

COMMAND = Command(
    "convert",
    "DIALECT:FILE [--output FILE]",
    "Write a configuration file of another system as a file of Setpoint: what differs from the\n"
    "defaults, with the place or the default that each value comes from. What has no counterpart\n"
    "is reported: refused, without effect there either, different here, or left to decide.\n"
    f"DIALECT is one of {', '.join(DIALECTS)}.\n"
    "The other commands take DIALECT:FILE as a SOURCE.",
    [
        Option("--output", "Write to a file instead of standard output.", "FILE"),
        STRICT,
    ],
    [
        ("setpoint convert kempnerforge:7b.toml --output 7b.toml", "a file of KempnerForge"),
        ("setpoint convert xorl:lora.yaml --strict", "only if all of it is converted exactly"),
    ],
)


@COMMAND
def convert(arguments: Arguments) -> int:
    """Print or write the converted file.

    Raises:
        SetpointError: if the file is of no system that is known, or does not convert.
    """
    source, output = arguments.positional[0], arguments.value("--output")
    parts = split_dialect(source)
    if parts is None and os.path.isfile(source) and (name := recognize(source)):
        parts = name, source
    if parts is None:
        raise SetpointError(
            f"{source} does not name a file of another system: give it as DIALECT:FILE, with "
            f"DIALECT one of {', '.join(DIALECTS)}"
        )
    if output is not None and os.path.exists(output):
        raise SetpointError(
            f"--output {output} exists already, and what is in it would be lost; choose another "
            f"name, or remove it"
        )
    document = read_foreign(*parts)
    composition = compose(Job, None, files=[document])
    problems = [*document.problems, *composition.problems]
    if problems:
        raise ConfigError(problems)
    print_notes([str(report) for report in document.reports])
    if document.reports and arguments.has("--strict"):
        raise SetpointError(f"{parts[1]}: {len(document.reports)} reports, see above (--strict)")
    text = f"# setpoint convert {':'.join(parts)}\n"
    text += write_toml(to_minimal(composition.draft), document.places)
    if output is None:
        print(text, end="")
    else:
        write_text(Path(output), text)
    return 0
