"""Fault-tolerant replica groups, which may fail and rejoin while others train (torchft).

See https://docs.pytorch.org/torchft. Each step begins with a quorum of the live groups; a group
that is behind gets the state of one that is not. Gradients are summed over the quorum; if a group
is lost during a step, the others repeat the step.

A group may have several ranks, arranged in the same way in all groups. Each rank communicates with
the ranks of the same index in the other groups: it sums values over them, and gets its part of the
state from one of them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor
from torch.distributed import ReduceOp, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from setpoint.config import RunError, SetpointError
from setpoint.parallel.buckets import sum_in_buckets

if TYPE_CHECKING:
    from setpoint.parallel.config import TorchFT
    from setpoint.parallel.world import World

VARIABLE = "TORCHFT_LIGHTHOUSE"
"""Torchft's variable for the address of its lighthouse."""


class ReplicaGroups:
    """This replica group and its quorum.

    Arguments:
        wait: seconds to wait for a quorum, during which other groups may evaluate or save.
        compatibility_key: a text that is the same in all groups.
        world: the ranks of this group; each of them creates such an object.

    Raises:
        SetpointError: torchft is not installed, or no lighthouse is named.
        RunError: the lighthouse does not answer.
    """

    def __init__(self, section: TorchFT, wait: float, compatibility_key: str, world: World) -> None:
        lighthouse = section.lighthouse or os.environ.get(VARIABLE)
        if not lighthouse:
            raise SetpointError(
                f"parallel.torchft.lighthouse = null, and {VARIABLE} is not set.\nValid: the "
                f"address that `torchft_lighthouse` prints, such as http://host:29510"
            )
        # Otherwise it prints several lines in each step.
        os.environ.setdefault("RUST_LOG", "warn")
        logging.getLogger("torchft.manager").setLevel(logging.ERROR)
        try:
            torchft: Any = import_module("torchft")  # an optional dependency
        except ModuleNotFoundError as error:
            raise SetpointError(
                f"parallel.torchft needs the package {error.name!r}: install "
                f"'setpoint[torchft]' (Linux only)\nValid: null"
            ) from None
        self.section, self.lighthouse, self.wait = section, lighthouse, wait
        self.world = world
        # Small enough that the sum over all groups is exact.
        digest = hashlib.sha256(compatibility_key.encode()).digest()
        self._key = float(int.from_bytes(digest[:5], "big"))
        self.capture: Callable[[], dict[str, Any]] = dict
        """Captures the state for a group that rejoins."""
        self.restore: Callable[[dict[str, Any]], None] = lambda state: None
        """Restores the state of another group."""
        self.retaken: Callable[[int], None] = lambda groups: None
        """Called for a step that is retaken, with the number of groups of the attempt."""
        within = timedelta(seconds=section.timeout)
        group = (
            torchft.ProcessGroupNCCL
            if section.process_group == "nccl"
            else torchft.ProcessGroupGloo
        )
        stores: list[TCPStore] = []

        def meet() -> tuple[str, int]:
            """Open the store for the rendezvous of groups and of this group's ranks."""
            host = socket.gethostname()
            stores.append(TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=within))
            return host, stores[0].port

        try:
            host, port = world.on_main(meet)
            self._stores = stores
            self._manager: Any = torchft.Manager(
                pg=group(within),
                load_state_dict=lambda state: self.restore(state),
                state_dict=lambda: self.capture(),
                min_replica_size=section.min_replica_size,
                # A returning group gets the state of the others before it takes part.
                use_async_quorum=False,
                timeout=within,
                quorum_timeout=timedelta(seconds=wait),
                connect_timeout=within,
                rank=world.rank,
                world_size=world.size,
                store_addr=host,
                store_port=port,
                lighthouse_addr=lighthouse,
                replica_id=str(section.replica_id),
                hostname=host,
                init_sync=False,  # the same seed gives all groups the same weights
            )
        except (RuntimeError, TimeoutError) as error:
            raise RunError(self._no_answer(error, section.timeout)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.shutdown(wait=False)

    @property
    def rank(self) -> int:
        """Rank of this group in the quorum."""
        return self._manager.participating_rank() or 0

    @property
    def size(self) -> int:
        """Number of groups in the quorum."""
        return self._manager.num_participants()

    @property
    def is_broken(self) -> bool:
        """True if a collective of this rank failed, which makes its step invalid."""
        return self._manager.errored() is not None

    @property
    def breaks(self) -> bool:
        """True if a collective of any rank of this group failed; itself a collective."""
        return self.world.any(self.is_broken)

    def begin(self, step: int) -> None:
        """Form the quorum of the next step, and fetch missing state from another group.

        Arguments:
            step: number of steps that this group has completed.

        Raises:
            RunError: no quorum forms in time.
        """
        counted = self._manager.state_dict()
        self._manager.load_state_dict({**counted, "step": step})
        try:
            self._manager.start_quorum()
        except (RuntimeError, TimeoutError) as error:
            raise RunError(self._no_answer(error, self.wait)) from error

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors of one dtype with their sums over the groups, in place.

        Each rank sums its part of tensors that are divided within a group. If a group is lost,
        `is_broken` is set.
        """
        sum_in_buckets(tensors, lambda flat: self._manager.allreduce(flat, reduce_op=ReduceOp.SUM))

    def sum_counts(self, counts: Tensor) -> None:
        """Replace the counts of a step with their sums over groups, in place; see `sum`.

        Arguments:
            counts: the counts of all ranks of this group.

        Raises:
            SetpointError: the groups train different jobs.
        """
        key = counts.new_tensor([self._key])
        self.sum([counts, key])
        if not self.is_broken and key.item() != self._key * self.size:
            raise SetpointError(
                f"parallel.torchft: the {self.size} replica groups at {self.lighthouse} differ in "
                f"their fingerprint, their ranks, or in batch.micro_size, batch.accumulation or "
                f"parallel.torchft.group_size.\nValid: the same configuration, and a separate "
                f"lighthouse for each run"
            )

    def commits(self) -> bool:
        """True if the groups commit the step; otherwise it must be repeated.

        Raises:
            RunError: the manager does not answer.
        """
        try:
            taken = self._manager.should_commit()
        except (RuntimeError, TimeoutError) as error:
            raise RunError(self._no_answer(error, self.section.timeout)) from error
        if not taken:
            self.retaken(self.size)
        return taken

    def _no_answer(self, error: Exception, seconds: float) -> str:
        line = str(error).strip().partition("\n")[0]
        return (
            f"parallel.torchft: replica group {self.section.replica_id} got no answer from the "
            f"lighthouse at {self.lighthouse}, or found too few other groups, within {seconds:g} "
            f"s: {line}"
        )
