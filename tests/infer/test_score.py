"""Loss, perplexity and bits per byte: against training's own, and against a sum by hand."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.config import RunError
from setpoint.data.corpus import build_corpus
from setpoint.data.document import Document
from setpoint.data.sources.config import Random, Text
from setpoint.infer.adopt import complete
from setpoint.infer.config import EvaluationTask, Inference, InferenceBatch, InferenceWeights
from setpoint.infer.distributed import ModelRunner
from setpoint.infer.loaded_model import LoadedModel, load
from setpoint.infer.score import score, score_texts
from setpoint.infer.tasks import DataSet
from setpoint.shapes.scoring import Score
from setpoint.train.config import Job
from setpoint.train.run import train

from ..support.snapshots import refused
from ..train.small import small_job
from .small import inference


def scores(run: Path, batch: Any = None, **fields: Any) -> dict[str, Score]:
    job = inference(run, evaluation=EvaluationTask(**fields))
    if batch is not None:
        job.batch = batch
    job = complete(job)
    return score_texts(load(job), job)


def test_it_is_what_training_measured(trained: tuple[Job, Path]) -> None:
    rows = [json.loads(line) for line in (trained[1] / "metrics.jsonl").read_text().splitlines()]
    measured = {row["step"]: row for row in rows if "held_out_loss" in row}
    for step, row in measured.items():
        job = Inference(weights=InferenceWeights(path=str(trained[1]), checkpoint=step))
        job.evaluation = EvaluationTask()
        job = complete(job)
        found = score_texts(load(job), job)["held_out"]
        assert found.loss == pytest.approx(row["held_out_loss"], rel=1e-6)
        assert found.bits_per_byte == pytest.approx(row["held_out_bits_per_byte"], rel=1e-6)
    assert set(measured) == {40, 80, 120}


def test_a_mixture_is_split_as_in_training(tmp_path: Path) -> None:
    sources = "[{type=random, name=a, documents=9, length=300, weight=1}, \
        {type=random, name=b, documents=90, length=20, alphabet=4, weight=3}]"
    run = train(
        small_job(tmp_path, "duration=2 steps", "data.held_out=0.2", "evaluation.sequences=null",
            f"data.sources={sources}")
    ).directory  # fmt: skip
    measured = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][-1]
    found = scores(run, sides=("held_out", "train"))
    assert list(found) == ["held_out", "train:a", "train:b"]
    assert found["held_out"].loss == pytest.approx(measured["held_out_loss"], rel=1e-6)
    assert found["held_out"].tokens == measured["held_out_tokens"]
    assert found["train:a"].loss > found["train:b"].loss


def test_changed_files_are_a_caution(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"line {number} of text\n" for number in range(99)))
    flag = f'data.sources=[{{type: text, paths: [{file}], separator: "\\n", weight: 1}}]'
    run = train(small_job(tmp_path, "duration=1 steps", "data.held_out=9", flag)).directory
    scores(run)
    assert "caution" not in capsys.readouterr().err
    with file.open("a") as lines:
        lines.write("".join(f"line {number} of text\n" for number in range(99, 150)))
    scores(run)
    assert "its files have changed" in capsys.readouterr().err


def test_rows_are_read_with_the_field_of_the_run(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"body": "row {number} of text"}}\n' for number in range(99)))
    flag = f"data.sources=[{{type=random}}, {{type=text, paths=[{file}], field=body}}]"
    run = train(small_job(tmp_path, "duration=1 steps", flag)).directory
    rows = DataSet(name="rows", sources=(Text(paths=(str(file),)),))
    assert scores(run, sides=(), sets=(rows,))["rows"].bytes == 1376


def test_a_sum_by_hand(loaded: LoadedModel) -> None:
    text = b'!"#$%&\' !"#xyz'
    corpus = build_corpus([Document("a", text)], loaded.tokenizer, side="a")
    tokens = [256, *text, 256]
    nats = 0.0
    for start in range(0, len(tokens) - 1, 6):
        window = torch.tensor([tokens[start : start + 7]])
        with torch.no_grad():
            found = loaded.model(window[:, :-1]).double().log_softmax(-1)
        nats -= float(found.gather(-1, window[:, 1:, None]).sum())
    result = score(loaded, corpus, sequence_length=6, micro_size=2)
    assert (result.tokens, result.bytes) == (len(text) + 1, len(text))
    assert result.loss == pytest.approx(nats / (len(text) + 1), rel=1e-6)
    assert result.perplexity == math.exp(result.loss)
    assert result.bits_per_byte == pytest.approx(nats / math.log(2) / len(text), rel=1e-6)


def test_the_batch_plays_no_part(trained: tuple[Job, Path]) -> None:
    one, many = (
        scores(trained[1], InferenceBatch(micro_size=size))["held_out"] for size in (1, 64)
    )
    assert one.loss == pytest.approx(many.loss, rel=1e-6)
    assert (one.tokens, one.bytes) == (many.tokens, many.bytes)


def test_named_texts(trained: tuple[Job, Path], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("!\"#$%&' " * 20)
    sets = (
        DataSet(name="like", sources=(Random(documents=10, length=200, alphabet=8, seed=5),)),
        DataSet(name="unlike", sources=(Random(pattern="uniform", documents=10),)),
        DataSet(name="short", sources=(Text(paths=(str(tmp_path / "a.txt"),)),)),
    )
    found = scores(trained[1], sides=("train", "held_out"), sets=sets)
    assert list(found) == ["train", "held_out", "like", "unlike", "short"]
    assert found["like"].loss < found["unlike"].loss
    assert found["short"].bytes == 160
    few = scores(trained[1], sets=sets[:1], sequences=3)["like"]
    assert few.tokens == 3 * trained[0].batch.sequence_length


def test_a_text_shorter_than_a_sequence(
    trained: tuple[Job, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("!")
    sets = (DataSet(name="short", sources=(Text(paths=("a.txt",)),)),)
    assert scores(trained[1], sides=(), sets=sets)["short"].tokens == 2
    (tmp_path / "a.txt").write_text("")
    with refused():
        scores(trained[1], sides=(), sets=sets)


def test_perplexity_is_not_capped_and_nonsense_is_refused(loaded: LoadedModel) -> None:
    class Wrong(torch.nn.Module):
        """Certain of what never comes; or of nothing."""

        def __init__(self, size: float) -> None:
            super().__init__()
            self.size = size

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            logits = torch.zeros(*tokens.shape, 257)
            logits[..., 0] = self.size
            return logits

    corpus = build_corpus([Document("a", b"!" * 20)], loaded.tokenizer, side="a")
    high = score(
        replace(loaded, runner=ModelRunner(Wrong(100.0))), corpus, sequence_length=8, micro_size=1
    )
    assert high.perplexity == pytest.approx(math.exp(100))
    for size in (1000.0, math.nan):
        wrong = replace(loaded, runner=ModelRunner(Wrong(size)))
        with refused(RunError):
            score(wrong, corpus, sequence_length=8, micro_size=1)
