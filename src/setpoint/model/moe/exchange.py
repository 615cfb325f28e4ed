"""The exchange of tokens with experts on other ranks, as `parallel` asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from setpoint.model.config import TransformerConfig
from setpoint.model.moe.deepep import DeepEP
from setpoint.model.moe.dispatch import AllToAll, Exchange, OverTensor, here
from setpoint.parallel import config as sections

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from setpoint.model.config import ModelConfig
    from setpoint.shapes.peers import Peers


def build_exchange(
    dispatch: sections.Dispatch,
    model: ModelConfig,
    group: ProcessGroup | None,
    same_tokens: Peers | None,
    divides: bool,
    is_compiled: bool = False,
) -> Exchange:
    """Make the exchange that all layers of a model share.

    Arguments:
        group, same_tokens, divides: see `setpoint.parallel.expert_ranks.ExpertRanks`.

    Raises:
        SetpointError: what it needs is not installed.
    """
    exchange: Exchange = here
    if group is not None:
        exchange = AllToAll(group)
        if isinstance(dispatch, sections.DeepEP):
            assert isinstance(model, TransformerConfig) and model.moe is not None
            by, count = dispatch, model.moe.experts
            exchange = DeepEP(group, count, by.buffer_size, by.sms, by.async_combine)
    if same_tokens is not None:
        exchange = OverTensor(exchange, same_tokens, divides)
    if is_compiled:
        # How many rows come is known when they come: compiled code ends before, and goes on after.
        exchange = cast("Exchange", torch.compiler.disable(exchange))
    return exchange
