"""`setpoint fingerprint`: the hash of all identity fields, and what makes two of them differ."""

from __future__ import annotations

from typing import Any

from setpoint.cli.options import RANKED, SOURCE_HELP, Arguments, Command, Option
from setpoint.cli.output import dim
from setpoint.cli.source import open_source
from setpoint.config import (
    canonical,
    fingerprint,
    identity_leaves,
    in_full,
    plain,
)

COMMAND = Command(
    "fingerprint",
    "SOURCE [OTHER_SOURCE] [OVERRIDES]",
    "Print one hash (SHA-256) of all identity fields, those that affect training. Configurations\n"
    "with the same fingerprint train the same model; runtime fields (device, logging) and budget\n"
    "fields (duration) are not in it.\n"
    "\n"
    "With two sources both are printed, and the exit status is 1 if they differ; OVERRIDES,\n"
    "modifiers, further files and the environment apply to the second." + "\n" + SOURCE_HELP,
    [
        Option("--explain", "Print the hashed values; of two sources, those that differ."),
        *RANKED,
    ],
    [
        ("setpoint fingerprint tiny", "the preset's fingerprint"),
        ("setpoint fingerprint tiny --seed 2", "another seed is another run"),
        ("setpoint fingerprint tiny runs/tiny-3fa94c21 --explain", "why a run is another one"),
    ],
    positional=(1, 2),
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Print the fingerprint, or two of them, with what is in them if asked."""
    if len(arguments.positional) == 2:
        return _two(arguments)
    config = open_source(arguments.source, arguments).resolve()
    digest = fingerprint(config)
    if arguments.has("--json"):
        import json

        values = json.loads(canonical(config))
        answer: dict[str, Any] = {"fingerprint": digest, "identity": values}
        if arguments.has("--explain"):
            answer["origins"] = {
                leaf.key: leaf.describe_origin() for leaf in identity_leaves(config)
            }
        print(json.dumps(answer, indent=2))
        return 0
    print(digest)
    if arguments.has("--explain"):
        for leaf in identity_leaves(config):
            shown = f"  {leaf.key} = {in_full(leaf.value)}"
            print(shown + dim(f"  {leaf.describe_origin()}"))
    return 0


def _two(arguments: Arguments) -> int:
    from setpoint.config import IDENTITY, differences

    first, second = arguments.positional
    left = open_source(first, arguments, overrides=False).resolve()
    right = open_source(second, arguments).resolve()
    ours, theirs = fingerprint(left), fingerprint(right)
    found = differences(left, right, [IDENTITY])
    if arguments.has("--json"):
        import json

        answer: dict[str, Any] = {"fingerprints": [ours, theirs], "equal": ours == theirs}
        if arguments.has("--explain"):
            answer["differences"] = [plain(item.to_json()) for item in found]
        print(json.dumps(answer, indent=2))
        return int(ours != theirs)
    width = max(len(first), len(second))
    print(f"{first:<{width}}  {ours}")
    print(f"{second:<{width}}  {theirs}")
    if arguments.has("--explain"):
        from setpoint.cli.diff import render

        for line in render(found, [first, second]):
            print(line)
    return int(ours != theirs)
