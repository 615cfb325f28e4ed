"""What stops nothing and should still be known, told on standard error."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from setpoint.cli.style import styled
from setpoint.config import Caution


def print_notes(notes: Sequence[str]) -> None:
    """Print each note once, on standard error, so that what is printed for machines stays whole."""
    for note in dict.fromkeys(notes):
        print(f"{styled('note:', '1;33', sys.stderr)} {note}", file=sys.stderr)


def print_cautions(cautions: Sequence[Caution]) -> None:
    """Print what is legal but suspicious, on standard error."""
    for caution in cautions:
        print(
            f"{styled('caution:', '1;33', sys.stderr)} {caution.render().lstrip()}", file=sys.stderr
        )
