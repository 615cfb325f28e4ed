"""How the tokens of a job reach experts on other ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from setpoint.model.config import Transformer
from setpoint.model.moe.deepep import DeepEP
from setpoint.model.moe.dispatch import AllToAll, Exchange, OverTensor, here
from setpoint.parallel import config as sections

if TYPE_CHECKING:
    from setpoint.parallel.experts import ExpertRanks
    from setpoint.train.config import Job


def build_exchange(job: Job, ranks: ExpertRanks) -> Exchange:
    """Make the exchange that all layers of a model share.

    Raises:
        SetpointError: what it needs is not installed.
    """
    exchange: Exchange = here
    if ranks.group is not None:
        exchange = AllToAll(ranks.group)
        by = job.parallel.dispatch
        if isinstance(by, sections.DeepEP):
            assert isinstance(job.model, Transformer) and job.model.moe is not None
            count = job.model.moe.experts
            exchange = DeepEP(ranks.group, count, by.buffer_size, by.sms, by.async_combine)
    if ranks.alike is not None:
        exchange = OverTensor(exchange, ranks.alike, ranks.divides)
    if job.compile is not None:
        # How many rows come is known when they come: compiled code ends before, and goes on after.
        exchange = cast("Exchange", torch.compiler.disable(exchange))
    return exchange
