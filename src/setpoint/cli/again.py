"""What the commands share that train a run again: `verify` and `rerun`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.cli.options import Arguments, Option
from setpoint.config import SetpointError, printable
from setpoint.ops.proof import Seal

if TYPE_CHECKING:
    from setpoint.runs.again import Comparison

MOST = 10  # differences that people look through
TOLERANCE = Option(
    "--tolerance", "Let numbers differ by this share; 0, the default, compares every bit.", "SHARE"
)
SHARED_HELP = """
What comes out is compared with every metric of the record but timings, and with the weights of the
last checkpoint. On a CPU with the same packages and code all is equal to the bit. What else is
here than in the record is printed: another torch, device or code may change bits, and --tolerance
allows for it. Of the record the configuration is used; trackers of services, uploads, alerts and
compiled code that it names are left out, and modules are imported only where --import names them.
The training data must be there. The exit status is 0 if all is equal, and 1 if not."""


def tolerance_of(arguments: Arguments) -> float | None:
    """The tolerance; None for every bit.

    Raises:
        SetpointError: if it is no share.
    """
    found = arguments.number(TOLERANCE.name, at_least=0)
    if found is not None and not (math.isfinite(found) and found < 1):
        raise SetpointError(f"{TOLERANCE.name} must be a share below 1, got {found}")
    return found or None


@contextmanager
def refusing(run: Path, folder: Path) -> Iterator[None]:
    """Say of a run what is said of the directory in which it is trained again.

    Raises:
        SetpointError: what is raised within, without what it says of resuming.
    """
    try:
        yield
    except SetpointError as error:
        reason = str(error).replace(str(folder), str(run)).partition("\n")[0]
        raise SetpointError(f"{run} cannot be trained again: {reason}") from None


def print_comparison(
    run: Path, found: Comparison, seal: Seal | None, arguments: Arguments, **more: Any
) -> bool:
    """Print what came of it.

    Arguments:
        seal: what the chain of the run says; None where it was not asked.
        more: further facts for machines.

    Returns:
        whether all is equal.
    """
    problems = [] if seal is None else seal.problems
    is_equal = found.is_equal and not problems
    if arguments.has("--json"):
        answer = {
            "run": str(run),
            "equal": is_equal,
            **more,
            **asdict(found),
            "differences": [_plain(each._asdict()) for each in found.differences],
            "problems": problems,
        }
        print(json.dumps(answer, indent=2))
    else:
        lines = [*_lines(run, found), *(f"  {problem}" for problem in problems)]
        print(printable("\n".join(lines)))  # what a record says may hold anything
    return is_equal


def _lines(run: Path, found: Comparison) -> Iterator[str]:
    bits = "equal to the bit"
    if found.tolerance is not None:
        bits = f"equal within {found.tolerance:g}"
    steps = f"{run}: steps {found.first} to {found.last} trained again"
    if found.is_equal:
        compared = f"{found.rows} rows of metrics"
        if found.weights is not None:
            compared += " and the weights"
        digest = "" if found.digest is None else f", BLAKE3 {found.digest.digest}"
        yield f"{steps}: {compared} are {bits}{digest * (found.weights is not None)}"
    else:
        yield f"{steps}: not {bits}"
        yield from _first([each.line() for each in found.differences], "metrics")
        yield from _first(found.weights or [], "tensors")
    yield from (f"  note: {text}" for text in found.notes)
    yield from (f"  note: {text}" for text in found.environment)


def _first(lines: list[str], what: str) -> Iterator[str]:
    yield from (f"  {line}" for line in lines[:MOST])
    if len(lines) > MOST:
        yield f"  and {len(lines) - MOST:,} more {what}; --json prints all"


def _plain(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in facts.items()
    }
