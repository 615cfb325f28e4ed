"""Run by test_equal.py in a process of its own: ranks divide an evaluation among them."""

import sys
import tempfile
from dataclasses import astuple
from pathlib import Path

import pytest
import torch

from setpoint.parallel.world import World
from setpoint.resilience.signals import Abandoned, StopRequest
from setpoint.train.build.components import build_components
from setpoint.train.evaluation.scores import evaluate
from setpoint.train.loop import Loop
from setpoint.train.position import Position

from ..support.ranks import fork_group
from ..train.small import small_job

WORLD = 2
COMMON = ("model.dropout=0", "batch.accumulation=2", "evaluation.accuracy=true")


def scores_are_those_of_one_rank(
    folder: Path, shard: int, sequences: str, method: str = "concatenate"
) -> None:
    """The last batches: of 12 sequences as large as the others, of 7 uneven, of 5 one for both."""
    flags = (*COMMON, f"evaluation.sequences={sequences}", "loss=chunked_cross_entropy")
    if method != "concatenate":
        source = "data.sources=[{type=random, documents=60, length=6}]"
        flags = (*flags, source, f"data.packing.method={method}")
    alone = small_job(folder, *flags, "batch.micro_size=3")
    expected = evaluate(alone, build_components(alone, world=World(torch.device("cpu"))))
    ranks = (f"parallel.world_size={WORLD}", f"parallel.shard={shard}")
    job = small_job(folder, *flags, "batch.micro_size=2", *ranks)
    components = build_components(job)
    seen: list[int] = []
    found = evaluate(job, components, lambda: seen.append(1))
    assert astuple(found["held_out"]) == pytest.approx(astuple(expected["held_out"]), rel=1e-6)
    assert components.world.all_of((len(seen), found)) == [(len(seen), found)] * WORLD
    assert components.eval_feed is not None
    feed = components.eval_feed
    total, count = feed.totals["held_out"], feed.local_count("held_out")
    assert total // WORLD - 2 <= count < total, "not divided"


def stops_are_those_of_all(folder: Path) -> None:
    """A signal that one rank gets ends an evaluation on both before the same batch."""
    job = small_job(folder, *COMMON, "evaluation.sequences=12", f"parallel.world_size={WORLD}")
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


def one_rank(rank: int, store: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for shard, sequences in ((1, "12"), (2, "5"), (2, "7"), (1, "null")):
            scores_are_those_of_one_rank(folder, shard, sequences)
        for method in ("none", "next_fit"):
            scores_are_those_of_one_rank(folder, 2, "5", method)
        stops_are_those_of_all(folder)


if __name__ == "__main__":
    sys.exit(fork_group(one_rank, WORLD))
