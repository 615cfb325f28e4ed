"""Several ranks train what one rank trains: losses, norms and weights, for each way to divide."""

from dataclasses import astuple
from pathlib import Path

import pytest
import torch

from setpoint.config import ConfigError, resolve
from setpoint.parallel.config import Parallel
from setpoint.parallel.divide import divide_sequences
from setpoint.parallel.pipelining import SCHEDULES
from setpoint.parallel.world import World, reader_of
from setpoint.resilience.signals import Abandoned, StopRequest
from setpoint.train.build.components import build_components
from setpoint.train.evaluation.scores import evaluate
from setpoint.train.loop import Loop
from setpoint.train.position import Position

from ..support.forks import forked
from ..support.ranks import run_on_ranks
from ..support.snapshots import refused
from ..train.small import small_job
from .equal_ranks import CASES as JOBS
from .equal_ranks import EXPERTS

FEW = (
    "uneven rows", "experts with biases", "muon", "replicated parameters",
    "noise on embeddings, uneven rows",
    "a stream in the order of its file", "batches that grow",
)  # fmt: skip


def compare(ranks: int, *cases: str) -> str:
    return forked("tests.parallel.equal_ranks", str(ranks), *cases)


def test_two_ranks_train_what_one_does() -> None:
    said = compare(2, *FEW)
    assert "uneven rows, shard=1: equal" in said and "muon, shard=2: equal" in said


def test_two_ranks_divide_experts() -> None:
    compare(2, "shard=2,expert=2", "tensor=2,expert_tensor=2", "divided experts, capacity")


# One graph holds whole sequences and layers; divided experts have shapes of their own.
UNDIVIDED = [name for name in JOBS if name not in EXPERTS and name != "whole graph"]
RING_OR_ULYSSES = ("ring=2,shard_over_context=none", "ring=2", "ulysses=2",
                   "ring=2,ring_split=contiguous")  # fmt: skip
