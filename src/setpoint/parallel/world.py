"""One process of a job: its device, its mesh coordinates and its collectives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, distributed, nn

from setpoint.config import Problem, SetpointError
from setpoint.parallel.config import AXES, CONTEXT, DATA, WITHIN, Parallel, Ranks
from setpoint.parallel.hangs import limit_waits, meeting_time
from setpoint.parallel.rank import require_launch
from setpoint.shapes.batch import SequenceParts
from setpoint.shapes.peers import BroadcastReader

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")
U = TypeVar("U")


class RemoteRankError(SetpointError):
    """An error of another rank, which that rank reports.

    Arguments:
        status: exit status of that rank.
    """

    def __init__(self, text: str, status: int = SetpointError.status) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class World:
    """One process of a job; the only one if there is no process group.

    Arguments:
        rank, size: index of this process, and number of processes.
        data_rank, data_size: index and number among processes with different data; ranks that
            divide one copy of the model, or one sequence, read the same data.
        degrees: the degree of each axis, see `parallel.config.AXES`; empty for one rank.
        coordinates: coordinates of this process on the axes.
        mesh: the mesh for parameters: `pipeline`, `replicate`, `shard` and `tensor`, with the
            context axes in `shard` or `replicate`; None for one rank.
        noise_axes: axes, in addition to the data axes, whose ranks draw different random numbers
            because they compute with different tokens.
        groups: cache of `group`.
        process_group: the process group used for collectives; None: the default one.
    """

    device: torch.device
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    data_rank: int = 0
    data_size: int = 1
    degrees: Mapping[str, int] = field(default_factory=dict)
    coordinates: Mapping[str, int] = field(default_factory=dict)
    mesh: DeviceMesh | None = None
    noise_axes: tuple[str, ...] = CONTEXT
    groups: dict[tuple[str, ...], ProcessGroup | None] = field(default_factory=dict, repr=False)
    process_group: ProcessGroup | None = field(default=None, repr=False)

    @property
    def is_main(self) -> bool:
        """True on rank 0, which writes the files of a run."""
        return self.rank == 0

    @property
    def gives_counts(self) -> bool:
        """True if sums over all ranks include the batch counts of this rank: one rank per batch."""
        return not any(place for axis, place in self.coordinates.items() if axis not in DATA)

    @property
    def gives_loss(self) -> bool:
        """True if this rank's share of the loss enters sums over all ranks.

        Ranks of the axis `tensor` have the same share, ranks of a context have different shares,
        and in a pipeline only the last stage has one.
        """
        return not self.coordinates.get("tensor")

    @property
    def noise_rank(self) -> int:
        """The index that seeds a step's random numbers, equal on ranks that compute the same."""
        rank = self.data_rank
        for axis in self.noise_axes:
            rank = rank * self.degrees.get(axis, 1) + self.coordinates.get(axis, 0)
        return rank

    def group(self, *axes: str) -> ProcessGroup | None:
        """The process group of ranks that differ from this one only along these axes.

        All ranks must make the same calls; a group is created once. Its ranks are in the order of
        `AXES`.

        Returns:
            None if the group would contain only this rank.
        """
        axes = tuple(axis for axis in AXES if axis in axes)
        if axes not in self.groups:
            self.groups[axes] = self._make_group(axes)
        return self.groups[axes]

    def _make_group(self, axes: tuple[str, ...]) -> ProcessGroup | None:
        if prod(self.degrees.get(axis, 1) for axis in axes) == 1:
            return None
        other_axes = [axis for axis in AXES if axis not in axes]
        own_group: Any = None
        for ranks in ranks_by(self.degrees, other_axes, axes).tolist():
            group = distributed.new_group(ranks, meeting_time(), group_desc="_".join(axes))
            if self.rank in ranks:
                own_group = group
        limit_waits(own_group)
        return own_group

    def with_own_group(self, name: str, timeout: float) -> World:
        """The same ranks with a separate gloo group, for use in another thread.

        Collectives of two threads in one group would get mixed up. All ranks must make the same
        calls.

        Arguments:
            timeout: the timeout of its collectives, in seconds.
        """
        if self.size == 1:
            return self
        limit = timedelta(seconds=timeout)
        group = distributed.new_group(backend="gloo", timeout=limit, group_desc=name)
        return replace(self, device=torch.device("cpu"), groups={}, process_group=group)

    def sum(self, *tensors: Tensor) -> None:
        """Replace tensors with their sums over all ranks, in place."""
        if self.size > 1:
            for tensor in tensors:
                distributed.all_reduce(tensor, group=self.process_group)

    def sum_numbers(self, *numbers: float) -> list[float]:
        """Sum host numbers over all ranks, without waiting for a device."""
        if self.size == 1:
            return list(numbers)
        group: Any = self.process_group or distributed.group.WORLD
        # The group of a user's program may support only GPUs.
        cpu = torch.device("cpu")
        device = cpu if cpu in group._device_types else self.device
        host = np.array(numbers, dtype=np.float64)
        sums = torch.from_numpy(host).to(device)
        distributed.all_reduce(sums, group=self.process_group)
        return host.tolist() if device.type == "cpu" else sums.tolist()

    def any(self, flag: bool) -> bool:
        """True if a flag is set on any rank."""
        if self.size == 1:
            return flag
        largest = torch.tensor(int(flag), device=self.device)
        distributed.all_reduce(largest, distributed.ReduceOp.MAX, group=self.process_group)
        return bool(largest)

    def on_main(self, act: Callable[[], T]) -> T:
        """Run a function on the main rank; all ranks get its result or error.

        Arguments:
            act: function that returns a picklable value.

        Raises:
            RemoteRankError: raised on the other ranks for any error on the main rank.
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
        distributed.broadcast_object_list(
            answer, src=0, group=self.process_group, device=self.device
        )
        if failure is not None:
            raise failure
        if answer[1] is not None:
            raise RemoteRankError(answer[1], answer[2])
        return answer[0]

    def all_of(self, value: T) -> list[T]:
        """Gather picklable values from all ranks, in rank order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value, group=self.process_group)
        return values

    def scatter_from_main(self, value: T, act: Callable[[list[T]], list[U]]) -> U:
        """Let the main rank compute an answer for each rank from the values of all ranks.

        Arguments:
            act: called with the values by rank; its arguments and results must be picklable.

        Raises:
            RemoteRankError: see `on_main`.
        """
        if self.size == 1:
            return act([value])[0]
        values: list[Any] = [None] * self.size
        distributed.gather_object(value, values if self.is_main else None, group=self.process_group)
        answers: list[U] = []
        self.on_main(lambda: answers.extend(act(values)))
        answer: list[Any] = [None]
        distributed.scatter_object_list(answer, answers or None, group=self.process_group)
        return answer[0]


