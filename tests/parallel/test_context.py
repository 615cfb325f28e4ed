"""Ranks that divide sequences train what one rank trains, and what divides is checked before."""

from pathlib import Path

import pytest
import torch

from setpoint.config import ConfigError
from setpoint.parallel.divide import divide_sequences
from setpoint.parallel.world import World

from ..support.snapshots import refused
from ..train.small import small_job
from .equal_ranks import CASES, EXPERTS
from .test_equal import compare

TWO = ("ring=2,shard_over_context=none", "ring=2", "ulysses=2", "ring=2,ring_split=contiguous")
FOUR = ("ring=2,ulysses=2", "ring=2,shard=2", "ulysses=2,replicate=2", "ring=4",
        "ring=2,ulysses=2,shard_over_context=ring")  # fmt: skip


@pytest.mark.slow
def test_two_ranks_of_a_sequence_train_what_one_does() -> None:
    said = compare(2, "packed documents", "experts balanced by sequence", *TWO[:1], "ulysses=2")
    assert said.count("equal over") == 8


PIECES = 4


@pytest.mark.slow
@pytest.mark.parametrize("piece", range(PIECES))
def test_two_ranks_of_a_sequence_train_what_one_does_in_every_case(piece: int) -> None:
    # One graph holds whole sequences; divided experts have their own tests.
    names = [name for name in CASES if name not in EXPERTS and name != "whole graph"]
    compare(2, *names[piece::PIECES], *TWO)


@pytest.mark.slow
def test_four_ranks_of_sequences_train_what_one_does() -> None:
    compare(4, "packed documents", "experts balanced by sequence", "evaluated", "compiled", *FOUR)
    compare(4, "sliding windows", "experts with auxiliary losses", "tensor=2,ring=2")
    compare(4, "packed documents", "sliding windows", "pipeline=2,ring=2", "pipeline=2,ulysses=2")


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
