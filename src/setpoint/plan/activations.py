"""What the parts of a model keep of a micro-batch for its backward pass, on one rank.

Nothing here knows an operator. The file `activations.json` holds, for each kind of piece of a
model, how many bytes it keeps and how many are alive at its highest moments, as sums of products of
sizes whose coefficients were measured by running it (`python -m tests.plan.activations`). The
arithmetic looks a piece up and puts in the sizes that it has on a rank. What is not in the table is
not known: a dry run measures it.
"""

from __future__ import annotations

import json
from functools import cache, lru_cache
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from setpoint.plan.pieces import Piece
from setpoint.plan.topology import Topology, tokens_of
from setpoint.plan.workload import Kind, Workload

TABLE = Path(__file__).parent / "activations.json"

WORDS = {
    "latent": "latent attention",
    "rotary": "rotary positions",
    "kernel": "a fused kernel",
    "math": "sdpa_math",
    "capped": "a soft cap",
    "masked": "isolated documents",
    "documents": "isolated documents",
    "window": "a sliding window",
    "repeated": "key-value heads repeated for a kernel",
    "both": "layers with and without a window",
    "ring": "sequences divided by ring",
    "ulysses": "sequences divided by ulysses",
    "apart": "unpacked experts",
    "packed": "packed experts",
    "plain": "norms of a CPU",
    "inside": "hidden states in the compute format",
}
"""What words of keys mean to people, where these do not say it themselves."""


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


def in_words(key: str) -> str:
    """Spell out the key of a piece for people."""
    first, *rest = key.split()
    words = dict(WORDS)
    words["shared"] = "shared experts" if first == "experts" else "shared key-value heads"
    said: list[str] = []
    for word in rest:
        params, _, compute = word.partition("/")
        if params.isdecimal() and compute:
            said.append(f"weights of {params} bytes computed in {compute}")
        else:
            said.append(words.get(word, word))
    return " with ".join([words.get(first, first), ", ".join(said)])


def value_of(monomial: str, sizes: dict[str, int]) -> int:
    """Multiply the sizes that a word of letters names."""
    found = 1
    for letter in monomial:
        if letter != "1":
            found *= sizes[letter]
    return found


@cache
def known_keys() -> dict[str, dict[str, Any]]:
    """The table: of each key what is kept, the highest moments, and results of products."""
    return json.loads(TABLE.read_text(encoding="utf-8"))


def peak_of(entry: dict[str, Any], sizes: dict[str, int]) -> int:
    """Bytes alive at the highest moment of a piece, what it keeps included."""
    return max(_sum(curve, sizes) for curve in entry["peaks"])


def _sum(curve: dict[str, float], sizes: dict[str, int]) -> int:
    return round(sum(number * value_of(name, sizes) for name, number in curve.items()))


class _Piece(NamedTuple):
    """Bytes of a piece on a rank.

    Arguments:
        peak: alive at its highest moment, what it keeps included.
        products, kernel: results of its matrix products, and of attention as one operator.
        read: results of products that are read on the rank, and not only sent to others.
    """

    role: str
    kept: int
    peak: int
    products: tuple[int, ...]
    read: tuple[int, ...]
    kernel: int


@lru_cache(maxsize=4096)
def missing(workload: Workload, topology: Topology) -> str:
    """Say why what is kept is not known; empty where it is."""
    if workload.unknown:
        return workload.unknown
    for kind in workload.kinds:
        for piece in kind.pieces:
            key = _key(piece, _sizes(piece, workload, topology), topology)
            if key not in known_keys():
                return f"what this keeps was never measured: {in_words(key)}"
    return ""


def held_by(kind: Kind, workload: Workload, topology: Topology, number: int) -> Held:
    """Look up what a part keeps, where nothing is `missing`.

    Arguments:
        number: of the layer among those of its stage, by which some are recomputed.
    """
    return _held_by(kind, workload, _of_micro_batch(topology), number % topology.every)


@lru_cache(maxsize=65536)
def _of_micro_batch(topology: Topology) -> Topology:
    """The same without what a micro-batch on one rank does not depend on."""
    return topology._replace(
        pipeline=1, replicate=1, shard=2 if topology.uses_fsdp else 1, accumulation=1,
        reshard=None, schedule="1f1b", stages_per_rank=1, split=None,
    )  # fmt: skip


