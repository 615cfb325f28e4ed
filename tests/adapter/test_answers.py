"""The example of docs/adapters.md, from a base to an export: questions whose answers are known."""

from __future__ import annotations

import json
import random
import runpy
import sys
from pathlib import Path
from string import ascii_lowercase

import pytest

import setpoint.presets  # noqa: F401 - registers them
from setpoint.config.composition import compose
from setpoint.data.corpus import Corpus
from setpoint.infer.config import Inference, Weights
from setpoint.infer.run import infer
from setpoint.infer.tasks import Export, Generation
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.run import train

from ..docs.test_commands import DOCS, write_files

TASKS = {"upper": str.upper, "last": lambda word: word[-1]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the files of the page."""
    write_files(DOCS / "adapters.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_answers(count: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["answers.py", str(count)])
    runpy.run_path("answers.py")
    return Path("answers.jsonl").read_text().splitlines()


def job_of(source: str, *flags: str) -> Job:
    return compose(Job, source, flags=["tracking.progress=none", *flags]).resolve()


def right(weights: Path, questions: list[tuple[str, str]], *flags: str) -> float:
    """The share of questions that are answered as the task says, by greedy decoding."""
    prompts = tuple(f"{task}({word!r}) == " for task, word in questions)
    asked = Inference(
        weights=Weights(path=str(weights)),
        generation=Generation(prompts=prompts, temperature=0, max_tokens=12),
    )
    texts = infer(compose(Inference, asked, flags=flags).resolve()).texts
    wanted = [repr(TASKS[task](word)) for task, word in questions]
    return sum(t.text == w for t, w in zip(texts, wanted, strict=True)) / len(wanted)


@pytest.mark.usefixtures("folder")
def test_the_loss_is_on_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [json.loads(line)["messages"] for line in write_answers(40, monkeypatch)]
    job = job_of("answers.toml", "evaluation=null", "data.held_out=0", "model.layers=1")
    (corpus,), tokenizer = build_components(job).corpora, job.tokenizer.build()
    assert isinstance(corpus, Corpus) and corpus.trained is not None
    pairs = zip(corpus.tokens[1:], corpus.trained[1:], strict=True)  # the first is no target
    trained = [ord("\n") if t == tokenizer.separator else t for t, counts in pairs if counts]
    answers = tokenizer.decode(trained).decode().split("\n")[:-1]
    assert sorted(answers) == sorted(row[1]["content"] for row in rows)
    for question, answer in rows:
        task, word = question["content"].split("('")[0], question["content"].split("'")[1]
        assert answer["content"] == repr(TASKS[task](word))


@pytest.mark.slow
def test_answers_are_learnt_and_exported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = "".join(write_answers(6000, monkeypatch))
    base = train(job_of("tiny")).directory
    run = train(job_of("answers.toml", f"model.pretrained={base}")).directory
    draw = random.Random(1)
    words = ("".join(draw.choices(ascii_lowercase, k=4)) for _ in range(60))
    questions = [(task, word) for word in words if f"'{word}'" not in known for task in TASKS]
    assert len(questions) > 80
    assert right(base, questions) == 0
    assert right(run, questions) > 0.9
    merged = folder / "merged"
    infer(Inference(weights=Weights(path=str(run)), export=Export(path=merged)))
    assert right(merged, questions, "tokenizer=bytes") > 0.9
