"""The best checkpoint is the one with the lowest metric among those that were saved."""

from __future__ import annotations

from pathlib import Path

from setpoint.checkpoint.manifest import read_manifest
from setpoint.train.run import train

from ..small import rows, small_job


def test_the_best_is_the_lowest(tmp_path: Path) -> None:
    # With this rate it learns, and then falls apart.
    job = small_job(
        tmp_path, "duration=24 steps", "schedule=constant", "optimizer.lr=0.3",
        "optimizer.clip_norm=null", "checkpoint.every=2 steps", "evaluation.every=2 steps",
    )  # fmt: skip
    run = train(job).directory
    scores = {row["step"]: row["held_out_loss"] for row in rows(run) if row["kind"] == "evaluation"}
    lowest = min(scores, key=scores.__getitem__)
    assert 0 < lowest < 24
    best = run / "checkpoints" / (run / "checkpoints" / "best").read_text().strip()
    assert best.name == f"step-{lowest:08d}"
    assert read_manifest(best).metric == scores[lowest]
    # The last two are there, too, and nothing else.
    names = {path.name for path in (run / "checkpoints").glob("step-*")}
    assert names == {best.name, "step-00000022", "step-00000024"}


def test_a_checkpoint_between_two_evaluations_has_no_metric(tmp_path: Path) -> None:
    flags = ("duration=5 steps", "checkpoint.every=1 steps", "evaluation.every=2 steps",
             "checkpoint.keep=null")  # fmt: skip
    run = train(small_job(tmp_path, *flags)).directory
    folders = sorted((run / "checkpoints").glob("step-*"))
    measured = [read_manifest(folder).metric is not None for folder in folders]
    assert measured == [False, False, True, False, True, True]


def test_losses_on_other_sequences_do_not_compete(tmp_path: Path) -> None:
    """After a change of what is judged on, the first new score is the best, whatever it is."""
    flags = ("schedule=constant", "checkpoint.every=2 steps", "evaluation.every=2 steps", "name=q")
    run = train(small_job(tmp_path, *flags, "duration=4 steps")).directory
    folder = run / "checkpoints"
    # A score that no later one could beat.
    pointer = (folder / "best").read_text()
    again = small_job(tmp_path, *flags, "duration=6 steps", "evaluation.sequences=1")
    assert train(again).directory == run
    assert pointer.strip() == "step-00000004"
    assert (folder / "best").read_text().strip() == "step-00000006"
