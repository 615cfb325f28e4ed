"""Where in the data a run is, in words."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from setpoint.cli.main import main
from setpoint.data.sampler import describe_position
from setpoint.train.build.components import build_components
from setpoint.train.build.job_data import where_in_data
from setpoint.train.run import train

from ..train.small import events, small_job


def test_in_words() -> None:
    web = {"taken": 1500, "since": 0, "epoch": 1, "epoch_row": 250}
    code = {"taken": 500, "since": 0, "epoch": 0, "epoch_row": 500}
    assert describe_position({"sources": {"web": web, "code": code}}) == (
        "after 2,000 sequences: web 75.0% (epoch 2, after 250 sequences), "
        "code 25.0% (epoch 1, after 500 sequences)"
    )
    assert describe_position({"sources": {"web": web | {"taken": 0}}}).startswith(
        "after 0 sequences"
    )


def test_packed_rows() -> None:
    state = {
        "taken": 4000,
        "epoch": 1,
        "epoch_row": 1500,
        "group": 2,
        "row": 15,
        "method": "next_fit",
    }
    assert describe_position({"sources": {"": state}}) == "epoch 2, after 1,500 sequences"


MIXTURE = (
    """data.sources=[{type: random, name: a, documents: 30, weight: 3.0},
    {type: random, name: b, documents: 30, weight: 1.0}]""",
    "data.phases=[{start: 2 steps, lr_factor: 0.5}]",
    "data.anneal={start: 4 steps, weights: {a: 0.0}}",
)


def test_checkpoints_resumes_and_commands_say_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(small_job(tmp_path, "duration=4 steps", "evaluation=null")).directory
    state = json.loads((run / "checkpoints/step-00000004/state.json").read_text())
    assert state["data"] == "epoch 1, after 16 sequences"
    flags = ("duration=6 steps", "evaluation=null", "tracking.progress=lines")
    train(small_job(tmp_path, *flags), run, accept=["schedule"])
    (resumed,) = events(run, "resume")
    assert resumed["data_position"] == "epoch 1, after 16 sequences"
    assert "\ndata position: epoch 1, after 16 sequences\n" in capsys.readouterr().out
    place = "epoch 1, after 24 sequences"
    assert main(["train", str(run), "--dry-run"]) == 0
    assert f"data position  {place}\n" in capsys.readouterr().out
    assert main(["show", str(run)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"# this run is finished at step 6; data: {place}\n")
    assert tomllib.loads(shown)["name"] == "small"
    assert main(["check", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["data position"] == place


@pytest.mark.parametrize(
    ("step", "phase", "shares"),
    [
        (1, "phase 1 of 3 (its sources' own weights)", ("a 75.0%", "b 25.0%")),
        (2, "phase 2 of 3 (from 2 steps on)", ("a 75.0%", "b 25.0%")),
        (5, "phase 3 of 3 (annealing from 4 steps on)", ("a 60.0%", "b 40.0%")),
    ],
)
def test_phases(tmp_path: Path, step: int, phase: str, shares: tuple[str, str]) -> None:
    """Of a checkpoint at the end of a phase: the one that begins with the next sequence."""
    job = small_job(tmp_path, f"duration={max(step, 5)} steps", "evaluation=null", *MIXTURE)
    feed = build_components(job).feed
    for _ in range(step):
        feed.take()
    said = where_in_data(job, feed.state_dict())
    assert said.startswith(f"{phase}, after {4 * step} sequences: {shares[0]} (epoch 1, after ")
    assert f", {shares[1]} (epoch 1, after " in said
