"""Runs on streamed data: resumed, ended by epochs, and refused where the stream is another one."""

import json
from pathlib import Path

from setpoint.train.config import Job
from setpoint.train.run import train

from ..support.snapshots import refused
from .small import events, rows, small_job


def streamed(folder: Path, *flags: str) -> Job:
    data = folder / "data"
    if not data.exists():
        data.mkdir()
        for file in range(3):
            lines = [json.dumps({"text": f"row {row} of {file}, abc"}) for row in range(20)]
            (data / f"{file}.jsonl").write_text("\n".join(lines) + "\n")
    text = f'{{type=text, paths=["{data}"], streaming=true}}'
    given = (f"data.sources=[{text}]", "data.shuffle_buffer=8", "schedule=constant", *flags)
    return small_job(folder, *given, without=("sources",))


def test_a_run_that_was_continued_is_the_one_that_was_not(tmp_path: Path) -> None:
    whole = train(streamed(tmp_path, "duration=9 steps", "name=whole")).directory
    for workers, steps in enumerate((4, 7, 9)):
        part = train(
            streamed(tmp_path, f"duration={steps} steps", "name=parts",
                     f"data.loader.workers={workers % 2}", "evaluation.every=3 steps")
        ).directory  # fmt: skip
    # The last of a session is evaluated and saved as well.
    keep = [row for row in rows(whole) if "loss" in row]
    again = [row for row in rows(part) if "loss" in row]
    assert [row["loss"] for row in again] == [row["loss"] for row in keep]
    place = events(part, "resume")[0]["data_position"]
    assert "in the documents from text/" in place or place == "epoch 1, after 16 sequences"


def test_a_duration_in_epochs_ends_with_the_stream(tmp_path: Path) -> None:
    outcome = train(streamed(tmp_path, "duration=2 epochs", "evaluation.every=1 epochs"))
    # 2 * 60 documents of 16 or 17 tokens, of which a fifth is held out, in rows of 17, 4 a step
    assert outcome.final_position.epochs == 2.0
    assert outcome.components.feed.state_dict()["sources"][""]["epoch"] == 2
    again = train(streamed(tmp_path, "duration=2 epochs", "evaluation.every=1 epochs"))
    assert again.final_position.step == outcome.final_position.step


def test_a_file_that_changed_or_is_gone_is_named_on_resume(tmp_path: Path) -> None:
    train(streamed(tmp_path, "duration=3 steps"))
    (tmp_path / "data" / "1.jsonl").unlink()
    with (tmp_path / "data" / "2.jsonl").open("a") as file:
        file.write('{"text": "one more"}\n')
    longer = streamed(tmp_path, "duration=5 steps")
    with refused():
        train(longer)
    assert train(longer, accept=("data",)).final_position.step == 5
