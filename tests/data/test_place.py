"""Where in the data a run is, in words."""

from __future__ import annotations

import json
from pathlib import Path

from setpoint.data.place import place_in_words
from setpoint.train.run import train

from ..train.small import events, small_job


def test_in_words() -> None:
    web = {"taken": 1500, "since": 0, "state": {"epoch": 1, "index": 250}}
    code = {"taken": 500, "since": 0, "state": {"epoch": 0, "index": 500}}
    assert place_in_words({"mixture": {"web": web, "code": code}}) == (
        "after 2,000 sequences: web 75.0% (epoch 2, after 250 sequences), "
        "code 25.0% (epoch 1, after 500 sequences)"
    )
    assert place_in_words({"mixture": {"web": web | {"taken": 0}}}).startswith("after 0 sequences")


def test_checkpoints_and_resumes_say_it(tmp_path: Path) -> None:
    run = train(small_job(tmp_path, "duration=4 steps", "evaluation=null")).directory
    state = json.loads((run / "checkpoints/step-00000004/state.json").read_text())
    assert state["data"] == "epoch 1, after 16 sequences"
    train(small_job(tmp_path, "duration=6 steps", "evaluation=null"), run, accept=["schedule"])
    (resumed,) = events(run, "resume")
    assert resumed["data_position"] == "epoch 1, after 16 sequences"
