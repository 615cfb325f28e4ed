"""GPUs, nodes and networks by name: peaks, time of collectives, and the cost of a run.

The table is `gpus.toml`, beside this file. A file of the user's has the same form: its entries
are added, or change fields of existing ones; `like` starts an entry from another one.

A collective of n ranks in a ring sends (n - 1) / n of its message from each rank, an all-reduce
twice that, in as many steps of one latency each (Thakur, Rabenseifner and Gropp, 2005; NCCL's rings
are these). Where a group spans nodes, its ranks within a node share what goes between nodes, each
over its own network card, while the links of the node pass it round: the slower of both decides. An
all-reduce takes a tree between nodes where that has fewer latencies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import ceil, inf, log2
from pathlib import Path
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
from setpoint.units import ByteSize

if TYPE_CHECKING:
    from setpoint.config import Document


CALL = 8.4e-6
"""Seconds that a collective takes to begin (NCCL, src/graph/tuning.cc, rings and trees)."""


class RankGroup(NamedTuple):
    """Ranks that communicate.

    Arguments:
        local: of them in one node.
    """

    ranks: int
    local: int

    @property
    def nodes(self) -> int:
        """The number of nodes of the group."""
        return ceil(self.ranks / self.local)


def group_of(degrees: Mapping[str, int], axes: str, ranks: int, node: int) -> RankGroup:
    """Place the ranks that axes join on nodes.

    Arguments:
        degrees: of all axes, the outermost first.
        axes: joined by "+".
        node: ranks of a node, which hold neighbouring numbers.
    """
    local = 1
    for axis in axes.split("+"):
        if axis in degrees:
            local *= min(degrees[axis], max(1, node // stride(degrees, axis)))
    return RankGroup(ranks, max(1, min(ranks, local, node)))


class Links(NamedTuple):
    """The links of a GPU: to those of its node, and to other nodes.

    Arguments:
        fast, slow: bytes per second that collectives reach in one direction.
        near, far: seconds of a step of a ring.
    """

    node: int
    fast: float
    slow: float
    near: float
    far: float

    @classmethod
    def of(cls, gpu: GpuSpec, network: Network) -> Links:
        """The links of a GPU, as far as they are assumed to be used."""
        inside = gpu.node
        return cls(
            inside.ranks,
            inside.bandwidth * inside.achieved,
            network.bandwidth * network.achieved,
            inside.latency,
            network.latency,
        )

    def seconds(self, kind: str, group: RankGroup, calls: int, size: float) -> float:
        """Seconds of messages of one kind, one after another.

        Arguments:
            kind: as the rows of `setpoint.plan.traffic` have it.
            size: bytes of all whole messages together.
        """
        ranks, local, nodes = group.ranks, group.local, group.nodes
        if ranks < 2 or not calls:
            return 0.0
        if kind == "send":
            bandwidth, latency = (self.fast, self.near) if nodes == 1 else (self.slow, self.far)
            return calls * latency + size / bandwidth
        if kind == "all_to_all":
            # Of each rank's message a part goes to every other rank, in any order.
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


KNOWN = Path(__file__).with_name("gpus.toml")
FORMATS = ("bf16", "fp16", "fp8", "tf32", "fp32")

SHARE = 0.9
"""Of the memory of a GPU: the rest is for the device's context, NCCL and an allocator's gaps."""


def usable(memory: int) -> int:
    """Bytes of a GPU's memory that tensors may take."""
    return int(memory * SHARE)


class Network(Config, role=RUNTIME):
    """A link of a GPU to others.

    A message over it takes `latency` and its bytes over `bandwidth * achieved`.
    """

    bandwidth: float = field(gt=0, lt=inf)
    """Bytes per second of one GPU in one direction, by the maker's sheet."""

    latency: float = field(ge=0, lt=1)
    """Seconds of one step of a ring."""

    achieved: float = field(default=0.8, gt=0, le=1)
    """Share of `bandwidth` that collectives of large messages reach."""

    source: str = ""
    """Source of the numbers."""


class NodeLinks(Network):
    """The ranks that the fastest links join, and these links."""

    ranks: int = field(ge=1)
    """GPUs that are joined; the others are reached over `network`."""


class PeakFlops(Config, role=RUNTIME):
    """Operations per second in dense matrix products, without sparsity, by number format."""

    bf16: float | None = field(default=None, gt=0, lt=inf)
    """bfloat16 with sums in fp32."""

    fp16: float | None = field(default=None, gt=0, lt=inf)
    """float16 with sums in fp32."""

    fp8: float | None = field(default=None, gt=0, lt=inf)
    """8 bits with sums in fp32."""

    tf32: float | None = field(default=None, gt=0, lt=inf)
    """TensorFloat-32."""

    fp32: float | None = field(default=None, gt=0, lt=inf)
    """float32, without matrix units."""


