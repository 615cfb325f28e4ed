"""Creation and destruction of a job's process group, and its errors.

torchrun's agent keeps one store over all restarts and changes in the number of nodes. Under the
same keys, gloo would find the addresses of ranks that have ended, and never reconnect
(https://github.com/pytorch/pytorch/issues/135712). Rank 0 therefore draws a name for each attempt
and sends it to every rank that asks, so that leftovers of earlier attempts are ignored.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import uuid4

import torch
from torch import distributed
from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from setpoint.config import RunError, SetpointError, error_in_words
from setpoint.files.threads import Periodic
from setpoint.parallel.config import Parallel
from setpoint.parallel.hangs import HangWatch, record_collectives, step_has_ended
from setpoint.parallel.rank import (
    NO_FACTS,
    enter,
    facts_of,
    is_timeout,
    launched,
    leave,
    own_rank,
    require_launch,
)
from setpoint.parallel.world import RemoteRankError, choose_device

_LOST = ("connection closed by peer", "connection reset", "broken pipe", "timed out waiting",
         "nccl", "connection refused", "socket timeout", "gloo")  # fmt: skip
"""Messages of gloo and NCCL for a lost connection, which has no exception class."""
_STORE = (distributed.DistStoreError, distributed.DistNetworkError)
"""Errors of the rendezvous store if a rank is missing or the host of the store ends."""
POLL = 0.05
"""Polling interval for ranks that ask for the name of the attempt, in seconds."""


class LostRanks(RunError):
    """Another rank ended or did not answer in time; usually that rank reports the reason."""


@contextmanager
def joined(config: Parallel) -> Iterator[None]:
    """Join the other ranks of a launcher; no effect for a single rank, or within a process group.

    Raises:
        LostRanks: ranks are missing after the timeout, or one ends.
        RunError: the ranks cannot reach each other.
        SetpointError: the backend does not support the device, or the launcher's variables
            contradict each other.
    """
    if distributed.is_available() and distributed.is_initialized():
        yield
        return
    require_launch(meets=False)
    if launched() == 1:
        yield
        return
    _join(config)
    watch = HangWatch(own_rank(), config.timeout, config.step_timeout)
    try:
        with watch:
            yield
            step_has_ended()
            # The launcher would wait for a rank that hangs at the end.
            distributed.barrier()
    # Each rank reports before the others lose it and end; then its launcher ends it, too.
    except KeyboardInterrupt as stopped:
        leave(getattr(stopped, "status", 130))
        raise
    except RemoteRankError:
        raise
    except Exception as error:
        is_ours = isinstance(error, SetpointError)
        if is_ours or not (isinstance(error, RuntimeError) and is_about_other_ranks(error)):
            _report(error)
            raise
        lost = _lost_ranks(error, watch)
        _report(lost)
        raise lost from error
    finally:
        distributed.destroy_process_group()


def _join(config: Parallel) -> None:
    """Create the process group of all ranks."""
    device = choose_device(config)
    backend = backend_of(config, device)
    if "nccl" in backend:
        record_collectives()
    enter()
    rank, size, limit = own_rank(), launched(), timedelta(seconds=config.timeout)
    try:
        with store_of_attempt(rank, size, limit) as store:
            distributed.init_process_group(
                backend,
                timeout=limit,
                device_id=device if device.type == "cuda" else None,
                **({} if store is None else {"store": store, "rank": rank, "world_size": size}),
            )
            distributed.barrier()  # NCCL connects at the first collective
    except (RuntimeError, ValueError) as error:
        address = " ".join(
            f"{name}={os.environ.get(name)}" for name in ("MASTER_ADDR", "MASTER_PORT")
        )
        text = (
            f"rank {rank} of {size} did not connect to the others ({address}) within "
            f"parallel.timeout = "
            f"{config.timeout:g} s: {first_line(error)}"
        )
        if "EADDRINUSE" in str(error) or "address already in use" in str(error).lower():
            raise RunError(
                f"{text}. Another program or job is listening on this port: choose another "
                f"MASTER_PORT, or let torchrun choose one with --standalone"
            ) from error
        raise (LostRanks if is_about_other_ranks(error) else RunError)(text) from error


@contextmanager
def store_of_attempt(rank: int, size: int, timeout: timedelta) -> Iterator[Store | None]:
    """Open the part of torchrun's store shared by the ranks of this attempt.

    Returns:
        a context within which all ranks must meet; None if no agent has a store, in which case the
        ranks meet through MASTER_ADDR and MASTER_PORT.

    Raises:
        RuntimeError: the store or rank 0 does not answer in time.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        yield None
        return
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

    def connect() -> TCPStore:
        return TCPStore(host, port, size, is_master=False, timeout=timeout)

    store = connect()
    if rank:
        question = uuid4().hex
        store.set(f"setpoint/attempt/rank-{rank}", question)
        yield PrefixStore(store.get(f"setpoint/attempt/{question}").decode(), store)
        return
    name, answered = uuid4().hex, set[bytes]()
    answering = connect()  # a connection handles one request at a time

    def answer() -> None:
        """Send the name of this attempt to each rank that asks."""
        try:
            for other in range(1, size):
                key = f"setpoint/attempt/rank-{other}"
                if answering.check([key]) and (question := answering.get(key)) not in answered:
                    answering.set(f"setpoint/attempt/{question.decode()}", name)
                    answered.add(question)
        except distributed.DistError:
            answers.end()  # the store has ended, as the waiting ranks report

    with Periodic(POLL, answer, "setpoint-attempt") as answers:
        yield PrefixStore(name, store)


def backend_of(config: Parallel, device: torch.device) -> str:
    """Choose the backend of the process group."""
    if device.type != "cuda" or config.backend == "gloo":
        return "gloo"
    return "cpu:gloo,cuda:nccl"  # messages between hosts do not wait for their GPUs


def _report(error: Exception) -> None:
    """Report an error to the launcher, which is about to end this rank, and wait."""
    is_ours, is_lost = isinstance(error, SetpointError), isinstance(error, LostRanks)
    text = str(error) if is_ours else f"rank {own_rank()}: {error_in_words(error)}"
    status = error.status if isinstance(error, SetpointError) else RunError.status
    is_shown = leave(status, text, is_lost, NO_FACTS if is_lost else facts_of(error))
    if is_shown and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def is_about_other_ranks(error: Exception) -> bool:
    """True if an error says that other ranks ended or did not answer in time."""
    return isinstance(error, _STORE) or any(words in str(error).lower() for words in _LOST)


def _lost_ranks(error: Exception, watch: HangWatch) -> LostRanks:
    text = f"rank {watch.rank} lost its connection to the others: {first_line(error)}"
    if is_timeout(text):
        text += (
            f". One of them hangs or took longer than parallel.timeout = {watch.start:g} s (in a "
            f"step: step_timeout = {watch.step:g} s); where each rank was: {watch.where}"
        )
    return LostRanks(text)


def first_line(error: BaseException) -> str:
    """The message of a PyTorch error without source locations, advice and store keys.

    The text that PyTorch adds while DDP is waiting is removed, too: it describes the same loss of a
    rank, noticed slightly earlier or later.
    """
    line = str(error).strip().partition("\n")[0].partition(" This is typically")[0]
    line = line.partition(", keys: ")[0]
    line = re.sub(r"^Got the following error when running the callback: \w+: ", "", line)
    return re.sub(r"^\[\S+\.cc:\d+\] ", "", line).rstrip(".")
