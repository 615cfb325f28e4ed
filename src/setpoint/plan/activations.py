"""What the parts of a model keep of a micro-batch for its backward pass, on one rank."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from setpoint.plan.workload import Kind, Topology, Workload, tokens_of


class Held(NamedTuple):
    """Bytes of one part of a model, of one micro-batch on one rank.

    Arguments:
        kept: from the forward pass to the backward pass.
        again: beside it, when what was not kept is computed again.
        work: of the backward pass beside these, for a moment.
    """

    kept: int
    again: int
    work: int


@lru_cache(maxsize=65536)
def held_by(kind: Kind, workload: Workload, topology: Topology, number: int) -> Held | None:
    """Look up what a part keeps.

    Arguments:
        number: of the layer among those of its stage, by which some are recomputed.

    Returns:
        None where it is not known here.
    """
    if workload.unknown or kind.name == "model":
        return None
    tokens = tokens_of(workload, topology)
    formats, dim = workload.formats, workload.dim
    compute, stream = formats.compute, formats.params
    beside = tokens // (topology.tensor if topology.sequence_parallel else 1)
    if kind.name == "embedding":
        return Held(8 * tokens, 0, beside * dim * stream)
    if kind.name == "output":
        rows = -(-workload.rows // topology.tensor)
        return Held(
            beside * dim * stream + tokens * dim * compute + tokens * rows * 4,
            0,
            tokens * rows * (4 + compute),
        )
    sizes: dict[str, int] = {}
    for piece in kind.pieces:
        sizes |= dict(piece.sizes)
    heads = sizes["H"] // topology.tensor
    keys = sizes.get("K", sizes["H"]) // topology.tensor or 1
    query = sizes.get("Q") or sizes["N"] + sizes["R"]
    width = sizes["F"] // topology.tensor * sizes.get("U", 1)
    norms = 2 * beside * (dim * stream + 4)
    attention = tokens * (dim * compute + 2 * (heads + keys) * query * compute + 4 * heads)
    rest = tokens * (dim * compute + 4 * width * compute)
    whole, entry = norms + attention + rest, beside * dim * stream
    work = tokens * width * compute * 2
    policy, _, what = topology.recompute.partition(":")
    if policy == "none" or number % topology.every:
        return Held(whole, 0, work)
    if policy == "full":
        return Held(entry, whole - entry, work)
    if policy == "parts":
        left = whole - attention * ("attention" in what) - rest * ("feed_forward" in what)
        return Held(left, max(attention, rest), work)
    products = tokens * compute * ((heads + 2 * keys) * query + 2 * dim + 2 * width)
    kernel = tokens * heads * (query * compute + 4)
    left = entry + products * ("matmul" in what) + kernel * ("attention" in what)
    return Held(left, max(0, whole - left), work)
