"""`data.curriculum`: documents in the order of their length or of a column of scores."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import SetpointError
from setpoint.config.composition import compose
from setpoint.data.cache import corpora
from setpoint.data.loader import Feed
from setpoint.shapes.batch import Count
from setpoint.train.build.job_data import build_training_data
from setpoint.train.config import Job

S = 32
ROWS = [(f"r{row:02}" + "." * ((row * 7) % 23), (row * 5) % 11 - 3.5) for row in range(40)]


def jsonl(folder: Path) -> dict[str, Any]:
    lines = (json.dumps({"text": text, "meta": {"q": score}}) + "\n" for text, score in ROWS)
    (folder / "rows.jsonl").write_text("".join(lines))
    return {"type": "text", "paths": [f"{folder}/rows.jsonl"], "score": "meta.q"}


def table(folder: Path) -> dict[str, Any]:
    with (folder / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "q"), *ROWS])
    return {"type": "text", "paths": [f"{folder}/rows.csv"], "score": "q"}


def hub(folder: Path) -> dict[str, Any]:
    datasets = pytest.importorskip("datasets")
    columns = {"text": [text for text, _ in ROWS], "q": [score for _, score in ROWS]}
    datasets.Dataset.from_dict(columns).save_to_disk(folder / "set", num_proc=None)
    return {"type": "huggingface", "path": str(folder / "set"), "score": "q"}


def job_of(source: dict[str, Any], *overrides: str) -> Job:
    source = dict(source)
    if not any("score" in each for each in overrides):
        source.pop("score")
    flags = [f"data.sources={json.dumps([source])}", "data.held_out=0", "evaluation=null"]
    return compose(Job, flags=[*flags, f"batch.sequence_length={S}", *overrides]).resolve()


def texts_of(job: Job, count: int = len(ROWS)) -> list[str]:
    """Documents in the order in which they are trained on, each in a row of its own."""
    train = corpora(job.data, job.tokenizer.build()).train
    sequences, sampler = build_training_data(job, train)
    batch = sequences.rows(sampler.take(count))
    return [bytes(i for i in row if i < 256).decode() for row in batch.inputs.tolist()]


def expected(by: str, descending: bool) -> list[str]:
    """A stable sort, whose ties keep the order of the rows."""
    key: Callable[[tuple[str, float]], float]
    key = (lambda row: len(row[0])) if by == "length" else (lambda row: row[1])
    ordered = sorted(ROWS, key=lambda row: -key(row) if descending else key(row))
    return [text for text, _ in ordered]


@pytest.mark.parametrize("source", [jsonl, table, hub])
@pytest.mark.parametrize(
    ("by", "descending"), [("length", False), ("score", False), ("score", True)]
)
def test_documents_come_in_the_order_of_the_key(
    source: Any, by: str, descending: bool, tmp_path: Path
) -> None:
    curriculum = (f"data.curriculum.by={by}", f"data.curriculum.descending={descending}".lower())
    section = source(tmp_path)
    job = job_of(section, *curriculum, "data.packing.method=none")
    # Each epoch is the same, and prepared data is the same again.
    assert texts_of(job, 2 * len(ROWS)) == 2 * expected(by, descending)
    prepared = ("data.prepare.above=1", f"data.prepare.folder={tmp_path}/cache")
    job = job_of(section, *curriculum, "data.packing.method=none", *prepared)
    assert texts_of(job) == expected(by, descending)
    assert list((tmp_path / "cache").glob("*/manifest.json"))


def test_concatenated_text_is_laid_in_the_order(tmp_path: Path) -> None:
    job = job_of(jsonl(tmp_path), "data.curriculum.by=score")
    sequences, sampler = build_training_data(job, corpora(job.data, job.tokenizer.build()).train)
    row = [256]
    for text in expected("score", False):
        row += [*text.encode(), 256]
    batch = sequences.rows(sampler.take(len(sequences)))
    whole = [row[at : at + S] for at in range(0, len(row) - S, S + 1)]
    assert batch.inputs.tolist() == whole


@pytest.mark.parametrize("method", ["concatenate", "next_fit"])
def test_a_resume_goes_on_and_another_order_is_refused(method: str, tmp_path: Path) -> None:
    section = jsonl(tmp_path)
    packing = f"data.packing.method={method}"

    def feed(*overrides: str) -> Feed:
        job = job_of(section, packing, *overrides)
        parts = build_training_data(job, corpora(job.data, job.tokenizer.build()).train)
        return Feed(*parts, lambda b: Count(b.tokens, b.target_tokens, 1.0), micro_size=3)

    def inputs(feed: Feed, steps: int) -> list[Any]:
        return [batch.inputs.tolist() for _ in range(steps) for batch in feed.take().batches]

    whole, first = feed("data.curriculum.by=score"), feed("data.curriculum.by=score")
    rows = inputs(whole, 12)
    assert inputs(first, 5) == rows[:5]
    state, again = json.loads(json.dumps(first.state_dict())), feed("data.curriculum.by=score")
    again.load_state_dict(state)
    assert inputs(again, 7) == rows[5:]
    for other in ((), ("data.curriculum.by=length",), ("data.shuffle=false",)):
        with pytest.raises(SetpointError, match=r"^data\.curriculum: .* the order score, and now"):
            feed(*other).load_state_dict(state)


@pytest.mark.parametrize(
    ("value", "words"),
    [('"high"', "not a finite number"), ("true", "not a finite number"), ("NaN", "finite"),
     ("1" + "0" * 400, "finite"),
     (None, "has no field 'q'")],
)  # fmt: skip
def test_a_row_without_a_number_is_named(value: str | None, words: str, tmp_path: Path) -> None:
    more = "" if value is None else f', "q": {value}'
    (tmp_path / "rows.jsonl").write_text(f'{{"text": "a", "q": 1}}\n{{"text": "b"{more}}}\n')
    source = {"type": "text", "paths": [f"{tmp_path}/rows.jsonl"], "score": "q"}
    job = job_of(source, "data.curriculum.by=score")
    with pytest.raises(SetpointError, match=rf"data\.sources\.0\.score: .*line 2.*{words}"):
        texts_of(job, 1)


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        (("data.curriculum.by=score", "data.sources.0.score=null"), r"data\.curriculum\.by"),
        (("data.sources.0.score=q",), r"data\.sources\.0\.score"),
        (("data.curriculum.by=length", "data.sources.0.streaming=true"), "streaming"),
        (("data.curriculum.by=length", "data.shuffle=false"), r"data\.shuffle"),
        (("data.curriculum.by=length", "data.seed=3"), r"data\.seed"),
    ],
)
def test_what_does_not_go_together_is_refused(
    overrides: tuple[str, ...], path: str, tmp_path: Path
) -> None:
    with pytest.raises(SetpointError, match=path):
        job_of(jsonl(tmp_path), *overrides)
