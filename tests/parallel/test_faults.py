"""A rank that dies or hangs ends the others within the timeout, and what was saved stays."""

import time
from pathlib import Path

import pytest

from setpoint.checkpoint.store import CheckpointStore
from setpoint.ops.heartbeat import read_heartbeats

from ..support.forks import forked
from ..train.small import events

QUICK = ("step: hangs", "callback: hangs", "new group: dies")


def said_by_the_other(folder: Path, *cases: str) -> dict[str, str]:
    """What the rank says that is left, for each case."""
    printed = forked("tests.parallel.faulty_ranks", str(folder), *cases)
    parts = printed.split("== ")[1:]
    return {name: text for name, _, text in (part.partition("\n") for part in parts)}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The cases of this file that are not slow: their folder, and what is said."""
    folder = tmp_path_factory.mktemp("quick")
    return folder, said_by_the_other(folder, *QUICK)


def the_run(folder: Path, case: str) -> Path:
    (run,) = (folder / case.replace(": ", "-").replace(" ", "-") / "runs").iterdir()
    return run


def saved_step(run: Path) -> int:
    """The step of the newest checkpoint, which is whole, and none older than the log names."""
    loaded = CheckpointStore(run / "checkpoints").load_newest()
    assert loaded is not None and loaded.step >= events(run, "save")[-1]["step"]
    return loaded.step


def test_a_hang_ends_in_time_with_the_stack_of_each_rank(
    quick: tuple[Path, dict[str, str]],
) -> None:
    case = "step: hangs"
    folder, said = quick[0], quick[1][case]
    run = the_run(folder, case)
    # The timeout of a step, not that of the start.
    assert "rank 0 lost its connection to the others: Timed out waiting 4000ms" in said
    assert f"where each rank was: runs/{run.name}/logs/rank-N.stacks" in said
    where = [(run / "logs" / f"rank-{rank}.stacks").read_text() for rank in range(2)]
    assert "distributed_c10d.py" in where[0] and "faulty_ranks.py" in where[1]
    assert saved_step(run) == 4
    assert "Timed out" in events(run, "fault")[-1]["error"]


def test_a_rank_that_hangs_between_steps_is_named(quick: tuple[Path, dict[str, str]]) -> None:
    """Where the others would wait for `parallel.timeout`, and could not say for whom."""
    case = "callback: hangs"
    folder, said = quick[0], quick[1][case]
    assert (
        "rank 0 lost its connection to the others: no answer from rank 1 in the liveness check "
        "before step 6: "
        "timed out waiting 4 s. One of them hangs"
    ) in said
    run = the_run(folder, case)
    main, other = read_heartbeats(run)
    assert (main.phase, main.step, other.phase, other.step) == ("failed", 5, "evaluate", 5)
    # Its thread went on writing, until it was killed.
    assert other.time - other.since > 3 and other.is_gone(time.time() + 1)
    assert other.checkpoint == main.checkpoint == "step-00000004"


def test_a_rank_that_dies_before_a_group_is_made_ends_the_others_in_words(
    quick: tuple[Path, dict[str, str]],
) -> None:
    said = quick[1]["new group: dies"]
    assert "rank 0 lost its connection to the others: wait timeout after 5000ms. One of" in said
    assert "\N{SURFER}" not in said


@pytest.mark.slow
def test_a_rank_that_dies_or_hangs_in_any_phase(tmp_path: Path) -> None:
    phases = ("start", "first collective", "step", "save", "end")
    cases = [f"{phase}: {event}" for phase in phases for event in ("dies", "hangs")]
    said = said_by_the_other(tmp_path, *cases)
    for case in cases:
        phase, _, event = case.partition(": ")
        expected = (
            "did not connect to the others"
            if phase == "start"
            else "lost its connection to the others"
        )
        assert f"rank 0{' of 2' if phase == 'start' else ''} {expected}" in said[case], case
        if phase in ("step", "save", "end"):
            assert saved_step(the_run(tmp_path, case)) in {"step": (4,), "end": (8,)}.get(
                phase, (4, 8)
            )
        if event == "hangs" and phase in ("step", "save", "end"):
            logs = the_run(tmp_path, case) / "logs"
            assert "faulty_ranks.py" in (logs / "rank-1.stacks").read_text(), case
