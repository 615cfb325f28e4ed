"""Evaluations in a run: rows, the best among what was saved, and an early end."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from setpoint.checkpoint.manifest import read_manifest
from setpoint.train.build.components import build_components
from setpoint.train.evaluation.scores import evaluate, scores_in
from setpoint.train.run import train

from ..small import events, rows, small_job, snapshot, train_rows


def test_a_checkpoint_between_two_evaluations_has_no_metric(tmp_path: Path) -> None:
    flags = ("duration=5 steps", "checkpoint.every=1 steps", "evaluation.every=2 steps",
             "checkpoint.keep=null")  # fmt: skip
    run = train(small_job(tmp_path, *flags)).directory
    folders = sorted((run / "checkpoints").glob("step-*"))
    measured = [read_manifest(folder).metric is not None for folder in folders]
    assert measured == [False, True, False, True, True]


# It learns, falls apart, and is judged every second step.
FALLS = ("schedule=constant", "optimizer.lr=0.3", "optimizer.clip_norm=null", "model.dropout=0",
         "evaluation.every=2 steps", "checkpoint.every=3 steps", "tracking.every=5 steps",
         "evaluation.accuracy=true", "duration=46 steps", "name=q",
         "batch.micro_size=4", "batch.accumulation=1")  # fmt: skip
STOP = "evaluation.early_stopping.patience"
ALIKE = "{name=NAME, sources=[{type=random, documents=9, length=90, alphabet=8, seed=SEED}]}"
WEB = ALIKE.replace("NAME", "web").replace("SEED", "3")


def scores_of(run: Path, key: str = "held_out_loss") -> dict[int, float]:
    return {row["step"]: row[key] for row in rows(run) if row["kind"] == "evaluation"}


def test_scores_of_each_data_set_are_shown_and_found_in_the_record(tmp_path: Path) -> None:
    flags = ("duration=3 steps", "evaluation.accuracy=true", f"evaluation.datasets=[{WEB}]")
    outcome = train(small_job(tmp_path, *flags))
    (row,) = [row for row in rows(outcome.directory) if row["kind"] == "evaluation"]
    assert outcome.scores == scores_in(row) and outcome.score == outcome.scores["held_out"]
    assert row["web_perplexity"] == math.exp(row["web_loss"])
    log = (outcome.directory / "logs" / "rank-0.log").read_text()
    for name in ("held_out", "web"):
        score = outcome.scores[name]
        assert f"step 3: {name.replace('_', '-')} loss {score.loss:.4f}, " in log
        assert f"({score.extent}, {score.tokens:,} tokens)" in log
        assert score.extent.startswith("all ") == (name == "web")
    assert train(small_job(tmp_path, *flags)).scores == outcome.scores


@pytest.mark.parametrize(
    ("flags", "key", "best"),
    [
        (("evaluation.best.metric=accuracy",), "held_out_accuracy", max),
        (("evaluation.best.data=web", "evaluation.best.metric=bits_per_byte"),
         "web_bits_per_byte", min),
    ],
)  # fmt: skip
def test_what_selects_the_best(
    tmp_path: Path, flags: tuple[str, ...], key: str, best: Callable[..., int]
) -> None:
    every = ("checkpoint.every=2 steps", "duration=16 steps", f"evaluation.datasets=[{WEB}]")
    run = train(small_job(tmp_path, *FALLS, *every, *flags)).directory
    scores = scores_of(run, key)
    folder = run / "checkpoints" / (run / "checkpoints" / "best").read_text().strip()
    chosen = int(folder.name.removeprefix("step-"))
    assert scores[chosen] == best(scores.values())
    metric = read_manifest(folder).metric
    assert metric == (-scores[chosen] if best is max else scores[chosen])
    # The last two are there, too, and nothing else.
    names = {path.name for path in (run / "checkpoints").glob("step-*")}
    assert names == {folder.name, "step-00000014", "step-00000016"}


def test_evaluated_once_before_the_first_update(tmp_path: Path) -> None:
    flags = (*FALLS, "evaluation.before_training=true", "checkpoint.keep=null")
    flags = (*flags, "checkpoint.at_start=true")
    job = small_job(tmp_path, *flags, "duration=4 steps")
    untrained = evaluate(job, build_components(job))
    run = train(job).directory
    assert list(scores_of(run)) == [0, 2, 4]
    assert scores_of(run)[0] == untrained["held_out"].loss
    first = run / "checkpoints" / "step-00000000"
    assert read_manifest(first).metric == untrained["held_out"].loss
    # Not when the run goes on, be it from its first checkpoint.
    train(small_job(tmp_path, *flags, "duration=6 steps"))
    assert list(scores_of(run)) == [0, 2, 4, 6]
    for folder in (run / "checkpoints").glob("step-*[1-9]"):
        (folder / "state.json").write_text("damaged")
    train(small_job(tmp_path, *flags, "duration=6 steps"))
    assert list(scores_of(run)) == [0, 2, 4, 6]
    assert events(run, "resume")[-1]["step"] == 0


def expected_end(losses: dict[int, float], patience: int) -> int:
    """The step at which no loss of the last `patience` ones is below all before them."""
    values = list(losses.values())
    for count in range(patience + 1, len(values) + 1):
        if min(values[count - patience : count]) >= min(values[: count - patience]):
            return list(losses)[count - 1]
    raise AssertionError("it never ends early")


def test_training_ends_when_it_gets_no_better(tmp_path: Path) -> None:
    free = scores_of(train(small_job(tmp_path, *FALLS, "name=free")).directory)
    outcome = train(small_job(tmp_path, *FALLS, f"{STOP}=3"))
    run, end = outcome.directory, expected_end(free, 3)
    assert outcome.status == 0 and outcome.final_position.step == end < 46
    assert end % 5 and end % 3, "neither a row nor a checkpoint is due there"
    # The same run up to there, with the last row, evaluation and checkpoint of an end.
    assert scores_of(run) == {step: loss for step, loss in free.items() if step <= end}
    assert [row["step"] for row in train_rows(run)] == [
        *range(5, end, 5), end
    ]  # fmt: skip
    assert (run / "checkpoints" / "latest").read_text().strip() == f"step-{end:08d}"
    (event,) = events(run, "early_stop")
    assert event["step"] == end and event["reason"] == outcome.reason
    best = min(free[step] for step in free if step <= end)
    assert outcome.reason == (
        f"loss on held_out has not improved for 3 evaluations; the best was {best:.6g}"
    )
    last = events(run, "end")[-1]
    assert (last["step"], last["status"], last["reason"]) == (end, 0, outcome.reason)


def test_what_only_the_end_asks_for_does_not_count(tmp_path: Path) -> None:
    """A longer run would not have judged there, and a resumed one must equal it."""
    flags = ("duration=3 steps", "evaluation.every=2 steps", "schedule=plateau")
    run = train(small_job(tmp_path, *flags)).directory
    scores = scores_of(run)
    assert list(scores) == [2, 3] and scores[3] < scores[2]
    newest = run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip()
    state = json.loads((newest / "state.json").read_text())
    assert state["evaluation"]["reference"] == state["schedule"]["plateau"]["best"] == scores[2]


def test_a_run_that_ended_early_goes_on_only_with_more_patience(tmp_path: Path) -> None:
    job = small_job(tmp_path, *FALLS, f"{STOP}=3")
    first = train(job)
    before = snapshot(first.directory)
    again = train(job)
    assert again.started == again.final_position == first.final_position
    assert (again.status, again.reason, again.scores) == (0, first.reason, first.scores)
    after = snapshot(first.directory)
    changed = {name for name in after if after[name] != before.get(name)}
    assert {name for name in changed if not name.startswith("logs/")} == {"events.jsonl"}
    log = (first.directory / "logs" / "rank-0.log").read_text()
    assert (
        f"is finished at step {first.final_position.step}: {first.reason}; nothing is left" in log
    )
    assert "raise evaluation.early_stopping.patience" in log
    # As a run that had that patience from the start.
    longer = train(small_job(tmp_path, *FALLS, f"{STOP}=5"))
    oracle = train(small_job(tmp_path, *FALLS, f"{STOP}=5", "name=oracle"))
    assert longer.started == first.final_position
    assert (
        first.final_position.step + 4
        <= longer.final_position.step
        == oracle.final_position.step
        < 46
    )
    assert scores_of(longer.directory) == scores_of(oracle.directory)
    on = train(small_job(tmp_path, *FALLS))
    assert (on.started, on.final_position.step, on.reason) == (longer.final_position, 46, None)


def test_the_best_is_forgotten_with_its_measure(tmp_path: Path) -> None:
    flags = (*FALLS, "checkpoint.every=2 steps", "optimizer.lr=3", "schedule.type=piecewise",
             "schedule.phases=[{length: 2, target: 1e-3}, {length: 1, target: 1}]")  # fmt: skip
    run = train(small_job(tmp_path, *flags, "duration=4 steps")).directory
    pointer = run / "checkpoints" / "best"
    assert pointer.read_text() == "step-00000002\n"
    train(small_job(tmp_path, *flags, "duration=6 steps", "evaluation.sequences=2"))
    scores = scores_of(run)
    assert scores[6] > scores[2] and pointer.read_text() == "step-00000006\n"
    log = (run / "logs" / "rank-0.log").read_text()
    assert "best metric reset: its definition changed: " in log
