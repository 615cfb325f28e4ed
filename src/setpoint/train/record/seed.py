"""A seed that is drawn, once."""

from __future__ import annotations

import secrets

from setpoint.config import PROGRAM, Origin
from setpoint.train.config import Job


def draw_seed(draft: Job) -> None:
    """Replace a null seed by one that is drawn and so recorded; any other stays."""
    if draft.seed is None:
        draft.set_field("seed", secrets.randbits(62), Origin(PROGRAM, "drawn, since seed is null"))
