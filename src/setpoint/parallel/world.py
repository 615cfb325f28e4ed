"""Which process this is among those of a job, on what device, and what they communicate."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, distributed

from setpoint.config import (
    RunError,
    SetpointError,
    error_in_words,
    log_of,
    traceback_to_show,
    whole_traceback,
)
from setpoint.parallel.config import AXES, Parallel
from setpoint.parallel.device import choose_device
from setpoint.parallel.hangs import (
    HangWatch,
    limit_waits,
    meeting_time,
    record_collectives,
    step_has_ended,
)
from setpoint.parallel.rank import (
    NO_FACTS,
    enter,
    has_waited,
    launched,
    leave,
    own_rank,
    require_launch,
)
from setpoint.parallel.rendezvous import store_of_attempt

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")
U = TypeVar("U")

_LOST = ("connection closed by peer", "connection reset", "broken pipe", "timed out waiting",
         "nccl", "connection refused", "socket timeout", "gloo")  # fmt: skip
_STORE = (distributed.DistStoreError, distributed.DistNetworkError)
"""What the store that ranks meet at raises where one does not come, or the one that has it ends."""


class ToldByMain(SetpointError):
    """What the main rank was refused, on the others, which need not say it again.

    Arguments:
        status: with which the main rank leaves.
    """

    def __init__(self, text: str, status: int = SetpointError.status) -> None:
        super().__init__(text)
        self.status = status


class LostRanks(RunError):
    """Another rank has ended, or did not answer in time; mostly it says itself why."""


@dataclass(frozen=True, slots=True)
class World:
    """One process of a job; without a process group it is the only one.

    Arguments:
        rank, size: of this process among all.
        data_rank, data_size: of this process among those that read different data: the ranks that
            divide one copy of the model, or one sequence, read the same.
        degrees: of each axis, see `parallel.config.AXES`; empty where there is one rank.
        at: this process's coordinate on each axis.
        mesh: for parameters: `pipeline`, `replicate`, `shard` and `tensor`, where the axes of
            context belong to `shard` or `replicate`; None where there is one rank.
        noise_axes: the axes, beside those of the data, whose ranks draw other random numbers: they
            compute with other tokens.
        groups: those that `group` has made.
        over: the process group of its collectives; None: the first, of all ranks.
    """

    device: torch.device
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    data_rank: int = 0
    data_size: int = 1
    degrees: Mapping[str, int] = field(default_factory=dict)
    at: Mapping[str, int] = field(default_factory=dict)
    mesh: DeviceMesh | None = None
    noise_axes: tuple[str, ...] = ("ring", "ulysses")
    groups: dict[tuple[str, ...], ProcessGroup | None] = field(default_factory=dict, repr=False)
    over: ProcessGroup | None = field(default=None, repr=False)

    @property
    def is_main(self) -> bool:
        """Whether this process writes what only one of them may write."""
        return self.rank == 0

    @property
    def gives_counts(self) -> bool:
        """Whether what this rank counts of its batch enters a sum over all ranks: once for each."""
        return not any(self.at.get(axis) for axis in ("pipeline", "ring", "ulysses", "tensor"))

    @property
    def gives_loss(self) -> bool:
        """Whether its share of the loss enters a sum over all ranks.

        Ranks of the axis `tensor` have the same; those of a context have parts of their own, and
        of a pipeline only the last stage has any.
        """
        return not self.at.get("tensor")

    @property
    def noise_rank(self) -> int:
        """By which a step's random numbers differ: ranks that compute the same draw the same."""
        found = self.data_rank
        for axis in self.noise_axes:
            found = found * self.degrees.get(axis, 1) + self.at.get(axis, 0)
        return found

    def group(self, *axes: str) -> ProcessGroup | None:
        """The process group of the ranks that differ from this one on these axes only.

        To be called by all ranks alike; it is made once. Its ranks are in the order of the axes of
        `AXES`, whatever the order here.

        Returns:
            None where that is this rank alone.
        """
        wanted = tuple(axis for axis in AXES if axis in axes)
        if wanted not in self.groups:
            self.groups[wanted] = self._make_group(wanted)
        return self.groups[wanted]

    def _make_group(self, axes: tuple[str, ...]) -> ProcessGroup | None:
        if prod(self.degrees.get(axis, 1) for axis in axes) == 1:
            return None
        others = [axis for axis in AXES if axis not in axes]
        own: Any = None
        for ranks in ranks_by(self.degrees, others, axes).tolist():
            made = distributed.new_group(ranks, meeting_time(), group_desc="_".join(axes))
            if self.rank in ranks:
                own = made
        limit_waits(own)
        return own

    def apart(self, name: str, timeout: float) -> World:
        """The same ranks with a gloo group of their own, for a thread beside the main one.

        Collectives of two threads in one group would be taken for each other. To be called by all
        ranks alike.

        Arguments:
            timeout: seconds that they wait for each other, whatever the main threads do.
        """
        if self.size == 1:
            return self
        waits = timedelta(seconds=timeout)
        made = distributed.new_group(backend="gloo", timeout=waits, group_desc=name)
        return replace(self, device=torch.device("cpu"), groups={}, over=made)

    def sum(self, *tensors: Tensor) -> None:
        """Replace tensors by their sums over all ranks, in place."""
        if self.size > 1:
            for tensor in tensors:
                distributed.all_reduce(tensor, group=self.over)

    def sum_numbers(self, *numbers: float) -> list[float]:
        """Sum numbers of the hosts over all ranks, for which no device is waited for."""
        if self.size == 1:
            return list(numbers)
        own = np.array(numbers, dtype=np.float64)
        group: Any = self.over or distributed.group.WORLD
        # A group that others have made may be of GPUs alone.
        on = torch.device("cpu") if torch.device("cpu") in group._device_types else self.device
        held = torch.from_numpy(own).to(on)
        distributed.all_reduce(held, group=self.over)
        return own.tolist() if on.type == "cpu" else held.tolist()

    def any(self, flag: bool) -> bool:
        """Whether a flag is set on any rank; the same answer on all of them."""
        if self.size == 1:
            return flag
        found = torch.tensor(int(flag), device=self.device)
        distributed.all_reduce(found, distributed.ReduceOp.MAX, group=self.over)
        return bool(found)

    def on_main(self, act: Callable[[], T]) -> T:
        """Let the main rank act alone, and all ranks get what it returns or is refused.

        Arguments:
            act: what it returns can be pickled.

        Raises:
            SetpointError: what the main rank raised; a `ToldByMain` on the others.
            RunError: if the main rank has failed otherwise.
        """
        if self.size == 1:
            return act()
        answer: list[Any] = [None, None, 1]
        failure: BaseException | None = None
        if self.is_main:
            try:
                answer[0] = act()
            except BaseException as error:
                failure, answer[1] = error, described(error)
                if isinstance(error, SetpointError):
                    answer[2] = error.status
        distributed.broadcast_object_list(answer, src=0, group=self.over, device=self.device)
        if failure is not None:
            raise failure
        if answer[1] is not None:
            raise ToldByMain(answer[1], answer[2])
        return answer[0]

    def all_of(self, value: T) -> list[T]:
        """The values of all ranks, by rank; they can be pickled."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        distributed.all_gather_object(found, value, group=self.over)
        return found

    def deal(self, value: T, act: Callable[[list[T]], list[U]]) -> U:
        """Let the main rank make of the values of all ranks one answer for each.

        Arguments:
            act: gets the values by rank; both can be pickled.

        Raises:
            SetpointError: see `on_main`.
        """
        if self.size == 1:
            return act([value])[0]
        values: list[Any] = [None] * self.size
        distributed.gather_object(value, values if self.is_main else None, group=self.over)
        answers: list[U] = []
        self.on_main(lambda: answers.extend(act(values)))
        own: list[Any] = [None]
        distributed.scatter_object_list(own, answers or None, group=self.over)
        return own[0]


def described(error: BaseException) -> str:
    """What other ranks hear of an error."""
    return str(error) if isinstance(error, SetpointError) else repr(error)


@contextmanager
def joined(config: Parallel) -> Iterator[None]:
    """Meet the other ranks of a launcher; nothing happens for one rank, or within a group.

    Raises:
        LostRanks: if they do not come in time, or one ends.
        RunError: if they cannot meet here.
        SetpointError: if the backend does not fit the device, or the launcher's variables
            contradict each other.
    """
    if distributed.is_available() and distributed.is_initialized():
        yield
        return
    require_launch(meets=False)
    if launched() == 1:
        yield
        return
    _meet(config)
    rank, watch = own_rank(), HangWatch(own_rank(), config.timeout, config.step_timeout)
    try:
        with watch:
            yield
            step_has_ended()
            # A rank that hangs at the end would leave the launcher waiting for it.
            distributed.barrier()
    # Each reports before the others lose this rank, and end: then its launcher ends it, too.
    except KeyboardInterrupt as stopped:
        leave(getattr(stopped, "status", 130))
        raise
    except ToldByMain:
        raise
    except SetpointError as error:
        _report(error.status, str(error), more=facts_of(error))
        raise
    except Exception as error:
        if isinstance(error, RuntimeError) and tells_of_others(error):
            lost = LostRanks(_lost(rank, error, watch))
            _report(lost.status, str(lost), is_lost=True)
            raise lost from error
        _report(RunError.status, f"rank {rank}: {error_in_words(error)}", more=facts_of(error))
        raise
    finally:
        distributed.destroy_process_group()


def _meet(config: Parallel) -> None:
    """Make the process group of all ranks; see `joined`."""
    device = choose_device(config)
    backend = backend_of(config, device)
    if "nccl" in backend:
        record_collectives()
    enter()
    rank, size, waits = own_rank(), launched(), timedelta(seconds=config.timeout)
    try:
        with store_of_attempt(rank, size, waits) as store:
            distributed.init_process_group(
                backend,
                timeout=waits,
                device_id=device if device.type == "cuda" else None,
                **({} if store is None else {"store": store, "rank": rank, "world_size": size}),
            )
            distributed.barrier()  # NCCL connects at the first collective
    except (RuntimeError, ValueError) as error:
        at = " ".join(f"{name}={os.environ.get(name)}" for name in ("MASTER_ADDR", "MASTER_PORT"))
        text = (
            f"rank {rank} of {size} has not met the others ({at}) within parallel.timeout = "
            f"{config.timeout:g} s: {first_line(error)}"
        )
        if "EADDRINUSE" in str(error) or "address already in use" in str(error).lower():
            raise RunError(
                f"{text}. Another program, or another job, listens at this port: choose another "
                f"MASTER_PORT, or let torchrun do so with --standalone"
            ) from error
        raise (LostRanks if tells_of_others(error) else RunError)(text) from error


def facts_of(error: BaseException) -> dict[str, str]:
    """What `rank.leave` takes of an error beside its words."""
    return {
        "traceback": traceback_to_show(error),
        "frames": whole_traceback(error),
        "log": log_of(error),
    }


def _report(
    status: int, error: str, is_lost: bool = False, more: Mapping[str, str] = NO_FACTS
) -> None:
    """Report an error to the launcher, which is about to end this rank, and let it wait."""
    is_shown = leave(status, error, is_lost, more)
    if is_shown and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def backend_of(config: Parallel, device: torch.device) -> str:
    """What collectives run on.

    Raises:
        SetpointError: if it does not fit the device.
    """
    if config.backend == "nccl" and device.type != "cuda":
        raise SetpointError(
            f"parallel.backend = nccl needs a GPU on each rank, and the device is {device}.\n"
            f"Valid: null, gloo"
        )
    both = "cpu:gloo,cuda:nccl"
    if device.type != "cuda" or config.backend == "gloo":
        return "gloo"
    return both  # what hosts tell each other does not wait for their GPUs


def tells_of_others(error: Exception) -> bool:
    """Whether other ranks have ended, or did not answer in time."""
    # What gloo and NCCL raise where a connection ends has no class of its own.
    return isinstance(error, _STORE) or any(sign in str(error).lower() for sign in _LOST)


def _lost(rank: int, error: Exception, watch: HangWatch) -> str:
    text = f"rank {rank} has lost the others: {first_line(error)}"
    if not has_waited(text):
        return text
    return (
        f"{text}. One of them hangs, or takes longer than parallel.timeout = {watch.start:g} s "
        f"(in a step: step_timeout = {watch.step:g} s); where each rank was: {watch.where}"
    )


def first_line(error: BaseException) -> str:
    """What an error says, without the place in gloo's source, its advice, and the keys of a store.

    Nor with what torch adds where DDP waits for it: the same loss, a moment earlier or later.
    """
    line = str(error).strip().partition("\n")[0].partition(" This is typically")[0]
    line = line.partition(", keys: ")[0]
    line = re.sub(r"^Got the following error when running the callback: \w+: ", "", line)
    return re.sub(r"^\[\S+\.cc:\d+\] ", "", line).rstrip(".")


def world_of(config: Parallel) -> World:
    """Find this process's place.

    Raises:
        SetpointError: if a GPU is asked for and there is none.
    """
    device = choose_device(config)
    if not (distributed.is_available() and distributed.is_initialized()):
        return World(device)
    from torch.distributed.device_mesh import DeviceMesh

    rank, size = distributed.get_rank(), distributed.get_world_size()
    # A command that uses one copy of the model, such as an evaluation, has replicas only.
    degrees = config.degrees if config.world_size == size else dict.fromkeys(AXES, 1)
    if prod(degrees.values()) != size:
        degrees["replicate"] = size
    at = dict(zip(AXES, _coordinates(rank, tuple(degrees.values())), strict=True))
    names = {"pipeline": ("pipeline",), "replicate": config.copying_axes,
             "shard": config.sharding_axes, "tensor": ("tensor",)}  # fmt: skip
    grid = ranks_by(degrees, *names.values())
    mesh = DeviceMesh(device.type, grid, mesh_dim_names=tuple(names))
    limit_waits(*mesh.get_all_groups())
    return World(
        device,
        rank,
        size,
        local_rank=int(os.environ.get("LOCAL_RANK", rank)),
        data_rank=at["replicate"] * degrees["shard"] + at["shard"],
        data_size=degrees["replicate"] * degrees["shard"],
        degrees=degrees,
        at=at,
        noise_axes=noise_axes(config),
        mesh=mesh,
    )


def noise_axes(config: Parallel) -> tuple[str, ...]:
    """The axes, beside those of the data, whose ranks have tokens or layers of their own."""
    others = {"tensor": config.sequence_parallel, "pipeline": config.degrees["pipeline"] > 1}
    return ("ring", "ulysses", *(axis for axis, differs in others.items() if differs))


def ranks_by(degrees: Mapping[str, int], *dims: Sequence[str]) -> NDArray[np.int64]:
    """Arrange the ranks of a job.

    Arguments:
        dims: the axes that each dimension of the result runs over; together all of `AXES`.

    Returns:
        numbers of ranks, the first axis of a dimension being its slowest.
    """
    ranks = np.arange(prod(degrees.values())).reshape([degrees[axis] for axis in AXES])
    order = [AXES.index(axis) for axes in dims for axis in axes]
    shape = [prod(degrees[axis] for axis in axes) for axes in dims]
    # A view of other strides is a mesh whose dimensions torch takes to be in another order.
    return np.ascontiguousarray(ranks.transpose(order).reshape(shape))


def _coordinates(rank: int, sizes: tuple[int, ...]) -> list[int]:
    found: list[int] = []
    for size in reversed(sizes):
        rank, place = divmod(rank, size)
        found.append(place)
    return found[::-1]
