"""`setpoint fingerprint`: the hash of what is learned."""

from __future__ import annotations

from setpoint.cli.command import (
    FILE,
    IMPORT,
    JSON,
    SOURCE_HELP,
    WITH,
    WORLD_SIZE,
    Arguments,
    Command,
)
from setpoint.cli.source import open_source
from setpoint.config.fingerprint import canonical, fingerprint

COMMAND = Command(
    "fingerprint",
    "SOURCE [OVERRIDES]",
    "Print one hash (SHA-256) of every value that is part of what is learned. Two configurations\n"
    "with the same fingerprint train the same model; where they run, how they log and how long\n"
    "they may go on does not change it." + "\n" + SOURCE_HELP,
    [WITH, FILE, IMPORT, WORLD_SIZE, JSON],
    [
        ("setpoint fingerprint tiny", "the preset's fingerprint"),
        ("setpoint fingerprint tiny --seed 2", "another seed is another run"),
    ],
)


def run(arguments: Arguments) -> int:
    """Print the fingerprint; with `--json`, the canonical values it is taken of as well.

    Arguments:
        arguments: of the call.

    Returns:
        the exit status.
    """
    config = open_source(arguments.positional[0], arguments).resolve()
    if arguments.has("--json"):
        import json

        values = json.loads(canonical(config))
        print(json.dumps({"fingerprint": fingerprint(config), "identity": values}, indent=2))
    else:
        print(fingerprint(config))
    return 0
