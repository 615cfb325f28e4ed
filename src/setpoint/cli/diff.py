"""`setpoint diff`: what differs between two configurations, with both origins."""

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
from setpoint.cli.style import bold, dim
from setpoint.cli.value import plain, value_text
from setpoint.config.difference import ABSENT, Difference, differences

COMMAND = Command(
    "diff",
    "A B [OVERRIDES]",
    "Resolve two sources and print only the values that differ, each with where it comes from.\n"
    "OVERRIDES, modifiers, further files and the environment apply to B. The exit status is 0 if\n"
    "nothing differs and 1 if something does." + "\n" + SOURCE_HELP,
    [WITH, FILE, IMPORT, WORLD_SIZE, JSON],
    [
        ("setpoint diff tiny runs/tiny-3fa94c21", "what a run changed"),
        ("setpoint diff tiny tiny --optimizer.lr 1e-3", "what an override changes, in the end"),
    ],
    positional=(2, 2),
)


def run(arguments: Arguments) -> int:
    """Print the differences; 1 if there are any.

    Arguments:
        arguments: of the call.

    Returns:
        the exit status: 1 if anything differs.
    """
    first, second = arguments.positional
    left = open_source(first, arguments, overrides=False).resolve()
    right = open_source(second, arguments).resolve()
    found = differences(left, right)
    if arguments.has("--json"):
        import json

        print(json.dumps([plain(difference.to_json()) for difference in found], indent=2))
    else:
        for line in render(found, first, second):
            print(line)
    return 1 if found else 0


def render(found: list[Difference], left: str, right: str) -> list[str]:
    """Differences as lines for people.

    Arguments:
        found: the differences.
        left, right: the names of the two sides.

    Returns:
        three lines for each difference, aligned.
    """
    if left == right:
        left, right = f"A: {left}", f"B: {right}"
    width = max(len(left), len(right))
    lines: list[str] = []
    for item in found:
        lines.append(bold(item.path) + dim(f"  ({item.role.name})"))
        sides = (
            (left, _text(item.left), item.left_origin),
            (right, _text(item.right), item.right_origin),
        )
        # One long value shall not push the other's origin off the screen.
        column = max((len(text) for _, text, _ in sides if len(text) <= 40), default=0)
        for name, text, origin in sides:
            line = f"  {name:<{width}}  {text:<{column}}" + dim(f"  {origin}" if origin else "")
            lines.append(line.rstrip())
    return lines


def _text(value: object) -> str:
    return "(absent)" if value is ABSENT else value_text(value)
