"""Whole inference jobs: their results, where they go, and what is refused before any work."""

import json
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import ConfigError, RunError, SetpointError
from setpoint.config.composition import compose
from setpoint.config.record.record import fingerprint
from setpoint.infer.adopt import complete
from setpoint.infer.config import EvaluationTask, Generation, Inference
from setpoint.infer.inference import infer, require_place
from setpoint.train.config import Job

from ..support.snapshots import refused
from .small import folder_of, inference


def job_of(run: Path, **fields: Any) -> Inference:
    section = Generation(prompts=('!"#',), temperature=0.0, max_tokens=5)
    return inference(run, **{"generation": section, **fields})


def test_several_tasks_and_their_results(trained: tuple[Job, Path], tmp_path: Path) -> None:
    job = job_of(trained[1], evaluation=EvaluationTask(sequences=4), output=tmp_path / "out")
    found = infer(job)
    assert found.texts[0].text == "$%&' "
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["fingerprint"] == fingerprint(complete(job))
    assert results["weights"] == str(found.weights)
    assert results["evaluation"]["held_out"]["loss"] == found.scores["held_out"].loss
    (row,) = (tmp_path / "out" / "generations.jsonl").read_text().splitlines()
    assert json.loads(row)["text"] == found.texts[0].text
    assert set(folder_of(tmp_path / "out")) == {
        "config.json", "config.toml", "origins.json", "environment.json", "generations.jsonl",
        "results.json",
    }  # fmt: skip


def test_results_say_what_made_them(trained: tuple[Job, Path], tmp_path: Path) -> None:
    """The record of the results is the job, which gives them again."""
    first = infer(job_of(trained[1], output=tmp_path / "out"))
    again = compose(Inference, str(tmp_path / "out")).resolve()
    before = folder_of(tmp_path / "out")
    assert infer(again) == first
    after = folder_of(tmp_path / "out")
    assert after["results.json"] == before["results.json"]
    assert after["generations.jsonl"] == before["generations.jsonl"]


def test_places_for_results(trained: tuple[Job, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    infer(job_of(trained[1], output=out))
    # The same job again, also where a process died before the last file.
    (out / "results.json").unlink()
    infer(job_of(trained[1], output=out))
    before = folder_of(out)
    with pytest.raises(SetpointError, match="contains the record of another job"):
        infer(job_of(trained[1], output=out, seed=0, evaluation=EvaluationTask()))
    assert folder_of(out) == before
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes").write_text("mine")
    with refused():
        infer(job_of(trained[1], output=other))
    with refused():
        require_place(other / "notes", complete(job_of(trained[1])))


def test_a_disk_that_refuses(trained: tuple[Job, Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused(RunError):
        infer(job_of(trained[1], output=tmp_path / "file" / "out"))


def test_a_job_without_a_task(trained: tuple[Job, Path]) -> None:
    with refused(ConfigError):
        infer(inference(trained[1]))


def test_nothing_is_computed_where_a_check_finds_something(
    trained: tuple[Job, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("setpoint.infer.inference.load", lambda job: pytest.fail("it was loaded"))
    job = job_of(trained[1], output=tmp_path / "out")
    job.generation = Generation(prompts_file=Path("none.txt"))
    with refused(ConfigError):
        infer(job)
    job = job_of(trained[1])
    job.parallel.device = "cuda"
    with refused(ConfigError):
        infer(job)
    assert not (tmp_path / "out").exists()
