"""GPUs, nodes and networks by name, and the time of collectives on them.

The table is `track/gpus.toml`. A user's file has the same form: its entries are added, or change
fields of existing entries; `like` starts an entry from another one.

In a ring of n ranks a collective sends (n - 1) / n of its message from each rank, and an all-reduce
twice that, with one latency per step (Thakur, Rabenseifner and Gropp, 2005; as in NCCL). If a group
spans nodes, the ranks of a node share the traffic between nodes, each over its own network card,
while the links of the node pass it on; the slower of the two determines the time. Between nodes an
all-reduce uses a tree if that has fewer latencies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import ceil, inf, log2
from typing import TYPE_CHECKING, NamedTuple, cast

from setpoint.config import (
    RUNTIME,
    Config,
    Problem,
    SetpointError,
    compose,
    did_you_mean,
    field,
    is_mapping,
    rule,
)
from setpoint.config.files.read import read_file
from setpoint.plan.topology import stride
from setpoint.track.accelerators import GPUS
from setpoint.units import ByteSize

if TYPE_CHECKING:
    from setpoint.config import FileDocument


CALL = 8.4e-6
"""Startup time of a collective in seconds (NCCL, src/graph/tuning.cc, rings and trees)."""


class RankGroup(NamedTuple):
    """A group of communicating ranks.

    Arguments:
        local: number of its ranks in one node.
    """

    ranks: int
    local: int

    @property
    def nodes(self) -> int:
        """Number of nodes of the group."""
        return ceil(self.ranks / self.local)


def group_of(degrees: Mapping[str, int], axes: str, ranks: int, node: int) -> RankGroup:
    """Place the ranks of some axes on nodes.

    Arguments:
        degrees: the degrees of all axes, outermost first.
        axes: axes, joined by "+".
        node: number of ranks per node; they are consecutive.
    """
    local = 1
    for axis in axes.split("+"):
        if axis in degrees:
            local *= min(degrees[axis], max(1, node // stride(degrees, axis)))
    return RankGroup(ranks, max(1, min(ranks, local, node)))


class Links(NamedTuple):
    """Links of a GPU within its node and to other nodes.

    Arguments:
        fast, slow: achieved bytes per second of collectives in one direction.
        near, far: latency of a ring step in seconds.
    """

    node: int
    fast: float
    slow: float
    near: float
    far: float

    @classmethod
    def of(cls, gpu: GpuSpec, network: Network) -> Links:
        """Links of a GPU at their assumed utilization."""
        inside = gpu.node
        return cls(
            inside.ranks,
            inside.bandwidth * inside.achieved,
            network.bandwidth * network.achieved,
            inside.latency,
            network.latency,
        )

    def seconds(self, kind: str, group: RankGroup, calls: int, size: float) -> float:
        """Seconds for consecutive collectives of one kind.

        Arguments:
            kind: as in rows of `setpoint.plan.traffic`.
            size: total bytes of all full messages.
        """
        ranks, local, nodes = group.ranks, group.local, group.nodes
        if ranks < 2 or not calls:
            return 0.0
        if kind == "send":
            bandwidth, latency = (self.fast, self.near) if nodes == 1 else (self.slow, self.far)
            return calls * latency + size / bandwidth
        if kind == "all_to_all":
            # Each rank sends a part of its message to every other rank, in any order.
            near, far = size * (local - 1) / ranks, size * (ranks - local) / ranks
            latency = self.near if nodes == 1 else self.far
            return calls * (CALL + latency) + max(near / self.fast, far / self.slow)
        latency = (ranks - nodes) * self.near + (nodes - 1) * self.far
        times = 2 if kind == "all_reduce" else 1
        if times == 2:
            tree = (local - 1) * self.near + ceil(log2(nodes)) * self.far
            latency = 2 * min(latency, tree)
        share = 1.0 if kind == "broadcast" else times * (ranks - 1) / ranks
        across = 1.0 if kind == "broadcast" else times * (nodes - 1) / nodes
        near = share * size / self.fast if local > 1 else 0.0
        far = across * size / (local * self.slow) if nodes > 1 else 0.0
        return calls * (CALL + latency) + max(near, far)


FORMATS = ("bf16", "fp16", "fp8", "tf32", "fp32")

SHARE = 0.9
"""Share of GPU memory for tensors; the rest is for the CUDA context, NCCL and fragmentation."""


def usable(memory: int) -> int:
    """Bytes of GPU memory that tensors can use."""
    return int(memory * SHARE)


class Network(Config, role=RUNTIME):
    """Link of a GPU to others.

    A message takes `latency` plus its bytes over `bandwidth * achieved`.
    """

    bandwidth: float = field(gt=0, lt=inf)
    """Bytes per second of one GPU in one direction, according to the data sheet."""

    latency: float = field(ge=0, lt=1)
    """Latency of one ring step in seconds."""

    achieved: float = field(default=0.8, gt=0, le=1)
    """Share of `bandwidth` that large collectives reach."""

    source: str = ""
    """Source of the numbers."""


class NodeLinks(Network):
    """Links between the GPUs of a node."""

    ranks: int = field(ge=1)
    """GPUs per node; others are reached over `network`."""


class PeakFlops(Config, role=RUNTIME):
    """FLOPs per second of dense matrix products, without sparsity, by dtype."""

    bf16: float | None = field(default=None, gt=0, lt=inf)
    """bfloat16 with fp32 accumulation."""

    fp16: float | None = field(default=None, gt=0, lt=inf)
    """float16 with fp32 accumulation."""

    fp8: float | None = field(default=None, gt=0, lt=inf)
    """8-bit floats with fp32 accumulation."""

    tf32: float | None = field(default=None, gt=0, lt=inf)
    """TensorFloat-32."""

    fp32: float | None = field(default=None, gt=0, lt=inf)
    """float32, without tensor cores."""


class Assumed(Config, role=RUNTIME):
    """Assumed utilization of a GPU in training."""

    matmul: float = field(default=0.7, gt=0, le=1)
    """Share of `peak` in large matrix products."""

    half_size: float = field(default=150.0, ge=0, lt=inf)
    """Matrix size at which half of `matmul` is reached, as 1 / (1/m + 1/n + 1/k)."""

    attention: float = field(default=0.45, gt=0, le=1)
    """Share of `peak` in fused attention, forward and backward together."""

    memory: float = field(default=0.8, gt=0, le=1)
    """Share of `bandwidth` in memory-bound operators."""

    launch: float = field(default=5e-6, ge=0, lt=1)
    """Launch overhead of an operator on the host in seconds."""

    contention: float = field(default=0.1, ge=0, le=1)
    """Seconds by which a second of communication slows the computation that overlaps it."""


class GpuSpec(Config, role=RUNTIME):
    """GPU with its node and the network between nodes."""

    like: str | None = None
    """GPU from which missing values are taken."""

    title: str = ""
    """Name of the product."""

    capability: float | None = field(default=None, gt=0, lt=100)
    """CUDA compute capability, such as 9.0; null: unknown."""

    memory: ByteSize = field(gt=0)
    """Memory of the GPU."""

    bandwidth: float = field(gt=0, lt=inf)
    """Memory bandwidth in bytes per second."""

    power: float | None = field(default=None, gt=0, lt=inf)
    """Power of a GPU at full load in watts."""

    price: float | None = field(default=None, ge=0, lt=inf)
    """Price per GPU-hour, in any currency; null: unknown."""

    network: str
    """Network between nodes, by its name in `networks`."""

    peak: PeakFlops = field(factory=PeakFlops)
    """FLOPs per second in matrix products."""

    node: NodeLinks
    """Links within a node."""

    assumed: Assumed = field(factory=Assumed)
    """Assumed utilization of the peaks."""

    source: str = ""
    """Source of the numbers."""

    @property
    def usable(self) -> int:
        """Bytes of memory that the tensors of a rank can use."""
        return usable(self.memory)

    @rule
    def _check_peak(self) -> Iterator[Problem]:
        if all(getattr(self.peak, name) is None for name in FORMATS):
            yield Problem("peak", "has no value for any format", valid=FORMATS)


class GpuTable(Config, role=RUNTIME):
    """File that describes GPUs."""

    networks: dict[str, Network] = field(factory=dict)
    """Networks by name."""

    gpus: dict[str, GpuSpec] = field(factory=dict)
    """GPUs by name."""

    @rule
    def _check_networks(self) -> Iterator[Problem]:
        for name, gpu in self.gpus.items():
            if gpu.network not in self.networks:
                yield Problem(
                    f"gpus.{name}.network",
                    f"unknown network {gpu.network!r}",
                    valid=tuple(self.networks),
                    hint=did_you_mean(gpu.network, self.networks),
                )


@lru_cache(maxsize=8)
def gpu_table(file: str | None = None) -> GpuTable:
    """Read the table of GPUs.

    Arguments:
        file: a user's file, with entries to add or change.

    Raises:
        SetpointError: the file cannot be read or is invalid; names file and line.
    """
    known = read_file(str(GPUS))
    del known.data["drivers"]
    if file is None:
        return compose(GpuTable, files=[known]).resolve()
    document = read_file(file)
    document.data.pop("drivers", None)  # a copy of the table has it
    for table in ("networks", "gpus"):
        given = document.data.get(table)
        if is_mapping(given):
            # A later file replaces an entry: omitted fields are copied from the previous one.
            document.data[table] = _filled(
                document, table, given, cast("_Table", known.data[table])
            )
    return compose(GpuTable, files=[known, document]).resolve()


_Table = dict[str, dict[str, object]]


def _filled(
    document: FileDocument, table: str, given: dict[str, object], known: _Table
) -> dict[str, object]:
    """Entries of a file, each merged with the entry that it changes or names in `like`."""
    merged: dict[str, object] = {}
    for name, entry in given.items():
        base: object = known.get(name, {})
        if is_mapping(entry) and isinstance(like := entry.get("like"), str):
            before = {**known, **merged}
            if like not in before:
                close = did_you_mean(like, before, " ")
                raise SetpointError(
                    f"{document.where((table, name, 'like'))}: {table}.{name}.like: no entry "
                    f"{like!r} before it.{close}\nValid: {', '.join(before)}"
                )
            base = before[like]
        merged[name] = _merged(base, entry)
    return merged


def _merged(base: object, entry: object) -> object:
    if not is_mapping(base) or not is_mapping(entry):
        return entry
    return {**base, **{key: _merged(base.get(key), value) for key, value in entry.items()}}


def gpu_named(name: str, file: str | None = None) -> tuple[GpuSpec, Network]:
    """Find a GPU and the network between its nodes by name.

    Raises:
        SetpointError: the name is unknown.
    """
    known = gpu_table(file)
    gpu = known.gpus.get(name) or known.gpus.get(name.lower())
    if gpu is None:
        close = did_you_mean(name, known.gpus, " ")
        raise SetpointError(
            f"--gpu: there is no GPU {name!r}.{close}\nValid: {', '.join(known.gpus)}\n"
            f"Describe other GPUs in a file, --gpu-file FILE: a table [gpus.{name}] with "
            f'like = "h100" and the values that differ'
        )
    return gpu, known.networks[gpu.network]
