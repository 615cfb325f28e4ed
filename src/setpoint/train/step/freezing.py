"""Parameters that are frozen for a part of the run (`optimizer.frozen_spans`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from setpoint.optim.section import FrozenSpan
from setpoint.train.step.position import Position


class Freezing:
    """Says which parameters are frozen at a position.

    Their gradients are computed and dropped before the optimizer sees them, so that it leaves them
    and their state alone: what engines have built over the parameters stays as it is.

    Arguments:
        names: of all parameters that are trained at some time.
    """

    def __init__(self, spans: Sequence[FrozenSpan], names: Iterable[str]) -> None:
        held = list(names) if spans else []
        self.spans = [
            (span, frozenset(name for name in held if re.search(span.pattern, name)))
            for span in spans
        ]

    def now(self, position: Position) -> frozenset[str]:
        """The names of the parameters that are frozen in the step that begins at a position."""
        found = [names for span, names in self.spans if span.holds(position.in_unit)]
        return frozenset().union(*found)