class Assumed(Config, role=RUNTIME):
    """Share of its peaks that a GPU is assumed to reach in training."""

    matmul: float = field(default=0.7, gt=0, le=1)
    """Share of `peak` in large matrix products."""

    half_size: float = field(default=150.0, ge=0, lt=inf)
    """Size of a matrix product at which half of `matmul` is reached: 1 / (1/m + 1/n + 1/k)."""

    attention: float = field(default=0.45, gt=0, le=1)
    """Share of `peak` in attention that keeps no scores, forward and backward together."""

    memory: float = field(default=0.8, gt=0, le=1)
    """Share of `bandwidth` in operators that move more than they compute."""

    launch: float = field(default=5e-6, ge=0, lt=1)
    """Seconds that the host takes for an operator."""

    contention: float = field(default=0.1, ge=0, le=1)
    """Seconds by which a second of messages slows the computation beside it."""


class GpuSpec(Config, role=RUNTIME):
    """A GPU, the node that it stands in, and the network between nodes."""

    like: str | None = None
    """The GPU whose values this one has where it does not give its own."""

    title: str = ""
    """The maker's name."""

    capability: float | None = field(default=None, gt=0, lt=100)
    """CUDA compute capability, such as 9.0; null: unknown."""

    memory: ByteSize = field(gt=0)
    """Memory of a GPU."""

    bandwidth: float = field(gt=0, lt=inf)
    """Bytes per second of its memory."""

    power: float | None = field(default=None, gt=0, lt=inf)
    """Watts of a GPU at full load."""

    price: float | None = field(default=None, ge=0, lt=inf)
    """Price of a GPU for an hour, in any currency; null: unknown."""

    network: str
    """The network between nodes, by its name in `networks`."""

    peak: PeakFlops = field(factory=PeakFlops)
    """Operations per second in matrix products."""

    node: NodeLinks
    """The ranks that the fastest links join."""

    assumed: Assumed = field(factory=Assumed)
    """Share of the peaks that is assumed to be reached."""

    source: str = ""
    """Source of the numbers."""

    @property
    def usable(self) -> int:
        """Bytes of memory that tensors of a rank may take."""
        return usable(self.memory)

    @rule
    def _check_peak(self) -> Iterator[Problem]:
        if all(getattr(self.peak, name) is None for name in FORMATS):
            yield Problem("peak", "has no number of any format", valid=FORMATS)


class GpuTable(Config, role=RUNTIME):
    """A file of GPUs."""

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
                    f"there is no network {gpu.network!r}",
                    valid=tuple(self.networks),
                    hint=did_you_mean(gpu.network, self.networks),
                )


@lru_cache(maxsize=8)
def gpu_table(file: str | None = None) -> GpuTable:
    """All GPUs that are known.

    Arguments:
        file: of the user's, whose entries are added and changed.

    Raises:
        SetpointError: the file cannot be read, or says what cannot be; with file and line.
    """
    if file is None:
        return compose(GpuTable, files=[KNOWN]).resolve()
    document = read_file(file)
    known = read_file(str(KNOWN)).data
    for table in ("networks", "gpus"):
        given = document.data.get(table)
        if is_mapping(given):
            # A later file replaces an entry: what it leaves out is put in from the one before.
            document.data[table] = _filled(document, table, given, cast("_Table", known[table]))
    return compose(GpuTable, files=[KNOWN, document]).resolve()


_Table = dict[str, dict[str, object]]


def _filled(
    document: Document, table: str, given: dict[str, object], known: _Table
) -> dict[str, object]:
    """The entries of a file, each on top of the one that it changes or is like."""
    made: dict[str, object] = {}
    for name, entry in given.items():
        base: object = known.get(name, {})
        if is_mapping(entry) and isinstance(like := entry.get("like"), str):
            before = {**known, **made}
            if like not in before:
                close = did_you_mean(like, before, " ")
                raise SetpointError(
                    f"{document.where((table, name, 'like'))}: {table}.{name}.like: there is no "
                    f"{like!r} before it.{close}\nValid: {', '.join(before)}"
                )
            base = before[like]
        made[name] = _merged(base, entry)
    return made


def _merged(base: object, entry: object) -> object:
    if not is_mapping(base) or not is_mapping(entry):
        return entry
    return {**base, **{key: _merged(base.get(key), value) for key, value in entry.items()}}


def gpu_named(name: str, file: str | None = None) -> tuple[GpuSpec, Network]:
    """A GPU and the network between its nodes.

    Raises:
        SetpointError: there is none of this name.
    """
    known = gpu_table(file)
    gpu = known.gpus.get(name) or known.gpus.get(name.lower())
    if gpu is None:
        close = did_you_mean(name, known.gpus, " ")
        raise SetpointError(
            f"--gpu: there is no GPU {name!r}.{close}\nValid: {', '.join(known.gpus)}\n"
            f"Others are described in a file, --gpu-file FILE: a table [gpus.{name}] with "
            f'like = "h100" and what differs'
        )
    return gpu, known.networks[gpu.network]
