"""What the commands that infer print of their results."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from setpoint.cli.output import styled, table

if TYPE_CHECKING:
    from setpoint.infer.inference import Results


def print_scores(scores: dict[str, Any]) -> None:
    """Print scores as a table."""
    rows = [
        [
            name,
            f"{score.loss:.4f}",
            f"{score.perplexity:,.4f}",
            f"{score.bits_per_byte:.4f}",
            f"{score.tokens:,}",
            f"{score.bytes:,}",
        ]
        for name, score in scores.items()
    ]
    print(table(rows, ["text", "loss", "perplexity", "bits per byte", "tokens", "bytes"]))


def tell_profiles(results: Results) -> None:
    """Print what was profiled, beside the results."""
    for line in results.profiles.format_lines() if results.profiles is not None else ():
        print(line, file=sys.stderr)


def tell_cautions(results: Results) -> None:
    """Print cautions about the results, beside them."""
    for caution in results.cautions:
        print(f"{styled('caution:', '1;33', sys.stderr)} {caution}", file=sys.stderr)
