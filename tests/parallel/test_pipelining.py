"""Where a model is cut into stages: balance against all cuts, sizes against the whole model."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.config import ConfigError, resolve
from setpoint.model.config import TransformerConfig
from setpoint.model.moe.config import MoE
from setpoint.model.parameters import count_parameters_of, part_sizes, training_flops
from setpoint.parallel.pipelining import SCHEDULES, Pipelining, balanced, ranks_of_stages
from setpoint.shapes.protocols import StagePart

from ..train.small import small_job

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
    parts = [
        StagePart(name, 1, flops) for name, flops in zip("abcde", (1, 1, 1, 1, 9), strict=True)
    ]
    assert balanced(parts, 3) == [["a", "b"], ["c", "d"], ["e"]]


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


def test_stages_go_round_the_ranks_or_back_over_them() -> None:
    assert ranks_of_stages(3, 6, is_v=False) == [0, 1, 2, 0, 1, 2]
    assert ranks_of_stages(3, 6, is_v=True) == [0, 1, 2, 2, 1, 0]


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


def problems(folder: Path, *flags: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        small_job(folder, *CUT, *flags)
    return {
        problem.path: f"{problem.message}; {problem.valid}" for problem in caught.value.problems
    }


def test_too_few_layers_and_micro_batches_are_refused_with_numbers(tmp_path: Path) -> None:
    found = problems(tmp_path, "model.layers=3", "parallel.pipelining.schedule=dual_pipe_v",
                     "batch.accumulation=2")  # fmt: skip
    assert found == {
        "parallel.pipeline": "2 ranks with 2 stages each = 4 stages exceed the number of "
        "layers, 3; ('1',)",
        "batch.accumulation": "2 micro-batches per step: schedule = dual_pipe_v needs at least "
        "4, one per stage; ('4',)",
    }


def test_numbers_of_micro_batches_are_named_that_divide_the_batch(tmp_path: Path) -> None:
    found = problems(tmp_path, "parallel.world_size=3", "parallel.pipeline=3", "batch.micro_size=8",
                     "batch.accumulation=1")  # fmt: skip
    assert "needs at least 3, one per stage; ('4', '8')" in found["batch.accumulation"]


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ('[[embedding, "layers.0", "layers.1", "layers.2"], [output]]', "lacks layers.3"),
        ('[[embedding, "layers.1", "layers.0", "layers.2"], ["layers.3", output]]', "order"),
        ('[[embedding, "layers.0", "layers.1", "layers.2", "layers.3", output], []]', "without"),
        ('[[embedding], ["layers.0", "layers.1"], ["layers.2", "layers.3", output]]', "3 stages"),
        ('[[embedding, "layer.0"], ["layers.1", "layers.2", "layers.3", output]]', "layer.0"),
    ],
)
def test_splits_that_are_none_are_refused(tmp_path: Path, split: str, said: str) -> None:
    ((path, message),) = problems(tmp_path, f"parallel.pipelining.split={split}").items()
    assert path.startswith("parallel.pipelining.split") and said in message


def test_a_schedule_without_a_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is one stage"):
        small_job(tmp_path, "parallel.pipelining.schedule=gpipe")
