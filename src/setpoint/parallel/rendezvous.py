"""How ranks find each other: by the store of torchrun, under a name of this attempt alone.

The agent of torchrun keeps one store over all restarts and changes of the number of nodes. Under
the same keys gloo finds the addresses of ranks that have ended, and never connects again
(https://github.com/pytorch/pytorch/issues/135712). Rank 0 therefore draws a name for each attempt,
and tells it to every rank that asks: what earlier attempts have left is no answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Event, Thread
from uuid import uuid4

from torch import distributed
from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

LOOK = 0.05
"""Seconds between two looks for ranks that ask."""


@contextmanager
def store_of_attempt(rank: int, size: int, waits: timedelta) -> Iterator[Store | None]:
    """Open the part of torchrun's store that the ranks of this attempt share.

    Returns:
        a context within which all ranks have to meet; None where no agent has a store, and the
        ranks meet as MASTER_ADDR and MASTER_PORT say.

    Raises:
        RuntimeError: if the store does not answer, or rank 0 does not, in time.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        yield None
        return
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

    def connect() -> TCPStore:
        return TCPStore(host, port, size, is_master=False, timeout=waits)

    store = connect()
    if rank:
        asked = uuid4().hex
        store.set(_question(rank), asked)
        yield PrefixStore(store.get(_answer(asked)).decode(), store)
        return
    name, met = uuid4().hex, Event()
    # A connection takes one request at a time.
    answering = Thread(target=_answer_all, args=(connect(), size, name, met), daemon=True)
    answering.start()
    try:
        yield PrefixStore(name, store)
    finally:
        met.set()
        answering.join()


def _answer_all(store: TCPStore, size: int, name: str, met: Event) -> None:
    """Tell the name of this attempt to each rank that asks, until all have met."""
    answered: dict[int, bytes] = {}
    with suppress(distributed.DistError):  # it has ended, as those who wait to meet hear and say
        while not met.wait(LOOK):
            for rank in range(1, size):
                if not store.check([_question(rank)]):
                    continue
                asked = store.get(_question(rank))
                if answered.get(rank) != asked:
                    store.set(_answer(asked.decode()), name)
                    answered[rank] = asked


def _question(rank: int) -> str:
    return f"setpoint/attempt/rank-{rank}"


def _answer(asked: str) -> str:
    return f"setpoint/attempt/{asked}"
