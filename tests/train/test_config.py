"""The batch's arithmetic: any sizes given, the rest derived, what does not divide refused."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import setpoint.presets  # noqa: F401 - registers `tiny`
from setpoint.config import ConfigError
from setpoint.config.composition import compose
from setpoint.config.words.names import nearest_multiples
from setpoint.train.config import Job

from ..support.snapshots import refused

SIZES = (None, 2, 3, 8)
NAMES = ("global_size", "micro_size", "accumulation")


def resolved(
    sizes: tuple[int | None, int | None, int | None], ranks: int
) -> tuple[int, int, int] | str:
    """The three sizes as a job resolves them, or the refusal."""
    flags = [
        f"batch.{name}={size}" for name, size in zip(NAMES, sizes, strict=True) if size is not None
    ]
    try:
        batch = compose(Job, flags=[*flags, f"parallel.world_size={ranks}"]).resolve().batch
    except ConfigError as error:
        return str(error)
    return batch.global_size, batch.micro_size, batch.accumulation


def solutions(
    sizes: tuple[int | None, int | None, int | None], ranks: int
) -> set[tuple[int, int, int]]:
    """All triples that agree with what is given, by looking at each."""
    limit = range(1, 8 * 8 * ranks + 1)
    wanted, micro, accumulation = sizes
    return {
        (m * a * ranks, m, a)
        for m in ([micro] if micro else limit)
        for a in ([accumulation] if accumulation else limit)
        if (wanted is None or m * a * ranks == wanted)
    }


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_combination(ranks: int) -> None:
    for sizes in itertools.product(SIZES, repeat=3):
        found = resolved(sizes, ranks)
        if sizes == (None, None, None):
            # Eight sequences, if the ranks can share them.
            assert (found == (8, 8 // ranks, 1)) if 8 % ranks == 0 else isinstance(found, str)
        elif any(sizes[1:]) or sizes[0]:
            possible = solutions(sizes, ranks)
            if isinstance(found, str):
                # With only the global size given, whole micro-batches may not come out.
                assert not possible, (sizes, ranks, found)
            else:
                assert found in possible, (sizes, ranks)


@given(st.integers(1, 10_000), st.integers(1, 500))
def test_nearest_multiples(value: int, step: int) -> None:
    found = nearest_multiples(value, step)
    everything = range(step, value + 2 * step, step)
    nearest = min(abs(size - value) for size in everything)
    assert found
    assert abs(found[0] - value) == nearest
    assert all(size % step == 0 and size > 0 and abs(size - value) <= step for size in found) or (
        # Below one step there is only one step.
        value < step and found == [step]
    )


REFUSED = {
    "all_three": ("batch.global_size=7 batch.micro_size=2 batch.accumulation=3", 1),
    "micro_does_not_divide": ("batch.global_size=10 batch.micro_size=4", 1),
    "accumulation_does_not_divide": ("batch.global_size=10 batch.accumulation=4", 1),
    "more_ranks_than_sequences": ("batch.global_size=4", 1024),
    "default_on_three_ranks": ("", 3),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_offers_values_that_are_valid(name: str) -> None:
    text, ranks = REFUSED[name]
    flags = [*text.split(), f"parallel.world_size={ranks}"]
    with refused(ConfigError) as caught:
        compose(Job, flags=flags).resolve()
    (problem,) = caught.value.problems
    assert problem.path == "batch.global_size"
    kept = [flag for flag in flags if not flag.startswith("batch.global_size")]
    for value in problem.valid:
        compose(Job, flags=[*kept, f"batch.global_size={value}"]).resolve()


def test_degrees_that_leave_ranks_over_are_reported_alone() -> None:
    flags = ["parallel.world_size=1024", "parallel.tensor=3", "model.heads=6", "model.dim=384"]
    with pytest.raises(ConfigError) as caught:
        compose(Job, "tiny", flags=[*flags, "model.kv_heads=3"]).resolve()
    assert {problem.path for problem in caught.value.problems} == {"parallel.tensor"}
