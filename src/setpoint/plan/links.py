"""How long collectives take over the links of a machine: latencies and bytes over bandwidth.

A collective of n ranks in a ring sends (n - 1) / n of its message from each rank, an all-reduce
twice that, in as many steps of one latency each (Thakur, Rabenseifner and Gropp, 2005; NCCL's rings
are these). Where a group spans nodes, its ranks within a node share what goes between nodes, each
over its own network card, while the links of the node pass it round: the slower of both decides. An
all-reduce takes a tree between nodes where that has fewer latencies.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log2
from typing import TYPE_CHECKING, NamedTuple

from setpoint.plan.mesh import stride

if TYPE_CHECKING:
    from setpoint.plan.machines import Machine, Network

CALL = 8.4e-6
"""Seconds that a collective takes to begin (NCCL, src/graph/tuning.cc, rings and trees)."""


class Group(NamedTuple):
    """Ranks that communicate.

    Arguments:
        local: of them in one node.
    """

    ranks: int
    local: int

    @property
    def nodes(self) -> int:
        """How many nodes they lie in."""
        return ceil(self.ranks / self.local)


def group_of(degrees: Mapping[str, int], axes: str, ranks: int, node: int) -> Group:
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
    return Group(ranks, max(1, min(ranks, local, node)))


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
    def of(cls, machine: Machine, network: Network) -> Links:
        """The links of a machine, as far as they are assumed to be used."""
        inside = machine.node
        return cls(
            inside.ranks,
            inside.bandwidth * inside.achieved,
            network.bandwidth * network.achieved,
            inside.latency,
            network.latency,
        )

    def seconds(self, kind: str, group: Group, calls: int, size: float) -> float:
        """How long messages of one kind take, one after another.

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
