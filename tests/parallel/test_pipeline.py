"""Stages of a pipeline train what one rank does, and go on from each other's checkpoints."""

from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from setpoint.config import ConfigError, RunError, resolve
from setpoint.model.config import TransformerConfig
from setpoint.model.moe.config import MoE
from setpoint.model.parameters import count_parameters_of, part_sizes, training_flops
from setpoint.parallel.pipeline import Pipeline
from setpoint.parallel.pipelining import SCHEDULES, Pipelining, balanced, ranks_of_stages
from setpoint.parallel.world import World, noise_axes
from setpoint.shapes.parameter import StagePart

from ..support.snapshots import refused
from ..train.small import small_job
from .test_equal import STAGED, compare

V_SHAPED = "pipeline=2,pipelining.schedule=zbv_zero_bubble"
splits = pytest.mark.skipif(
    any(Pipelining(schedule="zbv_zero_bubble")._check_torch()), reason="needs a newer torch"
)


@splits
def test_stages_train_what_one_rank_does() -> None:
    cases = (*STAGED[1:3], "evaluated", "noise on embeddings, uneven rows")
    said = compare(2, V_SHAPED, *cases)
    assert all(f"{case}, {V_SHAPED}: equal" in said for case in cases)


def test_stages_follow_batches_that_grow() -> None:
    shape = "pipeline=2,pipelining.schedule=1f1b"
    assert f"{STAGED[3]}, {shape}: equal" in compare(2, shape, STAGED[3])


def test_stages_draw_other_random_numbers(tmp_path: Path) -> None:
    config = small_job(tmp_path, *CUT).parallel
    worlds = [
        World(torch.device("cpu"), degrees=config.degrees, coordinates={"pipeline": at},
              noise_axes=noise_axes(config)) for at in range(2)
    ]  # fmt: skip
    # Those of the first are those of one rank.
    assert [world.noise_rank for world in worlds] == [0, 1]


def test_what_fails_in_a_stage_is_raised_as_it_is() -> None:
    """PyTorch wraps it into a description of tensors."""
    failure = RunError("the data weighs its targets")

    class Failing:
        def step(self, *given: object, **named: object) -> None:
            try:
                raise failure
            except RunError as error:
                raise RuntimeError("[Stage 0] failed to run forward") from error

    pipeline: Any = object.__new__(Pipeline)
    pipeline.stages, pipeline.has_first, pipeline.has_last = [], True, True
    pipeline._built, pipeline._schedule = ((1, 1), 2), Failing()
    with pytest.raises(RunError) as caught:
        pipeline.run((1, 1), 2, None)
    assert caught.value is failure


def test_an_older_torch_has_no_backward_pass_in_two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.11.0+cu130")
    (problem,) = Pipelining(schedule="dual_pipe_v")._check_torch()
    assert problem.message == (
        "needs torch 2.13 or later for backward passes in two parts; this is 2.11.0+cu130"
    )


CUT = ("parallel.world_size=2", "parallel.pipeline=2", "model.layers=4", "batch.accumulation=4")


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=7), st.data())
def test_no_cut_has_a_smaller_largest_stage(
    sizes: list[tuple[int, int]], data: st.DataObject
) -> None:
    parts = [StagePart(str(number), *size) for number, size in enumerate(sizes)]
    stages = data.draw(st.integers(1, len(parts)))
    flops = {part.name: part.flops for part in parts}
    found = balanced(parts, stages)
    assert [name for stage in found for name in stage] == [part.name for part in parts]
    assert len(found) == stages and all(found)
    cuts = combinations(range(1, len(parts)), stages - 1)
    bounds = ((0, *cut, len(parts)) for cut in cuts)
    least = min(max(sum(p.flops for p in parts[a:b]) for a, b in pairwise(c)) for c in bounds)
    assert max(sum(flops[name] for name in stage) for stage in found) == least


def test_what_the_slowest_stage_leaves_free_is_balanced() -> None:
    flops = {"a": 1, "b": 1, "c": 1, "d": 1, "e": 9}
    parts = [StagePart(name, 1, count) for name, count in flops.items()]
    assert balanced(parts, 3) == [["a", "b"], ["c", "d"], ["e"]]
    # Stages go round the ranks, or back over them.
    assert ranks_of_stages(3, 6, is_v=False) == [0, 1, 2, 0, 1, 2]
    assert ranks_of_stages(3, 6, is_v=True) == [0, 1, 2, 2, 1, 0]


@pytest.mark.parametrize("tied", [False, True])
def test_parts_add_up_to_the_model(tied: bool) -> None:
    config = resolve(
        TransformerConfig(
            dim=32, layers=5, heads=4, kv_heads=2, tie_embeddings=tied, positions="learned",
            attention_pattern=("sliding", "full"), sliding_window=8, max_sequence_length=32,
            moe=MoE(experts=4, top_k=2, shared_experts=1, first_dense=1, every=2),
        )
    )  # fmt: skip
    parts = part_sizes(config, vocab_size=100, sequence_length=24)
    flops = training_flops(config, "palm", vocab_size=100, sequence_length=24)
    assert sum(part.flops for part in parts) == flops
    twice = 100 * 32 if tied else 0
    assert (
        sum(part.parameters for part in parts)
        == count_parameters_of(config, 100).parameters + twice
    )


@pytest.mark.parametrize("name", list(SCHEDULES))
@pytest.mark.parametrize("count", [1, 3, 6, 8, 10])
def test_numbers_of_micro_batches_are_those_that_torch_takes(name: str, count: int) -> None:
    from torch.distributed.pipelining.schedules import get_schedule_class

    ranks, config = 4, resolve(Pipelining(schedule=name))  # pyright: ignore[reportArgumentType]
    stages = config.stages(ranks)
    kind = get_schedule_class(config.known.torch)

    class Rank:
        """What a schedule asks of the stages of a rank."""

        num_stages, group_size, group_rank, submod = stages, ranks, 0, None
        stage_index = 0

    held = [Rank() for _ in range(stages // ranks)]
    try:
        kind(held if len(held) > 1 or config.known.is_looped else held[0], count)
    except ValueError:
        assert not config.fits(ranks, count)
    else:
        assert config.fits(ranks, count)


def test_too_few_layers_and_micro_batches_are_refused_with_numbers(tmp_path: Path) -> None:
    three = ("parallel.world_size=3", "parallel.pipeline=3", "batch.micro_size=8")
    schedule = "parallel.pipelining.schedule"
    for flags in (
        (*CUT, "model.layers=3", "batch.accumulation=2", f"{schedule}=dual_pipe_v"),
        (*CUT, *three, "batch.accumulation=1"),
        (f"{schedule}=gpipe",),
    ):
        with refused(ConfigError):
            small_job(tmp_path, *flags)


@pytest.mark.parametrize(
    "split",
    [
        '[[embedding, "layers.0", "layers.1", "layers.2"], [output]]',
        '[[embedding, "layers.1", "layers.0", "layers.2"], ["layers.3", output]]',
        '[[embedding, "layers.0", "layers.1", "layers.2", "layers.3", output], []]',
        '[[embedding], ["layers.0", "layers.1"], ["layers.2", "layers.3", output]]',
        '[[embedding, "layer.0"], ["layers.1", "layers.2", "layers.3", output]]',
    ],
)
def test_invalid_splits_are_refused(tmp_path: Path, split: str) -> None:
    with refused(ConfigError):
        small_job(tmp_path, *CUT, f"parallel.pipelining.split={split}")