class Replicas:
    """Data-parallel wrapper of a model; this base class, for one rank, does nothing.

    Arguments:
        model: the model, already divided if necessary.
    """

    holds_state = False
    """True if weights and optimizer state are stored in an engine-specific form."""
    sums_by_hand = False
    """True if gradients are summed by `GradientSums`, not by DDP or FSDP2."""
    count: int | None = None
    """Number of elements of all weights; None if the parameters of the model have it."""
    micro_batch: Callable[[bool], AbstractContextManager[Any]] = nullcontext
    """Context of a micro-batch; called with True for the last one of a step."""

    def __init__(self, model: nn.Module) -> None:
        self.model: Callable[..., Any] = model
        """Callable used in training, which calls `whole`."""
        self.whole = model
        self.on_last: Callable[[], None] = lambda: None
        """Called when a backward pass has all gradients and only waits for reductions of DDP."""

    def free(self) -> None:
        """Free full weights that a pass without gradients left gathered.

        Otherwise, later passes would use them after the weights have changed.
        """

    def shape_of(self, tensor: Tensor) -> torch.Size:
        """Full shape of a weight or buffer of the model."""
        return tensor.shape

    def local_bytes(self) -> dict[str, int]:
        """Bytes stored on this rank in an engine-specific form, by part."""
        return {}


def described(error: BaseException) -> str:
    """Format an error for the other ranks."""
    return str(error) if isinstance(error, SetpointError) else repr(error)


