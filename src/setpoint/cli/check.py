"""`setpoint check`: everything that can be verified without running."""

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
from setpoint.cli.style import bold, table
from setpoint.config import ConfigError
from setpoint.config.fingerprint import fingerprint
from setpoint.config.walk import dropped
from setpoint.plan.preflight import Preflight, preflight

COMMAND = Command(
    "check",
    "SOURCE [OVERRIDES]",
    "Verify a configuration without running it and without importing torch: every name, type\n"
    "and range, every rule between fields, the batch arithmetic for any number of ranks, and the\n"
    "paths it names. All problems are reported at once; the exit status is 2 if there are any.\n"
    + SOURCE_HELP,
    [WITH, FILE, IMPORT, WORLD_SIZE, JSON],
    [
        ("setpoint check tiny", "the preset as it is"),
        ("setpoint check exp.toml --world-size 1024", "before the queue, on a laptop"),
        ("setpoint check tiny --batch.global_size 100", "numbers that do not fit are explained"),
    ],
)


def run(arguments: Arguments) -> int:
    """Resolve, check, and print what the run would be.

    Arguments:
        arguments: of the call.

    Returns:
        the exit status.
    """
    composition = open_source(arguments.positional[0], arguments)
    config = composition.resolve()
    report = preflight(config)
    if report.problems:
        raise ConfigError(report.problems)
    lost = list(dropped(config))
    if arguments.has("--json"):
        import json

        identity = {"ok": True, "fingerprint": fingerprint(config)}
        facts = {**identity, **report.to_json(), "dropped": lost}
        print(json.dumps(facts, indent=2))
        return 0
    print(_summary(composition.label, fingerprint(config), report, lost))
    return 0


def _summary(label: str, digest: str, report: Preflight, lost: list[str]) -> str:
    rows = [("  fingerprint", digest[:8])]
    for name, fact in report.facts.items():
        rows.append((f"  {name}", f"{fact:,}" if isinstance(fact, int) else fact))
    lines = [bold(f"{label}: ok"), table(rows)]
    lines += [f"  dropped: {value}" for value in lost]
    lines += [f"  skipped: {reason}" for reason in report.skipped]
    return "\n".join(lines)