@lru_cache(maxsize=65536)
def _held_by(kind: Kind, workload: Workload, topology: Topology, number: int) -> Held:
    pieces = [_looked_up(piece, workload, topology) for piece in kind.pieces]
    stream = _beside(workload, topology) * workload.dim * workload.formats.params
    whole = sum(each.kept for each in pieces)
    left, work = whole, 0
    for each in reversed(pieces):
        # Beside its own gradient a norm has that of the residual stream around it.
        around = stream if each.role == "norm" else 0
        work = max(work, each.peak + around - (whole - left) - each.kept)
        work = max(work, left - each.kept + each.peak + around - whole)
        left -= each.kept
    if kind.name != "layer" or topology.recompute == "none" or number:
        return Held(whole, 0, work)
    policy, _, what = topology.recompute.partition(":")
    if policy == "full":
        return Held(stream, whole - stream, work)
    if policy == "parts":
        apart = {"attention": ("attention",), "feed_forward": ("feed_forward", "experts")}
        inputs = _beside(workload, topology) * workload.dim * workload.formats.compute
        again, kept = 0, whole
        for part, roles in apart.items():
            for each in pieces:
                if part in what and each.role in roles:
                    kept -= each.kept - inputs
                    again = max(again, each.kept - inputs)
        return Held(kept, again, work)
    save, _, every = what.partition("/")
    kept = stream
    if "matmul" in save:
        sent = "exchange" in save and topology.expert > 1
        products = [size for each in pieces for size in (each.read if sent else each.products)]
        kept += sum(products[:: int(every or 1)])
    if "attention" in save:
        kept += sum(each.kernel for each in pieces)
    if "exchange" in save and topology.expert > 1:
        kept += exchanged_bytes(kind, workload, topology)
    return Held(kept, max(0, whole - kept), work)


def exchanged_bytes(kind: Kind, workload: Workload, topology: Topology) -> int:
    """Bytes of what a layer's exchanges save: rows, weights of choices, counts, sums of results."""
    sizes = next((dict(each.sizes) for each in kind.pieces if each.role == "experts"), None)
    if sizes is None:
        return 0
    tokens = tokens_of(workload, topology)
    own = tokens if topology.expert_tensor > 1 else tokens // topology.tensor
    width = sizes["D"] * workload.formats.compute
    return own * sizes["U"] * (width + 4) + tokens * width + sizes["E"] * 8


def _beside(workload: Workload, topology: Topology) -> int:
    """Tokens of what lies between the matrices that `tensor` divides."""
    tokens = tokens_of(workload, topology)
    return tokens // topology.tensor if topology.sequence_parallel else tokens


def _looked_up(piece: Piece, workload: Workload, topology: Topology) -> _Piece:
    sizes = _sizes(piece, workload, topology)
    entry = known_keys()[_key(piece, sizes, topology)]
    casts = _casts_of_weights(piece, workload, topology, entry["kept"], sizes)
    # Rows that experts give; packed ones multiply all at once.
    packed = "packed" in piece.key.split()
    read = [each for each in entry["products"] if not (packed and "TUD" in each)]
    return _Piece(
        piece.role,
        _sum(entry["kept"], sizes) - casts,
        peak_of(entry, sizes) - casts,
        tuple(_sum(each, sizes) for each in entry["products"]),
        tuple(_sum(each, sizes) for each in read),
        _sum(entry["kernel"], sizes),
    )


def _casts_of_weights(
    piece: Piece,
    workload: Workload,
    topology: Topology,
    kept: dict[str, float],
    sizes: dict[str, int],
) -> int:
    """Bytes of weights that autocast casts and keeps, unless FSDP2 casts them beforehand."""
    formats, is_tied = workload.formats, piece.role == "output" and workload.tied
    if not topology.uses_fsdp or formats.gathered == formats.params or is_tied:
        return 0
    matrices = {n: size for n, size in kept.items() if len(n) > 1 and not set(n) & set("TSB")}
    return _sum(matrices, sizes)


def _key(piece: Piece, sizes: dict[str, int], topology: Topology) -> str:
    words = [piece.key]
    if piece.role == "attention":
        if "K" in sizes and sizes["H"] != sizes["K"]:
            words += ["shared"]
        else:
            words = [piece.key.replace(" repeated", "")]
        words += [axis for axis in ("ring", "ulysses") if getattr(topology, axis) > 1]
    return " ".join(words)


def _sizes(piece: Piece, workload: Workload, topology: Topology) -> dict[str, int]:
    """The sizes that a piece has on a rank."""
    sizes, ranks = dict(piece.sizes), topology.tensor
    tokens = tokens_of(workload, topology)
    sizes |= {"B": topology.micro_size, "T": tokens, "S": workload.length // topology.context}
    if piece.role in ("norm", "dropout"):
        sizes["T"] = _beside(workload, topology)
    elif piece.role == "attention":
        sizes["H"] = max(1, sizes["H"] // ranks)
        if "K" in sizes:
            sizes["K"] = max(1, sizes["K"] // ranks)
    elif piece.role == "feed_forward":
        sizes["F"] //= ranks
    elif piece.role == "experts":
        if "G" in sizes:
            sizes["G"] //= ranks
        sizes["F"] //= topology.expert_tensor
        # All ranks together have all choices of all tokens, evenly.
        sizes["E"] = sizes["E"] // topology.expert
    elif piece.role in ("embedding", "output"):
        sizes["V"] = ceil(sizes["V"] / ranks)
        if "C" in sizes:
            sizes["C"] = min(sizes["C"], tokens)
    return sizes