def choose_device(config: Ranks) -> torch.device:
    """Choose the device of the model; a rank started by a launcher gets its own GPU.

    Raises:
        SetpointError: a GPU is requested, but there is none.
    """
    kind = config.device
    if kind == "cuda" and not torch.cuda.is_available():
        raise SetpointError(
            "parallel.device = cuda: PyTorch sees no GPU on this machine; use --parallel.device "
            "auto or cpu"
        )
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    local = os.environ.get("LOCAL_RANK")
    if kind == "cuda" and local is not None:
        require_launch(meets=False)
        count = torch.cuda.device_count()
        if not local.isdecimal() or int(local) >= count:
            raise SetpointError(
                f"environment variable LOCAL_RANK = {local!r}, but PyTorch sees {count} GPUs on "
                f"this machine.\nValid: one rank for each of them, 0 to {count - 1}"
            )
        device = torch.device("cuda", int(local))
        torch.cuda.set_device(device)
        return device
    return torch.device(kind)


def device_problems(config: Ranks) -> Iterator[Problem]:
    """Report a device that is not available."""
    try:
        choose_device(config)
    except SetpointError as error:
        yield Problem("device", str(error).removeprefix("parallel.device = cuda: "))


def backend_problems(config: Parallel) -> Iterator[Problem]:
    """Report NCCL without a GPU."""
    if choose_device(config).type != "cuda":
        reason = "the device is cpu"
        if config.device == "auto":
            reason = "PyTorch sees no GPU on this machine"
        yield Problem(
            "backend",
            f"nccl runs only on GPUs, but {reason}",
            valid=("null", "gloo"),
            also=("device",),
        )


def world_of(config: Parallel) -> World:
    """Build this process's world.

    Raises:
        SetpointError: a GPU is requested, but there is none.
    """
    device = choose_device(config)
    if not (distributed.is_available() and distributed.is_initialized()):
        return World(device)
    from torch.distributed.device_mesh import DeviceMesh

    rank, size = distributed.get_rank(), distributed.get_world_size()
    # A command that uses one copy of the model, such as an evaluation, has only replicas.
    degrees = config.degrees if config.world_size == size else dict.fromkeys(AXES, 1)
    if prod(degrees.values()) != size:
        degrees["replicate"] = size
    places = np.unravel_index(rank, tuple(degrees.values()))
    coordinates = {axis: int(place) for axis, place in zip(AXES, places, strict=True)}
    data_degrees = [degrees[axis] for axis in DATA]
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
        data_rank=int(np.ravel_multi_index([coordinates[axis] for axis in DATA], data_degrees)),
        data_size=prod(data_degrees),
        degrees=degrees,
        coordinates=coordinates,
        noise_axes=noise_axes(config),
        mesh=mesh,
    )


def noise_axes(config: Parallel) -> tuple[str, ...]:
    """Axes, apart from the data axes, whose ranks have different tokens or layers."""
    extra = {"tensor": config.sequence_parallel, "pipeline": config.degrees["pipeline"] > 1}
    return (*CONTEXT, *(axis for axis, differs in extra.items() if differs))


def ranks_by(degrees: Mapping[str, int], *dims: Sequence[str]) -> NDArray[np.int64]:
    """Arrange the ranks of a job in an array.

    Arguments:
        dims: the axes of each dimension of the result; together all of `AXES`.

    Returns:
        rank numbers; the first axis of a dimension varies slowest.
    """
    ranks = np.arange(prod(degrees.values())).reshape([degrees[axis] for axis in AXES])
    order = [AXES.index(axis) for axes in dims for axis in axes]
    shape = [prod(degrees[axis] for axis in axes) for axes in dims]
    # PyTorch would take a view with other strides as a mesh with a different order of dimensions.
    return np.ascontiguousarray(ranks.transpose(order).reshape(shape))


def reader_of(config: Parallel, world: World) -> BroadcastReader | None:
    """Find the rank that reads weights for this one; None if each rank reads its own."""
    if config.load_weights == "every_rank":
        return None
    group = world.group("replicate", *WITHIN)
    return None if group is None else BroadcastReader(group, world.device)


def sequence_parts(config: Parallel, world: World) -> SequenceParts:
    """Find the positions of each sequence that belong to this rank."""
    degrees, coordinates = world.degrees, world.coordinates
    return SequenceParts(
        degrees.get("ring", 1),
        degrees.get("ulysses", 1),
        coordinates.get("ring", 0),
        coordinates.get("ulysses", 0),
        config.ring_split,
    )