MATRICES = ("tensor=2,sequence_parallel=false", "tensor=2", "tensor=2,loss_parallel=false")
STAGED = ("tied embeddings", "uneven rows", "experts with auxiliary losses", "batches that grow")
SLOW: dict[str, tuple[int, tuple[str, ...]]] = {
    # All cases on four ranks take a quarter of an hour.
    **{f"{ranks} ranks, every case, {piece}": (ranks, (*list(JOBS)[piece::8],))
       for ranks in (2, 4) for piece in range(8)},
    **{f"2 ranks of a sequence, every case, {piece}":
       (2, (*RING_OR_ULYSSES, *UNDIVIDED[piece::4])) for piece in range(4)},
    "2 ranks of matrices, every case": (2, MATRICES),
    "2 stages, every case": (2, ("pipeline=2", *UNDIVIDED)),
    **{f"2 stages, {schedule}":
       (2, (f"pipeline=2,pipelining.schedule={schedule}", "plain", "experts with biases", "muon",
            "compiled by aot_eager")) for schedule in SCHEDULES},
    "4 ranks of sequences": (
        4, ("ring=2,ulysses=2", "ring=2,shard=2", "ulysses=2,replicate=2", "ring=4",
            "ring=2,ulysses=2,shard_over_context=ring", "packed documents",
            "experts balanced by sequence", "evaluated", "compiled")),
    "4 ranks of sequences and matrices": (
        4, ("tensor=2,ring=2", "sliding windows", "experts with auxiliary losses",
            "experts balanced by sequence")),
    "4 ranks of sequences and stages": (
        4, ("pipeline=2,ring=2", "pipeline=2,ulysses=2", "packed documents", "sliding windows",
            "plain", *STAGED[::2])),
    "4 ranks of matrices": (
        4, ("tensor=2,shard=2,sequence_parallel=false", "tensor=2,replicate=2", "tensor=2,ring=2",
            "plain", "tied embeddings", "experts with auxiliary losses", "uneven rows",
            "packed documents", "compiled", "weights in bf16 with masters")),
    "4 ranks of matrices, muon": (
        4, ("tensor=2,shard=2,sequence_parallel=false", "tensor=2,replicate=2", "muon")),
    "4 ranks of two heads": (
        4, ("tensor=4,sequence_parallel=false", "tensor=4", "two key-value heads")),
    **{f"4 ranks of stages, {shape}":
       (4, (shape, *STAGED[:3], "plain", "muon", "clipping, z-loss, label smoothing"))
       for shape in ("pipeline=4", "pipeline=2,shard=2", "pipeline=2,replicate=2")},
    "4 ranks of stages, batches that grow": (
        4, ("pipeline=2,shard=2", "pipeline=2,replicate=2", "batches that grow")),
    "4 ranks of stages and matrices": (4, ("pipeline=2,tensor=2", "plain", *STAGED[::2])),
    "4 ranks of stages and experts": (4, ("pipeline=2,shard=2,expert=2", STAGED[2])),
    "4 ranks, experts cut by matrices": (
        4, ("shard=2,tensor=2,expert=2,expert_tensor=2",
            "divided experts, recomputed activations")),
    "8 ranks of experts": (
        8, ("replicate=4,shard=2,expert=4", "replicate=2,shard=4,expert=4",
            "divided experts, biases")),
    "8 ranks of stages, shards and matrices": (8, ("pipeline=2,shard=2,tensor=2", "plain")),
    "8 ranks of shards and sequences": (8, ("shard=2,ring=2,ulysses=2", "packed documents")),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_ranks_train_what_one_does_in_many_cases(name: str) -> None:
    ranks, words = SLOW[name]
    assert "equal over" in compare(ranks, *words)


def test_blocks_of_quantized_experts_are_not_cut(tmp_path: Path) -> None:
    widths = ("model.moe={experts: 4, expert_dim: 64}", "parallel.tensor=4", "model.heads=4",
              "model.dim=32")  # fmt: skip
    flags = (*widths, *RANKS, "parallel.shard=2", "parallel.expert_tensor=4")
    quantize = "{{type: nf4, group_size: {}, exclude: [attention]}}"
    adapter = f"adapter={{{{type: lora, rank: 2, quantize: {quantize}}}}}"
    small_job(tmp_path, *flags, adapter.format(16), without=("micro_size",))
    with refused(ConfigError):
        small_job(tmp_path, *flags, adapter.format(32), without=("micro_size",))


RANKS = ("parallel.world_size=8", "batch.global_size=16", "batch.accumulation=1")


@pytest.mark.parametrize(
    "degrees",
    ["shard=8 expert=8", "shard=8 expert=3", "shard=2 expert=6", "shard=2 tensor=4 expert_tensor=2",
     "shard=8 expert=2"],
)  # fmt: skip
def test_degrees_that_do_not_fit_are_refused(tmp_path: Path, degrees: str) -> None:
    flags = ["model.moe.experts=6", "model.dim=18", "model.positions=none", *RANKS]
    flags += [f"parallel.{degree}" for degree in degrees.split()]
    with refused(ConfigError):
        small_job(tmp_path, *flags, without=("micro_size",))


def test_experts_of_several_ranks_on_one_rank_say_how_to_start_them(tmp_path: Path) -> None:
    with refused(ConfigError):
        small_job(tmp_path, "model.moe.experts=6", "parallel.expert=2")


EVALUATED = ("model.dropout=0", "batch.accumulation=2", "evaluation.accuracy=true")


def scores_are_those_of_one_rank(
    folder: Path, shard: int, sequences: str, method: str = "concatenate"
) -> None:
    """The last batches: of 12 sequences as large as the others, of 7 uneven, of 5 one for both."""
    flags = (*EVALUATED, f"evaluation.sequences={sequences}", "loss=chunked_cross_entropy")
    if method != "concatenate":
        source = "data.sources=[{type=random, documents=60, length=6}]"
        flags = (*flags, source, f"data.packing.method={method}")
    alone = small_job(folder, *flags, "batch.micro_size=3")
    expected = evaluate(alone, build_components(alone, world=World(torch.device("cpu"))))
    ranks = ("parallel.world_size=2", f"parallel.shard={shard}")
    job = small_job(folder, *flags, "batch.micro_size=2", *ranks)
    components = build_components(job)
    seen: list[int] = []
    found = evaluate(job, components, lambda: seen.append(1))
    assert astuple(found["held_out"]) == pytest.approx(astuple(expected["held_out"]), rel=1e-6)
    assert components.world.all_of((len(seen), found)) == [(len(seen), found)] * 2
    assert components.eval_feed is not None
    feed = components.eval_feed
    total, count = feed.totals["held_out"], feed.local_count("held_out")
    assert total // 2 - 2 <= count < total, "not divided"


def stops_are_those_of_all(folder: Path) -> None:
    """A signal that one rank gets ends an evaluation on both before the same batch."""
    job = small_job(folder, *EVALUATED, "evaluation.sequences=12", "parallel.world_size=2")
    components, stop = build_components(job), StopRequest()
    loop = Loop(job, components, [], stop, Position())
    seen: list[int] = []

    def between() -> None:
        if components.world.rank == 1 and len(seen) == 2:
            stop.request()
        loop.check()
        seen.append(1)

    with pytest.raises(Abandoned):
        evaluate(job, components, between)
    assert components.world.all_of(len(seen)) == [2, 2] and stop.requested and not loop.goes_on


def an_evaluation_is_divided(folder: Path) -> None:
    for shard, sequences in ((1, "12"), (2, "5"), (2, "7"), (1, "null")):
        scores_are_those_of_one_rank(folder, shard, sequences)
    for method in ("none", "next_fit"):
        scores_are_those_of_one_rank(folder, 2, "5", method)
    stops_are_those_of_all(folder)


def test_two_ranks_divide_an_evaluation() -> None:
    run_on_ranks(2, an_evaluation_is_divided)


CASES = [
    ("shard", "reshard=2"),
    ("shard", "sharding.layers_per_unit=2"),
    ("shard", "sharding.offload=true"),
    ("replicate", "bucket_size=5"),
    ("replicate", "engine=deepspeed"),
    ("ring", "ring_split=contiguous"),
    ("tensor", "loss_parallel=true"),
    ("pipeline", "pipelining.schedule=gpipe"),
]


@pytest.mark.parametrize(("axis", "option"), CASES)
def test_an_option_of_many_ranks_is_accepted_on_one_and_dead_on_an_axis_of_one(
    tmp_path: Path, axis: str, option: str
) -> None:
    job = small_job(tmp_path, f"parallel.{axis}=-1", f"parallel.{option}")
    assert job.parallel.world_size == 1
    if option != "engine=deepspeed":
        with refused(ConfigError):
            small_job(tmp_path, f"parallel.{axis}=1", f"parallel.{option}")


def test_one_rank_reads_weights_as_many_are_to(tmp_path: Path) -> None:
    given = resolve(Parallel(load_weights="broadcast"))
    assert reader_of(given, World(torch.device("cpu"))) is None


def test_lengths_and_heads_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    degrees = ("parallel.world_size=12", "parallel.ring=4", "parallel.ulysses=3")
    with refused(ConfigError):
        small_job(tmp_path, *degrees, "batch.sequence_length=50", "parallel.device=cpu")


def test_a_graph_of_copies_along_a_ring_is_refused(tmp_path: Path) -> None:
    ring = ("parallel.world_size=2", "parallel.ring=2", "parallel.shard_over_context=none")
    with refused(ConfigError):
        small_job(tmp_path, *ring, "compile={scope: graph}")


def test_a_model_that_takes_whole_sequences_is_refused(tmp_path: Path) -> None:
    job = small_job(tmp_path, "parallel.world_size=2", "parallel.ring=2")
    degrees = {"ring": 2, "ulysses": 1}
    world = World(
        torch.device("cpu"), size=2, degrees=degrees, coordinates={},
        groups=dict.fromkeys((("ring",), ("ulysses",), ("ring", "ulysses"))),
    )  # fmt: skip
    with refused():
        divide_sequences(job.parallel, world, torch.nn.Linear(2, 2))
