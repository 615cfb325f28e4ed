"""Even loads of experts that ranks divide: what a run asks its routers, and a dry run cannot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from setpoint.model.moe.dispatch import AllToAll, OverTensor

if TYPE_CHECKING:
    from torch import Tensor, nn

    from setpoint.model.moe.assign import Assignments
    from setpoint.shapes.peers import Peers


def even_loads(model: nn.Module) -> None:
    """Let as many rows of each layer go to the experts of each rank; those left to the first."""
    # Layers share one exchange.
    used = (getattr(module, "exchange", None) for module in model.modules())
    for exchange in {each for each in used if each is not None}:
        inner = exchange
        if isinstance(exchange, OverTensor):
            inner = exchange.inner
            cast("Any", exchange).share = _share_of(exchange.peers)
        if isinstance(inner, AllToAll):
            cast("Any", inner).rows_by_rank = rows_by_rank(inner.group.rank(), inner.ranks)


@contextmanager
def plain_products() -> Iterator[None]:
    """Let experts of transformers multiply by an operator that has a shape in any dtype."""
    moe: Any = sys.modules.get("transformers.integrations.moe")
    if moe is None:
        yield
        return
    before = moe._can_use_grouped_mm
    moe._can_use_grouped_mm = lambda *_, **__: False
    try:
        yield
    finally:
        moe._can_use_grouped_mm = before


def rows_by_rank(rank: int, ranks: int) -> Any:
    """What stands for `AllToAll.rows_by_rank` on a rank of the experts: all have as many tokens."""

    def told(leaving: Any, arriving: Any, rows: int) -> tuple[list[int], list[int]]:
        del leaving, arriving
        sent = [rows // ranks + (to < rows % ranks) for to in range(ranks)]
        return sent, [sent[rank]] * ranks

    return told


def _share_of(peers: Peers) -> Any:
    def share(
        tokens: int, top_k: int, assigned: Assignments, factors: Tensor | None
    ) -> tuple[Assignments, Tensor | None]:
        # Which rows these are is not known, but how many; no choice was dropped.
        first, last = (tokens * each // peers.size * top_k for each in (peers.rank, peers.rank + 1))
        held = assigned._replace(slots=assigned.slots[first:last].clone(), parts=None)
        return held, None if factors is None else factors[first:last].clone()

    return share
